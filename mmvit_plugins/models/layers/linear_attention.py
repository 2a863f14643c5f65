"""ReLU linear attention, and EfficientViT's multi-scale form of it.

Paper: Cai, Li, Hu, Gan, Han, "EfficientViT: Lightweight Multi-Scale Attention for High-Resolution Dense Prediction",
ICCV 2023 (arXiv 2205.14756), section 3.1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from mmcv.cnn import ConvModule
from mmengine.model import BaseModule, ModuleList
from torch import Tensor, nn

from .memory_format import as_map, as_tokens
from .row_strips import conv_norm_act

__all__ = ["MultiScaleLinearAttention", "relu_linear_attention"]


def relu_linear_attention(q: Tensor, k: Tensor, v: Tensor, eps: float = 1e-15) -> Tensor:
    """O_i = ReLU(q_i) (sum_j ReLU(k_j)^T v_j) / (ReLU(q_i) . sum_j ReLU(k_j) + eps), at a cost linear in N.

    Computed in float32 (float64 inputs stay so) outside autocast: the sums over all tokens overflow in float16, and
    ``eps`` is zero there. Where all keys or the query are zero after the ReLU, the output is zero.

    Args:
        q: (..., N, d) queries.
        k: (..., M, d) keys.
        v: (..., M, e) values.
        eps: added to the denominator; the authors' value.

    Returns:
        (..., N, e) in the dtype of ``v``.
    """
    with torch.autocast(q.device.type, enabled=False):
        dtype = v.dtype
        if dtype != torch.float64:
            q, k, v = q.float(), k.float(), v.float()
        q, k = q.relu(), k.relu()
        summary = k.transpose(-1, -2) @ v  # (..., d, e): small whatever N is
        mass = k.sum(dim=-2).unsqueeze(-1)  # (..., d, 1)
        # The sum is never below eps, so the clamp changes nothing here. Optimisers of ONNX graphs, however, take 1e-15
        # for zero and drop the addition, and then 0 / 0 would be left.
        return ((q @ summary) / (q @ mass + eps).clamp(min=eps)).to(dtype)


class MultiScaleLinearAttention(BaseModule):
    """Linear attention among all tokens, on q, k, v and on their aggregations over neighbourhoods of some sizes.

    The aggregation of a scale is a depthwise convolution and a 1x1 convolution within each of q, k and v of each head;
    its results are further heads. The channels of ``qkv`` are laid out per head as [q, k, v].

    Args:
        dim: channels C of input and output.
        head_dim: channels d of a head; must divide ``dim``.
        scales: sides of the aggregations' kernels.
        norm_cfg: mmcv's config of the norm of the output projection.
        eps: see :func:`relu_linear_attention`.

    Raises:
        ValueError: ``head_dim`` does not divide ``dim``, or a scale is even.
    """

    def __init__(
        self,
        dim: int,
        head_dim: int,
        scales: Sequence[int] = (5,),
        norm_cfg: dict = dict(type="BN"),  # noqa: B006
        eps: float = 1e-15,
    ) -> None:
        super().__init__()
        if dim % head_dim:
            raise ValueError(f"head_dim must divide the channels: {dim} channels, head_dim {head_dim}")
        if any(scale % 2 == 0 for scale in scales):
            raise ValueError(f"scales must be odd sides of kernels, got {tuple(scales)}")
        self.head_dim, self.eps = head_dim, eps
        self.qkv = nn.Conv2d(dim, 3 * dim, 1, bias=False)
        self.aggregations = ModuleList(
            nn.Sequential(
                nn.Conv2d(3 * dim, 3 * dim, scale, padding=scale // 2, groups=3 * dim, bias=False),
                nn.Conv2d(3 * dim, 3 * dim, 1, groups=3 * dim // head_dim, bias=False),
            )
            for scale in scales
        )
        self.proj = ConvModule((1 + len(scales)) * dim, dim, 1, norm_cfg=norm_cfg, act_cfg=None)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        grid = (x.shape[2], x.shape[3])
        qkv = self.qkv(x)
        maps = [qkv, *(aggregate(qkv) for aggregate in self.aggregations)]
        return conv_norm_act(self.proj, as_map(torch.cat([self._attend(m) for m in maps], dim=2), grid))

    def _attend(self, qkv: Tensor) -> Tensor:
        """(B, 3 C, H, W) -> (B, H * W, C)."""
        tokens = as_tokens(qkv).unflatten(2, (-1, 3, self.head_dim))
        q, k, v = tokens.permute(3, 0, 2, 1, 4).unbind(0)  # each (B, heads, N, d)
        return relu_linear_attention(q, k, v, self.eps).transpose(1, 2).flatten(2)
