"""The data side of the shipped configs: pipelines on made-up files, augmentation at test time, short runs."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import mmcv
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import DATASETS, MODELS, DefaultScope, init_default_scope
from mmengine.runner import Runner

import mmvit_plugins
from mmvit_plugins.models.backbones.stvit import ARCHS

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "configs"
SIZES = ((48, 72), (72, 56))  # two images of different size: batching them at test time fails


@pytest.fixture(autouse=True)
def no_scope_left_behind() -> Iterator[None]:
    """Other tests do not inherit the scope of these."""
    known = copy.copy(DefaultScope._instance_dict)
    yield
    DefaultScope._instance_dict.clear()
    DefaultScope._instance_dict.update(known)


# --- made-up data, laid out as each data set is -------------------------------------------------------------


def write_pair(image: Path, label: Path, size: tuple[int, int], classes: int, first: int = 0) -> None:
    rng = np.random.RandomState(size[0])
    mmcv.imwrite(rng.randint(0, 256, (*size, 3), np.uint8), str(image))
    labels = (np.arange(size[0] * size[1]).reshape(size) // 9 % classes + first).astype(np.uint8)
    labels[:3] = 255 if first == 0 else 0
    mmcv.imwrite(labels, str(label))


def make_ade20k(root: Path) -> None:
    for split in ("training", "validation"):
        for i, size in enumerate(SIZES):
            write_pair(root / f"images/{split}/{i}.jpg", root / f"annotations/{split}/{i}.png", size, 150, first=1)


def make_cityscapes(root: Path) -> None:
    for split in ("train", "val"):
        for i, size in enumerate(SIZES):
            image = root / f"leftImg8bit/{split}/town/{i}_leftImg8bit.png"
            write_pair(image, root / f"gtFine/{split}/town/{i}_gtFine_labelTrainIds.png", size, 19)


def make_camvid(root: Path) -> None:
    for split in ("train", "val", "test"):
        for i, size in enumerate(SIZES):
            write_pair(root / f"images/{split}/{i}.jpg", root / f"annotations/{split}/{i}.png", size, 11)


def make_coco(root: Path) -> None:
    from mmdet.datasets import CocoDataset

    images, annotations = [], []
    for i, (height, width) in enumerate(SIZES):
        images.append(dict(id=i, file_name=f"{i}.jpg", height=height, width=width))
        box = dict(bbox=[5, 6, 40, 30], area=1200, segmentation=[[5, 6, 45, 6, 45, 36, 5, 36]])
        annotations.append(dict(id=i + 1, image_id=i, category_id=i, iscrowd=0, **box))
        for split in ("train2017", "val2017"):
            pixels = np.random.RandomState(i).randint(0, 256, (height, width, 3), np.uint8)
            mmcv.imwrite(pixels, str(root / split / f"{i}.jpg"))
    categories = [dict(id=i, name=name) for i, name in enumerate(CocoDataset.METAINFO["classes"])]
    (root / "annotations").mkdir()
    for split in ("train2017", "val2017"):
        text = json.dumps(dict(images=images, annotations=annotations, categories=categories))
        (root / f"annotations/instances_{split}.json").write_text(text)


def make_imagenet(root: Path) -> None:
    for split in ("train", "val"):
        for i in range(1000):
            (root / split / f"n{i:08d}").mkdir(parents=True)
        for i, size in enumerate(SIZES):
            pixels = np.random.RandomState(i).randint(0, 256, (*size, 3), np.uint8)
            mmcv.imwrite(pixels, str(root / split / f"n{i:08d}/{i}.JPEG"))


DATA: list[tuple[str, str, Callable[[Path], None], int]] = [
    # config, variable of its data root, maker, views of test-time augmentation
    ("upernet_ade20k", "ADE20K_ROOT", make_ade20k, 12),
    ("fpn_ade20k", "ADE20K_ROOT", make_ade20k, 12),
    ("upernet_cityscapes", "CITYSCAPES_ROOT", make_cityscapes, 8),
    ("upernet_camvid", "CAMVID_ROOT", make_camvid, 8),
    ("segformer_mit_b0_camvid", "CAMVID_ROOT", make_camvid, 8),
    ("mask_rcnn_coco", "COCO_ROOT", make_coco, 0),
    ("mask_rcnn_coco_3x", "COCO_ROOT", make_coco, 0),
    ("retinanet_coco", "COCO_ROOT", make_coco, 0),
    ("in1k", "IMAGENET_ROOT", make_imagenet, 0),
    ("in1k_384", "IMAGENET_ROOT", make_imagenet, 0),
]


def load(name: str) -> Config:
    """The config of ``stvit/``, without worker processes; skips where its host cannot be used."""
    cfg = Config.fromfile(FOLDER / f"stvit/{name}.py")
    if cfg.default_scope == "mmdet":
        pytest.importorskip("mmcv._ext", reason="MMDetection needs mmcv with compiled operators (make build-ops)")
    pytest.importorskip(cfg.default_scope)
    for part in ("train", "val", "test"):
        cfg[f"{part}_dataloader"].update(num_workers=0, persistent_workers=False)
    return cfg


@pytest.mark.parametrize(("name", "variable", "make", "views"), DATA, ids=[row[0] for row in DATA])
def test_pipelines(
    name: str, variable: str, make: Callable, views: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training batch, all of validation and every augmented view come through, from image files of two sizes."""
    monkeypatch.setenv(variable, str(tmp_path))
    cfg = load(name)
    make(tmp_path)
    init_default_scope(cfg.default_scope)
    preprocess = MODELS.build(cfg.model.data_preprocessor)
    cfg.train_dataloader.batch_size = 2
    inputs = preprocess(next(iter(Runner.build_dataloader(cfg.train_dataloader, seed=0))), True)["inputs"]
    assert inputs.shape[0] == 2
    assert torch.isfinite(inputs).all()
    if "size" in cfg.model.data_preprocessor:
        assert inputs.shape[2:] == tuple(cfg.model.data_preprocessor.size)
    seen = sum(len(preprocess(batch, False)["inputs"]) for batch in Runner.build_dataloader(cfg.val_dataloader))
    assert seen == len(SIZES)
    if views:
        check_views(cfg, views)


