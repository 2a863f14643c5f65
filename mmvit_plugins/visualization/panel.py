"""Several pictures side by side with a title each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

__all__ = ["draw_panel"]


def draw_panel(pictures: Sequence[tuple[str, np.ndarray]], out_file: str | Path, columns: int = 3) -> Path:
    """Write one PNG with all ``pictures``.

    Args:
        pictures: (title, (H, W, 3) uint8 RGB) each.
        out_file: where the PNG goes; folders are made.
        columns: pictures in a row.

    Raises:
        ValueError: there is nothing to draw.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if not pictures:
        raise ValueError("draw_panel needs at least one picture, got none")
    columns = min(columns, len(pictures))
    rows = -(-len(pictures) // columns)
    height, width = pictures[0][1].shape[:2]
    # Very flat or very high pictures get room for their title.
    aspect = min(max(height / width, 0.25), 4.0)
    figure = Figure(figsize=(4.2 * columns, (4.2 * aspect + 0.4) * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = np.atleast_1d(figure.subplots(rows, columns)).ravel()
    for axis in axes:
        axis.axis("off")
    for axis, (title, picture) in zip(axes, pictures, strict=False):
        axis.imshow(picture, interpolation="nearest" if picture.shape[0] < 400 else "antialiased")
        axis.set_title(title, fontsize=10)
    out_file = Path(out_file)
    out_file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out_file, dpi=110, bbox_inches="tight", pad_inches=0.06)
    return out_file
