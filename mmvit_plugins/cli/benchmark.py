"""Parameters, MACs, FLOPs, latency, throughput and peak memory of any configs, beside each other."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmvit_plugins.environment import check_environment

from .arguments import make_parser
from .errors import UserError, run_tool
from .file_checks import IMAGE_SUFFIXES

if TYPE_CHECKING:
    from rich.progress import Progress

    from mmvit_plugins.benchmark import Setting, Subject

__all__ = ["benchmark", "main"]

EXAMPLES = """examples:
  %(prog)s stvit/in1k.py benchmark/swin_tiny.py --part backbone --sizes 224 512 1024 --compare benchmark/swin_tiny
  %(prog)s ours=configs/stvit/upernet_scenes.py --sizes 128x256 --mode inference train --dtype float32 bfloat16
  %(prog)s --plot work_dirs/benchmark --accuracy ours=metrics.json other=metrics2.json --metric mIoU --cost latency_ms

MACs are multiply-adds, FLOPs are twice as many: both are named. Attention is counted, fused or not. In each round every
model is timed in turn, so that all see the same machine; medians are printed, and ratios of the fastest rounds. Run it
on an otherwise idle machine all the same."""


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser("benchmark", __doc__ or "", EXAMPLES)
    parser.add_argument("configs", nargs="*", metavar="[NAME=]CONFIG", help="files, or names of shipped configs")
    vary = parser.add_argument_group("what is varied (every combination is measured)")
    vary.add_argument("--sizes", nargs="+", default=["224"], metavar="SIDE|HxW", help="pixels, height first")
    vary.add_argument("--batch", nargs="+", type=int, default=[1], help="images in a call")
    vary.add_argument("--dtype", nargs="+", default=["float32"], help="float32; bfloat16 or float16: autocast")
    vary.add_argument("--layout", nargs="+", default=["contiguous"], help="contiguous, channels_last")
    vary.add_argument("--compiled", nargs="+", choices=("no", "yes"), default=["no"], help="torch.compile")
    vary.add_argument("--part", nargs="+", default=["model"], help="backbone, model (with pre- and postprocessing)")
    vary.add_argument("--mode", nargs="+", default=["inference"], help="inference, train (backward and update too)")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds (%(default)s)")
    parser.add_argument("--warmup", type=int, default=1, help="calls before the first round (%(default)s)")
    parser.add_argument("--no-memory", action="store_true", help="no peak memory (a process for each figure on a CPU)")
    parser.add_argument("--images", nargs="+", default=[], metavar="FILE|DIR", help="photographs (default: scenes)")
    parser.add_argument("--flops-images", type=int, default=1, help="FLOPs are the mean over so many images")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N")
    parser.add_argument("--threads", type=int, help="torch threads on a CPU (default: torch's own)")
    parser.add_argument("--cfg-options", nargs="+", default=[], metavar="KEY=VALUE", help="changes of every config")
    parser.add_argument("--compare", metavar="NAME", help="print ratios to this one")
    parser.add_argument("--out", type=Path, default=Path("work_dirs/benchmark"), help="folder (%(default)s)")
    parser.add_argument("--resume", action="store_true", help="keep the rows that are in --out and measure the others")
    parser.add_argument("--plot", metavar="DIR|FILE", help="measure nothing: draw this report again")
    parser.add_argument("--accuracy", nargs="+", default=[], metavar="NAME=FILE", help="tools/test.py's --out files")
    parser.add_argument("--metric", help="which metric of them (default: the first)")
    parser.add_argument("--cost", default="latency_ms", choices=("latency_ms", "flops", "peak_mib", "parameters"))
    return parser.parse_args(argv)


def named_configs(given: list[str]) -> dict[str, str]:
    """{name: config}; without a name its folder and stem.

    Raises:
        UserError: two have the same name.
    """
    from mmvit_plugins.benchmark.subject import default_name

    named: dict[str, str] = {}
    for text in given:
        name, _, config = text.rpartition("=")
        name = name or default_name(config)
        if name in named:
            raise UserError(f"two configs are named {name!r}: give names, NAME=CONFIG")
        named[name] = config
    return named


def _settings(args: argparse.Namespace) -> list[Setting]:
    from mmvit_plugins.benchmark.settings import parse_size, product_of

    try:
        return product_of(
            [parse_size(text) for text in args.sizes],
            batch=args.batch,
            dtype=args.dtype,
            layout=args.layout,
            compiled=[word == "yes" for word in args.compiled],
            part=args.part,
            mode=args.mode,
        )
    except ValueError as error:
        raise UserError(str(error)) from error


def _images(args: argparse.Namespace) -> list[str]:
    found: list[str] = []
    for name in args.images:
        path = Path(name)
        if not path.exists():
            raise UserError(f"--images: there is no {path.absolute()}")
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        found += [str(file.absolute()) for file in files if file.suffix.lower() in IMAGE_SUFFIXES]
    if args.images and not found:
        raise UserError(f"--images: no image in {', '.join(args.images)}; looked for {', '.join(IMAGE_SUFFIXES)}")
    return found


def measure(subjects: list[Subject], setting: Setting, args: argparse.Namespace, progress: Progress) -> list[dict]:
    """The rows of one setting, one for each subject."""
    import torch

    from mmvit_plugins.benchmark import interleaved_seconds
    from mmvit_plugins.benchmark.memory import peak_mib

    task = progress.add_task(str(setting), total=args.rounds * len(subjects))
    try:
        flops = {subject.name: _flops_per_image(subject, setting, args) for subject in subjects}
        calls = {subject.name: subject.step(setting) for subject in subjects}
        times = interleaved_seconds(
            calls, args.rounds, args.warmup, args.device, advance=lambda: progress.advance(task)
        )
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise UserError(
            f"{setting}: a batch norm over a pooled 1x1 map cannot train on one image: --batch 2"
        ) from error
    rows = []
    for subject in subjects:
        median = statistics.median(times[subject.name])
        row = dict(
            name=subject.name, config=subject.source["config"], **setting.as_dict(), parameters=subject.parameters
        )
        row.update(flops=round(flops[subject.name]), macs=round(flops[subject.name] / 2))
        row.update(
            latency_ms=round(median * 1e3, 3),
            images_per_s=round(setting.batch / median, 2),
            rounds_ms=[round(t * 1e3, 3) for t in times[subject.name]],
            warmup=args.warmup,
        )
        if not args.no_memory:
            threads = torch.get_num_threads()
            mib = peak_mib(subject.step(setting), subject.source, setting, args.device, threads)
            row["peak_mib"] = None if mib is None else round(mib, 1)
        rows.append(row)
    progress.remove_task(task)
    return rows


def _flops_per_image(subject: Subject, setting: Setting, args: argparse.Namespace) -> float:
    """Mean over ``--flops-images`` images; of a training step, which needs its batch, over the batch."""
    from mmvit_plugins.benchmark import count_flops

    eager = replace(setting, compiled=False)
    if setting.mode == "train":
        return count_flops(subject.step(eager)) / setting.batch
    images = range(min(args.flops_images, len(args.images) or args.flops_images))
    return statistics.mean(count_flops(subject.step(eager, image)) for image in images)


def benchmark(args: argparse.Namespace) -> int:
    """Measure, or draw what was measured."""
    check_environment("mmengine", "mmcv")
    from mmvit_plugins.benchmark import read_report

    if args.plot:
        _draw(read_report(args.plot)["rows"], args, Path(args.plot))
        return 0
    if not args.configs:
        raise UserError("give at least one config, or --plot for a report that is there")
    if min(args.rounds, args.flops_images) < 1 or args.warmup < 0:
        raise UserError("--rounds and --flops-images are at least 1, --warmup at least 0")
    named, settings = named_configs(args.configs), _settings(args)
    if args.compare and args.compare not in named:
        raise UserError(f"--compare {args.compare}: no config is named so; names: {', '.join(named)}")
    rows = _run(named, settings, args)
    _print_table(rows)
    if args.compare:
        _print_ratios(rows, args.compare)
    _draw(rows, args, args.out)
    return 0


def _run(named: dict[str, str], settings: list[Setting], args: argparse.Namespace) -> list[dict]:
    """Measure every setting; after each the report is written, so that an interrupted run loses one at most."""
    import torch
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from mmvit_plugins.benchmark import Subject, environment_of, read_report, write_report

    from .inference import choose_device, quiet_hosts

    args.device, args.images = choose_device(args.device), _images(args)
    if args.threads:
        torch.set_num_threads(args.threads)
    environment = environment_of(args.device, torch.get_num_threads())
    rows: list[dict] = []
    if args.resume and (args.out / "benchmark.json").is_file():
        report = read_report(args.out)
        if report["environment"] != environment:
            raise UserError(f"--resume: {args.out} was measured elsewhere: {report['environment']}, here {environment}")
        rows = report["rows"]
    done = {(row["name"], *(row[key] for key in settings[0].as_dict())) for row in rows}
    built: dict[tuple[str, str], Subject] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with quiet_hosts(), Progress(*columns) as progress:
        overall = progress.add_task("settings", total=len(settings))
        for setting in settings:
            missing = [name for name in named if (name, *setting.as_dict().values()) not in done]
            for name in missing:
                if (name, setting.part) not in built:
                    built[name, setting.part] = Subject(
                        name, named[name], setting.part, args.device, args.images, args.cfg_options
                    )
            if missing:
                rows += measure([built[name, setting.part] for name in missing], setting, args, progress)
                write_report(args.out, environment, rows)
            progress.advance(overall)
    return rows


def _print_table(rows: list[dict]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="medians; MACs are multiply-adds, FLOPs = 2 MACs")
    for column in ("model", "size", "setting", "params (M)", "GMACs", "GFLOPs", "ms", "images/s", "peak MiB"):
        table.add_column(column, justify="left" if column in ("model", "setting") else "right")
    for row in rows:
        setting = [f"b{row['batch']}", row["dtype"], row["layout"], *["compiled"] * row["compiled"]]
        table.add_row(
            row["name"],
            f"{row['height']}x{row['width']}",
            " ".join([*setting, row["part"], row["mode"]]),
            f"{row['parameters'] / 1e6:.2f}",
            f"{row['macs'] / 1e9:.2f}",
            f"{row['flops'] / 1e9:.2f}",
            f"{row['latency_ms']:.1f}",
            f"{row['images_per_s']:.1f}",
            f"{row['peak_mib']:.0f}" if row.get("peak_mib") is not None else "-",
        )
    # A file or a pipe gets lines that are not folded.
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _print_ratios(rows: list[dict], baseline: str) -> None:
    from mmvit_plugins.benchmark import compare_rows

    print(f"ratios to {baseline} (below 1 is cheaper):")
    for row in compare_rows(rows, baseline):
        keys = ("parameters", "flops", "latency_ms", "peak_mib")
        ratios = "  ".join(f"{key} {row[key]:.2f}" for key in keys if key in row)
        layout = f"{row['dtype']} {row['layout']} {row['part']} {row['mode']} b{row['batch']}"
        print(f"  {row['name']:<32} {row['height']}x{row['width']} {layout}: {ratios}")


def _draw(rows: list[dict], args: argparse.Namespace, folder: Path) -> None:
    """The plots; and with ``--accuracy`` accuracy against cost."""
    from mmvit_plugins.benchmark import plot_accuracy, plot_costs

    folder = folder if folder.is_dir() or not folder.suffix else folder.parent
    written = plot_costs(rows, folder)
    if args.accuracy:
        points, metric = _points(rows, args)
        written.append(plot_accuracy(points, args.cost, metric, folder / "accuracy.png"))
    for path in (folder / "benchmark.json", folder / "benchmark.csv", *written):
        if path.exists():
            print(f"wrote {path.absolute()}" if path in written else f"report: {path.absolute()}")


def _points(rows: list[dict], args: argparse.Namespace) -> tuple[list[dict[str, Any]], str]:
    """Accuracy and cost of each name; of several settings the first counts.

    Raises:
        UserError: a result file is missing, of another kind, or of a name that was not measured.
    """
    points, metric = [], args.metric
    for text in args.accuracy:
        name, _, file = text.partition("=")
        row = next((row for row in rows if row["name"] == name and row.get(args.cost)), None)
        if not file or row is None:
            names = ", ".join(dict.fromkeys(r["name"] for r in rows))
            raise UserError(f"--accuracy takes NAME=FILE with a name that has {args.cost}; got {text!r}, have {names}")
        if not Path(file).is_file():
            raise UserError(f"--accuracy {text}: there is no {Path(file).absolute()}")
        metrics = json.loads(Path(file).read_text(encoding="utf-8")).get("metrics") or {}
        metric = metric or next(iter(metrics), None)
        if metrics.get(metric) is None:
            raise UserError(f"--accuracy {text}: the file has no metric {metric!r}; it has {', '.join(metrics)}")
        points.append({"name": name, args.cost: row[args.cost], "value": metrics[metric]})
    return points, str(metric)


def main(argv: list[str] | None = None) -> int:
    """``tools/benchmark.py``; returns the exit code."""
    return run_tool(benchmark, parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
