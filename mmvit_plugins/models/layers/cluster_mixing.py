"""What Context Cluster puts in the place of attention: points cluster, centres aggregate, and dispatch their answers.

Paper: Ma et al., "Image as Set of Points", ICLR 2023 (arXiv 2303.01494), section 3.2. Same result in another order: a
cluster sums its points before the value projection and a centre's answer is projected before it is dispatched (both are
linear), so values exist for centres only and no tensor has points x centres x channels entries.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from torch import Tensor, nn

from ..token_reduction import ContextClusters, Regions
from ..token_reduction.clusters import keep_most_similar

__all__ = ["ClusterMixing"]


class ClusterMixing(BaseModule):
    """Cluster, aggregate, dispatch (section 3.2, equations 1 and 2 and figure 3), for several heads.

    For a head with similarity features f and values v of d channels each, all of it within one region: centres
    c_k = pool(f), v_ck = pool(v); s_ki = sigmoid(beta + alpha cos(c_k, f_i)), kept for the most similar centre of each
    point; g_k = (v_ck + sum_i s_ki v_i) / (1 + sum_i s_ki); point i gets s_ki g_k; the heads go through a linear layer.

    Args:
        dim: channels C.
        num_heads: heads e.
        head_dim: channels d of a head.
        regions: regions per side.
        centres: centres per side in each region.
    """

    def __init__(
        self, dim: int, num_heads: int, head_dim: int, regions: int | tuple[int, int], centres: int | tuple[int, int]
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.clusters = ContextClusters(regions, centres)
        self.f = nn.Linear(dim, num_heads * head_dim)
        self.v = nn.Linear(dim, num_heads * head_dim)
        self.proj = nn.Linear(num_heads * head_dim, dim)

    def similarity(self, x: Tensor, centres: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Kept similarity and centre of every point and head.

        The cosine needs the points' features for their norms only: f_i . c_k = x_i . (W' c_k) + b . c_k.

        Args:
            x: (B, R, P, C) normalised points.
            centres: (B, R, M, C) pooled points.
            features: (B, R, P, e * d) similarity features of the points.

        Returns:
            (B, R, P, e, 1) and (B, R, P, e, 1) long.
        """
        heads = (self.num_heads, -1)
        with torch.autocast(x.device.type, enabled=False):
            weight, bias = (p.to(centres.dtype) for p in (self.f.weight, self.f.bias))
            centre = F.normalize(F.linear(centres, weight, bias).unflatten(-1, heads), dim=-1)  # (B, R, M, e, d)
            back = torch.einsum("brmed,edc->brcem", centre, weight.unflatten(0, heads)).flatten(3)
            offset = torch.einsum("brmed,ed->brem", centre, bias.unflatten(0, heads)).flatten(2)
            dots = torch.matmul(x, back).add(offset.unsqueeze(2)).unflatten(-1, heads)  # (B, R, P, e, M)
            norms = features.to(centres.dtype).unflatten(-1, heads).norm(dim=-1, keepdim=True)
            cosine = dots / norms.clamp_min(1e-12)
            return keep_most_similar(cosine, self.clusters.alpha, self.clusters.beta)

    def forward(self, x: Tensor, regions: Regions) -> tuple[Tensor, Tensor]:
        """What every point gets, as a product of two factors.

        Args:
            x: (B, R, P, C) normalised points.
            regions: how they lie.

        Returns:
            (B, R, P, e * M) similarities, one of M not zero, and (B, R, e * M, C) answers of the centres behind the
            output projection, without its bias.
        """
        features = self.f(x)
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(regions.pool.dtype)
            centres = torch.matmul(regions.pool, x)
        similarity, centre = self.similarity(x, centres, features)
        with torch.autocast(x.device.type, enabled=False):
            count = regions.pool.shape[1]
            if regions.used is not None:
                similarity = similarity * regions.used.unsqueeze(-1)
            kept = similarity.new_zeros(*similarity.shape[:-1], count).scatter(-1, centre, similarity).flatten(3)
            total = torch.matmul(kept.transpose(2, 3), x).unflatten(2, (self.num_heads, count))
            mass = kept.sum(dim=2).view(*total.shape[:-1], 1)
            mean = (total + centres.unsqueeze(2)) / (mass + 1)  # (B, R, e, M, C)
            to_value, bias, out = (p.to(mean.dtype) for p in (self.v.weight, self.v.bias, self.proj.weight))
            value = torch.matmul(mean, to_value.unflatten(0, (self.num_heads, -1)).transpose(1, 2))
            value = value + bias.view(self.num_heads, 1, -1)
            answer = torch.matmul(value, out.unflatten(1, (self.num_heads, -1)).permute(1, 2, 0))
        return kept, answer.flatten(2, 3)
