"""Token merging (ToMe): which tokens are alike enough to become one.

Paper: Bolya, Fu, Dai, Zhang, Feichtenhofer, Hoffman, "Token Merging: Your ViT But Faster", ICLR 2023 (arXiv
2210.09461), section 3. Tokens are split into sources A and destinations B, every source finds its most similar
destination, and the most similar pairs merge. All functions are pure; a matching carries no gradient.

Where the published code loses something, this does not: the order with a distillation token is undone by
:meth:`TokenMap.restore`, as is every other, and tokens behind the last whole group of k find a destination too.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mmvit_plugins.registry import MODELS

from .base import TokenReducer, check_tokens
from .merge_map import MergeMap
from .token_map import TokenMap

__all__ = [
    "TokenMerging",
    "bipartite_soft_matching",
    "grid_soft_matching",
    "kth_bipartite_soft_matching",
    "threshold_matching",
]


class Partition(NamedTuple):
    """Sources and destinations, and which of them lead the output.

    Args:
        a: (Na,) positions of the sources.
        b: (Nb,) positions of the destinations.
        lead: how many of the first tokens [a0, b0, a1, b1, ...] come first in the output.
        protected: (Na + Nb,) whether the token at a position never merges.
        in_order: unmerged sources keep their order; otherwise they come with falling similarity, as published.
    """

    a: Tensor
    b: Tensor
    lead: int
    protected: Tensor
    in_order: bool

    def order(self) -> Tensor:
        """(N,) positions in the order of an output in which nothing merges."""
        lead_a, lead_b = (self.lead + 1) // 2, self.lead // 2
        lead = torch.cat([self.a[:lead_a], self.b[:lead_b]]).sort()[0]
        return torch.cat([lead, self.a[lead_a:], self.b[lead_b:]])


def _alternate(
    count: int, class_token: bool, distill_token: bool, num_registers: int, device: torch.device
) -> Partition:
    """Even positions are sources, odd ones destinations; class, distillation and register tokens are protected."""
    position = torch.arange(count, device=device)
    first_register = int(class_token) + int(distill_token)
    protected = (position >= first_register) & (position < first_register + num_registers)
    if class_token:
        protected = protected | (position == 0)
    if distill_token:
        protected = protected | (position == 1)
    lead = max(first_register + num_registers, 2 if distill_token else 0)
    return Partition(position[::2], position[1::2], min(lead, count), protected, class_token or num_registers > 0)


def _best_destinations(metric: Tensor, parts: Partition, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """For each source its highest cosine similarity to a destination and that one's place in B, both (B, Na)."""
    with torch.autocast(metric.device.type, enabled=False):
        unit = F.normalize(metric.to(torch.promote_types(metric.dtype, torch.float32)), dim=-1)
        scores = torch.matmul(unit.index_select(1, parts.a), unit.index_select(1, parts.b).transpose(1, 2))
    protected = parts.protected if valid is None else parts.protected | ~valid
    rows, columns = protected.index_select(-1, parts.a), protected.index_select(-1, parts.b)
    scores = scores.masked_fill(rows.unsqueeze(-1) | columns.unsqueeze(-2), -torch.inf)
    return scores.max(dim=-1)


def _sorted(x: Tensor, descending: bool) -> tuple[Tensor, Tensor]:
    """Values and places of (B, N) along N, the first of equal ones first; ONNX has no stable sort, but TopK is one."""
    if torch.jit.is_tracing():
        return x.topk(x.shape[1], dim=1, largest=descending)
    return x.sort(dim=1, descending=descending, stable=True)


def _merge_exactly(metric: Tensor, parts: Partition, r: int) -> MergeMap:
    """The r most similar pairs of every sample merge."""
    best, target = _best_destinations(metric, parts, None)
    batch, count_a = best.shape
    ranking = _sorted(best, descending=True)[1]
    merged, unmerged = ranking[:, :r], ranking[:, r:]
    if parts.in_order:
        unmerged = _sorted(unmerged, descending=False)[0]
    lead_a, lead_b = (parts.lead + 1) // 2, parts.lead // 2
    first, second = parts.a[unmerged], parts.b.expand(batch, -1)
    lead = [first[:, :lead_a], second[:, :lead_b]]
    if lead_b:  # class and distillation token: interleaved as they came
        lead = [token for i in range(lead_a) for token in (first[:, i : i + 1], second[:, i : min(i + 1, lead_b)])]
    kept = torch.cat([*lead, first[:, lead_a:], second[:, lead_b:]], dim=1)
    # Destination j >= lead_b stands behind all unmerged sources and j other destinations; leading ones never get any.
    slots = target.gather(1, merged) + (count_a - r)
    return MergeMap(kept, parts.a[merged], slots, metric.shape[1], metric)


