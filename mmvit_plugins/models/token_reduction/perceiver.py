"""Perceiver resampling: a few learned latents read any number of tokens by attention.

Source: Alayrac et al., "Flamingo", NeurIPS 2022 (arXiv 2204.14198), section 2.2 and appendix A.1.1: per layer
Z <- Z + Attention(q = LN Z, k = v = [LN X, LN Z]); Z <- Z + FFN(Z); a norm at the end. No biases but the norms'.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule, ModuleList
from torch import Tensor, nn

from mmvit_plugins.registry import MODELS

from .base import TokenReducer
from .token_map import TokenMap, divide_by_mass

__all__ = ["DenseMap", "LatentReading", "PerceiverLatents", "ResamplerLayer"]


class DenseMap(TokenMap):
    """A :class:`TokenMap` in which every token belongs to every reduced token, so that its products are dense.

    Args:
        weight: (B, N, M) >= 0.
    """

    def __init__(self, weight: Tensor) -> None:
        # The base class is frozen, so that a map cannot change by accident.
        object.__setattr__(self, "weight", weight)
        object.__setattr__(self, "num", weight.shape[2])

    @property
    def index(self) -> Tensor:
        return torch.arange(self.num, device=self.weight.device).expand(self.weight.shape)

    def mass(self) -> Tensor:
        """(B, M), as in the base class."""
        return self.weight.to(torch.promote_types(self.weight.dtype, torch.float32)).sum(dim=1)

    def reduce(self, x: Tensor, prior: Tensor | None = None, size: Tensor | None = None) -> Tensor:
        """(B, N, C) -> (B, M, C), as in the base class."""
        self._check(x, self.weight.shape[1], "reduce")
        with torch.autocast(x.device.type, enabled=False):
            weight = self.weight.to(torch.promote_types(self.weight.dtype, torch.float32))
            x_in = torch.where((weight > 0).any(dim=2, keepdim=True), x, 0).to(weight.dtype)
            if size is not None:
                weight = weight * size.unsqueeze(-1).to(weight.dtype)
            total, mass = torch.matmul(weight.transpose(1, 2), x_in), weight.sum(dim=1)
            if prior is not None:
                total, mass = total + prior, mass + 1
            return divide_by_mass(total, mass).to(x.dtype)

    def restore(self, y: Tensor, base: Tensor | None = None) -> Tensor:
        """(B, M, C) -> (B, N, C), as in the base class."""
        self._check(y, self.num, "restore")
        with torch.autocast(y.device.type, enabled=False):
            out = torch.matmul(self.weight.to(y.dtype), y)
            if base is None:
                return out
            missing = (1 - self.weight.to(y.dtype).sum(dim=2, keepdim=True)).clamp_min(0)
            return out + torch.where(missing > 0, base, 0) * missing


class LatentReading(BaseModule):
    """Attention of the latents to the tokens and to themselves.

    Args:
        dim: channels D.
        num_heads: heads.
        head_dim: channels of a head.
    """

    def __init__(self, dim: int, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm_tokens = nn.LayerNorm(dim)
        self.norm_latents = nn.LayerNorm(dim)
        self.q = nn.Linear(dim, num_heads * head_dim, bias=False)
        self.kv = nn.Linear(dim, 2 * num_heads * head_dim, bias=False)
        self.proj = nn.Linear(num_heads * head_dim, dim, bias=False)

    def _heads(self, x: Tensor) -> Tensor:
        """(B, N, e * d) -> (B, e, N, d)."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor, latents: Tensor) -> Tensor:
        """(B, N, D) tokens and (B, M, D) latents -> (B, M, D)."""
        latents = self.norm_latents(latents)
        k, v = self.kv(torch.cat([self.norm_tokens(x), latents], dim=1)).chunk(2, dim=-1)
        out = F.scaled_dot_product_attention(*map(self._heads, (self.q(latents), k, v)))
        return self.proj(out.transpose(1, 2).flatten(2))

    def attention(self, x: Tensor, latents: Tensor) -> Tensor:
        """(B, M, N) share of each token in what each latent reads, mean over heads; the latents take the rest."""
        latents = self.norm_latents(latents)
        k, _ = self.kv(torch.cat([self.norm_tokens(x), latents], dim=1)).chunk(2, dim=-1)
        q, k = self._heads(self.q(latents)), self._heads(k)
        with torch.autocast(x.device.type, enabled=False):
            dtype = torch.promote_types(q.dtype, torch.float32)
            logits = torch.matmul(q.to(dtype), k.to(dtype).transpose(2, 3)) * q.shape[-1] ** -0.5
            return logits.softmax(dim=-1).mean(dim=1)[:, :, : x.shape[1]]


