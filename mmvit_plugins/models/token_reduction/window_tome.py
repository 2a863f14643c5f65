"""Equal merging per window: token merging where attention works in windows.

ToMe's authors advise it (facebookresearch/ToMe#42): if every window merges the same number of tokens, windows stay
equal rows of one tensor, attention within them needs no mask, and global attention joins them without restoring.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmvit_plugins.registry import MODELS

from .base import TokenReducer, check_tokens
from .super_tokens import from_cells, to_cells
from .token_map import TokenMap
from .tome import bipartite_soft_matching

__all__ = ["WindowTokenMerging", "join_windows", "split_windows"]


def split_windows(x: Tensor, grid: tuple[int, int], window: tuple[int, int]) -> tuple[Tensor, Tensor | None]:
    """Cut a grid into windows, zero-padded right and bottom.

    Args:
        x: (B, H * W, C).
        grid: (H, W).
        window: (h, w) of a window in tokens.

    Returns:
        (B * windows, h * w, C), and (B * windows, h * w) bool, False for padding; None where nothing was padded.
    """
    cells = to_cells(x, grid, window)
    valid = None
    if grid[0] % window[0] or grid[1] % window[1]:
        real = to_cells(torch.ones(1, x.shape[1], 1, dtype=x.dtype, device=x.device), grid, window).squeeze(-1) > 0
        valid = real.expand(x.shape[0], -1, -1).flatten(0, 1)
    return cells.flatten(0, 1), valid


def join_windows(local: TokenMap, grid: tuple[int, int], window: tuple[int, int]) -> TokenMap:
    """Maps of single windows (B * windows, h * w, 1) -> one map (B, H * W, 1), reduced tokens sorted by window."""
    rows, cols = -(-grid[0] // window[0]), -(-grid[1] // window[1])
    first = torch.arange(rows * cols, device=local.index.device).view(1, -1, 1, 1) * local.num
    shape = (-1, rows * cols, window[0] * window[1], 1)
    index = from_cells((local.index.reshape(shape) + first).contiguous(), grid, window)
    weight = from_cells(local.weight.reshape(shape), grid, window)
    return TokenMap(index, weight, rows * cols * local.num)


@MODELS.register_module()
class WindowTokenMerging(TokenReducer):
    """Merges the same number of tokens in each window of a grid; windows that the border cuts merge fewer.

    Every window of P places ends with P - r tokens, those that the border cuts too: their padding counts as merged
    first, so some of their reduced tokens may be empty (mass 0).

    Args:
        window: side of a window in tokens, or (h, w).
        r: tokens to merge in each window: a whole number, or a share of the window as a float below 1; at most half.

    Raises:
        ValueError: an argument is outside its legal values.
    """

    reduced_name = "merged tokens"

    def __init__(self, window: int | tuple[int, int] = 8, r: int | float = 0.5) -> None:
        super().__init__()
        self.window = (window, window) if isinstance(window, int) else tuple(window)
        if len(self.window) != 2 or min(self.window) < 1:
            raise ValueError(f"window must be at least 1 token high and wide, a number or (h, w), got {window!r}")
        if isinstance(r, bool) or r < 0 or (isinstance(r, float) and r >= 1):
            raise ValueError(f"r must be a whole number of tokens or a share of the window in [0, 1), got {r!r}")
        self.r = int(r * self.window[0] * self.window[1]) if isinstance(r, float) else r

    def associate(self, metric: Tensor, grid: tuple[int, int]) -> TokenMap:
        """(B, H * W, C) on grid (H, W) -> the map to windows * (h * w - r) tokens, sorted by window."""
        grid = check_tokens(metric, grid, type(self).__name__)
        windows, valid = split_windows(metric, grid, self.window)
        return join_windows(bipartite_soft_matching(windows, self.r, valid=valid), grid, self.window)
