"""FlatFormer's encoder of sparse pillars, in the place of MMDetection3D's middle encoders.

Paper: Liu, Yang, Tang, Yang, Han, "FlatFormer: Flattened Window Attention for Efficient Point Cloud Transformer", CVPR
2023 (arXiv 2301.08739), repository mit-han-lab/flatformer. Written from the equations and checked against outputs of
the authors' code (tests/goldens). Differs from that code: torch's fused attention on every device and in every dtype
in place of FlashAttention; samples never mix on small grids; samples smaller than a group and empty ones are legal; the
features passed in are not overwritten.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from mmengine.model import BaseModule, ModuleList
from torch import Tensor

from mmvit_plugins.registry import MODELS

from ..layers.checkpointing import checkpoint_module
from ..layers.group_attention import GroupTransformerLayer, sine_positions
from ..token_reduction.equal_groups import ORDERS, EqualGroups
from ..token_reduction.selection_map import SelectionMap

__all__ = ["FlatFormerEncoder"]


@MODELS.register_module()
class FlatFormerEncoder(BaseModule):
    """FlatFormer's middle encoder: pillar features and their coordinates -> map seen from above.

    Blocks of four transformer layers, in groups sorted along x, along x in shifted windows, along y, along y in shifted
    windows; each with its own weights and its LayerNorm after the skip. Names, order and meaning of the arguments are
    the authors'; the call is that of MMDetection3D's middle encoders, which is not needed.

    Args:
        in_channels: channels C of the features, and of the map.
        num_heads: heads.
        num_blocks: blocks of four layers. Published: 2.
        activation: of the feed-forward networks, ``'gelu'`` or ``'relu'``.
        window_shape: (wx, wy, 1) in pillars. Published on Waymo: (13, 13, 1).
        sparse_shape: (nx, ny, 1), size of the grid. Published on Waymo: (468, 468, 1).
        output_shape: (ny, nx) of the map; None: that of the grid.
        pos_temperature: of the sinusoids that are added to queries and keys.
        normalize_pos: scale coordinates to [0, 2 pi) over the grid before the sinusoids. Off in every published
            config, and no output of the authors' code covers it.
        group_size: pillars in a group. Published on Waymo: 144.
        with_cp: recompute activations in the backward pass (non-reentrant).
        init_cfg: mmengine's initialisation config; default: Xavier-uniform for linear layers.

    Raises:
        ValueError: an argument is outside its legal values.

    Examples:
        >>> import torch
        >>> from mmvit_plugins.registry import MODELS
        >>> encoder = MODELS.build(dict(type='mmvit_plugins.FlatFormerEncoder', in_channels=32, num_heads=4,
        ...                             sparse_shape=(40, 30, 1), output_shape=(30, 40)))
        >>> coors = torch.tensor([[0, 0, 7, 35], [0, 0, 8, 35], [1, 0, 29, 39]])  # batch, z, y, x
        >>> encoder(torch.rand(3, 32), coors, batch_size=2).shape
        torch.Size([2, 32, 30, 40])
    """

    def __init__(
        self,
        in_channels: int = 128,
        num_heads: int = 8,
        num_blocks: int = 2,
        activation: str = "gelu",
        window_shape: Sequence[int] = (9, 9, 1),
        sparse_shape: Sequence[int] = (468, 468, 1),
        output_shape: Sequence[int] | None = None,
        pos_temperature: float = 10000.0,
        normalize_pos: bool = False,
        group_size: int = 69,
        with_cp: bool = False,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        if init_cfg is None:
            init_cfg = dict(type="Xavier", layer="Linear", distribution="uniform", bias=0.0)
        super().__init__(init_cfg=init_cfg)
        self.window = _pillar_shape(window_shape, "window_shape", "(wx, wy, 1)")
        self.extent = _pillar_shape(sparse_shape, "sparse_shape", "(nx, ny, 1)")
        output = self.extent[::-1] if output_shape is None else tuple(output_shape)
        if output != self.extent[::-1]:
            raise ValueError(
                f"output_shape must be (ny, nx) of sparse_shape, {self.extent[::-1]} for {tuple(sparse_shape)}, "
                f"got {output_shape!r}"
            )
        if type(num_blocks) is not int or num_blocks < 1:
            raise ValueError(f"num_blocks must be a whole number of at least 1, got {num_blocks!r}")
        self.in_channels, self.pos_temperature, self.normalize_pos = in_channels, pos_temperature, normalize_pos
        self.with_cp = with_cp
        self.groupings = ModuleList(EqualGroups(group_size, self.window, axis, shift) for axis, shift in ORDERS)
        self.layers = ModuleList(
            GroupTransformerLayer(in_channels, num_heads, group_size, 2.0, activation)
            for _ in range(num_blocks * len(ORDERS))
        )

    def forward(self, voxel_features: Tensor, coors: Tensor, batch_size: int | None = None) -> Tensor:
        """Encode the pillars of a batch.

        Args:
            voxel_features: (N, C), one row for each pillar that holds points; not changed.
            coors: (N, 4) integers: sample, z, y, x; rows in any order, each place once.
            batch_size: B; None: the largest sample number + 1.

        Returns:
            (B, C, ny, nx), zero where there is no pillar.

        Raises:
            ValueError: shapes do not fit, or coordinates outside the grid or the batch.
        """
        counts = self._check(voxel_features, coors, batch_size)
        sample, y, x = coors[:, 0].long(), coors[:, 2].long(), coors[:, 3].long()
        tokens = self.encode(voxel_features, x, y, sample, counts)
        (nx, ny), dim = self.extent, tokens.shape[1]
        place = (sample * ny + y) * nx + x
        canvas = tokens.new_zeros(len(counts) * ny * nx, dim).index_copy(0, place, tokens)
        return canvas.view(len(counts), ny, nx, dim).permute(0, 3, 1, 2)

    def encode(self, features: Tensor, x: Tensor, y: Tensor, sample: Tensor, counts: Sequence[int]) -> Tensor:
        """The transformer alone.

        Args:
            features: (N, C).
            x: (N,) coordinates in the grid.
            y: (N,) likewise.
            sample: (N,) sample of each row.
            counts: rows of each sample.

        Returns:
            (N, C) in the order of ``features``.
        """
        pos = self.positions(x, y).to(features.dtype).unsqueeze(0)
        orders: list[tuple[SelectionMap, Tensor]] = []
        for grouping in self.groupings:
            groups = grouping.associate_sparse(x, y, sample, self.extent, counts)
            orders.append((groups, groups.reduce(pos)))
        tokens = features.unsqueeze(0)
        for i, layer in enumerate(self.layers):
            groups, in_order = orders[i % len(orders)]
            if self.with_cp:
                tokens = checkpoint_module(layer, tokens, in_order, groups)
            else:
                tokens = layer(tokens, in_order, groups)
        return tokens[0]

    def positions(self, x: Tensor, y: Tensor) -> Tensor:
        """(N,) and (N,) coordinates -> their sinusoids (N, C), float32."""
        if self.normalize_pos:
            x, y = (2 * math.pi * v.float() / n for v, n in zip((x, y), self.extent, strict=True))
        return sine_positions(x, y, self.in_channels, self.pos_temperature)

    def _check(self, features: Tensor, coors: Tensor, batch_size: int | None) -> list[int]:
        """Rows of each sample, after all checks; one transfer from the device."""
        count = features.shape[0]
        if features.shape != (count, self.in_channels) or coors.shape != (count, 4) or coors.is_floating_point():
            raise ValueError(
                f"FlatFormerEncoder takes features (N, {self.in_channels}) and integer coors (N, 4) = sample, z, y, x; "
                f"got {tuple(features.shape)} and {tuple(coors.shape)} {coors.dtype}"
            )
        if batch_size is None:
            batch_size = int(coors[:, 0].max()) + 1 if count else 0
        if not count:
            return [0] * batch_size
        limits = torch.tensor([batch_size, 1, *self.extent[::-1]], device=coors.device)
        wrong = ((coors < 0) | (coors >= limits)).any()
        sample = coors[:, 0].long().clamp(0, batch_size)
        counts = torch.zeros(batch_size + 1, dtype=torch.long, device=coors.device)
        counts = counts.index_add(0, sample, torch.ones_like(sample))
        *rows, outside = torch.cat([counts[:-1], wrong.long().view(1)]).tolist()
        if outside:
            low, high = coors.amin(0).tolist(), coors.amax(0).tolist()
            raise ValueError(
                f"coors (sample, z, y, x) must be from 0 to {[n - 1 for n in limits.tolist()]}, got {low} to {high}: "
                "check sparse_shape (nx, ny, 1), batch_size and the point cloud range"
            )
        return rows


def _pillar_shape(shape: Sequence[int], name: str, form: str) -> tuple[int, int]:
    """(x, y) of a shape (x, y, 1)."""
    legal = isinstance(shape, Sequence) and len(shape) == 3 and all(type(n) is int and n >= 1 for n in shape)
    if not legal or shape[2] != 1:
        raise ValueError(f"{name} must be {form} of at least one pillar, its last number 1, got {shape!r}")
    return shape[0], shape[1]
