"""SparseViT on built-in scenes, adaptation to search to fine-tuning, beside uniform ratios and dense models."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

from mmvit_plugins.environment import check_environment

from .arguments import make_parser
from .config_loading import find_config, load_config
from .errors import UserError, run_tool
from .search_arguments import check_optuna

__all__ = ["Model", "Step", "main", "models", "plan", "run_chain", "uniform_ratio"]

FAMILY = "sparsevit/upernet_scenes_256"
PRETRAIN, ADAPT, FINETUNE = "sparsevit/upernet_scenes.py", f"{FAMILY}_adapt.py", f"{FAMILY}_finetune.py"
DENSE = {"dense_256": f"{FAMILY}.py", "dense_192": f"{FAMILY}_at_192.py", "dense_128": f"{FAMILY}_at_128.py"}
SEARCHED = {"evolved": "nsga2", "random": "random"}
EXAMPLES = """examples:
  %(prog)s --out-dir work_dirs/sparsity_chain                    everything; start it again to go on
  %(prog)s --list                                                the steps, which of them are done, and their commands
  %(prog)s --only 'dense_*' 'test_dense_*'                       some steps, here or on another machine with this folder
  %(prog)s --only table latency                                  what is timed, while nothing else runs
  %(prog)s --only report                                         table.md, table.json and chain.png of what is there

