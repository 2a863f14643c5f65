"""The interface of all token reducers."""

from __future__ import annotations

from abc import abstractmethod

from mmengine.model import BaseModule
from torch import Tensor

from .token_map import TokenMap

__all__ = ["TokenReducer", "check_tokens"]


def check_tokens(x: Tensor, grid: tuple[int, int] | None, who: str) -> tuple[int, int]:
    """``grid`` as two ints, after checking that ``x`` is (B, H * W, C) for it.

    Raises:
        ValueError: the grid is missing (a set of tokens does not tell its height and width), or does not fit.
    """
    if grid is None:
        raise ValueError(
            f"{who} needs the grid (H, W) of the tokens as well: {tuple(x.shape)} alone does not tell how the tokens "
            "lie. Call it with grid=(H, W)."
        )
    height, width = int(grid[0]), int(grid[1])
    if x.dim() != 3 or x.shape[1] != height * width:
        raise ValueError(
            f"{who} takes (B, H * W, C) tokens; for grid {(height, width)} that is (B, {height * width}, C), "
            f"got {tuple(x.shape)}. Flatten a (B, C, H, W) map with x.flatten(2).transpose(1, 2)."
        )
    return height, width


class TokenReducer(BaseModule):
    """Groups tokens. A model that owns its loop takes one as a constructor argument.

    Two ways to use it: a sandwich in a residual branch (``y, m = r.reduce(x, grid); x = x + r.restore(mix(y), m)``), or
    a shrink through a stage, the maps composed with :meth:`TokenMap.then` and restored before each output map.
    Nothing is kept on ``self`` between calls.
    """

    restorable: bool = True
    reduced_name: str = "reduced tokens"  # what a map groups into, for titles of pictures

    @abstractmethod
    def associate(self, metric: Tensor, grid: tuple[int, int]) -> TokenMap:
        """The map for tokens whose similarity ``metric`` (B, N, C) measures, on a grid (H, W), N = H * W."""

    def reduce(self, x: Tensor, grid: tuple[int, int]) -> tuple[Tensor, TokenMap]:
        """(B, N, C) -> the reduced tokens (B, M, C) and their map."""
        token_map = self.associate(x, grid)
        return token_map.reduce(x), token_map

    def restore(self, y: Tensor, token_map: TokenMap, base: Tensor | None = None) -> Tensor:
        """(B, M, C) -> (B, N, C)."""
        return token_map.restore(y, base)
