"""Train a small super-token segmenter on built-in scenes, measure it on unseen ones, and draw what it sees."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmvit_plugins.environment import check_environment

from .arguments import make_parser
from .config_loading import load_config
from .errors import UserError, run_tool
from .inference import quiet_hosts
from .processes import prepare_processes

if TYPE_CHECKING:
    import numpy as np
    from mmengine.config import Config
    from mmengine.runner import Runner

__all__ = ["demo", "main", "prepare_folder"]

MARKER = ".mmvit-demo"
MADE_BY_DEMO = (
    "metrics.json",
    "training_curve.png",
    "predictions*.png",
    "predictions/*.png",
    "super_tokens/*.png",
    "*.pth",
    "last_checkpoint",
    "*/vis_data/scalars.json",
)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser("demo", __doc__ or "")
    parser.add_argument("--config", default="stvit/upernet_scenes.py", help="a segmentation config (%(default)s)")
    parser.add_argument("--work-dir", default="work_dirs/demo", metavar="DIR", help="results (%(default)s)")
    parser.add_argument("--max-iters", type=int, help="shorten the training (default: the config's)")
    parser.add_argument("--min-miou", type=float, default=0.60, help="fail below it (%(default)s)")
    parser.add_argument("--pictures", type=int, default=6, help="scenes to draw (%(default)s)")
    parser.add_argument("--cfg-options", nargs="+", default=[], metavar="KEY=VALUE", help="change the config")
    return parser.parse_args(argv)


def prepare_folder(folder: Path) -> None:
    """Make ``folder``, and remove what an earlier demo left in it.

    Raises:
        UserError: the folder holds other files, which are not touched.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--work-dir {folder} is a file")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MARKER).exists():
        raise UserError(f"--work-dir {folder} holds files that no demo has made; give an empty or a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).touch()
    for pattern in MADE_BY_DEMO:
        for file in folder.glob(pattern):
            file.unlink()


def say(text: str) -> None:
    """A heading on the console, at once."""
    print(f"\n{text}", flush=True)


def _train(cfg: Config) -> Runner:
    """Train with the host's log in the work folder and short lines on the console."""
    from .train import build_runner

    cfg.log_level = "WARNING"  # the dump of environment and config; the config lies in the work folder anyway
    runner = build_runner(cfg)
    runner.logger.setLevel(logging.INFO)
    for handler in runner.logger.handlers:
        handler.setLevel(logging.INFO if isinstance(handler, logging.FileHandler) else logging.ERROR)
    runner.train()
    return runner


def _draw(runner: Runner, folder: Path, count: int) -> list[Path]:
    """Prediction overlays and super tokens of the first ``count`` test scenes; returns the overview pictures."""
    import mmcv
    import torch
    from mmengine.dataset import pseudo_collate
    from mmengine.fileio import get

    from mmvit_plugins.visualization import draw_panel, draw_prediction

    from .visualize_tokens import Normalisation, draw_stages

    dataset, model = runner.test_dataloader.dataset, runner.model.eval()
    normalise = Normalisation.of_config(runner.cfg.model.get("data_preprocessor"))
    overview: list[tuple[str, np.ndarray]] = []
    for index in range(min(count, len(dataset))):
        data = dataset[index]
        truth = data["data_samples"].clone()
        truth.pred_sem_seg = truth.gt_sem_seg
        image = mmcv.imfrombytes(get(truth.img_path), channel_order="rgb")
        with torch.no_grad():
            sample = model.test_step(pseudo_collate([data]))[0]
        overlay = draw_prediction(image, sample, dataset.metainfo)
        mmcv.imwrite(overlay[..., ::-1], str(folder / "predictions" / f"scene_{index:02d}.png"))
        share = (sample.pred_sem_seg.data.cpu() == truth.gt_sem_seg.data).float().mean().item()
        overview += [
            (f"scene {index}", image),
            ("truth", draw_prediction(image, truth, dataset.metainfo)),
            (f"prediction, {share:.0%} of the pixels right", overlay),
        ]
        scale = max(1, round(640 / max(image.shape[:2])))
        stages = list(draw_stages(model.backbone, image, normalise, "mean", scale))
        tokens = [(f"scene {index}", image), *((title, picture) for _, title, picture in stages)]
        draw_panel(tokens, folder / "super_tokens" / f"scene_{index:02d}.png")
    return [draw_panel(overview, folder / "predictions.png")] if overview else []


def demo(args: argparse.Namespace) -> int:
    """The whole job; 1 if the model stays below ``--min-miou``."""
    check_environment("mmengine", "mmcv", "mmseg")
    begin = time.monotonic()
    print("Loading PyTorch and MMSegmentation ...", flush=True)
    from mmvit_plugins.evaluation.constant_predictor import constant_segmentor

    cfg = load_config(args)
    if cfg.get("default_scope") != "mmseg":
        raise UserError(f"the demo trains a segmenter; {cfg.filename} is for {cfg.get('default_scope')}")
    folder = Path(args.work_dir).absolute()
    prepare_folder(folder)
    cfg.work_dir, cfg.load_from, cfg.resume = str(folder), None, False
    if args.max_iters is not None:
        if args.max_iters < 1:
            raise UserError(f"--max-iters must be at least 1, got {args.max_iters}")
        cfg.train_cfg.max_iters = args.max_iters
    cfg.default_hooks.logger.interval = max(1, cfg.train_cfg.max_iters // 30)  # points of the training curve
    cfg.custom_hooks = [*(cfg.get("custom_hooks") or []), dict(type="mmvit_plugins.ConsoleProgressHook")]
    prepare_processes(cfg, "none")
    with quiet_hosts("mmseg"):
        say(f"1. Training {cfg.model.backbone.type} on built-in scenes ({cfg.filename})")
        runner = _train(cfg)
        trained = time.monotonic()
        say(f"2. Measuring on {len(runner.val_dataloader.dataset)} unseen scenes, beside a constant predictor")
        metrics = runner.test()
        test_set, train_set = runner.test_dataloader.dataset, runner.train_dataloader.dataset
        label, constant = constant_segmentor(train_set, test_set, cfg.test_evaluator)
        record = dict(
            mIoU=round(float(metrics["mIoU"]) / 100, 4),
            mIoU_constant_predictor=round(float(constant["mIoU"]) / 100, 4),
            constant_class=test_set.metainfo["classes"][label],
            pixel_accuracy=round(float(metrics["aAcc"]) / 100, 4),
            parameters=sum(p.numel() for p in runner.model.parameters()),
            iterations=runner.iter,
            training_seconds=round(trained - begin, 1),
            config=str(cfg.filename),
            checkpoint=(folder / "last_checkpoint").read_text().strip(),
        )
        (folder / "metrics.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        say("3. Drawing")
        _draw_all(runner, folder, args.pictures, record)
    return _summary(record, folder, args.min_miou, time.monotonic() - begin)


def _draw_all(runner: Runner, folder: Path, count: int, record: dict[str, Any]) -> None:
    from mmvit_plugins.visualization import draw_training_curve, find_scalars

    draw_training_curve(
        find_scalars(folder),
        folder / "training_curve.png",
        baseline=100 * record["mIoU_constant_predictor"],
        title=f"{runner.cfg.model.backbone.type}, {record['parameters'] / 1e6:.1f} M: mIoU {record['mIoU']:.3f}",
    )
    _draw(runner, folder, count)


def _summary(record: dict[str, Any], folder: Path, wanted: float, seconds: float) -> int:
    """Print the result and where everything is; 1 below ``wanted``."""
    places = {
        "checkpoint": Path(record["checkpoint"]),
        "metrics": folder / "metrics.json",
        "training curve": folder / "training_curve.png",
        "predictions": folder / "predictions.png",
        "  one by one": folder / "predictions",
        "super tokens": folder / "super_tokens",
    }
    say(f"mIoU on unseen scenes  {record['mIoU']:.3f}")
    print(f"constant predictor     {record['mIoU_constant_predictor']:.3f}  (always '{record['constant_class']}')")
    print("\n".join(f"{name:<16}{place}" for name, place in places.items()))
    print(f"took {int(seconds // 60)}:{int(seconds % 60):02d} minutes", flush=True)
    missing = [str(place) for place in places.values() if not os.path.exists(place)]
    if missing:
        print(f"\nerror: not written: {', '.join(missing)}", file=sys.stderr)
        return 1
    if record["mIoU"] < wanted:
        print(
            f"\nerror: the mIoU {record['mIoU']:.3f} is below {wanted:.2f}. After the full training "
            "(without --max-iters) that means that something is wrong with the model or the data.",
            file=sys.stderr,
        )
        return 1
    return 0


def main(argv: list[str] | None = None) -> int:
    """``mmvit-demo``; returns the exit code."""
    return run_tool(demo, parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
