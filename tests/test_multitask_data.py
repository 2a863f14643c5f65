"""Joint augmentation of several tasks that is right for each of them."""

from __future__ import annotations

import numpy as np
import pytest
from hosts import require_host
from hypothesis import given, settings
from hypothesis import strategies as st

from mmvit_plugins.datasets import (
    LoadScene,
    PackDenseTaskInputs,
    ScenesMultiTaskDataset,
    TaskCrop,
    TaskFlip,
    TaskResize,
    TaskRotate,
)
from mmvit_plugins.datasets.task_geometry import crop_sample, flip_sample, pad_sample, resize_sample, rotate_sample

LAYERS = ["seg", "depth", "normals", "boundary", "saliency", "camera"]


def scene_sample(size: tuple[int, int] = (60, 80), index: int = 0, layers: list[str] | None = None) -> dict:
    """The dict of a built-in scene as a pipeline sees it after loading."""
    dataset = ScenesMultiTaskDataset(
        num_scenes=index + 1, size=size, pipeline=[LoadScene(layers=layers or LAYERS), lambda results: results]
    )
    return dataset[index]


def points(results: dict) -> tuple[np.ndarray, np.ndarray]:
    """(N, 3) points of the known pixels through ``cam2img``, and their normals."""
    depth = results["gt_depth"]
    v, u = np.nonzero(depth > 0)
    rays = np.linalg.inv(results["cam2img"].astype(np.float64)) @ np.stack([u, v, np.ones_like(u)])
    return (rays * depth[v, u]).T, results["gt_normals"][v, u]


def plane_error(results: dict) -> float:
    """How far depth, normals and camera are from fitting together: neighbouring pixels of the ground lie in one plane.

    The ground is a plane, so the normal at a pixel is orthogonal to the vector between any two of its points.
    """
    ground = (results["gt_seg_map"] == 1) & (results["gt_depth"] > 0)
    sub = dict(results, gt_depth=np.where(ground, results["gt_depth"], 0))
    where, normals = points(sub)
    assert len(where) > 50
    away = where - where.mean(0)
    return float(np.abs((away * normals).sum(1)).max() / np.linalg.norm(away, axis=1).max())


# --- geometry -------------------------------------------------------------------------------------------------------


def test_flip_mirrors_the_scene() -> None:
    """The cloud of points and normals is the old one with x negated, and a second flip brings everything back."""
    original, flipped = scene_sample(), scene_sample()
    flip_sample(flipped)
    before, after = points(original), points(flipped)
    order = [np.lexsort(np.round(cloud, 3).T) for cloud in (before[0] * [-1, 1, 1], after[0])]
    for one, two in zip(before, after, strict=True):
        np.testing.assert_allclose((one * [-1, 1, 1])[order[0]], two[order[1]], atol=2e-3)
    assert np.array_equal(flipped["img"][:, ::-1], original["img"])
    flip_sample(flipped)
    for key in original:
        if isinstance(original[key], np.ndarray):
            np.testing.assert_allclose(flipped[key], original[key], atol=1e-6, err_msg=key)


@pytest.mark.parametrize("size", [(120, 160), (45, 60), (90, 80)])
def test_resize_divides_depth_and_keeps_the_geometry(size: tuple[int, int]) -> None:
    original, resized = scene_sample(), scene_sample()
    resize_sample(resized, size)
    scale = np.sqrt(size[0] / 60 * size[1] / 80)
    assert resized["depth_scale"] == pytest.approx(scale)
    known = original["gt_depth"] > 0
    assert np.median(resized["gt_depth"][resized["gt_depth"] > 0]) == pytest.approx(
        np.median(original["gt_depth"][known]) / scale, rel=0.05
    )
    assert resized["img_shape"] == size and resized["scale_factor"] == (size[1] / 80, size[0] / 60)
    # Nearest pixels are off by up to half a pixel, hence not exact.
    assert plane_error(original) < 1e-3
    assert plane_error(resized) < 0.03
    assert set(np.unique(resized["gt_seg_map"])) <= set(np.unique(original["gt_seg_map"]))


