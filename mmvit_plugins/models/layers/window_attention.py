"""Attention inside windows: partition, cyclic shift, masks and relative position bias.

Source: Liu et al., "Swin Transformer", ICCV 2021 (arXiv 2103.14030), sections 3.1 and 3.2. A map of H x W tokens is
padded right and bottom to whole windows of M x M tokens; a shifted partition first rolls the map by ``shift`` tokens to
the upper left, so that its last row and column of windows hold tokens from opposite borders, which a mask keeps apart.

Two ways to cut windows, with equal results: :func:`window_partition` copies the whole map, :func:`window_rows` names
the tokens of chosen windows, so that only those are read and written.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from mmengine.model.weight_init import trunc_normal_
from torch import Tensor, nn

from ..token_reduction.super_tokens import pad_grid

__all__ = [
    "WindowAttention",
    "shift_masks",
    "window_grid",
    "window_kinds",
    "window_partition",
    "window_numbers",
    "window_rows",
    "window_unpartition",
]

# What the mask adds to a logit between tokens from different borders. Published weights were trained with it.
MASKED = -100.0


def window_grid(grid: tuple[int, int], window: int) -> tuple[int, int]:
    """Rows and columns of windows that cover a grid (H, W) of tokens."""
    # Not -(-a // b): traced sizes follow ONNX, whose division rounds towards zero.
    return (grid[0] + window - 1) // window, (grid[1] + window - 1) // window


def window_partition(x: Tensor, window: int, shift: int = 0) -> Tensor:
    """(B, H, W, C) -> (B, rows * cols, window ** 2, C), windows and their tokens in raster order.

    The map is padded with zeros right and bottom, then rolled by ``shift`` tokens to the upper left.
    """
    batch, height, width, dim = x.shape
    rows, cols = window_grid((height, width), window)
    if (rows * window, cols * window) != (height, width):
        x = pad_grid(x, 0, cols * window - width, 0, rows * window - height)
    if shift:
        x = x.roll((-shift, -shift), (1, 2))
    x = x.view(batch, rows, window, cols, window, dim).transpose(2, 3)
    return x.reshape(batch, rows * cols, window * window, dim)


def window_unpartition(windows: Tensor, grid: tuple[int, int], window: int, shift: int = 0) -> Tensor:
    """(B, rows * cols, window ** 2, C) -> (B, H, W, C), the inverse of :func:`window_partition` without the padding."""
    batch, dim = windows.shape[0], windows.shape[-1]
    rows, cols = window_grid(grid, window)
    x = windows.view(batch, rows, cols, window, window, dim).transpose(2, 3)
    x = x.reshape(batch, rows * window, cols * window, dim)
    if shift:
        x = x.roll((shift, shift), (1, 2))
    return x[:, : grid[0], : grid[1]]


def window_numbers(grid: tuple[int, int], window: int, shift: int, device: torch.device) -> Tensor:
    """(H, W) long: the number, in raster order of the (shifted) partition, of the window that each token lies in."""
    (height, width), (rows, cols) = grid, window_grid(grid, window)
    down = torch.arange(height, device=device).sub(shift).remainder(rows * window)
    along = torch.arange(width, device=device).sub(shift).remainder(cols * window)
    down, along = (t.div(window, rounding_mode="floor") for t in (down, along))
    return down.unsqueeze(1) * cols + along


def window_rows(chosen: Tensor, grid: tuple[int, int], window: int, shift: int = 0) -> tuple[Tensor, Tensor]:
    """Which tokens the chosen windows hold.

    Args:
        chosen: (...) long, numbers of windows in raster order.
        grid: (H, W) of the tokens.
        window: side of a window in tokens.
        shift: tokens that the partition is shifted by.

    Returns:
        (..., window ** 2) long, row of each token among the H * W tokens (of padding: any number), and bool, False for
        padding.
    """
    (height, width), (rows, cols) = grid, window_grid(grid, window)
    side = torch.arange(shift, shift + window, device=chosen.device)
    down = (chosen.div(cols, rounding_mode="floor").unsqueeze(-1) * window + side) % (rows * window)
    along = (chosen.remainder(cols).unsqueeze(-1) * window + side) % (cols * window)
    index = down.unsqueeze(-1) * width + along.unsqueeze(-2)
    real = (down < height).unsqueeze(-1) & (along < width).unsqueeze(-2)
    return index.flatten(-2), real.flatten(-2)


def window_kinds(chosen: Tensor, grid: tuple[int, int], window: int) -> Tensor:
    """(...) numbers of windows of a shifted partition -> (...) long, the mask of :func:`shift_masks` each needs."""
    rows, cols = window_grid(grid, window)
    last_row = chosen.div(cols, rounding_mode="floor") == rows - 1
    return last_row.long() * 2 + (chosen.remainder(cols) == cols - 1).long()


def shift_masks(window: int, shift: int, like: Tensor) -> Tensor:
    """(4, P, P), P = window ** 2, to add to the logits: 0 within one part of a window, -100 between parts.

    Of windows inside the map (no parts), in the last column (left and right), in the last row (upper and lower), and in
    the corner (four parts). On the device and in the dtype of ``like``.
    """
    behind = (torch.arange(window, device=like.device) >= window - shift).long()
    down, along = behind.view(window, 1).expand(window, window), behind.expand(window, window)
    parts = torch.stack([torch.zeros_like(down), along, 2 * down, 2 * down + along]).flatten(1)
    apart = parts.unsqueeze(1) != parts.unsqueeze(2)
    return apart.to(like.dtype) * MASKED


class WindowAttention(BaseModule):
    """Multi-head attention within windows with a learned relative position bias, softmax(Q K^T / sqrt(d) + B) V.

    Channels of ``qkv`` are laid out as [q, k, v], each (heads, d), as in all published Swin weights. The bias table has
    a row for each pair of offsets, those of the height first. On loading, a table of another window is resized in
    float32, bicubically.

    Args:
        dim: channels C.
        num_heads: heads; must divide ``dim``.
        window: side of a window in tokens.
        qkv_bias: bias on the q, k, v projection.

    Raises:
        ValueError: the heads do not divide the channels.
    """

    def __init__(self, dim: int, num_heads: int, window: int, qkv_bias: bool = True) -> None:
        super().__init__()
        if dim % num_heads:
            raise ValueError(f"num_heads must divide the channels: {dim} channels, {num_heads} heads")
        self.num_heads, self.window = num_heads, window
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, num_heads))
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        side = torch.arange(window)
        offset = side.view(-1, 1) - side + window - 1  # (window, window), from 0
        pair = offset.view(window, 1, window, 1) * (2 * window - 1) + offset.view(1, window, 1, window)
        self.register_buffer("pair", pair.reshape(-1), persistent=False)  # (P * P,) row of the table

    def init_weights(self) -> None:
        """Truncated normal of 0.02 for the bias table, the rest as the parent says."""
        super().init_weights()
        trunc_normal_(self.relative_position_bias_table, std=0.02)

    def position_bias(self) -> Tensor:
        """(heads, P, P)."""
        count = self.window * self.window
        return self.relative_position_bias_table.t().index_select(1, self.pair).view(-1, count, count)

    def forward(self, x: Tensor, bias: Tensor, kinds: Tensor | None = None) -> Tensor:
        """(n, P, C) windows -> (n, P, C).

        Args:
            x: (n, P, C).
            bias: (1, heads, P, P) of :meth:`position_bias`, or (4, heads, P, P), with the masks of a shifted partition
                added to it; given by the caller, so that several calls share it.
            kinds: (n,) which of the four each window needs; None: all windows share the one.
        """
        count, positions, dim = x.shape
        heads, width = self.num_heads, dim // self.num_heads
        qkv = self.qkv(x).view(count, positions, 3, heads, width).permute(2, 0, 3, 1, 4)
        bias = bias.to(qkv.dtype)
        bias = bias.expand(count, -1, -1, -1) if kinds is None else bias.index_select(0, kinds)
        if x.device.type != "cpu" or torch.compiler.is_compiling() or torch.jit.is_tracing():
            out = F.scaled_dot_product_attention(*qkv.unbind(0), attn_mask=bias)
        else:
            # For 49 tokens the fused kernel of the CPU is slower than its parts: its blocks are made for long rows.
            q, k, v = qkv.reshape(3, count * heads, positions, width).unbind(0)
            bias = bias.reshape(count * heads, positions, positions)
            out = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=width**-0.5).softmax(dim=-1).to(v.dtype) @ v
        return self.proj(out.view(count, heads, positions, width).transpose(1, 2).reshape(count, positions, dim))

    def fit_official_state(self, state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
        """``state`` with the bias table below ``prefix`` resized to this window; called by ``OfficialPretrained``."""
        key = f"{prefix}relative_position_bias_table"
        return state | {key: self.fit_table(state[key])} if key in state else state

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: object) -> None:
        """As the parent, after resizing the bias table; ``state_dict`` is the loader's own copy."""
        key = f"{prefix}relative_position_bias_table"
        if key in state_dict:
            state_dict[key] = self.fit_table(state_dict[key])
        super()._load_from_state_dict(state_dict, prefix, *args)

    def fit_table(self, table: Tensor) -> Tensor:
        """((2 M' - 1) ** 2, heads) table of windows M' -> the same for this window; unchanged if it fits or cannot."""
        old, new = round(table.shape[0] ** 0.5), 2 * self.window - 1
        if table.dim() != 2 or old * old != table.shape[0] or old == new or table.shape[1] != self.num_heads:
            return table
        square = table.float().t().reshape(1, -1, old, old)
        resized = F.interpolate(square, size=(new, new), mode="bicubic", align_corners=False)
        return resized.flatten(2).squeeze(0).t().to(table.dtype)
