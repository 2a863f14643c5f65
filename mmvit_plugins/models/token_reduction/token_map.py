"""Who belongs to whom: one value for every way of grouping tokens.

Every method of this package groups N tokens into M, lets the M mix, and brings the result back to the N places. The
grouping is a sparse non-negative association W (N x M) with K entries in each row, and reduce and restore are the
same two products for all of them: ``reduce(x) = diag(W'1)^-1 W'x`` and ``restore(y) = W y``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["TokenMap", "divide_by_mass"]


def divide_by_mass(total: Tensor, mass: Tensor) -> Tensor:
    """``total / mass`` for (B, M, C) and (B, M), with 0 where the mass is 0.

    The floor is the smallest normal number of the dtype, not a fixed 1e-12, which is zero in float16. Sums of weights
    are either 0 or far above it, so the floor changes no other result.
    """
    return total / mass.clamp_min(torch.finfo(mass.dtype).tiny).unsqueeze(-1)


@dataclass(frozen=True, eq=False)
class TokenMap:
    """Sparse association of N tokens with M reduced tokens. A pure value: it holds no state and no module.

    Args:
        index: (B, N, K) long, the reduced tokens that a token belongs to, each in [0, num).
        weight: (B, N, K) >= 0, how much it belongs to each. Weight 0 everywhere means that the token's value does not
            matter (padding, dropped windows).
        num: M, the number of reduced tokens.
    """

    index: Tensor
    weight: Tensor
    num: int

    def __post_init__(self) -> None:
        if self.index.shape != self.weight.shape or self.index.dim() != 3:
            raise ValueError(
                f"index and weight of a TokenMap must both be (B, N, K), got {tuple(self.index.shape)} and "
                f"{tuple(self.weight.shape)}"
            )

    def mass(self) -> Tensor:
        """(B, M) column sums of W, in at least float32; ToMe's token size."""
        weight = self.weight.to(torch.promote_types(self.weight.dtype, torch.float32))
        zeros = weight.new_zeros(self.index.shape[0], self.num)
        return zeros.scatter_add(1, self.index.flatten(1), weight.flatten(1)) if self.num else zeros

    def hard(self) -> Tensor:
        """(B, N) long: for each token the reduced token with the largest weight. This is what the pictures show."""
        return self.index.gather(2, self.weight.argmax(dim=2, keepdim=True)).squeeze(2)

    def reduce(self, x: Tensor, prior: Tensor | None = None, size: Tensor | None = None) -> Tensor:
        """Weighted mean of the tokens of each group, (B, N, C) -> (B, M, C).

        Sums and division are in at least float32; the result has the dtype of ``x``. A reduced token without any mass
        is 0 (or its prior).

        Args:
            x: (B, N, C) tokens.
            prior: (B, M, C), counted as one more member of each group (the value centres of Context Cluster).
            size: (B, N) how many tokens each token already stands for. With ``size=finer.mass()`` two reductions in a
                row equal the reduction by ``finer.then(coarser)``.
        """
        self._check(x, self.index.shape[1], "reduce")
        if self.num == 0:
            return x[:, :0]
        weight = self.weight.to(torch.promote_types(self.weight.dtype, torch.float32))
        if size is not None:
            weight = weight * size.unsqueeze(-1).to(weight.dtype)
        # A token of weight 0 may hold anything, NaN included, which 0 * NaN would spread.
        value = torch.where((weight > 0).any(dim=2, keepdim=True), x, 0).to(weight.dtype)
        total = value.new_zeros(x.shape[0], self.num, x.shape[2]) if prior is None else prior.to(weight.dtype)
        for k in range(weight.shape[2]):
            where = self.index[:, :, k, None].expand(-1, -1, x.shape[2])
            total = total.scatter_add(1, where, value * weight[:, :, k, None])
        mass = weight.new_zeros(x.shape[0], self.num).scatter_add(1, self.index.flatten(1), weight.flatten(1))
        return divide_by_mass(total, mass if prior is None else mass + 1).to(x.dtype)

    def restore(self, y: Tensor, base: Tensor | None = None) -> Tensor:
        """Bring reduced tokens back to their places, (B, M, C) -> (B, N, C).

        Args:
            y: (B, M, C) reduced tokens.
            base: (B, N, C), fills the share of a token that no group holds: ``W y + (1 - W1) base``.
        """
        self._check(y, self.num, "restore")
        if self.num == 0:  # nothing was kept: every index points past the end, with weight 0
            y = torch.cat([y, y.new_zeros(y.shape[0], 1, y.shape[2])], dim=1)
        weight = self.weight.to(y.dtype)
        out = None
        for k in range(weight.shape[2]):
            share = weight[:, :, k, None]
            part = y.gather(1, self.index[:, :, k, None].expand(-1, -1, y.shape[2]))
            part = torch.where(share > 0, part, 0) * share  # as above: weight 0 means that the value does not matter
            out = part if out is None else out + part
        if base is not None:
            # Where nothing is missing the base does not matter, whatever it holds.
            missing = (1 - weight.sum(dim=2, keepdim=True)).clamp_min(0)
            out = out + torch.where(missing > 0, base, 0) * missing
        return out

    def then(self, coarser: TokenMap) -> TokenMap:
        """The map of "this one, then ``coarser``": W_this W_coarser, with K_this * K_coarser entries in each row.

        ``restore`` of the result equals the two restores in a row. ``reduce`` equals the two reductions when the
        second is given ``size=self.mass()``.
        """
        if coarser.index.shape[1] != self.num:
            raise ValueError(
                f"cannot compose: this map has {self.num} reduced tokens, the coarser one takes "
                f"{coarser.index.shape[1]} tokens"
            )
        batch, count, k_fine = self.index.shape
        k_coarse = coarser.index.shape[2]
        rows = self.index.flatten(1).unsqueeze(-1).expand(-1, -1, k_coarse)  # (B, N * K_fine, K_coarse)
        index = coarser.index.gather(1, rows).view(batch, count, k_fine * k_coarse)
        weight = coarser.weight.gather(1, rows).view(batch, count, k_fine, k_coarse) * self.weight.unsqueeze(-1)
        return TokenMap(index, weight.flatten(2), coarser.num)

    @staticmethod
    def identity(batch: int, count: int, like: Tensor) -> TokenMap:
        """Every token its own group: (B, N, 1) on the device and in the dtype of ``like``."""
        index = torch.arange(count, device=like.device).view(1, count, 1).expand(batch, -1, -1)
        return TokenMap(index, like.new_ones(batch, count, 1), count)

    def _check(self, tokens: Tensor, count: int, what: str) -> None:
        if tokens.dim() != 3 or tokens.shape[1] != count:
            raise ValueError(
                f"{what} takes (B, {count}, C) tokens for this map, got a tensor of shape {tuple(tokens.shape)}"
            )
