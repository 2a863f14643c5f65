"""Quadtrees over a grid of cells: the squares that matter are split until the tokens are spent.

Source: Ronen, Levy, Golbert, "Vision Transformers with Mixed-Resolution Tokenization", CVPRW 2023 (arXiv 2304.00287).
The paper splits one square after the other: of all squares at hand always the one with the highest score, until there
are L. :func:`build_quadtree` finds the same squares without that loop. For distinct scores the order of the splits is
the order of this key: along the path from the root to a square take the smallest score (m1), then the smallest of what
follows the place of m1 (m2), and so on; larger first, place by place; a path that ends earlier comes first. (A square
waits until its ancestors are split, and once the worst of them is, everything better below it follows at once.)

Ties: of equal scores the larger square comes first, then raster order (top, then left).

Sizes: the grid is covered by root squares of 2^depth cells, the last ones sticking out at the right and the bottom.
Squares wholly outside are no leaves. Where nothing sticks out every split adds 3 leaves and L = roots + 3 k. Otherwise
a split at the border may add 1 or 0; the longest run of splits with at most L leaves is taken, and up to 2 of the L
places stay unused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mmvit_plugins.registry import MODELS

from .base import TokenReducer, check_tokens
from .token_map import TokenMap

__all__ = ["Quadtree", "QuadtreeReducer", "build_quadtree", "legal_budget", "pad_to_multiple", "resolve_budget"]

SCORES = ("error", "activation")


@dataclass(frozen=True, eq=False)
class Quadtree:
    """The leaves of a batch of quadtrees, in raster order of their upper left corners.

    Args:
        token_map: cells (B, h * w) -> leaves; every cell belongs to the one leaf that covers it.
        boxes: (B, L, 3) long, left, top and size of each leaf in cells; size 0 in places that stay unused.
        full: every place is used, in every image, by the sizes alone.
    """

    token_map: TokenMap
    boxes: Tensor
    full: bool

    def used(self) -> Tensor | None:
        """(B, L) bool: places that hold a leaf; None where all do."""
        return None if self.full else self.boxes[..., 2] > 0


def _roots(grid: tuple[int, int], depth: int) -> tuple[int, int]:
    return -(-grid[0] // 2**depth), -(-grid[1] // 2**depth)


def _whole(grid: tuple[int, int], depth: int) -> bool:
    return grid[0] % 2**depth == 0 and grid[1] % 2**depth == 0


def legal_budget(grid: tuple[int, int], depth: int, wanted: int) -> int:
    """The legal number of leaves next below ``wanted``, between the number of roots and the number of cells.

    Args:
        grid: (h, w) in cells.
        depth: how often a root can be split; roots are 2^depth cells wide.
        wanted: number of leaves.
    """
    rows, cols = _roots(grid, depth)
    fewest, most = rows * cols, grid[0] * grid[1]
    wanted = min(max(wanted, fewest), most)
    return wanted - (wanted - fewest) % 3 if _whole(grid, depth) else wanted


def resolve_budget(budget: int | float, grid: tuple[int, int], depth: int) -> int:
    """A budget as the user gives it -> a legal number of leaves for this grid.

    Args:
        budget: int: number of leaves; float in (0, 1]: share of the number of cells.
        grid: (h, w) in cells.
        depth: as in :func:`legal_budget`.

    Raises:
        ValueError: neither a positive int nor a float in (0, 1].
    """
    if isinstance(budget, bool) or not isinstance(budget, (int, float)):
        raise ValueError(f"num_tokens must be an int or a float, got {budget!r}")
    if not (budget >= 1 if isinstance(budget, int) else 0 < budget <= 1):
        raise ValueError(
            f"num_tokens must be a number of tokens of at least 1 (an int) or a share of the cells in (0, 1] "
            f"(a float), got {budget!r}"
        )
    return legal_budget(grid, depth, budget if isinstance(budget, int) else round(budget * grid[0] * grid[1]))


def pad_to_multiple(x: Tensor, multiple: int) -> Tensor:
    """(B, C, H, W) -> (B, C, H', W'), sizes rounded up; the last row and column are repeated.

    Written as a gather, because a Pad whose amounts are computed is refused by TensorRT.
    """
    height, width = int(x.shape[-2]), int(x.shape[-1])
    if height % multiple:
        x = x[..., torch.arange(-(-height // multiple) * multiple, device=x.device).clamp_max(height - 1), :]
    if width % multiple:
        x = x[..., torch.arange(-(-width // multiple) * multiple, device=x.device).clamp_max(width - 1)]
    return x


def _enlarge(x: Tensor, factor: int) -> Tensor:
    """(B, h, w, ...) -> (B, h * factor, w * factor, ...), every entry repeated."""
    return x if factor == 1 else x.repeat_interleave(factor, dim=1).repeat_interleave(factor, dim=2)


def _ascending(x: Tensor) -> Tensor:
    """(B, n) -> (B, n) positions in rising order, equal values in the order of their places."""
    if torch.jit.is_tracing():  # ONNX knows no stable sort, but its TopK is one
        return x.topk(int(x.shape[1]), dim=1, largest=False, sorted=True).indices
    return torch.sort(x, dim=1, stable=True).indices


def _ranks(order: Tensor) -> Tensor:
    """(B, n) positions in some order -> (B, n) rank of each place, from 1."""
    numbers = torch.arange(1, int(order.shape[1]) + 1, device=order.device).expand_as(order)
    return torch.zeros_like(order).scatter(1, order, numbers)


def _split_keys(ranks: Sequence[Tensor]) -> Tensor:
    """Keys whose rising order is the order of the splits.

    Args:
        ranks: one (B, h, w) long for each level from the roots on, best = 1, distinct over all levels. As a small rank
            is a high score, minima of scores are maxima of ranks.

    Returns:
        (B, n, depth) long over all levels, to be compared place by place. 0 (after the end of a path) comes first.
    """
    depth = len(ranks)
    place = torch.arange(depth, device=ranks[0].device)
    columns = ranks[0].new_zeros(*ranks[0].shape, depth)
    keys = []
    for level, rank in enumerate(ranks):
        if level:
            columns = _enlarge(columns, 2)
        # Successive suffix maxima fall. One more rank at the end of the path removes those that it exceeds.
        last = rank.unsqueeze(-1)
        count = (columns > last).sum(dim=-1, keepdim=True)
        columns = torch.where(place < count, columns, torch.where(place == count, last, 0))
        keys.append(columns.flatten(1, 2))
    return torch.cat(keys, dim=1)


def _split_order(scores: Sequence[Tensor]) -> Tensor:
    """One (B, h, w) for each level, higher is split first -> (B, n) squares of all levels in the order of splits."""
    flat = torch.cat([s.flatten(1) for s in scores], dim=1)
    ranks = _ranks(_ascending(-flat))
    count, sizes = flat.shape[1], [s.shape[1] * s.shape[2] for s in scores]
    levels = [r.view(s.shape) for r, s in zip(ranks.split(sizes, dim=1), scores, strict=True)]
    keys = _split_keys(levels)
    depth = keys.shape[-1]
    # All places of a key in one number, as far as they fit.
    per_number = 1
    while per_number < depth and (count + 1) ** (per_number + 1) < 2**62:
        per_number += 1
    order = None
    for end in range(depth, 0, -per_number):  # the last places first: each sort keeps the order of the one before
        number = keys[..., max(end - per_number, 0)]
        for column in range(max(end - per_number, 0) + 1, end):
            number = number * (count + 1) + keys[..., column]
        if order is None:
            order = _ascending(number)
        else:
            order = order.gather(1, _ascending(number.gather(1, order)))
    return order


def _added_leaves(grid: tuple[int, int], depth: int, device: torch.device) -> Tensor:
    """(n,) long: how many leaves more there are after the split of each square, over all levels."""
    gains = []
    for level in range(depth):
        half = 2 ** (depth - level - 1)
        inside = []
        for side, roots in zip(grid, _roots(grid, depth), strict=True):
            start = torch.arange(roots * 2**level, device=device) * (2 * half)
            inside.append((start < side).long() + (start + half < side).long())
        children = inside[0].view(-1, 1) * inside[1].view(1, -1)
        gains.append((children - 1).clamp_min(0).flatten())
    return torch.cat(gains)


def _choose(scores: Sequence[Tensor], grid: tuple[int, int], num_leaves: int) -> list[Tensor]:
    """(B, h, w) scores of each level -> which squares are split, bool of the same shapes."""
    depth = len(scores)
    rows, cols = _roots(grid, depth)
    scores = [s.detach().to(torch.promote_types(s.dtype, torch.float32)) for s in scores]
    order = _split_order(scores)
    if _whole(grid, depth):
        splits = (num_leaves - rows * cols) // 3
        chosen = torch.zeros_like(order, dtype=torch.bool).scatter(1, order[:, :splits], True)
    else:
        gains = _added_leaves(grid, depth, order.device).expand_as(order).gather(1, order)
        affordable = rows * cols + gains.cumsum(dim=1) <= num_leaves
        chosen = torch.zeros_like(affordable).scatter(1, order, affordable)
    sizes = [s.shape[1] * s.shape[2] for s in scores]
    return [c.view(s.shape) for c, s in zip(chosen.split(sizes, dim=1), scores, strict=True)]


def _leaves(level: Tensor, depth: int, num_leaves: int, full: bool) -> Quadtree:
    """(B, h, w) long, level of the leaf that covers each cell of the grid -> leaves in raster order."""
    batch, height, width = level.shape
    size = 2**depth // (2**level)
    top = torch.arange(int(height), device=level.device).view(-1, 1)
    left = torch.arange(int(width), device=level.device)
    corner = ((top - top % size) * width + left - left % size).flatten(1)
    cells = torch.arange(int(height * width), device=level.device).expand_as(corner)
    first = corner == cells
    number = first.long().cumsum(dim=1) - 1
    index = number.gather(1, corner)
    # The cell of every leaf's corner, in the leaf's place; what is no corner goes to a place behind them.
    place = torch.where(first, number, num_leaves)
    where = cells.new_zeros(batch, num_leaves + 1).scatter(1, place, cells)[:, :num_leaves]
    sizes = size.flatten(1).gather(1, where)
    if not full:
        used = torch.arange(num_leaves, device=level.device) <= number[:, -1:]
        where, sizes = where * used, sizes * used
    boxes = torch.stack([where % width, where // width, sizes], dim=-1)
    weight = torch.ones(index.shape, device=level.device).unsqueeze(-1)
    return Quadtree(TokenMap(index.unsqueeze(-1), weight, num_leaves), boxes, full)


@torch.no_grad()
def build_quadtree(scores: Sequence[Tensor], grid: tuple[int, int], num_leaves: int) -> Quadtree:
    """The leaves after repeatedly splitting the square with the highest score, without a loop over the splits.

    Args:
        scores: for each level that can be split, from the roots on, the scores (B, rows * 2^level, cols * 2^level) of
            its squares; rows x cols roots cover the grid.
        grid: (h, w) in cells.
        num_leaves: L.

    Returns:
        L leaves for each image.

    Raises:
        ValueError: scores and grid do not fit, or L is not legal.
    """
    depth = len(scores)
    rows, cols = _roots(grid, depth)
    for level, s in enumerate(scores):
        if s.dim() != 3 or tuple(s.shape[1:]) != (rows * 2**level, cols * 2**level):
            raise ValueError(
                f"scores of level {level} must be (B, {rows * 2**level}, {cols * 2**level}) for a grid of {grid} cells "
                f"and {depth} levels, got {tuple(s.shape)}"
            )
    if depth == 0:
        raise ValueError("a quadtree needs at least one level that can be split, got no scores")
    legal = legal_budget(grid, depth, num_leaves)
    if legal != num_leaves:
        rule = f"{rows * cols} + 3 k" if _whole(grid, depth) else "any number"
        raise ValueError(
            f"a grid of {grid} cells and roots of {2**depth} can have {rule} leaves, from {rows * cols} to "
            f"{grid[0] * grid[1]}, got {num_leaves}; the nearest below is {legal}"
        )
    splits = _choose(scores, grid, num_leaves)
    level = sum(_enlarge(s.long(), 2 ** (depth - i)) for i, s in enumerate(splits))
    return _leaves(level[:, : grid[0], : grid[1]], depth, num_leaves, _whole(grid, depth))


def _block_sums(x: Tensor, depth: int) -> list[Tensor]:
    """(B, h, w) on whole roots -> sums over the squares of every level from the roots to pairs of cells."""
    sums = []
    for _ in range(depth):
        x = F.avg_pool2d(x.unsqueeze(1), 2).squeeze(1) * 4
        sums.append(x)
    return sums[::-1]


@MODELS.register_module()
class QuadtreeReducer(TokenReducer):
    """A quadtree over a map of features: each leaf becomes one token, the mean of what it covers. Ours.

    The scores come from the features themselves; the choice carries no gradient, reduce and restore do.

    Args:
        num_tokens: leaves; int: a number, float: a share of the tokens. The next legal number below is taken.
        depth: how often a root can be split; roots are 2^depth tokens wide.
        score: ``'error'``: the sum of squared differences from the square's mean, that is what is lost if the square
            stays whole; ``'activation'``: the sum of the norms of the tokens.

    Raises:
        ValueError: an argument is outside its legal values.
    """

    reduced_name = "leaves"

    def __init__(self, num_tokens: int | float = 0.25, depth: int = 2, score: str = "error") -> None:
        super().__init__()
        resolve_budget(num_tokens, (1, 1), 0)
        if type(depth) is not int or not 1 <= depth <= 8:
            raise ValueError(f"depth must be a whole number from 1 to 8, got {depth!r}")
        if score not in SCORES:
            raise ValueError(f"score must be one of {SCORES}, got {score!r}")
        self.num_tokens, self.depth, self.score = num_tokens, depth, score

    @torch.no_grad()
    def quadtree(self, metric: Tensor, grid: tuple[int, int]) -> Quadtree:
        """(B, H * W, C) on grid (H, W) -> its leaves."""
        height, width = check_tokens(metric, grid, type(self).__name__)
        side = 2**self.depth
        with torch.autocast(metric.device.type, enabled=False):
            x = metric.to(torch.promote_types(metric.dtype, torch.float32)).view(metric.shape[0], height, width, -1)
            power = x.square().sum(dim=-1)
            rows, cols = -(-height // side) * side - height, -(-width // side) * side - width

            def pad(values: Tensor) -> Tensor:
                return F.pad(values, (0, cols, 0, rows))

            if self.score == "activation":
                scores = _block_sums(pad(power.sqrt()), self.depth)
            else:
                scores = self._errors(F.pad(x, (0, 0, 0, cols, 0, rows)), pad(power), pad(torch.ones_like(power)))
        return build_quadtree(scores, (height, width), resolve_budget(self.num_tokens, (height, width), self.depth))

    def _errors(self, x: Tensor, power: Tensor, count: Tensor) -> list[Tensor]:
        """(B, h, w, C), sum of squares and number of tokens of each place (0 in padding) -> scores of each level."""
        # Relative to the map's mean, so that sums of squares do not cancel.
        mean = x.sum(dim=(1, 2), keepdim=True) / count.sum(dim=(1, 2)).view(-1, 1, 1, 1)
        x = (x - mean) * count.unsqueeze(-1)
        power, x = x.square().sum(dim=-1), x.permute(0, 3, 1, 2)
        scores = []
        for _ in range(self.depth):
            x, power, count = F.avg_pool2d(x, 2) * 4, _block_sums(power, 1)[0], _block_sums(count, 1)[0]
            scores.append(power - x.square().sum(dim=1) / count.clamp_min(1))
        return scores[::-1]

    def associate(self, metric: Tensor, grid: tuple[int, int]) -> TokenMap:
        """(B, H * W, C) on grid (H, W) -> the map to the leaves."""
        return self.quadtree(metric, grid).token_map
