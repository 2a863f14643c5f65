"""The scene generator against plain formulas: rays, normals, hidden surfaces, shadows, boundaries."""

import math

import numpy as np
import pytest

from mmvit_plugins.datasets.scenes import Scene
from mmvit_plugins.datasets.scenes.sampling import Camera, SceneObject, SceneSpec
from mmvit_plugins.datasets.scenes.shading import shade
from mmvit_plugins.datasets.scenes.textures import Texture
from mmvit_plugins.datasets.scenes.tracing import BACKGROUND, FAR, FIRST_OBJECT, GROUND, trace

GRAY = Texture("plain", ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)), 1.0)
HEIGHT = 1.6


def spec_of(*objects: SceneObject, sun=(0.0, 0.0, 1.0)) -> SceneSpec:
    """Objects before a camera 1.6 m above the ground that looks straight ahead; a focal length of half the image."""
    level = Camera(height=HEIGHT, rotation=((1, 0, 0), (0, 0, -1), (0, 1, 0)), half_view=1.0)
    gray = (0.5, 0.5, 0.5)
    return SceneSpec(0, "train", 0, level, objects, GRAY, (gray,) * 3, (0.0, 0.0), sun, gray, gray, 0.0)


def item(shape: str, center, half_size, turn=0.0) -> SceneObject:
    c, s = math.cos(turn), math.sin(turn)
    return SceneObject(shape, center, ((c, -s, 0), (s, c, 0), (0, 0, 1)), half_size, GRAY, 0.0)


def ray(geometry, v, u):
    k = geometry.intrinsics
    return np.array([(u - k[0, 2]) / k[0, 0], (v - k[1, 2]) / k[1, 1], 1.0])


def world(p):
    """Camera point to world point for the level camera."""
    return np.array([p[0], p[2], HEIGHT - p[1]])


SIZE = (101, 141)


def object_pixels(geometry, count=40):
    pixels = np.argwhere(geometry.surface == FIRST_OBJECT)
    assert len(pixels) > 200  # the object is in view
    return pixels[np.linspace(0, len(pixels) - 1, count).astype(int)]


def test_ground_depth_and_normal_follow_from_the_horizon():
    geometry = trace(spec_of(), SIZE)
    k = geometry.intrinsics
    for v, u in ((51, 3), (60, 70), (100, 140)):
        depth = HEIGHT * k[1, 1] / (v - k[1, 2])  # similar triangles: depth / height = focal / rows below the horizon
        if depth > FAR:
            assert geometry.surface[v, u] == BACKGROUND
            continue
        assert geometry.surface[v, u] == GROUND
        assert geometry.depth[v, u] == pytest.approx(depth, rel=1e-12)
        assert geometry.normals[:, v, u] == pytest.approx([0, -1, 0])
    assert (geometry.surface[:51] == BACKGROUND).all()


def test_sphere():
    center, radius = np.array([0.4, 5.0, 1.2]), 1.2
    geometry = trace(spec_of(item("sphere", tuple(center), (radius,) * 3)), SIZE)
    center_camera = np.array([center[0], HEIGHT - center[2], center[1]])
    for v, u in object_pixels(geometry):
        d = ray(geometry, v, u)
        # |t d - c|^2 = r^2
        b, a, c = d @ center_camera, d @ d, center_camera @ center_camera - radius**2
        t = (b - math.sqrt(b * b - a * c)) / a
        assert geometry.depth[v, u] == pytest.approx(t, rel=1e-9)
        assert geometry.normals[:, v, u] == pytest.approx((t * d - center_camera) / radius, abs=1e-6)


def test_box_by_its_six_planes():
    center, half, turn = np.array([-0.5, 4.0, 0.7]), np.array([0.8, 0.6, 0.7]), 0.6
    geometry = trace(spec_of(item("box", tuple(center), tuple(half), turn)), SIZE)
    axes = np.array([[math.cos(turn), math.sin(turn), 0], [-math.sin(turn), math.cos(turn), 0], [0, 0, 1]])
    origin = np.array([0, 0, HEIGHT])
    faces = set()
    for v, u in object_pixels(geometry, 80):
        direction = world(ray(geometry, v, u)) - origin
        best, normal = math.inf, None
        for axis, h in zip(axes, half, strict=True):
            for sign in (-1, 1):
                t = (axis @ (center - origin) + sign * h) / (axis @ direction)
                inside = np.abs(axes @ (origin + t * direction - center)) <= half + 1e-9
                if 0 < t < best and inside.all():
                    best, normal = t, sign * axis
        assert geometry.depth[v, u] == pytest.approx(best, rel=1e-9)
        assert geometry.normals[:, v, u] == pytest.approx([normal[0], -normal[2], normal[1]], abs=1e-9)
        faces.add(tuple(normal.round(3)))
    assert len(faces) == 3  # the pixels cover both sides and the top


def test_cylinder_side_and_top():
    center, radius, half = np.array([0.3, 4.5, 0.6]), 0.7, 0.6
    geometry = trace(spec_of(item("cylinder", tuple(center), (radius, radius, half))), SIZE)
    origin, parts = np.array([0, 0, HEIGHT]), set()
    for v, u in object_pixels(geometry, 80):
        direction = world(ray(geometry, v, u)) - origin
        top = (center[2] + half - HEIGHT) / direction[2] if direction[2] else math.inf
        on_top = origin + top * direction if np.isfinite(top) else None
        if on_top is not None and top > 0 and np.hypot(*(on_top - center)[:2]) <= radius:
            expected, normal = top, np.array([0, 0, 1.0])
        else:
            a, b = direction[:2] @ direction[:2], direction[:2] @ (origin - center)[:2]
            c = (origin - center)[:2] @ (origin - center)[:2] - radius**2
            expected = (-b - math.sqrt(b * b - a * c)) / a
            normal = (origin + expected * direction - center) * [1, 1, 0] / radius
        parts.add(normal[2])
        assert geometry.depth[v, u] == pytest.approx(expected, rel=1e-9)
        assert geometry.normals[:, v, u] == pytest.approx([normal[0], -normal[2], normal[1]], abs=1e-6)
    assert parts == {0.0, 1.0}


