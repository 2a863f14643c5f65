"""From geometry to a photograph: textures, sunlight with cast shadows, sky, haze, lens blur and sensor noise."""

from __future__ import annotations

import numpy as np

from .primitives import Vector
from .sampling import SceneSpec, random_stream
from .textures import value_noise
from .tracing import BACKGROUND, FAR, FIRST_OBJECT, GROUND, Geometry, product, window_of

__all__ = ["shade"]

_HAZE_START = 8.0  # metres


def shade(spec: SceneSpec, geometry: Geometry) -> np.ndarray:
    """The image of a traced scene.

    Args:
        spec: the scene.
        geometry: result of :func:`~mmvit_plugins.datasets.scenes.tracing.trace` for it.

    Returns:
        RGB, uint8 (H, W, 3).
    """
    size = geometry.surface.shape
    world_to_camera = np.array(spec.camera.rotation)
    sun = product(world_to_camera, np.array(spec.sun)[:, None])[:, 0]
    facing = np.maximum(sum(n * s for n, s in zip(geometry.normals, sun, strict=True)), 0.0)
    lit = facing * ~_shadow(spec, geometry, sun, facing > 0)
    # The sky is brighter than the ground: surfaces that look up receive more of the ambient light.
    up = world_to_camera[:, 2]
    sky_share = 0.7 + 0.3 * sum(n * u for n, u in zip(geometry.normals, up, strict=True))

    linear = np.empty((3, *size))
    _paint_sky(spec, geometry, linear)
    _paint_ground(spec, geometry, linear)
    for number in range(len(spec.objects)):
        _paint_object(spec, geometry, number, linear)
    solid = geometry.surface != BACKGROUND
    for channel in range(3):
        light = spec.ambient[channel] * sky_share + spec.sun_color[channel] * lit
        linear[channel][solid] *= light[solid]
    for number in range(len(spec.objects)):
        _add_gloss(spec, geometry, number, sun, lit, linear)
    _add_haze(spec, geometry, linear)
    return _expose(spec, linear)


def _shadow(spec: SceneSpec, geometry: Geometry, sun: np.ndarray, facing: np.ndarray) -> np.ndarray:
    """Bool (H, W): points that another object hides from the sun."""
    size = geometry.surface.shape
    x, y = geometry.rays
    up = np.array(spec.camera.rotation)[:, 2]
    shadow = np.zeros(size, dtype=bool)
    candidates = facing & (geometry.surface != BACKGROUND)
    for number, frame in enumerate(geometry.frames):
        # The shadow lies between the object and its projection on the ground along the light.
        height = spec.camera.height + (frame.corners * up).sum(axis=1)
        on_ground = frame.corners - (height / spec.sun[2])[:, None] * sun
        rows, columns = window_of(np.concatenate([frame.corners, on_ground]), geometry.intrinsics, size)
        # A convex object shades itself only where it faces away, which `facing` covers already.
        tested = candidates[rows, columns] & (geometry.surface[rows, columns] != FIRST_OBJECT + number)
        v, u = np.nonzero(tested & ~shadow[rows, columns])
        v, u = v + rows.start, u + columns.start
        depth = geometry.depth[v, u]
        origin = frame.points(x[0, u] * depth, y[v, 0] * depth, depth)
        direction = tuple(product(frame.to_unit, sun[:, None])[:, 0])
        shadow[v, u] = np.isfinite(frame.hit(origin, direction))
    return shadow


def _paint_sky(spec: SceneSpec, geometry: Geometry, linear: np.ndarray) -> None:
    """A gradient with clouds, and hills along the horizon."""
    v, u = np.nonzero(geometry.surface == BACKGROUND)
    x, y = geometry.rays
    x, y = x[0, u], y[v, 0]
    rotation = np.array(spec.camera.rotation)
    elevation = rotation[0, 2] * x + rotation[1, 2] * y + rotation[2, 2]
    horizon, zenith, hill = spec.sky
    scale, shift = spec.hills
    height = np.clip(elevation * 2.2, 0.0, 1.0)
    cloud = np.clip(value_noise(3.0 * x + shift, 9.0 * elevation + 17.0) * 2.2 - 1.1, 0.0, 1.0) * 0.6
    ridge = scale + 0.08 * (value_noise(4.0 * x + shift, np.zeros_like(x)) - 0.3)
    grain = 0.8 + 0.4 * value_noise(40.0 * x + shift, 40.0 * elevation)
    for channel in range(3):
        sky = horizon[channel] + (zenith[channel] - horizon[channel]) * height
        sky = sky + (0.9 - sky) * cloud
        below = (0.5 * hill[channel] + 0.25 * horizon[channel]) * grain
        linear[channel][v, u] = np.where(elevation < ridge, below, sky)


