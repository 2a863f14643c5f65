"""Metrics of saliency, in the conventions of the two reference implementations."""

from __future__ import annotations

from typing import Any

import numpy as np

from mmvit_plugins.registry import METRICS

from .task_metric import TaskMetric

__all__ = ["SaliencyMetric"]

# Thresholds on the probability: 15 of the survey (and ASTMT), 19 of InvPT.
SURVEY_THRESHOLDS = np.linspace(0.2, 0.9, 15)
INVPT_THRESHOLDS = np.arange(1, 20) / 20
# InvPT's code puts a sigmoid on what is a probability already, so that thresholds up to 0.5 do nothing and the others
# act as the thresholds logit(t) on the probability: 0.55 as 0.20, 0.70 as 0.85, and above 0.731 as "never".
INVPT_EFFECTIVE = np.log(INVPT_THRESHOLDS / (1 - INVPT_THRESHOLDS))


@METRICS.register_module()
class SaliencyMetric(TaskMetric):
    """maxF and max-mIoU: the best value over a set of thresholds. The conventions are not comparable.

    Args:
        task: 'saliency'.
        prefix: see :class:`TaskMetric`.
        collect_device: see :class:`TaskMetric`.

    Results, in percent:

    * ``maxF_survey``, ``max_mIoU_survey``: survey and ASTMT. Thresholds 0.2 to 0.9; precision, recall and IoU of each
      image averaged over images; F with beta^2 = 1. Of an image in which nothing is salient and nothing is found all
      three are 1; of one where either is missing they are 0.
    * ``maxF_invpt``, ``max_mIoU_invpt``: InvPT and TaskPrompter. Thresholds 0.05 to 0.95, pixels counted over the whole
      set, F with beta^2 = 0.3, after a second sigmoid as in their code: compare with their published numbers.
    * ``maxF_dataset``, ``max_mIoU_dataset``: the same without the second sigmoid.
    """

    def __init__(self, task: str = "saliency", prefix: str | None = None, collect_device: str = "cpu") -> None:
        super().__init__(task, prefix, collect_device)

    def measure(self, prediction: np.ndarray, truth: np.ndarray) -> Any:
        """(thresholds of the three conventions, 3): pixels found and salient, found, salient."""
        known = truth != self.map.fill
        probability, salient = prediction[known].astype(np.float64), truth[known] == 1
        thresholds = np.concatenate([SURVEY_THRESHOLDS, INVPT_EFFECTIVE, INVPT_THRESHOLDS])
        counts = np.empty((len(thresholds), 3))
        for row, threshold in zip(counts, thresholds, strict=True):
            found = probability > threshold
            row[:] = (found & salient).sum(), found.sum(), salient.sum()
        return counts

    def summarize(self, results: list[Any]) -> dict[str, float]:
        """See the class."""
        images = np.stack(results)  # (images, thresholds, 3)
        ends = np.cumsum([len(SURVEY_THRESHOLDS), len(INVPT_EFFECTIVE)])
        survey, invpt, dataset = np.split(images, ends, axis=1)
        precision, recall, iou = (value.mean(0) for value in _rates(survey))
        found = dict(maxF_survey=_f_measure(precision, recall, 1.0).max(), max_mIoU_survey=iou.max())
        for name, counts in (("invpt", invpt), ("dataset", dataset)):
            precision, recall, iou = _rates(counts.sum(0))
            found |= {f"maxF_{name}": _f_measure(precision, recall, 0.3).max(), f"max_mIoU_{name}": iou.max()}
        return {name: float(100 * value) for name, value in found.items()}


def _rates(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(..., 3) counts -> precision, recall and IoU; 1 where nothing is salient and nothing found."""
    both, found, salient = np.moveaxis(counts, -1, 0)
    nothing = (found == 0) & (salient == 0)
    return tuple(
        np.where(nothing, 1.0, both / np.maximum(whole, 1)) for whole in (found, salient, found + salient - both)
    )


def _f_measure(precision: np.ndarray, recall: np.ndarray, beta_square: float) -> np.ndarray:
    weighted = beta_square * precision + recall
    return np.where(weighted > 0, (1 + beta_square) * precision * recall / np.where(weighted > 0, weighted, 1), 0.0)
