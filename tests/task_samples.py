"""Samples of dense tasks for the tests of metrics."""

from __future__ import annotations

import numpy as np
import torch
from mmengine.structures import PixelData

from mmvit_plugins.evaluation.task_metric import TaskMetric
from mmvit_plugins.structures import MultiTaskSample


def run(metric: TaskMetric, *pairs: tuple) -> dict[str, float]:
    """The metric over (prediction, truth) pairs of (C, H, W) or (H, W); None is missing."""
    samples = []
    for pair in pairs:
        sample = MultiTaskSample(metainfo=dict(img_path="made up"))
        for name, values in zip((metric.map.prediction, metric.map.truth), pair, strict=True):
            if values is not None:
                values = np.asarray(values)
                sample.set_field(PixelData(data=torch.as_tensor(values if values.ndim == 3 else values[None])), name)
        samples.append(sample.to_dict())
    metric.process({}, samples)
    return metric.evaluate(len(pairs))
