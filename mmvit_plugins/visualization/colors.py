"""Colours for any number of classes."""

from __future__ import annotations

import colorsys

import numpy as np

__all__ = ["distinct_colors"]


def distinct_colors(count: int) -> np.ndarray:
    """(count, 3) uint8 RGB, neighbours far apart: hues by the golden ratio, alternating brightness."""
    rows = [
        colorsys.hsv_to_rgb(i * 0.618034 % 1.0, (0.65, 0.9, 0.5)[i % 3], (0.95, 0.75, 0.55)[i // 3 % 3])
        for i in range(count)
    ]
    return (np.array(rows, dtype=np.float64).reshape(count, 3) * 255).round().astype(np.uint8)
