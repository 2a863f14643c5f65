"""Validation curves of several trainings in one picture, against iterations and against training time.

    python tools/plot_runs.py "STViT-tiny=work_dirs/a" "MiT-B0=work_dirs/b" --ms 320 410 --out curves.png

A run is NAME=WORK_DIR. Times per iteration (--ms, one for each run, in its order) are those that
tools/benchmark_configs.py measures on an idle machine; those in a log also hold what else the machine did.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

sys.path[0] = str(Path(__file__).resolve().parents[1])

from mmvit_plugins.visualization import find_scalars, read_scalars  # noqa: E402


def main() -> None:
    """Draw the curves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="NAME=WORK_DIR")
    parser.add_argument("--metric", default="mIoU")
    parser.add_argument("--ms", type=float, nargs="+", help="milliseconds of an iteration, one for each run")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.ms and len(args.ms) != len(args.runs):
        parser.error(f"--ms needs one value for each of {len(args.runs)} runs, got {len(args.ms)}")
    figure = Figure(figsize=(9 if args.ms else 5, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 2 if args.ms else 1, squeeze=False, sharey=True)
    for number, run in enumerate(args.runs):
        name, _, folder = run.partition("=")
        curves = read_scalars(find_scalars(folder))
        if args.metric not in curves:
            parser.error(f"{Path(folder).resolve()} has no metric {args.metric!r}; it has {', '.join(sorted(curves))}")
        steps, values = zip(*curves[args.metric], strict=True)
        label = f"{name}: {values[-1]:.1f}"
        axes[0, 0].plot(steps, values, marker="o", markersize=3, label=label)
        if args.ms:
            axes[0, 1].plot([s * args.ms[number] / 60e3 for s in steps], values, marker="o", markersize=3, label=label)
    axes[0, 0].set(xlabel="iteration", ylabel=f"{args.metric} (%)")
    if args.ms:
        axes[0, 1].set(xlabel="training time (minutes)")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
        axis.legend(loc="lower right")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.out, dpi=110)
    print(f"wrote {args.out.absolute()}")


if __name__ == "__main__":
    main()
