"""Depthwise convolutions with a skip, and the feed-forward network that holds one."""

from __future__ import annotations

import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule
from torch import Tensor, nn

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

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        identity = F.pad(self.weight.new_ones(1, 1, 1, 1), (1, 1, 1, 1))
        return F.conv2d(x, self.weight + identity, self.bias, padding=1, groups=self.groups)


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
        hidden = self.fc1(as_tokens(self.norm(as_map(x, grid))))
        hidden = as_map(F.gelu(hidden), grid)
        return self.fc2(as_tokens(self.dwconv(hidden)))