def _merge_up_to(
    metric: Tensor, parts: Partition, limit: Tensor, threshold: float, valid: Tensor, num: int | None
) -> TokenMap:
    """At most ``limit`` (B,) pairs of each sample merge, those above ``threshold``; tokens that are not ``valid``
    leave. All samples get ``num`` tokens (None: what the fullest sample needs); those at the end may be empty."""
    weight = valid.to(torch.promote_types(metric.dtype, torch.float32)).unsqueeze(-1)
    if parts.b.shape[0] == 0:  # a single token
        return TokenMap(torch.zeros_like(weight, dtype=torch.long), weight, 1 if num is None else num)
    best, target = _best_destinations(metric, parts, valid)
    rank = _sorted(_sorted(best, descending=True)[1], descending=False)[1]
    goes = (rank < limit.unsqueeze(1)) & (best > threshold)
    goes_everywhere = torch.zeros_like(valid).index_copy(1, parts.a, goes)
    order = parts.order()
    stays = (valid & ~goes_everywhere).index_select(1, order)
    num = max(1, int(stays.sum(dim=1).max())) if num is None else num
    slot = (stays.long().cumsum(dim=1) - 1).clamp(0, num - 1).index_select(1, order.argsort())
    destination = slot.gather(1, parts.b[target])
    index = torch.where(goes_everywhere, torch.zeros_like(slot).index_copy(1, parts.a, destination), slot)
    return TokenMap(index.unsqueeze(-1), weight, num)


def _all_valid(metric: Tensor, valid: Tensor | None) -> Tensor:
    return torch.ones(metric.shape[:2], dtype=torch.bool, device=metric.device) if valid is None else valid


