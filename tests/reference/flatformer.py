"""FlatFormer's encoder as the paper writes it: loops over samples and groups, explicit softmax. For tests only."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["encode", "groups_of_sample", "sort_sample"]


def sort_sample(places: list[tuple[int, int]], window: tuple[int, int], axis: str, shift: bool) -> list[int]:
    """Numbers of the places (x, y) of one sample in the order of section 3.1: a comparison of tuples, no constants."""

    def key(number: int) -> tuple[int, ...]:
        x, y = places[number]
        (wx, wy) = window
        if shift:
            x, y = x + wx // 2, y + wy // 2
        if axis == "y":
            x, y, wx, wy = y, x, wy, wx
        x1, x2, y1, y2 = x // wx, x % wx, y // wy, y % wy
        row, column = (-1) ** y1, (-1) ** x2
        return y1, row * x1, row * x2, row * column * y2

    return sorted(range(len(places)), key=key)


def groups_of_sample(order: list[int], size: int) -> list[tuple[list[int], int]]:
    """Members of each group, and how many of them, from the front, take their result from it."""
    groups = []
    for first in range(0, len(order), size):
        own = order[first : first + size]
        missing = size - len(own)
        groups.append((own + order[max(len(order) - size, 0) : first][:missing], len(own)))
    return groups


def attend(layer: torch.nn.Module, x: Tensor, pos: Tensor) -> Tensor:
    """(L, C) tokens of one group -> (L, C)."""
    attn, heads = layer.attn, layer.attn.num_heads
    q, k = attn.qk(x + pos).chunk(2, dim=1)
    q, k, v = (t.view(len(x), heads, -1).transpose(0, 1) for t in (q, k, attn.v(x)))
    weights = (q @ k.transpose(1, 2) / q.shape[2] ** 0.5).softmax(dim=2)
    return attn.proj((weights @ v).transpose(0, 1).reshape(len(x), -1))


def encode(
    layers: torch.nn.ModuleList,
    features: Tensor,
    coors: Tensor,
    pos: Tensor,
    window: tuple[int, int],
    size: int,
) -> Tensor:
    """(N, C) features of a batch -> (N, C): every sample and group by itself."""
    x = features
    for i, layer in enumerate(layers):
        axis, shift = "xxyy"[i % 4], bool(i % 2)
        attended = torch.zeros_like(x)
        for sample in coors[:, 0].unique():
            rows = (coors[:, 0] == sample).nonzero()[:, 0]
            places = [(int(c[3]), int(c[2])) for c in coors[rows]]
            for members, own in groups_of_sample(sort_sample(places, window, axis, shift), size):
                at = rows[members]
                attended[at[:own]] = attend(layer, x[at], pos[at])[:own]
        x = layer.norm1(x + attended)
        x = layer.norm2(x + layer.fc2(F.gelu(layer.fc1(x))))
    return x
