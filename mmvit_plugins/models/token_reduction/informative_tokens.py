"""Keep the tokens with the largest activation; the others wait unchanged.

Source of the score: Chen et al., "SparseViT", CVPR 2023 (arXiv 2303.17605), section 3.1: the mean over channels of |x|,
there summed up over windows, here taken token by token, as tokens need not form windows for FlatFormer's groups.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmvit_plugins.registry import MODELS

from .base import TokenReducer
from .selection_map import SelectionMap

__all__ = ["InformativeTokens", "activation_score", "check_keep_ratio"]


def check_keep_ratio(keep_ratio: float, who: str) -> float:
    """``keep_ratio`` as a float.

    Raises:
        ValueError: it is not in (0, 1].
    """
    if isinstance(keep_ratio, bool) or not isinstance(keep_ratio, (int, float)) or not 0 < keep_ratio <= 1:
        raise ValueError(
            f"keep_ratio of {who} must be above 0 and at most 1 (which keeps every token), got {keep_ratio!r}"
        )
    return float(keep_ratio)


def activation_score(x: Tensor) -> Tensor:
    """(B, N, C) -> (B, N): mean over channels of |x|, in at least float32, without gradient."""
    return x.detach().abs().mean(dim=2, dtype=torch.promote_types(x.dtype, torch.float32))


@MODELS.register_module()
class InformativeTokens(TokenReducer):
    """The share ``keep_ratio`` of the tokens with the largest activation, in raster order.

    At least one token is kept. Of equal scores the first in raster order wins. The choice carries no gradient and no
    token is scaled by its score.

    Args:
        keep_ratio: share of the tokens to keep, in (0, 1].

    Raises:
        ValueError: ``keep_ratio`` is outside its legal values.
    """

    reduced_name = "kept tokens"

    def __init__(self, keep_ratio: float = 0.5) -> None:
        super().__init__()
        self.keep_ratio = check_keep_ratio(keep_ratio, type(self).__name__)

    def num_kept(self, count: int) -> int:
        """How many of ``count`` tokens are kept."""
        return max(1, int(count * self.keep_ratio))

    def associate(self, metric: Tensor, grid: tuple[int, int] | None = None) -> SelectionMap:
        """(B, N, C) tokens -> their map to the kept ones. The grid does not matter."""
        batch, count = (int(n) for n in metric.shape[:2])
        num = self.num_kept(count)
        score = activation_score(metric)
        if torch.jit.is_tracing():  # ONNX has no stable sort; of equal scores its TopK takes the first as well
            best = score.topk(num, dim=1).indices
        else:
            best = score.argsort(dim=1, descending=True, stable=True)[:, :num]
        source = best.sort(dim=1).values
        ranks = torch.arange(num, device=source.device).expand(batch, -1)
        index = torch.zeros(batch, count, dtype=torch.long, device=source.device).scatter(1, source, ranks)
        weight = torch.zeros(batch, count, dtype=score.dtype, device=source.device)
        weight = weight.scatter(1, source, torch.ones(batch, num, dtype=score.dtype, device=source.device))
        return SelectionMap(index.unsqueeze(2), weight.unsqueeze(2), num, source, num == count)