def test_rotation_turns_normals_and_camera() -> None:
    original, turned = scene_sample(), scene_sample()
    rotate_sample(turned, 15.0)
    assert plane_error(turned) < 0.03
    centre = (slice(25, 35), slice(35, 45))
    angle = np.radians(15)
    # Counter-clockwise as seen: a normal to the right (x) then points up (-y).
    wanted = original["gt_normals"][30, 40] @ np.array(
        [[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]]
    )
    distance = np.abs(turned["gt_normals"][centre] - wanted).sum(-1).min()
    assert distance < 1e-3
    assert turned["gt_seg_map"][0, 0] == 255 and turned["gt_depth"][0, 0] == 0, "outside of the picture"
    crooked = scene_sample()
    crooked["cam2img"] = np.diag([100.0, 50.0, 1.0])
    with pytest.raises(ValueError, match="equal focal lengths"):
        rotate_sample(crooked, 5.0)


@given(st.integers(0, 20), st.integers(0, 30), st.integers(1, 40), st.integers(1, 50))
@settings(deadline=None, max_examples=25)
def test_crop_and_pad_keep_the_points(top: int, left: int, height: int, width: int) -> None:
    """Whatever the window, its pixels are the same points of the scene; padding adds pixels without label."""
    original, cut = scene_sample(), scene_sample()
    crop_sample(cut, top, left, (height, width))
    window = dict(original, gt_depth=np.zeros_like(original["gt_depth"]))
    place = (slice(top, top + height), slice(left, left + width))
    window["gt_depth"][place] = original["gt_depth"][place]
    np.testing.assert_allclose(points(cut)[0], points(window)[0], atol=1e-3)
    pad_sample(cut, (70, 70))
    assert cut["img"].shape == (70, 70, 3) and cut["gt_normals"].shape == (70, 70, 3)
    np.testing.assert_allclose(points(cut)[0], points(window)[0], atol=1e-3)
    assert (cut["gt_seg_map"][height:] == 255).all() and (cut["gt_boundary"][:, width:] == 255).all()


def test_thin_lines_survive_when_made_smaller() -> None:
    results = dict(img=np.zeros((64, 64, 3), np.uint8), gt_boundary=np.zeros((64, 64), np.uint8))
    results["gt_boundary"][31] = 1
    results["gt_boundary"][:, 7] = 255
    resize_sample(results, (32, 32))
    assert (results["gt_boundary"] == 1).any(0).sum() >= 31


def test_instances_follow_their_masks() -> None:
    require_host("mmdet")
    results = scene_sample(layers=[*LAYERS, "instances"])
    count, boxes = len(results["gt_masks"]), results["gt_bboxes"].tensor.numpy().copy()
    flip_sample(results)
    flipped = results["gt_bboxes"].tensor.numpy()
    np.testing.assert_array_equal(flipped[:, [2, 0]], 80 - boxes[:, [0, 2]])
    crop_sample(results, 0, 0, (60, 20))
    left = len(results["gt_masks"])
    assert left < count and left == len(results["gt_bboxes"]) == len(results["gt_bboxes_labels"])
    sample = PackDenseTaskInputs()(results)["data_samples"]
    assert len(sample.gt_instances) + len(sample.ignored_instances) == left
    del results["gt_masks"]
    with pytest.raises(ValueError, match="load gt_masks"):
        flip_sample(results)


def test_drawn_transforms_are_reproducible() -> None:
    steps = [TaskResize(ratio_range=(0.5, 2.0)), TaskRotate(20), TaskCrop((48, 64), 0.75), TaskFlip(0.5)]
    outputs = []
    for _ in range(2):
        np.random.seed(3)
        results = scene_sample()
        for step in steps:
            results = step(results)
        outputs.append(results)
    assert outputs[0]["img"].shape == (48, 64, 3)
    for key in ("img", "gt_seg_map", "gt_depth", "gt_normals", "cam2img"):
        np.testing.assert_array_equal(outputs[0][key], outputs[1][key])
    drawn = TaskResize(ratios=(1.0, 1.5))(scene_sample())["img_shape"]
    assert drawn in ((60, 80), (90, 120))
    assert TaskResize(scale=(40, 60))(scene_sample())["img_shape"] == (40, 53)
    with pytest.raises(ValueError, match="ratio_range or ratios"):
        TaskResize(ratio_range=(0.5, 1), ratios=(1.0,))


def test_crop_avoids_one_class() -> None:
    np.random.seed(0)
    results = dict(img=np.zeros((40, 40, 3), np.uint8), gt_seg_map=np.zeros((40, 40), np.uint8))
    results["gt_seg_map"][:, 30:] = 1
    shares = []
    for _ in range(30):
        cut = TaskCrop((16, 16), 0.75)(dict(results))
        shares.append((cut["gt_seg_map"] == 0).mean())
    assert np.mean(np.array(shares) < 0.75) > 0.7
