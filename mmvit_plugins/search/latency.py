"""Latency of candidates: measured, or predicted from a small table that was measured once."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmvit_plugins.benchmark.timing import interleaved_seconds

__all__ = ["LatencyTable", "PredictionError", "trimmed_mean", "trimmed_mean_seconds"]


def trimmed_mean(values: Sequence[float]) -> float:
    """Mean of the inner half, by size: SparseViT's rule.

    Raises:
        ValueError: no value.
    """
    if not values:
        raise ValueError("a mean needs at least one value")
    ordered = sorted(values)
    cut = len(ordered) // 4
    inner = ordered[cut : len(ordered) - cut]
    return math.fsum(inner) / len(inner)


def trimmed_mean_seconds(
    calls: Sequence[Callable[[], object]], device: str = "cpu", rounds: int = 15, warmup: int = 3
) -> list[float]:
    """Trimmed mean of the time of each call, in seconds; the calls take turns.

    Args:
        calls: what is measured.
        device: where it runs; on a GPU a call is over when the device has finished.
        rounds: measurements of each.
        warmup: calls of each before.
    """
    named = {str(number): call for number, call in enumerate(calls)}
    # Each call once a round: the trimmed mean deals with interruptions.
    times = interleaved_seconds(named, rounds, warmup, device, shortest=0.0)
    return [trimmed_mean(times[name]) for name in named]


@dataclass(frozen=True)
class PredictionError:
    """How far predictions are from measurements of the same candidates.

    ``mean`` and ``largest`` are shares of the measured value; ``count`` is the number of candidates.
    """

    mean: float
    largest: float
    count: int

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f} % on average, {100 * self.largest:.1f} % at most, on {self.count} candidates"


@dataclass(frozen=True)
class LatencyTable:
    """Latency as a sum: that of a reference candidate plus, for each gene, what its value changes alone.

    Args:
        reference: seconds of the candidate with every gene at its first value.
        changes: for each gene, value -> seconds more (or less) than with its first value.
    """

    reference: float
    changes: tuple[Mapping[Hashable, float], ...]

    @classmethod
    def measure(
        cls,
        seconds_of: Callable[[Sequence[Sequence[Any]]], Sequence[float]],
        values: Sequence[Sequence[Hashable]],
        between: bool = True,
    ) -> LatencyTable:
        """One candidate for each gene and value, all else at the first value.

        Args:
            seconds_of: times of several candidates, measured side by side.
            values: legal values of each gene, the first being the reference.
            between: measure the first two, the middle and the last value only and interpolate linearly over the others
                (numbers); the first two apart, because the step from none to some may cost by itself.
        """
        reference = [options[0] for options in values]
        wanted: list[tuple[int, Hashable]] = []
        for gene, options in enumerate(values):
            some = sorted({1, len(options) // 2, len(options) - 1})
            chosen = [options[n] for n in some] if between and len(options) > 4 else options[1:]
            wanted += [(gene, value) for value in chosen]
        candidates = [list(reference)] + [
            [value if number == gene else first for number, first in enumerate(reference)] for gene, value in wanted
        ]
        base, *others = seconds_of(candidates)
        changes: list[dict[Hashable, float]] = [{options[0]: 0.0} for options in values]
        for (gene, value), seconds in zip(wanted, others, strict=True):
            changes[gene][value] = seconds - base
        for gene, options in enumerate(values):
            known = [value for value in options if value in changes[gene]]
            for value in options:
                if value not in changes[gene]:
                    below = max(k for k in known if k < value)
                    above = min(k for k in known if k > value)
                    part = (value - below) / (above - below)
                    changes[gene][value] = (1 - part) * changes[gene][below] + part * changes[gene][above]
        return cls(base, tuple(changes))

    def predict(self, candidate: Sequence[Hashable]) -> float:
        """Seconds of a candidate."""
        return self.reference + math.fsum(change[value] for change, value in zip(self.changes, candidate, strict=True))

    def error(self, candidates: Sequence[Sequence[Hashable]], measured: Sequence[float]) -> PredictionError:
        """How well it predicts candidates that were measured.

        Raises:
            ValueError: no candidate, or not one measurement for each.
        """
        if not candidates or len(candidates) != len(measured):
            raise ValueError(f"wanted a measurement of each candidate, got {len(candidates)} and {len(measured)}")
        errors = [abs(self.predict(c) - t) / t for c, t in zip(candidates, measured, strict=True)]
        return PredictionError(math.fsum(errors) / len(errors), max(errors), len(errors))
