"""Move an image and the labels of all its tasks together, each as its meaning demands.

Every function changes the dict of a sample in place: image bilinear, label maps by the nearest pixel, and

* depth is divided by the factor of a resize. A picture that is enlarged by s shows the same as a scene s times as small
  (and as near) would show to the correspondingly longer lens, so that depth, normals and camera matrix still fit
  together. ``depth_scale`` remembers the factor;
* normals keep their direction under resize, crop and padding, mirror in a flip, and turn in a rotation;
* boundaries stay connected when they are made smaller;
* ``cam2img`` (pixel centres at integers) always belongs to the picture as it is;
* boxes follow their masks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cv2
import numpy as np

from mmvit_plugins.structures import TASK_MAPS

__all__ = ["crop_sample", "flip_sample", "pad_sample", "resize_sample", "rotate_sample"]

# Mean colour of ImageNet as BGR: what normalisation turns into about 0.
PAD_COLOUR = (104, 116, 124)


def resize_sample(results: dict, size: tuple[int, int]) -> None:
    """Resize to ``size`` (height, width) pixels."""
    old_height, old_width = results["img"].shape[:2]
    height, width = size
    if (old_height, old_width) == (height, width):
        return
    ratio_x, ratio_y = width / old_width, height / old_height
    results["img"] = cv2.resize(results["img"], (width, height), interpolation=cv2.INTER_LINEAR)
    smaller = width < old_width or height < old_height

    def nearest(array: np.ndarray) -> np.ndarray:
        return cv2.resize(array, (width, height), interpolation=cv2.INTER_NEAREST_EXACT)

    for key in _maps(results).values():
        label = results[key]
        results[key] = nearest(label)
        if key == TASK_MAPS["boundary"].results_key and smaller:
            # The nearest pixel alone would break thin lines.
            covered = cv2.resize((label == 1).astype(np.float32), (width, height), interpolation=cv2.INTER_AREA)
            results[key][(covered > 0.25) & (results[key] != TASK_MAPS["boundary"].fill)] = 1
    scale = float(np.sqrt(ratio_x * ratio_y))
    depth_key = TASK_MAPS["depth"].results_key
    if depth_key in results:
        results[depth_key] = results[depth_key] / np.float32(scale)
    results["depth_scale"] = results.get("depth_scale", 1.0) * scale
    _move_masks(results, nearest)
    if "cam2img" in results:
        matrix = np.array(
            [[ratio_x, 0, (ratio_x - 1) / 2], [0, ratio_y, (ratio_y - 1) / 2], [0, 0, 1]], dtype=np.float64
        )
        _move_camera(results, matrix)
    previous = results.get("scale_factor", (1.0, 1.0))
    results["scale_factor"] = (previous[0] * ratio_x, previous[1] * ratio_y)
    _finish(results)


def flip_sample(results: dict) -> None:
    """Mirror left and right."""
    results["img"] = np.ascontiguousarray(results["img"][:, ::-1])
    for key in _maps(results).values():
        results[key] = np.ascontiguousarray(results[key][:, ::-1])
    key = TASK_MAPS["normals"].results_key
    if key in results:
        results[key] = results[key] * np.array([-1, 1, 1], dtype=np.float32)
    _move_masks(results, lambda mask: np.ascontiguousarray(mask[:, ::-1]))
    # Both the pixel's column and the point's x change sign, so that the focal length stays positive.
    if "cam2img" in results:
        camera = np.array(results["cam2img"], dtype=np.float64)
        camera[0, 2] = results["img"].shape[1] - 1 - camera[0, 2]
        camera[0, 1] = -camera[0, 1]
        results["cam2img"] = camera.astype(np.float32)
    _finish(results)


def rotate_sample(results: dict, angle: float) -> None:
    """Turn about the middle of the picture, counter-clockwise as seen, by ``angle`` degrees; the size stays.

    What comes in from outside has no label.

    Raises:
        ValueError: the camera has different focal lengths for x and y, so that a turned picture is no picture of it.
    """
    height, width = results["img"].shape[:2]
    matrix = cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), angle, 1.0)

    def turn(array: np.ndarray, fill: Any, mode: int = cv2.INTER_NEAREST) -> np.ndarray:
        return cv2.warpAffine(array, matrix, (width, height), flags=mode, borderValue=fill)

    results["img"] = turn(results["img"], PAD_COLOUR, cv2.INTER_LINEAR)
    for task, key in _maps(results).items():
        fill = [TASK_MAPS[task].fill] * 4
        results[key] = turn(results[key], fill)
    key = TASK_MAPS["normals"].results_key
    if key in results:
        # x to the right, y down: the same turn as the pixels'.
        normals = results[key].copy()
        normals[..., :2] = results[key][..., :2] @ matrix[:, :2].T.astype(np.float32)
        results[key] = normals
    _move_masks(results, lambda mask: turn(mask, 0))
    if "cam2img" in results:
        camera = np.array(results["cam2img"], dtype=np.float64)
        if abs(camera[0, 0] - camera[1, 1]) > 0.01 * abs(camera[0, 0]) or camera[0, 1] != 0:
            raise ValueError(
                f"a rotation needs a camera with equal focal lengths and no skew, got cam2img {camera.tolist()}; "
                "leave the rotation out"
            )
        camera[:2, 2] = matrix @ np.array([camera[0, 2], camera[1, 2], 1.0])
        results["cam2img"] = camera.astype(np.float32)
    _finish(results)


def crop_sample(results: dict, top: int, left: int, size: tuple[int, int]) -> None:
    """Cut out ``size`` (height, width) pixels from row ``top`` and column ``left`` on."""
    window = (slice(top, top + size[0]), slice(left, left + size[1]))
    results["img"] = np.ascontiguousarray(results["img"][window])
    for key in _maps(results).values():
        results[key] = np.ascontiguousarray(results[key][window])
    _move_masks(results, lambda mask: np.ascontiguousarray(mask[window]))
    if "cam2img" in results:
        _move_camera(results, np.array([[1, 0, -left], [0, 1, -top], [0, 0, 1]], dtype=np.float64))
    _finish(results)


def pad_sample(results: dict, size: tuple[int, int]) -> None:
    """Add rows below and columns at the right up to ``size``; larger pictures stay. The new pixels have no label."""
    height, width = results["img"].shape[:2]
    below, right = max(0, size[0] - height), max(0, size[1] - width)
    if not below and not right:
        return

    def extend(array: np.ndarray, fill: Any) -> np.ndarray:
        return cv2.copyMakeBorder(array, 0, below, 0, right, cv2.BORDER_CONSTANT, value=fill)

    results["img"] = extend(results["img"], PAD_COLOUR)
    for task, key in _maps(results).items():
        results[key] = extend(results[key], [TASK_MAPS[task].fill] * 4)
    _move_masks(results, lambda mask: extend(mask, 0))
    _finish(results)


def _maps(results: dict) -> dict[str, str]:
    """Key of each label map of the sample, by task."""
    return {task: entry.results_key for task, entry in TASK_MAPS.items() if entry.results_key in results}


def _move_camera(results: dict, matrix: np.ndarray) -> None:
    """Put a change of pixel coordinates in front of the camera matrix."""
    results["cam2img"] = (matrix @ np.asarray(results["cam2img"], dtype=np.float64)).astype(np.float32)


def _finish(results: dict) -> None:
    results["img_shape"] = results["img"].shape[:2]
    # Points of the scene would have to move as well; nothing here uses them.
    for key in ("points", "pts_semantic_mask"):
        results.pop(key, None)


def _move_masks(results: dict, move: Callable[[np.ndarray], np.ndarray]) -> None:
    """Move the masks of instances, put tight boxes around them, and drop those that are gone.

    Raises:
        ValueError: there are boxes without masks.
    """
    if "gt_masks" not in results:
        if "gt_bboxes" in results:
            raise ValueError(
                "the transforms of several tasks move boxes with their masks: load gt_masks beside gt_bboxes, or leave "
                "the instances out"
            )
        return
    from mmdet.structures.bbox import HorizontalBoxes
    from mmdet.structures.mask import BitmapMasks

    size = results["img"].shape[:2]
    moved = [move(np.ascontiguousarray(mask)) for mask in results["gt_masks"].to_ndarray()]
    kept = [index for index, mask in enumerate(moved) if mask.any()]
    masks = np.stack([moved[index] for index in kept]) if kept else np.zeros((0, *size), np.uint8)
    boxes = np.zeros((len(kept), 4), dtype=np.float32)
    for box, mask in zip(boxes, masks, strict=True):
        columns, rows = np.nonzero(mask.any(0))[0], np.nonzero(mask.any(1))[0]
        box[:] = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
    results["gt_masks"] = BitmapMasks(masks, *size)
    results["gt_bboxes"] = HorizontalBoxes(boxes)
    for key in ("gt_bboxes_labels", "gt_ignore_flags"):
        if key in results:
            results[key] = results[key][kept]
