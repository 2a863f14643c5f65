"""The layers between STViT's last stage and its classifier."""

from __future__ import annotations

import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule
from torch import Tensor, nn

from mmvit_plugins.registry import MODELS

from ..layers import as_map, as_tokens

__all__ = ["STViTProjection"]


@MODELS.register_module()
class STViTProjection(BaseModule):
    """1x1 convolution to 1024 channels, batch norm, swish, global average pool.

    As neck of MMPretrain's ImageClassifier, before its LinearClsHead. Source: the authors' repository (the paper's
    Table 1 writes "Projection, 1x1, 1024").

    Args:
        in_channels: channels of the backbone's last stage.
        out_channels: channels of the features.
        norm_cfg: config of the batch norm.
        norm_eval: keep the batch norm in eval mode, as the authors do when they fine-tune at 384 pixels.
        init_cfg: mmengine's initialisation config.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int = 1024,
        norm_cfg: dict = dict(type="BN"),  # noqa: B006
        norm_eval: bool = False,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        if init_cfg is None:
            init_cfg = dict(type="TruncNormal", layer="Linear", std=0.02, bias=0.0)
        super().__init__(init_cfg=init_cfg)
        self.proj = nn.Linear(in_channels, out_channels)
        self.norm = build_norm_layer(dict(norm_cfg), out_channels)[1]
        self.norm_eval = norm_eval

    def train(self, mode: bool = True) -> STViTProjection:
        """As ``nn.Module.train``, but the batch norm stays in eval mode with ``norm_eval``."""
        super().train(mode)
        if mode and self.norm_eval:
            self.norm.eval()
        return self

    def forward(self, inputs: tuple[Tensor, ...] | Tensor) -> tuple[Tensor]:
        """Maps, the last one (B, C, H, W) -> features ((B, out_channels),), a tuple as MMPretrain's heads expect."""
        x = inputs[-1] if isinstance(inputs, tuple | list) else inputs
        grid = (x.shape[2], x.shape[3])
        x = as_map(self.proj(as_tokens(x)), grid)
        return (F.silu(self.norm(x)).mean(dim=(2, 3)),)
