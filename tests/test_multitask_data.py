"""Data of several tasks: files of the known layouts made here, and augmentation that is right for each task."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from hosts import require_host
from hypothesis import given, settings
from hypothesis import strategies as st
from mmcv.transforms import LoadImageFromFile
from mmengine.registry import DATASETS
from scipy.io import savemat

from mmvit_plugins.datasets import (
    LoadScene,
    LoadTaskAnnotations,
    PackDenseTaskInputs,
    PASCALContextMultiTaskDataset,
    ScenesMultiTaskDataset,
    TaskCrop,
    TaskFlip,
    TaskFolderDataset,
    TaskResize,
    TaskRotate,
)
from mmvit_plugins.datasets.task_files import TaskFormat, label_boundaries, read_task_label
from mmvit_plugins.datasets.task_geometry import crop_sample, flip_sample, pad_sample, resize_sample, rotate_sample
from mmvit_plugins.engine import DamagedFileError

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


# --- files ----------------------------------------------------------------------------------------------------------


def write_png(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), array[..., ::-1] if array.ndim == 3 else array)


def nyud(root: Path) -> dict:
    """Two images in the layout of docs/multitask.md; the second has no normals. Returns the dataset's arguments."""
    random = np.random.RandomState(0)
    for number in (2, 10):
        name = f"{number:04d}"
        write_png(root / f"images/{name}.jpg", random.randint(0, 255, (24, 32, 3), np.uint8))
        write_png(root / f"segmentation/{name}.png", random.randint(0, 41, (24, 32)).astype(np.uint8))
        write_png(root / f"edge/{name}.png", (random.rand(24, 32) > 0.9).astype(np.uint8) * 255)
        (root / "depth").mkdir(exist_ok=True)
        np.save(root / f"depth/{name}.npy", np.where(random.rand(24, 32) > 0.1, 3.25, 0).astype(np.float32))
    normals = np.zeros((24, 32, 3), np.uint8) + np.array([255, 128, 128], np.uint8)
    normals[0] = 128
    write_png(root / "normals/0002.png", normals)
    (root / "gt_sets").mkdir()
    (root / "gt_sets/train.txt").write_text("0010\n0002\n")
    return dict(
        data_root=str(root),
        ann_file="gt_sets/train.txt",
        data_prefix=dict(img="images", semseg="segmentation", depth="depth", normals="normals", boundary="edge"),
        pipeline=[LoadImageFromFile(), LoadTaskAnnotations(), PackDenseTaskInputs()],
    )


def test_nyud(tmp_path: Path) -> None:
    dataset = DATASETS.build(dict(type="mmvit_plugins.NYUDv2MultiTaskDataset", **nyud(tmp_path)))
    assert len(dataset) == 2 and len(dataset.metainfo["classes"]) == 40
    assert [Path(dataset.get_data_info(i)["img_path"]).stem for i in (0, 1)] == ["0010", "0002"]
    first, second = (dataset[i]["data_samples"] for i in (0, 1))
    assert "gt_normals" not in first, "no file, no label"
    raw = cv2.imread(str(tmp_path / "segmentation/0002.png"), -1).astype(int)
    assert np.array_equal(second.gt_sem_seg.data[0], np.where(raw == 0, 255, raw - 1))
    assert set(np.unique(second.gt_depth.data)) == {0, 3.25}
    normals = second.gt_normals.data
    assert (normals[:, 0] == 0).all(), "middle grey is unknown"
    assert torch.allclose(normals[:, 5, 5], torch.tensor([1.0, 0.0039, 0.0039]), atol=1e-3)
    assert set(second.gt_boundary.data.unique().tolist()) == {0, 1}
    assert dataset[0]["inputs"].shape == (3, 24, 32) and dataset[0]["inputs"].dtype == torch.uint8


def pascal_parts(path: Path) -> None:
    """A PASCAL-Part annotation: a person with head, left hand and right foot, and a dog with a head."""

    def mask(rows: slice) -> np.ndarray:
        array = np.zeros((24, 32), np.uint8)
        array[rows] = 1
        return array

    def part(name: str, rows: slice) -> dict:
        return dict(part_name=name, mask=mask(rows))

    person = dict(mask=mask(slice(0, 12)), parts=[part("head", slice(0, 3)), part("lhand", slice(3, 6))])
    person["parts"].append(part("rfoot", slice(6, 9)))
    objects = np.zeros(2, dtype=[("class", object), ("mask", object), ("parts", object)])
    parts = np.zeros(3, dtype=[("part_name", object), ("mask", object)])
    for row, one in zip(parts, person["parts"], strict=True):
        row["part_name"], row["mask"] = one["part_name"], one["mask"]
    objects[0] = ("person", person["mask"], parts)
    dog = np.zeros(1, dtype=parts.dtype)
    dog[0] = ("head", mask(slice(20, 22)))
    objects[1] = ("dog", mask(slice(18, 24)), dog)
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, dict(anno=dict(imname="x", objects=objects)))


