"""Train multi-task models and their single-task twins, and make the table with the multi-task gain Delta_m."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmvit_plugins.environment import check_environment

from .arguments import add_config_arguments, make_parser
from .config_loading import load_config
from .errors import UserError, run_tool
from .file_checks import check_datasets, check_pretrained

if TYPE_CHECKING:
    from mmengine.config import Config

__all__ = ["compare", "main", "make_table", "run_multitask"]

CONFIGS = ("multitask/stvit_scenes.py", "multitask/efficientvit_scenes.py", "multitask/sparsevit_scenes.py")
EXAMPLES = """examples:
  %(prog)s --out-dir work_dirs/multitask_scenes             three backbones on built-in scenes; run it again to go on
  %(prog)s multitask/stvit_nyud.py multitask/swin_nyud.py --data-root /data/NYUD_MT
  %(prog)s --table --out-dir work_dirs/multitask_scenes     the table of what is there, no training
  %(prog)s --compare multi.json depth.json semseg.json      Delta_m of files that tools/test.py --out wrote

written to --out-dir: CONFIG/multi and CONFIG/TASK (checkpoints, logs, result.json), table.md, table.json.
A run with a result.json is not repeated, an interrupted one goes on from its last checkpoint."""


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser("run_multitask", __doc__ or "", EXAMPLES)
    parser.add_argument("configs", nargs="*", default=list(CONFIGS), help=f"default: {' '.join(CONFIGS)}")
    parser.add_argument("--out-dir", default="work_dirs/run_multitask", metavar="DIR")
    parser.add_argument("--tasks", nargs="+", metavar="TASK", help="a part of the config's tasks")
    parser.add_argument("--iters", type=int, help="another length of every run; the schedule is fitted to it")
    parser.add_argument("--seed", type=int, help="seed of all runs (default: the config's)")
    parser.add_argument("--table", action="store_true", help="only make the table of the results that are there")
    parser.add_argument(
        "--compare", nargs="+", metavar="FILE.json", help="Delta_m of the first file against the others; no training"
    )
    add_config_arguments(parser)
    return parser.parse_args(argv)


def run_multitask(args: argparse.Namespace) -> int:
    """Do the runs that are missing, and write the table."""
    if args.compare:
        return compare(args.compare)
    check_environment("mmengine", "mmcv")
    out_dir = Path(args.out_dir).absolute()
    table = []
    for name in args.configs:
        folder = out_dir / Path(name).stem
        results = {}
        for run in ("multi", *_tasks(_load(args, name), args.tasks)):
            results[run] = _result(args, name, run, folder / run)
        table.append(_entry(Path(name).stem, results))
    out_dir.mkdir(parents=True, exist_ok=True)
    text = make_table(table)
    (out_dir / "table.md").write_text(text, encoding="utf-8")
    (out_dir / "table.json").write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    print(f"{text}\n{out_dir / 'table.md'}")
    return 0


def _load(args: argparse.Namespace, name: str) -> Config:
    cfg = load_config(argparse.Namespace(config=name, cfg_options=args.cfg_options, data_root=args.data_root))
    if not str(cfg.model.get("type")).endswith("MultiTaskModel"):
        raise UserError(f"{cfg.filename} is no config of several tasks; see configs/multitask/")
    return cfg


def _tasks(cfg: Config, chosen: Sequence[str] | None) -> list[str]:
    tasks = list(cfg.model.tasks)
    unknown = [task for task in chosen or [] if task not in tasks]
    if unknown:
        raise UserError(f"--tasks {unknown[0]}: {cfg.filename} has {', '.join(tasks)}")
    return list(chosen or tasks)


def _result(args: argparse.Namespace, name: str, run: str, folder: Path) -> dict[str, Any]:
    """The result of one run: the one on disk, or that of a training."""
    settings = dict(
        config=name, tasks=args.tasks, iters=args.iters, seed=args.seed, options=args.cfg_options, data=args.data_root
    )
    file = folder / "result.json"
    if file.is_file():
        result = json.loads(file.read_text(encoding="utf-8"))
        if not args.table and result["settings"] != settings:
            raise UserError(
                f"{file} was made with other settings: {result['settings']}, asked for are {settings}. Choose another "
                "--out-dir, or remove it."
            )
        return result
    if args.table:
        raise UserError(f"--table: there is no {file}; run without --table to make it")
    cfg = _load(args, name)
    tasks = _tasks(cfg, args.tasks) if run == "multi" else [run]
    cfg.model.only = tasks
    cfg.work_dir = str(folder)
    cfg.experiment_name = f"{Path(name).stem}_{run}"  # loggers and visualisers are kept by name in the process
    cfg.resume = True
    if args.seed is not None:
        cfg.randomness = {**(cfg.get("randomness") or {}), "seed": args.seed}
    if args.iters:
        _set_length(cfg, args.iters)
    cfg.train_cfg.val_interval = cfg.train_cfg.max_iters
    check_datasets(cfg, ("train_dataloader", "val_dataloader"))
    check_pretrained(cfg)
    print(f"{Path(name).stem}: {run} ({', '.join(tasks)}), {cfg.train_cfg.max_iters} iterations", flush=True)
    metrics, parameters, seconds = _train(cfg)
    result = dict(settings=settings, tasks=tasks, parameters=parameters, seconds=seconds, metrics=metrics)
    # Under its name when it is complete, so that a run is done or not done.
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    temporary.replace(file)
    return result


def _set_length(cfg: Config, iters: int) -> None:
    """Fit loop, schedule and checkpoints to ``iters``.

    Raises:
        UserError: shorter than the warm-up.
    """
    old = cfg.train_cfg.max_iters
    cfg.train_cfg.max_iters = iters
    for scheduler in cfg.param_scheduler:
        if scheduler.get("end") == old:
            scheduler["end"] = iters
        if scheduler.get("end", 0) > iters or scheduler.get("begin", 0) >= iters:
            raise UserError(f"--iters {iters} is shorter than the warm-up of {cfg.filename}: {dict(scheduler)}")
    cfg.default_hooks.checkpoint.interval = min(cfg.default_hooks.checkpoint.interval, max(1, iters // 4))


def _train(cfg: Config) -> tuple[dict[str, float], int, float]:
    """Train (or go on) and validate at the end: metrics, parameters, seconds of this call."""
    from mmengine.hooks import Hook

    from .inference import quiet_hosts
    from .processes import prepare_processes
    from .train import build_runner

    found: dict[str, float] = {}

    class KeepMetrics(Hook):
        def after_val_epoch(self, runner: Any, metrics: dict[str, float] | None = None) -> None:
            found.update(metrics or {})

    start = time.monotonic()
    prepare_processes(cfg, "none")
    cfg.log_level = "ERROR"
    cfg.custom_hooks = [*(cfg.get("custom_hooks") or []), dict(type="mmvit_plugins.ConsoleProgressHook", seconds=20.0)]
    with quiet_hosts(cfg.get("default_scope")):
        runner = build_runner(cfg)
        runner.register_hook(KeepMetrics(), priority="VERY_LOW")
        runner.train()
        if not found:  # it had been stopped between its last checkpoint and its result
            found.update(runner.val_loop.run())
    parameters = sum(parameter.numel() for parameter in runner.model.parameters())
    return {key: float(value) for key, value in found.items()}, parameters, round(time.monotonic() - start, 1)


def _entry(name: str, results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """One backbone of the table: main metric of each task, single and multi, parameters, gain.

    Raises:
        UserError: a run has not measured the main metric of its task.
    """
    from mmvit_plugins.evaluation.multi_task_gain import MAIN_METRICS, multi_task_gain

    tasks = [task for task in results if task != "multi"]
    single, multi = {}, {}
    for task in tasks:
        key = MAIN_METRICS[task]
        for side, run in ((single, task), (multi, "multi")):
            if key not in results[run]["metrics"]:
                raise UserError(f"run {run} of {name} measured no {key}: add its metric to val_evaluator")
            side[key] = results[run]["metrics"][key]
    return dict(
        name=name,
        single=single,
        multi=multi,
        single_parameters=sum(results[task]["parameters"] for task in tasks),
        multi_parameters=results["multi"]["parameters"],
        seconds=round(sum(result["seconds"] for result in results.values()), 1),
        gain=multi_task_gain(multi, single),
    )


def make_table(entries: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: two rows for each backbone."""
    from mmvit_plugins.evaluation.multi_task_gain import LOWER_IS_BETTER

    metrics = list(dict.fromkeys(key for entry in entries for key in entry["single"]))
    heads = [f"{key} {'↓' if key in LOWER_IS_BETTER else '↑'}" for key in metrics]
    rows = [["config", "models", "M parameters", *heads, "Delta_m %"]]
    for entry in entries:
        for side, label in (("single", "single-task"), ("multi", "multi-task")):
            values = [f"{entry[side][key]:.3f}" if key in entry[side] else "-" for key in metrics]
            size = f"{entry[f'{side}_parameters'] / 1e6:.2f}"
            rows.append([entry["name"], label, size, *values, f"{entry['gain']:+.2f}" if side == "multi" else ""])
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]) + "\n"