def check_views(cfg: Config, views: int) -> None:
    """Each view of the first image has the label map at the image's own size."""
    sample = DATASETS.build(dict(cfg.val_dataloader.dataset, pipeline=cfg.tta_pipeline))[0]
    assert len(sample["inputs"]) == views
    assert {s.gt_sem_seg.shape[-2:] for s in sample["data_samples"]} == {SIZES[0]}
    assert len({tuple(i.shape) for i in sample["inputs"]}) == views // 2, "one size for each pair of flips"


# --- short runs ---------------------------------------------------------------------------------------------


def short(cfg: Config, work_dir: Path) -> Config:
    """Two iterations with one block a stage, then validation."""
    cfg.work_dir = str(work_dir)
    if "STViT" in cfg.model.backbone.type:
        cfg.model.backbone.arch = ARCHS["mini"] | dict(depths=(1, 1, 1, 1))
    for part in ("train", "val", "test"):
        if "Scenes" in cfg[f"{part}_dataloader"].dataset.type:
            cfg[f"{part}_dataloader"].dataset.update(num_scenes=4, size=(64, 64))
    cfg.train_dataloader.batch_size = 2
    if "size" in cfg.model.data_preprocessor:
        cfg.model.data_preprocessor.size = (64, 64)
    if "max_iters" in cfg.train_cfg:
        cfg.train_cfg.update(max_iters=2, val_interval=2)
    else:
        cfg.train_cfg.update(max_epochs=1, val_interval=1)
    cfg.default_hooks.logger.interval = 1
    cfg.visualizer.pop("name", None)
    return cfg


def history(work_dir: Path) -> list[dict]:
    lines = next(work_dir.glob("*/vis_data/scalars.json")).read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("upernet_scenes", "mIoU"),
        ("mask_rcnn_scenes", "coco/segm_mAP"),
        ("cls_scenes", "accuracy/top1"),
    ],
)
def test_scenes_train_and_validate(name: str, metric: str, tmp_path: Path) -> None:
    Runner.from_cfg(short(load(name), tmp_path)).train()
    log = history(tmp_path)
    assert [np.isfinite(line["loss"]) for line in log if "loss" in line] == [True, True]
    assert -1 <= log[-1][metric] <= 100  # -1: COCO's "nothing to score"
    assert list(tmp_path.glob("best_*.pth")) or log[-1][metric] <= 0


