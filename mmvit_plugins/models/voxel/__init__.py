"""Encoders of sparse voxels, called like MMDetection3D's, which is not needed."""

from .flatformer_encoder import FlatFormerEncoder

__all__ = ["FlatFormerEncoder"]