def test_pascal_context(tmp_path: Path) -> None:
    random = np.random.RandomState(0)
    labels = np.zeros((24, 32), np.uint16)
    labels[:, 16:] = 300
    for name, folder in (("a", "VOC12"), ("b", "pascal-context")):
        write_png(tmp_path / f"JPEGImages/{name}.jpg", random.randint(0, 255, (24, 32, 3), np.uint8))
        write_png(tmp_path / f"semseg/{folder}/{name}.png", np.full((24, 32), 20, np.uint8))
        write_png(tmp_path / f"sal_distill/{name}.png", np.full((24, 32), 200, np.uint8))
        write_png(tmp_path / f"normals_distill/{name}.png", np.full((24, 32, 3), (128, 128, 0), np.uint8))
        (tmp_path / "pascal-context/trainval").mkdir(parents=True, exist_ok=True)
        savemat(tmp_path / f"pascal-context/trainval/{name}.mat", dict(LabelMap=labels))
    pascal_parts(tmp_path / "human_parts/a.mat")
    write_png(tmp_path / "human_parts/b.png", np.zeros((24, 32), np.uint8))
    dataset = PASCALContextMultiTaskDataset(
        data_root=str(tmp_path),
        data_prefix=dict(
            img="JPEGImages",
            semseg="semseg/VOC12",
            parts="human_parts",
            saliency="sal_distill",
            normals="normals_distill",
            boundary="pascal-context/trainval",
        ),
        fallback=dict(semseg="semseg/pascal-context"),
        pipeline=[LoadImageFromFile(), LoadTaskAnnotations(), PackDenseTaskInputs()],
    )
    first, second = (dataset[i]["data_samples"] for i in (0, 1))
    assert (second.gt_sem_seg.data == 20).all(), "from the second folder"
    parts = first.gt_parts.data[0]
    assert [int(parts[row].unique()) for row in (1, 4, 7, 10, 21)] == [1, 4, 6, 0, 0]
    assert (second.gt_parts.data == 255).all(), "nobody there: no label"
    assert (first.gt_saliency.data == 1).all()
    assert torch.allclose(first.gt_normals.data[:, 0, 0], torch.tensor([0.004, 0.004, -1.0]), atol=1e-3)
    boundary = first.gt_boundary.data[0]
    assert (boundary[:, 15] == 1).all() and boundary.sum() == 24


def test_any_folders(tmp_path: Path) -> None:
    arguments = nyud(tmp_path)
    prefix = dict(img="images", normals="normals", semseg="segmentation")
    arguments |= dict(ann_file="", data_prefix=prefix)
    dataset = TaskFolderDataset(**arguments, metainfo=dict(classes=("x", "y")))
    assert [info["img_id"] for info in (dataset.get_data_info(i) for i in range(2))] == [0, 1]
    assert len(TaskFolderDataset(**arguments, require=["normals"])) == 1
    with pytest.raises(ValueError, match="semseg, parts, depth"):
        TaskFolderDataset(**{**arguments, "data_prefix": dict(img="images", edges="edge")})
    with pytest.raises(FileNotFoundError, match="there is no folder .*nowhere"):
        TaskFolderDataset(**{**arguments, "data_prefix": dict(img="images", depth="nowhere")})
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="none of the 2 images has a label of depth"):
        TaskFolderDataset(**{**arguments, "data_prefix": dict(img="images", depth="none")})
    (tmp_path / "list.txt").write_text("0002\n0003\n")
    with pytest.raises(FileNotFoundError, match="the first is '0003'"):
        TaskFolderDataset(**{**arguments, "ann_file": "list.txt"})


def test_label_of_another_size_is_named(tmp_path: Path) -> None:
    arguments = nyud(tmp_path)
    write_png(tmp_path / "segmentation/0002.png", np.zeros((24, 33), np.uint8))
    with pytest.raises(ValueError, match="0002.png has 24 x 33 pixels"):
        TaskFolderDataset(**arguments)[1]


def test_file_formats(tmp_path: Path) -> None:
    depth = np.array([[1500, 0], [250, 3000]], np.uint16)
    write_png(tmp_path / "d.png", depth)
    with pytest.raises(ValueError, match="scale=1000"):
        read_task_label("depth", str(tmp_path / "d.png"))
    read = read_task_label("depth", str(tmp_path / "d.png"), TaskFormat(scale=1000))
    np.testing.assert_allclose(read, depth / 1000)
    normals = np.array([[[0, 0, -2.0], [0, 0.6, -0.8], [np.nan, 0, 0]]])
    np.savez(tmp_path / "n.npz", normals=normals)
    read = read_task_label("normals", str(tmp_path / "n.npz"), TaskFormat(axes=(1, -1, 1)))
    np.testing.assert_allclose(read, [[[0, 0, 0], [0, -0.6, -0.8], [0, 0, 0]]], atol=1e-6)
    savemat(tmp_path / "two.mat", dict(a=np.eye(2), b=np.eye(2) * 3))
    with pytest.raises(ValueError, match="2 arrays"):
        read_task_label("semseg", str(tmp_path / "two.mat"))
    assert read_task_label("semseg", str(tmp_path / "two.mat"), TaskFormat(key="b")).max() == 3
    from PIL import Image

    coloured = Image.fromarray(np.array([[0, 1], [2, 255]], np.uint8), mode="P")
    coloured.putpalette(list(range(256)) * 3)
    coloured.save(tmp_path / "p.png")
    assert read_task_label("semseg", str(tmp_path / "p.png")).tolist() == [[0, 1], [2, 255]]
    with pytest.raises(ValueError, match="height x width x 3"):
        np.save(tmp_path / "flat.npy", np.zeros((4, 4)))
        read_task_label("normals", str(tmp_path / "flat.npy"))
    for name in ("d.png", "n.npz", "flat.npy", "two.mat"):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[: len(whole) // 2])
        with pytest.raises(DamagedFileError, match=name):
            read_task_label("depth", str(tmp_path / name), TaskFormat(scale=1.0))
    assert label_boundaries(np.array([[1, 1, 2], [1, 1, 2]])).tolist() == [[0, 1, 0], [0, 1, 0]]
