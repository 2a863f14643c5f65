"""A transformer block with token merging between attention and feed-forward network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..token_reduction import TokenMap, bipartite_soft_matching, merge_weighted, threshold_matching

__all__ = ["MergedTokens", "Merging", "run_block"]


@dataclass(frozen=True)
class Merging:
    """What merges in one block.

    Args:
        r: pairs to merge; None: no limit.
        threshold: smallest similarity that merges; None: exactly ``r`` pairs merge.
        prop_attn: add the logarithm of the tokens' sizes to the logits.
        prefix: class, distillation and register tokens, as arguments of the matching.
    """

    r: int | None
    threshold: float | None
    prop_attn: bool
    prefix: Mapping[str, Any]

    @property
    def active(self) -> bool:
        return self.threshold is not None or bool(self.r)

    def match(self, keys: Tensor, size: Tensor | None) -> TokenMap:
        """(B, N, d) keys, (B, N) sizes if some are 0 -> who merges with whom."""
        valid = None if size is None else size > 0
        if self.threshold is not None:
            return threshold_matching(keys, self.threshold, self.r, valid=valid, **self.prefix)
        return bipartite_soft_matching(keys, self.r or 0, valid=valid, **self.prefix)

    def bias(self, size: Tensor | None, gaps: bool, joined: int) -> Tensor | None:
        """(B, 1, 1, N) to add to the logits: log size, or with ``prop_attn`` off only -inf for empty tokens."""
        if size is None or not (self.prop_attn or gaps):
            return None
        bias = size if self.prop_attn else (size > 0).to(size.dtype)
        return bias.reshape(-1, 1, 1, joined * size.shape[1]).log()


def run_block(
    parts: type,
    layer: nn.Module,
    merging: Merging,
    joined: int,
    gaps: bool,
    trace: bool,
    wanted: int | None,
    x: Tensor,
    size: Tensor | None,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Attention, merge, feed-forward network (section 3 of the paper).

    The paper merges what attention was added to. Projection, layer scale and drop path act alike on all tokens of a
    sample and the weights of a merge sum to 1, so merging before them gives the same and spares the projection of what
    merges away. Only dropout behind the projection (0 in every recipe) acts on merged tokens then.

    Args:
        parts: how to run the halves of ``layer``.
        layer: the block.
        merging: what merges.
        joined: so many windows attend together.
        gaps: some sizes may be 0 (empty tokens).
        trace: return the map as well.
        wanted: only so many first tokens are needed behind this block, None: all; nothing merges then.
        x: (B, N, C) tokens; in windows B is images * windows.
        size: (B, N) how many tokens each stands for; None: 1 each.

    Returns:
        Tokens (B, M, C), sizes (B, M) or None, and index and weight (B, N, 1) of the map or None.
    """
    if not merging.active and size is None and joined == 1:
        return layer(x), None, None, None
    shape = x.shape
    out, keys = parts.attend(layer, x.reshape(-1, joined * shape[1], shape[2]), merging.bias(size, gaps, joined))
    out, keys = out.view(*shape[:2], -1), keys.reshape(*shape[:2], -1)
    index = weight = None
    if wanted is not None:
        x, out = x[:, :wanted], out[:, :wanted]
    elif merging.active:
        token_map = merging.match(keys, size if gaps else None)
        x, size, out = merge_weighted(x, token_map, size, out)
        if trace:
            index, weight = token_map.index, token_map.weight
    return parts.feed(layer, x + parts.project(layer, out)), size, index, weight


@dataclass(frozen=True)
class MergedTokens:
    """The tokens behind a block.

    Args:
        x: (B * windows, M, C).
        size: (B * windows, M), how many tokens each stands for; None: 1 each.
        token_map: of the embedded tokens (of each window), None where nothing was traced or merged.
        grid: (h, w) of the patches.
    """

    x: Tensor
    size: Tensor | None
    token_map: TokenMap | None
    grid: tuple[int, int]
