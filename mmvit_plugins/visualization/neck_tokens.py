"""A backbone with its necks as one module whose token maps are those of the necks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from mmvit_plugins.models.token_reduction import TokenMap

__all__ = ["NeckTokens", "list_necks"]


def list_necks(neck: nn.Module | None) -> list[nn.Module]:
    """The necks of a model in their order: none, one, or those of a sequence."""
    if neck is None:
        return []
    return list(neck) if isinstance(neck, (nn.Sequential, nn.ModuleList)) else [neck]


class NeckTokens(nn.Module):
    """What the necks behind a backbone group, for pictures: the same ``token_maps`` as a backbone has.

    Levels count on from neck to neck if several group tokens.

    Args:
        backbone: gives maps for images.
        necks: follow each other. One at least has ``token_maps``, as :class:`TokenReductionNeck` has.

    Raises:
        ValueError: none groups tokens.
    """

    part_name = "neck level"

    def __init__(self, backbone: nn.Module, necks: Iterable[nn.Module]) -> None:
        super().__init__()
        necks = list(necks)
        grouping = [i for i, neck in enumerate(necks) if hasattr(neck, "token_maps")]
        if not grouping:
            found = ", ".join(type(neck).__name__ for neck in necks) or "no neck at all"
            raise ValueError(f"no TokenReductionNeck among the necks, whose tokens could be drawn; there is {found}")
        self.backbone = backbone
        self.necks = nn.ModuleList(necks[: grouping[-1] + 1])
        self.out_strides = tuple(getattr(backbone, "out_strides", ())) if grouping[0] == 0 else ()
        self.out_indices = tuple(range(len(self.out_strides)))
        self.reduced_names = dict(enumerate(name for neck in self.necks for name in _level_names(neck)))

    @torch.no_grad()
    def token_maps(self, x: Tensor) -> list[tuple[int, TokenMap, tuple[int, int], tuple[int, int]]]:
        """Who belongs to whom on each level that is reduced.

        Args:
            x: (B, 3, H, W) images.

        Returns:
            For each such level: its number, the map, the grid of places and the grid of reduced tokens.
        """
        features, maps, before = self.backbone(x), [], 0
        for neck in self.necks:
            if hasattr(neck, "token_maps"):
                maps += [(before + level, *entry) for level, *entry in neck.token_maps(features)]
                before += len(neck.in_channels)
            if neck is not self.necks[-1]:
                features = neck(features)
        return maps


def _level_names(neck: nn.Module) -> list[str]:
    """What each level of a neck is grouped into; no entry for a neck that groups nothing."""
    if not hasattr(neck, "token_maps"):
        return []
    names = dict(zip(neck.levels, (reducer.reduced_name for reducer in neck.reducers), strict=True))
    return [names.get(level, "") for level in range(len(neck.in_channels))]
