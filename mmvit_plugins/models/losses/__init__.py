"""Losses that the host libraries lack."""

from .backbone_losses import BackboneLosses, collect_losses, is_collecting, report_losses
from .batch_shaping import BatchShapingLoss
from .dense_tasks import BalancedBCELoss, MaskedL1Loss, NormalsLoss, SaliencyLoss
from .weighted_cross_entropy import WeightedCrossEntropyLoss

__all__ = [
    "BackboneLosses",
    "BalancedBCELoss",
    "BatchShapingLoss",
    "MaskedL1Loss",
    "NormalsLoss",
    "SaliencyLoss",
    "WeightedCrossEntropyLoss",
    "collect_losses",
    "is_collecting",
    "report_losses",
]
