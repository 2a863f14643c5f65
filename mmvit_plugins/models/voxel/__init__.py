"""Encoders of sparse voxels, called like MMDetection3D's, which is not needed."""

from .flatformer_encoder import FlatFormerEncoder
from .pillar_backbone import PillarBackbone
from .pillars import PillarFeatures

__all__ = ["FlatFormerEncoder", "PillarBackbone", "PillarFeatures"]
