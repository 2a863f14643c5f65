"""Draw how important each window is and which ones a block computes (SparseViT)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cv2
import numpy as np

if TYPE_CHECKING:
    from mmvit_plugins.models.backbones.sparsevit import BlockChoice

__all__ = ["draw_window_choice"]


def draw_window_choice(
    image: np.ndarray,
    choice: BlockChoice,
    window: int,
    stride: int,
    sample: int = 0,
    border: tuple[int, int, int] = (255, 255, 255),
) -> tuple[np.ndarray, np.ndarray]:
    """Two pictures of a block: the score of each window, and the image with the pruned windows darkened.

    Scores are drawn from dark (the lowest of the map) to light (the highest) over the image. Windows of a shifted
    partition that hold two or four opposite borders of the map have one colour at all of them.

    Args:
        image: (H, W, 3) uint8 RGB that the choice was made for.
        choice: one entry of :meth:`SparseViT.window_choices`.
        window: side of a window in tokens.
        stride: side of a token in pixels.
        sample: which image of the batch.
        border: RGB of the lines between windows.

    Returns:
        Scores and kept windows, each (H, W, 3) uint8 RGB.

    Raises:
        ValueError: the block was not pruned, so that nothing was scored, or the tokens do not cover the image.
    """
    from mmvit_plugins.models.layers.window_attention import window_numbers

    height, width = image.shape[:2]
    if choice.scores is None:
        raise ValueError(
            "no window was scored, because no block of the stage up to this one is pruned: raise its ratio"
        )
    if stride * choice.grid[0] < height or stride * choice.grid[1] < width:
        raise ValueError(
            f"{choice.grid[0]} x {choice.grid[1]} tokens of {stride} pixels do not cover {height} x {width} pixels; "
            "give the stride of the stage"
        )
    numbers = window_numbers(choice.grid, window, choice.shift, choice.kept.device).cpu().numpy()
    numbers = numbers[np.arange(height) // stride][:, np.arange(width) // stride]
    scores = choice.scores[sample].float().cpu().numpy()
    shade = (scores - scores.min()) / max(float(scores.max() - scores.min()), 1e-12)
    heat = cv2.applyColorMap((shade * 255).round().astype(np.uint8).reshape(-1, 1), cv2.COLORMAP_VIRIDIS)
    heat = heat.reshape(-1, 3)[:, ::-1][numbers]
    scored = (0.25 * image + 0.75 * heat).round().astype(np.uint8)
    kept = np.zeros(len(scores), dtype=bool)
    kept[choice.kept[sample].cpu().numpy()] = True
    chosen = np.where(kept[numbers][..., None], image, image // 4)
    edge = np.zeros(numbers.shape, dtype=bool)
    edge[:, :-1] |= numbers[:, :-1] != numbers[:, 1:]
    edge[:-1] |= numbers[:-1] != numbers[1:]
    for picture in (scored, chosen):
        picture[edge] = border
    return scored, chosen