def _paint_ground(spec: SceneSpec, geometry: Geometry, linear: np.ndarray) -> None:
    v, u = np.nonzero(geometry.surface == GROUND)
    x, y = geometry.rays
    depth = geometry.depth[v, u]
    rotation = np.array(spec.camera.rotation)
    cx, cy = x[0, u] * depth, y[v, 0] * depth
    across, along = (rotation[0, i] * cx + rotation[1, i] * cy + rotation[2, i] * depth for i in (0, 1))
    # A pixel row covers about depth^2 / (focal length x camera height) metres of ground.
    footprint = depth * depth / (geometry.intrinsics[0, 0] * spec.camera.height)
    color = spec.ground.evaluate(across, along, 0.0, footprint)
    mottle = 0.85 + 0.3 * value_noise(across * 1.7 + 31.0, along * 1.7)
    for channel in range(3):
        linear[channel][v, u] = color[channel] * mottle


def _object_pixels(geometry: Geometry, number: int) -> tuple[np.ndarray, np.ndarray, Vector]:
    """Rows, columns and camera points of the pixels that show one object."""
    v, u = np.nonzero(geometry.surface == FIRST_OBJECT + number)
    x, y = geometry.rays
    depth = geometry.depth[v, u]
    return v, u, (x[0, u] * depth, y[v, 0] * depth, depth)


def _paint_object(spec: SceneSpec, geometry: Geometry, number: int, linear: np.ndarray) -> None:
    item, frame = spec.objects[number], geometry.frames[number]
    v, u, point = _object_pixels(geometry, number)
    own = tuple(p * h for p, h in zip(frame.points(*point), item.half_size, strict=True))
    footprint = point[2] / geometry.intrinsics[0, 0]
    for channel, value in enumerate(item.texture.evaluate(*own, footprint)):
        linear[channel][v, u] = value


def _add_gloss(
    spec: SceneSpec, geometry: Geometry, number: int, sun: np.ndarray, lit: np.ndarray, linear: np.ndarray
) -> None:
    """A Blinn-Phong highlight with exponent 32, on glossy objects where the sun reaches them."""
    gloss = spec.objects[number].gloss
    if gloss == 0:
        return
    v, u, (x, y, z) = _object_pixels(geometry, number)
    distance = np.sqrt(x * x + y * y + z * z)
    half = [s - p / distance for s, p in zip(sun, (x, y, z), strict=True)]
    length = np.sqrt(half[0] ** 2 + half[1] ** 2 + half[2] ** 2)
    cosine = sum(h * geometry.normals[i][v, u] for i, h in enumerate(half)) / np.maximum(length, 1e-12)
    highlight = np.maximum(cosine, 0.0)
    for _ in range(5):
        highlight = highlight * highlight
    highlight = gloss * highlight * (lit[v, u] > 0)
    for channel in range(3):
        linear[channel][v, u] += spec.sun_color[channel] * highlight


def _add_haze(spec: SceneSpec, geometry: Geometry, linear: np.ndarray) -> None:
    """Blend far surfaces into the horizon, so that the ground does not end in an edge."""
    share = np.clip((geometry.depth - _HAZE_START) / (FAR - _HAZE_START), 0.0, 1.0)
    share = np.where(geometry.surface == BACKGROUND, 0.0, 0.8 * share)
    for channel in range(3):
        linear[channel] += (spec.sky[0][channel] - linear[channel]) * share


def _expose(spec: SceneSpec, linear: np.ndarray) -> np.ndarray:
    """Lens blur, sensor noise and the display curve (square root): linear (3, H, W) to uint8 (H, W, 3)."""
    _, height, width = linear.shape
    image = np.sqrt(np.clip(linear, 0.0, 1.0))
    padded = np.pad(image, ((0, 0), (1, 1), (1, 1)), mode="edge")
    image = 0.7 * padded[:, 1:-1] + 0.15 * (padded[:, :-2] + padded[:, 2:])
    image = 0.7 * image[:, :, 1:-1] + 0.15 * (image[:, :, :-2] + image[:, :, 2:])
    image += _sensor_noise(spec, height, width)
    return np.ascontiguousarray(np.clip(image * 255.0 + 0.5, 0.0, 255.0).astype(np.uint8).transpose(1, 2, 0))


def _sensor_noise(spec: SceneSpec, height: int, width: int) -> np.ndarray:
    """Near-Gaussian noise (3, H, W): sums of four random bytes, exact and cheap."""
    count = 3 * height * width
    words = random_stream(spec.seed, spec.split, spec.index, purpose=1).randint(0, 2**32, size=count, dtype=np.uint32)
    total = (words & 0xFF) + (words >> 8 & 0xFF) + (words >> 16 & 0xFF) + (words >> 24)
    deviation = 2.0 * 73.9  # of the sum of four uniform bytes
    return (total.astype(np.float64) - 510.0).reshape(3, height, width) * (spec.noise / deviation)
