"""Train scenes configs of the three tasks one after another; tables beside constant predictors and ResNet-50."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmvit_plugins.environment import check_environment

from .arguments import add_config_arguments, make_parser
from .config_loading import find_config, load_config
from .errors import UserError, run_tool
from .file_checks import check_datasets, check_pretrained
from .resumable_runs import claim_folder, markdown_table, read_result, train_to_the_end, write_result

if TYPE_CHECKING:
    from mmengine.config import Config

__all__ = ["main", "make_tables", "read_work_dir", "run_scenes"]

FAMILIES = ("stvit", "efficientvit", "sparsevit", "flatformer")
#: What is trained, by task; first the yardstick.
CONFIGS = {
    "cls": ("benchmark/resnet50_cls_scenes.py", *(f"{name}/cls_scenes.py" for name in FAMILIES)),
    "det": ("benchmark/resnet50_mask_rcnn_scenes.py", *(f"{name}/mask_rcnn_scenes.py" for name in FAMILIES)),
    "seg": (
        "benchmark/resnet50_upernet_scenes.py",
        *(f"{name}/{'seg' if name == 'efficientvit' else 'upernet'}_scenes.py" for name in FAMILIES),
    ),
}
#: By default scope: the task, and its metrics' names in the table and factors to percent. The first one is compared.
TASKS: dict[str, tuple[str, dict[str, tuple[str, float]]]] = {
    "mmpretrain": ("classification", {"accuracy/top1": ("top-1", 1.0)}),
    "mmdet": ("detection", {"coco/bbox_mAP": ("box AP", 100.0), "coco/segm_mAP": ("mask AP", 100.0)}),
    "mmseg": ("segmentation", {"mIoU": ("mIoU", 1.0)}),
}
YARDSTICK = "resnet50"
EXAMPLES = """examples:
  %(prog)s                                              five backbones, three tasks; run it again to go on
  %(prog)s --tasks seg --out-dir work_dirs/scenes
  %(prog)s stvit/cls_scenes.py benchmark/resnet50_cls_scenes.py
  %(prog)s --table --runs stvit/cls_scenes.py=work_dirs/stvit/cls_scenes    a finished run of tools/train.py

