"""What is in a scene: camera, light, ground, sky and objects, drawn from (seed, split, index) and nothing else.

Lengths are metres. World axes: x right, y forward, z up, the ground is z = 0 and the camera stands above the origin.
Camera axes: x right, y down, z forward. A scene does not depend on the image size: another size shows the same
scene, framed so that the central square stays the same.
"""

from __future__ import annotations

import colorsys
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .primitives import SHAPES
from .textures import Texture

__all__ = ["SPLITS", "Camera", "SceneObject", "SceneSpec", "random_stream", "sample_main_shape", "sample_scene"]

SPLITS = ("train", "val", "test")

# Each shape has a pattern and a hue that it wears more often than the others do. The shares are such
# that neither a colour nor a texture gives the shape away.
_OWN_PATTERN = {"sphere": "dots", "box": "checker", "cylinder": "stripes", "cone": "rings"}
_OWN_HUE = {"sphere": 0.02, "box": 0.58, "cylinder": 0.13, "cone": 0.36}
_OWN_PATTERN_SHARE, _OWN_HUE_SHARE = 0.5, 0.2
_PATTERNS = ("plain", "noise", "dots", "checker", "stripes", "rings")
_GROUND_PATTERNS = ("noise", "checker", "stripes", "tiles", "plain", "dots")

# An object that finds no free place in so many tries is left out.
_TRIES = 25

Vector3 = tuple[float, float, float]


@dataclass(frozen=True)
class Camera:
    """Pinhole camera above the origin of the world.

    Attributes:
        height: metres above the ground.
        rotation: rows are the camera's x, y and z axes in world coordinates, shape (3, 3).
        half_view: tangent of half the angle that the shorter image side sees.
    """

    height: float
    rotation: tuple[Vector3, Vector3, Vector3]
    half_view: float

    def intrinsics(self, size: tuple[int, int]) -> np.ndarray:
        """Matrix K, float64 (3, 3), for an image of ``size`` = (height, width); pixel centres are at integers."""
        height, width = size
        focal = 0.5 * min(height, width) / self.half_view
        return np.array([[focal, 0, (width - 1) / 2], [0, focal, (height - 1) / 2], [0, 0, 1]], dtype=np.float64)


@dataclass(frozen=True)
class SceneObject:
    """A unit primitive, scaled by ``half_size`` (metres), turned by ``rotation`` (columns = own axes in the world)
    and moved to ``center`` (world)."""

    shape: str
    center: Vector3
    rotation: tuple[Vector3, Vector3, Vector3]
    half_size: Vector3
    texture: Texture
    gloss: float


@dataclass(frozen=True)
class SceneSpec:
    """All that rendering needs. ``objects[0]`` is the main object: the largest, near the middle, hardly hidden."""

    seed: int
    split: str
    index: int
    camera: Camera
    objects: tuple[SceneObject, ...]
    ground: Texture
    sky: tuple[Vector3, Vector3, Vector3]
    hills: tuple[float, float]
    sun: Vector3
    sun_color: Vector3
    ambient: Vector3
    noise: float


def random_stream(seed: int, split: str, index: int, purpose: int = 0) -> np.random.RandomState:
    """Random numbers for one scene. The split is part of the key, so splits never share a scene.

    RandomState on PCG64: numpy keeps both streams unchanged between versions, which it does not promise for Generator.
    """
    return np.random.RandomState(_bits(seed, split, index, purpose))


def _bits(seed: int, split: str, index: int, purpose: int) -> np.random.PCG64:
    return np.random.PCG64(np.random.SeedSequence((seed, SPLITS.index(split), index, purpose)))


def sample_main_shape(seed: int, split: str, index: int) -> str:
    """Shape of the main object, without drawing the rest of the scene."""
    return SHAPES[random_stream(seed, split, index).randint(len(SHAPES))]


