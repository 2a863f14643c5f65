"""A rendered scene and everything that is known about it."""

from __future__ import annotations

from functools import cached_property, lru_cache

import numpy as np

from .primitives import SHAPES
from .sampling import SPLITS, SceneSpec, sample_scene
from .shading import shade
from .tracing import BACKGROUND, FIRST_OBJECT, GROUND, Geometry, trace

__all__ = ["CLASSES", "PALETTE", "Scene", "check_request", "render_scene"]

# Semantic classes: the shapes follow background and ground, so that label = shape + 2.
CLASSES = ("background", "ground", *SHAPES)
PALETTE = ((70, 130, 180), (128, 100, 70), (220, 20, 60), (250, 200, 30), (60, 180, 75), (145, 30, 180))

# A visible piece below this share of the image (or of 4 pixels) is marked as ignored for detection.
_SMALLEST_SHARE, _SMALLEST_PIXELS = 0.0008, 4

# A step in depth below this share is no occlusion boundary.
_BOUNDARY_STEP = 0.02


class Scene:
    """One image with its exact annotations; arrays are shared, so copy before you change one.

    Args:
        spec: what is in the scene.
        size: height and width in pixels.
        rgb: uint8 (H, W, 3), when it is known already; rendered otherwise.
        surface: uint8 (H, W), when it is known already.

    Attributes:
        spec: as given.
        size: as given.
        rgb: the image, uint8 (H, W, 3), channels red, green, blue.
        surface: uint8 (H, W): 0 background, 1 ground, 2 + k the object k of ``spec.objects``.
    """

    def __init__(
        self, spec: SceneSpec, size: tuple[int, int], rgb: np.ndarray | None = None, surface: np.ndarray | None = None
    ) -> None:
        self.spec = spec
        self.size = size
        self.surface = self.geometry.surface if surface is None else surface
        self.rgb = shade(spec, self.geometry) if rgb is None else rgb

    @cached_property
    def geometry(self) -> Geometry:
        """Exact geometry, traced when first asked for."""
        return trace(self.spec, self.size)

    @property
    def label(self) -> int:
        """Shape of the main object, an index into ``SHAPES``."""
        return SHAPES.index(self.spec.objects[0].shape)

    @property
    def semantic(self) -> np.ndarray:
        """Semantic map, uint8 (H, W), indices into ``CLASSES``."""
        shapes = [FIRST_OBJECT + SHAPES.index(item.shape) for item in self.spec.objects]
        return np.array([BACKGROUND, GROUND, *shapes], dtype=np.uint8)[self.surface]

    @property
    def depth(self) -> np.ndarray:
        """Metres along the optical axis, float32 (H, W); 0 where nothing is hit (background)."""
        depth = self.geometry.depth
        return np.where(np.isfinite(depth), depth, 0).astype(np.float32)

    @property
    def normals(self) -> np.ndarray:
        """Unit surface normals towards the camera, camera frame (x right, y down, z forward), float32 (H, W, 3);
        0 on background."""
        return np.ascontiguousarray(self.geometry.normals.transpose(1, 2, 0).astype(np.float32))

    @property
    def saliency(self) -> np.ndarray:
        """Mask of the main object, uint8 (H, W), 0 or 1."""
        return (self.surface == FIRST_OBJECT).astype(np.uint8)

    @property
    def intrinsics(self) -> np.ndarray:
        """Camera matrix K, float32 (3, 3); pixel centres are at integer coordinates."""
        return self.spec.camera.intrinsics(self.size).astype(np.float32)

    @cached_property
    def visible(self) -> list[int]:
        """Numbers of the objects that at least one pixel shows."""
        counts = np.bincount(self.surface.ravel(), minlength=FIRST_OBJECT + len(self.spec.objects))
        return [k for k in range(len(self.spec.objects)) if counts[FIRST_OBJECT + k]]

    @property
    def masks(self) -> np.ndarray:
        """Visible part of each visible object, uint8 (N, H, W), disjoint."""
        ids = np.array(self.visible, dtype=np.uint8)[:, None, None] + FIRST_OBJECT
        return (self.surface[None] == ids).astype(np.uint8)

    @property
    def boxes(self) -> np.ndarray:
        """Tight boxes of the masks, float32 (N, 4): left, top, right, bottom; right and bottom are exclusive."""
        boxes = np.zeros((len(self.visible), 4), dtype=np.float32)
        for box, mask in zip(boxes, self.masks, strict=True):
            columns, rows = np.nonzero(mask.any(axis=0))[0], np.nonzero(mask.any(axis=1))[0]
            box[:] = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
        return boxes

    @property
    def box_labels(self) -> np.ndarray:
        """Shapes of the visible objects, int64 (N,), indices into ``SHAPES``."""
        return np.array([SHAPES.index(self.spec.objects[k].shape) for k in self.visible], dtype=np.int64)

    @property
    def ignore_flags(self) -> np.ndarray:
        """Bool (N,): objects of which so few pixels are visible that a detector need not find them."""
        least = max(_SMALLEST_PIXELS, _SMALLEST_SHARE * self.surface.size)
        return np.array([(self.surface == FIRST_OBJECT + k).sum() < least for k in self.visible], dtype=bool)

    @property
    def points(self) -> np.ndarray:
        """Point cloud of all pixels but background, row by row, float32 (P, 3), metres, camera frame."""
        x, y = self.geometry.rays
        v, u = np.nonzero(self.surface != BACKGROUND)
        depth = self.geometry.depth[v, u]
        return np.stack([x[0, u] * depth, y[v, 0] * depth, depth], axis=1).astype(np.float32)

    @property
    def point_labels(self) -> np.ndarray:
        """Semantic class of each point, int64 (P,), indices into ``CLASSES``."""
        return self.semantic[self.surface != BACKGROUND].astype(np.int64)

    @property
    def boundary(self) -> np.ndarray:
        """Occlusion boundaries, uint8 (H, W), 0 or 1.

        Marks the pixels of an object that have a pixel of something farther above, below, left or right of them,
        unless the step in depth is one that the slope of the farther surface explains: where an object stands on
        the ground, nothing is hidden.
        """
        marked = np.zeros(self.size, dtype=bool)
        full = slice(None)
        for axis in (0, 1):
            low = (slice(None, -1), full) if axis == 0 else (full, slice(None, -1))
            high = (slice(1, None), full) if axis == 0 else (full, slice(1, None))
            marked[low] |= self._occludes(low, high)
            marked[high] |= self._occludes(high, low)
        return marked.astype(np.uint8)

    def _occludes(self, near: tuple[slice, slice], far: tuple[slice, slice]) -> np.ndarray:
        """Bool: pixels of ``near`` that belong to an object which hides part of what the pixel of ``far`` shows."""
        x, y = (np.broadcast_to(ray, self.size)[near] for ray in self.geometry.rays)
        x_far, y_far = (np.broadcast_to(ray, self.size)[far] for ray in self.geometry.rays)
        depth, depth_far = self.geometry.depth[near], self.geometry.depth[far]
        nx, ny, nz = (n[far] for n in self.geometry.normals)
        with np.errstate(divide="ignore", invalid="ignore"):
            # Depth at which the near pixel would see the tangent plane of the farther surface.
            behind = depth_far * (nx * x_far + ny * y_far + nz) / (nx * x + ny * y + nz)
            slope = np.abs(behind - depth_far)
            gap = behind - depth
            step = np.where(np.isfinite(depth_far), gap > np.maximum(slope, _BOUNDARY_STEP * depth), True)
        differs = (self.surface[near] != self.surface[far]) & (self.surface[near] >= FIRST_OBJECT)
        return differs & (depth_far > depth) & step