class ResamplerLayer(BaseModule):
    """Z <- Z + Attention(Z; X); Z <- Z + FFN(Z).

    Args:
        dim: channels D.
        num_heads: heads.
        head_dim: channels of a head.
        ffn_ratio: hidden channels of the feed-forward network / D.
    """

    def __init__(self, dim: int, num_heads: int, head_dim: int, ffn_ratio: float) -> None:
        super().__init__()
        self.attn = LatentReading(dim, num_heads, head_dim)
        self.ffn = nn.Sequential(
            nn.LayerNorm(dim),
            nn.Linear(dim, int(dim * ffn_ratio), bias=False),
            nn.GELU(),
            nn.Linear(int(dim * ffn_ratio), dim, bias=False),
        )

    def forward(self, x: Tensor, latents: Tensor) -> Tensor:
        """(B, N, D) tokens and (B, M, D) latents -> (B, M, D)."""
        latents = latents + self.attn(x, latents)
        return latents + self.ffn(latents)


@MODELS.register_module()
class PerceiverLatents(TokenReducer):
    """Learned latents that read the tokens: N tokens, whatever N is, become ``num_latents``. There is no way back.

    The map says how much each latent attends to each token in the last layer (mean over heads); the reduced tokens are
    the latents themselves, not the means by this map.

    Args:
        dim: channels D of the tokens.
        num_latents: M.
        depth: layers.
        num_heads: heads.
        head_dim: channels of a head.
        ffn_ratio: hidden channels of the feed-forward networks / D.
        init_cfg: mmengine's initialisation config.

    Raises:
        ValueError: an argument is outside its legal values.
    """

    restorable = False
    reduced_name = "latents"

    def __init__(
        self,
        dim: int,
        num_latents: int = 64,
        depth: int = 6,
        num_heads: int = 8,
        head_dim: int = 64,
        ffn_ratio: float = 4,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        super().__init__(init_cfg)
        for name, value in dict(num_latents=num_latents, depth=depth, num_heads=num_heads, head_dim=head_dim).items():
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        self.latents = nn.Parameter(torch.randn(num_latents, dim))
        self.layers = ModuleList(ResamplerLayer(dim, num_heads, head_dim, ffn_ratio) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)

    def read(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, M, D)."""
        latents = self.latents.expand(x.shape[0], -1, -1)
        for layer in self.layers:
            latents = layer(x, latents)
        return self.norm(latents)

    def associate(self, metric: Tensor, grid: tuple[int, int] | None = None) -> DenseMap:
        """(B, N, D) -> the last layer's attention; ``grid`` is not needed."""
        return self.reduce(metric, grid)[1]

    def reduce(self, x: Tensor, grid: tuple[int, int] | None = None) -> tuple[Tensor, DenseMap]:
        """(B, N, D) -> the latents (B, M, D) and their map."""
        latents = self.latents.expand(x.shape[0], -1, -1)
        for layer in self.layers[:-1]:
            latents = layer(x, latents)
        with torch.no_grad():
            token_map = DenseMap(self.layers[-1].attn.attention(x, latents).transpose(1, 2))
        return self.norm(self.layers[-1](x, latents)), token_map

    def restore(self, y: Tensor, token_map: TokenMap, base: Tensor | None = None) -> Tensor:
        """Refused: latents do not stand for places.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "PerceiverLatents has no way back to the tokens (restorable = False): use it where tokens or one vector "
            "for each image are wanted, or another reducer"
        )
