"""Solid textures: patterns in three-dimensional object coordinates, so that no surface needs a parametrisation.

A pattern is a number in [0, 1] per point that blends the two colours of a texture. Patterns use table look-ups, floor
and arithmetic only: the same on every processor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

__all__ = ["PATTERNS", "Texture", "value_noise"]

# RandomState streams are frozen by numpy's policy (those of Generator are not), and so are those of bit generators.
_TABLES = np.random.RandomState(np.random.PCG64(20230606))
_PERMUTATION = np.argsort(_TABLES.random_sample(256), kind="stable").astype(np.intp)
_VALUES = _TABLES.random_sample(256)

Array = np.ndarray


@dataclass(frozen=True)
class Texture:
    """Two linear RGB colours in [0, 1] and the pattern that blends them.

    Attributes:
        pattern: a key of :data:`PATTERNS`.
        colors: two linear RGB triples.
        frequency: cycles per metre.
        offset: shift of the pattern in metres.
    """

    pattern: str
    colors: tuple[tuple[float, float, float], tuple[float, float, float]]
    frequency: float
    offset: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def evaluate(self, x: Array, y: Array, z: Array | float, footprint: Array | float = 0.0) -> tuple[Array, ...]:
        """Colour at points in metres.

        Args:
            x: first coordinate, shape (P,).
            y: second coordinate, shape (P,).
            z: third coordinate, shape (P,) or a number.
            footprint: width in metres that one pixel covers at the point; detail finer than it fades to its mean.

        Returns:
            Red, green and blue, each of shape (P,), linear, in [0, 1].
        """
        f = self.frequency
        x, y, z = (x + self.offset[0]) * f, (y + self.offset[1]) * f, (z + self.offset[2]) * f
        blend = PATTERNS[self.pattern](x, y, z)
        # One cycle is resolved by two pixels at least: fade between four pixels and one pixel a cycle.
        keep = np.clip((1.0 - np.asarray(footprint) * f) * (4 / 3), 0.0, 1.0)
        blend = 0.5 + (blend - 0.5) * keep
        return tuple(a + (b - a) * blend for a, b in zip(*self.colors, strict=True))


def value_noise(x: Array, y: Array, z: Array | float | None = None) -> Array:
    """Smooth noise in [0, 1] with lattice spacing 1, in two dimensions or, with ``z``, in three."""
    cells, weights = [], []
    for v in (x, y) if z is None else (x, y, z):
        cell = np.floor(v)
        t = v - cell
        cells.append(cell.astype(np.intp))
        weights.append(t * t * (3.0 - 2.0 * t))
    corners: list[Array] = []
    for corner in range(1 << len(cells)):
        index: Array | int = 0
        for axis, cell in enumerate(cells):
            index = _PERMUTATION[(index + cell + (corner >> axis & 1)) & 255]
        corners.append(_VALUES[index])
    for t in weights:
        corners = [a + (b - a) * t for a, b in zip(corners[::2], corners[1::2], strict=True)]
    return corners[0]


def _plain(x: Array, y: Array, z: Array | float) -> Array:
    return np.zeros(np.broadcast_shapes(np.shape(x), np.shape(y), np.shape(z)))


def _noise(x: Array, y: Array, z: Array | float) -> Array:
    third = None if np.ndim(z) == 0 else z
    coarse = value_noise(x, y, third)
    fine = value_noise(x * 2.7, y * 2.7, None if third is None else third * 2.7)
    return np.clip(1.6 * (0.65 * coarse + 0.35 * fine) - 0.3, 0.0, 1.0)


def _square_wave(x: Array) -> Array:
    """0 or 1 with period 1, with a short ramp that keeps edges soft."""
    t = x - np.floor(x)
    return np.clip((np.abs(t - 0.5) - 0.25) * 10.0 + 0.5, 0.0, 1.0)


def _stripes(x: Array, y: Array, z: Array | float) -> Array:
    return _square_wave(x) + 0.0 * (y + z)


def _rings(x: Array, y: Array, z: Array | float) -> Array:
    return _square_wave(z) + 0.0 * (x + y)


def _checker(x: Array, y: Array, z: Array | float) -> Array:
    return (np.floor(x) + np.floor(y) + np.floor(z)) % 2


def _dots(x: Array, y: Array, z: Array | float) -> Array:
    square = 0.0
    for v in (x, y, z):
        t = v - np.floor(v) - 0.5
        square = square + t * t
    return np.clip((0.16 - square) * 25.0, 0.0, 1.0)


def _tiles(x: Array, y: Array, z: Array | float) -> Array:
    """Thin joints between square tiles of the x-y plane."""
    edge = np.maximum(np.abs(x - np.floor(x) - 0.5), np.abs(y - np.floor(y) - 0.5))
    return np.clip((edge - 0.44) * 40.0, 0.0, 1.0) + 0.0 * z


PATTERNS: dict[str, Callable[[Array, Array, Array | float], Array]] = {
    "plain": _plain,
    "noise": _noise,
    "stripes": _stripes,
    "rings": _rings,
    "checker": _checker,
    "dots": _dots,
    "tiles": _tiles,
}
