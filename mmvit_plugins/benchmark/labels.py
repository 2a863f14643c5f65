"""Made-up labels to measure training steps with, the same at each call."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.structures import InstanceData, PixelData
from torch import Tensor, nn

from ..models.multitask import DenseTask, MultiTaskModel, SegmentationTask
from ..structures import MultiTaskSample

__all__ = ["training_samples"]


def training_samples(scope: str, model: nn.Module, size: tuple[int, int], count: int) -> list[Any]:
    """Data samples with labels for every task of a whole model.

    Args:
        scope: ``default_scope`` of its config.
        model: as it was built; its heads say how many classes there are.
        size: height and width of the images.
        count: how many.

    Raises:
        ValueError: a model whose labels are not known here.
    """
    makers = dict(mmseg=_segmentation, mmdet=_detection, mmpretrain=_classification)
    maker = _several_tasks if isinstance(model, MultiTaskModel) else makers.get(scope)
    if maker is None:
        raise ValueError(
            f"whole models are measured for default_scope {', '.join(makers)}, got {scope!r}: use --part backbone"
        )
    meta = dict(img_shape=size, ori_shape=size, pad_shape=size, batch_input_shape=size, scale_factor=(1.0, 1.0))
    return [maker(model, size, dict(meta, img_id=i, img_path=""), i) for i in range(count)]


def _stripes(size: tuple[int, int], index: int) -> Tensor:
    """(1, H, W) long, growing every 16 pixels: with a modulus, label maps that hold every class."""
    return torch.arange(size[0] * size[1]).reshape(1, *size) // 16 + index


def _segmentation(model: nn.Module, size: tuple[int, int], meta: dict, index: int) -> Any:
    from mmseg.structures import SegDataSample

    classes = getattr(model, "num_classes", None)
    if not isinstance(classes, int):
        raise ValueError(f"{type(model).__name__} does not say how many classes it has: use --part backbone")
    return SegDataSample(gt_sem_seg=PixelData(data=_stripes(size, index) % classes), metainfo=meta)


def _detection(model: nn.Module, size: tuple[int, int], meta: dict, index: int) -> Any:
    from mmdet.structures import DetDataSample

    return _with_instances(DetDataSample(metainfo=meta), model, size)


def _with_instances(sample: Any, detector: nn.Module, size: tuple[int, int]) -> Any:
    """Two objects with boxes and masks, and none to be ignored."""
    from mmdet.structures.mask import BitmapMasks

    height, width = size
    boxes = torch.tensor([[0.1, 0.1, 0.5, 0.6], [0.4, 0.3, 0.9, 0.9]]) * torch.tensor([width, height] * 2)
    masks = np.zeros((len(boxes), height, width), np.uint8)
    for mask, (left, top, right, bottom) in zip(masks, boxes.int().tolist(), strict=True):
        mask[top:bottom, left:right] = 1
    labels = torch.arange(len(boxes)) % _class_count(detector)
    sample.gt_instances = InstanceData(bboxes=boxes, labels=labels, masks=BitmapMasks(masks, height, width))
    sample.ignored_instances = InstanceData(bboxes=torch.zeros(0, 4), labels=torch.zeros(0, dtype=torch.long))
    return sample


def _class_count(detector: nn.Module) -> int:
    """Classes of the head that tells them apart (the RPN of two stages does not)."""
    head = getattr(getattr(detector, "roi_head", None), "bbox_head", None)
    head = getattr(detector, "bbox_head", None) if head is None else head
    head = head[-1] if isinstance(head, nn.ModuleList) else head
    return int(getattr(head, "num_classes", 1))


def _classification(model: nn.Module, size: tuple[int, int], meta: dict, index: int) -> Any:
    from mmpretrain.structures import DataSample

    return DataSample(metainfo=meta).set_gt_label(index % 2)


def _several_tasks(model: MultiTaskModel, size: tuple[int, int], meta: dict, index: int) -> MultiTaskSample:
    sample = MultiTaskSample(metainfo=meta)
    for task in model.tasks.values():
        if isinstance(task, DenseTask):
            sample.set_field(PixelData(data=_dense_label(task, size, index)), task.map.truth)
        else:
            _with_instances(sample, task.detector, size)
    return sample


def _dense_label(task: DenseTask, size: tuple[int, int], index: int) -> Tensor:
    """(channels of the label, H, W): class numbers, metres from 1 to 5, or unit vectors."""
    stripes = _stripes(size, index)
    if task.map.is_label:
        # Boundaries and saliency are yes or no, however many logits the task has.
        return stripes % (task.channels if isinstance(task, SegmentationTask) else 2)
    values = 1.0 + (stripes + torch.arange(task.map.channels).view(-1, 1, 1)) % 5
    return F.normalize(values, dim=0) if task.map.channels > 1 else values
