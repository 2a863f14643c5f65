"""MMSegmentation's EncoderDecoder for backbones that have a loss of their own."""

from __future__ import annotations

from mmseg.models import EncoderDecoder

from mmvit_plugins.registry import MODELS

from ..losses.backbone_losses import BackboneLosses

__all__ = ["BackboneLossEncoderDecoder"]


@MODELS.register_module()
class BackboneLossEncoderDecoder(BackboneLosses, EncoderDecoder):
    """``EncoderDecoder`` whose losses contain those that the backbone reports (MSViT's gate). Otherwise the same."""
