"""Depthwise convolutions with a skip, and the feed-forward network that holds one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .memory_format import as_map, as_tokens

__all__ = ["ConvFFN", "ResidualDepthwiseConv"]


class ResidualDepthwiseConv(nn.Conv2d):
    """x + DW3x3(x) in one convolution: the skip is added to the centre tap of the kernel.

    One pass over memory instead of three; equal up to rounding. As convolutional position embedding (CPE) it opens
    every STViT block.

    Args:
        dim: channels C.
    """

    def __init__(self, dim: int) -> None:
        super().__init__(dim, dim, 3, padding=1, groups=dim)

    def kernel(self) -> Tensor:
        """(C, 1, 3, 3) weight with the skip in it."""
        return self.weight + F.pad(self.weight.new_ones(1, 1, 1, 1), (1, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        if torch.jit.is_tracing():  # ONNX has no convolution with a computed kernel
            return x + super().forward(x)
        return F.conv2d(x, self.kernel(), self.bias, padding=1, groups=self.groups)


class ConvFFN(BaseModule):
    """Feed-forward network with a convolution inside: norm, 1x1 (x ratio), GELU, y + DW3x3(y), 1x1.

    Source: STViT, section 3.1.

    Args:
        dim: channels C.
        ratio: hidden channels / C.
        norm_cfg: mmcv's config of the norm before it.
    """

    def __init__(self, dim: int, ratio: float, norm_cfg: dict) -> None:
        super().__init__()
        self.norm = build_norm_layer(norm_cfg, dim)[1]
        self.fc1 = nn.Linear(dim, int(dim * ratio))
        self.dwconv = ResidualDepthwiseConv(int(dim * ratio))
        self.fc2 = nn.Linear(int(dim * ratio), dim)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """(B, H * W, C) on grid (H, W) -> (B, H * W, C)."""
        rows = self._strip_rows(x, grid)
        if rows < grid[0]:
            return self._by_strips(x, grid, rows)
        hidden = self.fc1(as_tokens(self.norm(as_map(x, grid))))
        return self.fc2(as_tokens(self.dwconv(as_map(F.gelu(hidden), grid))))

    def _strip_rows(self, x: Tensor, grid: tuple[int, int]) -> int:
        """Rows to compute at a time: all of them, but for large maps in inference on a CPU.

        There the hidden map of a strip stays in the cache, while the whole one (67 MB at 1024 x 1024 pixels) goes to
        memory and back between the layers. About 2048 tokens keep the matrix products efficient, 16 rows the halo
        small. Measured with tools/benchmark_reference.py.
        """
        if torch.is_grad_enabled() or x.device.type != "cpu":
            return grid[0]
        # Any other norm looks at the whole map.
        if not isinstance(self.norm, _BatchNorm) or self.norm.training or self.norm.running_mean is None:
            return grid[0]
        if torch.compiler.is_compiling() or torch.jit.is_tracing():
            return grid[0]
        return max(16, 2048 // (x.shape[0] * grid[1]))

    def _by_strips(self, x: Tensor, grid: tuple[int, int], rows: int) -> Tensor:
        """As forward, ``rows`` rows at a time, with the rows above and below that the 3x3 convolution reads."""
        height, width = grid
        out = torch.empty_like(x).view(x.shape[0], height, width, x.shape[2])
        maps, kernel = as_map(x, grid), self.dwconv.kernel()
        for top in range(0, height, rows):
            bottom = min(top + rows, height)
            first, last = max(top - 1, 0), min(bottom + 1, height)
            hidden = F.gelu(self.fc1(as_tokens(self.norm(maps[:, :, first:last]))))
            hidden = as_map(hidden, (last - first, width))
            hidden = F.conv2d(hidden, kernel, self.dwconv.bias, padding=1, groups=kernel.shape[0])
            hidden = hidden[:, :, top - first : bottom - first]
            out[:, top:bottom] = self.fc2(as_tokens(hidden)).view(x.shape[0], bottom - top, width, -1)
        return out.view_as(x)
