"""The benchmark measures whole models of every task, with inputs and labels that fit them."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import torch
from hosts import require_host

from mmvit_plugins.benchmark import Setting, Subject, read_report
from mmvit_plugins.cli.benchmark import main
from mmvit_plugins.cli.config_loading import load_config

TASKS = {
    "mmpretrain": ["stvit/cls_scenes.py", "dvt/cls_scenes.py", "msvit/cls_scenes.py"],
    "mmseg": [
        "stvit/upernet_scenes.py",
        "multitask/efficientvit_scenes.py",
        "flatformer/bev_scenes.py",
    ],
    "mmdet": ["efficientvit/mask_rcnn_scenes.py", "multitask/stvit_scenes_instances.py"],
}


def subject(config: str, *options: str, part: str = "model") -> Subject:
    return Subject(config, config, part, cfg_options=options)


@pytest.mark.parametrize(("host", "config"), [(host, config) for host, configs in TASKS.items() for config in configs])
def test_whole_models_of_every_task(host: str, config: str, tmp_path: Path) -> None:
    require_host(host)
    arguments = ["--sizes", "64", "--batch", "2", "--rounds", "1", "--warmup", "0", "--no-memory"]
    assert main([config, *arguments, "--mode", "inference", "train", "--out", str(tmp_path)]) == 0
    rows = read_report(tmp_path)["rows"]
    assert [row["mode"] for row in rows] == ["inference", "train"]
    assert all(row["latency_ms"] > 0 and row["flops"] > 0 for row in rows)


def test_every_task_of_a_multi_task_model_has_labels() -> None:
    """Each loss depends on its labels: none is the zero of a batch without any."""
    require_host("mmseg")
    model = subject("multitask/efficientvit_scenes.py")
    (sample, other) = model._data(Setting(48, 64, batch=2), None)["data_samples"]
    assert all(task.labelled([sample]) for task in model.model.tasks.values())
    assert sample.gt_sem_seg.data.shape == (1, 48, 64) and sample.gt_sem_seg.data.unique().tolist() == list(range(6))
    assert sample.gt_normals.data.norm(dim=0).allclose(torch.ones(48, 64))
    assert sample.gt_depth.data.min() == 1 and sample.gt_boundary.data.unique().tolist() == [0, 1]
    assert not sample.gt_sem_seg.data.equal(other.gt_sem_seg.data)


def test_labels_of_detectors_are_classes_of_theirs() -> None:
    require_host("mmdet")
    one_class = ("model.roi_head.bbox_head.num_classes=1", "model.roi_head.mask_head.num_classes=1")
    for options, labels in (((), [0, 1]), (one_class, [0, 0])):
        model = subject("efficientvit/mask_rcnn_scenes.py", *options)
        (sample,) = model._data(Setting(64, 64), None)["data_samples"]
        assert sample.gt_instances.labels.tolist() == labels


@pytest.mark.parametrize("part", ["backbone", "model"])
@pytest.mark.parametrize("mode", ["inference", "train"])
def test_point_clouds_come_from_a_picture_of_the_size(part: str, mode: str) -> None:
    require_host("mmseg")
    model = subject("flatformer/bev_scenes.py", part=part)
    small, large = (model._inputs(Setting(side, side, batch=2), None) for side in (32, 64))
    assert len(small) == len(large) == 2 and large[0].shape[1] == 3 and not torch.equal(large[0][:9], large[1][:9])
    assert 3 < len(large[0]) / len(small[0]) < 5  # four times the pixels
    low, high = torch.tensor(model.clouds.limits).view(2, 3)
    assert ((large[0] >= low) & (large[0] < high)).all()
    model.step(Setting(32, 32, batch=2, part=part, mode=mode))()
    model.step(Setting(32, 32, dtype="bfloat16", layout="channels_last", part=part, mode="inference"), image=1)()


def test_maps_of_point_clouds_are_those_of_their_scenes() -> None:
    require_host("mmseg")
    model = subject("flatformer/bev_scenes.py", "model.backbone.pillars.in_channels=4")
    (data, again) = (model._data(Setting(64, 64), None) for _ in range(2))
    (label, repeated) = (one["data_samples"][0].gt_sem_seg.data for one in (data, again))
    assert label.shape == (1, 48, 48) and label.equal(repeated)
    assert set(label.unique().tolist()) <= {*range(5), 255} and len(label.unique()) > 2
    assert data["inputs"][0].shape[1] == 4 and (data["inputs"][0][:, 3] == 0).all()


def test_a_training_step_with_mixup() -> None:
    """Two labels are mixed by the data preprocessor, which needs them."""
    require_host("mmpretrain")
    cfg = load_config(argparse.Namespace(config="stvit/cls_scenes.py", cfg_options=[]))
    cfg.model.data_preprocessor.num_classes = 4
    cfg.model.train_cfg = dict(augments=[dict(type="Mixup", alpha=0.8), dict(type="CutMix", alpha=1.0)])
    model = Subject("mixed", "stvit/cls_scenes.py", cfg=cfg)
    assert model.model.data_preprocessor.batch_augments is not None
    model.step(Setting(32, 32, batch=2, mode="train"))()
