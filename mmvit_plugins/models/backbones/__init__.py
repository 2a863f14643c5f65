"""One file for each family."""

from .base import HierarchicalBackbone
from .context_cluster import ContextCluster
from .dvt import DVT
from .efficientvit import EfficientViT
from .flatformer import FlatFormer
from .quadformer import Quadformer
from .stvit import STViT

__all__ = [
    "ContextCluster",
    "DVT",
    "EfficientViT",
    "FlatFormer",
    "HierarchicalBackbone",
    "Quadformer",
    "STViT",
]
