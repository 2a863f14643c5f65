"""Cross entropy weighted by class that ignores labels in every release of MMSegmentation."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from mmvit_plugins.registry import MODELS

__all__ = ["WeightedCrossEntropyLoss"]


@MODELS.register_module()
class WeightedCrossEntropyLoss(nn.Module):
    """Mean cross entropy over the judged pixels, weighted by the class of each: sum of w_c loss / sum of w_c.

    What MMSegmentation's ``CrossEntropyLoss`` with ``class_weight`` computes; that of release 1.2.2 looks the weight of
    an ignored label up and fails with an IndexError.

    Args:
        class_weight: weight of each class, at least 0.
        loss_weight: factor of the loss.
        loss_name: name of the item; begins with ``loss_``.

    Raises:
        ValueError: a weight is negative, or there is none.

    Examples:
        >>> import torch
        >>> loss = WeightedCrossEntropyLoss((1.0, 3.0))
        >>> round(float(loss(torch.zeros(1, 2, 1, 3), torch.tensor([[[0, 1, 255]]]), ignore_index=255)), 4)
        0.6931
    """

    def __init__(self, class_weight: Sequence[float], loss_weight: float = 1.0, loss_name: str = "loss_ce") -> None:
        super().__init__()
        if not class_weight or min(class_weight) < 0:
            raise ValueError(f"class_weight must have one number of at least 0 for each class, got {class_weight!r}")
        self.class_weight, self.loss_weight, self._loss_name = tuple(class_weight), loss_weight, loss_name

    @property
    def loss_name(self) -> str:
        """Name of the item among the losses of a head."""
        return self._loss_name

    def forward(self, logits: Tensor, label: Tensor, weight: Tensor | None = None, ignore_index: int = -100) -> Tensor:
        """The loss of a batch.

        Args:
            logits: (B, C, H, W).
            label: (B, H, W) long.
            weight: (B, H, W) factor of each pixel, as MMSegmentation's samplers of pixels give it.
            ignore_index: label that is not judged.

        Returns:
            A number; 0 where nothing is judged.
        """
        by_class = logits.new_tensor(self.class_weight)
        loss = F.cross_entropy(logits, label, weight=by_class, ignore_index=ignore_index, reduction="none")
        if weight is not None:
            loss = loss * weight
        total = by_class[label[label != ignore_index]].sum()
        return self.loss_weight * loss.sum() / total.clamp(min=1e-6)
