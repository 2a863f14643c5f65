"""Super token sampling: superpixels in token space.

Source: Huang et al., "Vision Transformer with Super Token Sampling", CVPR 2023 (arXiv 2211.11167), section 3.2. A
coarse grid of super tokens starts as the mean of each cell; every token is softly assigned to the 3 x 3 cells around
its own; the super tokens become the weighted means. hhb072's STViT, not changsn's STViT-R.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mmvit_plugins.registry import MODELS

from .base import TokenReducer, check_tokens
from .token_map import TokenMap, divide_by_mass

__all__ = ["SuperTokenMap", "SuperTokens", "from_cells", "gather_neighbours", "scatter_neighbours", "to_cells"]

BORDERS = ("published", "masked")


def pad_grid(x: Tensor, left: int, right: int, top: int, bottom: int) -> Tensor:
    """(B, H, W, C) with so many columns and rows of zeros more; negative numbers cut some off."""
    if not torch.jit.is_tracing():
        return F.pad(x, (0, 0, left, right, top, bottom))
    # The tracer hands the amounts of a Pad to ONNX as a computation, which TensorRT refuses.
    for dim, before, after in ((1, top, bottom), (2, left, right)):
        x = x.narrow(dim, max(-before, 0), x.shape[dim] - max(-before, 0) - max(-after, 0))
        zeros = {n: x.new_zeros(*x.shape[:dim], n, *x.shape[dim + 1 :]) for n in (before, after) if n > 0}
        x = torch.cat([t for t in (zeros.get(before), x, zeros.get(after)) if t is not None], dim)
    return x


def to_cells(x: Tensor, grid: tuple[int, int], cell: tuple[int, int]) -> Tensor:
    """(B, H * W, C) -> (B, M, P, C): M cells in raster order with their P = h * w tokens.

    Zero-padded right and bottom to whole cells.
    """
    batch, _, dim = x.shape
    (height, width), (h, w) = grid, cell
    rows, cols = -(-height // h), -(-width // w)
    x = x.reshape(batch, height, width, dim)
    if (rows * h, cols * w) != (height, width):
        x = pad_grid(x, 0, cols * w - width, 0, rows * h - height)
    x = x.view(batch, rows, h, cols, w, dim).transpose(2, 3)
    return x.reshape(batch, rows * cols, h * w, dim)


def from_cells(x: Tensor, grid: tuple[int, int], cell: tuple[int, int]) -> Tensor:
    """(B, M, P, C) -> (B, H * W, C), the inverse of :func:`to_cells`; padding is cut off."""
    batch, dim = x.shape[0], x.shape[3]
    (height, width), (h, w) = grid, cell
    rows, cols = -(-height // h), -(-width // w)
    x = x.view(batch, rows, cols, h, w, dim).transpose(2, 3).reshape(batch, rows * h, cols * w, dim)
    return x[:, :height, :width].reshape(batch, height * width, dim)


def gather_neighbours(s: Tensor, cells: tuple[int, int]) -> Tensor:
    """(B, M, C) on a grid of cells -> (B, M, 9, C): the 3 x 3 cells around each, zeros outside the grid."""
    batch, count, dim = s.shape
    rows, cols = cells
    padded = pad_grid(s.view(batch, rows, cols, dim), 1, 1, 1, 1)
    around = [padded[:, i : i + rows, j : j + cols] for i in range(3) for j in range(3)]
    return torch.stack(around, dim=3).view(batch, count, 9, dim)


def scatter_neighbours(s: Tensor, cells: tuple[int, int]) -> Tensor:
    """(B, M, 9, C) -> (B, M, C): the adjoint of :func:`gather_neighbours`; what falls outside the grid is lost."""
    batch, count, _, dim = s.shape
    rows, cols = cells
    s = s.view(batch, rows, cols, 9, dim)
    # Pads with negative sizes crop: each of the nine shifted maps lands on the grid without a buffer around it.
    parts = (pad_grid(s[:, :, :, 3 * i + j], j - 1, 1 - j, i - 1, 1 - i) for i in range(3) for j in range(3))
    return sum(parts).reshape(batch, count, dim)


def neighbour_index(cells: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """(M, 9) indices of the cells around each cell, clamped to the grid, and (M, 9) bool whether they are in it."""
    rows, cols = cells
    row = torch.arange(rows, device=device).view(rows, 1, 1, 1) + torch.arange(-1, 2, device=device).view(3, 1)
    col = torch.arange(cols, device=device).view(1, cols, 1, 1) + torch.arange(-1, 2, device=device).view(1, 3)
    inside = (row >= 0) & (row < rows) & (col >= 0) & (col < cols)
    index = row.clamp(0, rows - 1) * cols + col.clamp(0, cols - 1)
    return index.view(rows * cols, 9), inside.view(rows * cols, 9)


class SuperTokenMap(TokenMap):
    """A :class:`TokenMap` with K = 9 whose structure is the grid, so that reduce and restore are dense products.

    With the published border rule a padded position takes part in the sums as a zero vector. Such positions are not
    tokens of the map (they have no row in ``weight``), but :meth:`mass` counts them, as the division does.

    Args:
        affinity: (B, M, P, 9) weights of the P tokens of each cell for the 3 x 3 cells around it, padded tokens
            included; columns outside the grid belong to no super token.
        grid: (H, W) of the tokens.
        cell: (h, w) of a cell in tokens.
    """

    def __init__(self, affinity: Tensor, grid: tuple[int, int], cell: tuple[int, int]) -> None:
        # The base class is frozen, so that a map cannot change by accident.
        set_field = object.__setattr__
        set_field(self, "affinity", affinity)
        set_field(self, "grid", grid)
        set_field(self, "cell", cell)
        set_field(self, "cells", (-(-grid[0] // cell[0]), -(-grid[1] // cell[1])))
        set_field(self, "num", affinity.shape[1])

    def _rows(self, per_token: Tensor) -> Tensor:
        """(B, M, P, 9) -> (B, N, 9) in raster order of the tokens."""
        return from_cells(per_token, self.grid, self.cell)

    @property
    def index(self) -> Tensor:
        index, _ = neighbour_index(self.cells, self.affinity.device)
        return self._rows(index.view(1, self.num, 1, 9).expand(self.affinity.shape))

    @property
    def weight(self) -> Tensor:
        _, inside = neighbour_index(self.cells, self.affinity.device)
        return self._rows(self.affinity * inside.view(1, self.num, 1, 9))

    def mass(self) -> Tensor:
        """(B, M) column sums, those of padded positions included."""
        return scatter_neighbours(self.affinity.sum(dim=2).unsqueeze(-1), self.cells).squeeze(-1)

    def reduce(self, x: Tensor, prior: Tensor | None = None, size: Tensor | None = None) -> Tensor:
        """(B, N, C) -> (B, M, C), as in the base class."""
        self._check(x, self.grid[0] * self.grid[1], "reduce")
        if size is not None:  # a padded position counts once, as without sizes
            size = to_cells(size.unsqueeze(-1) - 1, self.grid, self.cell) + 1
        return self.reduce_cells(to_cells(x, self.grid, self.cell), prior, size)

    def reduce_cells(self, x: Tensor, prior: Tensor | None = None, size: Tensor | None = None) -> Tensor:
        """(B, M, P, C) tokens already sorted into cells -> (B, M, C); ``size`` (B, M, P, 1) likewise."""
        with torch.autocast(x.device.type, enabled=False):
            affinity = self.affinity if size is None else self.affinity * size
            total = torch.matmul(affinity.transpose(2, 3), x.to(affinity.dtype))
            mass = affinity.sum(dim=2).unsqueeze(-1)
            # The mass as one more channel: a scatter is eighteen small operations.
            total = scatter_neighbours(torch.cat([total, mass], dim=-1), self.cells)
            total, mass = total[..., :-1], total[..., -1]
            if prior is not None:
                total, mass = total + prior, mass + 1
            return divide_by_mass(total, mass).to(x.dtype)

    def restore(self, y: Tensor, base: Tensor | None = None) -> Tensor:
        """(B, M, C) -> (B, N, C), as in the base class."""
        if base is not None:
            return super().restore(y, base)
        self._check(y, self.num, "restore")
        around = gather_neighbours(y, self.cells)
        with torch.autocast(y.device.type, enabled=False):
            return from_cells(torch.matmul(self.affinity.to(y.dtype), around), self.grid, self.cell)


@MODELS.register_module()
class SuperTokens(TokenReducer):
    """Super token sampling (STViT, section 3.2).

    The association carries no gradient, as in the authors' code: gradients reach the tokens through the weighted sum
    and through what is restored. The logits are scaled by C ** -0.5 with the full width C.

    Args:
        cell: tokens in a cell, (h, w) or one number.
        n_iter: association steps; every published model uses 1.
        border: ``'published'``: cells outside the grid take part in the softmax as zero vectors with logit 0 and what
            they absorb is lost (border tokens are attenuated); positions padded to a whole cell take part as zero
            vectors. Needed for the authors' weights. ``'masked'``: neither takes part, every token's weights sum to 1.

    Raises:
        ValueError: an argument is outside its legal values.
    """

    reduced_name = "super tokens"

    def __init__(self, cell: int | tuple[int, int] = 8, n_iter: int = 1, border: str = "published") -> None:
        super().__init__()
        self.cell = (cell, cell) if isinstance(cell, int) else tuple(cell) if isinstance(cell, Sequence) else ()
        if len(self.cell) != 2 or any(not isinstance(side, int) or side < 1 for side in self.cell):
            raise ValueError(f"cell must be at least 1 token high and wide, one whole number or (h, w), got {cell!r}")
        if not isinstance(n_iter, int) or n_iter < 1:
            raise ValueError(f"n_iter must be at least 1, got {n_iter!r}")
        if border not in BORDERS:
            raise ValueError(f"border must be one of {BORDERS}, got {border!r}")
        self.n_iter = n_iter
        self.border = border

    def associate(self, metric: Tensor, grid: tuple[int, int]) -> SuperTokenMap:
        """(B, H * W, C) on grid (H, W) -> the map to ceil(H / h) * ceil(W / w) super tokens."""
        grid = check_tokens(metric, grid, type(self).__name__)
        return self._associate_cells(to_cells(metric, grid, self.cell), grid)

    def reduce(self, x: Tensor, grid: tuple[int, int]) -> tuple[Tensor, SuperTokenMap]:
        """(B, H * W, C) on grid (H, W) -> super tokens (B, M, C) and their map."""
        grid = check_tokens(x, grid, type(self).__name__)
        cells = to_cells(x, grid, self.cell)
        token_map = self._associate_cells(cells, grid)
        return token_map.reduce_cells(cells), token_map

    @torch.no_grad()
    def _associate_cells(self, x: Tensor, grid: tuple[int, int]) -> SuperTokenMap:
        """(B, M, P, C) -> map. Softmax, sums and divisions in at least float32, outside autocast."""
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(torch.promote_types(x.dtype, torch.float32))
            padded = any(side % length for side, length in zip(grid, self.cell, strict=True))
            real = self._real_tokens(grid, x) if self.border == "masked" and padded else None
            centres = x.mean(dim=2) if real is None else divide_by_mass((x * real).sum(2), real.sum(dim=(2, 3)))
            for step in range(self.n_iter):
                token_map = SuperTokenMap(self._affinity(x, centres, grid, real), grid, self.cell)
                if step + 1 < self.n_iter:
                    centres = token_map.reduce_cells(x)
        return token_map

    def _affinity(self, x: Tensor, centres: Tensor, grid: tuple[int, int], real: Tensor | None) -> Tensor:
        """(B, M, P, C) tokens and (B, M, C) centres -> (B, M, P, 9)."""
        cells = (-(-grid[0] // self.cell[0]), -(-grid[1] // self.cell[1]))
        around = gather_neighbours(centres * x.shape[-1] ** -0.5, cells)
        # The nine come before the tokens in memory: softmax over nine numbers in a row is twenty times slower on a CPU.
        logits = torch.matmul(around, x.transpose(2, 3))  # (B, M, 9, P)
        if self.border == "masked":
            _, inside = neighbour_index(cells, x.device)
            logits = logits.masked_fill(~inside.view(1, -1, 9, 1), -torch.inf)
        affinity = logits.softmax(dim=2).transpose(2, 3)
        return affinity if real is None else affinity * real

    def _real_tokens(self, grid: tuple[int, int], like: Tensor) -> Tensor:
        """(1, M, P, 1): 1 for tokens of the grid, 0 for padding."""
        return to_cells(like.new_ones(1, grid[0] * grid[1], 1), grid, self.cell)
