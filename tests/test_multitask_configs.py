"""Every config of several tasks: builds, trains, predicts; twins differ in the tasks only; data on made-up files."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from hosts import require_host
from mmengine.config import Config
from mmengine.registry import DATASETS, METRICS, MODELS, DefaultScope, init_default_scope

from mmvit_plugins.evaluation.multi_task_gain import MAIN_METRICS
from mmvit_plugins.structures import TASK_MAPS

FOLDER = Path(__file__).resolve().parent.parent / "configs" / "multitask"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
TWINS = sorted(path.stem for path in (FOLDER / "single").glob("*.py"))
BACKBONES = ("stvit", "efficientvit", "sparsevit", "swin")
SMALL = {
    "mmvit_plugins.STViT": dict(arch="mini"),
    "mmvit_plugins.EfficientViT": dict(arch="b0"),
    "mmvit_plugins.SparseViT": dict(arch="mini"),
    "mmseg.SwinTransformer": dict(embed_dims=24, depths=(1, 1, 1, 1)),
    "mmpretrain.VisionTransformer": dict(
        arch=dict(embed_dims=32, num_layers=4, num_heads=2, feedforward_channels=32), out_indices=(0, 1, 2, 3)
    ),
}
WIDTHS = {
    "mmvit_plugins.STViT": [24, 48, 96, 128],
    "mmvit_plugins.EfficientViT": [16, 32, 64, 128],
    "mmvit_plugins.SparseViT": [24, 48, 96, 128],
    "mmseg.SwinTransformer": [24, 48, 96, 192],
    "mmpretrain.VisionTransformer": [32, 32, 32, 32],
}


@pytest.fixture(autouse=True)
def scope() -> Iterator[None]:
    """MMSegmentation's scope, as the runner sets it; other tests do not inherit it."""
    require_host("mmseg")
    import mmseg.registry  # noqa: F401

    known = copy.copy(DefaultScope._instance_dict)
    init_default_scope("mmseg")
    yield
    DefaultScope._instance_dict.clear()
    DefaultScope._instance_dict.update(known)


def small(cfg: Config) -> Config:
    """The config's model on a small version of its backbone, without weights."""
    cfg = copy.deepcopy(cfg)
    kind = cfg.model.backbone.type
    cfg.model.backbone.update(SMALL[kind], init_cfg=None)
    cfg.model.head.update(in_channels=WIDTHS[kind], channels=8, norm_cfg=dict(type="BN"))
    if "embed_dim" in cfg.model.get("neck", {}):
        require_host("mmpretrain")
        cfg.model.neck.update(embed_dim=32, norm_cfg=dict(type="BN"))
    return cfg


def batch(cfg: Config, names: list[str]) -> dict:
    """Two made-up samples of 64 x 64; the second has the label of the first task only."""
    from mmvit_plugins.datasets import PackDenseTaskInputs

    random = np.random.RandomState(0)
    packed = []
    for number in range(2):
        results = dict(img=random.randint(0, 255, (64, 64, 3), np.uint8), ori_shape=(64, 64), img_shape=(64, 64))
        results |= dict(scale_factor=(1.0, 1.0), img_id=number, img_path="made up")
        for task in names if number == 0 else names[:1]:
            if task == "instances":
                continue
            shape = (64, 64, 3) if task == "normals" else (64, 64)
            classes = dict(cfg.model.tasks[task]).get("num_classes", 2)
            label = random.rand(*shape).astype(np.float32) + 0.5
            if TASK_MAPS[task].is_label:
                label = random.randint(0, classes, shape).astype(np.uint8)
            results[TASK_MAPS[task].results_key] = label
        packed.append(PackDenseTaskInputs()(results))
    return dict(inputs=[one["inputs"] for one in packed], data_samples=[one["data_samples"] for one in packed])


