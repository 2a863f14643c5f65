"""Necks."""

from .perceiver_resampler import PerceiverResampler
from .simple_feature_pyramid import SimpleFeaturePyramid
from .stvit_projection import STViTProjection

__all__ = ["SimpleFeaturePyramid", "PerceiverResampler", "STViTProjection"]
