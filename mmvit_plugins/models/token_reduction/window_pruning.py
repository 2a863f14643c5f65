"""Window pruning: keep the windows with the largest activations, let the others pass by.

Source: Chen, Liu et al., "SparseViT", CVPR 2023 (arXiv 2303.17605), section 3: a token's magnitude is the mean of its
absolute channels, a window's importance the L2 norm of the magnitudes of its tokens, and ``int(windows * (1 - ratio))``
windows are kept. A choice, not a weighting: no gradient flows through it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmvit_plugins.registry import MODELS

from ..layers.window_attention import window_grid, window_numbers
from .base import TokenReducer, check_tokens
from .super_tokens import pad_grid
from .token_map import TokenMap

__all__ = [
    "WindowPruning",
    "check_ratio",
    "kept_count",
    "rank_windows",
    "token_magnitudes",
    "window_scores",
    "windows_map",
]


def check_ratio(ratio: float, who: str) -> float:
    """``ratio`` as a float in [0, 1).

    Raises:
        ValueError: it is no number, or outside.
    """
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 <= ratio < 1:
        raise ValueError(f"{who} must be the share of windows to drop, from 0 (none) to below 1, got {ratio!r}")
    return float(ratio)


def kept_count(windows: int, ratio: float) -> int:
    """How many of ``windows`` stay at a pruning ratio, ``int(windows * (1 - ratio))``; 0 is legal."""
    return int(windows * (1 - ratio))


@torch.no_grad()
def token_magnitudes(x: Tensor) -> Tensor:
    """(..., C) -> (...), mean over the channels of absolute values, in at least float32."""
    return x.abs().mean(dim=-1, dtype=torch.promote_types(x.dtype, torch.float32))


@torch.no_grad()
def window_scores(magnitudes: Tensor, window: int, shift: int = 0) -> Tensor:
    """(B, H, W) of :func:`token_magnitudes` -> (B, rows * cols), the L2 norm over each window; padding counts 0."""
    height, width = magnitudes.shape[1:]
    rows, cols = window_grid((height, width), window)
    squares = pad_grid(magnitudes.square().unsqueeze(-1), 0, cols * window - width, 0, rows * window - height)
    if shift:
        squares = squares.roll((-shift, -shift), (1, 2))
    return squares.view(-1, rows, window, cols, window).sum(dim=(2, 4)).sqrt().flatten(1)


def rank_windows(scores: Tensor) -> Tensor:
    """(B, n) scores -> (B, n) numbers of the windows, highest score first, equal scores in raster order.

    What fewer windows keep is a prefix of what more keep.
    """
    if torch.jit.is_tracing():  # ONNX has no stable sort, but its TopK is one
        return scores.topk(scores.shape[1], dim=1).indices
    return scores.sort(dim=1, descending=True, stable=True).indices


def windows_map(kept: Tensor, grid: tuple[int, int], window: int, shift: int = 0) -> TokenMap:
    """(B, k) numbers of the kept windows -> map from the H * W tokens of ``grid`` to them, weight 1 kept, 0 dropped.

    If none is kept the map has one reduced token, which no token belongs to.
    """
    rows, cols = window_grid(grid, window)
    of_token = window_numbers(grid, window, shift, kept.device).view(1, -1).expand(kept.shape[0], -1)
    count = kept.shape[1]
    rank = torch.full((kept.shape[0], rows * cols), -1, device=kept.device)
    rank = rank.scatter(1, kept, torch.arange(count, device=kept.device).expand_as(kept)).gather(1, of_token)
    return TokenMap(rank.clamp_min(0).unsqueeze(-1), (rank >= 0).float().unsqueeze(-1), max(count, 1))


@MODELS.register_module()
class WindowPruning(TokenReducer):
    """Reduce tokens to the windows with the largest activations (SparseViT).

    The map has K = 1: index is the rank of a token's window among the kept ones, weight 1 for kept and 0 for dropped
    windows. ``restore(y, map, base=x)`` lets dropped windows pass through unchanged. The backbone
    :class:`~mmvit_plugins.models.backbones.sparsevit.SparseViT` keeps all tokens of a window for its attention; as
    reducer on its own this gives their mean.

    Args:
        window: side of a window in tokens.
        ratio: share of windows to drop, in [0, 1).
        shift: tokens that the partition is shifted by, from 0 to ``window - 1``.

    Raises:
        ValueError: an argument is outside its legal values.
    """

    reduced_name = "kept windows"

    def __init__(self, window: int = 7, ratio: float = 0.5, shift: int = 0) -> None:
        super().__init__()
        if type(window) is not int or window < 1:
            raise ValueError(f"window must be at least 1 token wide, got {window!r}")
        if type(shift) is not int or not 0 <= shift < window:
            raise ValueError(f"shift must be from 0 to {window - 1} for windows of {window}, got {shift!r}")
        self.window, self.shift, self.ratio = window, shift, check_ratio(ratio, "ratio")

    def scores(self, metric: Tensor, grid: tuple[int, int]) -> Tensor:
        """(B, H * W, C) on grid (H, W) -> (B, rows * cols) importance of each window."""
        grid = check_tokens(metric, grid, type(self).__name__)
        return window_scores(token_magnitudes(metric).view(-1, *grid), self.window, self.shift)

    @torch.no_grad()
    def associate(self, metric: Tensor, grid: tuple[int, int]) -> TokenMap:
        """(B, H * W, C) on grid (H, W) -> the map to the kept windows, most important first."""
        scores = self.scores(metric, grid)
        kept = rank_windows(scores)[:, : kept_count(scores.shape[1], self.ratio)]
        return windows_map(kept, (int(grid[0]), int(grid[1])), self.window, self.shift)
