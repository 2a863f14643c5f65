"""The scene datasets by themselves: options, memory, workers, addresses, pictures."""

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import mmengine
import numpy as np
import pytest
import torch
from mmengine.dataset import ClassBalancedDataset, ConcatDataset, RepeatDataset, pseudo_collate
from torch.utils.data import DataLoader

from mmvit_plugins.cli.browse_scenes import LAYERS
from mmvit_plugins.cli.browse_scenes import main as browse
from mmvit_plugins.datasets import (
    LoadScene,
    ScenesClsDataset,
    ScenesDetDataset,
    ScenesMultiTaskDataset,
    ScenesSegDataset,
)
from mmvit_plugins.datasets.scenes import CLASSES, SHAPES, SceneCache, contact_sheet, image_uri, render_scene
from mmvit_plugins.datasets.scenes.pictures import PICTURES

ROOT = Path(__file__).resolve().parents[1]


# ---------------------------------------------------------------- datasets by themselves


@pytest.mark.parametrize("kind", [ScenesClsDataset, ScenesDetDataset, ScenesSegDataset, ScenesMultiTaskDataset])
def test_base_dataset_options(kind):
    dataset = kind(num_scenes=30, size=(24, 40), indices=7)
    assert len(dataset) == 7 and dataset.get_data_info(-1)["img_id"] == 6
    picked = kind(num_scenes=30, indices=[4, 9], serialize_data=False)
    assert [picked.get_data_info(i)["img_id"] for i in (0, 1)] == [4, 9]
    lazy = kind(num_scenes=30, lazy_init=True)
    assert not lazy._fully_initialized
    assert len(lazy) == 30
    info = dataset.get_data_info(2)
    assert (info["height"], info["width"], info["sample_idx"]) == (24, 40, 2)
    subset = dataset.get_subset([3])
    assert (subset.scene(0).rgb == dataset.scene(3).rgb).all()
    assert len(dataset.metainfo["classes"]) == len(dataset.metainfo["palette"])
    copied = pickle.loads(pickle.dumps(copy.deepcopy(dataset)))
    assert (copied.scene(1).rgb == dataset.scene(1).rgb).all()


def test_samplers_and_wrappers_get_labels_without_pictures():
    dataset = ScenesClsDataset(num_scenes=40, size=(16, 16))
    labels = dataset.get_gt_labels()
    assert sorted(set(labels.tolist())) == [0, 1, 2, 3]
    assert [dataset.get_cat_ids(i) for i in range(40)] == [[label] for label in labels]
    assert [dataset.scene(i).label for i in range(10)] == labels[:10].tolist()
    balanced = ClassBalancedDataset(dataset, oversample_thr=0.5)
    assert len(balanced) >= 40
    assert len(ConcatDataset([dataset, ScenesClsDataset(num_scenes=3)])) == 43
    assert len(RepeatDataset(dataset, times=2)) == 80


def test_class_subsets_change_the_labels():
    cls = ScenesClsDataset(num_scenes=40, metainfo=dict(classes=("cone", "box")))
    full = ScenesClsDataset(num_scenes=40).get_gt_labels()
    assert cls.get_gt_labels().tolist() == [{3: 0, 1: 1}[v] for v in full.tolist() if v in (1, 3)]
    assert cls.metainfo["palette"] == [(145, 30, 180), (250, 200, 30)]
    seg = ScenesSegDataset(num_scenes=2, metainfo=dict(classes=("ground", "sphere")), pipeline=[LoadScene()])
    scene = seg.scene(1)
    expected = np.full(scene.size, 255)
    expected[scene.semantic == 1], expected[scene.semantic == 2] = 0, 1
    assert (seg[1]["gt_seg_map"] == expected).all()
    det = ScenesDetDataset(num_scenes=20, metainfo=dict(classes=("cone",)), filter_cfg=dict(filter_empty_gt=True))
    assert 0 < len(det) < 20
    assert all(set(det.get_cat_ids(i)) == {0} for i in range(len(det)))
    with pytest.raises(ValueError, match=r"None of the 5 scenes of size \(20, 64\).*min_size"):
        ScenesDetDataset(num_scenes=5, size=(20, 64), filter_cfg=dict(min_size=32))
    in_test = dict(test_mode=True, filter_cfg=dict(min_size=32))
    assert len(ScenesDetDataset(num_scenes=5, size=(20, 64), **in_test)) == 5


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        (dict(split="dev"), ["'dev'", "'train', 'val', 'test'"]),
        (dict(num_scenes=0), ["num_scenes", "0"]),
        (dict(cache="disk"), ["'disk'", "'memory'"]),
        (dict(filter_cfg=dict(min_area=3)), ["'min_area'", "legal keys"]),
        (dict(metainfo=dict(classes=("sphere", "torus"))), ["torus", "cylinder"]),
    ],
)
def test_wrong_arguments_are_named(kwargs, words):
    with pytest.raises(ValueError) as caught:
        ScenesDetDataset(**kwargs)
    for word in words:
        assert word in str(caught.value)


