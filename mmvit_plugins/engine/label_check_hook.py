"""Say early when label maps do not hold the classes that the model is trained for."""

from __future__ import annotations

import torch
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from torch import Tensor, nn

from mmvit_plugins.registry import HOOKS

__all__ = ["LabelCheckHook"]


@HOOKS.register_module()
class LabelCheckHook(Hook):
    """Warn about label values outside 0..n-1, and about label maps with one class only.

    The first kind ends in "target out of bounds" on a CPU and in a device-side assertion on a GPU. The second trains
    without a complaint and gives IoU 0 or nan: for example masks with 0 and 255, where 255 means "ignore".

    Args:
        num_batches: how many batches to look at, from the first on.
    """

    priority = "VERY_HIGH"

    def __init__(self, num_batches: int = 20) -> None:
        self.num_batches = num_batches
        self._seen: dict[int, int] = {}
        self._reported: set[int] = set()
        self._checked = 0

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: dict | None = None) -> None:
        """Look at the labels of this batch, before the loss does."""
        if self._checked >= self.num_batches or not isinstance(data_batch, dict):
            return
        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        head = getattr(model, "decode_head", None)
        if isinstance(head, nn.ModuleList):
            head = head[-1]
        if head is None:
            return
        self._checked += 1
        samples = data_batch.get("data_samples") or []
        for sample in samples:
            if "gt_sem_seg" in sample:
                self._count(sample.gt_sem_seg.data)
                self._warn_illegal(runner, head, str(sample.get("seg_map_path", sample.get("img_path", "?"))))
        if self._checked == self.num_batches:
            self._warn_single_class(runner, head)

    def after_train(self, runner: Runner) -> None:
        """A run shorter than ``num_batches`` is judged by what it had."""
        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        head = getattr(model, "decode_head", None)
        if self._seen and self._checked < self.num_batches and head is not None:
            self._warn_single_class(runner, head[-1] if isinstance(head, nn.ModuleList) else head)

    def _count(self, labels: Tensor) -> None:
        values, counts = torch.unique(labels, return_counts=True)
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            self._seen[value] = self._seen.get(value, 0) + count

    def _warn_illegal(self, runner: Runner, head: nn.Module, source: str) -> None:
        legal = range(head.num_classes)
        illegal = {value for value in self._seen if value not in legal and value != head.ignore_index}
        if illegal - self._reported:
            self._reported |= illegal
            runner.logger.warning(
                f"label values {sorted(illegal)} (first seen in {source}) are none of the {head.num_classes} classes "
                f"0..{head.num_classes - 1} and not ignore_index={head.ignore_index}. Change the label maps, "
                "num_classes of the heads, or reduce_zero_label of the dataset."
            )

    def _warn_single_class(self, runner: Runner, head: nn.Module) -> None:
        classes = sorted(value for value in self._seen if 0 <= value < head.num_classes)
        if head.num_classes < 2 or len(classes) > 1:
            return
        total = sum(self._seen.values())
        listed = ", ".join(
            f"{value}{' (ignored)' if value == head.ignore_index else ''}: {count / total:.1%}"
            for value, count in sorted(self._seen.items())
        )
        runner.logger.warning(
            f"the first {self._checked} batches hold {len(classes)} of {head.num_classes} classes; label values and "
            f"their shares: {listed}. Nothing can be learned from one class: label maps must hold the class numbers "
            f"0..{head.num_classes - 1}, and {head.ignore_index} means 'ignore'."
        )
