"""Accuracy of classifiers with several exits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from mmengine.evaluator import BaseMetric

from mmvit_plugins.registry import METRICS

__all__ = ["ExitAccuracy"]


@METRICS.register_module()
class ExitAccuracy(BaseMetric):
    """Accuracy of the answers, of each exit, and how many samples each exit answers.

    Reads the data samples of ``mmvit_plugins.DVTClassifier``. Reports, in percent: ``accuracy/top1`` of the answers
    (and other k), ``accuracy/exitN_top1`` of each exit on *all* samples, when all exits were run (the anytime curve is
    these against the cost of each exit), ``accuracy/exitN_share`` of samples answered by each exit, and
    ``accuracy/mean_cost`` and ``accuracy/exitN_cost`` in the unit of the checkpoint's meta, when it holds costs.

    Args:
        topk: the k of top-k accuracy.
        num_exits: number of exits; None: as many as the samples show.
        collect_device: as in mmengine.
        prefix: as in mmengine.

    Raises:
        ValueError: an illegal ``topk``.
    """

    default_prefix = "accuracy"

    def __init__(
        self,
        topk: int | Sequence[int] = (1,),
        num_exits: int | None = None,
        collect_device: str = "cpu",
        prefix: str | None = None,
    ) -> None:
        super().__init__(collect_device=collect_device, prefix=prefix)
        self.topk = (topk,) if isinstance(topk, int) else tuple(topk)
        if not self.topk or any(k < 1 for k in self.topk):
            raise ValueError(f"topk lists numbers of guesses from 1 up, got {topk!r}")
        self.num_exits = num_exits

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Keep of each sample the rank of its label in the answer, and in every exit's scores."""
        for sample in data_samples:
            label = int(sample["gt_label"])
            costs, scores = sample.get("exit_costs"), sample.get("exit_scores")
            self.results.append(
                dict(
                    rank=_rank(sample["pred_score"], label),
                    exit=int(sample["exit_index"]),
                    ranks=None if scores is None else [_rank(row, label) for row in scores],
                    costs=None if costs is None else tuple(float(cost) for cost in costs),
                )
            )

    def compute_metrics(self, results: list[dict]) -> dict[str, float]:
        """The figures of all samples."""
        shown = max(result["exit"] for result in results) + 1
        ranks = [result["ranks"] for result in results]
        costs = results[0]["costs"]
        exits = self.num_exits or max(shown, len(ranks[0] or ()), len(costs or ()))
        metrics = {f"top{k}": _percent(result["rank"] < k for result in results) for k in self.topk}
        for number in range(exits):
            name = f"exit{number + 1}"
            if all(row is not None for row in ranks):
                metrics |= {f"{name}_top{k}": _percent(row[number] < k for row in ranks) for k in self.topk}
            metrics[f"{name}_share"] = _percent(result["exit"] == number for result in results)
            if costs:
                metrics[f"{name}_cost"] = costs[number]
        if costs:
            metrics["mean_cost"] = sum(costs[result["exit"]] for result in results) / len(results)
        return metrics


def _rank(scores: torch.Tensor, label: int) -> int:
    """How many classes score higher than ``label``; of equal ones the lower numbers count as higher."""
    own = scores[label]
    return int((scores > own).sum() + (scores[:label] == own).sum())


def _percent(hits: Any) -> float:
    hits = list(hits)
    return 100.0 * sum(hits) / len(hits)
