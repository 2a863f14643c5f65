"""Measure a checkpoint with the metrics of its config; optionally with test-time augmentation, pictures and dumps."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmvit_plugins.environment import check_environment

from .arguments import add_config_arguments, add_launcher_arguments, make_parser
from .config_loading import default_work_dir, find_config, load_config, walk_datasets
from .errors import UserError, run_tool
from .file_checks import check_checkpoint, check_datasets
from .processes import end_processes, leave, prepare_processes

if TYPE_CHECKING:
    from mmengine.config import Config

__all__ = ["enable_tta", "main", "test"]

EXAMPLES = """examples:
  %(prog)s configs/stvit/upernet_scenes.py work_dirs/stvit/upernet_scenes/iter_650.pth
  %(prog)s CONFIG CHECKPOINT --tta --out metrics.json --dump predictions.pkl --show-dir pictures"""


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser("test", __doc__ or "", EXAMPLES)
    parser.add_argument("config", help="a file, or the name of a shipped config such as stvit/upernet_scenes.py")
    parser.add_argument("checkpoint", help="a file or URL")
    parser.add_argument("--work-dir", metavar="DIR", help="logs (default: that of training)")
    parser.add_argument("--tta", action="store_true", help="test-time augmentation, as tta_model and tta_pipeline say")
    parser.add_argument("--show-dir", metavar="DIR", help="draw every prediction there as PNG")
    parser.add_argument("--score-threshold", type=float, default=0.3, help="boxes below it are not drawn (%(default)s)")
    parser.add_argument("--dump", metavar="FILE.pkl", help="write all predictions for offline evaluation")
    parser.add_argument("--out", metavar="FILE.json", help="write the metrics")
    add_config_arguments(parser)
    add_launcher_arguments(parser)
    return parser.parse_args(argv)


def enable_tta(cfg: Config) -> None:
    """Let the test of ``cfg`` run its ``tta_model`` over its ``tta_pipeline``.

    Raises:
        UserError: the config lacks one of the two.
    """
    missing = [key for key in ("tta_model", "tta_pipeline") if cfg.get(key) is None]
    if missing:
        raise UserError(
            f"--tta: {cfg.filename} has no {' and no '.join(missing)}. Segmentation configs inherit them from "
            "configs/_base_/; for other tasks add tta_model=dict(type='DetTTAModel', ...) or "
            "dict(type='AverageClsScoreTTA') and a tta_pipeline that ends in TestTimeAug"
        )
    for dataset in walk_datasets(cfg.test_dataloader.dataset):
        if "pipeline" in dataset:
            dataset["pipeline"] = cfg.tta_pipeline
    cfg.model = dict(**cfg.tta_model, module=cfg.model)


def _apply_arguments(cfg: Config, args: argparse.Namespace) -> None:
    cfg.work_dir = args.work_dir or cfg.get("work_dir") or default_work_dir(find_config(args.config))
    cfg.load_from, cfg.resume = args.checkpoint, False
    if args.tta:
        enable_tta(cfg)
    if args.show_dir:
        hook = dict(
            type="mmvit_plugins.PredictionPicturesHook",
            out_dir=os.path.abspath(args.show_dir),
            score_threshold=args.score_threshold,
        )
        cfg.custom_hooks = [*(cfg.get("custom_hooks") or []), hook]
    if args.dump:
        if not args.dump.endswith((".pkl", ".pickle")):
            raise UserError(f"--dump writes a pickle: the name must end in .pkl, got {args.dump!r}")
        evaluator = cfg.test_evaluator
        evaluators = list(evaluator) if isinstance(evaluator, (list, tuple)) else [evaluator]
        cfg.test_evaluator = [*evaluators, dict(type="DumpResults", out_file_path=os.path.abspath(args.dump))]


def test(args: argparse.Namespace) -> int:
    """Run the test loop of the config."""
    check_environment("mmengine", "mmcv")
    cfg = load_config(args)
    for part in ("test_dataloader", "test_evaluator", "test_cfg"):
        if cfg.get(part) is None:
            raise UserError(f"{cfg.filename} has no {part}: it cannot be tested")
    check_checkpoint(args.checkpoint)
    check_datasets(cfg, ("test_dataloader",))
    _apply_arguments(cfg, args)
    for out in (args.out, args.dump):
        if out:
            Path(out).absolute().parent.mkdir(parents=True, exist_ok=True)
    prepare_processes(cfg, args.launcher, args.local_rank)
    try:
        from mmengine.dist import is_main_process

        from .train import build_runner

        metrics = build_runner(cfg).test()
        if is_main_process():
            _report(metrics, cfg, args)
    finally:
        end_processes()
    return 0


def _report(metrics: dict[str, Any], cfg: Config, args: argparse.Namespace) -> None:
    """Print the metrics and where the requested files are; write ``--out``."""
    values = {key: _plain(value) for key, value in metrics.items()}
    print("\n".join(f"{key}: {value}" for key, value in values.items()))
    if args.out:
        record = dict(
            config=str(cfg.filename), checkpoint=os.path.abspath(args.checkpoint), tta=args.tta, metrics=values
        )
        Path(args.out).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    for what, place in (("metrics", args.out), ("predictions", args.dump), ("pictures", args.show_dir)):
        if place:
            print(f"{what}: {os.path.abspath(place)}")


def _plain(value: Any) -> Any:
    """Numbers of any library as Python's, nan (a class that never occurs) as None: JSON has no nan."""
    if not hasattr(value, "__float__"):
        return value
    number = round(float(value), 6)
    return number if math.isfinite(number) else None


def main(argv: list[str] | None = None) -> int:
    """``tools/test.py``; returns the exit code."""
    args = parse_args(argv)
    return leave(run_tool(test, args), args.launcher)


if __name__ == "__main__":
    sys.exit(main())
