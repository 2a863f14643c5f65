"""EfficientViT's classification head for MMPretrain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from mmcv.cnn import ConvModule
from mmcv.cnn.utils import fuse_conv_bn
from mmpretrain.models.heads import LinearClsHead
from torch import Tensor, nn

from mmvit_plugins.registry import MODELS

from ..backbones.efficientvit import ACTIVATIONS

__all__ = ["PUBLISHED_WIDTHS", "EfficientViTClsHead"]

# Of the authors' classifiers. There is none for l0.
PUBLISHED_WIDTHS: dict[str, tuple[int, int]] = {
    "b0": (1024, 1280),
    "b1": (1536, 1600),
    "b2": (2304, 2560),
    "b3": (2304, 2560),
    "l1": (3072, 3200),
    "l2": (3072, 3200),
    "l3": (6144, 6400),
}


@MODELS.register_module()
class EfficientViTClsHead(LinearClsHead):
    """1x1 convolution with norm and activation, global average pool, linear with LayerNorm and activation, linear.

    Source: the authors' repository. Their widths are in ``PUBLISHED_WIDTHS``.

    Args:
        num_classes: classes.
        in_channels: channels of the backbone's last map.
        widths: channels of the convolution and of the hidden linear layer.
        act: ``'hswish'`` (b) or ``'gelu'`` (l).
        norm_eps: of both norms; 1e-5 (b) or 1e-7 (l). None: the authors' for ``act``.
        norm_cfg: mmcv's config of the convolution's norm.
        dropout: rate before the last layer; published: 0.
        loss: config of the loss, as in MMPretrain.
        topk: accuracies to report, as in MMPretrain.
        cal_acc: report the training accuracy.
        init_cfg: mmengine's initialisation config.

    Raises:
        ValueError: unknown ``act``.
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        widths: Sequence[int],
        act: str = "hswish",
        norm_eps: float | None = None,
        norm_cfg: Mapping[str, Any] = dict(type="BN"),  # noqa: B006
        dropout: float = 0.0,
        loss: dict = dict(type="CrossEntropyLoss", loss_weight=1.0),  # noqa: B006
        topk: int | tuple[int, ...] = (1,),
        cal_acc: bool = False,
        init_cfg: dict | list[dict] | None = dict(type="TruncNormal", layer="Linear", std=0.02, bias=0.0),  # noqa: B006
    ) -> None:
        if act not in ACTIVATIONS:
            raise ValueError(f"act must be one of {', '.join(ACTIVATIONS)}, got {act!r}")
        super().__init__(num_classes, widths[1], loss=dict(loss), topk=topk, cal_acc=cal_acc, init_cfg=init_cfg)
        eps = (1e-5 if act == "hswish" else 1e-7) if norm_eps is None else norm_eps
        self.map_channels = in_channels
        self.conv = ConvModule(
            in_channels, widths[0], 1, norm_cfg=dict(eps=eps) | dict(norm_cfg), act_cfg=ACTIVATIONS[act]
        )
        self.hidden = nn.Linear(widths[0], widths[1], bias=False)
        self.norm = nn.LayerNorm(widths[1], eps=eps)
        self.dropout = dropout

    def pre_logits(self, feats: tuple[Tensor, ...]) -> Tensor:
        """Maps, the last one (B, in_channels, H, W) -> features (B, widths[1])."""
        x = self.conv(feats[-1]).mean(dim=(2, 3))
        x = self.conv.activate(self.norm(self.hidden(x)))
        return F.dropout(x, self.dropout, self.training)

    def switch_to_deploy(self) -> EfficientViTClsHead:
        """Multiply the batch norm into its convolution, for inference. Returns self."""
        return fuse_conv_bn(self.eval())
