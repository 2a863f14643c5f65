"""Train multi-task models and their single-task twins, and make the table with the multi-task gain Delta_m."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmvit_plugins.environment import check_environment

from .arguments import add_config_arguments, make_parser
from .config_loading import load_config
from .errors import UserError, run_tool
from .file_checks import check_datasets, check_pretrained
from .resumable_runs import claim_folder, markdown_table, read_result, set_length, train_to_the_end, write_result

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
A run with a result.json is not repeated, an interrupted one goes on from its last checkpoint;
neither is used with other settings (settings.json, written before training)."""


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
    result = read_result(file, None if args.table else settings)
    if result is not None:
        return result
    if args.table:
        raise UserError(f"--table: there is no {file}; run without --table to make it")
    cfg = _load(args, name)
    tasks = _tasks(cfg, args.tasks) if run == "multi" else [run]
    cfg.model.only = tasks
    cfg.work_dir = str(folder)
    cfg.experiment_name = f"{Path(name).stem}_{run}"  # loggers and visualisers are kept by name in the process
    if args.seed is not None:
        cfg.randomness = {**(cfg.get("randomness") or {}), "seed": args.seed}
    if args.iters:
        set_length(cfg, args.iters)
    cfg.train_cfg.val_interval = cfg.train_cfg.max_iters
    check_datasets(cfg, ("train_dataloader", "val_dataloader"))
    check_pretrained(cfg)
    claim_folder(folder, settings)
    print(f"{Path(name).stem}: {run} ({', '.join(tasks)}), {cfg.train_cfg.max_iters} iterations", flush=True)
    metrics, parameters, seconds = train_to_the_end(cfg)
    result = dict(settings=settings, tasks=tasks, parameters=parameters, seconds=seconds, metrics=metrics)
    write_result(file, result)
    return result


def _entry(name: str, results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """One backbone of the table: main metric of each task, single and multi, parameters, gain.

    A metric that a run has not measured (None), and a single-task value of 0, have no gain; ``no_gain`` says why.
    """
    from mmvit_plugins.evaluation.multi_task_gain import MAIN_METRICS, multi_task_gain

    tasks = [task for task in results if task != "multi"]
    single, multi, unmeasured = {}, {}, []
    for task in tasks:
        key = MAIN_METRICS[task]
        for side, run in ((single, task), (multi, "multi")):
            value = results[run]["metrics"].get(key)
            side[key] = value if value is not None and math.isfinite(value) else None
            if side[key] is None:
                unmeasured.append(f"run {run} has no value of {key} ({'nan' if value is not None else 'not measured'})")
    gain, reason = None, "; ".join(unmeasured)
    if not reason:
        try:
            gain = multi_task_gain(multi, single)
        except ValueError as error:
            reason = str(error)
    return dict(
        name=name,
        single=single,
        multi=multi,
        single_parameters=sum(results[task]["parameters"] for task in tasks),
        multi_parameters=results["multi"]["parameters"],
        seconds=round(sum(result["seconds"] for result in results.values()), 1),
        gain=gain,
        no_gain=reason or None,
    )


def make_table(entries: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: two rows for each backbone, and below them why one has no gain."""
    from mmvit_plugins.evaluation.multi_task_gain import LOWER_IS_BETTER

    metrics = list(dict.fromkeys(key for entry in entries for key in entry["single"]))
    heads = [f"{key} {'↓' if key in LOWER_IS_BETTER else '↑'}" for key in metrics]
    rows = [["config", "models", "M parameters", *heads, "Delta_m %"]]
    for entry in entries:
        gains = dict(single="", multi="-" if entry["gain"] is None else f"{entry['gain']:+.2f}")
        for side, label in (("single", "single-task"), ("multi", "multi-task")):
            found = [entry[side].get(key) for key in metrics]
            values = ["-" if value is None else f"{value:.3f}" for value in found]
            size = f"{entry[f'{side}_parameters'] / 1e6:.2f}"
            rows.append([entry["name"], label, size, *values, gains[side]])
    reasons = [f"\n{entry['name']} has no Delta_m: {entry['no_gain']}\n" for entry in entries if entry.get("no_gain")]
    return markdown_table(rows) + "".join(reasons)


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
