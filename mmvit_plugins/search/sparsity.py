"""Search of SparseViT's pruning ratios under a limit of latency or FLOPs (arXiv 2303.17605, 3.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from optuna.trial import Trial
from torch import Tensor, nn

from mmvit_plugins.models.backbones.sparsevit_ratios import PUBLISHED_RATIOS

from .latency import LatencyTable, PredictionError, trimmed_mean_seconds

__all__ = ["BackboneCost", "SparsityProblem", "find_pruned_backbone", "ratios_of", "uniform_candidates"]

Candidate = list[list[float]]


def find_pruned_backbone(model: nn.Module) -> nn.Module:
    """The module of a model whose ratios can be set.

    Raises:
        ValueError: there is none.
    """
    found = next((module for module in model.modules() if hasattr(module, "set_pruning_ratios")), None)
    if found is None:
        raise ValueError(f"{type(model).__name__} has no backbone with pruning ratios, such as SparseViT")
    return found


def ratios_of(candidate: Sequence[Sequence[float]], depths: Sequence[int]) -> tuple[tuple[float, ...], ...]:
    """One ratio for each block of each stage: a candidate has one for each two blocks (plain and shifted)."""
    return tuple(
        tuple(float(stage[block // 2]) for block in range(depth))
        for stage, depth in zip(candidate, depths, strict=True)
    )


def uniform_candidates(depths: Sequence[int], choices: Sequence[float] = PUBLISHED_RATIOS) -> list[Candidate]:
    """The same ratio everywhere, for each of ``choices``: what a search has to beat."""
    return [[[ratio] * -(-depth // 2) for depth in depths] for ratio in choices]


class BackboneCost:
    """Cost of a backbone's forward pass with given ratios: milliseconds or GMAC of a batch.

    The latency is measured (warm-up, inner half averaged), or predicted from a table: the change that each stage makes
    alone, the same ratio in all its blocks (0.1, 0.4 and 0.8 measured, linear between), on top of the unpruned pass. A
    stage's pairs of blocks share its change equally.

    Args:
        backbone: SparseViT in eval mode.
        images: (B, 3, H, W) on the device. Kept counts do not depend on what they show, and times hardly.
        kind: 'table', 'measured' or 'flops'.
        rounds: measurements of each candidate.
        table: a table measured before, one gene for each pair; None: measured now, if needed.

    Raises:
        ValueError: another kind.
    """

    UNITS = {"table": "ms", "measured": "ms", "flops": "GMAC"}

    def __init__(
        self,
        backbone: nn.Module,
        images: Tensor,
        kind: str = "table",
        rounds: int = 15,
        table: LatencyTable | None = None,
    ) -> None:
        if kind not in self.UNITS:
            raise ValueError(f"the cost is one of {', '.join(self.UNITS)}, got {kind!r}")
        self.backbone, self.images, self.kind, self.rounds = backbone, images, kind, rounds
        self.depths, self.unit = backbone.depths, self.UNITS[kind]
        self._known: dict[str, float] = {}
        self.table = self._measure_table() if kind == "table" and table is None else table

    def _measure_table(self) -> LatencyTable:
        """One gene for each stage measured, then shared among its pairs."""
        pairs = [-(-depth // 2) for depth in self.depths]

        def seconds_of(genes: Sequence[Sequence[float]]) -> list[float]:
            return self.seconds([[[r] * count for r, count in zip(one, pairs, strict=True)] for one in genes])

        stages = LatencyTable.measure(seconds_of, [PUBLISHED_RATIOS] * len(pairs))
        shared = [
            {ratio: change / count for ratio, change in changes.items()}
            for changes, count in zip(stages.changes, pairs, strict=True)
            for _ in range(count)
        ]
        return LatencyTable(stages.reference, tuple(shared))

    def _to_candidate(self, genes: Sequence[float]) -> Candidate:
        rest, stages = list(genes), []
        for depth in self.depths:
            pairs = -(-depth // 2)
            stages.append(rest[:pairs])
            rest = rest[pairs:]
        return stages

    @torch.no_grad()
    def seconds(self, candidates: Sequence[Candidate]) -> list[float]:
        """Measured seconds of a forward pass of the batch, candidates taking turns."""
        before = self.backbone.pruning_ratios

        def run(candidate: Candidate) -> None:
            self.backbone.set_pruning_ratios(ratios_of(candidate, self.depths))
            self.backbone(self.images)

        calls = [lambda one=candidate: run(one) for candidate in candidates]
        try:
            return trimmed_mean_seconds(calls, str(self.images.device), self.rounds, warmup=2)
        finally:
            self.backbone.set_pruning_ratios(before)

    def __call__(self, candidate: Candidate) -> float:
        """Cost of a candidate."""
        key = repr(candidate)
        if key not in self._known:
            if self.kind == "table":
                self._known[key] = 1e3 * self.table.predict([r for stage in candidate for r in stage])
            elif self.kind == "measured":
                self._known[key] = 1e3 * self.seconds([candidate])[0]
            else:
                self._known[key] = self._gmacs(candidate)
        return self._known[key]

    @torch.no_grad()
    def _gmacs(self, candidate: Candidate) -> float:
        from mmvit_plugins.benchmark.counting import count_flops

        before = self.backbone.pruning_ratios
        self.backbone.set_pruning_ratios(ratios_of(candidate, self.depths))
        try:
            return count_flops(lambda: self.backbone(self.images)) / 2e9
        finally:
            self.backbone.set_pruning_ratios(before)

    def check_table(self, count: int = 10, seed: int = 0) -> PredictionError | None:
        """Error of the table on random candidates, measured now; None without a table."""
        if self.kind != "table":
            return None
        rng = np.random.default_rng(seed)
        genes = []
        for _ in range(count):
            stages = [sorted(rng.choice(PUBLISHED_RATIOS, -(-depth // 2)).tolist()) for depth in self.depths]
            genes.append([ratio for stage in stages for ratio in stage])
        return self.table.error(genes, self.seconds([self._to_candidate(one) for one in genes]))


class SparsityProblem:
    """Ratios out of {0, 0.1, ..., 0.8}, one for each two blocks, sorted ascending within a stage.

    Args:
        cost: cost of a candidate.
        evaluate: the metric of the model with the ratios of a candidate, larger is better; takes block-wise ratios.
        depths: blocks of each stage.
    """

    def __init__(
        self,
        cost: Callable[[Candidate], float],
        evaluate: Callable[[tuple[tuple[float, ...], ...]], float],
        depths: Sequence[int],
    ) -> None:
        self.cost, self.depths, self._evaluate = cost, tuple(depths), evaluate

    def suggest(self, trial: Trial) -> Candidate:
        """Sorted genes, as sparsity-aware adaptation draws them."""
        stages = []
        for number, depth in enumerate(self.depths):
            genes = [
                trial.suggest_int(f"stage{number}_pair{pair}", 0, len(PUBLISHED_RATIOS) - 1)
                for pair in range(-(-depth // 2))
            ]
            stages.append([PUBLISHED_RATIOS[gene] for gene in sorted(genes)])
        return stages

    def score(self, candidate: Candidate) -> float:
        """The metric of the validation split."""
        return self._evaluate(ratios_of(candidate, self.depths))


def describe(candidate: Candidate) -> str:
    """``0.3 | 0 | 0.1, 0.2, 0.2 | 0``, as the authors write it."""
    return " | ".join(", ".join(f"{ratio:g}" for ratio in stage) for stage in candidate)


def as_config(candidate: Candidate, depths: Sequence[int]) -> list[Any]:
    """``pruning_ratios`` of a config."""
    return [list(stage) for stage in ratios_of(candidate, depths)]