@lru_cache(maxsize=256)
def sample_scene(seed: int, split: str, index: int, objects: tuple[int, int] = (3, 6)) -> SceneSpec:
    """Draw one scene.

    Args:
        seed: 0 to 2^32 - 1.
        split: 'train', 'val' or 'test'.
        index: number of the scene within its split, from 0.
        objects: least and greatest number of objects wanted. Crowded scenes may hold fewer, never less than one.

    Returns:
        The scene. Equal arguments give equal scenes on every machine.
    """
    rng = random_stream(seed, split, index)
    main_shape = SHAPES[rng.randint(len(SHAPES))]  # first draw: see sample_main_shape
    camera = _sample_camera(rng)
    wanted = rng.randint(objects[0], objects[1] + 1)
    sun_height, sun_side = math.radians(rng.uniform(30, 65)), math.radians(rng.uniform(0, 360))
    sun = (math.cos(sun_height) * math.sin(sun_side), math.cos(sun_height) * math.cos(sun_side), math.sin(sun_height))
    warmth = rng.uniform(-0.08, 0.12)
    strength, ambient = rng.uniform(0.75, 1.1), rng.uniform(0.25, 0.42)
    return SceneSpec(
        seed=seed,
        split=split,
        index=index,
        camera=camera,
        objects=_place_objects(rng, camera, main_shape, wanted),
        ground=_sample_ground(rng),
        sky=_sample_sky(rng),
        hills=(rng.uniform(-0.02, 0.12), rng.uniform(0, 256)),
        sun=sun,
        sun_color=(strength * (1 + warmth), strength, strength * (1 - warmth)),
        ambient=(ambient * (1 - warmth), ambient, ambient * (1 + warmth)),
        noise=rng.uniform(0.006, 0.022),
    )


def _sample_camera(rng: np.random.RandomState) -> Camera:
    height, half_view = rng.uniform(1.4, 1.9), math.tan(math.radians(rng.uniform(24, 30)))
    pitch, roll = math.radians(rng.uniform(12, 22)), math.radians(rng.uniform(-4, 4))
    forward = (0.0, math.cos(pitch), -math.sin(pitch))
    down = (0.0, -math.sin(pitch), -math.cos(pitch))
    c, s = math.cos(roll), math.sin(roll)
    right = (c, s * down[1], s * down[2])
    down = (-s, c * down[1], c * down[2])
    return Camera(height=height, rotation=(right, down, forward), half_view=half_view)


def _color(rng: np.random.RandomState, hue: float | None = None, muted: bool = False) -> Vector3:
    """A linear RGB colour: the square of a display value, because the display curve is a square root."""
    hue = rng.uniform() if hue is None else (hue + rng.uniform(-0.06, 0.06)) % 1.0
    saturation = rng.uniform(0.05, 0.4) if muted else rng.uniform(0.35, 0.95)
    red, green, blue = colorsys.hsv_to_rgb(hue, saturation, rng.uniform(0.45, 0.95))
    return red * red, green * green, blue * blue


def _sample_texture(rng: np.random.RandomState, shape: str, size: float) -> Texture:
    own_pattern, own_hue = rng.uniform() < _OWN_PATTERN_SHARE, rng.uniform() < _OWN_HUE_SHARE
    other = _PATTERNS[rng.randint(len(_PATTERNS))]
    first = _color(rng, _OWN_HUE[shape] if own_hue else None)
    second = _color(rng, muted=rng.uniform() < 0.5)
    return Texture(
        pattern=_OWN_PATTERN[shape] if own_pattern else other,
        colors=(first, second),
        frequency=rng.uniform(1.6, 3.2) / size,
        offset=(rng.uniform(), rng.uniform(), rng.uniform()),
    )


def _sample_ground(rng: np.random.RandomState) -> Texture:
    base = _color(rng, muted=rng.uniform() < 0.85)
    contrast = rng.uniform(0.55, 0.85)
    return Texture(
        pattern=_GROUND_PATTERNS[rng.randint(len(_GROUND_PATTERNS))],
        colors=(base, tuple(contrast * v for v in base)),
        frequency=rng.uniform(0.5, 1.6),
        offset=(rng.uniform(0, 64), rng.uniform(0, 64), rng.uniform()),
    )


def _sample_sky(rng: np.random.RandomState) -> tuple[Vector3, Vector3, Vector3]:
    """Colours at the horizon, at the zenith and of the hills."""
    hue = None if rng.uniform() < 0.3 else 0.58
    zenith = _color(rng, hue, muted=hue is None or rng.uniform() < 0.5)
    horizon = tuple(0.35 * v + 0.55 for v in zenith)
    return horizon, zenith, _color(rng, muted=True)


def _place_objects(rng: np.random.RandomState, camera: Camera, main_shape: str, wanted: int) -> tuple[SceneObject, ...]:
    """The main object first, then others that stand apart from it and leave enough of each other to see."""
    placed: list[SceneObject] = []
    frames: list[tuple[float, float, float, float, float]] = []
    while not placed or len(placed) < wanted:
        is_main = not placed
        for _ in range(10):
            candidate = _sample_object(
                rng, camera, main_shape if is_main else SHAPES[rng.randint(len(SHAPES))], is_main
            )
            frame = _frame(candidate, camera)
            if is_main or _fits(candidate, frame, placed, frames):
                placed.append(candidate)
                frames.append(frame)
                break
        else:
            break
    return tuple(placed)