def test_required_configs_are_there() -> None:
    wanted = {f"{backbone}_{data}" for backbone in BACKBONES for data in ("nyud", "pascal", "scenes")}
    assert wanted | {"vit_large_nyud", "vit_large_pascal", "stvit_scenes_instances"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_model_trains_and_predicts(name: str) -> None:
    """On a small backbone: finite losses, a gradient for every parameter, predictions at the image's size."""
    if "instances" in name:
        require_host("mmdet")
    cfg = small(Config.fromfile(FOLDER / f"{name}.py"))
    names = list(cfg.model.tasks)
    model = MODELS.build(cfg.model).train()
    data = batch(cfg, names)
    losses = model.forward(**model.data_preprocessor(copy.deepcopy(data), True), mode="loss")
    total, _ = model.parse_losses(losses)
    assert torch.isfinite(total) and total > 0
    total.backward()
    assert not [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
    model.eval()
    with torch.no_grad():
        samples = model.forward(**model.data_preprocessor(data, False), mode="predict")
    for task in names:
        if task != "instances":
            assert samples[1].get(TASK_MAPS[task].prediction).data.shape[-2:] == (64, 64)


@pytest.mark.parametrize("name", NAMES)
def test_every_task_is_measured(name: str) -> None:
    """One metric each, with the number of classes of the head, and the tolerance of the data set."""
    cfg = Config.fromfile(FOLDER / f"{name}.py")
    found = {}
    for entry in cfg.val_evaluator:
        if entry["type"].endswith("InstanceMetric"):
            require_host("mmdet")
        metric = METRICS.build(copy.deepcopy(entry))
        found[getattr(metric, "task", "instances")] = metric
    assert set(found) == set(cfg.model.tasks) <= set(MAIN_METRICS)
    for task in ("semseg", "parts"):
        if task in found:
            assert found[task].num_classes == cfg.model.tasks[task].num_classes
    assert found["boundary"].max_dist == (0.0075 if "pascal" in name else 0.011)


@pytest.mark.parametrize("name", NAMES)
def test_published_weights(name: str) -> None:
    weights = {
        task: entry.get("loss_weight") for task, entry in Config.fromfile(FOLDER / f"{name}.py").model.tasks.items()
    }
    published = dict(semseg=1, depth=1, parts=2, saliency=5, normals=10, boundary=50)
    if "scenes" in name:
        published["depth"] = 0.2  # ours
        weights.pop("instances", None)
    assert weights == {task: published[task] for task in weights}


@pytest.mark.parametrize("name", NAMES)
def test_settings(name: str) -> None:
    cfg = Config.fromfile(FOLDER / f"{name}.py")
    gpus = 1 if "scenes" in name else 3 if "vit_large" in name else 2
    assert cfg.auto_scale_lr.base_batch_size == gpus * cfg.train_dataloader.batch_size and not cfg.auto_scale_lr.enable
    loop = cfg.train_cfg
    assert loop.max_iters % loop.val_interval == 0 and loop.max_iters % cfg.default_hooks.checkpoint.interval == 0
    assert cfg.param_scheduler[-1].end == loop.max_iters
    assert "save_best" not in cfg.default_hooks.checkpoint, "of which task?"


def test_twins() -> None:
    """Each task of each config has one, and it differs in `only` alone."""
    wanted = []
    for name in NAMES:
        tasks = Config.fromfile(FOLDER / f"{name}.py").model.tasks
        wanted += [name] if name.endswith("instances") else [f"{name}_{task}" for task in tasks]
    assert sorted(wanted) == TWINS
    for twin in TWINS:
        cfg = Config.fromfile(FOLDER / "single" / f"{twin}.py")
        name, task = (twin, "instances") if twin.endswith("instances") else twin.rsplit("_", 1)
        whole = Config.fromfile(FOLDER / f"{name}.py").to_dict()
        assert cfg.model.only == [task]
        assert cfg.to_dict() == {**whole, "model": {**whole["model"], "only": [task]}}


def test_twin_builds_one_head() -> None:
    model = MODELS.build(small(Config.fromfile(FOLDER / "single/swin_pascal_parts.py")).model)
    assert list(model.tasks) == ["parts"] and model.tasks["parts"].head.conv_seg.out_channels == 7


def _write(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), array)


@pytest.mark.parametrize("name", ["stvit_nyud", "stvit_pascal"])
def test_pipelines_on_made_up_files(name: str, tmp_path: Path) -> None:
    """The data part of the config as it is: crops of the right size in training, whole images in validation."""
    cfg = Config.fromfile(FOLDER / f"{name}.py")
    random = np.random.RandomState(0)
    folders = dict(cfg.data_prefix)
    (tmp_path / Path(cfg.train_dataloader.dataset.ann_file).parent).mkdir(parents=True)
    for split in ("train", "val"):
        (tmp_path / cfg[f"{split}_dataloader"].dataset.ann_file).write_text("a\n")
    for folder in cfg.get("fallback", {}).values():
        (tmp_path / folder).mkdir(parents=True)
    for task, folder in folders.items():
        if task == "depth":
            (tmp_path / folder).mkdir()
            np.save(tmp_path / folder / "a.npy", random.rand(480, 640).astype(np.float32) + 1)
            continue
        shape = (480, 640, 3) if task in ("img", "normals") else (480, 640)
        _write(tmp_path / folder / "a.png", random.randint(0, 7, shape).astype(np.uint8))
    for split, size in (("train", (448, 576) if "nyud" in name else (512, 512)), ("val", (480, 640))):
        config = copy.deepcopy(cfg[f"{split}_dataloader"].dataset)
        config.data_root = str(tmp_path)
        sample = DATASETS.build(config)[0]
        assert sample["inputs"].shape == (3, *size)
        for task in folders:
            if task != "img":
                assert sample["data_samples"].get(TASK_MAPS[task].truth).data.shape[-2:] == size
