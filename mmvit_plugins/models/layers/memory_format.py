"""Tokens and maps over the same memory, and norms folded into what follows.

A channels_last map (B, C, H, W) and its tokens (B, H * W, C) have the same bytes: attention and 1x1 convolutions read them
as tokens, spatial convolutions as maps, and nothing is copied in between.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["as_map", "as_tokens", "fold_norm"]


def as_map(x: Tensor, grid: tuple[int, int]) -> Tensor:
    """(B, H * W, C) tokens -> (B, C, H, W) map in channels_last, without a copy."""
    return x.reshape(x.shape[0], grid[0], grid[1], x.shape[2]).permute(0, 3, 1, 2)


def as_tokens(x: Tensor) -> Tensor:
    """(B, C, H, W) map -> (B, H * W, C) tokens, without a copy if the map is channels_last."""
    return x.permute(0, 2, 3, 1).reshape(x.shape[0], -1, x.shape[1])


def fold_norm(norm: nn.Module, linear: nn.Linear) -> tuple[Tensor, Tensor] | None:
    """Weight and bias of ``linear(norm(x))`` as one linear map, for a batch norm that uses its running statistics.

    Differentiable, so that it also serves training with frozen norms.

    Returns:
        (C_out, C_in) weight and (C_out,) bias, or None where the norm depends on the batch or is no batch norm.
    """
    if not isinstance(norm, _BatchNorm) or norm.training or norm.running_var is None:
        return None
    with torch.autocast(linear.weight.device.type, enabled=False):
        scale = torch.rsqrt(norm.running_var + norm.eps)
        shift = -norm.running_mean * scale
        if norm.weight is not None:
            scale, shift = scale * norm.weight, shift * norm.weight + norm.bias
        bias = linear.weight @ shift
        return linear.weight * scale, bias if linear.bias is None else bias + linear.bias