def test_own_folder_trains_validates_and_augments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example for a user's own data, end to end, with images of two sizes."""
    make_camvid(tmp_path / "data")
    monkeypatch.setenv("CAMVID_ROOT", str(tmp_path / "data"))
    cfg = short(load("upernet_camvid"), tmp_path / "work")
    cfg.model.decode_head.in_channels, cfg.model.auxiliary_head.in_channels = [24, 48, 96, 128], 96
    for transform in cfg.train_dataloader.dataset.pipeline:
        if transform["type"] == "RandomCrop":
            transform["crop_size"] = (64, 64)
        if transform["type"] == "RandomResize":
            transform["scale"] = (128, 96)
    Runner.from_cfg(cfg).train()
    assert 0 <= history(tmp_path / "work")[-1]["mIoU"] <= 100
    tested = copy.deepcopy(cfg)
    tested.work_dir, tested.load_from = str(tmp_path / "tta"), str(tmp_path / "work/iter_2.pth")
    tested.model = dict(**tested.tta_model, module=tested.model)
    tested.test_dataloader.dataset.pipeline = tested.tta_pipeline
    assert 0 <= Runner.from_cfg(tested).test()["mIoU"] <= 100


def test_compile_changes_no_loss(tmp_path: Path) -> None:
    """The shipped config with compile on, two iterations with the eager backend, beside the same without."""
    losses = {}
    for name in ("upernet_scenes", "upernet_scenes_compile"):
        cfg = short(load(name), tmp_path / name)
        if "compile" in cfg:
            assert cfg.compile.backend == "inductor"
            cfg.compile.backend = "eager"
        cfg.val_dataloader = cfg.val_cfg = cfg.val_evaluator = None
        cfg.default_hooks.checkpoint = None
        Runner.from_cfg(cfg).train()
        losses[name] = [line["loss"] for line in history(tmp_path / name)]
    assert losses["upernet_scenes"] == pytest.approx(losses["upernet_scenes_compile"], rel=1e-4)
    assert len(losses["upernet_scenes"]) == 2


# --- inheritance by name ------------------------------------------------------------------------------------


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package folder as an installation has it, whatever way this checkout is installed."""
    mim = tmp_path / "package/.mim"
    mim.mkdir(parents=True)
    for name in ("configs", "model-index.yml"):
        (mim / name).symlink_to(ROOT / name)
    mmvit_plugins.ensure_config_scopes()
    monkeypatch.setattr("mmengine.config.config.get_installed_path", lambda package: str(mim.parent))
    return mim.parent


def test_inherited_by_name_trains(installed: Path, tmp_path: Path) -> None:
    """``_base_ = 'mmvit_plugins::...'`` of a user's config, trained: mmengine's scope marks break no host type."""
    user = tmp_path / "user.py"
    user.write_text(
        "_base_ = ['mmvit_plugins::stvit/upernet_scenes.py']\nmodel = dict(decode_head=dict(channels=16))\n"
    )
    cfg = Config.fromfile(user)
    assert cfg.model.decode_head.channels == 16
    Runner.from_cfg(short(cfg, tmp_path / "work")).train()
    assert 0 <= history(tmp_path / "work")[-1]["mIoU"] <= 100


@pytest.mark.parametrize("name", ["upernet_ade20k", "mask_rcnn_coco_3x", "in1k", "upernet_cityscapes"])
def test_every_inherited_entry_keeps_its_host(name: str, installed: Path, tmp_path: Path) -> None:
    """No entry that only a host knows is left to our own scope, where it would not be found."""
    user = tmp_path / "user.py"
    user.write_text(f"_base_ = 'mmvit_plugins::stvit/{name}.py'\n")
    cfg = Config.fromfile(user)
    for entry in (cfg.model, cfg.visualizer, cfg.train_dataloader.dataset, cfg.val_evaluator):
        assert entry["_scope_"] == cfg.default_scope
    assert cfg.default_hooks.visualization["_scope_"] == cfg.default_scope
    for entry in cfg.get("tta_pipeline", []):
        assert entry["_scope_"] == cfg.default_scope


def test_documented_examples_parse(installed: Path, tmp_path: Path) -> None:
    """Each python block of docs/configs.md is a config that builds its backbone."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/configs.md").read_text(), re.DOTALL)
    assert len(blocks) >= 2
    for i, block in enumerate(blocks):
        user = tmp_path / f"user{i}.py"
        user.write_text(block)
        cfg = Config.fromfile(user)
        cells = [stage.blocks[0].attn.sampler for stage in MODELS.build(cfg.model.backbone).stages]
        assert [s.cell[0] if s else 1 for s in cells] == ([16, 8, 2, 1] if "cells" in block else [8, 4, 1, 1])