def compare(files: Sequence[str]) -> int:
    """Print Delta_m of the first file of metrics against the others, each with the metrics of one task or more.

    Raises:
        UserError: there is no second file, one cannot be read, or no metric of both sides is known.
    """
    from mmvit_plugins.evaluation.multi_task_gain import LOWER_IS_BETTER, MAIN_METRICS, multi_task_gain

    if len(files) < 2:
        raise UserError("--compare needs the file of the multi-task model and one of a single-task model at least")
    tables = []
    for file in files:
        try:
            content = json.loads(Path(file).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"--compare cannot read {Path(file).absolute()}: {error}") from error
        tables.append(content.get("metrics", content))
    multi, single = tables[0], {}
    for table in tables[1:]:
        single |= {key: table[key] for key in MAIN_METRICS.values() if table.get(key) is not None}
    shared = [key for key in MAIN_METRICS.values() if key in single and multi.get(key) is not None]
    if not shared:
        raise UserError(f"the files share none of the metrics {', '.join(MAIN_METRICS.values())}")
    for key in shared:
        print(f"{key}: {single[key]:.4f} single-task, {multi[key]:.4f} multi-task")
    left_out = [key for key in MAIN_METRICS.values() if (multi.get(key) is not None) != (key in single)]
    if left_out:
        print(f"left out, in one side only: {', '.join(left_out)}")
    lower = LOWER_IS_BETTER
    gain = multi_task_gain({key: multi[key] for key in shared}, {key: single[key] for key in shared}, lower)
    print(f"Delta_m over {len(shared)} tasks: {gain:+.2f} %")
    return 0


def main(argv: list[str] | None = None) -> int:
    """``tools/run_multitask.py``; returns the exit code."""
    return run_tool(run_multitask, parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
