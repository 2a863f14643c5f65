"""What token merging gives: a hard :class:`TokenMap` whose reduction touches only the rows that move."""

from __future__ import annotations

import torch
from torch import Tensor

from .token_map import TokenMap, divide_by_mass

__all__ = ["MERGE_MODES", "MergeMap", "merge", "merge_weighted", "take_rows"]

MERGE_MODES = ("mean", "sum", "amax")


def _flat(index: Tensor, count: int) -> Tensor:
    """(B, M) rows of each sample among ``count`` -> (B * M,) rows of all samples together."""
    first = torch.arange(index.shape[0], device=index.device).unsqueeze(1) * count
    return (index + first).flatten()


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """(B, N, C) and (B, M) long -> (B, M, C), row ``index[b, m]`` of sample b.

    Whole rows are copied; ``gather`` with a widened index takes ten times as long on a CPU.
    """
    rows = x.reshape(-1, x.shape[2]).index_select(0, _flat(index, x.shape[1]))
    return rows.view(x.shape[0], index.shape[1], x.shape[2])


def add_rows(x: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """(B, M, C) plus (B, R, C) at rows (B, R); several may go to one row. Not in place."""
    if torch.jit.is_tracing():  # PyTorch's ONNX form of index_add keeps only one of several rows that go to the same
        return x.scatter_add(1, index.unsqueeze(-1).expand(-1, -1, x.shape[2]), rows)
    flat = x.reshape(-1, x.shape[2]).index_add(0, _flat(index, x.shape[1]), rows.reshape(-1, x.shape[2]))
    return flat.view(x.shape)


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

    def restore(self, y: Tensor, base: Tensor | None = None) -> Tensor:
        """(B, M, C) -> (B, N, C), as in the base class."""
        if base is not None or self.kept.shape[1] + self.source.shape[1] != self.count:
            return super().restore(y, base)
        self._check(y, self.num, "restore")
        return take_rows(y, self.index.squeeze(-1))

    def reduce(self, x: Tensor, prior: Tensor | None = None, size: Tensor | None = None) -> Tensor:
        """(B, N, C) -> (B, M, C), as in the base class."""
        self._check(x, self.count, "reduce")
        if prior is not None:
            return super().reduce(x, prior, size)
        return merge_weighted(x, self, size)[0]

    def shares(self, size: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The new sizes (B, M), and each source's share of its group (B, R). Founders' sizes must be above 0."""
        size = torch.ones((1, 1), dtype=dtype, device=self.kept.device) if size is None else size.to(dtype)
        size = size.expand(self.kept.shape[0], self.count)
        moving = size.gather(1, self.source)
        new_size = size.gather(1, self.kept).scatter_add(1, self.target, moving)
        return new_size, moving / new_size.gather(1, self.target).clamp_min(torch.finfo(dtype).tiny)

    def combine(self, x: Tensor, share: Tensor) -> Tensor:
        """x_b + sum s_a (x_a - x_b) / (s_b + sum s_a): the weighted mean, but what nothing merges into is copied bit by
        bit; (B, N, C) -> (B, M, C)."""
        founders = take_rows(x, self.kept).to(share.dtype)
        change = take_rows(x, self.source).to(share.dtype) - take_rows(founders, self.target)
        change = torch.where(share.unsqueeze(-1) > 0, change * share.unsqueeze(-1), 0)  # 0 * NaN would spread
        return add_rows(founders, self.target, change).to(x.dtype)


def merge_weighted(x: Tensor, token_map: TokenMap, size: Tensor | None = None, *others: Tensor) -> tuple[Tensor, ...]:
    """ToMe's merge: x_b <- (s_b x_b + sum s_a x_a) / (s_b + sum s_a), s_b <- s_b + sum s_a (section 3 of the paper).

    Args:
        x: (B, N, C) tokens.
        token_map: who merges with whom; K = 1.
        size: (B, N) how many tokens each already stands for; None: 1.
        others: more (B, N, C') values to merge with the same weights.

    Returns:
        Tokens (B, M, C) in the dtype of ``x``, sizes (B, M) in float32 at least, and the others.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    if isinstance(token_map, MergeMap):
        sizes, share = token_map.shares(size, dtype)
        return token_map.combine(x, share), sizes, *(token_map.combine(other, share) for other in others)
    index, weight = token_map.index.squeeze(-1), token_map.weight.squeeze(-1).to(dtype)
    weight = weight if size is None else weight * size.to(dtype)
    sizes = weight.new_zeros(x.shape[0], token_map.num).scatter_add(1, index, weight)

    def mean(values: Tensor) -> Tensor:
        weighted = torch.where(weight.unsqueeze(-1) > 0, values.to(dtype) * weight.unsqueeze(-1), 0)
        total = add_rows(weighted.new_zeros(len(values), token_map.num, values.shape[2]), index, weighted)
        return divide_by_mass(total, sizes).to(values.dtype)

    return mean(x), sizes, *(mean(other) for other in others)


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
