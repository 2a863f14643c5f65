"""Rays against the four unit primitives of the built-in scenes: sphere, box, cylinder and cone.

Every object of a scene is a unit primitive inside the cube [-1, 1]^3, scaled by its half sizes, rotated and moved.
Rays are taken into that unit frame by the affine map of the object; the ray parameter does not change under an affine
map, so the parameter found here is the depth in metres when the ray direction has z = 1 in the camera frame.

* sphere: x^2 + y^2 + z^2 = 1
* box: max(|x|, |y|, |z|) = 1
* cylinder: x^2 + y^2 = 1 between z = -1 and z = 1, closed by two discs
* cone: base disc of radius 1 at z = -1, apex at z = 1

Vectors are tuples of three arrays (or floats) that broadcast against each other: origins may be scalars and directions
arrays (camera rays), or the other way round (shadow rays). Only operations that IEEE 754 rounds exactly are used
(+, -, *, /, sqrt), so results do not depend on the processor.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

__all__ = ["INTERSECTIONS", "NORMALS", "SHAPES", "Vector"]

Vector = tuple[np.ndarray | float, np.ndarray | float, np.ndarray | float]

# Keeps a quadratic a quadratic where the ray runs along the axis: 0 / 0 becomes a huge, harmless parameter.
_TINY = 1e-280


def _quadratic_roots(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Roots of ``a t^2 + 2 b t + c`` in the form without cancellation; NaN where there are none. Not ordered."""
    root = np.sqrt(b * b - a * c)
    q = -(b + np.copysign(root, b))
    return q / np.where(a == 0, _TINY, a), c / np.where(q == 0, _TINY, q)


def _first(*candidates: np.ndarray) -> np.ndarray:
    """Smallest positive candidate, ``inf`` where none is positive (NaN counts as none)."""
    t = np.full(np.broadcast_shapes(*(c.shape for c in candidates)), np.inf)
    for candidate in candidates:
        np.copyto(t, candidate, where=(candidate > 0) & (candidate < t))
    return t


def _slab(origin: np.ndarray | float, direction: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """Parameters at which rays enter and leave the slab [-1, 1] of one axis."""
    direction = np.where(np.asarray(direction) == 0, _TINY, direction)
    low, high = (-1 - origin) / direction, (1 - origin) / direction
    return np.minimum(low, high), np.maximum(low, high)


def _sphere(o: Vector, d: Vector) -> np.ndarray:
    a = d[0] * d[0] + d[1] * d[1] + d[2] * d[2]
    b = o[0] * d[0] + o[1] * d[1] + o[2] * d[2]
    c = o[0] * o[0] + o[1] * o[1] + o[2] * o[2] - 1
    return _first(*_quadratic_roots(a, b, c))


def _box(o: Vector, d: Vector) -> np.ndarray:
    near, far = _slab(o[0], d[0])
    for axis in (1, 2):
        enter, leave = _slab(o[axis], d[axis])
        near, far = np.maximum(near, enter), np.minimum(far, leave)
    return np.where((near <= far) & (near > 0), near, np.inf)


def _cylinder(o: Vector, d: Vector) -> np.ndarray:
    a = np.asarray(d[0] * d[0] + d[1] * d[1])
    b = o[0] * d[0] + o[1] * d[1]
    c = o[0] * o[0] + o[1] * o[1] - 1
    first, second = _quadratic_roots(a, b, c)
    near, far = _slab(o[2], d[2])
    near, far = np.maximum(near, np.minimum(first, second)), np.minimum(far, np.maximum(first, second))
    return np.where((near <= far) & (near > 0), near, np.inf)


def _cone(o: Vector, d: Vector) -> np.ndarray:
    # The radius falls from 1 to 0 as z goes from -1 to 1: w is that radius along the ray, w = w0 + t dw.
    w0, dw = (1 - o[2]) / 2, -d[2] / 2
    a = np.asarray(d[0] * d[0] + d[1] * d[1] - dw * dw)
    b = o[0] * d[0] + o[1] * d[1] - w0 * dw
    c = o[0] * o[0] + o[1] * o[1] - w0 * w0
    candidates = []
    for t in _quadratic_roots(a, b, c):
        w = w0 + t * dw
        candidates.append(np.where((w >= 0) & (w <= 1), t, np.inf))
    base = (-1 - o[2]) / np.where(np.asarray(d[2]) == 0, _TINY, d[2])
    x, y = o[0] + base * d[0], o[1] + base * d[1]
    candidates.append(np.where(x * x + y * y <= 1, base, np.inf))
    return _first(*candidates)


def _sphere_normal(p: Vector) -> Vector:
    return p


def _box_normal(p: Vector) -> Vector:
    x, y, z = (np.abs(v) for v in p)
    on_x = (x >= y) & (x >= z)
    on_y = ~on_x & (y >= z)
    return (
        np.where(on_x, np.sign(p[0]), 0.0),
        np.where(on_y, np.sign(p[1]), 0.0),
        np.where(on_x | on_y, 0, np.sign(p[2])),
    )


def _cylinder_normal(p: Vector) -> Vector:
    on_cap = p[2] * p[2] > p[0] * p[0] + p[1] * p[1]
    return np.where(on_cap, 0.0, p[0]), np.where(on_cap, 0.0, p[1]), np.where(on_cap, np.sign(p[2]), 0.0)


def _cone_normal(p: Vector) -> Vector:
    radius = np.sqrt(p[0] * p[0] + p[1] * p[1])
    w = (1 - p[2]) / 2
    on_base = p[2] + 1 < w - radius
    # Gradient of sqrt(x^2 + y^2) - (1 - z) / 2, times the radius.
    return np.where(on_base, 0.0, p[0]), np.where(on_base, 0.0, p[1]), np.where(on_base, -1.0, radius / 2)


SHAPES = ("sphere", "box", "cylinder", "cone")

# Ray parameter of the first hit, ``inf`` for a miss. Rays start outside the primitive. Call under
# ``np.errstate(all='ignore')``: rays that miss divide by zero on purpose.
INTERSECTIONS: dict[str, Callable[[Vector, Vector], np.ndarray]] = {
    "sphere": _sphere,
    "box": _box,
    "cylinder": _cylinder,
    "cone": _cone,
}

# Outward normal (not unit) at points of the surface, in the unit frame.
NORMALS: dict[str, Callable[[Vector], Vector]] = {
    "sphere": _sphere_normal,
    "box": _box_normal,
    "cylinder": _cylinder_normal,
    "cone": _cone_normal,
}
