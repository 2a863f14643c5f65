"""Losses of the dense tasks; each is a mean over the pixels that have a label.

Called with the network's output (B, C, H, W) and the label of the same size, in which the fill value of the task
(:data:`~mmvit_plugins.structures.TASK_MAPS`) marks pixels without label. Without any label they return a 0 that still
hangs on the output, so that gradients exist. All compute in float32.

Facts: the two reference implementations of multi-task learning on NYUD-v2 and PASCAL-Context, called the survey's
(Vandenhende et al., TPAMI 2021) and InvPT's (ECCV 2022) here; where they differ, an argument chooses.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from torch import Tensor

from mmvit_plugins.registry import MODELS
from mmvit_plugins.structures.task_maps import IGNORED_LABEL

__all__ = ["BalancedBCELoss", "MaskedL1Loss", "NormalsLoss", "SaliencyLoss", "normal_is_known"]


def normal_is_known(normals: Tensor) -> Tensor:
    """(B, 3, H, W) -> (B, 1, H, W) bool: the zero vector, and anything that is no finite vector, is unknown."""
    return torch.isfinite(normals).all(1, keepdim=True) & (normals.square().sum(1, keepdim=True) > 0.25)


def masked_mean(values: Tensor, known: Tensor, count: Tensor | None = None) -> Tensor:
    """Sum of ``values`` where ``known``, over ``count`` (default: how many are known); 0 if there are none."""
    count = known.sum() if count is None else count
    return torch.where(known, values, values.new_zeros(())).sum() / count.clamp(min=1)


@MODELS.register_module()
class MaskedL1Loss(BaseModule):
    """Mean of ``|p - d|`` over pixels whose depth is known, that is finite and above 0.

    The reference implementations leave out the value 255 only, so that a missing depth of 0 counts as a depth there.
    """

    def forward(self, pred: Tensor, target: Tensor) -> Tensor:
        """``pred`` and ``target`` (B, 1, H, W) in metres -> scalar."""
        known = torch.isfinite(target) & (target > 0)
        return masked_mean((pred.float() - torch.where(known, target, target.new_zeros(()))).abs(), known)


@MODELS.register_module()
class NormalsLoss(BaseModule):
    """L1 distance between the normalised prediction and the unit normal.

    Args:
        average: 'element': over valid elements (survey), 'pixel': over valid pixels (InvPT), three times as large.

    Raises:
        ValueError: another ``average``.
    """

    def __init__(self, average: str = "element") -> None:
        super().__init__()
        if average not in ("element", "pixel"):
            raise ValueError(f"average of NormalsLoss must be 'element' or 'pixel', got {average!r}")
        self.average = average

    def forward(self, pred: Tensor, target: Tensor) -> Tensor:
        """``pred`` (any length) and ``target`` (unit vectors), both (B, 3, H, W) -> scalar."""
        known = normal_is_known(target)
        distance = (F.normalize(pred.float(), dim=1) - torch.where(known, target, target.new_zeros(()))).abs()
        return masked_mean(distance, known, known.sum() * (3 if self.average == "element" else 1))


@MODELS.register_module()
class BalancedBCELoss(BaseModule):
    """Mean of ``-[w y log p + (1 - w) (1 - y) log(1 - p)]`` over labelled pixels.

    Args:
        positive_weight: ``w``; 0.95 for boundaries in both reference implementations. None: the share of negatives
            among the labelled pixels of the batch (Xie and Tu, HED, 2015).

    Raises:
        ValueError: ``w`` outside (0, 1).
    """

    def __init__(self, positive_weight: float | None = 0.95) -> None:
        super().__init__()
        if positive_weight is not None and not 0 < positive_weight < 1:
            raise ValueError(
                f"positive_weight of BalancedBCELoss lies between 0 and 1, or is None, got {positive_weight}"
            )
        self.positive_weight = positive_weight

    def forward(self, pred: Tensor, target: Tensor) -> Tensor:
        """``pred`` logits and ``target`` of 0, 1 and 255 (no label), both (B, 1, H, W) -> scalar."""
        known = target != IGNORED_LABEL
        positive = (target == 1).float()
        weight = self.positive_weight
        if weight is None:
            weight = 1 - masked_mean(positive, known)
        # softplus(-x) = -log p and softplus(x) = -log(1 - p)
        pred = pred.float()
        loss = weight * positive * F.softplus(-pred) + (1 - weight) * (1 - positive) * F.softplus(pred)
        return masked_mean(loss, known)


@MODELS.register_module()
class SaliencyLoss(BaseModule):
    """Cross-entropy balanced by the share of salient pixels in the batch, for one logit or two.

    One logit (survey): binary cross-entropy, salient pixels weighted by ``w``, others by ``1 - w``, where ``w`` is the
    share of the others. Two logits (InvPT): cross-entropy with the class weights ``(1 - w, w)``, divided by the sum of
    the weights as PyTorch does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.single = BalancedBCELoss(positive_weight=None)

    def forward(self, pred: Tensor, target: Tensor) -> Tensor:
        """``pred`` logits (B, 1 or 2, H, W), ``target`` (B, 1, H, W) of 0, 1 and 255 (no label) -> scalar."""
        if pred.shape[1] == 1:
            return self.single(pred, target)
        known = target != IGNORED_LABEL
        positive = (target == 1).float()
        share = masked_mean(positive, known)
        weight = torch.where(known, positive * (1 - share) + (1 - positive) * share, positive.new_zeros(()))
        labels = positive.long()
        loss = -F.log_softmax(pred.float(), dim=1).gather(1, labels)
        # A batch of one class alone has no weight at all: a mean of 0, not nan.
        return (weight * loss).sum() / weight.sum().clamp(min=torch.finfo(loss.dtype).tiny)
