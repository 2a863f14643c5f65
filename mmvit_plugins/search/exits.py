"""Search of exit thresholds under a budget of mean cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from optuna.trial import Trial
from torch import Tensor, nn
from torch.utils.data import DataLoader

from mmvit_plugins.evaluation.exit_rule import ExitOutcome, ExitScores, published_candidates, simulate_exits

from .latency import trimmed_mean_seconds

__all__ = [
    "ExitProblem",
    "best_within",
    "collect_scores",
    "read_scores",
    "store_thresholds",
    "time_early_exit",
    "write_scores",
]


@torch.no_grad()
def collect_scores(model: nn.Module, loader: DataLoader, costs: tuple[float, ...]) -> ExitScores:
    """Confidences of all exits on every sample of a loader.

    Args:
        model: ``DVTClassifier`` in eval mode.
        loader: batches of MMPretrain, with labels.
        costs: of a sample that leaves at each exit.
    """
    confidence: list[Tensor] = []
    correct: list[Tensor] = []
    for batch in loader:
        data = model.data_preprocessor(batch, False)
        labels = torch.cat([sample.gt_label for sample in data["data_samples"]])
        probs = torch.stack([logits.float().softmax(dim=-1) for logits in model(data["inputs"])])
        best, guess = probs.max(dim=-1)
        confidence.append(best.cpu())
        correct.append((guess == labels.to(guess.device)).cpu())
    return ExitScores(torch.cat(confidence, dim=1), torch.cat(correct, dim=1), tuple(costs))


class ExitProblem:
    """Thresholds for all exits but the last, as quantiles of the confidences on the held-out split.

    The mean cost needs no labels, so a candidate above the budget is rejected before its accuracy is computed.

    Args:
        scores: of the held-out split.
    """

    def __init__(self, scores: ExitScores) -> None:
        self.scores = scores

    def suggest(self, trial: Trial) -> list[float]:
        """One threshold for each exit but the last: the confidence that a share of all samples does not reach."""
        thresholds = []
        for number in range(len(self.scores.confidence) - 1):
            share = trial.suggest_float(f"quantile_{number + 1}", 0.0, 1.0)
            thresholds.append(float(torch.quantile(self.scores.confidence[number], share)))
        return thresholds

    def cost(self, candidate: list[float]) -> float:
        """Mean cost of a sample."""
        return simulate_exits(self.scores, candidate).cost

    def score(self, candidate: list[float]) -> float:
        """Accuracy in percent."""
        return simulate_exits(self.scores, candidate).accuracy


def best_within(scores: ExitScores, budget: float) -> ExitOutcome | None:
    """The published rule for a budget: of p = 1..59 the best accuracy within it, of equal ones the cheapest.

    The rule gives a family of thresholds; the choice by held-out accuracy is ours. None: no p is cheap enough.
    """
    legal = [outcome for outcome in published_candidates(scores) if outcome.cost <= budget]
    return max(legal, key=lambda outcome: (outcome.accuracy, -outcome.cost), default=None)


def write_scores(scores: ExitScores, path: Path) -> None:
    """Keep scores for helper processes."""
    torch.save(dict(confidence=scores.confidence, correct=scores.correct, costs=list(scores.costs)), path)


def read_scores(path: Path) -> ExitScores:
    """What :func:`write_scores` wrote."""
    content = torch.load(path, weights_only=True)
    return ExitScores(content["confidence"], content["correct"], tuple(content["costs"]))


def store_thresholds(checkpoint: str, target: Path, record: dict[str, Any]) -> None:
    """Copy weights and meta of a checkpoint, with ``record`` as ``meta['early_exit']``; no optimiser state.

    Args:
        checkpoint: file or URL.
        target: the new file, complete or not there.
        record: ``thresholds`` and ``costs`` of all exits, and whatever explains them.
    """
    from mmengine.runner import CheckpointLoader

    from mmvit_plugins.engine import reading_checkpoint
    from mmvit_plugins.engine.resume_point import publish_whole_file

    with reading_checkpoint(checkpoint):
        content = CheckpointLoader.load_checkpoint(checkpoint, map_location="cpu")
    meta = dict(content.get("meta") or {}, early_exit=record)
    part = target.with_name(target.name + ".part")
    torch.save(dict(meta=meta, state_dict=content.get("state_dict", content)), part)
    publish_whole_file(part, target)


@torch.no_grad()
def time_early_exit(
    model: nn.Module,
    loader: DataLoader,
    scores: ExitScores,
    rounds: int = 5,
    strengths: tuple[int, ...] = (4, 8, 12, 16, 20, 26, 34, 45, 59),
    beside: nn.Module | None = None,
) -> list[dict[str, Any]]:
    """Wall time of real early exit on a loader, for thresholds of the published rule and for the last exit alone.

    Args:
        model: ``DVTClassifier`` in eval mode.
        loader: labelled batches; read and preprocessed before the clock starts.
        scores: of the held-out split, where thresholds come from.
        rounds: passes over the loader for each row; all rows take turns, the inner half is averaged.
        strengths: values of p.
        beside: another ``DVTClassifier`` in eval mode for the same samples, run to its last exit: time and accuracy of
            the row ``beside``, without a cost.
    """
    batches = []
    for batch in loader:
        data = model.data_preprocessor(batch, False)
        batches.append((data["inputs"], torch.cat([sample.gt_label for sample in data["data_samples"]])))
    count = sum(len(labels) for _, labels in batches)
    limits: dict[str, tuple[float, ...] | None] = {"all to the last exit": None}
    limits |= {
        f"p = {p}": o.thresholds[:-1] for p, o in zip(strengths, published_candidates(scores, strengths), strict=True)
    }
    rows = []
    for name, limit in limits.items():
        results = [(model.run_exits(images, limit), labels) for images, labels in batches]
        right = sum(int((r.scores.argmax(-1) == labels.to(r.scores.device)).sum()) for r, labels in results)
        cost = sum(scores.costs[i] for r, _ in results for i in r.index.tolist()) / count
        rows.append(dict(name=name, accuracy=100 * right / count, cost=cost))
    calls = [lambda limit=limit: [model.run_exits(images, limit) for images, _ in batches] for limit in limits.values()]
    if beside is not None:
        results = [(beside.run_exits(images, None).scores.argmax(-1), labels) for images, labels in batches]
        right = sum(int((guess == labels.to(guess.device)).sum()) for guess, labels in results)
        rows.append(dict(name="beside", accuracy=100 * right / count, cost=None))
        calls.append(lambda: [beside.run_exits(images, None) for images, _ in batches])
    seconds = trimmed_mean_seconds(calls, str(batches[0][0].device), rounds, warmup=1)
    return [dict(row, milliseconds=1e3 * taken / count) for row, taken in zip(rows, seconds, strict=True)]
