"""Thresholds of early exit travel in the meta of a checkpoint."""

from __future__ import annotations

from typing import Any

from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from torch import nn

from mmvit_plugins.registry import HOOKS

__all__ = ["EarlyExitHook"]


@HOOKS.register_module()
class EarlyExitHook(Hook):
    """Give the meta of a loaded checkpoint to the model, for tests; a training starts and validates without.

    In ``custom_hooks`` of DVT's configs. Weights change in training, so that thresholds of the weights it starts from
    mean nothing for it.
    """

    priority = "NORMAL"

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        """Thresholds and costs from ``checkpoint['meta']['early_exit']``."""
        model = _inner(runner)
        if hasattr(model, "load_meta") and model.load_meta(checkpoint.get("meta") or {}):
            runner.logger.info(f"early exit: thresholds {model.exit_thresholds}")

    def before_train(self, runner: Runner) -> None:
        """Forget them."""
        model = _inner(runner)
        if hasattr(model, "load_meta"):
            model.load_meta({})


def _inner(runner: Runner) -> nn.Module:
    """The model below DDP and test-time augmentation."""
    model = runner.model.module if is_model_wrapper(runner.model) else runner.model
    return getattr(model, "module", model)
