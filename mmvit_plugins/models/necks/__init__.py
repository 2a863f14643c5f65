"""Necks."""

from .stvit_projection import STViTProjection

__all__ = ["STViTProjection"]
