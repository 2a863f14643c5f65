"""A grid of tokens cut into regions, each with its own few centres."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Regions", "check_sides"]


def check_sides(value: int | tuple[int, int], name: str) -> tuple[int, int]:
    """``value`` as (per column of the grid, per row of the grid): one whole number >= 1, or two.

    Raises:
        ValueError: anything else.
    """
    sides = (value, value) if isinstance(value, int) else tuple(value) if isinstance(value, (tuple, list)) else ()
    if len(sides) != 2 or any(type(side) is not int or side < 1 for side in sides):
        raise ValueError(f"{name} must be a whole number of at least 1, or two of them (down, across), got {value!r}")
    return sides


def _windows(lengths: Tensor, count: int, longest: int, like: Tensor) -> Tensor:
    """Averaging weights of adaptive pooling, (L,) lengths -> (L, count, longest).

    Window i of a length n covers the places floor(i n / count) to ceil((i + 1) n / count): windows may overlap, and
    repeat where there are more of them than places.
    """
    i = torch.arange(count, device=like.device).view(1, count, 1)
    place = torch.arange(longest, device=like.device)
    n = lengths.view(-1, 1, 1)
    first = torch.div(i * n, count, rounding_mode="floor")
    last = torch.div((i + 1) * n + count - 1, count, rounding_mode="floor")
    inside = ((place >= first) & (place < last)).to(like.dtype)
    return inside / inside.sum(dim=2, keepdim=True)


class Regions(NamedTuple):
    """A grid (H, W) cut into ``counts`` regions of at most ``side`` tokens, and M centres in each.

    Region i of a side of n tokens begins at floor(i n / count), as the windows of adaptive pooling do without overlap:
    sizes differ by at most one token, and there are never more regions than tokens. R regions in raster order hold
    P = h * w places each, in raster order; a smaller region leaves places unused.

    Args:
        grid: (H, W).
        counts: regions down and across.
        side: (h, w) of the largest region.
        pool: (R or 1, M, P) weights of the centres: adaptive average pooling of each region.
        places: (R, P) token of each place, unused places repeating one; None if all regions have the same size.
        used: (R, P, 1) 1 for used places, 0 for others; None likewise.
        home: (H * W,) place of each token; None likewise.
    """

    grid: tuple[int, int]
    counts: tuple[int, int]
    side: tuple[int, int]
    pool: Tensor
    places: Tensor | None = None
    used: Tensor | None = None
    home: Tensor | None = None

    @staticmethod
    def of(grid: tuple[int, int], regions: tuple[int, int], centres: tuple[int, int], like: Tensor) -> Regions:
        """Cut ``grid``; on the device of ``like``, weights in its dtype but at least float32."""
        grid = (int(grid[0]), int(grid[1]))  # the tracer's sizes are tensors
        counts = (min(regions[0], grid[0]), min(regions[1], grid[1]))
        side = (-(-grid[0] // counts[0]), -(-grid[1] // counts[1]))
        even = all(n % count == 0 for n, count in zip(grid, counts, strict=True))
        like = torch.empty((), dtype=torch.promote_types(like.dtype, torch.float32), device=like.device)
        lengths, windows = [], []
        for n, count, longest, centre in zip(grid, counts, side, centres, strict=True):
            edges = torch.div(torch.arange(count + 1, device=like.device) * n, count, rounding_mode="floor")
            lengths.append(edges[1:] - edges[:-1])
            windows.append(_windows(lengths[-1][:1] if even else lengths[-1], centre, longest, like))
        down, across = windows
        pool = down[:, None, :, None, :, None] * across[None, :, None, :, None, :]
        pool = pool.reshape(-1, centres[0] * centres[1], side[0] * side[1])
        if even:
            return Regions(grid, counts, side, pool)
        return Regions(grid, counts, side, pool, *_uneven(grid, counts, side, like))

    @property
    def num(self) -> int:
        """R, the number of regions."""
        return self.counts[0] * self.counts[1]

    def split(self, x: Tensor) -> Tensor:
        """(B, H * W, C) in raster order -> (B, R, P, C)."""
        batch, dim = x.shape[0], x.shape[2]
        if self.places is not None:
            return x[:, self.places.flatten()].view(batch, self.num, -1, dim)
        x = x.reshape(batch, self.counts[0], self.side[0], self.counts[1], self.side[1], dim).transpose(2, 3)
        return x.reshape(batch, self.num, -1, dim)

    def join(self, x: Tensor) -> Tensor:
        """(B, R, P, C) -> (B, H * W, C) in raster order, the inverse of :meth:`split`."""
        batch, dim = x.shape[0], x.shape[3]
        if self.home is not None:
            return x.flatten(1, 2)[:, self.home]
        x = x.view(batch, self.counts[0], self.counts[1], self.side[0], self.side[1], dim).transpose(2, 3)
        return x.reshape(batch, -1, dim)


def _uneven(
    grid: tuple[int, int], counts: tuple[int, int], side: tuple[int, int], like: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """``places``, ``used`` and ``home`` of regions of different sizes."""
    tokens, inside, region, offset = [], [], [], []
    for n, count, longest in zip(grid, counts, side, strict=True):
        first = torch.div(torch.arange(count, device=like.device) * n, count, rounding_mode="floor")
        end = torch.div(torch.arange(1, count + 1, device=like.device) * n, count, rounding_mode="floor")
        token = first[:, None] + torch.arange(longest, device=like.device)
        inside.append(token < end[:, None])
        tokens.append(torch.minimum(token, end[:, None] - 1))
        at = torch.arange(n, device=like.device)
        region.append(torch.div((at + 1) * count - 1, n, rounding_mode="floor"))
        offset.append(at - first[region[-1]])
    shape = (counts[0] * counts[1], side[0] * side[1])
    places = tokens[0][:, None, :, None] * grid[1] + tokens[1][None, :, None, :]
    used = inside[0][:, None, :, None] & inside[1][None, :, None, :]
    which = region[0][:, None] * counts[1] + region[1]
    home = which * shape[1] + offset[0][:, None] * side[1] + offset[1]
    return places.reshape(shape), used.reshape(*shape, 1).to(like.dtype), home.flatten()