def _sample_object(rng: np.random.RandomState, camera: Camera, shape: str, is_main: bool) -> SceneObject:
    """An object that stands where the view ray through a random image point meets the ground."""
    if is_main:
        u, v, share = rng.uniform(-0.35, 0.35), rng.uniform(0.2, 0.55), rng.uniform(0.4, 0.6)
    else:
        u, v, share = rng.uniform(-0.9, 0.9), rng.uniform(-0.15, 0.75), rng.uniform(0.16, 0.34)
    right, down, forward = camera.rotation
    ray = [
        u * camera.half_view * r + v * camera.half_view * d + f for r, d, f in zip(right, down, forward, strict=True)
    ]
    depth = min(-camera.height / min(ray[2], -0.05), 11.0)
    size = share * 2 * camera.half_view * depth
    half_size, rotation = _sample_pose(rng, shape, size)
    lift = sum(abs(row) * h for row, h in zip(rotation[2], half_size, strict=True))
    return SceneObject(
        shape=shape,
        center=(ray[0] * depth, ray[1] * depth, lift),
        rotation=rotation,
        half_size=half_size,
        texture=_sample_texture(rng, shape, size),
        gloss=rng.uniform(0.0, 0.6) if rng.uniform() < 0.6 else 0.0,
    )


def _sample_pose(
    rng: np.random.RandomState, shape: str, size: float
) -> tuple[Vector3, tuple[Vector3, Vector3, Vector3]]:
    """Half sizes and rotation of an object of about ``size`` metres; one cylinder in four lies on its side."""
    turn = math.radians(rng.uniform(0, 360))
    c, s = math.cos(turn), math.sin(turn)
    upright = ((c, -s, 0.0), (s, c, 0.0), (0.0, 0.0, 1.0))
    if shape == "sphere":
        half = 0.45 * size
        return (half, half, half), upright
    if shape == "box":
        return tuple(size * rng.uniform(0.25, 0.42) for _ in range(3)), upright
    radius, height = size * rng.uniform(0.26, 0.4), size * rng.uniform(0.42, 0.6)
    if shape == "cylinder" and rng.uniform() < 0.25:
        # own z axis along a horizontal direction, own x axis up
        return (radius, radius, height), ((0.0, s, c), (0.0, -c, s), (1.0, 0.0, 0.0))
    if shape == "cone":
        radius *= 1.25
    return (radius, radius, height), upright


def _frame(item: SceneObject, camera: Camera) -> tuple[float, float, float, float, float]:
    """Rough image rectangle (left, top, right, bottom in tangents) and depth of an object."""
    x, y, z = item.center[0], item.center[1], item.center[2] - camera.height
    cx, cy, cz = (axis[0] * x + axis[1] * y + axis[2] * z for axis in camera.rotation)
    radius = 0.9 * max(item.half_size)
    return (cx - radius) / cz, (cy - radius) / cz, (cx + radius) / cz, (cy + radius) / cz, cz


def _footprint(item: SceneObject) -> float:
    """Radius of the circle on the ground that holds an object's outline from above."""
    x, y, z = item.half_size
    if item.shape == "box":
        return math.hypot(x, y)
    lies = item.rotation[2][2] == 0
    return math.hypot(y, z) if lies else x


def _fits(
    candidate: SceneObject,
    frame: tuple[float, float, float, float, float],
    placed: list[SceneObject],
    frames: list[tuple[float, float, float, float, float]],
) -> bool:
    """Whether an object keeps clear of the others in space and hides, or is hidden, only in part."""
    left, top, right, bottom, depth = frame
    area = (right - left) * (bottom - top)
    for number, (other, (l2, t2, r2, b2, depth2)) in enumerate(zip(placed, frames, strict=True)):
        apart = math.hypot(candidate.center[0] - other.center[0], candidate.center[1] - other.center[1])
        if apart < 1.05 * (_footprint(candidate) + _footprint(other)):
            return False
        area2 = (r2 - l2) * (b2 - t2)
        if number == 0 and area > 0.6 * area2:
            return False
        shared = max(0.0, min(right, r2) - max(left, l2)) * max(0.0, min(bottom, b2) - max(top, t2))
        hidden, limit = (shared / area, 0.55) if depth2 < depth else (shared / area2, 0.25 if number == 0 else 0.55)
        if hidden > limit:
            return False
    return True
