"""Draw the result of any of the three tasks on its image, with the visualiser of the host library."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import cv2
import numpy as np
import torch

from .colors import distinct_colors
from .task_pictures import LEGIBLE_SIDE as TASK_SIDE
from .task_pictures import draw_tasks

__all__ = ["draw_prediction"]

# Smaller pictures are enlarged before text goes on them.
LEGIBLE_SIDE = 320


def draw_prediction(
    image: np.ndarray,
    sample: Any,
    dataset_meta: Mapping[str, Any] | None = None,
    score_threshold: float = 0.3,
    alpha: float = 0.55,
) -> np.ndarray:
    """The image with its predicted label map, boxes and masks, or class and score; of several tasks all, side by side.

    Args:
        image: (H, W, 3) uint8 RGB, at the original size that the predictions refer to.
        sample: the data sample that the model returned. ``pred_sem_seg``, ``pred_instances`` or ``pred_label`` tells
            the
            task.
        dataset_meta: ``classes`` and ``palette``; numbers and distinct colours where they are missing.
        score_threshold: boxes below it are not drawn.
        alpha: opacity of label maps and masks.

    Returns:
        (h, w, 3) uint8 RGB; a whole multiple of the image's size if that is below 320 pixels.

    Raises:
        ValueError: the sample holds none of the three kinds of predictions.
    """
    meta = dict(dataset_meta or {})
    if "tasks" in sample.metainfo:
        return _draw_all_tasks(image, sample, meta, score_threshold, alpha)
    scale = max(1, -(-LEGIBLE_SIDE // min(image.shape[:2])))
    if scale > 1:
        image = cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC)
    sample = sample.cpu() if hasattr(sample, "cpu") else sample
    if "pred_sem_seg" in sample:
        return _draw_segmentation(image, sample.pred_sem_seg.data, meta, scale, alpha)
    if "pred_instances" in sample:
        return _draw_instances(image, sample.pred_instances, meta, scale, score_threshold, alpha)
    if "pred_label" in sample:
        return _draw_label(image, sample, meta)
    raise ValueError(
        f"nothing to draw in a data sample with {sorted(sample.keys())}: expected pred_sem_seg, pred_instances or "
        "pred_label"
    )


def _draw_all_tasks(image: np.ndarray, sample: Any, meta: dict, score_threshold: float, alpha: float) -> np.ndarray:
    instances = None
    if "pred_instances" in sample:
        # Their classes are not those of the label map.
        names = dict(classes=meta.get("instance_classes"))
        scale = max(1, -(-TASK_SIDE // min(image.shape[:2])))
        large = cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC)
        instances = _draw_instances(large, sample.cpu().pred_instances, names, scale, score_threshold, alpha)
    return draw_tasks(image, sample, meta, alpha, instances)


def _draw_segmentation(image: np.ndarray, labels: torch.Tensor, meta: dict, scale: int, alpha: float) -> np.ndarray:
    from mmengine.structures import PixelData
    from mmseg.structures import SegDataSample
    from mmseg.visualization import SegLocalVisualizer

    count = int(labels.max()) + 1
    classes = list(meta.get("classes") or [str(i) for i in range(count)])
    # Without a palette the host would take that of Cityscapes, whatever the classes are.
    palette = meta.get("palette") or distinct_colors(len(classes)).tolist()
    large = labels.repeat_interleave(scale, dim=-2).repeat_interleave(scale, dim=-1)
    visualizer = SegLocalVisualizer(alpha=alpha)
    visualizer.dataset_meta = dict(classes=classes, palette=palette)
    sample = SegDataSample(pred_sem_seg=PixelData(data=large))
    visualizer.add_datasample("prediction", image, sample, draw_gt=False)
    return visualizer.get_image()


def _draw_instances(
    image: np.ndarray, instances: Any, meta: dict, scale: int, score_threshold: float, alpha: float
) -> np.ndarray:
    from mmdet.structures import DetDataSample
    from mmdet.visualization import DetLocalVisualizer
    from mmengine.structures import InstanceData

    keep = instances.scores > score_threshold
    large = InstanceData(
        bboxes=instances.bboxes[keep] * scale, labels=instances.labels[keep], scores=instances.scores[keep]
    )
    if "masks" in instances:
        masks = torch.as_tensor(instances.masks)[keep]
        large.masks = masks.repeat_interleave(scale, dim=-2).repeat_interleave(scale, dim=-1)
    visualizer = DetLocalVisualizer(alpha=alpha, line_width=2)
    visualizer.dataset_meta = dict(classes=meta.get("classes"), palette=meta.get("palette") or "random")
    sample = DetDataSample(pred_instances=large)
    with warnings.catch_warnings():
        # A box may touch the border of the image.
        warnings.filterwarnings("ignore", message=".* out of bounds", category=UserWarning)
        visualizer.add_datasample("prediction", image, sample, draw_gt=False, pred_score_thr=score_threshold)
    return visualizer.get_image()


def _draw_label(image: np.ndarray, sample: Any, meta: dict) -> np.ndarray:
    from mmpretrain.visualization import UniversalVisualizer

    visualizer = UniversalVisualizer()
    visualizer.visualize_cls(image, sample, classes=meta.get("classes"), draw_gt=False)
    return visualizer.get_image()
