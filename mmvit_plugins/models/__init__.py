"""Backbones, necks and token reducers. Importing this needs torch, mmengine and mmcv (without operators), no host."""

from .backbones import STViT
from .necks import STViTProjection
from .token_reduction import SuperTokenMap, SuperTokens, TokenMap, TokenReducer

__all__ = ["STViT", "STViTProjection", "SuperTokenMap", "SuperTokens", "TokenMap", "TokenReducer"]
