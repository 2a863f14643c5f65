"""Mean intersection over union of a task with class numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mmvit_plugins.environment import require
from mmvit_plugins.registry import METRICS

from .task_metric import TaskMetric

__all__ = ["LabelMetric"]


@METRICS.register_module()
class LabelMetric(TaskMetric):
    """mIoU over classes from counts over the set, computed by MMSegmentation's ``IoUMetric``.

    That metric itself serves a model that predicts semantic segmentation only; this one takes any task with class
    numbers and leaves out samples without label. Human parts are counted over 7 classes, background included.

    Args:
        num_classes: number of classes. A class that occurs in neither labels nor predictions does not count.
        task: 'semseg' or 'parts'.
        prefix: see :class:`TaskMetric`.
        collect_device: see :class:`TaskMetric`.

    Results, in percent: ``mIoU``, ``mAcc`` (mean over classes), ``aAcc`` (share of the pixels).
    """

    def __init__(
        self, num_classes: int, task: str = "semseg", prefix: str | None = None, collect_device: str = "cpu"
    ) -> None:
        super().__init__(task, prefix, collect_device)
        self.num_classes = num_classes

    def measure(self, prediction: np.ndarray, truth: np.ndarray) -> Any:
        """(4, classes): pixels of intersection, union, prediction and label."""
        require("mmseg")
        from mmseg.evaluation import IoUMetric

        areas = IoUMetric.intersect_and_union(
            torch.as_tensor(prediction[0]), torch.as_tensor(truth[0].astype(np.int64)), self.num_classes, self.map.fill
        )
        return np.stack([area.numpy() for area in areas]).astype(np.float64)

    def summarize(self, results: list[Any]) -> dict[str, float]:
        """See the class."""
        from mmseg.evaluation import IoUMetric

        areas = [torch.from_numpy(area) for area in np.sum(results, axis=0)]
        values = IoUMetric.total_area_to_metrics(*areas, ["mIoU"], None, 1)
        return dict(
            mIoU=float(np.nanmean(values["IoU"]) * 100),
            mAcc=float(np.nanmean(values["Acc"]) * 100),
            aAcc=float(np.mean(values["aAcc"]) * 100),
        )
