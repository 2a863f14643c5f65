"""What the metrics of dense tasks share: which sample counts, and what is kept of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mmengine.evaluator import BaseMetric
from mmengine.logging import print_log

from mmvit_plugins.structures import find_task_map

__all__ = ["TaskMetric"]


class TaskMetric(BaseMetric):
    """Base of the metrics of dense tasks. Samples without a label of the task, or with no known pixel in it, are left
    out.

    A subclass reduces a sample to a few numbers in :meth:`measure` and sums them up in :meth:`summarize`. Every sample
    leaves one entry, measured or not, because mmengine puts the shares of several processes together by their order.

    Args:
        task: the task, and the prefix of the results (``depth/rmse``).
        prefix: another prefix.
        collect_device: 'cpu' or 'gpu': where several processes put their entries together.
    """

    def __init__(self, task: str, prefix: str | None = None, collect_device: str = "cpu") -> None:
        super().__init__(collect_device=collect_device, prefix=prefix or task)
        self.task = task
        self.map = find_task_map(task)

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Measure the samples of a batch.

        Raises:
            ValueError: prediction and label differ in size.
        """
        for sample in data_samples:
            truth, prediction = sample.get(self.map.truth), sample.get(self.map.prediction)
            if truth is None or prediction is None:
                self.results.append(None)
                continue
            truth, prediction = _array(truth["data"]), _array(prediction["data"])
            if truth.shape[-2:] != prediction.shape[-2:]:
                raise ValueError(
                    f"{self.task} of {sample.get('img_path')}: the prediction has {prediction.shape[-2:]} pixels, the "
                    f"label {truth.shape[-2:]}. In a test pipeline labels are loaded after the image is resized, so "
                    "that they keep their own size."
                )
            known = np.isfinite(truth) & (truth != self.map.fill)
            self.results.append(self.measure(prediction, truth) if known.any() else None)

    def compute_metrics(self, results: list[Any]) -> dict[str, float]:
        """The metrics over all samples that count; none, with a line in the log, if there are no such samples."""
        kept = [result for result in results if result is not None]
        if not kept:
            print_log(f"no sample has both a prediction and a label of {self.task}: nothing measured", "current")
            return {}
        return self.summarize(kept)

    def measure(self, prediction: np.ndarray, truth: np.ndarray) -> Any:
        """(channels, H, W) each -> what is kept of a sample."""
        raise NotImplementedError

    def summarize(self, results: list[Any]) -> dict[str, float]:
        """The entries of all samples -> metrics."""
        raise NotImplementedError


def _array(data: Any) -> np.ndarray:
    return data.detach().cpu().numpy() if hasattr(data, "detach") else np.asarray(data)
