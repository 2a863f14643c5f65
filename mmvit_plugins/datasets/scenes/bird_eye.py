"""A scene seen from above: points in the frame of the ground, and the outline of every object."""

from __future__ import annotations

import numpy as np

from .primitives import SHAPES
from .sampling import Camera, SceneObject
from .scene import Scene

__all__ = ["BEV_CLASSES", "BEV_PALETTE", "IGNORED", "bird_eye_map", "covers", "ground_points"]

# What stands on the ground, which is the first class.
BEV_CLASSES = ("ground", *SHAPES)
BEV_PALETTE = ((128, 100, 70), (220, 20, 60), (250, 200, 30), (60, 180, 75), (145, 30, 180))
IGNORED = 255


def ground_points(scene: Scene) -> np.ndarray:
    """The point cloud in the frame of the ground, float32 (P, 3), metres: x right, y forward, z up, camera above the
    origin. Row by row as ``scene.points``, which are in the frame of the camera."""
    camera = scene.spec.camera
    points = scene.points.astype(np.float64) @ np.array(camera.rotation)
    points[:, 2] += camera.height
    return points.astype(np.float32)


def bird_eye_map(scene: Scene, extent: tuple[float, float, float, float], cells: tuple[int, int]) -> np.ndarray:
    """Which object stands on each cell of the ground.

    The outline of an object is all that lies below it, its hidden side included, so the map is more than the labels of
    the points. Cells whose ground the camera does not have in its view are ``IGNORED``; ground that an object hides is
    in view.

    Args:
        scene: the scene.
        extent: (x0, y0, x1, y1) metres in the frame of the ground.
        cells: (ny, nx), rows along y from y0 on and columns along x.

    Returns:
        uint8 (ny, nx), indices into ``BEV_CLASSES`` or ``IGNORED``; decided at the middle of each cell.
    """
    x0, y0, x1, y1 = extent
    ny, nx = cells
    x = x0 + (np.arange(nx) + 0.5) * (x1 - x0) / nx
    y = (y0 + (np.arange(ny) + 0.5) * (y1 - y0) / ny)[:, None]
    result = np.zeros(cells, dtype=np.uint8)
    for item in scene.spec.objects:
        result[covers(item, x, y)] = 1 + SHAPES.index(item.shape)
    result[~_in_view(scene.spec.camera, scene.size, x, y)] = IGNORED
    return result


def covers(item: SceneObject, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Places of the ground below an object.

    Args:
        item: the object.
        x: metres in the frame of the ground, any shape.
        y: metres, broadcast against ``x``.

    Returns:
        Bool, of the shape of both.
    """
    dx, dy = x - item.center[0], y - item.center[1]
    # Shares of the half sizes along the object's own axes, as far as those are horizontal.
    own = [
        (row * dx + column * dy) / half for row, column, half in zip(*item.rotation[:2], item.half_size, strict=True)
    ]
    if item.shape == "box":
        return (np.abs(own[0]) <= 1) & (np.abs(own[1]) <= 1)
    if item.rotation[2][2] == 0:  # a cylinder on its side: a rectangle of radius by half height
        return (np.abs(own[1]) <= 1) & (np.abs(own[2]) <= 1)
    return own[0] * own[0] + own[1] * own[1] <= 1


def _in_view(camera: Camera, size: tuple[int, int], x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Bool (ny, nx): places of the ground that are inside the image's frame."""
    right, down, forward = (axis[0] * x + axis[1] * y - axis[2] * camera.height for axis in camera.rotation)
    depth = np.where(forward > 0, forward, np.inf)
    intrinsics = camera.intrinsics(size)
    u = intrinsics[0, 0] * right / depth + intrinsics[0, 2]
    v = intrinsics[1, 1] * down / depth + intrinsics[1, 2]
    height, width = size
    return (forward > 0) & (u >= -0.5) & (u <= width - 0.5) & (v >= -0.5) & (v <= height - 0.5)
