"""T2T-ViT's image-to-token module (arXiv 2101.11986, 3.1): overlapping unfolds, narrow transformers between them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from torch import Tensor, nn

__all__ = ["PerformerTokenLayer", "SoftSplit", "TransformerTokenLayer", "pad_to_kernel", "soft_split_geometry"]


def soft_split_geometry(size: int, tokens: int) -> tuple[int, int, int]:
    """Kernel, stride and padding of the first unfold, so that ``size`` pixels become ``tokens`` tokens.

    Two more unfolds (3, 2, 1) follow, so the stride is ceil(size / (4 tokens)), the kernel ceil(7/4 stride) and the
    padding what centres ceil(size / stride) windows. At 224 this gives the published 14/8/3, 11/6/5 and 7/4/2 for 7,
    10 and 14 tokens.

    Raises:
        ValueError: no stride gives that many tokens, or ``tokens`` is not from 1 to ``size``.
    """
    if not 1 <= tokens <= size:
        raise ValueError(f"a side of {size} pixels has 1 to {size} tokens, got {tokens}")

    def count(stride: int) -> int:
        windows = math.ceil(size / stride)
        return math.ceil(math.ceil(windows / 2) / 2)

    stride = -(-size // (4 * tokens))
    if count(stride) != tokens:
        legal = sorted({count(s) for s in range(1, size // 4 + 2)})
        near = sorted(legal, key=lambda n: abs(n - tokens))[:4]
        raise ValueError(
            f"no stride of the soft split gives {tokens} tokens from {size} pixels; legal numbers near: {sorted(near)}"
        )
    # A stride of 1 leaves no slack for an uneven rest: 3 instead of 2.
    kernel = 3 if stride == 1 else math.ceil(7 * stride / 4)
    overlap = (math.ceil(size / stride) - 1) * stride + kernel - size
    return kernel, stride, max(0, math.ceil(overlap / 2))


def pad_to_kernel(x: Tensor, kernel: int, padding: int) -> Tensor:
    """(B, C, H, W) with zeros below and to the right, so that ``kernel`` fits in once the padding is there."""
    missing = [max(0, kernel - 2 * padding - side) for side in (x.shape[3], x.shape[2])]
    return F.pad(x, (0, missing[0], 0, missing[1])) if any(missing) else x


class PerformerTokenLayer(BaseModule):
    """Attention with positive random features (Performer), linear in the number of tokens.

    v + proj(phi(q) (phi(k)^T v) / (phi(q) . sum phi(k))), phi(x) = exp(w x - |x|^2 / 2) / sqrt(m), in float32; the skip
    is v, because the widths differ. Then a GELU MLP of ratio 1 with a residual.

    Args:
        in_dim: channels of the unfolded tokens.
        dim: channels inside and out.
        num_features: random features m.
    """

    def __init__(self, in_dim: int, dim: int = 64, num_features: int = 32) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(in_dim)
        self.kqv = nn.Linear(in_dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, dim)
        self.fc2 = nn.Linear(dim, dim)
        features = nn.init.orthogonal_(torch.empty(num_features, dim)) * math.sqrt(num_features)
        # Drawn once and kept: never trained.
        self.register_buffer("features", features)

    def _phi(self, x: Tensor) -> Tensor:
        """(B, N, C) -> (B, N, m)."""
        projected = x @ self.features.to(x.dtype).T - x.square().sum(-1, keepdim=True) / 2
        return projected.exp() / math.sqrt(self.features.shape[0])

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, in_dim) -> (B, N, dim)."""
        k, q, v = self.kqv(self.norm1(x)).chunk(3, dim=-1)
        with torch.autocast(x.device.type, enabled=False):
            q, k = self._phi(q.float()), self._phi(k.float())
            summed = k.transpose(1, 2) @ v.float()  # (B, m, dim)
            y = (q @ summed) / (q @ k.sum(1).unsqueeze(-1) + 1e-8)
        x = v + self.proj(y.to(v.dtype))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class TransformerTokenLayer(BaseModule):
    """The same with one head of plain attention; the scale is in_dim^-0.5, as published.

    Args:
        in_dim: channels of the unfolded tokens.
        dim: channels inside and out.
    """

    def __init__(self, in_dim: int, dim: int = 64) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(in_dim)
        self.qkv = nn.Linear(in_dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, dim)
        self.fc2 = nn.Linear(dim, dim)
        self.scale = in_dim**-0.5

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, in_dim) -> (B, N, dim)."""
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        x = v + self.proj(F.scaled_dot_product_attention(q, k, v, scale=self.scale))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


LAYERS = dict(performer=PerformerTokenLayer, transformer=TransformerTokenLayer)


class SoftSplit(BaseModule):
    """Image -> overlapping tokens: unfold, token layer, unfold 3/2/1, token layer, unfold 3/2/1, linear.

    Args:
        layer: 'performer' or 'transformer'.
        kernel: kernel, stride and padding of the first unfold.
        dim: channels of the tokens.
        token_dim: channels of the two token layers.
        in_channels: channels of the image.
    """

    def __init__(
        self, layer: str, kernel: tuple[int, int, int], dim: int, token_dim: int = 64, in_channels: int = 3
    ) -> None:
        super().__init__()
        if layer not in LAYERS:
            raise ValueError(f"the token layer is one of {', '.join(LAYERS)}, got {layer!r}")
        self.splits = (tuple(kernel), (3, 2, 1), (3, 2, 1))
        self.attention1 = LAYERS[layer](in_channels * kernel[0] ** 2, token_dim)
        self.attention2 = LAYERS[layer](token_dim * 9, token_dim)
        self.project = nn.Linear(token_dim * 9, dim)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """(B, 3, H, W) -> tokens (B, h * w, C) and their grid (h, w)."""
        x = pad_to_kernel(x, *self.splits[0][::2])
        grid = (int(x.shape[2]), int(x.shape[3]))  # not traced: an exported graph has a fixed size
        for (kernel, stride, padding), layer in zip(self.splits, (self.attention1, self.attention2, None), strict=True):
            unfolded = F.unfold(x, kernel, padding=padding, stride=stride).transpose(1, 2)
            grid = tuple((side + 2 * padding - kernel) // stride + 1 for side in grid)
            if layer is not None:
                x = layer(unfolded).transpose(1, 2).reshape(x.shape[0], -1, *grid)
        return self.project(unfolded), grid