@torch.no_grad()
def bipartite_soft_matching(
    metric: Tensor,
    r: int,
    class_token: bool = False,
    distill_token: bool = False,
    num_registers: int = 0,
    valid: Tensor | None = None,
) -> TokenMap:
    """Merge the r most similar pairs of an even and an odd token (section 3, "bipartite soft matching").

    Output order: unmerged sources, then destinations. Without class token and registers the sources come with falling
    similarity, else in their order; with a distillation token or registers these lead: cls, dist, registers, rest of A,
    rest of B.

    Args:
        metric: (B, N, C) features whose cosine similarity counts (attention keys, mean over heads).
        r: pairs to merge; at most half of the tokens that are not protected can.
        class_token: position 0 is a class token, which never merges.
        distill_token: position 1 is a distillation token, which never merges.
        num_registers: so many tokens behind those never merge either.
        valid: (B, N) bool, False for padding. Padding counts as merged first, so that all samples still end with N - r
            tokens, some of them empty (mass 0) if a sample has fewer valid ones.

    Returns:
        The map to N - r tokens.

    Raises:
        ValueError: r < 0.
    """
    if r < 0:
        raise ValueError(f"r must be at least 0, got {r}")
    count = metric.shape[1]
    num_protected = int(class_token) + int(distill_token) + num_registers
    r = min(int(r), max(0, (count - num_protected) // 2))
    if r == 0 and valid is None:
        return TokenMap.identity(metric.shape[0], count, metric)
    parts = _alternate(count, class_token, distill_token, num_registers, metric.device)
    if valid is None:
        return _merge_exactly(metric, parts, r)
    limit = (r - (~valid).sum(dim=1)).clamp_min(0)
    return _merge_up_to(metric, parts, limit, -torch.inf, valid, count - r)


@torch.no_grad()
def threshold_matching(
    metric: Tensor,
    threshold: float,
    r: int | None = None,
    class_token: bool = False,
    distill_token: bool = False,
    num_registers: int = 0,
    valid: Tensor | None = None,
) -> TokenMap:
    """Merge all pairs whose cosine similarity exceeds ``threshold``, so that simple images shrink more.

    Ours (asked for in tomesd#40): pairs are found as in :func:`bipartite_soft_matching`. The samples of a batch get as
    many reduced tokens as the one that merges least; the others' last tokens are empty (mass 0).

    Args:
        metric: (B, N, C).
        threshold: from -1 to 1; at 1 nothing merges.
        r: at most so many pairs; None: as many as there are, half of the unprotected tokens.
        class_token: as there, like the following.
        distill_token: position 1 never merges.
        num_registers: so many tokens behind those never merge.
        valid: (B, N) bool, False for empty tokens, which leave.

    Raises:
        ValueError: ``threshold`` is not from -1 to 1, or r < 0.
    """
    if not -1 <= threshold <= 1:
        raise ValueError(f"threshold is a cosine similarity from -1 to 1, got {threshold}")
    if r is not None and r < 0:
        raise ValueError(f"r must be at least 0, or None for no limit, got {r}")
    count = metric.shape[1]
    valid = _all_valid(metric, valid)
    parts = _alternate(count, class_token, distill_token, num_registers, metric.device)
    num_protected = int(class_token) + int(distill_token) + num_registers
    limit = ((valid.sum(dim=1) - num_protected) // 2).clamp(0, count if r is None else r)
    if threshold == 1:  # rounding can put the similarity of equal tokens above 1
        limit = torch.zeros_like(limit)
    return _merge_up_to(metric, parts, limit, threshold, valid, None)


@torch.no_grad()
def kth_bipartite_soft_matching(metric: Tensor, k: int, remainder: str = "merge") -> TokenMap:
    """Merge all tokens into every k-th one (appendix of the paper): (B, N, C) -> a map to max(1, N // k) tokens.

    Args:
        metric: (B, N, C).
        k: the last token of each k is a destination, the others are sources.
        remainder: what happens with the N mod k tokens behind the last whole group: ``'merge'``: they are sources;
            ``'drop'``: they are lost (weight 0), as in the published code.

    Raises:
        ValueError: k < 2, or another ``remainder``.
    """
    if k < 2:
        raise ValueError(f"k must be at least 2 (every token its own destination would merge nothing), got {k}")
    if remainder not in ("merge", "drop"):
        raise ValueError(f"remainder must be 'merge' or 'drop', got {remainder!r}")
    count = metric.shape[1]
    position = torch.arange(count, device=metric.device)
    whole = max(count - count % k, 0)
    is_b = (position % k == k - 1) if whole else position == count - 1  # fewer than k tokens: all into the last
    is_a = ~is_b & (position < whole) if remainder == "drop" and whole else ~is_b
    parts = Partition(position[is_a], position[is_b], 0, torch.zeros_like(is_a), False)
    return _merge_exactly(metric, parts, parts.a.shape[0])


@torch.no_grad()
def grid_soft_matching(metric: Tensor, grid: tuple[int, int], r: int, stride: tuple[int, int] = (2, 2)) -> TokenMap:
    """Merge r tokens into the upper left token of any cell of a grid: more than half can merge at once.

    Every destination is a fixed place, no random one as in the authors' ToMe for diffusion, so results repeat and no
    random number is drawn. Cells that the border cuts have a destination too, so every grid works.

    Args:
        metric: (B, H * W, C).
        grid: (H, W) of the tokens.
        r: tokens to merge away; at most those that are no destination.
        stride: (h, w) of a cell.

    Raises:
        ValueError: ``grid`` does not fit, r < 0, or a stride below 1.
    """
    height, width = check_tokens(metric, grid, "grid_soft_matching")
    if r < 0 or min(stride) < 1:
        raise ValueError(f"r must be at least 0 and both strides at least 1, got r={r}, stride={stride}")
    position = torch.arange(height * width, device=metric.device)
    is_b = (position // width % stride[0] == 0) & (position % width % stride[1] == 0)
    parts = Partition(position[~is_b], position[is_b], 0, torch.zeros_like(is_b), True)
    r = min(r, parts.a.shape[0])
    return _merge_exactly(metric, parts, r) if r else TokenMap.identity(metric.shape[0], height * width, metric)


@MODELS.register_module()
class TokenMerging(TokenReducer):
    """ToMe as a reducer for necks and other models: merges tokens of a grid, no class token among them.

    Args:
        r: tokens to merge away: a whole number, or a share of all tokens as a float below 1. ``'bipartite'`` can merge
            half of them in one step, ``'grid'`` all but the destinations.
        mode: ``'bipartite'``, ``'kth'`` (``r`` is not used), ``'grid'`` or ``'threshold'`` (``r`` is the limit).
        k: group size of ``'kth'``.
        stride: (h, w) of a cell of ``'grid'``.
        threshold: smallest similarity that merges, for ``'threshold'``.

    Raises:
        ValueError: an argument is outside its legal values.
    """

    reduced_name, MODES = "merged tokens", ("bipartite", "kth", "grid", "threshold")

    def __init__(
        self,
        r: int | float = 0.5,
        mode: str = "bipartite",
        k: int = 2,
        stride: tuple[int, int] = (2, 2),
        threshold: float = 0.9,
    ) -> None:
        super().__init__()
        if mode not in self.MODES:
            raise ValueError(f"mode must be one of {self.MODES}, got {mode!r}")
        if isinstance(r, bool) or r < 0 or (isinstance(r, float) and r >= 1):
            raise ValueError(f"r must be a whole number of tokens or a share of them in [0, 1), got {r!r}")
        if k < 2 or min(stride) < 1 or not -1 <= threshold <= 1:
            raise ValueError(f"k >= 2, strides >= 1, threshold from -1 to 1 expected, got {k}, {stride}, {threshold}")
        self.r, self.mode, self.k, self.stride, self.threshold = r, mode, k, tuple(stride), threshold

    def associate(self, metric: Tensor, grid: tuple[int, int]) -> TokenMap:
        """(B, H * W, C) on grid (H, W) -> the map to the merged tokens."""
        height, width = check_tokens(metric, grid, type(self).__name__)
        r = int(self.r * height * width) if isinstance(self.r, float) else self.r
        if self.mode == "kth":
            return kth_bipartite_soft_matching(metric, self.k)
        if self.mode == "grid":
            return grid_soft_matching(metric, (height, width), r, self.stride)
        if self.mode == "threshold":
            return threshold_matching(metric, self.threshold, r)
        return bipartite_soft_matching(metric, r)
