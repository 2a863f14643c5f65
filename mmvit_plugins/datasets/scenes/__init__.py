"""Built-in scenes: small rendered images with exact annotations, made from a seed, without files or network."""

from .primitives import SHAPES
from .sampling import SPLITS, SceneSpec, sample_scene
from .scene import CLASSES, PALETTE, Scene, render_scene
from .storage import SceneCache, ScenesBackend, image_uri

__all__ = [
    "CLASSES",
    "PALETTE",
    "SHAPES",
    "SPLITS",
    "Scene",
    "SceneCache",
    "SceneSpec",
    "ScenesBackend",
    "image_uri",
    "render_scene",
    "sample_scene",
]
