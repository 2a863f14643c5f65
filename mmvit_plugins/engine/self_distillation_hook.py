"""Learning from the moving average of the model's own weights (MESA)."""

from __future__ import annotations

from typing import Any

from mmengine.hooks import EMAHook, Hook
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner

from mmvit_plugins.registry import HOOKS

__all__ = ["SelfDistillationHook"]


@HOOKS.register_module()
class SelfDistillationHook(Hook):
    """Make the averaged weights of ``EMAHook`` the teacher of a ``SelfDistillationClassifier``.

    The teacher is there in training iterations only: nothing else, no copy and no checkpoint, ever sees it. Which
    iterations learn from it depends on the iteration's number alone, so that a resumed run goes on as before.

    Args:
        begin: share of the training after which the teacher is used (EfficientViT's recipe: 0.25).

    Raises:
        ValueError: ``begin`` outside [0, 1).
        RuntimeError: there is no ``EMAHook``, or the model cannot learn from a teacher.
    """

    priority = "NORMAL"

    def __init__(self, begin: float = 0.25) -> None:
        if not 0 <= begin < 1:
            raise ValueError(f"begin must be a share of the training in [0, 1), got {begin!r}")
        self.begin = begin

    def before_train(self, runner: Runner) -> None:
        """Check the two parts that it connects."""
        self.averages = next((hook for hook in runner.hooks if isinstance(hook, EMAHook)), None)
        self.model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        if self.averages is None:
            raise RuntimeError("SelfDistillationHook learns from EMAHook's weights: add an EMAHook to custom_hooks")
        if not hasattr(self.model, "set_teacher"):
            raise RuntimeError(
                f"{type(self.model).__name__} cannot learn from a teacher: SelfDistillationHook needs "
                "model=dict(type='mmvit_plugins.SelfDistillationClassifier', ...)"
            )

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        """The teacher comes."""
        if runner.iter >= self.begin * runner.max_iters:
            self.model.set_teacher(self.averages.ema_model.module)

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: dict[str, Any] | None = None
    ) -> None:
        """And goes."""
        self.model.set_teacher(None)
