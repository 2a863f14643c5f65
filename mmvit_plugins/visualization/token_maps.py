"""Draw which tokens belong together: super tokens, clusters, merged or dropped tokens, whatever made the map."""

from __future__ import annotations

import colorsys
from typing import TYPE_CHECKING

import cv2
import numpy as np
import torch

if TYPE_CHECKING:
    from mmvit_plugins.models.token_reduction import TokenMap

__all__ = ["STYLES", "draw_token_regions", "token_regions"]

STYLES = ("mean", "distinct")
DROPPED = -1


def token_regions(
    token_map: TokenMap, grid: tuple[int, int], image_size: tuple[int, int], stride: int | None = None, sample: int = 0
) -> np.ndarray:
    """For every pixel the reduced token that its token belongs to most, or -1 where the token was dropped.

    Args:
        token_map: association of the tokens of one feature map.
        grid: (h, w) of the tokens.
        image_size: (H, W) in pixels.
        stride: side of a token in pixels. A backbone pads to whole tokens at the right and bottom, so the last row may
            stick out. By default that of square tokens that cover the image exactly; else the power of two that gives
            such a grid, as pyramids have it; else that of the smallest square tokens that cover the image.
        sample: which image of the batch.

    Returns:
        (H, W) int64.

    Raises:
        ValueError: grid, stride and image do not fit each other.
    """
    (h, w), (height, width) = grid, image_size
    assigned = token_map.hard()[sample].detach().cpu()
    if assigned.numel() != h * w:
        raise ValueError(f"grid {grid} has {h * w} tokens, the token map has {assigned.numel()}")
    if stride is None:
        stride = _stride(grid, image_size)
    if stride * h < height or stride * w < width:
        raise ValueError(
            f"{h} x {w} tokens of {stride} pixels cover {stride * h} x {stride * w}, less than the image of "
            f"{height} x {width}; give the stride of the stage"
        )
    dropped = token_map.weight[sample].detach().sum(dim=-1).cpu() <= 0
    labels = torch.where(dropped, DROPPED, assigned).view(h, w).numpy()
    return labels[np.arange(height) // stride][:, np.arange(width) // stride]


def draw_token_regions(
    image: np.ndarray,
    token_map: TokenMap,
    grid: tuple[int, int],
    style: str = "mean",
    stride: int | None = None,
    scale: int = 1,
    border: tuple[int, int, int] | None = (255, 255, 255),
    sample: int = 0,
) -> np.ndarray:
    """The regions of ``token_map`` as coloured areas with borders.

    Args:
        image: (H, W, 3) uint8 RGB that the tokens come from.
        token_map: see :func:`token_regions`, as ``grid``, ``stride`` and ``sample``.
        grid: (h, w) of the tokens.
        style: "mean" fills a region with its average colour; "distinct" tints it, so that neighbours of like colour
            can be
            told apart. Dropped tokens show the darkened image.
        stride: side of a token in pixels.
        scale: pixels of the picture for each pixel of the image; borders are one pixel of the picture wide.
        border: RGB of the borders, None for none.
        sample: which image of the batch.

    Returns:
        (H * scale, W * scale, 3) uint8 RGB.
    """
    if style not in STYLES:
        raise ValueError(f"style must be one of {STYLES}, got {style!r}")
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
        raise ValueError(f"image must be (H, W, 3) uint8 RGB, got {image.shape} {image.dtype}")
    labels = token_regions(token_map, grid, image.shape[:2], stride, sample)
    if style == "mean":
        picture = _mean_colors(image, labels)
    else:
        tint = _tints(max(token_map.num, 1))[labels]
        picture = (0.35 * image + 0.65 * tint).round().astype(np.uint8)
    picture[labels == DROPPED] = image[labels == DROPPED] // 4
    if scale > 1:
        labels = labels.repeat(scale, axis=0).repeat(scale, axis=1)
        picture = cv2.resize(picture, None, fx=scale, fy=scale, interpolation=cv2.INTER_NEAREST)
    if border is not None:
        edge = np.zeros(labels.shape, dtype=bool)
        edge[:, :-1] |= labels[:, :-1] != labels[:, 1:]
        edge[:-1] |= labels[:-1] != labels[1:]
        picture[edge] = border
    return picture


def _stride(grid: tuple[int, int], image_size: tuple[int, int]) -> int:
    """Side of the tokens, as :func:`token_regions` says."""
    (h, w), (height, width) = grid, image_size
    smallest = max(-(-height // h), -(-width // w))
    if (smallest * h, smallest * w) == (height, width):
        return smallest
    power = 1 << (smallest - 1).bit_length()  # the first that covers the image
    return power if (-(-height // power), -(-width // power)) == (h, w) else smallest


def _mean_colors(image: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(H, W, 3) uint8: every pixel in the average colour of its region."""
    _, compact = np.unique(labels, return_inverse=True)
    compact = compact.ravel()  # numpy 2.0 alone returns the shape of ``labels``
    count = np.bincount(compact)
    means = np.stack([np.bincount(compact, weights=image[..., c].ravel()) / count for c in range(3)], axis=1)
    return means.round().astype(np.uint8)[compact].reshape(image.shape)


def _tints(count: int) -> np.ndarray:
    """(count, 3) float RGB. Ids run along rows, so hues a golden ratio apart separate left and right neighbours, and
    the generator's shuffle separates upper and lower ones."""
    hues = np.random.default_rng(0).permutation(count) * 0.618034 % 1.0
    rows = [colorsys.hsv_to_rgb(hue, 0.85, 1.0) for hue in hues]
    return np.array(rows, dtype=np.float64).reshape(count, 3) * 255