def check_request(
    seed: int, split: str, index: int, size: tuple[int, int], objects: tuple[int, int]
) -> tuple[int, str, int, tuple[int, int], tuple[int, int]]:
    """The arguments of :func:`render_scene` in plain Python types.

    Raises:
        ValueError: for the first illegal one, with the legal values.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(map(repr, SPLITS))}, but got {split!r}.")
    if not 0 <= int(seed) < 2**32:
        raise ValueError(f"seed must lie between 0 and 2^32 - 1, but got {seed}.")
    if not 0 <= int(index) < 2**32:
        raise ValueError(f"index must lie between 0 and 2^32 - 1, but got {index}.")
    if np.shape(size) != (2,) or min(size) < 1:
        raise ValueError(f"size must be (height, width) in pixels, both at least 1, but got {size}.")
    if np.shape(objects) != (2,) or not 1 <= objects[0] <= objects[1] <= 64:
        raise ValueError(f"objects must be (fewest, most) with 1 <= fewest <= most <= 64, but got {objects}.")
    height, width = size
    return int(seed), split, int(index), (int(height), int(width)), (int(objects[0]), int(objects[1]))


# Two are enough for a reader that asks for the image and then for its label map; large scenes are heavy.
@lru_cache(maxsize=2)
def _render(seed: int, split: str, index: int, size: tuple[int, int], objects: tuple[int, int]) -> Scene:
    return Scene(sample_scene(seed, split, index, objects), size)


def render_scene(
    seed: int = 0,
    split: str = "train",
    index: int = 0,
    size: tuple[int, int] = (128, 128),
    objects: tuple[int, int] = (3, 6),
) -> Scene:
    """Render one scene; the last few are remembered.

    Args:
        seed: 0 to 2^32 - 1.
        split: 'train', 'val' or 'test'; splits share no scene.
        index: number of the scene, from 0 to 2^32 - 1.
        size: height and width in pixels, at least 1.
        objects: fewest and most objects.

    Returns:
        The scene. Equal arguments give equal arrays in every process and on every machine.

    Raises:
        ValueError: for an illegal argument.

    Example:
        >>> scene = render_scene(index=3, size=(48, 64))
        >>> scene.rgb.shape, scene.depth.shape
        ((48, 64, 3), (48, 64))
    """
    return _render(*check_request(seed, split, index, size, objects))
