"""Attention inside groups of equal size, and the transformer layer around it.

Source: Liu et al., "FlatFormer", CVPR 2023 (arXiv 2301.08739), section 3.2. Plain scaled-dot-product attention through
torch's fused kernels, in every dtype and on every device; the authors' code needs FlashAttention and half precision.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from mmcv.cnn.bricks import DropPath
from mmengine.model import BaseModule
from torch import Tensor, nn

from ..token_reduction.selection_map import SelectionMap

__all__ = ["ACTIVATIONS", "GroupAttention", "GroupTransformerLayer", "sine_positions"]

ACTIVATIONS = dict(gelu=F.gelu, relu=F.relu)


def sine_positions(x: Tensor, y: Tensor, dim: int, temperature: float = 10000.0) -> Tensor:
    """Sinusoids of coordinates, (N,) and (N,) -> (N, dim) float32: half of the channels for x, half for y.

    In each half, channel 2i is the sine and 2i + 1 the cosine of the coordinate / temperature^(2i / half).

    Raises:
        ValueError: ``dim`` is no multiple of 4.
    """
    if dim % 4:
        raise ValueError(f"positions by sines need channels that are a multiple of 4, got {dim}")
    half = dim // 2
    exponent = torch.arange(0, half, 2, device=x.device, dtype=torch.float32) / half
    phase = torch.stack([x, y], dim=-1).float().unsqueeze(-1) / temperature**exponent  # (N, 2, half / 2)
    return torch.stack([phase.sin(), phase.cos()], dim=-1).flatten(-3)


class GroupAttention(BaseModule):
    """Multi-head attention with q = k = x + position and v = x, inside each group.

    Args:
        dim: channels C.
        num_heads: heads; must divide ``dim``.
    """

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        if dim % num_heads:
            raise ValueError(f"num_heads must divide the channels: {dim} channels, {num_heads} heads")
        self.num_heads = num_heads
        self.qk = nn.Linear(dim, 2 * dim)
        self.v = nn.Linear(dim, dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, pos: Tensor, real: Tensor | None = None) -> Tensor:
        """Attend inside groups.

        Args:
            x: (G, L, C) tokens of G groups.
            pos: (G, L, C) positions, or (1, L, C).
            real: (G, L) bool, False for places without a token, to which nobody attends; None: all are real. Every
                group needs one real place.

        Returns:
            (G, L, C).
        """
        groups, size, dim = x.shape
        heads, width = self.num_heads, dim // self.num_heads
        qk = self.qk(x + pos).view(groups, size, 2, heads, width)
        q, k = qk.permute(2, 0, 3, 1, 4).unbind(0)  # each (G, heads, L, d)
        v = self.v(x).view(groups, size, heads, width).transpose(1, 2)
        mask = None if real is None else real.view(groups, 1, 1, size)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.proj(out.transpose(1, 2).reshape(groups, size, dim))


class GroupTransformerLayer(BaseModule):
    """Attention inside groups and a feed-forward network, each with a skip and a LayerNorm.

    ``post``, as published: x <- LN(x + MHSA(x)); x <- LN(x + FFN(x)).
    ``pre``: x <- x + MHSA(LN x); x <- x + FFN(LN x).

    Args:
        dim: channels C.
        num_heads: heads.
        group_size: tokens in a group.
        mlp_ratio: hidden channels of the feed-forward network / C.
        activation: ``'gelu'`` or ``'relu'``.
        norm: ``'post'`` or ``'pre'``.
        drop_path: rate of both branches.

    Raises:
        ValueError: an argument is outside its legal values.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        group_size: int,
        mlp_ratio: float = 2.0,
        activation: str = "gelu",
        norm: str = "post",
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")
        if norm not in ("post", "pre"):
            raise ValueError(f"norm must be 'post' or 'pre', got {norm!r}")
        self.group_size, self.activation, self.pre_norm = group_size, activation, norm == "pre"
        self.attn = GroupAttention(dim, num_heads)
        self.norm1 = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, int(dim * mlp_ratio))
        self.fc2 = nn.Linear(int(dim * mlp_ratio), dim)
        self.norm2 = nn.LayerNorm(dim)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, x: Tensor, pos: Tensor, groups: SelectionMap) -> Tensor:
        """Attend in the groups of a map.

        Args:
            x: (B, N, C) tokens in any order.
            pos: (B, M, C) positions in the order of the groups.
            groups: map of the N tokens to M places.

        Returns:
            (B, N, C).
        """
        if self.pre_norm:
            x = x + self.drop_path(self._attend(self.norm1(x), pos, groups))
            return x + self.drop_path(self._feed(self.norm2(x)))
        x = self.norm1(x + self.drop_path(self._attend(x, pos, groups)))
        return self.norm2(x + self.drop_path(self._feed(x)))

    def _attend(self, x: Tensor, pos: Tensor, groups: SelectionMap) -> Tensor:
        # Images of fewer tokens than a group are one group each; sparse samples are filled up and have a mask.
        size = groups.num if groups.real is None and 0 < groups.num < self.group_size else self.group_size
        in_order = groups.reduce(x)
        real = None if groups.real is None else groups.real.view(-1, size)
        y = self.attn(in_order.view(-1, size, x.shape[2]), pos.reshape(-1, size, x.shape[2]), real)
        return groups.restore(y.view(in_order.shape))

    def _feed(self, x: Tensor) -> Tensor:
        return self.fc2(ACTIVATIONS[self.activation](self.fc1(x)))
