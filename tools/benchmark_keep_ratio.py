"""Cost of FlatFormer on images against the share of patches that its layers work on.

    python tools/benchmark_keep_ratio.py --arch small --sizes 512 1024 --ratios 1 0.75 0.5 0.25

Batch 1, float32, inference. One ratio in all stages; windows grow with falling ratio so that about one group of 64
patches is left in each. In each round every ratio has its turn; medians. FLOPs count attention, two for a multiply-add.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from pathlib import Path

import torch

sys.path[0] = str(Path(__file__).resolve().parents[1])

from mmvit_plugins.benchmark import count_flops, interleaved_seconds  # noqa: E402
from mmvit_plugins.models import FlatFormer  # noqa: E402

GROUP = 64


def build(arch: str, ratio: float) -> FlatFormer:
    """The same weights for every ratio, which has none of its own."""
    torch.manual_seed(0)
    window = math.ceil(math.sqrt(GROUP / ratio) - 1e-6)
    return FlatFormer(arch, keep_ratio=ratio, window=window, group_size=GROUP).eval()


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="small")
    parser.add_argument("--sizes", type=int, nargs="+", default=[512], help="height = width in pixels (%(default)s)")
    parser.add_argument("--ratios", type=float, nargs="+", default=[1.0, 0.75, 0.5, 0.25], help="the first: yardstick")
    parser.add_argument("--rounds", type=int, default=5, help="(%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="(%(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    models = {ratio: build(args.arch, ratio) for ratio in args.ratios}
    print(f"{args.arch}, torch {torch.__version__}, {args.threads} threads\n")
    print(
        "| image | keep_ratio | window | GFLOP | time | share of FLOPs | share of time |\n|---|---|---|---|---|---|---|"
    )
    for size in args.sizes:
        x = torch.randn(1, 3, size, size)
        with torch.no_grad():
            flops = {ratio: count_flops(lambda m=model, x=x: m(x)) for ratio, model in models.items()}
            calls = {f"{ratio:g}": (lambda m=model, x=x: m(x)) for ratio, model in models.items()}
            times = interleaved_seconds(calls, args.rounds)
        first = args.ratios[0]
        base = statistics.median(times[f"{first:g}"])
        for ratio, model in models.items():
            seconds = statistics.median(times[f"{ratio:g}"])
            window = model.stages[0].groupings[0].window
            print(
                f"| {size} x {size} | {ratio:g} | {window[0]} x {window[1]} | {flops[ratio] / 1e9:.2f} | "
                f"{seconds * 1e3:.0f} ms | {flops[ratio] / flops[first]:.2f} | {seconds / base:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
