"""Built-in scenes: small rendered images with exact annotations, made from a seed, without files or network."""

from .pictures import contact_sheet, layer_picture
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
    "contact_sheet",
    "image_uri",
    "layer_picture",
    "render_scene",
    "sample_scene",
]
