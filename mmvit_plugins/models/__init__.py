"""Backbones, necks and token reducers. Importing this needs torch, mmengine and mmcv (without operators), no host."""

from .backbones import DVT, ContextCluster, EfficientViT, FlatFormer, Quadformer, SparseViT, STViT, ToMe, ToMeSwin
from .classifiers import DVTClassifier
from .multitask import MultiTaskModel
from .necks import PerceiverResampler, STViTProjection, SimpleFeaturePyramid
from .token_reduction import (
    ContextClusters,
    EqualGroups,
    InformativeTokens,
    PerceiverLatents,
    QuadtreeReducer,
    Regions,
    SelectionMap,
    SuperTokenMap,
    SuperTokens,
    TokenMap,
    TokenReducer,
    WindowPruning,
)
from .voxel import FlatFormerEncoder, PillarBackbone, PillarFeatures

__all__ = [
    "PerceiverLatents",
    "PerceiverResampler",
    "ContextCluster",
    "ContextClusters",
    "DVT",
    "DVTClassifier",
    "EfficientViT",
    "EqualGroups",
    "FlatFormer",
    "FlatFormerEncoder",
    "InformativeTokens",
    "PillarBackbone",
    "PillarFeatures",
    "MultiTaskModel",
    "Quadformer",
    "QuadtreeReducer",
    "Regions",
    "STViT",
    "ToMe",
    "ToMeSwin",
    "STViTProjection",
    "SelectionMap",
    "SimpleFeaturePyramid",
    "SparseViT",
    "SuperTokenMap",
    "SuperTokens",
    "TokenMap",
    "TokenReducer",
    "WindowPruning",
]
