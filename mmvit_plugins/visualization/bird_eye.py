"""Point clouds and label maps seen from above."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["draw_labels_from_above", "draw_points_from_above"]

_GROUND, _TOP = np.array((40.0, 60.0, 110.0)), np.array((255.0, 220.0, 90.0))
_EMPTY, _UNKNOWN = (235, 235, 235), (200, 200, 200)


def draw_points_from_above(
    points: np.ndarray, point_cloud_range: Sequence[float], cells: tuple[int, int], scale: int = 8
) -> np.ndarray:
    """Points as dots, the highest on top, blue on the ground and yellow from 1.5 m up; the far end at the top.

    Args:
        points: (P, 3 or more) metres.
        point_cloud_range: (x0, y0, z0, x1, y1, z1) of the picture.
        cells: (ny, nx) of the label maps beside it.
        scale: pixels of a cell's side.

    Returns:
        (ny scale, nx scale, 3) uint8 RGB.
    """
    low, high = np.array(point_cloud_range[:3]), np.array(point_cloud_range[3:])
    height, width = cells[0] * scale, cells[1] * scale
    picture = np.full((height, width, 3), _EMPTY, dtype=np.uint8)
    inside = points[((points[:, :3] >= low) & (points[:, :3] < high)).all(axis=1)]
    inside = inside[inside[:, 2].argsort()]
    place = ((inside[:, :2] - low[:2]) / (high - low)[:2] * (width, height)).astype(int)
    share = np.clip(inside[:, 2:3] / 1.5, 0, 1)
    color = ((1 - share) * _GROUND + share * _TOP).astype(np.uint8)
    for dx in (0, 1):
        for dy in (0, 1):
            rows, columns = np.minimum(place[:, 1] + dy, height - 1), np.minimum(place[:, 0] + dx, width - 1)
            picture[rows, columns] = color
    return np.ascontiguousarray(picture[::-1])


def draw_labels_from_above(labels: np.ndarray, palette: Sequence[Sequence[int]], scale: int = 8) -> np.ndarray:
    """A label map, row 0 nearest, as a picture with the far end at the top; labels beyond the palette are grey.

    Args:
        labels: (ny, nx) integers.
        palette: RGB of each class.
        scale: pixels of a cell's side.

    Returns:
        (ny scale, nx scale, 3) uint8 RGB.
    """
    colors = np.full((256, 3), _UNKNOWN, dtype=np.uint8)
    colors[: len(palette)] = np.array(palette, dtype=np.uint8)
    return colors[labels.astype(np.uint8)][::-1].repeat(scale, axis=0).repeat(scale, axis=1)
