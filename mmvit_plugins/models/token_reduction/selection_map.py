"""Maps whose reduced tokens are copies of single tokens: kept tokens, and tokens put into another order."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .token_map import TokenMap

__all__ = ["SelectionMap", "take_rows"]


def _flat_rows(index: Tensor, count: int) -> Tensor:
    """(B, M) rows of each sample -> (B * M,) rows of the samples laid end to end, ``count`` rows each."""
    if index.shape[0] == 1:
        return index[0]
    first = torch.arange(index.shape[0], device=index.device).unsqueeze(1) * count
    return (index + first).flatten()


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """Rows ``index`` (B, M) of each sample of x (B, N, C) -> (B, M, C).

    Whole rows at a time: on a CPU several times as fast as ``gather``, which looks at every number.
    """
    batch, count, dim = x.shape
    return x.flatten(0, 1).index_select(0, _flat_rows(index, count)).view(batch, index.shape[1], dim)


@dataclass(frozen=True, eq=False)
class SelectionMap(TokenMap):
    """A :class:`TokenMap` with K = 1 and weights 1 or 0, in which every reduced token is a copy of one token.

    A token may be copied to several places (the overlapping tail of :class:`EqualGroups`); it then belongs to one of
    them, whose value :meth:`restore` brings back. The other copies have no mass.

    Args:
        index: (B, N, 1) as in the base class.
        weight: (B, N, 1), 1 for tokens that were taken and 0 for the others.
        num: M.
        source: (B, M) long, the token that is copied to each place.
        complete: every weight is 1.
        real: (B, M) bool, False for places that only fill a group and hold no token of their own (they copy one all
            the same, so that no number is undefined); None: all are real.
    """

    source: Tensor
    complete: bool
    real: Tensor | None = None

    def reduce(self, x: Tensor, prior: Tensor | None = None, size: Tensor | None = None) -> Tensor:
        """(B, N, C) -> (B, M, C): the copies. With a ``prior``, as in the base class (where copies have no mass)."""
        if prior is not None:
            return super().reduce(x, prior, size)
        self._check(x, self.index.shape[1], "reduce")
        return take_rows(x, self.source)

    def restore(self, y: Tensor, base: Tensor | None = None) -> Tensor:
        """(B, M, C) -> (B, N, C); tokens that were not taken are those of ``base``, or 0."""
        self._check(y, self.num, "restore")
        if self.complete:
            return take_rows(y, self.index[:, :, 0])
        back = take_rows(y, self.index[:, :, 0])
        return torch.where(self.weight > 0, back, torch.zeros_like(back) if base is None else base.to(back.dtype))
