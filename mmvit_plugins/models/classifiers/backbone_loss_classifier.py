"""MMPretrain's ImageClassifier for backbones that have a loss of their own."""

from __future__ import annotations

from mmpretrain.models import ImageClassifier

from mmvit_plugins.registry import MODELS

from ..losses.backbone_losses import BackboneLosses

__all__ = ["BackboneLossClassifier"]


@MODELS.register_module()
class BackboneLossClassifier(BackboneLosses, ImageClassifier):
    """``ImageClassifier`` whose losses contain those that the backbone reports (MSViT's gate). Otherwise the same."""
