"""Pictures of scenes and their annotations for people to look at."""

from __future__ import annotations

import colorsys
from collections.abc import Callable, Sequence

import cv2
import numpy as np

from .scene import PALETTE, SHAPES, Scene
from .tracing import FIRST_OBJECT

__all__ = ["PICTURES", "contact_sheet", "layer_picture"]

_GAP, _CAPTION = 6, 18  # pixels of a contact sheet


def _segmentation(scene: Scene) -> np.ndarray:
    return np.array(PALETTE, dtype=np.uint8)[scene.semantic]


def _instances(scene: Scene) -> np.ndarray:
    """The darkened image with one hue per object, and its box."""
    picture = (scene.rgb * 0.35).astype(np.uint8)
    for place, (number, box) in enumerate(zip(scene.visible, scene.boxes.astype(int).tolist(), strict=True)):
        hue = np.array(colorsys.hsv_to_rgb(place * 0.381966 % 1.0, 0.8, 1.0)) * 255
        inside = scene.surface == FIRST_OBJECT + number
        picture[inside] = (0.4 * scene.rgb[inside] + 0.6 * hue).astype(np.uint8)
        left, top, right, bottom = box
        cv2.rectangle(picture, (left, top), (right - 1, bottom - 1), hue.tolist(), 1)
    return picture


def _depth(scene: Scene) -> np.ndarray:
    """Near is bright; the scale is that of inverse depth, which shows objects better than metres do."""
    depth = scene.depth
    inverse = np.divide(1.0, depth, out=np.zeros_like(depth), where=depth > 0)
    gray = np.clip(inverse * (255 / max(inverse.max(), 1e-6)), 0, 255).astype(np.uint8)
    picture = cv2.applyColorMap(gray, cv2.COLORMAP_VIRIDIS)[..., ::-1].copy()
    picture[depth == 0] = 0
    return picture


def _normals(scene: Scene) -> np.ndarray:
    """The usual code: red points right, green up, blue towards the camera."""
    normals = scene.normals * np.array([1, -1, -1], dtype=np.float32)
    picture = ((normals + 1) * 127.5).astype(np.uint8)
    picture[scene.depth == 0] = 0
    return picture


def _boundary(scene: Scene) -> np.ndarray:
    picture = (scene.rgb * 0.35).astype(np.uint8)
    picture[scene.boundary == 1] = (255, 235, 60)
    return picture


def _saliency(scene: Scene) -> np.ndarray:
    return np.where(scene.saliency[..., None] == 1, scene.rgb, scene.rgb // 6)


PICTURES: dict[str, Callable[[Scene], np.ndarray]] = {
    "rgb": lambda scene: scene.rgb,
    "seg": _segmentation,
    "instances": _instances,
    "depth": _depth,
    "normals": _normals,
    "boundary": _boundary,
    "saliency": _saliency,
}


def layer_picture(scene: Scene, layer: str) -> np.ndarray:
    """One layer of a scene in colours, RGB uint8 (H, W, 3).

    Raises:
        ValueError: for a layer that is not in ``PICTURES``.
    """
    if layer not in PICTURES:
        raise ValueError(f"There is no picture of layer {layer!r}; choose out of {', '.join(PICTURES)}.")
    return PICTURES[layer](scene)


def contact_sheet(
    scenes: Sequence[Scene], layers: Sequence[str] = ("rgb",), columns: int | None = None, zoom: int = 1
) -> np.ndarray:
    """Many scenes on one sheet; the layers of a scene stand side by side under a caption with its class.

    Args:
        scenes: scenes of one size.
        layers: keys of ``PICTURES``.
        columns: scenes in a row; None makes the sheet about 3 : 2.
        zoom: whole-number magnification.

    Returns:
        RGB uint8 (H, W, 3) on white.

    Raises:
        ValueError: without scenes or layers, or for an unknown layer.
    """
    if not scenes or not layers:
        raise ValueError(f"A contact sheet needs scenes and layers, but got {len(scenes)} and {len(layers)}.")
    height, width = (side * zoom for side in scenes[0].size)
    block_height, block_width = height + _CAPTION + _GAP, (width + _GAP) * len(layers) + _GAP
    if columns is None:
        columns = round((1.5 * len(scenes) * block_height / block_width) ** 0.5)
    columns = min(max(columns, 1), len(scenes))
    rows = -(-len(scenes) // columns)
    sheet = np.full((rows * block_height + _GAP, columns * block_width, 3), 255, dtype=np.uint8)
    for place, scene in enumerate(scenes):
        top, left = place // columns * block_height, place % columns * block_width + _GAP
        caption = f"{scene.spec.split} {scene.spec.index}: {SHAPES[scene.label]}"
        cv2.putText(
            sheet, caption, (left, top + _CAPTION - 4), cv2.FONT_HERSHEY_SIMPLEX, 0.38, (40, 40, 40), 1, cv2.LINE_AA
        )
        for layer in layers:
            picture = layer_picture(scene, layer).repeat(zoom, axis=0).repeat(zoom, axis=1)
            sheet[top + _CAPTION : top + _CAPTION + height, left : left + width] = picture
            left += width + _GAP
    return sheet
