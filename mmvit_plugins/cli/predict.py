"""Predict on images or folders of images: pictures with the result, and label maps or a JSON file."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmvit_plugins.environment import check_environment

from .arguments import make_parser
from .config_loading import load_config
from .errors import UserError, run_tool
from .file_checks import check_checkpoint
from .inference import Predictor, bird_eye_step, choose_device, collect_images, output_stems, quiet_hosts, read_image

__all__ = ["describe", "main", "predict", "write_label_map", "write_task_maps"]

EXAMPLES = """examples:
  %(prog)s photo.jpg holiday/ --config configs/stvit/upernet_ade20k.py --checkpoint iter_160000.pth

written to --out-dir (default: predictions):
  overlays/NAME.png   the image with its label map, boxes and masks, or class and score; several tasks side by side
  labels/NAME.png     segmentation: one class number per pixel, in the size of the image
  TASK/NAME.png       of several tasks: parts as labels, depth in millimetres (16 bit), normals as (n + 1) 127.5,
                      boundaries and saliency as probability times 255
  predictions.json    classes with scores, boxes with masks (COCO run-length code), or shares of the classes
A damaged image is named and left out; the others are done, and the exit code is 1."""


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser("predict", __doc__ or "", EXAMPLES)
    parser.add_argument("images", nargs="+", metavar="IMAGE_OR_FOLDER")
    parser.add_argument("--config", required=True, help="the config that the checkpoint was trained with")
    parser.add_argument("--checkpoint", required=True, help="a file or URL")
    parser.add_argument("--out-dir", default="predictions", metavar="DIR")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)")
    parser.add_argument("--score-threshold", type=float, default=0.3, help="boxes below it are left out (%(default)s)")
    parser.add_argument("--opacity", type=float, default=0.55, help="of label maps and masks (%(default)s)")
    parser.add_argument("--cfg-options", nargs="+", default=[], metavar="KEY=VALUE", help="change the config")
    return parser.parse_args(argv)


def describe(
    sample: Any,
    classes: Sequence[str] | None,
    score_threshold: float,
    instance_classes: Sequence[str] | None = None,
    part_classes: Sequence[str] | None = None,
) -> dict[str, Any]:
    """The predictions of one data sample as plain values for JSON.

    Args:
        sample: data sample of any host, or of several tasks.
        classes: names of the classes; numbers stand for names that are missing.
        score_threshold: instances below it are left out.
        instance_classes: of several tasks, names of the instances' classes, which are not those of the label map.
        part_classes: of several tasks, names of the human parts.

    Returns:
        ``class_shares`` (share of the pixels) for segmentation, ``instances`` (label, class, score, bbox as x1, y1,
        x2, y2 in pixels, mask as COCO run-length code) for detection, ``top`` (five best classes) for classification.
    """
    name = _names(classes)
    if "tasks" in sample.metainfo:
        names = dict(semseg=name, instances=_names(instance_classes), parts=_names(part_classes))
        return _describe_tasks(sample, names, score_threshold)
    if "pred_sem_seg" in sample:
        return dict(class_shares=_class_shares(sample.pred_sem_seg.data, name))
    if "pred_instances" in sample:
        return dict(instances=_instances(sample, name, score_threshold))
    scores, labels = sample.pred_score.topk(min(5, sample.pred_score.numel()))
    pairs = zip(labels.tolist(), scores.tolist(), strict=True)
    top = [dict(label=label, **{"class": name(label)}, score=round(score, 4)) for label, score in pairs]
    # Which exit of a cascade answered, counted from 1.
    return dict(top=top, exit=sample.exit_index + 1) if "exit_index" in sample else dict(top=top)


def _names(classes: Sequence[str] | None) -> Callable[[int], str]:
    """The function from a label to its class, or to its number where there is no name."""
    return lambda label: str(classes[label]) if classes and label < len(classes) else str(label)


def _describe_tasks(sample: Any, names: Mapping[str, Callable[[int], str]], score_threshold: float) -> dict[str, Any]:
    """The predictions of several tasks as plain values: see :func:`describe`, and by task the share of each label,
    least, middle and greatest depth in metres, or the share of boundary and salient pixels."""
    from mmvit_plugins.structures import TASK_MAPS

    found: dict[str, Any] = {}
    for task in sample.tasks:
        if task == "instances":
            found["instances"] = _instances(sample, names[task], score_threshold)
            continue
        values = sample.get(TASK_MAPS[task].prediction).data
        if task == "semseg":
            found["class_shares"] = _class_shares(values, names[task])
        elif task == "parts":
            found["part_shares"] = _class_shares(values, names[task])
        elif task == "depth":
            ordered = values.flatten().sort().values
            places = dict(least=0, median=len(ordered) // 2, greatest=-1)
            found["depth"] = {key: round(float(ordered[place]), 3) for key, place in places.items()}
        elif task != "normals":
            found[f"{task}_share"] = round(float((values > 0.5).float().mean()), 4)
    return found


def _class_shares(labels: Any, name: Callable[[int], str]) -> dict[str, float]:
    values, counts = labels.unique(return_counts=True)
    return {name(v): count / labels.numel() for v, count in zip(values.tolist(), counts.tolist(), strict=True)}


def _instances(sample: Any, name: Callable[[int], str], score_threshold: float) -> list[dict[str, Any]]:
    found = sample.pred_instances
    found = found[found.scores >= score_threshold]
    rows = zip(found.labels.tolist(), found.scores.tolist(), found.bboxes.tolist(), strict=True)
    instances = [
        dict(label=label, **{"class": name(label)}, score=round(score, 4), bbox=[round(side, 2) for side in box])
        for label, score, box in rows
    ]
    for instance, mask in zip(instances, found.get("masks", []), strict=False):
        instance["mask"] = _run_length(mask)
    return instances


def _run_length(mask: Any) -> dict[str, Any]:
    """(H, W) mask -> COCO's compressed run-length code."""
    import numpy as np
    from pycocotools.mask import encode

    code = encode(np.asfortranarray(np.asarray(mask, dtype=np.uint8)))
    return dict(size=list(code["size"]), counts=code["counts"].decode("ascii"))


