"""The pre-norm transformer block of ViT, with keys that can be masked or weighted.

Parameters are named as those of MMPretrain's VisionTransformer.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from mmcv.cnn.bricks import DropPath
from mmengine.model import BaseModule
from torch import Tensor, nn

__all__ = ["ViTBlock", "weighted_attention"]


def weighted_attention(q: Tensor, k: Tensor, v: Tensor, weight: Tensor) -> Tensor:
    """Attention with a weight on each key: sum_j w_j exp(q k_j) v_j / sum_j w_j exp(q k_j), differentiable in w.

    With weights 0 and 1 it equals masked attention, but the weights of masked keys have a gradient as well. Computed by
    the fused kernel: w_j v_j with w_j as one more channel, then divided by that channel. In at least float32, because
    the share of the kept keys may be small.

    Args:
        q: (B, heads, N, d).
        k: (B, heads, M, d).
        v: (B, heads, M, d).
        weight: (B, M) >= 0, not all 0.

    Returns:
        (B, heads, N, d) in the dtype of ``v``.
    """
    dtype = torch.promote_types(v.dtype, torch.float32)
    with torch.autocast(q.device.type, enabled=False):
        q, k, wide, w = (t.to(dtype) for t in (q, k, v, weight[:, None, :, None]))
        ones = w.expand(*wide.shape[:-1], 1)
        # The fused kernels want queries, keys and values of one width: zeros change no product.
        q, k = F.pad(q, (0, 1)), F.pad(k, (0, 1))
        out = F.scaled_dot_product_attention(q, k, torch.cat([wide * w, ones], dim=-1), scale=v.shape[-1] ** -0.5)
        total = out[..., -1:].clamp_min(torch.finfo(dtype).tiny)
        return (out[..., :-1] / total).to(v.dtype)


class ViTAttention(BaseModule):
    """Multi-head self-attention; the channels of ``qkv`` are [q | k | v], each sorted by heads.

    Args:
        dim: channels C.
        num_heads: heads; must divide ``dim``.
    """

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        if dim % num_heads:
            raise ValueError(f"num_heads must divide the channels: {dim} channels, {num_heads} heads")
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, key_mask: Tensor | None = None, key_weight: Tensor | None = None) -> Tensor:
        """(B, N, C) -> (B, N, C).

        Args:
            x: tokens.
            key_mask: (B, N) bool, False: nobody looks at this token.
            key_weight: (B, N), see :func:`weighted_attention`; masked keys must have weight 0 themselves.
        """
        batch, count, dim = x.shape
        qkv = self.qkv(x).view(batch, count, 3, self.num_heads, dim // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        if key_weight is not None:
            out = weighted_attention(q, k, v, key_weight)
        else:
            mask = None if key_mask is None else key_mask[:, None, None, :]
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.proj(out.transpose(1, 2).reshape(batch, count, dim))


class Mlp(BaseModule):
    """Linear, GELU, linear.

    Args:
        dim: channels C.
        hidden: channels between the two.
    """

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Sequential(nn.Linear(dim, hidden), nn.GELU()), nn.Linear(hidden, dim))

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., C)."""
        return self.layers(x)


class ViTBlock(BaseModule):
    """X <- X + MSA(LN X); X <- X + MLP(LN X).

    Args:
        dim: channels C.
        num_heads: heads.
        mlp_ratio: hidden channels of the MLP / C.
        drop_path: rate of both branches.
    """

    def __init__(self, dim: int, num_heads: int, mlp_ratio: float = 4.0, drop_path: float = 0.0) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = ViTAttention(dim, num_heads)
        self.ln2 = nn.LayerNorm(dim, eps=1e-6)
        self.ffn = Mlp(dim, int(dim * mlp_ratio))
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, x: Tensor, key_mask: Tensor | None = None, key_weight: Tensor | None = None) -> Tensor:
        """(B, N, C) -> (B, N, C); masks and weights as in :class:`ViTAttention`."""
        x = x + self.drop_path(self.attn(self.ln1(x), key_mask, key_weight))
        return x + self.drop_path(self.ffn(self.ln2(x)))
