"""Parameters, MACs, FLOPs, latency, throughput and peak memory of any configs, beside each other."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmvit_plugins.environment import check_environment

from .arguments import make_parser
from .errors import UserError, run_tool

if TYPE_CHECKING:
    from mmengine.config import Config

    from mmvit_plugins.benchmark import Failure, Setting, Subject

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
    """The photographs; a file that is no image, or is damaged, is an error and not left out."""
    from mmvit_plugins.benchmark.images import check_photographs

    from .inference import collect_images

    found = [str(path) for path in collect_images(args.images)]
    check_photographs(found, used=max(*args.batch, args.flops_images))
    return found


def benchmark(args: argparse.Namespace) -> int:
    """Measure, or draw what was measured. 1 if anything could not be measured."""
    check_environment("mmengine", "mmcv")
    from mmvit_plugins.benchmark import print_ratios, print_table, read_accuracies, read_report

    accuracies, metric = read_accuracies(args.accuracy, args.metric)
    if args.plot:
        _draw(read_report(args.plot)["rows"], accuracies, metric, args.cost, Path(args.plot))
        return 0
    if not args.configs:
        raise UserError("give at least one config, or --plot for a report that is there")
    if min(args.rounds, args.flops_images) < 1 or args.warmup < 0:
        raise UserError("--rounds and --flops-images are at least 1, --warmup at least 0")
    named, settings = named_configs(args.configs), _settings(args)
    if args.compare and args.compare not in named:
        raise UserError(f"--compare {args.compare}: no config is named so; names: {', '.join(named)}")
    rows, failures = _run(named, settings, args)
    print_table(rows)
    if args.compare:
        print_ratios(rows, args.compare)
    if failures:
        _print_failures(failures, args.debug)
    _draw(rows, accuracies, metric, args.cost, args.out)
    return 1 if failures else 0


def _run(
    named: dict[str, str], settings: list[Setting], args: argparse.Namespace
) -> tuple[list[dict[str, Any]], list[Failure]]:
    """Measure every setting; after each the report is written, so that an interrupted run loses one at most.

    All that can be wrong with a config is found before the first measurement. What fails in one is left out.
    """
    import torch
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from mmvit_plugins.benchmark import Procedure, environment_of, measure, source_of, write_report

    from .config_loading import load_config
    from .inference import choose_device, quiet_hosts

    args.device, args.images = choose_device(args.device), _images(args)
    if args.threads:
        torch.set_num_threads(args.threads)
    environment = environment_of(args.device, torch.get_num_threads())
    procedure = Procedure(args.rounds, args.warmup, args.device, args.flops_images, not args.no_memory)
    session = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    failures: list[Failure] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with quiet_hosts(), Progress(*columns) as progress:
        options = args.cfg_options
        loaded = {
            name: load_config(argparse.Namespace(config=config, cfg_options=options)) for name, config in named.items()
        }
        sources = {
            name: source_of(named[name], cfg, options, args.images, args.flops_images) for name, cfg in loaded.items()
        }
        rows = _kept_rows(args, environment, sources)
        done = {(row["name"], *(row[key] for key in settings[0].as_dict())) for row in rows}
        wanted = {s: [name for name in named if (name, *s.as_dict().values()) not in done] for s in settings}
        built = _build(named, loaded, wanted, args)
        overall = progress.add_task("settings", total=len(settings))
        for setting, missing in wanted.items():
            if missing:
                task = progress.add_task(str(setting), total=args.rounds * len(missing))
                subjects = [built[name, setting.part] for name in missing]
                new, failed = measure(subjects, sources, setting, procedure, lambda task=task: progress.advance(task))
                progress.remove_task(task)
                rows += [dict(row, session=session) for row in new]
                failures += failed
                write_report(args.out, environment, rows)
            progress.advance(overall)
    return rows, failures


def _kept_rows(args: argparse.Namespace, environment: dict[str, Any], sources: dict[str, dict]) -> list[dict[str, Any]]:
    """With ``--resume`` the rows of the report that is there.

    Raises:
        UserError: they were measured elsewhere, or are of something else under the same name.
    """
    from mmvit_plugins.benchmark import check_kept_rows, read_report

    if not args.resume or not (args.out / "benchmark.json").is_file():
        return []
    report = read_report(args.out)
    if report["environment"] != environment:
        raise UserError(f"--resume: {args.out} was measured elsewhere: {report['environment']}, here {environment}")
    if not check_kept_rows(report["rows"], sources, args.out):
        print(
            f"note: --resume: {args.out} does not say what its rows depend on; only the names of configs were compared",
            file=sys.stderr,
        )
    return report["rows"]


def _build(
    named: dict[str, str], loaded: dict[str, Config], wanted: dict[Setting, list[str]], args: argparse.Namespace
) -> dict[tuple[str, str], Subject]:
    """Every model (and part of it) that is to be measured."""
    from mmvit_plugins.benchmark import Subject

    built: dict[tuple[str, str], Subject] = {}
    for setting, names in wanted.items():
        for name in names:
            if (name, setting.part) not in built:
                built[name, setting.part] = Subject(
                    name, named[name], setting.part, args.device, args.images, args.cfg_options, loaded[name]
                )
    return built


def _print_failures(failures: list[Failure], debug: bool) -> None:
    sys.stdout.flush()
    print(f"\n{len(failures)} failed; the others are in the report:", file=sys.stderr)
    for failure in failures:
        print(f"  {failure}", file=sys.stderr)
        if debug:
            print(failure.traceback(), file=sys.stderr)
    if not debug:
        print("(--debug shows where it happened)", file=sys.stderr)


def _draw(rows: list[dict[str, Any]], accuracies: dict[str, float], metric: str, cost: str, folder: Path) -> None:
    """The plots; and with ``--accuracy`` accuracy against cost."""
    from mmvit_plugins.benchmark import accuracy_points, plot_accuracy, plot_costs

    folder = folder if folder.is_dir() or not folder.suffix else folder.parent
    written = plot_costs(rows, folder)
    if accuracies:
        written.append(plot_accuracy(accuracy_points(rows, accuracies, cost), cost, metric, folder / "accuracy.png"))
    for path in (folder / "benchmark.json", folder / "benchmark.csv", *written):
        if path.exists():
            print(f"wrote {path.absolute()}" if path in written else f"report: {path.absolute()}")


def main(argv: list[str] | None = None) -> int:
    """``tools/benchmark.py``; returns the exit code."""
    return run_tool(benchmark, parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