def test_load_scene_errors():
    with pytest.raises(ValueError, match="no layer 'edges'.*boundary"):
        LoadScene(layers=["edges"])
    with pytest.raises(ValueError, match="'bgr' or 'rgb'"):
        LoadScene(channel_order="gray")
    with pytest.raises(ValueError, match="LoadImageFromFile"):
        LoadScene()(dict(img_path="a.png"))


def test_load_scene_gives_copies_in_the_order_asked_for():
    dataset = ScenesSegDataset(num_scenes=3, cache=True, pipeline=[LoadScene()])
    first = dataset[0]
    rgb = dataset.scene(0).rgb
    assert (first["img"] == rgb[..., ::-1]).all()
    first["img"][:] = 0
    first["gt_seg_map"][:] = 0
    assert (dataset[0]["img"] == rgb[..., ::-1]).all()
    assert (dataset[0]["gt_seg_map"] == render_scene(index=0).semantic).all()
    assert "scene" not in first and first["seg_fields"] == ["gt_seg_map"]
    other = ScenesSegDataset(num_scenes=3, pipeline=[LoadScene(channel_order="rgb")])
    assert (other[0]["img"] == rgb).all()


def test_multi_task_sample():
    dataset = ScenesMultiTaskDataset(num_scenes=2, size=(48, 64), pipeline=[LoadScene()])
    sample, scene = dataset[1], render_scene(index=1, size=(48, 64))
    for key, value in dict(
        gt_seg_map=scene.semantic,
        gt_depth=scene.depth,
        gt_normals=scene.normals,
        gt_boundary=scene.boundary,
        gt_saliency=scene.saliency,
        cam2img=scene.intrinsics,
        points=scene.points,
        pts_semantic_mask=scene.point_labels,
    ).items():
        np.testing.assert_array_equal(sample[key], value, err_msg=key)
    assert sample["gt_label"] == scene.label
    assert sample["seg_fields"] == ["gt_seg_map", "gt_depth", "gt_normals", "gt_boundary", "gt_saliency"]
    assert dataset.metainfo["label_classes"] == SHAPES
    fewer = ScenesMultiTaskDataset(num_scenes=2, pipeline=[LoadScene(layers=["depth"])])[0]
    assert "gt_depth" in fewer and "gt_normals" not in fewer


# ---------------------------------------------------------------- memory, workers, processes


def test_cache_returns_the_rendered_bytes_and_fills():
    cache = SceneCache(4, (20, 30))
    for _ in range(2):
        for slot in (0, 2):
            cached, fresh = cache.get(slot, 0, "val", slot, (3, 6)), render_scene(0, "val", slot, (20, 30))
            for name in ("rgb", "surface", "semantic", "depth", "normals", "boundary", "boxes", "points"):
                np.testing.assert_array_equal(getattr(cached, name), getattr(fresh, name), err_msg=name)
    assert cache.filled == 2
    assert pickle.loads(pickle.dumps(cache)).filled == 0


def _images(loader: DataLoader) -> dict[str, bytes]:
    return {
        info: image.numpy().tobytes()
        for batch in loader
        for info, image in zip(batch["path"], batch["img"], strict=True)
    }


def _to_tensors(results: dict) -> dict:
    return dict(path=results["img_path"], img=torch.from_numpy(results["img"]))


@pytest.mark.parametrize(("method", "workers"), [("fork", 2), ("spawn", 1)])
def test_workers_give_the_same_images(method, workers):
    dataset = ScenesSegDataset(num_scenes=8, size=(32, 32), cache=True, pipeline=[LoadScene(), _to_tensors])
    loader = DataLoader(
        dataset, batch_size=2, num_workers=workers, multiprocessing_context=method, collate_fn=pseudo_collate
    )
    found = _images(loader)
    assert found == _images(DataLoader(dataset, batch_size=3, collate_fn=pseudo_collate))
    assert len(found) == 8
    plain = ScenesSegDataset(num_scenes=8, size=(32, 32), pipeline=[LoadScene(), _to_tensors])
    assert found == _images(DataLoader(plain, batch_size=1, collate_fn=pseudo_collate))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="memory is shared with forked workers only")
