"""One file for each family."""

from .base import HierarchicalBackbone
from .stvit import STViT

__all__ = ["HierarchicalBackbone", "STViT"]
