"""Files of dense tasks in the known layouts, made here: what is found, and what their numbers mean."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmcv.transforms import LoadImageFromFile
from mmengine.registry import DATASETS
from scipy.io import savemat

from mmvit_plugins.datasets import (
    LoadTaskAnnotations,
    PackDenseTaskInputs,
    PASCALContextMultiTaskDataset,
    TaskFolderDataset,
)
from mmvit_plugins.datasets.task_files import TaskFormat, label_boundaries, read_task_label
from mmvit_plugins.engine import DamagedFileError


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
        write_png(tmp_path / f"sal_distill/{name}.png", np.full((24, 32), 200 if name == "a" else 1, np.uint8))
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
    assert (second.gt_saliency.data == 0).all(), "a nearly black picture, not labels"
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


def test_subfolders_and_ends_of_names(tmp_path: Path) -> None:
    """As in Cityscapes: equal file names in two towns, an end of the name for each task, labels below the images."""
    for value, town in enumerate(("aachen", "bonn"), 1):
        folder = tmp_path / town
        write_png(folder / "1_leftImg8bit.png", np.full((4, 6, 3), value, np.uint8))
        write_png(folder / "1_leftImg8bit_small.png", np.zeros((2, 3, 3), np.uint8))
        write_png(tmp_path / f"gt/{town}/1_gt_labelTrainIds.png", np.full((4, 6), value, np.uint8))
        write_png(tmp_path / f"gt/{town}/1_gt_color.png", np.full((4, 6), 9, np.uint8))
    np.save(tmp_path / "gt/bonn/1_gt_labelTrainIds.npy", np.full((4, 6), 7, np.uint8))
    (tmp_path / "gt/loop").symlink_to(tmp_path / "gt")
    write_png(tmp_path / "depths/bonn/1.png", np.full((4, 6), 250, np.uint8))
    arguments = dict(
        data_root=str(tmp_path),
        data_prefix=dict(img="", semseg="gt", depth="depths"),
        name_ends=dict(img="_leftImg8bit", semseg="_gt_labelTrainIds"),
        formats=dict(depth=dict(scale=100)),
        pipeline=[LoadImageFromFile(), LoadTaskAnnotations(), PackDenseTaskInputs()],
    )
    dataset = TaskFolderDataset(**arguments)
    assert len(dataset) == 2
    for value, item in enumerate(dataset, 1):
        assert (item["inputs"] == value).all() and (item["data_samples"].gt_sem_seg.data == value).all()
    assert "gt_depth" not in dataset[0]["data_samples"]
    assert (dataset[1]["data_samples"].gt_depth.data == 2.5).all()
    (tmp_path / "list.txt").write_text("bonn/1\n")
    assert len(TaskFolderDataset(**arguments, ann_file="list.txt")) == 1
    with pytest.raises(ValueError, match="no image whose name ends in '_x'"):
        TaskFolderDataset(**{**arguments, "name_ends": dict(img="_x")})
    with pytest.raises(ValueError, match=r"none of the 2 images has a label of semseg .*'_y' \(name_ends\)"):
        TaskFolderDataset(**{**arguments, "name_ends": dict(img="_leftImg8bit", semseg="_y")})
    with pytest.raises(ValueError, match="semseg, parts, depth"):
        TaskFolderDataset(**{**arguments, "name_ends": dict(seg="_y")})


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


def read_mask(folder: Path, values: list, suffix: str = ".png", form: str = "auto", dtype: type = np.uint8) -> list:
    """What a saliency file of these values is read as."""
    path, array = folder / f"mask{suffix}", np.array([values], dtype)
    if suffix == ".npy":
        np.save(path, array)
    else:
        assert cv2.imwrite(str(path), array, [cv2.IMWRITE_JPEG_QUALITY, 100])
    return read_task_label("saliency", str(path), TaskFormat(values=form))[0].tolist()


def test_numbers_of_masks(tmp_path: Path) -> None:
    """Labels keep 1 and 255 as they are; masks and grey pictures are cut in the middle."""
    assert read_mask(tmp_path, [0, 1, 255]) == [0, 1, 255]
    assert read_mask(tmp_path, [0, 1, 255], ".npy", dtype=np.int64) == [0, 1, 255]
    assert read_mask(tmp_path, [0, 1, 1]) == [0, 1, 1] and read_mask(tmp_path, [0, 0, 0]) == [0, 0, 0]
    assert read_mask(tmp_path, [0, 255, 255]) == [0, 1, 1] and read_mask(tmp_path, [0, 127, 128]) == [0, 0, 1]
    assert read_mask(tmp_path, [0, 1, 2, 255]) == [0, 0, 0, 1]
    assert read_mask(tmp_path, [0, 65535, 300], dtype=np.uint16) == [0, 1, 0]
    assert read_mask(tmp_path, [0.2, 0.6, 1.0], ".npy", dtype=np.float32) == [0, 1, 1]
    assert read_mask(tmp_path, [1] * 16, ".jpg") == [0] * 16, "a nearly black JPEG"
    assert read_mask(tmp_path, [0, 1, 1], form="grey") == [0, 0, 0]
    assert read_mask(tmp_path, [0, 255], form="labels") == [0, 255]
    with pytest.raises(ValueError, match=r"mask.png holds 7; .*values='grey'"):
        read_mask(tmp_path, [0, 1, 7], form="labels")
    with pytest.raises(ValueError, match="got 'gray'"):
        TaskFormat(values="gray")


def test_part_annotation_without_objects(tmp_path: Path) -> None:
    """Nobody there: background, or no label for a data set of people; the file alone does not say its size."""
    path = str(tmp_path / "empty.mat")
    savemat(path, dict(anno=dict(imname="x", objects=np.zeros((0, 0)))))
    assert read_task_label("parts", path, shape=(4, 5)).tolist() == np.zeros((4, 5)).tolist()
    assert (read_task_label("parts", path, TaskFormat(need_person=True), (4, 5)) == 255).all()
    with pytest.raises(ValueError, match="empty.mat has no objects"):
        read_task_label("parts", path)
    results = dict(img_path="x", ori_shape=(4, 5), task_paths=dict(parts=path), task_formats={})
    assert LoadTaskAnnotations()(results)["gt_parts"].shape == (4, 5)
