"""Exit thresholds for a budget: the published rule, and what thresholds give on stored confidences.

DVT's published code takes MSDNet's rule (arXiv 1703.09844) with shares q_k proportional to (p / 20)^k; see docs/dvt.md.
Everything here works on the confidences of *all* exits for N labelled samples, from a held-out split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "NEVER",
    "ExitOutcome",
    "ExitScores",
    "exit_shares",
    "find_thresholds",
    "published_candidates",
    "simulate_exits",
]

# No confidence reaches it: the exit is not used. Its negative is the last exit's, which takes everybody.
NEVER = 1e8


@dataclass(frozen=True)
class ExitScores:
    """What all exits say about N samples.

    Args:
        confidence: (K, N) largest softmax probability of each exit.
        correct: (K, N) bool, whether the exit's class is right.
        costs: K costs of a sample that leaves at an exit (all models up to it), in any unit.
    """

    confidence: Tensor
    correct: Tensor
    costs: tuple[float, ...]

    @classmethod
    def from_probabilities(cls, probs: Tensor, targets: Tensor, costs: Sequence[float]) -> ExitScores:
        """From probabilities (K, N, classes) and labels (N,).

        Raises:
            ValueError: shapes that do not belong together.
        """
        if probs.dim() != 3 or targets.shape != probs.shape[1:2] or len(costs) != len(probs):
            raise ValueError(
                "wanted probabilities (K, N, classes), N labels and K costs, got "
                f"{tuple(probs.shape)}, {tuple(targets.shape)} and {len(costs)}"
            )
        confidence, labels = probs.max(dim=-1)
        return cls(confidence, labels == targets, tuple(float(c) for c in costs))


@dataclass(frozen=True)
class ExitOutcome:
    """What thresholds give: accuracy in percent, mean cost of a sample, and the share of samples of each exit."""

    thresholds: tuple[float, ...]
    accuracy: float
    cost: float
    shares: tuple[float, ...]


def exit_shares(p: int, num_exits: int) -> Tensor:
    """(K,) float32 shares of samples that leave at each exit, proportional to (p / 20)^k, k = 1..K."""
    powers = torch.log(torch.tensor([p / 20.0], dtype=torch.float32)) * torch.arange(1, num_exits + 1)
    shares = powers.exp()
    return shares / shares.sum()


def find_thresholds(confidence: Tensor, shares: Tensor) -> tuple[float, ...]:
    """Thresholds at which the wanted shares leave, as published.

    Exit by exit: of the samples still there, the floor(N share)-th largest confidence. An exit whose number is 0 or
    more than there are samples gets ``NEVER``, the last one ``-NEVER``.

    Args:
        confidence: (K, N).
        shares: (K,) float32, summing to 1.
    """
    num_exits, count = confidence.shape
    thresholds = [NEVER] * (num_exits - 1) + [-NEVER]
    inside = torch.ones(count, dtype=torch.bool, device=confidence.device)
    for number in range(num_exits - 1):
        wanted = int(torch.floor(count * shares[number]))
        left = confidence[number][inside].sort(descending=True).values
        if 1 <= wanted <= len(left):
            thresholds[number] = float(left[wanted - 1])
        inside &= confidence[number] < thresholds[number]
    return tuple(thresholds)


def simulate_exits(scores: ExitScores, thresholds: Sequence[float]) -> ExitOutcome:
    """Accuracy, mean cost and shares when each sample leaves at the first exit with confidence >= threshold.

    Raises:
        ValueError: not one threshold for each exit (that of the last one may be missing).
    """
    num_exits, count = scores.confidence.shape
    if len(thresholds) not in (num_exits - 1, num_exits):
        raise ValueError(f"{num_exits} exits need {num_exits - 1} or {num_exits} thresholds, got {len(thresholds)}")
    limits = torch.tensor([*thresholds[: num_exits - 1], -NEVER], dtype=torch.float64, device=scores.confidence.device)
    leaves = scores.confidence.double() >= limits[:, None]
    first = leaves.int().argmax(dim=0)  # the first True; the last row is always True
    correct = scores.correct.gather(0, first[None])[0]
    shares = torch.bincount(first, minlength=num_exits).double() / count
    cost = float(np.dot(shares.tolist(), scores.costs))
    return ExitOutcome(
        tuple(float(t) for t in limits), 100.0 * float(correct.double().mean()), cost, tuple(shares.tolist())
    )


def published_candidates(scores: ExitScores, strengths: Sequence[int] = range(1, 60)) -> list[ExitOutcome]:
    """The published rule for p = 1..59: thresholds, and what they give on the samples they were made from.

    Small p sends most samples out early, p = 20 equal numbers, large p keeps them to the end.
    """
    num_exits = len(scores.confidence)
    return [simulate_exits(scores, find_thresholds(scores.confidence, exit_shares(p, num_exits))) for p in strengths]
