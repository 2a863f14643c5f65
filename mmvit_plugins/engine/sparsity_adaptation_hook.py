"""Sparsity-aware adaptation: train with random pruning ratios, validate with fixed ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import nn

from mmvit_plugins.registry import HOOKS

from .reproducible_draws import derive_seed

__all__ = ["SparsityAdaptationHook"]

# The last number of a derived seed, as those of reproducible_draws: no other draws have it.
RATIOS = 2


@HOOKS.register_module()
class SparsityAdaptationHook(Hook):
    """Draw new pruning ratios of every SparseViT before each training iteration.

    Source: SparseViT (arXiv 2303.17605), section 3, with the distribution of the authors' code: for each stage one draw
    for each two consecutive blocks, uniform among ``choices``, sorted ascending. The ratios hold in train mode only:
    validation, at any time, uses the model's ``pruning_ratios``, which stay as they are. A draw depends on the seed of
    the run, the rank and the iteration alone, so a resumed training goes on with the draws it would have had, and no
    global random state is touched.

    Args:
        choices: ratios to draw from, each in [0, 1).
        same_on_all_ranks: one draw for all processes, so that none waits for the one that pruned least. False, as
            published: each process draws its own.

    Raises:
        ValueError: no choices, or one outside [0, 1).
    """

    def __init__(
        self,
        choices: Sequence[float] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8),
        same_on_all_ranks: bool = False,
    ) -> None:
        if not choices or not all(0 <= choice < 1 for choice in choices):
            raise ValueError(f"choices must be at least one pruning ratio, each in [0, 1), got {choices!r}")
        self.choices = tuple(choices)
        self.same_on_all_ranks = same_on_all_ranks

    def before_train(self, runner: Runner) -> None:
        """Check that there is something to adapt.

        Raises:
            ValueError: the model has no SparseViT.
        """
        if not self._backbones(runner.model):
            raise ValueError(
                "SparsityAdaptationHook found no mmvit_plugins.SparseViT in the model; take it out of custom_hooks or "
                "change the backbone"
            )

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: dict | None = None) -> None:
        """Draw ratios for this iteration."""
        from mmvit_plugins.models.backbones.sparsevit_ratios import draw_ratios

        rank = 0 if self.same_on_all_ranks else runner.rank
        for number, backbone in enumerate(self._backbones(runner.model)):
            rng = np.random.default_rng(derive_seed(runner.seed, rank, runner.iter, number, RATIOS))
            backbone.set_training_ratios(draw_ratios(backbone.depths, rng, self.choices))

    def after_train(self, runner: Runner) -> None:
        """The model trains with its own ratios again."""
        for backbone in self._backbones(runner.model):
            backbone.set_training_ratios(None)

    @staticmethod
    def _backbones(model: nn.Module) -> list[nn.Module]:
        from mmvit_plugins.models.backbones import SparseViT

        return [module for module in model.modules() if isinstance(module, SparseViT)]
