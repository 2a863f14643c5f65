"""Segment point clouds from above: your files, or built-in scenes beside the truth."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmvit_plugins.environment import check_environment

from .arguments import make_parser
from .config_loading import load_config
from .errors import UserError, run_tool
from .file_checks import check_checkpoint
from .inference import Predictor, bird_eye_step, choose_device, output_stems, quiet_hosts
from .predict import describe, write_label_map

if TYPE_CHECKING:
    import numpy as np
    from mmengine.config import Config

__all__ = ["main", "predict_points", "read_points"]

EXAMPLES = """examples:
  %(prog)s --config configs/flatformer/bev_scenes.py --checkpoint iter_600.pth --scenes 6
  %(prog)s cloud.npy --config configs/flatformer/bev_scenes.py --checkpoint iter_600.pth

a file holds (P, 3) numbers, metres in the frame of the ground: x right, y forward, z up, the sensor above the origin.
written to --out-dir (default: predictions):
  panel.png           of the scenes: points from above, truth, prediction
  overlays/NAME.png   points from above beside the prediction, the far end at the top
  labels/NAME.png     one class number per cell, row 0 nearest to the sensor
  predictions.json    shares of the classes; of the scenes also the share of cells that are right"""


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser("predict_points", __doc__ or "", EXAMPLES)
    parser.add_argument("clouds", nargs="*", metavar="CLOUD.npy")
    parser.add_argument("--config", required=True, help="the config that the checkpoint was trained with")
    parser.add_argument("--checkpoint", required=True, help="a file or URL")
    parser.add_argument("--scenes", type=int, default=0, metavar="N", help="also the first N samples of the test data")
    parser.add_argument("--out-dir", default="predictions", metavar="DIR")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)")
    parser.add_argument("--cfg-options", nargs="+", default=[], metavar="KEY=VALUE", help="change the config")
    return parser.parse_args(argv)


def read_points(path: Path) -> np.ndarray:
    """(P, 3) float32 of a ``.npy`` file.

    Raises:
        UserError: there is no such file, or it holds something else.
    """
    import numpy as np

    if not path.is_file():
        raise UserError(f"there is no point cloud {path.absolute()}")
    try:
        points = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise UserError(f"{path.absolute()} is no .npy file of numbers: {error}") from error
    if points.ndim != 2 or points.shape[1] != 3 or not np.issubdtype(points.dtype, np.number):
        raise UserError(f"{path.absolute()} must hold (P, 3) numbers x, y, z, got {points.shape} of {points.dtype}")
    if not np.isfinite(points).all():
        raise UserError(f"{path.absolute()} holds {int((~np.isfinite(points)).sum())} numbers that are not finite")
    return points.astype(np.float32)


def predict_points(args: argparse.Namespace) -> int:
    """Predict on every cloud and scene, and draw them."""
    check_environment("mmengine", "mmcv")
    if not args.clouds and args.scenes < 1:
        raise UserError("nothing to do: give .npy files, or --scenes N for samples of the config's test data")
    clouds = [(Path(name), read_points(Path(name))) for name in args.clouds]
    check_checkpoint(args.checkpoint)
    cfg = load_config(args)
    step = bird_eye_step(cfg)
    if step is None:
        raise UserError(f"{cfg.filename} is no config for point clouds; tools/predict.py takes images")
    with quiet_hosts(cfg.get("default_scope")):
        predictor = Predictor(
            cfg, args.checkpoint, choose_device(args.device), pipeline=[dict(type="mmvit_plugins.PackPoints")]
        )
        scenes = _scenes(cfg, args.scenes)
    print(predictor.report)
    out_dir = Path(args.out_dir).absolute()
    artist = _Artist(step, predictor.meta, out_dir)
    cells = tuple(step["cells"])
    records = []
    for (path, points), stem in zip(clouds, output_stems([path.absolute() for path, _ in clouds]), strict=True):
        data = predictor.pipeline(dict(points=points, img_path=str(path), img_shape=cells, ori_shape=cells))
        records.append(dict(cloud=str(path), **artist.draw(stem, points, predictor.run(data))))
    for index, data in enumerate(scenes):
        truth = data["data_samples"].gt_sem_seg.data[0].numpy()
        entry = artist.draw(Path(f"scene_{index:03d}"), data["inputs"].numpy(), predictor.run(data), truth)
        records.append(dict(scene=index, **entry))
    classes = list(predictor.meta["classes"])
    summary = dict(
        config=str(cfg.filename), checkpoint=os.path.abspath(args.checkpoint), classes=classes, clouds=records
    )
    (out_dir / "predictions.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    artist.write_panel()
    print(f"{len(records)} clouds done: {out_dir}")
    return 0


def _scenes(cfg: Config, count: int) -> list[dict[str, Any]]:
    from mmengine.registry import DATASETS, init_default_scope

    if count < 1:
        return []
    init_default_scope(cfg.default_scope)
    dataset = DATASETS.build(cfg.test_dataloader.dataset)
    return [dataset[index] for index in range(min(count, len(dataset)))]


class _Artist:
    """Draws and writes what is predicted; ``step`` has the range and the cells."""

    def __init__(self, step: dict, meta: dict[str, Any], out_dir: Path) -> None:
        self.range, self.cells = step["point_cloud_range"], tuple(step["cells"])
        self.meta, self.out_dir = meta, out_dir
        self.panel: list[tuple[str, np.ndarray]] = []

    def draw(self, stem: Path, points: np.ndarray, sample: Any, truth: np.ndarray | None = None) -> dict[str, Any]:
        """The files of one cloud; returns its entry of the JSON file."""
        import mmcv
        import numpy as np

        from mmvit_plugins.visualization import draw_labels_from_above, draw_points_from_above

        seen = draw_points_from_above(points, self.range, self.cells)
        predicted = sample.pred_sem_seg.data[0].numpy()
        found = draw_labels_from_above(predicted, self.meta["palette"])
        overlay, labels = (self.out_dir / kind / stem.with_name(f"{stem.name}.png") for kind in ("overlays", "labels"))
        mmcv.imwrite(np.concatenate([seen, found], axis=1)[..., ::-1], str(overlay))
        write_label_map(sample, labels)
        entry = dict(overlay=str(overlay.relative_to(self.out_dir)), labels=str(labels.relative_to(self.out_dir)))
        entry.update(describe(sample, self.meta["classes"], 0.0))
        if truth is not None:
            judged = truth < len(self.meta["classes"])
            entry["right"] = round(float((predicted == truth)[judged].mean()), 4)
            # Where nothing is judged, the prediction says nothing either.
            found = draw_labels_from_above(np.where(judged, predicted, truth), self.meta["palette"])
            title = f"prediction, {entry['right']:.0%} of the cells right"
            drawn = draw_labels_from_above(truth, self.meta["palette"])
            self.panel += [(f"{stem.name}: points", seen), ("truth", drawn), (title, found)]
        return entry

    def write_panel(self) -> None:
        """One picture of all samples with a truth."""
        from mmvit_plugins.visualization import draw_panel

        if self.panel:
            print(draw_panel(self.panel, self.out_dir / "panel.png", columns=6))


def main(argv: list[str] | None = None) -> int:
    """``tools/predict_points.py``; returns the exit code."""
    return run_tool(predict_points, parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