def test_cone_points_lie_on_it_with_the_right_normal():
    center, radius, half = np.array([-0.2, 4.0, 0.9]), 0.8, 0.9
    geometry = trace(spec_of(item("cone", tuple(center), (radius, radius, half))), SIZE)
    apex = center + [0, 0, half]
    for v, u in object_pixels(geometry, 60):
        d = ray(geometry, v, u)
        point = world(geometry.depth[v, u] * d)
        below = apex[2] - point[2]
        assert 0 <= below <= 2 * half + 1e-9
        assert np.hypot(*(point - center)[:2]) == pytest.approx(radius * below / (2 * half), abs=1e-9)
        # Nothing of the cone is nearer on the ray: the distance to the cone keeps its sign on the way.
        before = np.linspace(0.5, 0.999, 200)[:, None] * (point - [0, 0, HEIGHT]) + [0, 0, HEIGHT]
        depth_below = apex[2] - before[:, 2]
        outside = np.hypot(*(before - center)[:, :2].T) > radius * depth_below / (2 * half)
        assert (outside | (depth_below < 0) | (depth_below > 2 * half)).all()
        # The normal: outwards and up in the ratio radius : height.
        outwards = (point - center)[:2] / np.hypot(*(point - center)[:2])
        normal = np.array([*outwards * 2 * half, radius]) / math.hypot(2 * half, radius)
        assert geometry.normals[:, v, u] == pytest.approx([normal[0], -normal[2], normal[1]], abs=1e-6)


def test_lying_cylinder_shows_its_end():
    lying = SceneObject("cylinder", (0, 4, 0.5), ((0, 1, 0), (0, 0, -1), (1, 0, 0)), (0.5, 0.5, 1.0), GRAY, 0.0)
    # Its z axis, column 2, points at the camera: the end disc is seen face on, 1 m before the centre.
    geometry = trace(spec_of(lying), SIZE)
    v, u = object_pixels(geometry)[20]
    assert geometry.depth[v, u] == pytest.approx(3.0)
    assert geometry.normals[:, v, u] == pytest.approx([0, 0, -1])


def test_nearer_object_hides_the_farther_one():
    near, far = item("sphere", (0.0, 3.0, 1.0), (0.5,) * 3), item("box", (0.0, 6.0, 1.0), (2.0, 0.5, 1.0))
    for order in ((near, far), (far, near)):
        geometry = trace(spec_of(*order), SIZE)
        v, u = round(50 + 50 * 0.6 / 3), 70
        assert geometry.surface[v, u] == FIRST_OBJECT + order.index(near)
        assert geometry.depth[v, u] < 3.0


def test_shadow_lies_where_the_sun_says():
    """A pole under a sun at 45 degrees on its left throws a shadow as long as it is high, to its right."""
    pole = item("cylinder", (0.0, 4.0, 0.75), (0.1, 0.1, 0.75))
    side = 1 / math.sqrt(2)
    spec = spec_of(pole, sun=(-side, 0.0, side))
    geometry = trace(spec, (201, 201))
    image = shade(spec, geometry).astype(int)
    k = geometry.intrinsics
    row = round(k[1, 2] + k[1, 1] * HEIGHT / 4.0)

    def brightness(x):
        return image[row, round(k[0, 2] + k[0, 0] * x / 4.0), 0]

    # The sun gives half of the light here; the mottled ground varies by a few per cent.
    assert max(brightness(0.3), brightness(0.7), brightness(1.2)) < 145
    assert min(brightness(-0.7), brightness(1.9), brightness(2.5)) > 150


def test_occlusion_boundary_marks_the_outline_but_not_the_contact():
    """A box on the ground: its sides and top hide what is behind, its foot hides nothing."""
    geometry_spec = spec_of(item("box", (0.0, 4.0, 0.5), (0.8, 0.5, 0.5)))
    scene = Scene(geometry_spec, (200, 200))
    boundary, mask = scene.boundary, scene.masks[0]
    left, top, right, bottom = scene.boxes[0].astype(int)
    assert (boundary <= mask).all()
    assert boundary[top, left + 12 : right - 12].all()
    middle = (top + bottom) // 2 + 8
    assert boundary[middle, left:right].nonzero()[0].tolist() in ([0, right - left - 1],)
    assert not boundary[bottom - 1, left + 3 : right - 3].any()
    assert boundary[top + 2 : bottom - 2, left + 20 : right - 20].sum() == 0  # nothing inside


def test_boundary_of_a_hidden_object_belongs_to_the_nearer_one():
    near, far = item("sphere", (0.0, 3.0, 1.0), (0.5,) * 3), item("box", (0.0, 6.0, 1.0), (2.0, 0.5, 1.0))
    scene = Scene(spec_of(near, far), (200, 200))
    left, _, right, _ = scene.boxes[0].astype(int)
    row = scene.boundary[int(100 + 100 * 0.6 / 3)]
    assert row[left] and row[right - 1]
    assert not row[left - 3 : left].any() and not row[right : right + 3].any()
