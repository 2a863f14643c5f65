"""F-measure of boundaries with a one-to-one matching."""

from __future__ import annotations

from typing import Any

import numpy as np

from mmvit_plugins.registry import METRICS

from .boundary_matching import count_matches, suppress_non_maxima, thin_lines
from .task_metric import TaskMetric

__all__ = ["BoundaryMetric"]


@METRICS.register_module()
class BoundaryMetric(TaskMetric):
    """odsF: F at the threshold that is best for the whole set; oisF: with the best threshold of each image.

    For each threshold the probabilities, after non-maximum suppression, become a mask, which is thinned and matched one
    to one with the label within ``max_dist`` of the image's diagonal. Precision and recall come from counts over all
    images. Between neighbouring thresholds they are interpolated, as the Berkeley benchmark does.

    Args:
        max_dist: 0.0075 for PASCAL-Context, 0.011 for NYUD-v2.
        num_thresholds: evenly spaced between 0 and 1; 99 in HED and after.
        nms: non-maximum suppression of the probabilities.
        thin_truth: thin the label too, so that no line of it has more pixels than a thin prediction can match.
        task: 'boundary'.
        prefix: see :class:`TaskMetric`.
        collect_device: see :class:`TaskMetric`.

    Results, in percent: ``odsF``, ``oisF``, and ``threshold``, the best one of the set (0 to 1).

    Raises:
        ValueError: ``max_dist`` or ``num_thresholds`` is not positive.
    """

    def __init__(
        self,
        max_dist: float = 0.0075,
        num_thresholds: int = 99,
        nms: bool = True,
        thin_truth: bool = True,
        task: str = "boundary",
        prefix: str | None = None,
        collect_device: str = "cpu",
    ) -> None:
        super().__init__(task, prefix, collect_device)
        if not max_dist > 0 or num_thresholds < 1:
            raise ValueError(
                f"BoundaryMetric needs max_dist > 0 and num_thresholds >= 1, got {max_dist} and {num_thresholds}"
            )
        self.max_dist = max_dist
        self.nms = nms
        self.thin_truth = thin_truth
        self.thresholds = np.arange(1, num_thresholds + 1) / (num_thresholds + 1)

    def measure(self, prediction: np.ndarray, truth: np.ndarray) -> Any:
        """(thresholds, 3): pairs, predicted pixels, true pixels."""
        known, label = truth[0] != self.map.fill, truth[0] == 1
        label = thin_lines(label) if self.thin_truth else label
        probability = suppress_non_maxima(prediction[0]) if self.nms else prediction[0]
        radius = self.max_dist * float(np.hypot(*label.shape))
        counts = np.zeros((len(self.thresholds), 3))
        previous = None
        for row, threshold in zip(counts, self.thresholds, strict=True):
            mask = probability >= threshold
            if previous is not None and np.array_equal(mask, previous[0]):
                row[:] = previous[1]
                continue
            # Thinned before pixels without label go: they may be part of a line.
            thinned = thin_lines(mask) & known
            row[:] = count_matches(thinned, label, radius), thinned.sum(), label.sum()
            previous = mask, row
        return counts

    def summarize(self, results: list[Any]) -> dict[str, float]:
        """See the class."""
        images = np.stack(results)
        best, place = _best_f(images.sum(0))
        single = np.stack([counts[_f_measure(counts).argmax()] for counts in images]).sum(0)
        position = np.interp(place, np.arange(len(self.thresholds)), self.thresholds)
        return dict(odsF=100 * best, oisF=100 * float(_f_measure(single)), threshold=float(position))


def _f_measure(counts: np.ndarray) -> np.ndarray:
    """(..., 3) counts -> F = 2 P R / (P + R), which is 2 pairs / (predicted + true)."""
    pairs, predicted, true = np.moveaxis(counts, -1, 0)
    return np.where(pairs > 0, 2 * pairs / np.maximum(predicted + true, 1), 0.0)


def _best_f(counts: np.ndarray) -> tuple[float, float]:
    """The largest F over the thresholds and on straight lines between neighbours, and its place among them."""
    precision = counts[:, 0] / np.maximum(counts[:, 1], 1)
    recall = counts[:, 0] / np.maximum(counts[:, 2], 1)
    steps = np.linspace(0, 1, 101)
    places = (np.arange(max(len(counts) - 1, 1))[:, None] + steps).ravel()
    places = places[places <= len(counts) - 1] if len(counts) > 1 else np.zeros(1)
    precision, recall = (np.interp(places, np.arange(len(counts)), value) for value in (precision, recall))
    total = precision + recall
    f = np.where(total > 0, 2 * precision * recall / np.where(total > 0, total, 1), 0.0)
    return float(f.max()), float(places[f.argmax()])
