"""MSViT's adaptive trimming begins after a burn-in."""

from __future__ import annotations

from typing import Any

from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner

from mmvit_plugins.registry import HOOKS

__all__ = ["TokenTrimmingHook"]


@HOOKS.register_module()
class TokenTrimmingHook(Hook):
    """Set ``train_trim`` of the backbone when training has come to an iteration; also after a resume.

    Args:
        begin: iteration from which tokens are trimmed (the burn-in before it).
        trim: value of ``train_trim``: ``'mean'`` (the paper's) or ``'max'``.
    """

    def __init__(self, begin: int, trim: str = "mean") -> None:
        if type(begin) is not int or begin < 0:
            raise ValueError(f"begin must be an iteration, 0 or later, got {begin!r}")
        self.begin, self.trim = begin, trim

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        """Switch trimming on once."""
        if runner.iter < self.begin:
            return
        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        if model.backbone.train_trim != self.trim:
            model.backbone.set_train_trim(self.trim)