written to --out-dir: FAMILY/CONFIG (checkpoints, logs, result.json), table.md, table.json.
A run with a result.json is not repeated, an interrupted one goes on from its last checkpoint;
neither is used with other settings (settings.json, written before training)."""


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser("run_scenes", __doc__ or "", EXAMPLES)
    parser.add_argument("configs", nargs="*", help="default: the shipped ones of --tasks")
    parser.add_argument("--tasks", nargs="+", choices=list(CONFIGS), default=list(CONFIGS), help="(default: all)")
    parser.add_argument("--out-dir", default="work_dirs/run_scenes", metavar="DIR", help="(%(default)s)")
    parser.add_argument(
        "--runs",
        nargs="+",
        default=[],
        metavar="NAME=DIR",
        help="rows from work folders of finished tools/train.py runs",
    )
    parser.add_argument("--seed", type=int, help="seed of all runs (default: the configs')")
    parser.add_argument("--table", action="store_true", help="only make the table of the results that are there")
    add_config_arguments(parser)
    return parser.parse_args(argv)


def run_scenes(args: argparse.Namespace) -> int:
    """Do the runs that are missing, and write the tables."""
    check_environment("mmengine", "mmcv")
    out_dir = Path(args.out_dir).absolute()
    finished = _finished_runs(args.runs)
    names = args.configs or ([] if finished and args.table else [n for task in args.tasks for n in CONFIGS[task]])
    # All configs are read before the first training, so that a missing library or a wrong name is said at once.
    configs = {label: cfg for label, cfg in (_load(args, name) for name in names) if label not in finished}
    results = dict(finished)
    for label, cfg in configs.items():
        result = _result(args, label, cfg, out_dir / Path(label).with_suffix(""))
        if result is not None:
            results[label] = result
    if not results:
        raise UserError(f"--table: there is no finished run in {out_dir}; run without --table to make some")
    constants = _constants(results)
    out_dir.mkdir(parents=True, exist_ok=True)
    text = make_tables(results, constants)
    (out_dir / "table.md").write_text(text, encoding="utf-8")
    record = dict(runs=results, constant_predictors=constants)
    (out_dir / "table.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"{text}\n{out_dir / 'table.md'}")
    return 0


def _load(args: argparse.Namespace, name: str) -> tuple[str, Config]:
    """Family/config.py, the name of the row, and the config."""
    path = find_config(name)
    cfg = load_config(argparse.Namespace(config=name, cfg_options=args.cfg_options, data_root=args.data_root))
    if cfg.get("default_scope") not in TASKS:
        raise UserError(f"{path} is for {cfg.get('default_scope')}; tables are made for {', '.join(TASKS)}")
    if args.seed is not None:
        cfg.randomness = {**(cfg.get("randomness") or {}), "seed": args.seed}
    return f"{path.parent.name}/{path.name}", cfg


def _result(args: argparse.Namespace, label: str, cfg: Config, folder: Path) -> dict[str, Any] | None:
    """The result of one config: the one on disk, or that of a training; None with ``--table`` where there is none."""
    settings = dict(config=label, seed=args.seed, options=args.cfg_options, data=args.data_root)
    file = folder / "result.json"
    result = read_result(file, None if args.table else settings)
    if result is not None or args.table:
        return result
    about = describe_training(cfg)  # the runner changes its config
    cfg.work_dir, cfg.experiment_name = str(folder), label.replace("/", "_")  # loggers are kept by name in the process
    check_datasets(cfg, ("train_dataloader", "val_dataloader"))
    check_pretrained(cfg)
    claim_folder(folder, settings)
    print(f"{label}: {about['length']}", flush=True)
    metrics, parameters, seconds = train_to_the_end(cfg)
    result = dict(settings=settings, **about, parameters=parameters, seconds=seconds, metrics=metrics)
    write_result(file, result)
    return result


def describe_training(cfg: Config) -> dict[str, Any]:
    """Scope, length and schedule of a config, and its data and metric, by which a constant predictor is judged."""
    loop = {key: value for key, value in cfg.train_cfg.items() if key in ("max_iters", "max_epochs")}
    loader, data = cfg.train_dataloader, cfg.train_dataloader.dataset
    length = ", ".join(f"{value} {key.removeprefix('max_')}" for key, value in loop.items())
    schedule = dict(
        **loop,
        pretrained=bool(cfg.get("load_from")),
        batch_size=loader.batch_size,
        param_scheduler=cfg.param_scheduler,
        optim_wrapper=cfg.optim_wrapper,
    )
    start = f", from {Path(cfg.load_from).name}" if cfg.get("load_from") else ""
    judged = dict(train=data, val=cfg.val_dataloader.dataset, evaluator=cfg.val_evaluator)
    return dict(
        scope=cfg.default_scope,
        length=f"{length} of {loader.batch_size}{start}",
        schedule=json.loads(json.dumps(schedule)),
        data=json.loads(json.dumps(judged)),
    )


def _finished_runs(runs: Sequence[str]) -> dict[str, dict[str, Any]]:
    found = {}
    for run in runs:
        name, equals, folder = run.partition("=")
        if not (name and equals and folder):
            raise UserError(
                f"--runs takes NAME=DIR, such as stvit/cls_scenes.py=work_dirs/stvit/cls_scenes, got {run!r}"
            )
        found[name] = read_work_dir(Path(folder))
    return found


def read_work_dir(folder: Path) -> dict[str, Any]:
    """A result from the work folder of ``tools/train.py``: its dumped config, and the last line of its validations.

    Raises:
        UserError: it is no such folder, or its training has not come to its end.
    """
    from mmengine.config import Config

    dumped = sorted(folder.glob("*.py"))
    if len(dumped) != 1:
        raise UserError(f"{folder.absolute()} is no work folder of one tools/train.py run: {len(dumped)} configs in it")
    cfg = Config.fromfile(dumped[0])
    if cfg.get("default_scope") not in TASKS:
        raise UserError(f"{dumped[0]} is for {cfg.get('default_scope')}; tables are made for {', '.join(TASKS)}")
    last = next(
        f"{unit}_{cfg.train_cfg[f'max_{unit}s']}.pth" for unit in ("iter", "epoch") if f"max_{unit}s" in cfg.train_cfg
    )
    note = folder / "last_checkpoint"
    reached = Path(note.read_text(encoding="utf-8").strip()).name if note.is_file() else "no checkpoint"
    wanted = TASKS[cfg.default_scope][1]
    lines = [
        json.loads(line)
        for file in sorted(folder.glob("*/vis_data/scalars.json"))
        for line in file.read_text(encoding="utf-8").splitlines()
    ]
    validations = [line for line in lines if wanted.keys() <= line.keys()]
    if reached != last or not validations:
        raise UserError(f"the run in {folder.absolute()} is not finished: {reached}, and the last one is {last}")
    metrics = {key: float(validations[-1][key]) for key in wanted}
    return dict(**describe_training(cfg), parameters=_count_parameters(cfg), seconds=None, metrics=metrics)


def _count_parameters(cfg: Config) -> int:
    from mmengine.registry import MODELS, init_default_scope

    from .inference import quiet_hosts

    with quiet_hosts(cfg.default_scope):
        init_default_scope(cfg.default_scope)
        return sum(parameter.numel() for parameter in MODELS.build(cfg.model).parameters())


def _constants(results: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What a constant predictor reaches, once for each data of the runs."""
    from mmengine.registry import DATASETS, init_default_scope

    from mmvit_plugins.evaluation.constant_predictor import constant_classifier, constant_segmentor

    from .inference import quiet_hosts

    found: list[dict[str, Any]] = []
    for result in results.values():
        scope, data = result["scope"], result["data"]
        if any(entry["data"] == data for entry in found):
            continue
        entry: dict[str, Any] = dict(scope=scope, data=data)
        if scope == "mmdet":  # no constant set of boxes is tried: the row stands for a detector that finds nothing
            entry.update(label="no boxes", metrics=dict.fromkeys(TASKS[scope][1], 0.0))
        else:
            with quiet_hosts(scope):
                init_default_scope(scope)
                train, val = (DATASETS.build(data[split]) for split in ("train", "val"))
                if scope == "mmseg":
                    label, metrics = constant_segmentor(train, val, data["evaluator"])
                else:
                    label, share = constant_classifier(train, val)
                    metrics = {"accuracy/top1": share}
            metrics = {key: float(metrics[key]) for key in TASKS[scope][1]}
            entry.update(label=f"always '{train.metainfo['classes'][label]}'", metrics=metrics)
        found.append(entry)
    return found


