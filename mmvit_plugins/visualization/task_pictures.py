"""All tasks of one image side by side: predictions, and the labels below them where they are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np

from mmvit_plugins.structures import TASK_MAPS

from .colors import distinct_colors

__all__ = ["draw_task_map", "draw_tasks"]

BAR = 22  # pixels of a title
LEGIBLE_SIDE = 240


def draw_tasks(
    image: np.ndarray,
    sample: Any,
    dataset_meta: Mapping[str, Any] | None = None,
    alpha: float = 0.55,
    instances: np.ndarray | None = None,
) -> np.ndarray:
    """One row with the image and each task's prediction; a second one with the labels that the sample has.

    Args:
        image: (H, W, 3) uint8 RGB.
        sample: a :class:`~mmvit_plugins.structures.MultiTaskSample` with predictions of the same size.
        dataset_meta: ``palette`` of the semantic classes; distinct colours without.
        alpha: opacity of label maps.
        instances: the picture of the instances, (h, w, 3) uint8 RGB, if there is one.

    Returns:
        (h, w, 3) uint8 RGB; enlarged by a whole factor if the image is small.
    """
    scale = max(1, -(-LEGIBLE_SIDE // min(image.shape[:2])))
    palette = (dataset_meta or {}).get("palette")
    tasks = [task for task in sample.get("tasks", ()) if task in TASK_MAPS]
    predicted, true = [("image", image)], [("", np.full_like(image, 255))]
    for task in tasks:
        entry = TASK_MAPS[task]
        maps = [_array(sample.get(name)) for name in (entry.prediction, entry.truth)]
        depths = _depth_range(maps) if task == "depth" else None
        drawn = [
            None
            if one is None
            else draw_task_map(task, one, image, palette if task == "semseg" else None, alpha, depths)
            for one in maps
        ]
        suffix = "" if depths is None else f" {depths[0]:.1f} to {depths[1]:.1f} m"
        predicted.append((task + suffix, drawn[0]))
        true.append((f"{task}, label", drawn[1]) if drawn[1] is not None else ("", np.full_like(image, 255)))
    rows = [predicted] if all(title == "" for title, _ in true) else [predicted, true]
    tiles = [[_tile(picture, title, image.shape[:2], scale) for title, picture in row] for row in rows]
    if instances is not None:
        tiles[0].append(_tile(instances, "instances", image.shape[:2], scale))
        for row in tiles[1:]:
            row.append(np.full_like(tiles[0][-1], 255))
    return np.concatenate([np.concatenate(row, axis=1) for row in tiles], axis=0)


def draw_task_map(
    task: str,
    values: np.ndarray,
    image: np.ndarray,
    palette: Sequence[Sequence[int]] | None = None,
    alpha: float = 0.55,
    depth_range: tuple[float, float] | None = None,
) -> np.ndarray:
    """One label or prediction as a picture.

    Classes: colours over the image. Depth: near is bright, unknown black. Normals: right is red, up green, towards the
    viewer blue, unknown black. Boundaries: dark lines. Saliency: what is not salient is darkened.

    Args:
        task: name of the task.
        values: (channels, H, W).
        image: (H, W, 3) uint8 RGB.
        palette: RGB of each class.
        alpha: opacity of class colours.
        depth_range: metres of the brightest and the darkest colour.

    Returns:
        (H, W, 3) uint8 RGB.
    """
    if task in ("semseg", "parts"):
        labels = values[0].astype(np.int64)
        colors = np.array(palette if palette is not None else distinct_colors(256), dtype=np.float64)
        known = labels < len(colors)
        shown = image.copy()
        mixed = (1 - alpha) * image[known] + alpha * colors[labels[known]]
        shown[known] = mixed.round().astype(np.uint8)
        return shown
    if task == "depth":
        near, far = depth_range or _depth_range([values])
        share = np.clip((far - values[0]) / max(far - near, 1e-6), 0, 1)
        picture = cv2.applyColorMap((share * 255).astype(np.uint8), cv2.COLORMAP_INFERNO)[..., ::-1]
        return np.where(values[0][..., None] > 0, picture, 0).astype(np.uint8)
    if task == "normals":
        known = np.square(values).sum(0) > 0.25
        picture = np.stack([values[0], -values[1], -values[2]], axis=-1)
        return np.where(known[..., None], (picture + 1) * 127.5, 0).clip(0, 255).astype(np.uint8)
    share = np.where(values[0] > 1, 0.0, values[0])  # 255: unknown
    if task == "boundary":
        return np.repeat(((1 - share) * 255).astype(np.uint8)[..., None], 3, axis=2)
    return (image * (0.2 + 0.8 * share[..., None])).astype(np.uint8)


def _depth_range(maps: Sequence[np.ndarray | None]) -> tuple[float, float]:
    """Metres between which 96 % of the positive values lie."""
    values = np.concatenate([one[one > 0].ravel() for one in maps if one is not None] or [np.zeros(0)])
    return tuple(float(value) for value in np.percentile(values, (2, 98))) if values.size else (0.0, 1.0)


def _array(pixels: Any) -> np.ndarray | None:
    return None if pixels is None else pixels.data.detach().cpu().numpy()


def _tile(picture: np.ndarray | None, title: str, size: tuple[int, int], scale: int) -> np.ndarray:
    """The picture at ``scale`` times ``size`` with a title above."""
    height, width = size[0] * scale, size[1] * scale
    picture = np.full((*size, 3), 255, np.uint8) if picture is None else picture
    if picture.shape[:2] != (height, width):
        picture = cv2.resize(picture, (width, height), interpolation=cv2.INTER_NEAREST)
    tile = np.full((height + BAR, width + 4, 3), 255, np.uint8)
    tile[BAR:, 2:-2] = picture
    cv2.putText(tile, title, (4, BAR - 7), cv2.FONT_HERSHEY_SIMPLEX, 0.45, (0, 0, 0), 1, cv2.LINE_AA)
    return tile
