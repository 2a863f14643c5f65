"""The scene datasets through the pipelines, metrics and visualisation hooks of the host libraries."""

import copy

import numpy as np
import pytest
import torch
from mmengine.dataset import pseudo_collate
from mmengine.registry import DefaultScope

from mmvit_plugins.registry import DATASETS

LOAD = dict(type="mmvit_plugins.LoadScene")
META = ("img_id", "img_path", "ori_shape", "img_shape", "scale_factor", "instances")


def scope(name: str):
    """The host with its transforms registered and its scope the default one; skips where it cannot be imported."""
    pytest.importorskip(f"{name}.datasets", reason=f"{name} cannot be imported here", exc_type=ImportError)
    return DefaultScope.overwrite_default_scope(name)


def build(kind: str, **kwargs):
    return DATASETS.build(dict(type=f"mmvit_plugins.Scenes{kind}Dataset", **kwargs))


# ---------------------------------------------------------------- MMSegmentation


def test_mmseg_pipeline_loads_the_same_with_its_own_loaders():
    with scope("mmseg"):
        pack = dict(type="PackSegInputs")
        ours = build("Seg", num_scenes=4, size=(40, 56), pipeline=[LOAD, pack])
        theirs = build(
            "Seg",
            num_scenes=4,
            size=(40, 56),
            pipeline=[dict(type="LoadImageFromFile"), dict(type="LoadAnnotations"), pack],
        )
        for index in range(4):
            assert (ours[index]["inputs"] == theirs[index]["inputs"]).all()
            expected = theirs[index]["data_samples"].gt_sem_seg.data
            assert (ours[index]["data_samples"].gt_sem_seg.data == expected).all()


def test_mmseg_augmentations_keep_all_maps_in_step():
    with scope("mmseg"):
        pipeline = [
            LOAD,
            dict(type="RandomResize", scale=(96, 72), ratio_range=(0.8, 1.5), keep_ratio=True),
            dict(type="RandomCrop", crop_size=(48, 64), cat_max_ratio=0.75),
            dict(type="RandomFlip", prob=1.0),
            dict(type="PhotoMetricDistortion"),
        ]
        dataset = build("MultiTask", num_scenes=6, size=(72, 96), pipeline=pipeline)
        for index in range(6):
            sample = dataset[index]
            shape = sample["img"].shape[:2]
            assert sample["gt_normals"].shape == (*shape, 3)
            for key in ("gt_seg_map", "gt_depth", "gt_boundary", "gt_saliency"):
                assert sample[key].shape == shape, key
            background = sample["gt_seg_map"] == 0
            assert ((sample["gt_depth"] == 0) == background).all()
            assert ((np.abs(sample["gt_normals"]).sum(axis=2) == 0) == background).all()
            assert (sample["gt_saliency"] <= (sample["gt_seg_map"] >= 2)).all()


def test_mmseg_metric_of_a_perfect_and_a_constant_predictor():
    with scope("mmseg"):
        from mmseg.evaluation import IoUMetric
        from mmseg.structures import SegDataSample  # noqa: F401

        dataset = build("Seg", num_scenes=10, size=(64, 64), split="val", pipeline=[LOAD, dict(type="PackSegInputs")])
        scores = []
        for constant in (False, True):
            metric = IoUMetric(iou_metrics=["mIoU"])
            metric.dataset_meta = dataset.metainfo
            for index in range(len(dataset)):
                sample = dataset[index]["data_samples"]
                labels = sample.gt_sem_seg.data
                sample.pred_sem_seg = copy.deepcopy(sample.gt_sem_seg)
                sample.pred_sem_seg.data = torch.full_like(labels, 1) if constant else labels
                metric.process({}, [sample.to_dict()])
            scores.append(metric.compute_metrics(metric.results)["mIoU"])
        assert scores[0] == 100
        assert 3 < scores[1] < 12  # the ground alone: its share of the pixels over six classes


def test_mmseg_visualization_hook_finds_the_picture(tmp_path):
    with scope("mmseg"):
        from mmseg.engine.hooks import SegVisualizationHook
        from mmseg.visualization import SegLocalVisualizer

        visualizer = SegLocalVisualizer.get_instance(
            "scenes_seg", vis_backends=[dict(type="LocalVisBackend")], save_dir=str(tmp_path)
        )
        dataset = build("Seg", num_scenes=3, size=(40, 56), split="val", pipeline=[LOAD, dict(type="PackSegInputs")])
        visualizer.dataset_meta = dataset.metainfo
        hook = SegVisualizationHook(draw=True)
        hook._visualizer = visualizer
        samples = []
        for index in range(3):
            sample = dataset[index]["data_samples"]
            sample.pred_sem_seg = sample.gt_sem_seg
            samples.append(sample)
        hook.after_test_iter(None, 0, {}, samples)
        assert len(list(tmp_path.rglob("*.png"))) == 3


# ---------------------------------------------------------------- MMPretrain


def test_mmpretrain_pipeline_and_accuracy():
    with scope("mmpretrain"):
        from mmpretrain.evaluation import Accuracy

        pipeline = [
            LOAD,
            dict(type="RandomResizedCrop", scale=48),
            dict(type="RandomFlip", prob=0.5),
            dict(type="PackInputs"),
        ]
        dataset = build("Cls", num_scenes=12, size=(64, 64), pipeline=pipeline)
        metric = Accuracy()
        for index in range(len(dataset)):
            packed = dataset[index]
            assert packed["inputs"].shape == (3, 48, 48)
            sample = packed["data_samples"]
            assert sample.gt_label.tolist() == [dataset.scene(index).label]
            sample.set_pred_score(torch.nn.functional.one_hot(sample.gt_label[0], 4).float())
            metric.process({}, [sample.to_dict()])
        assert metric.compute_metrics(metric.results)["top1"] == 100


