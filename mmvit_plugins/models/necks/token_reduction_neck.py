"""Reduce, mix, restore between a backbone and its heads.

Ours. The maps of a pyramid become a few tokens by any reducer of this package, these attend to each other, over all
levels at once if asked, and what they found is added to the places they stand for. So every place sees the whole image
and all scales at the cost of a few hundred tokens, and nothing behind the neck notices: same maps, same sizes.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from mmengine.model import BaseModule, ModuleList
from torch import Tensor, nn

from mmvit_plugins.registry import MODELS

from ..layers import as_map, as_output, as_tokens, checkpoint_module
from ..layers.vit_block import ViTBlock
from ..token_reduction import TokenMap, TokenReducer

__all__ = ["PlaceEmbedding", "TokenReductionNeck"]

OUTPUTS = ("maps", "tokens", "pooled")


class PlaceEmbedding(BaseModule):
    """Where a reduced token is: the mean place of its members, as sines and cosines through a linear layer.

    The places of a map run from -1 to 1 whatever its size, so that levels agree.

    Args:
        dim: channels D.
        octaves: wavelengths 2, 1, 1/2, ... of the map.
    """

    def __init__(self, dim: int, octaves: int = 5) -> None:
        super().__init__()
        self.octaves = octaves
        self.proj = nn.Linear(4 * octaves, dim)

    def forward(self, token_map: TokenMap, grid: tuple[int, int], like: Tensor) -> Tensor:
        """The map of tokens on a grid (H, W) -> (B, M, D), for reduced tokens (B, M, C) ``like``."""
        with torch.autocast(like.device.type, enabled=False):
            dtype = torch.promote_types(like.dtype, torch.float32)
            sides = [(torch.arange(n, device=like.device, dtype=dtype) * 2 + 1) / n - 1 for n in grid]
            place = torch.stack(torch.meshgrid(*sides, indexing="ij"), dim=-1).reshape(1, -1, 2)
            place = token_map.reduce(place.expand(like.shape[0], -1, -1))  # (B, M, 2)
            scale = math.pi * 2.0 ** torch.arange(self.octaves, device=like.device, dtype=dtype)
            angle = (place.unsqueeze(-1) * scale).flatten(2)
        return self.proj(torch.cat([angle.sin(), angle.cos()], dim=-1).to(like.dtype))


class ReducedLevel(NamedTuple):
    """The reduced tokens of one level.

    Args:
        tokens: (B, M, D).
        token_map: to the level's places.
        size: (B, M) how many places each stands for; 0: none, such a token takes no part.
    """

    tokens: Tensor
    token_map: TokenMap
    size: Tensor


@MODELS.register_module()
class TokenReductionNeck(BaseModule):
    """Tokens of pyramid levels reduced, mixed by attention, restored and added; maps in, the same maps out.

    For each level l: ``y = reduce(LN x_l)``, ``z = W_l y + place (+ level)``; transformer blocks over the z of one
    level, or of all of them; ``x_l + restore(V_l LN z)``. V_l starts at 0, so the neck starts as the identity and can
    be put before any head of a trained model. Works before FPN (``neck=[this, FPN]``), UPerHead, detectors and
    auxiliary heads. A place that its reducer drops keeps its value.

    Args:
        in_channels: channels of each map.
        reducer: config of any :class:`TokenReducer` for every level, or one config (or None: leave that level alone)
            for each; its argument ``dim``, if it has one and none is given, becomes the level's channels.
        cross_level: mix the tokens of all levels together, by the same blocks. Otherwise each level has its own.
        embed_dims: channels D of the mixing.
        num_heads: heads.
        depth: transformer blocks.
        mlp_ratio: hidden channels of their MLPs / D.
        drop_path_rate: rate of their branches.
        output: ``'maps'``; or, for heads that need no maps, ``'tokens'``: the mixed tokens (B, M, D), one entry for
            each level or one for all with ``cross_level``; or ``'pooled'``: their mean (B, D), each weighted by the
            places it stands for, what MMPretrain's LinearClsHead takes; of a level whose reducer keeps nothing: zeros.
        with_cp: recompute the blocks' activations in the backward pass.
        init_cfg: mmengine's initialisation config; default: truncated normal of 0.02 for linear layers, 0 for V_l.

    Raises:
        ValueError: an argument is outside its legal values, or the reducer has no way back and maps are wanted.

    Examples:
        >>> import torch
        >>> from mmvit_plugins.models import TokenReductionNeck
        >>> neck = TokenReductionNeck(
        ...     [24, 48], dict(type='mmvit_plugins.SuperTokens', cell=4), cross_level=True, embed_dims=32)
        >>> maps = torch.rand(1, 24, 17, 23), torch.rand(1, 48, 9, 12)
        >>> all(torch.equal(a, b) for a, b in zip(neck(maps), maps))  # at the start
        True
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        reducer: Mapping[str, Any] | Sequence[Mapping[str, Any] | None],
        cross_level: bool = False,
        embed_dims: int = 128,
        num_heads: int = 4,
        depth: int = 1,
        mlp_ratio: float = 2.0,
        drop_path_rate: float = 0.0,
        output: str = "maps",
        with_cp: bool = False,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        self._check(in_channels, reducer, depth, drop_path_rate, output)
        if init_cfg is None:
            init_cfg = dict(type="TruncNormal", layer="Linear", std=0.02, bias=0.0)
            if output == "maps":
                init_cfg["override"] = dict(type="Constant", name="to_maps", val=0.0, bias=0.0)
        super().__init__(init_cfg=init_cfg)
        self.in_channels = self.out_channels = tuple(in_channels)
        self.cross_level, self.output, self.with_cp = cross_level, output, with_cp
        configs = [reducer] * len(in_channels) if isinstance(reducer, Mapping) else list(reducer)
        self.levels = tuple(i for i, config in enumerate(configs) if config is not None)
        widths = [in_channels[i] for i in self.levels]
        self.reducers = ModuleList(self._build_reducer(configs[i], in_channels[i]) for i in self.levels)
        self.norms = ModuleList(nn.LayerNorm(width) for width in widths)
        self.to_tokens = ModuleList(nn.Linear(width, embed_dims) for width in widths)
        self.place_embed = PlaceEmbedding(embed_dims)
        groups = 1 if cross_level else len(widths)
        self.level_embed = nn.Parameter(torch.zeros(len(widths), embed_dims)) if cross_level else None
        self.blocks = ModuleList(
            ModuleList(ViTBlock(embed_dims, num_heads, mlp_ratio, drop_path_rate) for _ in range(depth))
            for _ in range(groups)
        )
        self.out_norms = ModuleList(nn.LayerNorm(embed_dims) for _ in range(groups))
        if output == "maps":
            self.to_maps = ModuleList(nn.Linear(embed_dims, width) for width in widths)
            for layer in self.to_maps:
                nn.init.zeros_(layer.weight)
                nn.init.zeros_(layer.bias)

    @staticmethod
    def _check(in_channels: Any, reducer: Any, depth: Any, drop_path_rate: float, output: str) -> None:
        """The checks of ``__init__``."""
        if not isinstance(in_channels, Sequence) or not in_channels:
            raise ValueError(f"in_channels must list the channels of each map, got {in_channels!r}")
        if not isinstance(reducer, Mapping):
            legal = isinstance(reducer, Sequence) and len(reducer) == len(in_channels)
            if not legal or not all(c is None or isinstance(c, Mapping) for c in reducer) or not any(reducer):
                raise ValueError(
                    f"reducer must be a config, or one config or None for each of {len(in_channels)} levels (not all "
                    f"None), got {reducer!r}"
                )
        if type(depth) is not int or depth < 1:
            raise ValueError(f"depth must be a whole number of at least 1, got {depth!r}")
        if not 0 <= drop_path_rate < 1:
            raise ValueError(f"drop_path_rate must be in [0, 1), got {drop_path_rate}")
        if output not in OUTPUTS:
            raise ValueError(f"output must be one of {OUTPUTS}, got {output!r}")

    def _build_reducer(self, config: Mapping[str, Any], channels: int) -> TokenReducer:
        cls = MODELS.get(config["type"]) if isinstance(config.get("type"), str) else config.get("type")
        if not (inspect.isclass(cls) and issubclass(cls, TokenReducer)):
            known = sorted(
                f"mmvit_plugins.{name}"
                for name, c in MODELS.module_dict.items()
                if inspect.isclass(c) and issubclass(c, TokenReducer)
            )
            raise ValueError(f"reducer must name a token reducer, got {config!r}; there are {', '.join(known)}")
        if self.output == "maps" and not cls.restorable:
            raise ValueError(
                f"{cls.__name__} has no way back to the places (restorable = False): take another reducer, or "
                f"output='tokens' or 'pooled' instead of {self.output!r}"
            )
        config = dict(config)
        if "dim" in inspect.signature(cls).parameters:
            config.setdefault("dim", channels)
        return MODELS.build(config)

    def forward(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Maps (B, C_l, H_l, W_l) of all levels -> as many maps of the same sizes, or tokens (see ``output``).

        Raises:
            ValueError: another number of maps, or other channels.
        """
        self._check_maps(inputs)
        levels = [self._reduce(number, inputs[i]) for number, i in enumerate(self.levels)]
        mixed = self._mix(levels)
        if self.output == "tokens":
            return tuple(mixed)
        if self.output == "pooled":
            sizes = [level.size for level in levels]
            sizes = [torch.cat(sizes, dim=1)] if self.cross_level else sizes
            return tuple(
                torch.einsum("bmd,bm->bd", z, (s / s.sum(dim=1, keepdim=True).clamp_min(1e-6)).to(z.dtype))
                for z, s in zip(mixed, sizes, strict=True)
            )
        if self.cross_level:
            mixed = mixed[0].split([level.tokens.shape[1] for level in levels], dim=1)
        outputs = list(inputs)
        for number, i in enumerate(self.levels):
            x, delta = inputs[i], self.to_maps[number](mixed[number])
            restored = self.reducers[number].restore(delta, levels[number].token_map)
            outputs[i] = as_output(x + as_map(restored, (x.shape[2], x.shape[3])).to(x.dtype))
        return tuple(outputs)

    @torch.no_grad()
    def token_maps(self, inputs: Sequence[Tensor]) -> list[tuple[int, TokenMap, tuple[int, int], tuple[int, int]]]:
        """Which reduced token each place of a level belongs to, as :meth:`forward` groups them; for pictures.

        Args:
            inputs: maps (B, C_l, H_l, W_l) of all levels, as :meth:`forward` takes them.

        Returns:
            For each level that is reduced: its number, its reducer's map, the grid (H_l, W_l) of its places, and the
            grid of its reduced tokens, (1, M) where they form none.

        Raises:
            RuntimeError: in train mode.
            ValueError: another number of maps, or other channels.
        """
        if self.training:
            raise RuntimeError("token_maps() is for pictures: call eval() first, in train mode choices may be random")
        self._check_maps(inputs)
        maps = []
        for number, i in enumerate(self.levels):
            _, token_map = self._group(number, inputs[i])
            grid = (int(inputs[i].shape[2]), int(inputs[i].shape[3]))
            maps.append((i, token_map, grid, getattr(token_map, "cells", (1, token_map.num))))
        return maps

    def _check_maps(self, inputs: Sequence[Tensor]) -> None:
        """The check of :meth:`forward`."""
        got = tuple(x.shape[1] for x in inputs) if not isinstance(inputs, Tensor) else None
        if got != self.in_channels:
            raise ValueError(f"TokenReductionNeck takes maps with {self.in_channels} channels, got {got}")

    def _group(self, number: int, x: Tensor) -> tuple[Tensor, TokenMap]:
        """(B, C_l, H, W) -> its reduced tokens (B, M, C_l) and their map."""
        return self.reducers[number].reduce(self.norms[number](as_tokens(x)), (x.shape[2], x.shape[3]))

    def _reduce(self, number: int, x: Tensor) -> ReducedLevel:
        """(B, C_l, H, W) -> its reduced tokens, embedded."""
        grid = (x.shape[2], x.shape[3])
        reduced, token_map = self._group(number, x)
        tokens = self.to_tokens[number](reduced) + self.place_embed(token_map, grid, reduced)
        if self.level_embed is not None:
            tokens = tokens + self.level_embed[number]
        size = token_map.mass() if self.reducers[number].restorable else torch.ones_like(tokens[..., 0])
        return ReducedLevel(tokens, token_map, size)

    def _mix(self, levels: list[ReducedLevel]) -> list[Tensor]:
        """Mixed tokens (B, M, D), of each level, or of all of them in one tensor."""
        if self.cross_level:
            groups = [
                tuple(torch.cat(parts, dim=1) for parts in ([v.tokens for v in levels], [v.size for v in levels]))
            ]
        else:
            groups = [(level.tokens, level.size) for level in levels]
        mixed = []
        for (tokens, size), blocks, norm in zip(groups, self.blocks, self.out_norms, strict=True):
            taken = size.detach() > 0
            for block in blocks:
                tokens = checkpoint_module(block, tokens, taken) if self.with_cp else block(tokens, taken)
            mixed.append(norm(tokens))
        return mixed
