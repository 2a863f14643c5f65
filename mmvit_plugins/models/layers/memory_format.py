"""Tokens and maps over the same memory.

A channels_last map (B, C, H, W) and its tokens (B, H * W, C) have the same bytes: attention and 1x1 convolutions read
them as tokens, spatial convolutions as maps, and nothing is copied in between.
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["as_map", "as_output", "as_tokens"]


def as_map(x: Tensor, grid: tuple[int, int]) -> Tensor:
    """(B, H * W, C) tokens -> (B, C, H, W) map in channels_last, without a copy."""
    return x.reshape(x.shape[0], grid[0], grid[1], x.shape[2]).permute(0, 3, 1, 2)


def as_tokens(x: Tensor) -> Tensor:
    """(B, C, H, W) map -> (B, H * W, C) tokens, without a copy if the map is channels_last."""
    return x.permute(0, 2, 3, 1).reshape(x.shape[0], x.shape[2] * x.shape[3], x.shape[1])  # -1 fails for no images


def as_output(x: Tensor) -> Tensor:
    """(B, C, H, W) map in any layout -> the same in (B, C, H, W) order in memory, for the heads of the hosts.

    mmcv's RoIAlign (seen in 2.3.6) reads the memory of a map in this order whatever its strides say: from a
    channels_last map it takes wrong numbers, silently.
    """
    return x.contiguous()