def test_mmpretrain_visualization_hook_names_its_pictures(tmp_path):
    with scope("mmpretrain"):
        from mmpretrain.engine.hooks import VisualizationHook
        from mmpretrain.visualization import UniversalVisualizer

        UniversalVisualizer.get_instance(
            "scenes_cls", vis_backends=[dict(type="LocalVisBackend")], save_dir=str(tmp_path)
        )
        dataset = build("Cls", num_scenes=2, pipeline=[LOAD, dict(type="PackInputs")])
        batch = pseudo_collate([dataset[0], dataset[1]])
        samples = batch["data_samples"]
        for sample in samples:
            sample.set_pred_score(torch.tensor([0.1, 0.2, 0.3, 0.4]))
        hook = VisualizationHook(enable=True, interval=1, out_dir=str(tmp_path / "out"))
        hook.after_test_iter(None, 0, dict(inputs=torch.stack(batch["inputs"])), samples)
        assert list(tmp_path.rglob("*.png"))


# ---------------------------------------------------------------- MMDetection


def test_mmdet_pipeline_loads_the_same_with_its_own_loaders():
    with scope("mmdet"):
        pack = dict(type="PackDetInputs", meta_keys=META)
        ours = build("Det", num_scenes=6, size=(60, 80), pipeline=[LOAD, pack])
        own = [dict(type="LoadImageFromFile"), dict(type="LoadAnnotations", with_bbox=True, with_mask=True), pack]
        theirs = build("Det", num_scenes=6, size=(60, 80), pipeline=own)
        for index in range(6):
            left, right = ours[index]["data_samples"].gt_instances, theirs[index]["data_samples"].gt_instances
            assert (ours[index]["inputs"] == theirs[index]["inputs"]).all()
            assert left.labels.tolist() == right.labels.tolist() and len(left) > 0
            assert (left.bboxes.tensor == right.bboxes.tensor).all()
            assert (left.masks.masks == right.masks.masks).all()


def test_mmdet_training_pipeline():
    with scope("mmdet"):
        pipeline = [
            LOAD,
            dict(type="RandomFlip", prob=1.0),
            dict(type="Resize", scale=(160, 160), keep_ratio=True),
            dict(type="RandomCrop", crop_size=(120, 120), recompute_bbox=True),
            dict(type="FilterAnnotations", min_gt_bbox_wh=(1, 1), by_mask=True),
            dict(type="PackDetInputs"),
        ]
        dataset = build("Det", num_scenes=4, pipeline=pipeline, filter_cfg=dict(filter_empty_gt=True, min_size=32))
        for index in range(4):
            instances = dataset[index]["data_samples"].gt_instances
            for box, mask in zip(instances.bboxes.tensor, instances.masks.masks, strict=True):
                rows, columns = np.nonzero(mask)
                tight = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
                np.testing.assert_allclose(box.numpy(), tight, atol=3)  # the mask is resized in whole pixels


def test_mmdet_coco_metric_without_annotation_file():
    pytest.importorskip("pycocotools")
    with scope("mmdet"):
        from mmdet.evaluation import CocoMetric

        pipeline = [LOAD, dict(type="PackDetInputs", meta_keys=META)]
        dataset = build("Det", num_scenes=12, split="val", test_mode=True, pipeline=pipeline)
        metric = CocoMetric(metric=["bbox", "segm"])
        metric.dataset_meta = dataset.metainfo
        for index in range(len(dataset)):
            sample = dataset[index]["data_samples"]
            truth = sample.gt_instances
            prediction = dict(
                bboxes=truth.bboxes.tensor,
                labels=truth.labels,
                scores=torch.ones(len(truth)),
                masks=truth.masks.to_tensor(torch.bool, "cpu"),
            )
            metric.process({}, [dict(sample.to_dict(), pred_instances=prediction)])
        result = metric.evaluate(len(dataset))
        assert result["coco/bbox_mAP"] == 1.0
        assert result["coco/segm_mAP"] == 1.0


def test_mmdet_visualization_hook_finds_the_picture(tmp_path):
    with scope("mmdet"):
        from mmdet.engine.hooks import DetVisualizationHook
        from mmdet.visualization import DetLocalVisualizer

        visualizer = DetLocalVisualizer.get_instance("scenes_det", save_dir=str(tmp_path))
        dataset = build("Det", num_scenes=2, pipeline=[LOAD, dict(type="PackDetInputs")])
        visualizer.dataset_meta = dataset.metainfo
        hook = DetVisualizationHook(draw=True, test_out_dir="out")
        hook._visualizer = visualizer
        samples = []
        for index in range(2):
            sample = dataset[index]["data_samples"]
            sample.pred_instances = sample.gt_instances
            sample.pred_instances.scores = torch.ones(len(sample.gt_instances))
            sample.pred_instances.masks = sample.gt_instances.masks.to_tensor(torch.bool, "cpu")
            sample.pred_instances.bboxes = sample.gt_instances.bboxes.tensor
            sample.gt_instances = copy.deepcopy(sample.gt_instances)
            samples.append(sample)

        class Runner:
            timestamp, work_dir = "t", str(tmp_path)

        hook.after_test_iter(Runner(), 0, {}, samples)
        assert sorted(p.name for p in tmp_path.rglob("*.png")) == ["000000.png", "000001.png"]
