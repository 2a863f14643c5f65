"""Scenes as a whole: annotations that agree with each other, equal results everywhere, nothing to learn from colour."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmvit_plugins.datasets.scenes import CLASSES, SHAPES, render_scene, sample_scene
from mmvit_plugins.datasets.scenes.sampling import sample_main_shape
from mmvit_plugins.datasets.scenes.textures import PATTERNS, Texture, value_noise
from mmvit_plugins.datasets.scenes.tracing import BACKGROUND, FIRST_OBJECT

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("size", [(128, 128), (60, 97), (31, 16), (1, 1), (3, 200)])
def test_annotations_agree_with_each_other(size):
    for index in range(12):
        scene = render_scene(0, "val", index, size)
        assert scene.rgb.shape == (*size, 3) and scene.rgb.dtype == np.uint8
        masks, boxes, labels = scene.masks, scene.boxes, scene.box_labels
        assert masks.sum(axis=0).max(initial=0) <= 1  # disjoint
        semantic = scene.semantic
        for label in range(len(SHAPES)):
            union = masks[labels == label].any(axis=0) if (labels == label).any() else np.zeros(size, bool)
            assert (union == (semantic == CLASSES.index(SHAPES[label]))).all()
        for mask, (left, top, right, bottom) in zip(masks, boxes.astype(int), strict=True):
            assert mask[top:bottom, left:right].sum() == mask.sum() > 0
            for edge in (mask[top], mask[bottom - 1], mask[:, left], mask[:, right - 1]):
                assert edge.any()  # tight
        assert (scene.saliency == (scene.surface == FIRST_OBJECT)).all()
        assert scene.label == SHAPES.index(sample_main_shape(0, "val", index))
        if 0 in scene.visible:
            assert scene.box_labels[0] == scene.label
        nothing = semantic == CLASSES.index("background")
        assert ((scene.depth == 0) == nothing).all()


def test_normals_are_unit_and_face_the_camera():
    for index in range(10):
        scene = render_scene(1, "train", index, (64, 80))
        x, y = scene.geometry.rays
        solid = scene.depth > 0
        normals = scene.normals
        np.testing.assert_allclose(np.linalg.norm(normals, axis=2)[solid], 1, atol=1e-6)
        assert (normals[~solid] == 0).all()
        towards = normals[..., 0] * x + normals[..., 1] * y + normals[..., 2]
        assert (towards[solid] < 1e-6).all()


def test_normals_agree_with_the_depth_map():
    """Away from edges, the cross product of neighbouring points gives the same normals."""
    scene = render_scene(2, "train", 0, (256, 256))
    x, y = scene.geometry.rays
    depth = scene.geometry.depth
    points = np.stack([x * depth, y * depth, depth], axis=-1)
    with np.errstate(invalid="ignore"):
        cross = np.cross(points[1:-1, 2:] - points[1:-1, :-2], points[2:, 1:-1] - points[:-2, 1:-1])
        cross /= np.linalg.norm(cross, axis=-1, keepdims=True)
        cosine = np.abs((cross * scene.normals[1:-1, 1:-1]).sum(axis=-1))
    surface = scene.surface
    same = np.ones_like(surface[1:-1, 1:-1], dtype=bool)
    for dv, du in ((0, 1), (2, 1), (1, 0), (1, 2)):
        same &= surface[dv : dv + 254, du : du + 254] == surface[1:-1, 1:-1]
    same &= surface[1:-1, 1:-1] != BACKGROUND
    assert same.sum() > 20000
    assert (cosine[same] > 0.99).mean() > 0.97  # the rest lies on the creases of boxes and cylinders


def test_point_cloud_projects_back_to_the_depth_map():
    scene = render_scene(0, "train", 5, (72, 100))
    points, k = scene.points.astype(np.float64), scene.intrinsics.astype(np.float64)
    pixels = points @ k.T
    u, v = (pixels[:, :2] / pixels[:, 2:]).T
    np.testing.assert_allclose(u, u.round(), atol=1e-3)
    image = np.zeros(scene.size, dtype=np.float32)
    labels = np.zeros(scene.size, dtype=np.int64)
    image[v.round().astype(int), u.round().astype(int)] = points[:, 2]
    labels[v.round().astype(int), u.round().astype(int)] = scene.point_labels
    assert (image == scene.depth).all()
    assert (labels == scene.semantic).all()


@given(seed=st.integers(0, 2**32 - 1), index=st.integers(0, 2**32 - 1), split=st.sampled_from(["train", "val", "test"]))
@settings(max_examples=60, deadline=None)
def test_every_scene_is_well_formed(seed, index, split):
    spec = sample_scene(seed, split, index)
    assert 1 <= len(spec.objects) <= 6
    assert spec.objects[0].shape == sample_main_shape(seed, split, index)
    for placed in spec.objects:
        # Everything stands on the ground: the lowest point has height 0.
        rotation, half = np.array(placed.rotation), np.array(placed.half_size)
        np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-12)
        lowest = placed.center[2] - half @ np.abs(rotation[2])
        assert lowest == pytest.approx(0, abs=1e-9)
    scene = render_scene(seed, split, index, (32, 32))
    assert 0 in scene.visible and scene.saliency.mean() > 0.03


def test_size_shows_the_same_scene():
    small, large = render_scene(3, "train", 1, (64, 64)), render_scene(3, "train", 1, (192, 192))
    agreement = (large.semantic[1::3, 1::3] == small.semantic).mean()  # pixel centres coincide
    assert agreement == 1.0
    wide = render_scene(3, "train", 1, (64, 128))
    assert (wide.semantic[:, 32:96] == small.semantic).all()


def digest(seed: int = 5, split: str = "val", count: int = 6) -> str:
    """One number for all arrays of a few scenes."""
    total = hashlib.sha256()
    for index in range(count):
        scene = render_scene(seed, split, index, (96, 128))
        for array in (scene.rgb, scene.surface, scene.depth, scene.normals, scene.boundary):
            total.update(array.tobytes())
    return total.hexdigest()


def test_another_process_with_plainer_instructions_gives_the_same_bytes():
    """As on another machine: other hash seed, and numpy without its vector units where it has a choice."""
    environment = os.environ | {
        "PYTHONHASHSEED": "77",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
        "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3 AVX512F",
    }
    code = "import test_scenes_annotations as t; print(t.digest())"
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.strip().splitlines()[-1] == digest()


def test_the_scenes_have_not_changed():
    """Figures in docs and checkpoints refer to these very scenes: change this only with a note in the changelog."""
    assert digest()[:16] == "a7db77d56bf2f15b"


def test_splits_and_seeds_share_no_scene():
    seen = {}
    for seed in (0, 1):
        for split in ("train", "val", "test"):
            for index in range(60):
                key = render_scene(seed, split, index, (16, 16)).rgb.tobytes()
                assert key not in seen, (seed, split, index, seen[key])
                seen[key] = (seed, split, index)


def test_global_random_numbers_are_left_alone():
    np.random.seed(3)
    expected = np.random.rand()
    np.random.seed(3)
    render_scene(9, "test", 123, (40, 40))
    assert np.random.rand() == expected


def test_colour_does_not_give_the_class_away():
    """Nearest class mean of the main object's colour: better than chance by a little only."""

    def features(split, count):
        rows, labels = [], []
        for index in range(count):
            scene = render_scene(0, split, index, (48, 48))
            pixels = scene.rgb[scene.saliency == 1].astype(float)
            rows.append([*pixels.mean(axis=0), *pixels.std(axis=0)])
            labels.append(scene.label)
        return np.array(rows), np.array(labels)

    train_x, train_y = features("train", 300)
    val_x, val_y = features("val", 300)
    mean, deviation = train_x.mean(axis=0), train_x.std(axis=0)
    train_x, val_x = (train_x - mean) / deviation, (val_x - mean) / deviation
    centers = np.stack([train_x[train_y == label].mean(axis=0) for label in range(4)])
    predicted = ((val_x[:, None] - centers) ** 2).sum(axis=2).argmin(axis=1)
    accuracy = (predicted == val_y).mean()
    assert accuracy < 0.5, accuracy
    counts = np.bincount(train_y, minlength=4)
    assert counts.min() > 50  # and no class is rare


