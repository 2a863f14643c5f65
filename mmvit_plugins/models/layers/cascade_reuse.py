"""What a larger model of DVT's cascade takes over from the smaller one (arXiv 2105.15075, 3.2)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from torch import Tensor, nn

__all__ = ["FeatureReuse", "RelationReuse", "resize_columns", "resize_matrix", "resize_rows"]

Grid = tuple[int, int]


def resize_matrix(source: int, target: int, like: Tensor) -> Tensor:
    """The published resize of one axis as a matrix (target, source): nearest x2, then adaptive average.

    7 -> 14 -> 10 and 10 -> 20 -> 14. Rows sum to 1. A matrix, because ONNX has no adaptive pooling to a size that does
    not divide the map's.
    """
    doubled = torch.eye(source, dtype=torch.float64).repeat_interleave(2, dim=0)
    windows = [(i * 2 * source // target, -(-(i + 1) * 2 * source // target)) for i in range(target)]
    rows = [doubled[first:last].mean(0) for first, last in windows]
    return torch.stack(rows).to(device=like.device, dtype=like.dtype)


def resize_rows(x: Tensor, source: Grid, target: Grid) -> Tensor:
    """Resize the token axis (second last) from one grid to another: (..., h w, C) -> (..., h' w', C)."""
    lead, channels = x.shape[:-2], x.shape[-1]
    x = resize_matrix(source[1], target[1], x) @ x.reshape(*lead, *source, channels)
    x = resize_matrix(source[0], target[0], x) @ x.reshape(*lead, source[0], target[1] * channels)
    return x.reshape(*lead, target[0] * target[1], channels)


def resize_columns(x: Tensor, source: Grid, target: Grid) -> Tensor:
    """Resize the last axis, the cells of a grid: (..., h w) -> (..., h' w')."""
    x = x.reshape(*x.shape[:-1], *source) @ resize_matrix(source[1], target[1], x).T
    x = resize_matrix(source[0], target[0], x) @ x
    return x.flatten(-2)


class FeatureReuse(BaseModule):
    """Context channels of one block: Up(MLP(LN(z))) of the smaller model's last tokens z, zeros for the class token.

    Args:
        dim: channels of z.
        hidden: hidden width of the MLP.
        channels: width of the context.
        eps: of the layer norm.
    """

    def __init__(self, dim: int, hidden: int = 128, channels: int = 48, eps: float = 1e-6) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=eps)
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, channels)

    def forward(self, features: Tensor, source: Grid, target: Grid) -> Tensor:
        """(B, 1 + h w, C) -> (B, 1 + h' w', channels)."""
        context = self.fc2(F.gelu(self.fc1(self.norm(features[:, 1:]))))
        return F.pad(resize_rows(context, source, target), (0, 0, 1, 0))


class RelationReuse(BaseModule):
    """Attention scores of all blocks of the smaller model -> what is added to the larger one's, block by block.

    1x1 convolution to three times the maps, GELU, 1x1 back, at every position; then the keys and after them the queries
    are resized, class row and column apart.

    Args:
        depth: blocks L, the same in both models.
        num_heads: heads H.
    """

    def __init__(self, depth: int, num_heads: int) -> None:
        super().__init__()
        maps = depth * num_heads
        self.depth = depth
        self.conv1 = nn.Conv2d(maps, 3 * maps, 1)
        self.conv2 = nn.Conv2d(3 * maps, maps, 1)

    def forward(self, relation: Tensor, source: Grid, target: Grid) -> tuple[Tensor, ...]:
        """(B, L H, 1 + h w, 1 + h w), block-major -> L tensors (B, H, 1 + h' w', 1 + h' w')."""
        x = self.conv2(F.gelu(self.conv1(relation)))
        x = torch.cat([x[..., :1], resize_columns(x[..., 1:], source, target)], dim=-1)
        x = torch.cat([x[..., :1, :], resize_rows(x[..., 1:, :], source, target)], dim=-2)
        return x.chunk(self.depth, dim=1)
