"""Predictions of several segmentors on the same validation images, beside photograph and truth, in one picture.

    python tools/compare_predictions.py "STViT-tiny=configs/stvit/upernet_camvid.py=work_dirs/a/iter_3000.pth" \\
        "MiT-B0=configs/stvit/segformer_mit_b0_camvid.py=work_dirs/b/iter_3000.pth" \\
        --data-root /path/to/camvid --num 6 --out overlays.png

A model is NAME=CONFIG=CHECKPOINT; images and truth come from the first config's validation set, evenly spaced. The
title of a prediction is the share of labelled pixels that are right.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path[0] = str(Path(__file__).resolve().parents[1])

from mmvit_plugins.cli.config_loading import load_config  # noqa: E402
from mmvit_plugins.cli.errors import UserError, run_tool  # noqa: E402
from mmvit_plugins.cli.file_checks import check_checkpoint, check_datasets  # noqa: E402
from mmvit_plugins.cli.inference import Predictor, quiet_hosts, read_image  # noqa: E402
from mmvit_plugins.visualization import draw_panel, draw_prediction  # noqa: E402


def load_model(spec: str, data_root: str | None) -> tuple[str, Any, Predictor]:
    """Name, config and predictor of NAME=CONFIG=CHECKPOINT.

    Raises:
        UserError: the text has another form, or a file is missing.
    """
    parts = spec.split("=")
    if len(parts) != 3:
        raise UserError(f"a model is NAME=CONFIG=CHECKPOINT, got {spec!r}")
    cfg = load_config(argparse.Namespace(config=parts[1], cfg_options=[], data_root=data_root))
    check_checkpoint(parts[2])
    return parts[0], cfg, Predictor(cfg, parts[2])


def validation_samples(cfg: Any, num: int) -> list[tuple[Path, np.ndarray]]:
    """(image file, (H, W) label map) of ``num`` validation images, evenly spaced."""
    from mmengine.registry import DATASETS

    check_datasets(cfg, ("val_dataloader",))
    dataset = DATASETS.build(cfg.val_dataloader.dataset)
    chosen = np.linspace(0, len(dataset) - 1, min(num, len(dataset))).round().astype(int)
    samples = [dataset[int(index)]["data_samples"] for index in chosen]
    return [(Path(sample.img_path), sample.gt_sem_seg.data[0].numpy()) for sample in samples]


def compare(args: argparse.Namespace) -> int:
    """Draw the picture."""
    from mmengine.structures import PixelData
    from mmseg.structures import SegDataSample
    from torch import from_numpy

    with quiet_hosts("mmseg"):
        models = [load_model(spec, args.data_root) for spec in args.models]
        pictures = []
        for path, truth in validation_samples(models[0][1], args.num):
            image, known = read_image(path), truth != 255
            # What nobody labelled is drawn as the class that the first model sees, so that it does not mislead the eye.
            seen = models[0][2](path).pred_sem_seg.data[0].numpy()
            filled = from_numpy(np.where(known, truth, seen)[None])
            sample = SegDataSample(pred_sem_seg=PixelData(data=filled))
            meta = models[0][2].meta
            pictures += [(path.stem, image), ("truth", draw_prediction(image, sample, meta, alpha=0.75))]
            for name, _, predictor in models:
                result = predictor(path)
                right = (result.pred_sem_seg.data[0].numpy() == truth)[known].mean()
                pictures.append((f"{name}: {right:.1%}", draw_prediction(image, result, predictor.meta, alpha=0.75)))
        print(f"wrote {draw_panel(pictures, args.out, columns=2 + len(models)).absolute()}")
    return 0


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="NAME=CONFIG=CHECKPOINT")
    parser.add_argument("--data-root")
    parser.add_argument("--num", type=int, default=6)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--debug", action="store_true", help="show the traceback of errors")
    return run_tool(compare, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
