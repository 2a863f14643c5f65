"""Necks."""

from .perceiver_resampler import PerceiverResampler
from .simple_feature_pyramid import SimpleFeaturePyramid
from .stvit_projection import STViTProjection
from .token_reduction_neck import TokenReductionNeck

__all__ = ["TokenReductionNeck", "SimpleFeaturePyramid", "PerceiverResampler", "STViTProjection"]