def test_forked_workers_fill_the_memory_of_the_parent():
    dataset = ScenesSegDataset(num_scenes=6, size=(32, 32), cache="memory", pipeline=[LoadScene(), _to_tensors])
    loader = DataLoader(dataset, batch_size=1, num_workers=2, multiprocessing_context="fork", collate_fn=pseudo_collate)
    _images(loader)
    assert dataset.cache.filled == 6


# ---------------------------------------------------------------- scenes:// addresses


def test_addresses_are_files_to_mmengine_and_mmcv():
    import mmcv

    scene = render_scene(3, "test", 12, (40, 56), (2, 4))
    address = image_uri(3, "test", 12, (40, 56), (2, 4))
    assert (mmcv.imread(address, channel_order="rgb") == scene.rgb).all()
    labels = mmcv.imfrombytes(mmengine.fileio.get(image_uri(3, "test", 12, (40, 56), (2, 4), "seg")), flag="unchanged")
    assert (labels == scene.semantic).all()
    assert mmengine.fileio.exists(address) and not mmengine.fileio.isdir(address)
    with mmengine.fileio.get_local_path(address) as path:
        assert (mmcv.imread(path, channel_order="rgb") == scene.rgb).all()
    assert not Path(path).exists()
    for wrong in ("scenes://val/0/12.png", address.replace("/rgb/", "/depth/")):
        assert not mmengine.fileio.exists(wrong)
        with pytest.raises(FileNotFoundError, match="Addresses look like"):
            mmengine.fileio.get(wrong)
    with pytest.raises(ValueError, match="'dev'"):
        mmengine.fileio.get(address.replace("test", "dev"))


# ---------------------------------------------------------------- pictures and tool


def test_contact_sheet_shows_the_image_unchanged():
    scenes = [render_scene(index=index, size=(20, 30)) for index in range(3)]
    sheet = contact_sheet(scenes, ["rgb", "seg"], columns=2, zoom=2)
    image = scenes[0].rgb.repeat(2, axis=0).repeat(2, axis=1)
    found = [
        (v, u)
        for v in range(sheet.shape[0] - 40)
        for u in range(sheet.shape[1] - 60)
        if (sheet[v : v + 40, u : u + 60] == image).all()
    ]
    assert len(found) == 1
    with pytest.raises(ValueError, match="'albedo'"):
        contact_sheet(scenes, ["albedo"])
    with pytest.raises(ValueError, match="0 and 1"):
        contact_sheet([])


def test_browse_scenes(tmp_path, capsys):
    import cv2

    out = tmp_path / "new" / "sheet.png"
    layers = list(PICTURES)
    assert layers == list(LAYERS)
    assert browse(["--out", str(out), "--num", "2", "--size", "24", "32", "--columns", "1", "--layers", *layers]) == 0
    assert str(out) in capsys.readouterr().out
    sheet = cv2.imread(str(out))
    assert sheet.shape[1] > 7 * 32 and sheet.shape[0] > 2 * 24
    assert browse(["--out", str(tmp_path / "sheet.gif")]) == 2
    assert ".png" in capsys.readouterr().err
    assert browse(["--out", str(out), "--size", "0", "3"]) == 1
    assert "(0, 3)" in capsys.readouterr().err


def test_class_names_and_labels_line_up():
    assert CLASSES[2:] == SHAPES == ScenesDetDataset.METAINFO["classes"]


# ---------------------------------------------------------------- without the hosts


def test_no_host_library_is_needed_or_imported():
    code = """
import sys
for name in ("mmdet", "mmseg", "mmpretrain", "pycocotools"):
    sys.modules[name] = None  # an import of it fails
from mmvit_plugins.registry import DATASETS
for kind in ("Cls", "Seg", "MultiTask"):
    load = dict(type="mmvit_plugins.LoadScene")
    dataset = DATASETS.build(dict(type=f"mmvit_plugins.Scenes{kind}Dataset", num_scenes=2, pipeline=[load]))
    assert dataset[1]["img"].shape == (128, 128, 3)
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": str(ROOT)})


def test_instances_without_mmdet_name_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "mmdet.structures.bbox", None)
    dataset = ScenesMultiTaskDataset(num_scenes=1, pipeline=[LoadScene(layers=["instances"])])
    with pytest.raises(ImportError, match="mmdet"):
        dataset[0]
