"""Images and labels to measure on."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["load_images", "training_samples"]

#: Seed of the rendered scenes (of the test split): which does not matter, that it is always the same does.
SCENE_SEED = 0


@functools.lru_cache(maxsize=64)
def _scene(index: int, size: tuple[int, int]) -> Tensor:
    """(3, H, W) uint8 RGB of a rendered scene."""
    from mmvit_plugins.datasets.scenes import render_scene

    return _channels_first(render_scene(SCENE_SEED, "test", index, size).rgb)


@functools.lru_cache(maxsize=64)
def _photograph(path: str, size: tuple[int, int]) -> Tensor:
    """(3, H, W) uint8 RGB of a file, resized."""
    from PIL import Image

    with Image.open(path) as image:
        return _channels_first(np.asarray(image.convert("RGB").resize((size[1], size[0]), Image.Resampling.BICUBIC)))


def _channels_first(pixels: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def load_images(paths: Sequence[str], size: tuple[int, int], batch: int, image: int | None = None) -> list[Tensor]:
    """``batch`` images (3, H, W) uint8, the given ones in turn or rendered scenes; with ``image`` only that one."""
    wanted = range(batch) if image is None else [image]
    return [_photograph(paths[i % len(paths)], size) if paths else _scene(i, size) for i in wanted]


def training_samples(scope: str, model: Any, size: tuple[int, int], count: int) -> list[Any]:
    """Data samples with made-up labels, the same at each call, for the host library ``scope``.

    Raises:
        ValueError: a library whose labels are not known here.
    """
    makers = dict(mmseg=_segmentation, mmdet=_detection, mmpretrain=_classification)
    if scope not in makers:
        raise ValueError(
            f"whole models are measured for default_scope {', '.join(makers)}, got {scope!r}: use --part backbone"
        )
    meta = dict(img_shape=size, ori_shape=size, pad_shape=size, batch_input_shape=size, scale_factor=(1.0, 1.0))
    return [makers[scope](model, size, dict(meta, img_id=i, img_path=""), i) for i in range(count)]


def _segmentation(model: Any, size: tuple[int, int], meta: dict, index: int) -> Any:
    from mmengine.structures import PixelData
    from mmseg.structures import SegDataSample

    head = model.get("decode_head")
    head = head[-1] if isinstance(head, (list, tuple)) else head
    # Stripes of all classes: a label map that is right everywhere for no class.
    labels = (torch.arange(size[0] * size[1]).reshape(1, *size) // 16 + index) % head["num_classes"]
    return SegDataSample(gt_sem_seg=PixelData(data=labels), metainfo=meta)


def _detection(model: Any, size: tuple[int, int], meta: dict, index: int) -> Any:
    from mmdet.structures import DetDataSample
    from mmdet.structures.mask import BitmapMasks
    from mmengine.structures import InstanceData

    height, width = size
    boxes = torch.tensor([[0.1, 0.1, 0.5, 0.6], [0.4, 0.3, 0.9, 0.9]]) * torch.tensor([width, height] * 2)
    masks = np.zeros((len(boxes), height, width), np.uint8)
    for mask, (left, top, right, bottom) in zip(masks, boxes.int().tolist(), strict=True):
        mask[top:bottom, left:right] = 1
    sample = DetDataSample(metainfo=meta)
    sample.gt_instances = InstanceData(
        bboxes=boxes, labels=torch.tensor([0, 1]), masks=BitmapMasks(masks, height, width)
    )
    sample.ignored_instances = InstanceData(bboxes=torch.zeros(0, 4), labels=torch.zeros(0, dtype=torch.long))
    return sample


def _classification(model: Any, size: tuple[int, int], meta: dict, index: int) -> Any:
    from mmpretrain.structures import DataSample

    return DataSample(metainfo=meta).set_gt_label(index % 2)
