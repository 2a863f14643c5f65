"""STViT as its authors compute it: (B, C, H, W) maps, one-hot convolutions for neighbours, the N x N matrix in memory.

Written from the equations of the paper and the notes on the published behaviour (keys of the state dict included). Slow
on purpose: it is the oracle for results and the yardstick for speed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ChannelLayerNorm(nn.Module):
    """Layer norm over the channels of a map."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> the same."""
        return self.norm(x.permute(0, 2, 3, 1).contiguous()).permute(0, 3, 1, 2).contiguous()


class ResidualConv(nn.Module):
    """Depthwise 3x3 convolution."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> the same."""
        return x + self.conv(x)


class Unfold(nn.Module):
    """The 3x3 neighbours of each position by one-hot kernels, one convolution channel each."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.eye(9).reshape(9, 1, 3, 3), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, C, 9, h * w)."""
        b, c, h, w = x.shape
        return F.conv2d(x.reshape(b * c, 1, h, w), self.weights, padding=1).reshape(b, c, 9, h * w)


class Fold(nn.Module):
    """Adjoint of :class:`Unfold`."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.eye(9).reshape(9, 1, 3, 3), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B * C, 9, h, w) -> (B * C, 1, h, w)."""
        return F.conv_transpose2d(x, self.weights, padding=1)


