"""Context Cluster by its equations, step by step: maps, values for every point, points x centres x channels in memory.

Written from the equations of the paper and the notes on the published behaviour (keys of the state dict included). Slow
on purpose: it is the oracle for results and the yardstick for speed. Regions must divide the maps.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["ReferenceContextCluster"]


class Cluster(nn.Module):
    def __init__(self, dim: int, heads: int, head_dim: int, regions: int, centres: int) -> None:
        super().__init__()
        self.heads, self.regions, self.centres = heads, regions, centres
        self.f = nn.Conv2d(dim, heads * head_dim, 1)
        self.v = nn.Conv2d(dim, heads * head_dim, 1)
        self.proj = nn.Conv2d(heads * head_dim, dim, 1)
        self.sim_alpha = nn.Parameter(torch.ones(1))
        self.sim_beta = nn.Parameter(torch.zeros(1))

    def split(self, x: Tensor) -> Tensor:
        """(B, e d, H, W) -> (B * e * regions, d, h, w)."""
        b, c, height, width = x.shape
        r, h, w = self.regions, height // self.regions, width // self.regions
        assert r * h == height and r * w == width
        x = x.reshape(b * self.heads, c // self.heads, r, h, r, w).permute(0, 2, 4, 1, 3, 5)
        return x.reshape(-1, c // self.heads, h, w)

    def join(self, x: Tensor, size: tuple[int, int], batch: int) -> Tensor:
        d, h, w = x.shape[1:]
        x = x.reshape(batch * self.heads, self.regions, self.regions, d, h, w).permute(0, 3, 1, 4, 2, 5)
        return x.reshape(batch, self.heads * d, *size)

    def forward(self, x: Tensor) -> Tensor:
        f, v = self.split(self.f(x)), self.split(self.v(x))
        centres = F.adaptive_avg_pool2d(f, self.centres).flatten(2).transpose(1, 2)  # (G, M, d)
        value_centres = F.adaptive_avg_pool2d(v, self.centres).flatten(2).transpose(1, 2)
        points, values = f.flatten(2).transpose(1, 2), v.flatten(2).transpose(1, 2)  # (G, P, d)
        cosine = F.normalize(centres, dim=-1) @ F.normalize(points, dim=-1).transpose(1, 2)
        sim = torch.sigmoid(self.sim_beta + self.sim_alpha * cosine)  # (G, M, P)
        best = sim.argmax(dim=1, keepdim=True)
        sim = sim * torch.zeros_like(sim).scatter(1, best, 1.0)
        total = (sim.unsqueeze(-1) * values.unsqueeze(1)).sum(dim=2)  # through (G, M, P, d)
        mean = (total + value_centres) / (sim.sum(dim=2, keepdim=True) + 1)
        out = (sim.unsqueeze(-1) * mean.unsqueeze(2)).sum(dim=1)  # (G, P, d), through (G, M, P, d)
        out = out.transpose(1, 2).reshape(f.shape)
        return self.proj(self.join(out, x.shape[2:], x.shape[0]))


class Mlp(nn.Module):
    def __init__(self, dim: int, ratio: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, dim * ratio), nn.Linear(dim * ratio, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x.permute(0, 2, 3, 1)))).permute(0, 3, 1, 2)


class Block(nn.Module):
    def __init__(
        self, dim: int, heads: int, head_dim: int, ratio: int, regions: int, centres: int, scale: float
    ) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(1, dim), nn.GroupNorm(1, dim)
        self.token_mixer = Cluster(dim, heads, head_dim, regions, centres)
        self.mlp = Mlp(dim, ratio)
        self.layer_scale_1 = nn.Parameter(torch.full((dim,), scale))
        self.layer_scale_2 = nn.Parameter(torch.full((dim,), scale))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.layer_scale_1[:, None, None] * self.token_mixer(self.norm1(x))
        return x + self.layer_scale_2[:, None, None] * self.mlp(self.norm2(x))


class Reducer(nn.Module):
    def __init__(self, in_dim: int, dim: int, kernel: int, stride: int, padding: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_dim, dim, kernel, stride, padding)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x)


class ReferenceContextCluster(nn.Module):
    """The dense model: one norm behind every stage. Arguments as the entries of ``ARCHS``."""

    def __init__(
        self,
        dims: Sequence[int],
        depths: Sequence[int],
        heads: Sequence[int],
        head_dims: Sequence[int],
        mlp_ratios: Sequence[int],
        regions: Sequence[int],
        centres: Sequence[int],
        layer_scale: float = 1e-5,
    ) -> None:
        super().__init__()
        self.patch_embed = Reducer(5, dims[0], 4, 4, 0)
        self.network = nn.ModuleList()
        for i, dim in enumerate(dims):
            if i:
                self.network.append(Reducer(dims[i - 1], dim, 3, 2, 1))
            block = (dim, heads[i], head_dims[i], mlp_ratios[i], regions[i], centres[i], layer_scale)
            self.network.append(nn.Sequential(*(Block(*block) for _ in range(depths[i]))))
            self.add_module(f"norm{2 * i}", nn.GroupNorm(1, dim))

    def forward_maps(self, x: Tensor) -> list[Tensor]:
        """(B, 3, H, W) -> four maps."""
        b, _, height, width = x.shape
        down = torch.arange(height, dtype=x.dtype) / (height - 1.0) - 0.5
        across = torch.arange(width, dtype=x.dtype) / (width - 1.0) - 0.5
        place = torch.stack(torch.meshgrid(down, across, indexing="ij")).expand(b, -1, -1, -1)
        x = self.patch_embed(torch.cat([x, place], dim=1))
        maps = []
        for i, part in enumerate(self.network):
            x = part(x)
            if i % 2 == 0:
                maps.append(getattr(self, f"norm{i}")(x))
        return maps
