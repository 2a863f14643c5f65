"""Backbones, necks and token reducers. Importing this needs torch, mmengine and mmcv (without operators), no host."""

from .backbones import (
    DVT,
    ContextCluster,
    EfficientViT,
    FlatFormer,
    MSViT,
    Quadformer,
    SparseViT,
    STViT,
    ToMe,
    ToMeSwin,
)
from .classifiers import DVTClassifier
from .losses import BatchShapingLoss
from .multitask import MultiTaskModel
from .necks import PerceiverResampler, SimpleFeaturePyramid, STViTProjection, TokenReductionNeck
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
    "BatchShapingLoss",
    "ContextCluster",
    "ContextClusters",
    "DVT",
    "DVTClassifier",
    "EfficientViT",
    "EqualGroups",
    "FlatFormer",
    "FlatFormerEncoder",
    "InformativeTokens",
    "MSViT",
    "MultiTaskModel",
    "PerceiverLatents",
    "PerceiverResampler",
    "PillarBackbone",
    "PillarFeatures",
    "Quadformer",
    "QuadtreeReducer",
    "Regions",
    "STViT",
    "STViTProjection",
    "SelectionMap",
    "SimpleFeaturePyramid",
    "SparseViT",
    "SuperTokenMap",
    "SuperTokens",
    "ToMe",
    "ToMeSwin",
    "TokenMap",
    "TokenReducer",
    "TokenReductionNeck",
    "WindowPruning",
]
