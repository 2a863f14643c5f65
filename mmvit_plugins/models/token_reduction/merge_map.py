"""What token merging gives: a hard :class:`TokenMap` whose reduction touches only the rows that move."""

from __future__ import annotations

import torch
from torch import Tensor

from .token_map import TokenMap, divide_by_mass

__all__ = ["MERGE_MODES", "MergeMap", "merge", "merge_weighted", "take_rows"]

MERGE_MODES = ("mean", "sum", "amax")


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """(B, N, C) and (B, M) long -> (B, M, C), row ``index[b, m]`` of sample b."""
    return x.gather(1, index.unsqueeze(-1).expand(-1, -1, x.shape[2]))


class MergeMap(TokenMap):
    """A map with K = 1 in which every reduced token is founded by one token, and the others are added to one of them.

    The same values as the generic map, which is its test oracle, but only ``source`` rows are added up.

    Args:
        kept: (B, M) long, the token that founds each reduced token.
        source: (B, R) long, the tokens merged away.
        target: (B, R) long in [0, M), where they go. A token that is neither kept nor a source has weight 0.
        count: N, the number of tokens.
        like: a tensor with the dtype of the weights (float32 at least).
    """

    def __init__(self, kept: Tensor, source: Tensor, target: Tensor, count: int, like: Tensor) -> None:
        # The base class is frozen, so that a map cannot change by accident.
        fields = dict(kept=kept, source=source, target=target, count=count, num=kept.shape[1])
        fields["dtype"] = torch.promote_types(like.dtype, torch.float32)
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def index(self) -> Tensor:
        slots = torch.arange(self.num, device=self.kept.device).expand(self.kept.shape)
        places = self.kept.new_zeros(self.kept.shape[0], self.count).scatter(1, self.kept, slots)
        return places.scatter(1, self.source, self.target).unsqueeze(-1)

    @property
    def weight(self) -> Tensor:
        zeros = torch.zeros(self.kept.shape[0], self.count, dtype=self.dtype, device=self.kept.device)
        moved = torch.cat([self.kept, self.source], dim=1)
        return zeros.scatter(1, moved, torch.ones_like(moved, dtype=self.dtype)).unsqueeze(-1)

    def mass(self) -> Tensor:
        """(B, M) how many tokens each reduced token stands for."""
        ones = torch.ones(self.target.shape, dtype=self.dtype, device=self.kept.device)
        return torch.ones(self.kept.shape, dtype=self.dtype, device=ones.device).scatter_add(1, self.target, ones)

    def reduce(self, x: Tensor, prior: Tensor | None = None, size: Tensor | None = None) -> Tensor:
        """(B, N, C) -> (B, M, C), as in the base class."""
        self._check(x, self.count, "reduce")
        if prior is not None:
            return super().reduce(x, prior, size)
        return self.reduce_with_size(x, size)[0]

    def reduce_with_size(self, x: Tensor, size: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Size-weighted mean (B, M, C) and the new sizes (B, M), both from one pass."""
        total = x.to(torch.promote_types(x.dtype, self.dtype))
        if size is None:
            new_size = self.mass()
        else:
            size = size.to(self.dtype)
            total = torch.where(size.unsqueeze(-1) > 0, total * size.unsqueeze(-1), 0)  # 0 * NaN would spread
            new_size = size.gather(1, self.kept).scatter_add(1, self.target, size.gather(1, self.source))
        where = self.target.unsqueeze(-1).expand(-1, -1, x.shape[2])
        total = take_rows(total, self.kept).scatter_add(1, where, take_rows(total, self.source))
        return divide_by_mass(total, new_size).to(x.dtype), new_size


def merge_weighted(x: Tensor, token_map: TokenMap, size: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """ToMe's merge: x_b <- (s_b x_b + sum s_a x_a) / (s_b + sum s_a), s_b <- s_b + sum s_a (section 3 of the paper).

    Args:
        x: (B, N, C) tokens.
        token_map: who merges with whom; K = 1.
        size: (B, N) how many tokens each already stands for; None: 1.

    Returns:
        Tokens (B, M, C) in the dtype of ``x``, and sizes (B, M) in float32 at least.
    """
    if isinstance(token_map, MergeMap):
        return token_map.reduce_with_size(x, size)
    if size is None:
        return token_map.reduce(x), token_map.mass()
    weight = token_map.weight.squeeze(-1)
    zeros = weight.new_zeros(x.shape[0], token_map.num)
    sizes = zeros.scatter_add(1, token_map.index.squeeze(-1), weight * size.to(weight.dtype))
    return token_map.reduce(x, size=size), sizes


def merge(x: Tensor, token_map: TokenMap, mode: str = "mean") -> Tensor:
    """Each group's mean, sum or largest value for each channel, without sizes: (B, N, C) -> (B, M, C).

    Raises:
        ValueError: another ``mode``.
    """
    if mode not in MERGE_MODES:
        raise ValueError(f"mode must be one of {MERGE_MODES}, got {mode!r}")
    if mode == "mean":
        return token_map.reduce(x)
    # Tokens of weight 0 go to one more group, which is cut off.
    index = torch.where(token_map.weight > 0, token_map.index, token_map.num).expand(-1, -1, x.shape[2])
    start = x.new_full((x.shape[0], token_map.num + 1, x.shape[2]), 0.0 if mode == "sum" else -torch.inf)
    return start.scatter_reduce(1, index, x, mode)[:, :-1]
