"""Groups of equal size: sort tokens window by window, then cut the sequence.

Source: Liu et al., "FlatFormer: Flattened Window Attention for Efficient Point Cloud Transformer", CVPR 2023 (arXiv
2301.08739), section 3. Windows of equal shape hold unequal numbers of sparse tokens and need padding. A sequence that
runs through the windows in serpentines, cut every G tokens, needs none but at the end of a sample.

Differs from the authors' code, not in its results on their grids: sort keys are exact integers made from the grid's
size, so that samples never share a group however small the grid is; samples smaller than a group and empty samples
are legal.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmvit_plugins.registry import MODELS

from .base import TokenReducer, check_tokens
from .selection_map import SelectionMap

__all__ = ["ORDERS", "EqualGroups", "cut_into_groups", "serpentine_keys"]

#: (axis, shift) of four layers in a row: FlatFormer's block.
ORDERS: tuple[tuple[str, bool], ...] = (("x", False), ("x", True), ("y", False), ("y", True))


def _serpentine(position: Tensor, row: Tensor, length: int) -> Tensor:
    """``position`` in even rows, counted from the other end (``length`` positions in all) in odd ones."""
    return torch.where(row % 2 == 0, position, length - 1 - position)


def serpentine_keys(
    x: Tensor, y: Tensor, extent: tuple[int, int], window: tuple[int, int], axis: str = "x", shift: bool = False
) -> Tensor:
    """Sort keys that run through the windows of a grid in serpentines, and in serpentines inside each window.

    With axis ``'x'``: rows of windows from top to bottom, along x in even rows and against it in odd ones; inside a
    window column by column, down and up in turn; an odd row is the mirror image of an even one. ``'y'`` swaps the two.
    Different places of the grid have different keys, all in [0, number of keys) with no gaps but those of windows that
    reach over the border. Section 3.1 of the paper; equal to the published keys wherever those have no collisions.

    Args:
        x: integer coordinates, any shape.
        y: likewise.
        extent: (nx, ny), coordinates are in [0, nx) x [0, ny).
        window: (wx, wy).
        axis: along which the windows follow each other.
        shift: add half a window to the coordinates.

    Returns:
        int64 keys of the shape of ``x``.
    """
    x, y = x.long(), y.long()
    if shift:
        x, y = x + window[0] // 2, y + window[1] // 2
    extent = (extent[0] + shift * (window[0] // 2), extent[1] + shift * (window[1] // 2))
    if axis == "y":
        x, y, window, extent = y, x, window[::-1], extent[::-1]
    (wx, wy), columns = window, -(-extent[0] // window[0])
    row, column, inner_x, inner_y = y // wy, x // wx, x % wx, y % wy
    inner_y = _serpentine(inner_y, row + inner_x, wy)
    windows = row * columns + _serpentine(column, row, columns)
    return (windows * wx + _serpentine(inner_x, row, wx)) * wy + inner_y


def cut_into_groups(counts: Sequence[int], group_size: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Cut sequences that lie end to end into groups of equal size.

    The last group of a sample is completed by the tail of the group before it. A sample with fewer tokens than a group
    has one group, which is filled by places without a token of their own.

    Args:
        counts: tokens of each sample; 0 is legal and gives no group.
        group_size: G.
        device: of the results.

    Returns:
        The position in the sequences that is copied to each place, (M,) with M a multiple of G; the place of each
        position, (N,); whether a place holds a token, (M,) bool.
    """
    tokens = torch.tensor(list(counts), dtype=torch.long, device=device)
    places = (tokens + group_size - 1).div(group_size, rounding_mode="floor") * group_size
    num, total = sum(-(-c // group_size) * group_size for c in counts), sum(counts)
    first_token, first_place = tokens.cumsum(0) - tokens, places.cumsum(0) - places
    sample = torch.repeat_interleave(places, output_size=num)  # sample of each place
    rank = torch.arange(num, device=device) - first_place[sample]
    missing = rank >= tokens[sample]
    rank = rank - missing * group_size
    source = first_token[sample] + rank.clamp_min(0)
    sample = torch.repeat_interleave(tokens, output_size=total)  # sample of each position
    place = torch.arange(total, device=device) - first_token[sample] + first_place[sample]
    return source, place, rank >= 0


@MODELS.register_module()
class EqualGroups(TokenReducer):
    """Equal-size groups (FlatFormer): a permutation of the tokens with an overlapping tail.

    The reduced tokens, M = groups x group size of them, are the tokens in the order of the groups: view them as
    (B * groups, group size, C) and let each group attend. A sample with fewer tokens than ``group_size`` is one group.

    Args:
        group_size: tokens in a group; the paper uses 69 by default and 144 on Waymo.
        window: (wx, wy) of the windows that the order follows, or one number; 9 by default, 13 on Waymo.
        axis: ``'x'`` or ``'y'``, see :func:`serpentine_keys`.
        shift: windows shifted by half their size.

    Raises:
        ValueError: an argument is outside its legal values.
    """

    reduced_name = "sorted tokens"

    def __init__(
        self, group_size: int = 69, window: int | tuple[int, int] = 9, axis: str = "x", shift: bool = False
    ) -> None:
        super().__init__()
        if type(group_size) is not int or group_size < 1:
            raise ValueError(f"group_size must be a whole number of at least 1 token, got {group_size!r}")
        sides = (window, window) if type(window) is int else tuple(window) if isinstance(window, Sequence) else ()
        if len(sides) != 2 or any(type(side) is not int or side < 1 for side in sides):
            raise ValueError(
                f"window must be at least 1 token wide and high, one whole number or (x, y), got {window!r}"
            )
        if axis not in ("x", "y"):
            raise ValueError(f"axis must be 'x' or 'y', got {axis!r}")
        self.group_size, self.window, self.axis, self.shift = group_size, sides, axis, bool(shift)

    def keys(self, x: Tensor, y: Tensor, extent: tuple[int, int]) -> Tensor:
        """Sort keys for this order; see :func:`serpentine_keys`."""
        return serpentine_keys(x, y, extent, self.window, self.axis, self.shift)

    def num_keys(self, extent: tuple[int, int]) -> int:
        """Keys are below this number."""
        sides = [-(-(n + self.shift * (w // 2)) // w) * w for n, w in zip(extent, self.window, strict=True)]
        return sides[0] * sides[1]

    def associate(self, metric: Tensor, grid: tuple[int, int]) -> SelectionMap:
        """(B, H * W, C) tokens on a full grid (H, W) -> their map. Only the shape of ``metric`` matters."""
        height, width = check_tokens(metric, grid, type(self).__name__)
        position = torch.arange(height * width, device=metric.device).unsqueeze(0)
        token_map = self.associate_kept(position, (height, width))
        expand = [t.expand(metric.shape[0], *t.shape[1:]) for t in (token_map.index, token_map.weight)]
        return SelectionMap(*expand, token_map.num, token_map.source.expand(metric.shape[0], -1), True)

    def associate_kept(self, position: Tensor, grid: tuple[int, int]) -> SelectionMap:
        """The map of tokens at some places of a grid, equally many in each sample.

        Args:
            position: (B, K) long, place y * W + x of each token; K >= 1.
            grid: (H, W).
        """
        height, width = grid
        batch, count = (int(n) for n in position.shape)  # plain numbers under a tracer too
        keys = self.keys(position % width, position // width, (width, height))
        sequence = keys.argsort(dim=1)  # (B, K) tokens in their order; no two keys are equal
        size = min(self.group_size, count)
        groups = -(-count // size)
        rank = torch.arange(groups * size, device=position.device)
        source = sequence.index_select(1, torch.where(rank < count, rank, rank - size))
        ranks = torch.arange(count, device=position.device).expand(batch, -1)
        index = torch.empty_like(sequence).scatter(1, sequence, ranks).unsqueeze(2)
        weight = torch.ones(index.shape, device=position.device)
        return SelectionMap(index, weight, groups * size, source, True)

    def associate_sparse(
        self, x: Tensor, y: Tensor, sample: Tensor, extent: tuple[int, int], counts: Sequence[int]
    ) -> SelectionMap:
        """The map of the tokens of a whole batch, unequally many in each sample, as one sequence (batch size 1).

        Args:
            x: (N,) integer coordinates, 0 <= x < nx.
            y: (N,) likewise.
            sample: (N,) long, number of the sample; rows may come in any order.
            extent: (nx, ny).
            counts: tokens of each sample.
        """
        keys = sample.long() * self.num_keys(extent) + self.keys(x, y, extent)
        sequence = keys.argsort(stable=True)
        position, place, real = cut_into_groups(counts, self.group_size, x.device)
        index = torch.empty_like(sequence).scatter(0, sequence, place).view(1, -1, 1)
        weight = torch.ones(index.shape, device=x.device)
        filled = any(0 < count < self.group_size for count in counts)
        source = sequence[position].unsqueeze(0)
        return SelectionMap(index, weight, source.shape[1], source, True, real.unsqueeze(0) if filled else None)
