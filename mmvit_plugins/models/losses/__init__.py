"""Losses that the host libraries lack."""

from .dense_tasks import BalancedBCELoss, MaskedL1Loss, NormalsLoss, SaliencyLoss

__all__ = ["BalancedBCELoss", "MaskedL1Loss", "NormalsLoss", "SaliencyLoss"]
