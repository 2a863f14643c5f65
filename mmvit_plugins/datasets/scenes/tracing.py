"""Exact geometry of a scene: which surface each pixel sees, how far it is and how it is turned.

One ray goes through each pixel centre. Its direction has z = 1 in the camera frame, so the ray parameter of a hit is
the depth in metres. Every object is tested in the window of pixels that its bounding box covers only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .primitives import INTERSECTIONS, NORMALS, Vector
from .sampling import SceneObject, SceneSpec

__all__ = ["BACKGROUND", "FAR", "FIRST_OBJECT", "GROUND", "Geometry", "ObjectFrame", "product", "trace", "window_of"]

# Values of the surface map. Object k of a scene is surface FIRST_OBJECT + k.
BACKGROUND, GROUND, FIRST_OBJECT = 0, 1, 2

# The ground ends here (metres of depth); what lies beyond is background.
FAR = 25.0

_NEAR = 0.05
_CUBE = np.array([(x, y, z) for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], dtype=np.float64)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Matrix product of small matrices by plain sums: BLAS may fuse operations and so differ between machines."""
    return (a[..., :, :, None] * b[..., None, :, :]).sum(axis=-2)


@dataclass(frozen=True)
class ObjectFrame:
    """An object seen from the camera.

    Attributes:
        shape: name of the primitive.
        to_unit: matrix (3, 3) that takes camera vectors into the unit frame of the primitive.
        origin: the camera centre in the unit frame, (3,).
        corners: the eight corners of the bounding box in the camera frame, (8, 3) metres.
    """

    shape: str
    to_unit: np.ndarray
    origin: Vector
    corners: np.ndarray

    @classmethod
    def of(cls, item: SceneObject, spec: SceneSpec) -> ObjectFrame:
        """The frame of ``item`` for the camera of ``spec``."""
        world_to_camera = np.array(spec.camera.rotation)
        to_camera = product(world_to_camera, np.array(item.rotation))
        center = product(world_to_camera, np.array(item.center)[:, None] - [[0.0], [0.0], [spec.camera.height]])
        half = np.array(item.half_size)
        to_unit = to_camera.T / half[:, None]
        corners = product(_CUBE * half, to_camera.T) + center[:, 0]
        return cls(item.shape, to_unit, tuple(-product(to_unit, center)[:, 0]), corners)

    def directions(self, x: np.ndarray, y: np.ndarray, z: np.ndarray | float) -> Vector:
        """Camera vectors taken into the unit frame, component by component."""
        return tuple(row[0] * x + row[1] * y + row[2] * z for row in self.to_unit)

    def points(self, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> Vector:
        """Camera points taken into the unit frame."""
        return tuple(o + d for o, d in zip(self.origin, self.directions(x, y, z), strict=True))

    def normals(self, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, ...]:
        """Unit normals, in the camera frame, at camera points of the surface."""
        n = NORMALS[self.shape](self.points(x, y, z))
        components = [sum(self.to_unit[i, j] * n[i] for i in range(3)) for j in range(3)]
        length = np.sqrt(components[0] ** 2 + components[1] ** 2 + components[2] ** 2)
        return tuple(c / np.maximum(length, 1e-300) for c in components)

    def hit(self, origin: Vector, direction: Vector) -> np.ndarray:
        """Ray parameter of the first hit for rays in the unit frame, ``inf`` for none."""
        with np.errstate(all="ignore"):
            return INTERSECTIONS[self.shape](origin, direction)


@dataclass(frozen=True)
class Geometry:
    """Exact geometry of an image.

    Attributes:
        surface: uint8 (H, W): BACKGROUND, GROUND or FIRST_OBJECT + number of the object.
        depth: float64 (H, W), metres along the optical axis, ``inf`` where nothing is hit.
        normals: float64 (3, H, W), unit, camera frame, towards the camera; 0 where nothing is hit.
        frames: one per object.
        intrinsics: float64 (3, 3).
    """

    surface: np.ndarray
    depth: np.ndarray
    normals: np.ndarray
    frames: tuple[ObjectFrame, ...]
    intrinsics: np.ndarray

    @property
    def rays(self) -> tuple[np.ndarray, np.ndarray]:
        """x (1, W) and y (H, 1) of the ray directions, whose z is 1."""
        return pixel_rays(self.intrinsics, self.surface.shape)


def pixel_rays(intrinsics: np.ndarray, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """x (1, W) and y (H, 1) of the directions through the pixel centres, whose z is 1."""
    height, width = size
    x = (np.arange(width) - intrinsics[0, 2]) / intrinsics[0, 0]
    y = (np.arange(height) - intrinsics[1, 2]) / intrinsics[1, 1]
    return x[None, :], y[:, None]


def window_of(points: np.ndarray, intrinsics: np.ndarray, size: tuple[int, int]) -> tuple[slice, slice]:
    """Rows and columns that hold the image of the convex hull of camera points (P, 3); all where one is behind."""
    height, width = size
    if points[:, 2].min() <= _NEAR:
        return slice(0, height), slice(0, width)
    u = intrinsics[0, 0] * points[:, 0] / points[:, 2] + intrinsics[0, 2]
    v = intrinsics[1, 1] * points[:, 1] / points[:, 2] + intrinsics[1, 2]
    left, right = np.clip([np.floor(u.min()), np.ceil(u.max()) + 1], 0, width).astype(int)
    top, bottom = np.clip([np.floor(v.min()), np.ceil(v.max()) + 1], 0, height).astype(int)
    return slice(top, bottom), slice(left, right)


def trace(spec: SceneSpec, size: tuple[int, int]) -> Geometry:
    """Cast one ray per pixel.

    Args:
        spec: the scene.
        size: height and width in pixels.

    Returns:
        Surface, depth and normals of every pixel.
    """
    intrinsics = spec.camera.intrinsics(size)
    x, y = pixel_rays(intrinsics, size)
    up = np.array(spec.camera.rotation)[:, 2]  # the world's z axis in the camera frame

    slope = up[0] * x + up[1] * y + up[2]  # change of height along the ray per metre of depth
    with np.errstate(divide="ignore"):
        depth = np.where(slope < 0, -spec.camera.height / slope, np.inf)
    depth[depth > FAR] = np.inf
    surface = np.where(np.isfinite(depth), GROUND, BACKGROUND).astype(np.uint8)

    frames = tuple(ObjectFrame.of(item, spec) for item in spec.objects)
    for number, frame in enumerate(frames):
        rows, columns = window_of(frame.corners, intrinsics, size)
        t = frame.hit(frame.origin, frame.directions(x[:, columns], y[rows], 1.0))
        closer = t < depth[rows, columns]
        depth[rows, columns][closer] = t[closer]
        surface[rows, columns][closer] = FIRST_OBJECT + number

    normals = np.where(surface == GROUND, up[:, None, None], 0.0)
    for number, frame in enumerate(frames):
        v, u = np.nonzero(surface == FIRST_OBJECT + number)
        d = depth[v, u]
        normals[:, v, u] = frame.normals(x[0, u] * d, y[v, 0] * d, d)
    return Geometry(surface, depth, normals, frames, intrinsics)
