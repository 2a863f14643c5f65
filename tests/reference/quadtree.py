"""Quadtrees one split at a time: of all squares at hand the one with the highest score, until there are L leaves.

Two forms of the same loop. :func:`best_first` handles one image with a heap and any grid; :func:`best_first_batched` is
how a batch is done with tensors (square grids without remainder), the yardstick for speed.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

Box = tuple[int, int, int]  # top, left, size in cells


def best_first(scores: Sequence[np.ndarray], grid: tuple[int, int], num_leaves: int) -> list[Box]:
    """Leaves (top, left, size), sorted, of one image.

    Args:
        scores: one array (rows * 2^level, cols * 2^level) for each level that can be split.
        grid: (h, w) in cells; squares wholly outside do not count.
        num_leaves: stop before the first split that would give more.
    """
    depth = len(scores)

    def inside(top: int, left: int) -> bool:
        return top < grid[0] and left < grid[1]

    leaves: set[Box] = set()
    heap: list[tuple[float, int, int, int]] = []  # -score, level, row, column: the order of ties

    def add(level: int, row: int, col: int) -> None:
        size = 2 ** (depth - level)
        if not inside(row * size, col * size):
            return
        leaves.add((row * size, col * size, size))
        if level < depth:
            heapq.heappush(heap, (-float(scores[level][row, col]), level, row, col))

    for row in range(-(-grid[0] // 2**depth)):
        for col in range(-(-grid[1] // 2**depth)):
            add(0, row, col)
    while heap:
        _, level, row, col = heapq.heappop(heap)
        size = 2 ** (depth - level)
        half = size // 2
        children = [(2 * row + i, 2 * col + j) for i in (0, 1) for j in (0, 1)]
        gain = sum(inside(r * half, c * half) for r, c in children) - 1
        if len(leaves) + gain > num_leaves:
            break
        leaves.remove((row * size, col * size, size))
        for r, c in children:
            add(level + 1, r, c)
    return sorted(leaves)


def best_first_batched(scores: Sequence[Tensor], grid: tuple[int, int], num_leaves: int) -> Tensor:
    """(B, n) bool, which squares of all levels are split; one argmax over the batch for each split."""
    depth = len(scores)
    batch = scores[0].shape[0]
    sizes = [s.shape[1] * s.shape[2] for s in scores]
    offsets = [sum(sizes[:i]) for i in range(depth)]
    flat = torch.cat([s.flatten(1) for s in scores], dim=1)
    # Children of each square: their places among all levels, or the place behind the last one.
    children = torch.full((flat.shape[1], 4), flat.shape[1])
    for level in range(depth - 1):
        rows, cols = scores[level].shape[1:]
        r, c = torch.meshgrid(torch.arange(rows), torch.arange(cols), indexing="ij")
        four = [offsets[level + 1] + (2 * r + i) * 2 * cols + 2 * c + j for i in (0, 1) for j in (0, 1)]
        children[offsets[level] : offsets[level] + sizes[level]] = torch.stack(four, -1).view(-1, 4)
    waiting = torch.full((batch, flat.shape[1] + 1), -torch.inf)
    waiting[:, : sizes[0]] = flat[:, : sizes[0]]
    flat = torch.cat([flat, torch.full((batch, 1), -torch.inf)], dim=1)
    split = torch.zeros(batch, flat.shape[1], dtype=torch.bool)
    for _ in range((num_leaves - sizes[0]) // 3):
        best = waiting.argmax(dim=1, keepdim=True)
        split.scatter_(1, best, True)
        waiting.scatter_(1, best, -torch.inf)
        new = children[best.squeeze(1)]
        waiting.scatter_(1, new, flat.gather(1, new))
    return split[:, :-1]