class Attention(nn.Module):
    """Self-attention with the whole matrix in memory."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Conv2d(dim, dim * 3, 1)
        self.proj = nn.Conv2d(dim, dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> the same."""
        b, c, h, w = x.shape
        q, k, v = self.qkv(x).reshape(b, self.heads, 3 * (c // self.heads), h * w).chunk(3, dim=2)
        attn = (k.transpose(-1, -2) @ q) * (c // self.heads) ** -0.5  # (B, heads, keys, queries)
        return self.proj((v @ attn.softmax(dim=-2)).reshape(b, c, h, w))


class SuperTokenAttention(nn.Module):
    """Equations of section 3.2, with the published border rule."""

    def __init__(self, dim: int, cell: int, heads: int, n_iter: int) -> None:
        super().__init__()
        self.cell, self.n_iter = cell, n_iter
        self.unfold, self.fold = Unfold(), Fold()
        self.stoken_refine = Attention(dim, heads)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> the same."""
        return self.stoken_refine(x) if self.cell == 1 else self.sample(x)

    def sample(self, x: Tensor) -> Tensor:
        """Association, super tokens, attention among them, and back."""
        b, c, height, width = x.shape
        s = self.cell
        x = F.pad(x, (0, -width % s, 0, -height % s))
        h, w = x.shape[2] // s, x.shape[3] // s
        with torch.no_grad():
            centres = F.adaptive_avg_pool2d(x, (h, w))
            pixels = x.reshape(b, c, h, s, w, s).permute(0, 2, 4, 3, 5, 1).reshape(b, h * w, s * s, c)
            for step in range(self.n_iter):
                near = self.unfold(centres).transpose(1, 3).reshape(b, h * w, 9, c)
                affinity = (pixels @ near.transpose(-1, -2) * c**-0.5).softmax(-1)  # (B, hw, s * s, 9)
                total = affinity.sum(2).transpose(1, 2).reshape(b, 9, h, w)
                total = self.fold(total)
                if step < self.n_iter - 1:
                    centres = pixels.transpose(-1, -2) @ affinity
                    centres = self.fold(centres.permute(0, 2, 3, 1).reshape(b * c, 9, h, w)).reshape(b, c, h, w)
                    centres = centres / (total + 1e-12)
        pixels = x.reshape(b, c, h, s, w, s).permute(0, 2, 4, 3, 5, 1).reshape(b, h * w, s * s, c)
        centres = pixels.transpose(-1, -2) @ affinity  # (B, hw, C, 9)
        centres = self.fold(centres.permute(0, 2, 3, 1).reshape(b * c, 9, h, w)).reshape(b, c, h, w)
        centres = self.stoken_refine(centres / (total + 1e-12))
        near = self.unfold(centres).transpose(1, 3).reshape(b, h * w, 9, c)
        out = (affinity @ near).reshape(b, h, w, s, s, c).permute(0, 5, 1, 3, 2, 4)
        return out.reshape(b, c, h * s, w * s)[:, :, :height, :width]


class Mlp(nn.Module):
    """1x1, GELU, + depthwise 3x3, 1x1."""

    def __init__(self, dim: int, ratio: float) -> None:
        super().__init__()
        self.fc1 = nn.Conv2d(dim, int(dim * ratio), 1)
        self.conv = ResidualConv(int(dim * ratio))
        self.fc2 = nn.Conv2d(int(dim * ratio), dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> the same."""
        return self.fc2(self.conv(F.gelu(self.fc1(x))))


class Block(nn.Module):
    """CPE, super token attention, feed-forward."""

    def __init__(self, dim: int, heads: int, cell: int, n_iter: int, ratio: float, scale: float) -> None:
        super().__init__()
        self.pos_embed = ResidualConv(dim)
        self.norm1 = ChannelLayerNorm(dim)
        self.attn = SuperTokenAttention(dim, cell, heads, n_iter)
        self.norm2 = nn.BatchNorm2d(dim)
        self.mlp2 = Mlp(dim, ratio)
        self.scaled = scale > 0
        if self.scaled:
            self.gamma_1 = nn.Parameter(scale * torch.ones(1, dim, 1, 1))
            self.gamma_2 = nn.Parameter(scale * torch.ones(1, dim, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> the same."""
        x = self.pos_embed(x)
        gamma1, gamma2 = (self.gamma_1, self.gamma_2) if self.scaled else (1, 1)
        x = x + gamma1 * self.attn(self.norm1(x))
        return x + gamma2 * self.mlp2(self.norm2(x))


class Projected(nn.Module):
    """Holds layers under the name ``proj``."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.proj = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C', H', W')."""
        return self.proj(x)


class Layer(nn.Module):
    """Blocks, then the convolution to the next stage."""

    def __init__(self, blocks: list[nn.Module], downsample: nn.Module | None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        if downsample is not None:
            self.downsample = downsample


class ReferenceSTViT(nn.Module):
    """The published model; its state dict has the published keys."""

    def __init__(
        self,
        dims: Sequence[int],
        depths: Sequence[int],
        heads: Sequence[int],
        cells: Sequence[int],
        layer_scale: Sequence[float],
        n_iter: int = 1,
        mlp_ratio: float = 4,
        num_classes: int = 1000,
    ) -> None:
        super().__init__()
        stem: list[nn.Module] = []
        widths = (3, dims[0] // 2, dims[0] // 2, dims[0], dims[0])
        for i, stride in enumerate((2, 1, 2, 1)):
            stem += [nn.Conv2d(widths[i], widths[i + 1], 3, stride, 1), nn.GELU(), nn.BatchNorm2d(widths[i + 1])]
        self.patch_embed = Projected(*stem)
        self.layers = nn.ModuleList()
        for i, dim in enumerate(dims):
            blocks = [Block(dim, heads[i], cells[i], n_iter, mlp_ratio, layer_scale[i]) for _ in range(depths[i])]
            down = None
            if i + 1 < len(dims):
                down = Projected(nn.Conv2d(dim, dims[i + 1], 3, 2, 1), nn.BatchNorm2d(dims[i + 1]))
            self.layers.append(Layer(blocks, down))
        self.proj = nn.Conv2d(dims[-1], 1024, 1)
        self.norm = nn.BatchNorm2d(1024)
        self.head = nn.Linear(1024, num_classes)

    def forward_maps(self, x: Tensor) -> list[Tensor]:
        """(B, 3, H, W) -> the last map of every stage."""
        x = self.patch_embed(x)
        maps = []
        for layer in self.layers:
            for block in layer.blocks:
                x = block(x)
            maps.append(x)
            if hasattr(layer, "downsample"):
                x = layer.downsample(x)
        return maps

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, classes)."""
        return self.head(F.silu(self.norm(self.proj(self.forward_maps(x)[-1]))).mean(dim=(2, 3)))