def write_label_map(sample: Any, path: Path) -> None:
    """Write the (1, H, W) labels of a segmentation as a PNG of class numbers: 8 bit, or 16 bit beyond 256 classes."""
    import numpy as np
    from PIL import Image

    labels = sample.pred_sem_seg.data.squeeze(0).numpy()
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(labels.astype(np.uint8 if labels.max() < 256 else np.uint16)).save(path)


def write_task_maps(sample: Any, out_dir: Path, stem: Path) -> dict[str, str]:
    """Write what the dense tasks beside segmentation predict, and return the files, relative to ``out_dir``, by task.

    Depth: 16-bit millimetres. Normals: 8-bit ``(n + 1) 127.5`` as RGB. Boundaries and saliency: probability times 255.
    """
    import numpy as np
    from PIL import Image

    from mmvit_plugins.structures import TASK_MAPS

    files = {}
    for task in sample.tasks:
        if task in ("semseg", "instances"):
            continue
        values = sample.get(TASK_MAPS[task].prediction).data.numpy()
        if task == "depth":
            pixels = (values[0] * 1000).round().clip(0, 65535).astype(np.uint16)
        elif task == "normals":
            pixels = ((values.transpose(1, 2, 0) + 1) * 127.5).round().clip(0, 255).astype(np.uint8)
        else:
            pixels = (values[0] * (1 if task == "parts" else 255)).round().astype(np.uint8)
        path = out_dir / task / stem.with_name(f"{stem.name}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
        files[task] = str(path.relative_to(out_dir))
    return files


def predict(args: argparse.Namespace) -> int:
    """Predict on every image; 1 if some could not be read."""
    check_environment("mmengine", "mmcv")
    images = collect_images(args.images)
    check_checkpoint(args.checkpoint)
    cfg = load_config(args)
    if bird_eye_step(cfg) is not None:
        raise UserError(f"{cfg.filename} is for point clouds, not images: use tools/predict_points.py")
    with quiet_hosts(cfg.get("default_scope")):
        predictor = Predictor(cfg, args.checkpoint, choose_device(args.device))
    print(predictor.report)
    from mmvit_plugins.engine import DamagedFileError

    out_dir = Path(args.out_dir).absolute()
    records, failures = [], []
    for path, stem in zip(_track(images), output_stems(images), strict=True):
        try:
            pixels = read_image(path)
        except DamagedFileError as error:
            failures.append(str(error))
            print(f"left out: {error}", file=sys.stderr)
            continue
        records.append(dict(image=str(path), **_predict_one(predictor, path, pixels, stem, out_dir, args)))
    classes = predictor.meta.get("classes")
    summary = dict(
        config=str(cfg.filename),
        checkpoint=os.path.abspath(args.checkpoint),
        classes=list(classes) if classes else None,
        images=records,
        unreadable=failures,
    )
    out_dir.mkdir(parents=True, exist_ok=True)
    (out_dir / "predictions.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    print(f"{len(records)} of {len(images)} images done: {out_dir}")
    if failures:
        print(f"error: {len(failures)} of {len(images)} images could not be read, see above", file=sys.stderr)
    return 1 if failures else 0


def _predict_one(
    predictor: Predictor, path: Path, pixels: Any, stem: Path, out_dir: Path, args: argparse.Namespace
) -> dict[str, Any]:
    """Predict, write the files of one image, and return its entry of the JSON file."""
    import mmcv

    from mmvit_plugins.visualization import draw_prediction

    sample = predictor(path)
    overlay = out_dir / "overlays" / stem.with_name(f"{stem.name}.png")
    picture = draw_prediction(pixels, sample, predictor.meta, args.score_threshold, args.opacity)
    mmcv.imwrite(picture[..., ::-1], str(overlay))
    entry: dict[str, Any] = dict(overlay=str(overlay.relative_to(out_dir)))
    if "pred_sem_seg" in sample:
        labels = out_dir / "labels" / stem.with_name(f"{stem.name}.png")
        write_label_map(sample, labels)
        entry["labels"] = str(labels.relative_to(out_dir))
    if "tasks" in sample.metainfo:
        entry["maps"] = write_task_maps(sample, out_dir, stem)
    names = (predictor.meta.get(key) for key in ("instance_classes", "part_classes"))
    return {**entry, **describe(sample, predictor.meta.get("classes"), args.score_threshold, *names)}


def _track(images: list[Path]) -> Any:
    """A progress bar over ``images``, on a terminal."""
    from rich.progress import track

    return track(images, description="predicting", transient=True, disable=not sys.stdout.isatty())


def main(argv: list[str] | None = None) -> int:
    """``tools/predict.py``; returns the exit code."""
    return run_tool(predict, parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
