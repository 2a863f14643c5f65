"""Context clusters: every point joins the most similar of a few centres of its region.

Source: Ma et al., "Image as Set of Points" (Context Cluster), ICLR 2023 (arXiv 2303.01494), section 3.2.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmvit_plugins.registry import MODELS

from .base import TokenReducer, check_tokens
from .regions import Regions, check_sides
from .token_map import TokenMap

__all__ = ["ContextClusters", "keep_most_similar"]


def keep_most_similar(cosine: Tensor, alpha: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """s = sigmoid(beta + alpha * cos), each point's largest one and its centre.

    The choice is after the sigmoid, the first of equal centres; the similarity that is kept carries the gradient.

    Args:
        cosine: (..., M) cosine of a point and each of M centres.
        alpha: scale, one number.
        beta: offset, one number.

    Returns:
        (..., 1) similarity and (..., 1) long centre.
    """
    return torch.sigmoid(beta.to(cosine.dtype) + alpha.to(cosine.dtype) * cosine).max(dim=-1, keepdim=True)


@MODELS.register_module()
class ContextClusters(TokenReducer):
    """Clusters of similar tokens within regions; the reduced tokens are means weighted by similarity.

    The grid is cut into regions, each with centres that start as adaptive average pools. A token joins the centre of
    its region with the largest s = sigmoid(beta + alpha * cos); the reduced token is
    ``g = (v_c + sum s v) / (1 + sum s)`` with the pooled value v_c as one more member; restore gives ``s g``.
    Centres without any token keep their pooled value. alpha (from 1) and beta (from 0) are learned.

    Args:
        regions: regions down and across, one number or two. Fewer where the grid has fewer rows or columns.
        centres: centres down and across in each region, one number or two.
        init_cfg: mmengine's initialisation config.

    Raises:
        ValueError: an argument is outside its legal values.
    """

    reduced_name = "clusters"

    def __init__(
        self,
        regions: int | tuple[int, int] = 4,
        centres: int | tuple[int, int] = 2,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        super().__init__(init_cfg)
        self.regions = check_sides(regions, "regions")
        self.centres = check_sides(centres, "centres")
        self.alpha = nn.Parameter(torch.ones(1))
        self.beta = nn.Parameter(torch.zeros(1))

    def cut(self, grid: tuple[int, int], like: Tensor) -> Regions:
        """The regions of a grid (H, W)."""
        return Regions.of(grid, self.regions, self.centres, like)

    def associate(self, metric: Tensor, grid: tuple[int, int]) -> TokenMap:
        """(B, H * W, C) on grid (H, W) -> the map to R * M clusters, K = 1, region by region."""
        grid = check_tokens(metric, grid, type(self).__name__)
        return self._associate(metric, self.cut(grid, metric))

    def _associate(self, metric: Tensor, regions: Regions) -> TokenMap:
        with torch.autocast(metric.device.type, enabled=False):
            points = regions.split(metric.to(regions.pool.dtype))  # (B, R, P, C)
            centres = F.normalize(torch.matmul(regions.pool, points), dim=-1)
            cosine = torch.matmul(F.normalize(points, dim=-1), centres.transpose(2, 3))
            similarity, centre = keep_most_similar(cosine, self.alpha, self.beta)
            count = regions.pool.shape[1]
            first = torch.arange(regions.num, device=metric.device).view(1, -1, 1, 1) * count
            return TokenMap(regions.join(centre + first), regions.join(similarity), regions.num * count)

    def reduce(self, x: Tensor, grid: tuple[int, int]) -> tuple[Tensor, TokenMap]:
        """(B, H * W, C) on grid (H, W) -> cluster means (B, R * M, C), the pooled centres counted in, and their map."""
        grid = check_tokens(x, grid, type(self).__name__)
        regions = self.cut(grid, x)
        token_map = self._associate(x, regions)
        with torch.autocast(x.device.type, enabled=False):
            prior = torch.matmul(regions.pool, regions.split(x.to(regions.pool.dtype))).flatten(1, 2)
        return token_map.reduce(x, prior), token_map
