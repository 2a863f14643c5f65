"""Point clouds to pillars.

Source: Lang et al., "PointPillars", CVPR 2019 (arXiv 1812.05784), section 2.1. Ours: LayerNorm in the place of batch
norm, so that a sample does not depend on its batch and clouds of one point or none can be trained with, and numbers
of order one at its input (LayerNorm would leave nothing of an offset of centimetres beside a distance of metres); all
points of a pillar are used, however many.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from mmengine.model import BaseModule
from torch import Tensor, nn

from mmvit_plugins.registry import MODELS

__all__ = ["PillarFeatures"]


@MODELS.register_module()
class PillarFeatures(BaseModule):
    """One feature vector for each pillar that holds points: a linear layer on every point, and the largest values.

    A point is described by its coordinates, -1 to 1 over the range; what else is known of it, as it is; its offset from
    the mean of its pillar's points and, horizontally, from the middle of the pillar, in half pillars (in height, in
    metres): in_channels + 5 numbers.

    Args:
        point_cloud_range: (x0, y0, z0, x1, y1, z1) in metres; points outside are left out.
        grid: (nx, ny) pillars.
        in_channels: numbers of a point; the first three are x, y, z.
        out_channels: C.
        init_cfg: mmengine's initialisation config.

    Raises:
        ValueError: an argument is outside its legal values.
    """

    def __init__(
        self,
        point_cloud_range: Sequence[float],
        grid: tuple[int, int],
        in_channels: int = 3,
        out_channels: int = 64,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        super().__init__(init_cfg=init_cfg)
        limits = [float(v) for v in point_cloud_range]
        if len(limits) != 6 or any(low >= high for low, high in zip(limits[:3], limits[3:], strict=True)):
            raise ValueError(f"point_cloud_range must be (x0, y0, z0, x1, y1, z1), rising, got {point_cloud_range!r}")
        if len(grid) != 2 or any(type(n) is not int or n < 1 for n in grid):
            raise ValueError(f"grid must be (nx, ny), both at least 1, got {grid!r}")
        if in_channels < 3:
            raise ValueError(f"in_channels must be at least 3 (x, y, z), got {in_channels}")
        self.limits, self.grid, self.in_channels = limits, tuple(grid), in_channels
        self.side = [(limits[3 + i] - limits[i]) / grid[i] for i in range(2)]
        self.linear = nn.Linear(in_channels + 5, out_channels)
        self.norm = nn.LayerNorm(out_channels)

    def forward(self, points: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Pillars of a batch.

        Args:
            points: one (P, in_channels) tensor for each sample; P may be 0.

        Returns:
            Features (N, C) and coordinates (N, 4) long: sample, z (0), y, x; sorted.
        """
        sample = torch.cat([cloud.new_full((len(cloud),), i, dtype=torch.long) for i, cloud in enumerate(points)])
        cloud = torch.cat(list(points))
        low, high = cloud.new_tensor(self.limits[:3]), cloud.new_tensor(self.limits[3:])
        inside = ((cloud[:, :3] >= low) & (cloud[:, :3] < high)).all(dim=1)
        cloud, sample = cloud[inside], sample[inside]
        (nx, ny), side = self.grid, cloud.new_tensor(self.side)
        cell = ((cloud[:, :2] - low[:2]) / side).long()
        # Rounding may lift a point just below the upper limit into the cell behind the last.
        cell = torch.minimum(cell, cell.new_tensor([nx - 1, ny - 1]))
        keys, pillar = torch.unique((sample * ny + cell[:, 1]) * nx + cell[:, 0], return_inverse=True)
        described = self._describe(cloud, cell, pillar, len(keys), (low, high, side))
        values = torch.relu(self.norm(self.linear(described)))
        where = pillar.unsqueeze(1).expand_as(values)
        features = values.new_zeros(len(keys), values.shape[1]).scatter_reduce(0, where, values, "amax")
        coors = torch.stack([keys // (nx * ny), torch.zeros_like(keys), keys // nx % ny, keys % nx], dim=1)
        return features, coors

    def _describe(
        self, cloud: Tensor, cell: Tensor, pillar: Tensor, count: int, frame: tuple[Tensor, Tensor, Tensor]
    ) -> Tensor:
        """(P, in_channels) points with their cells (P, 2), pillars (P,) and the range -> (P, in_channels + 5)."""
        low, high, side = frame
        xyz = cloud[:, :3]
        members = xyz.new_zeros(count).index_add(0, pillar, torch.ones_like(xyz[:, 0]))
        mean = xyz.new_zeros(count, 3).index_add(0, pillar, xyz) / members.unsqueeze(1)
        from_mean = xyz - mean[pillar]
        from_middle = xyz[:, :2] - (low[:2] + (cell + 0.5) * side)
        return torch.cat(
            [
                2 * (xyz - low) / (high - low) - 1,
                cloud[:, 3:],
                2 * from_mean[:, :2] / side,
                from_mean[:, 2:],
                2 * from_middle / side,
            ],
            dim=1,
        )
