"""From point clouds to maps seen from above, as a backbone for MMSegmentation's heads."""

from __future__ import annotations

from collections.abc import Sequence

from mmcv.cnn import ConvModule
from mmengine.model import BaseModule, ModuleList
from torch import Tensor, nn

from mmvit_plugins.registry import MODELS

__all__ = ["PillarBackbone"]


@MODELS.register_module()
class PillarBackbone(BaseModule):
    """Points -> pillars -> middle encoder -> convolutions at growing strides.

    The convolutions spread what the pillars know to cells without points, as the 2-D network behind every middle
    encoder does (FlatFormer's own is SECOND's, of two stages).

    Args:
        pillars: config of the module from points to (features, coors), such as ``PillarFeatures``.
        encoder: config of the middle encoder, such as ``FlatFormerEncoder``; called with (features, coors, batch size),
            gives (B, C, ny, nx) with C its ``in_channels``.
        dims: channels of the stages.
        depths: 3x3 convolutions of each stage; the first halves the map, but in the first stage.
        norm_cfg: config of the norms.
        init_cfg: mmengine's initialisation config.

    Raises:
        ValueError: dims and depths do not fit together.
    """

    def __init__(
        self,
        pillars: dict,
        encoder: dict,
        dims: Sequence[int] = (64, 96, 128),
        depths: Sequence[int] = (2, 2, 2),
        norm_cfg: dict = dict(type="BN"),  # noqa: B006
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        super().__init__(init_cfg=init_cfg)
        if len(dims) != len(depths) or not dims or min(depths) < 1:
            raise ValueError(f"dims and depths need one entry for each stage, depths at least 1, got {dims}, {depths}")
        self.pillars = MODELS.build(pillars)
        self.encoder = MODELS.build(encoder)
        self.stages = ModuleList()
        in_dim = self.encoder.in_channels
        for i, (dim, depth) in enumerate(zip(dims, depths, strict=True)):
            convs = []
            for k in range(depth):
                stride = 2 if i > 0 and k == 0 else 1
                convs.append(ConvModule(in_dim, dim, 3, stride=stride, padding=1, norm_cfg=dict(norm_cfg)))
                in_dim = dim
            self.stages.append(nn.Sequential(*convs))
        self.out_channels = tuple(dims)
        self.out_strides = tuple(2**i for i in range(len(dims)))

    def forward(self, points: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """One (P, in_channels) cloud for each sample -> one (B, C_i, ceil(ny / s_i), ceil(nx / s_i)) for each stage."""
        features, coors = self.pillars(points)
        x = self.encoder(features, coors, len(points))
        outputs = []
        for stage in self.stages:
            x = stage(x)
            outputs.append(x)
        return tuple(outputs)
