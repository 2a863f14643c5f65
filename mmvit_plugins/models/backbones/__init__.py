"""One file for each family."""

from .base import HierarchicalBackbone
from .context_cluster import ContextCluster
from .dvt import DVT
from .efficientvit import EfficientViT
from .flatformer import FlatFormer
from .msvit import MSViT
from .quadformer import Quadformer
from .sparsevit import SparseViT
from .stvit import STViT
from .tome import ToMe
from .tome_swin import ToMeSwin

__all__ = [
    "ContextCluster",
    "DVT",
    "EfficientViT",
    "FlatFormer",
    "HierarchicalBackbone",
    "MSViT",
    "Quadformer",
    "STViT",
    "SparseViT",
    "ToMe",
    "ToMeSwin",
]
