"""The parts of Swin Transformer: patch embedding, patch merging, and a block that works on any set of windows.

Source: Liu et al., "Swin Transformer", ICCV 2021 (arXiv 2103.14030), section 3.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from mmcv.cnn.bricks import DropPath
from mmengine.model import BaseModule
from torch import Tensor, nn

from ..token_reduction.super_tokens import pad_grid
from .checkpointing import checkpoint_module
from .window_attention import WindowAttention, shift_masks, window_kinds, window_rows

__all__ = ["PADDINGS", "PatchEmbed", "PatchMerging", "SwinBlock", "Windows"]

PADDINGS = ("after_norm", "before_norm")
# Tokens that go through a block together in inference on a CPU, so that their hidden map (4 C) stays in the cache.
PART_TOKENS = 4096


@dataclass(frozen=True)
class Windows:
    """Which windows a block computes, as places of their tokens. A value, made anew in each forward pass.

    Args:
        rows: (B, k, P) long, row of each token among B * H * W tokens and one row more, which padding points at.
        real: (B, k, P, 1) bool, False for padding; None: there is none.
        kinds: (B, k) long, masks that they need; None: not shifted.
        shift: tokens that the partition is shifted by.
        grid: (H, W) of the tokens.
        whole: all windows of the map are here.
    """

    rows: Tensor
    real: Tensor | None
    kinds: Tensor | None
    shift: int
    grid: tuple[int, int]
    whole: bool = True

    @staticmethod
    def of(chosen: Tensor, grid: tuple[int, int], window: int, shift: int) -> Windows:
        """From numbers (B, k) of windows, all of the map in any order, in the partition shifted by ``shift``."""
        rows, real = window_rows(chosen, grid, window, shift)
        batch, total = chosen.shape[0], grid[0] * grid[1]
        rows = rows + torch.arange(batch, device=chosen.device).view(-1, 1, 1) * total
        padded = bool(grid[0] % window or grid[1] % window)
        if padded:
            rows = torch.where(real, rows, batch * total)
        kinds = window_kinds(chosen, grid, window) if shift else None
        return Windows(rows, real.unsqueeze(-1) if padded else None, kinds, shift, grid)

    def first(self, count: int) -> Windows:
        """The first ``count`` windows of every sample."""
        if count == self.rows.shape[1]:
            return self
        kinds = None if self.kinds is None else self.kinds[:, :count]
        real = None if self.real is None else self.real[:, :count]
        return Windows(self.rows[:, :count], real, kinds, self.shift, self.grid, whole=False)

    def split(self, count: int) -> Iterator[Windows]:
        """In parts of ``count`` windows, samples joined: rows (1, count, P) and so on."""
        rows, total = self.rows.flatten(0, 1), self.rows.shape[0] * self.rows.shape[1]
        real = None if self.real is None else self.real.flatten(0, 1)
        kinds = None if self.kinds is None else self.kinds.flatten()
        for i in range(0, total, count):
            part = [None if t is None else t[i : i + count].unsqueeze(0) for t in (rows, real, kinds)]
            yield Windows(*part, self.shift, self.grid, whole=False)


class SwinBlock(BaseModule):
    """X <- X + MSA(LN X); X <- X + FFN(LN X), attention within windows.

    Args:
        dim: channels C.
        num_heads: heads.
        window: side of a window in tokens.
        mlp_ratio: hidden channels of the feed-forward network / C.
        drop_path: rate of both branches.
        qkv_bias: bias on the q, k, v projection.
        padding: ``'after_norm'``: padding enters attention as zeros, as in the Swin of the host libraries;
            ``'before_norm'``: zeros are normalised with the tokens and enter as the norm's bias, as in SparseViT's
            code.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        window: int,
        mlp_ratio: float = 4.0,
        drop_path: float = 0.0,
        qkv_bias: bool = True,
        padding: str = "after_norm",
    ) -> None:
        super().__init__()
        hidden = int(dim * mlp_ratio)
        self.padding = padding
        self.norm1 = nn.LayerNorm(dim)
        self.attn = WindowAttention(dim, num_heads, window, qkv_bias)
        self.norm2 = nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def position_bias(self, shift: int) -> Tensor:
        """(1 or 4, heads, P, P) position bias; of a shifted partition with each of the masks added."""
        bias = self.attn.position_bias().unsqueeze(0)
        return bias + shift_masks(self.attn.window, shift, bias).unsqueeze(1) if shift else bias

    def forward(
        self, x: Tensor, bias: Tensor, kinds: Tensor | None, real: Tensor | None, order: Tensor | None = None
    ) -> Tensor:
        """(B, k, P, C) windows -> (B, k, P, C). What becomes of padding does not matter.

        Args:
            x: tokens of the windows.
            bias: see :meth:`position_bias`.
            kinds: see :class:`Windows`, as ``real``.
            order: (B * N,) places of tokens among those of ``x``; with it, only those go on after attention, and the
                result is (B, N, C).
        """
        x = self.attend(x, bias, kinds, real)
        if order is not None:
            x = x.flatten(0, 2).index_select(0, order).view(x.shape[0], -1, x.shape[3])
        return self.feed(x)

    def attend(self, x: Tensor, bias: Tensor, kinds: Tensor | None, real: Tensor | None) -> Tensor:
        """The first half of :meth:`forward`."""
        y = self.norm1(x) if real is None else self._norm_padded(x, real)
        y = self.attn(y.flatten(0, 1), bias, None if kinds is None else kinds.flatten())
        return x + self.drop_path(y.view_as(x))

    def feed(self, x: Tensor) -> Tensor:
        """(B, ..., C) tokens -> (B, ..., C), the second half of :meth:`forward`."""
        return x + self.drop_path(self.ffn(self.norm2(x)))

    def _norm_padded(self, x: Tensor, real: Tensor) -> Tensor:
        if self.padding == "before_norm":
            return self.norm1(torch.where(real, x, x.new_zeros(())))
        y = self.norm1(x)
        return torch.where(real, y, y.new_zeros(()))

    def run(self, tokens: Tensor, windows: Windows, with_cp: bool = False) -> Tensor:
        """The block on the chosen windows of a map; other tokens stay as they are.

        Args:
            tokens: (B * H * W, C), with padding (B * H * W + 1, C), the last row being for padding to read from and
                write to. The result may share its memory.
            windows: what to compute.
            with_cp: recompute activations in the backward pass.

        Returns:
            As ``tokens``.
        """
        bias = self.position_bias(windows.shift)
        plain = not (torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.jit.is_tracing())
        if plain and not self.training and tokens.device.type == "cpu":
            return self._run_by_parts(tokens, windows, bias)
        batch, count, positions = windows.rows.shape
        total = batch * windows.grid[0] * windows.grid[1]
        rows = windows.rows.flatten()
        x = tokens.index_select(0, rows).view(batch, count, positions, tokens.shape[1])
        order = rows.argsort()[:total] if windows.whole and windows.real is not None else None
        args = (x, bias, windows.kinds, windows.real, order)
        x = checkpoint_module(self, *args) if with_cp else self(*args)
        x = x.to(tokens.dtype).flatten(0, -2)
        if order is not None:
            return torch.cat([x, x.new_zeros(1, x.shape[1])])
        return tokens.index_copy_(0, rows, x)

    def _run_by_parts(self, tokens: Tensor, windows: Windows, bias: Tensor) -> Tensor:
        """As :meth:`run`, in place, a part at a time from the gathering of its windows to their return."""
        apart = windows.whole and windows.real is not None  # feed no padding, of which whole maps have most
        for part in windows.split(max(1, PART_TOKENS // windows.rows.shape[2])):
            rows = part.rows.flatten()
            x = tokens.index_select(0, rows).view(*part.rows.shape, tokens.shape[1])
            x = (self.attend if apart else self)(x, bias, part.kinds, part.real)
            tokens.index_copy_(0, rows, x.flatten(0, -2).to(tokens.dtype))
        if apart:
            for x in tokens[:-1].split(PART_TOKENS):
                x.copy_(self.feed(x))
        return tokens


class PatchMerging(BaseModule):
    """Each 2 x 2 tokens become one: concatenate (row by row), layer norm, linear to ``out_dim``.

    Args:
        dim: channels C of the input.
        out_dim: channels of the output.
    """

    def __init__(self, dim: int, out_dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim)
        self.reduction = nn.Linear(4 * dim, out_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) -> (B, ceil(H / 2), ceil(W / 2), out_dim); odd sides are padded with zeros."""
        batch, height, width, dim = x.shape
        if height % 2 or width % 2:
            x = pad_grid(x, 0, width % 2, 0, height % 2)
        rows, cols = x.shape[1] // 2, x.shape[2] // 2
        x = x.view(batch, rows, 2, cols, 2, dim).transpose(2, 3).reshape(batch, rows, cols, 4 * dim)
        return self.reduction(self.norm(x))


class PatchEmbed(BaseModule):
    """4 x 4 pixels become one token: convolution of stride 4, layer norm. Padded right and bottom with zeros.

    Args:
        in_channels: channels of the image.
        dim: channels of the tokens.
    """

    def __init__(self, in_channels: int, dim: int) -> None:
        super().__init__()
        self.projection = nn.Conv2d(in_channels, dim, 4, stride=4)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, ceil(H / 4), ceil(W / 4), C)."""
        # Channels last: the convolution's output is (B, H, W, C) in memory, and is not copied to become tokens.
        x = x.permute(0, 2, 3, 1)
        # Not -size % 4: traced sizes follow ONNX, where the remainder of a negative number is negative.
        right, bottom = (4 - x.shape[2] % 4) % 4, (4 - x.shape[1] % 4) % 4
        if right or bottom:
            x = pad_grid(x, 0, right, 0, bottom)
        x = self.projection(x.contiguous().permute(0, 3, 1, 2))
        return self.norm(x.permute(0, 2, 3, 1).contiguous())