def make_tables(results: Mapping[str, Mapping[str, Any]], constants: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: a table for each task and each data, its last row the constant predictor.

    Args:
        results: by name of the row: scope, data, schedule, length, parameters, metrics.
        constants: scope, data, label, metrics.
    """
    parts = []
    for constant in constants:
        task, metrics = TASKS[constant["scope"]]
        runs = {name: result for name, result in results.items() if result["data"] == constant["data"]}
        base = next((result for name, result in runs.items() if YARDSTICK in name), None)
        compared = next(iter(metrics))
        labels = [label for label, _ in metrics.values()]
        against = ["against ResNet-50"] if base else []
        rows = [["config", "M parameters", "training", *labels, *against]]
        for name, result in runs.items():
            row = [name, f"{result['parameters'] / 1e6:.2f}", result["length"], *_values(result, metrics)]
            rows.append(row + ([_difference(result, base, compared, metrics[compared][1])] if base else []))
        rows.append([f"constant: {constant['label']}", "", "", *_values(constant, metrics), *([""] if base else [])])
        parts.append(f"{task}\n\n{markdown_table(rows)}")
    return "\n".join(parts)


def _values(result: Mapping[str, Any], metrics: Mapping[str, tuple[str, float]]) -> list[str]:
    return [f"{factor * result['metrics'][key]:.1f}" for key, (_, factor) in metrics.items()]


def _difference(result: Mapping[str, Any], base: Mapping[str, Any], key: str, factor: float) -> str:
    if result is base:
        return ""
    if result["schedule"] != base["schedule"]:
        return "other schedule"
    return f"{factor * (result['metrics'][key] - base['metrics'][key]):+.1f}"


def main(argv: list[str] | None = None) -> int:
    """``tools/run_scenes.py``; returns the exit code."""
    return run_tool(run_scenes, parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
