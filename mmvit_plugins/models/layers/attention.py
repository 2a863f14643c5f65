"""Plain multi-head self-attention on tokens, through torch's fused kernels."""

from __future__ import annotations

import torch.nn.functional as F
from mmengine.model import BaseModule
from torch import Tensor, nn

__all__ = ["SelfAttention"]


class SelfAttention(BaseModule):
    """Multi-head self-attention, softmax(Q K^T / sqrt(d)) V, without positional bias.

    The fused kernel never holds the N x N matrix. The output channels of ``qkv`` are laid out per head as [q, k, v],
    as in STViT's and EfficientViT's published weights.

    Args:
        dim: channels C.
        num_heads: heads; must divide ``dim``.
        qkv_bias: bias on the q, k, v projection.
    """

    def __init__(self, dim: int, num_heads: int, qkv_bias: bool = True) -> None:
        super().__init__()
        if dim % num_heads:
            raise ValueError(f"num_heads must divide the channels: {dim} channels, {num_heads} heads")
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, C) -> (B, N, C)."""
        batch, count, dim = x.shape
        qkv = self.qkv(x).view(batch, count, self.num_heads, 3, dim // self.num_heads)
        q, k, v = qkv.permute(3, 0, 2, 1, 4).unbind(0)  # each (B, heads, N, d)
        out = F.scaled_dot_product_attention(q, k, v)
        return self.proj(out.transpose(1, 2).reshape(batch, count, dim))