def test_patterns_stay_in_range_and_vary():
    rng = np.random.RandomState(0)
    x, y, z = rng.uniform(-8, 8, (3, 4000))
    for name, pattern in PATTERNS.items():
        value = np.broadcast_to(pattern(x, y, z), x.shape)
        assert value.min() >= 0 and value.max() <= 1, name
        assert (value.std() > 0.1) == (name != "plain"), name
    noise = value_noise(x, y, z)
    near = value_noise(x + 1e-6, y, z)
    np.testing.assert_allclose(near, noise, atol=1e-5)  # continuous


def test_fine_patterns_fade_with_distance():
    texture = Texture("checker", ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)), 2.0)
    x = np.array([0.1, 0.6])
    assert texture.evaluate(x, x * 0, x * 0)[0].tolist() == [0.0, 1.0]
    assert texture.evaluate(x, x * 0, x * 0, footprint=1.0)[0].tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (dict(split="training"), ["'train', 'val', 'test'", "'training'"]),
        (dict(seed=-1), ["seed", "-1"]),
        (dict(size=(0, 5)), ["size", "(0, 5)"]),
        (dict(size=128), ["size", "128"]),
        (dict(objects=(5, 3)), ["objects", "(5, 3)"]),
        (dict(objects=4), ["objects", "4"]),
        (dict(index=-3), ["index", "-3"]),
    ],
)
def test_errors_name_the_value_and_the_legal_ones(arguments, words):
    with pytest.raises(ValueError) as caught:
        render_scene(**arguments)
    for word in words:
        assert word in str(caught.value)
