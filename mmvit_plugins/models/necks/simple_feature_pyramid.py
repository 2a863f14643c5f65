"""A feature pyramid from the one map of a plain backbone.

Source: Li, Mao, Girshick, He, "Exploring Plain Vision Transformer Backbones for Object Detection" (ViTDet), ECCV 2022
(arXiv 2203.16527), section 3. MMSegmentation has Feature2Pyramid for the same purpose; MMDetection ships none.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from mmengine.model import BaseModule, ModuleList
from torch import Tensor, nn

from mmvit_plugins.registry import MODELS

from ..layers.memory_format import as_output

__all__ = ["SimpleFeaturePyramid"]


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of a (B, C, H, W) map, at each place."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        x = F.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


def _rescale(scale: float, dim: int) -> tuple[nn.Module, int]:
    """Layers that change a map's size by ``scale``, and their output channels; each doubling halves the channels."""
    if scale == 4:
        layers = [nn.ConvTranspose2d(dim, dim // 2, 2, stride=2), ChannelNorm(dim // 2, eps=1e-6), nn.GELU()]
        return nn.Sequential(*layers, nn.ConvTranspose2d(dim // 2, dim // 4, 2, stride=2)), dim // 4
    if scale == 2:
        return nn.ConvTranspose2d(dim, dim // 2, 2, stride=2), dim // 2
    if scale == 1:
        return nn.Identity(), dim
    # ceil_mode: a map one place high or wide stays one.
    return nn.MaxPool2d(2, stride=2, ceil_mode=True), dim


@MODELS.register_module()
class SimpleFeaturePyramid(BaseModule):
    """Maps of strides 4, 8, 16, 32 from the last map of stride 16, each rescaled, then 1 x 1 and 3 x 3 convolutions.

    Args:
        in_channels: channels of the backbone's map.
        out_channels: channels of every level.
        scales: sizes of the levels relative to the map: from 4, 2, 1 and 0.5.
        num_outs: levels in all; those beyond ``scales`` are every second place of the last.
        init_cfg: mmengine's initialisation config.

    Raises:
        ValueError: an argument is outside its legal values.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int = 256,
        scales: Sequence[float] = (4, 2, 1, 0.5),
        num_outs: int = 5,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        super().__init__(init_cfg=init_cfg)
        if not scales or any(scale not in (4, 2, 1, 0.5) for scale in scales):
            raise ValueError(f"scales must be from 4, 2, 1 and 0.5, got {scales!r}")
        if num_outs < len(scales):
            raise ValueError(f"num_outs must be at least the number of scales, {len(scales)}, got {num_outs}")
        self.num_outs, self.levels = num_outs, ModuleList()
        for scale in scales:
            rescale, dim = _rescale(scale, in_channels)
            self.levels.append(
                nn.Sequential(
                    rescale,
                    nn.Conv2d(dim, out_channels, 1, bias=False),
                    ChannelNorm(out_channels, eps=1e-6),
                    nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
                    ChannelNorm(out_channels, eps=1e-6),
                )
            )

    def forward(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Maps of a backbone, the last of which (B, C, H, W) is used -> ``num_outs`` maps, largest first."""
        outputs = [as_output(level(inputs[-1])) for level in self.levels]
        while len(outputs) < self.num_outs:
            outputs.append(F.max_pool2d(outputs[-1], 1, stride=2))
        return tuple(outputs)