Each step is a command of another tool (train.py, search_sparsity.py, test.py), and is done when its file is there.
An interrupted training or search goes on where it was."""


@dataclass(frozen=True)
class Model:
    """A model of the final table.

    ``config`` and ``checkpoint`` are what is tested and timed; ``start``, where it is fine-tuned, its weights before;
    ``budget``, where it is pruned, the limit in percent of the unpruned latency.
    """

    name: str
    config: str
    checkpoint: Path
    start: Path | None = None
    budget: float | None = None


@dataclass(frozen=True)
class Step:
    """A command ``python -m mmvit_plugins.cli.<tool> arguments``; ``file`` is there when it is done."""

    name: str
    tool: str
    arguments: tuple[str, ...]
    file: Path


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser("run_sparsity_chain", __doc__ or "", EXAMPLES)
    parser.add_argument("--out-dir", default="work_dirs/sparsity_chain", metavar="DIR", help="(%(default)s)")
    parser.add_argument(
        "--budgets", type=float, nargs="+", default=[65.0, 50.0], metavar="PERCENT",
        help="limits in percent of the unpruned backbone's latency (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of the final trainings (%(default)s)")
    parser.add_argument("--trials", type=int, default=30, help="candidates of each search (%(default)s)")
    parser.add_argument("--population", type=int, default=8, help="of a generation of the evolution (%(default)s)")
    parser.add_argument("--samples", type=int, default=60, help="validation scenes of a candidate (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=4, help="images of a batch that is timed (%(default)s)")
    parser.add_argument("--rounds", type=int, default=12, help="measurements of a latency (%(default)s)")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="STEP", help="names of steps, * for any text")
    parser.add_argument("--list", action="store_true", help="print the steps and run none")
    parser.add_argument(
        "--cfg-options", nargs="+", default=[], metavar="KEY=VALUE", help="change entries of all configs"
    )
    return parser.parse_args(argv)


def run_chain(args: argparse.Namespace) -> int:
    """Run the steps that are missing, then time and compare.

    Raises:
        UserError: a command failed, or --only names no step.
    """
    check_environment("mmengine", "mmcv", "mmseg")
    check_optuna()
    if not all(1 <= budget < 100 for budget in args.budgets):
        raise UserError(f"--budgets are percents from 1 to below 100, got {args.budgets}")
    out = Path(args.out_dir).absolute()
    steps = list(plan(args, out))
    names = [*(step.name for step in steps), "latency", "report"]
    chosen = {name for name in names if any(fnmatch(name, pattern) for pattern in args.only)}
    if not chosen:
        raise UserError(f"--only {' '.join(args.only)} names no step; there are {', '.join(names)}")
    for step in steps:
        if step.name in chosen:
            if not args.list:
                _write_configs(args, out)
            _run(step, args.list)
    if args.list:
        return 0
    from . import sparsity_chain_report as report

    known = [model for model in models(args, out) if model.checkpoint.is_file()]
    if "latency" in chosen:
        report.measure(known, out, args)
    if "report" in chosen:
        report.write_report(known, out, args)
    return 0


def models(args: argparse.Namespace, out: Path) -> Iterator[Model]:
    """The models of the table, in its order. Folders of a seed other than 0 end in its number."""
    adapted = out / "adapt" / _checkpoint(args, ADAPT)
    for seed in args.seeds:
        end = f"_seed{seed}" if seed else ""
        for name, config in DENSE.items():
            yield Model(name + end, config, out / (name + end) / f"iter_{_second_length(args)}.pth")
        last = _checkpoint(args, FINETUNE)
        yield Model(f"unpruned{end}", str(out / "configs/unpruned.py"), out / f"unpruned{end}" / last, adapted)
        for budget in args.budgets:
            for kind in ("uniform", *SEARCHED):
                name = f"{kind}_{budget:g}"
                config = str(out / "configs" / f"{name}.py")
                yield Model(name + end, config, out / (name + end) / last, adapted, budget)


def _second_length(args: argparse.Namespace) -> int:
    """Iterations after the dense start: of adaptation and fine-tuning together, or of the dense models."""
    return sum(_length(config, tuple(args.cfg_options)) for config in (ADAPT, FINETUNE))


def _checkpoint(args: argparse.Namespace, config: str) -> str:
    return f"iter_{_length(config, tuple(args.cfg_options))}.pth"


@cache
def _length(config: str, options: tuple[str, ...]) -> int:
    """Iterations of a config."""
    return _load(argparse.Namespace(cfg_options=options), config).train_cfg.max_iters


def _load(args: argparse.Namespace, config: str) -> Any:
    return load_config(argparse.Namespace(config=config, cfg_options=list(args.cfg_options), data_root=None))


def plan(args: argparse.Namespace, out: Path) -> Iterator[Step]:
    """All commands in an order in which they can run; timing and report follow."""
    options = ("--cfg-options", *args.cfg_options) if args.cfg_options else ()
    pretrained, adapted = out / "pretrain" / _checkpoint(args, PRETRAIN), out / "adapt" / _checkpoint(args, ADAPT)
    loaded = ("--cfg-options", *args.cfg_options)
    yield Step("pretrain", "train", (PRETRAIN, "--work-dir", str(out / "pretrain"), *options), pretrained)
    started = {name: out / f"start_{name}" / _checkpoint(args, config) for name, config in DENSE.items()}
    for name, config in DENSE.items():
        train = (config, "--work-dir", str(started[name].parent), *loaded, f"load_from={pretrained}")
        yield Step(f"start_{name}", "train", train, started[name])
    train = (ADAPT, "--work-dir", str(out / "adapt"), *loaded, f"load_from={started['dense_256']}")
    yield Step("adapt", "train", train, adapted)
    search = (FINETUNE, str(adapted), "--latency-table", str(out / "latency.json"), "--device", "cpu")
    timing = ("--batch-size", f"{args.batch_size}", "--rounds", f"{args.rounds}")
    where = ("--out-dir", str(out / "search"))
    yield Step("table", "search_sparsity", (*search, *timing, "--table-only", *where, *options), out / "latency.json")
    for budget in args.budgets:
        folder = out / f"search_{budget:g}"
        limits = ("--budget", f"{budget / 100:g}", "--trials", f"{args.trials}", "--population", f"{args.population}")
        limits += ("--samples", f"{args.samples}")
        where = ("--out-dir", str(folder))
        yield Step(
            folder.name, "search_sparsity", (*search, *timing, *limits, *where, *options), folder / "report.json"
        )
    for model in models(args, out):
        folder = model.checkpoint.parent
        seed = ("--seed", model.name.rpartition("_seed")[2]) if "_seed" in model.name else ()
        train = (model.config, "--work-dir", str(folder), *seed, *options)
        if model.start is None:
            length, name = _second_length(args), model.name.partition("_seed")[0]
            lengths = (f"train_cfg.max_iters={length}", f"train_cfg.val_interval={length}")
            train = (model.config, "--work-dir", str(folder), *seed, *loaded, *lengths, f"load_from={started[name]}")
        yield Step(model.name, "train", train, model.checkpoint)
        if model.start is not None:
            test = (model.config, str(model.start), "--work-dir", str(folder / "before"))
            test += ("--out", str(folder / "before.json"), *options)
            yield Step(f"test_{model.name}_before", "test", test, folder / "before.json")
        test = (model.config, str(model.checkpoint), "--work-dir", str(folder / "test"))
        yield Step(
            f"test_{model.name}", "test", (*test, "--out", str(folder / "test.json"), *options), folder / "test.json"
        )


def _run(step: Step, only_print: bool) -> None:
    """Run a step in a process of its own unless it is done.

    Raises:
        UserError: the command failed.
    """
    done = step.file.is_file()
    if only_print or not done:
        command = shlex.join(["python", f"tools/{step.tool}.py", *step.arguments])
        print(f"{'done   ' if done else ''}{step.name}: {command}", flush=True)
    if only_print or done:
        return
    arguments = list(step.arguments)
    if step.tool == "train" and (step.file.parent / "last_checkpoint").is_file():
        arguments.insert(1, "--resume")
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    log = step.file.parent / f"{step.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        code = subprocess.run(
            [sys.executable, "-m", f"mmvit_plugins.cli.{step.tool}", *arguments],
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": path},
            check=False,
        ).returncode
    if code:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-3:]
        raise UserError(f"step {step.name} ended with code {code}; its log {log} ends with\n" + "\n".join(lines))
    if not step.file.is_file():
        raise UserError(f"step {step.name} ended without {step.file}; its log is {log}")


def uniform_ratio(table: Mapping[str, Any], budget: float) -> float:
    """The smallest uniform ratio, in steps of 0.01 up to 0.8, whose predicted latency is within ``budget``.

    Args:
        table: content of ``latency.json``: ``reference`` seconds and for each gene ``changes`` of its values.
        budget: share of the reference.

    Raises:
        UserError: 0.8 is not fast enough.
    """
    import numpy as np

    grid = np.arange(81) / 100
    seconds = np.full(len(grid), float(table["reference"]))
    for change in table["changes"]:
        known = sorted((float(ratio), float(more)) for ratio, more in change.items())
        seconds += np.interp(grid, *zip(*known, strict=True))
    legal = grid[seconds <= budget * table["reference"]]
    if not len(legal):
        raise UserError(f"a budget of {100 * budget:g} % is out of reach: ratio 0.8 needs {seconds[-1] * 1e3:.4g} ms")
    return float(legal[0])


def _write_configs(args: argparse.Namespace, out: Path) -> None:
    """A config for each set of ratios that is known by now; they begin from the adapted weights."""
    adapted = out / "adapt" / _checkpoint(args, ADAPT)
    found: dict[str, Any] = {"unpruned": 0.0}
    for budget in args.budgets:
        file = out / f"search_{budget:g}" / "report.json"
        if file.is_file():
            table = json.loads((out / "latency.json").read_text(encoding="utf-8"))
            found[f"uniform_{budget:g}"] = uniform_ratio(table, budget / 100)
            results = json.loads(file.read_text(encoding="utf-8"))["results"]
            for name, sampler in SEARCHED.items():
                found[f"{name}_{budget:g}"] = _blockwise(args, results[sampler]["ratios"])
    (out / "configs").mkdir(parents=True, exist_ok=True)
    for name, ratios in found.items():
        text = (
            f"# Written by tools/run_sparsity_chain.py.\n_base_ = {str(find_config(FINETUNE).absolute())!r}\n"
            f"model = dict(backbone=dict(pruning_ratios={ratios!r}))\nload_from = {str(adapted)!r}\n"
        )
        path = out / "configs" / f"{name}.py"
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def _blockwise(args: argparse.Namespace, ratios: Sequence[Sequence[float]]) -> list[list[float]]:
    """Ratios of a candidate (one for each two blocks) as a config has them."""
    from mmvit_plugins.models import SparseViT
    from mmvit_plugins.search.sparsity import as_config

    backbone = dict(_load(args, FINETUNE).model.backbone)
    backbone.pop("type")
    return as_config(ratios, SparseViT(**backbone).depths)


def main(argv: list[str] | None = None) -> int:
    """``tools/run_sparsity_chain.py``; returns the exit code."""
    return run_tool(run_chain, parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
