"""EfficientViT's segmentation head for MMSegmentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from mmcv.cnn import ConvModule
from mmcv.cnn.utils import fuse_conv_bn
from mmengine.model import ModuleList
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from torch import Tensor

from mmvit_plugins.registry import MODELS

from ..backbones.efficientvit import ACTIVATIONS
from ..layers import FusedMBConv, MBConv

__all__ = ["PUBLISHED_HEADS", "EfficientViTSegHead"]

_B = dict(block="mbconv", expand_ratio=4, act="hswish")
_L = dict(block="fused", act="gelu")
# The authors' heads by arch and data set: section 3.2 of the paper and its repository.
PUBLISHED_HEADS: dict[tuple[str, str], dict[str, Any]] = {
    ("b0", "cityscapes"): dict(channels=32, depth=1, final_expand=4, **_B),
    ("b1", "cityscapes"): dict(channels=64, depth=3, final_expand=4, **_B),
    ("b2", "cityscapes"): dict(channels=96, depth=3, final_expand=4, **_B),
    ("b3", "cityscapes"): dict(channels=128, depth=3, final_expand=4, **_B),
    ("l1", "cityscapes"): dict(channels=256, depth=3, expand_ratio=1, final_expand=1, **_L),
    ("l2", "cityscapes"): dict(channels=256, depth=5, expand_ratio=1, final_expand=1, **_L),
    ("b1", "ade20k"): dict(channels=64, depth=3, final_expand=1, **_B),
    ("b2", "ade20k"): dict(channels=96, depth=3, final_expand=1, **_B),
    ("b3", "ade20k"): dict(channels=128, depth=3, final_expand=1, **_B),
    ("l1", "ade20k"): dict(channels=128, depth=3, expand_ratio=4, final_expand=8, **_L),
    ("l2", "ade20k"): dict(channels=128, depth=3, expand_ratio=4, final_expand=8, **_L),
}

_BLOCKS = {"mbconv": MBConv, "fused": FusedMBConv}


@MODELS.register_module()
class EfficientViTSegHead(BaseDecodeHead):
    """Stages 2, 3 and 4 brought to one width and to stride 8, added, and refined by a few bottlenecks.

    Source: section 3.2 of the paper and the authors' repository. Each map goes through a 1x1 convolution with batch
    norm, is resized bicubically to the size of the first one and added; ``depth`` residual bottlenecks, an optional
    1x1 expansion and the classifier follow. Logits are at the stride of the first map, 8.

    Any input size: the maps are resized to the size of the first one. (The authors resize by the factors 2 and 4,
    which fails on sizes that are no multiple of 32; on the others it is the same.) In evaluation logits are resized
    bicubically, as the authors do, in training as MMSegmentation does.

    Args:
        in_channels: channels of stages 2, 3, 4.
        num_classes: classes.
        channels: width; published: 32, 64, 96, 128 for b0 to b3; l1, l2: 256 (Cityscapes), 128 (ADE20K).
        depth: bottlenecks; published: 1 for b0, 5 for l2 on Cityscapes, else 3.
        block: ``'mbconv'`` (b) or ``'fused'`` (l).
        expand_ratio: of the bottlenecks; published: 4, but 1 for l1 and l2 on Cityscapes.
        final_expand: channels before the classifier / ``channels``, 1: no such layer. Published: b: 4 (Cityscapes), 1
            (ADE20K); l1, l2: 1 (Cityscapes), 8 (ADE20K).
        act: ``'hswish'`` (b) or ``'gelu'`` (l).
        norm_cfg: mmcv's config of the norms; without ``eps`` it is the authors' for ``act``, 1e-5 or 1e-7.
        in_index: which of the backbone's maps; default: all of the three.
        dropout_ratio: of channels before the classifier; published: 0.
        ignore_index: label without loss.
        align_corners: of the resize of logits in training.
        loss_decode: config of the loss or losses, as in MMSegmentation.
        sampler: config of the pixel sampler, as in MMSegmentation.
        init_cfg: mmengine's initialisation config.

    Raises:
        ValueError: unknown ``act`` or ``block``, or ``in_channels`` is not one number for each map.
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        num_classes: int,
        channels: int,
        depth: int = 3,
        block: str = "mbconv",
        expand_ratio: float = 4,
        final_expand: float = 1,
        act: str = "hswish",
        norm_cfg: Mapping[str, Any] = dict(type="BN"),  # noqa: B006
        in_index: Sequence[int] = (0, 1, 2),
        dropout_ratio: float = 0.0,
        ignore_index: int = 255,
        align_corners: bool = False,
        loss_decode: dict | Sequence[dict] = dict(  # noqa: B006
            type="CrossEntropyLoss", use_sigmoid=False, loss_weight=1.0
        ),
        sampler: dict | None = None,
        init_cfg: dict | list[dict] | None = dict(  # noqa: B006
            type="Normal", std=0.01, override=dict(name="conv_seg")
        ),
    ) -> None:
        if act not in ACTIVATIONS:
            raise ValueError(f"act must be one of {', '.join(ACTIVATIONS)}, got {act!r}")
        if block not in _BLOCKS:
            raise ValueError(f"block must be one of {', '.join(_BLOCKS)}, got {block!r}")
        if len(in_channels) != len(in_index) or len(in_channels) < 2:
            raise ValueError(
                f"in_channels must have a number for each of in_index {tuple(in_index)}, at least two, "
                f"got {tuple(in_channels)}"
            )
        layer = dict(norm_cfg=dict(eps=1e-5 if act == "hswish" else 1e-7) | dict(norm_cfg), act_cfg=ACTIVATIONS[act])
        super().__init__(
            in_channels=list(in_channels),
            channels=round(channels * final_expand),
            num_classes=num_classes,
            dropout_ratio=dropout_ratio,
            norm_cfg=layer["norm_cfg"],
            act_cfg=layer["act_cfg"],
            in_index=list(in_index),
            input_transform="multiple_select",
            loss_decode=loss_decode,
            ignore_index=ignore_index,
            sampler=sampler,
            align_corners=align_corners,
            init_cfg=init_cfg,
        )
        self.input_convs = ModuleList(
            ConvModule(width, channels, 1, norm_cfg=layer["norm_cfg"], act_cfg=None) for width in in_channels
        )
        self.blocks = ModuleList(
            _BLOCKS[block](channels, channels, 1, expand_ratio, shortcut=True, **layer) for _ in range(depth)
        )
        self.expand = ConvModule(channels, self.channels, 1, **layer) if final_expand != 1 else None

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        """The backbone's maps -> logits (B, num_classes, H_0, W_0) at the size of the first map."""
        maps = [conv(x) for conv, x in zip(self.input_convs, self._transform_inputs(inputs), strict=True)]
        x, size = maps[0], tuple(maps[0].shape[2:])
        for other in maps[1:]:
            x = x + F.interpolate(other, size=size, mode="bicubic", align_corners=False)
        for block in self.blocks:
            x = block(x)
        return self.cls_seg(x if self.expand is None else self.expand(x))

    def predict_by_feat(self, seg_logits: Tensor, batch_img_metas: list[dict]) -> Tensor:
        """Logits at the images' size, resized bicubically as in the authors' evaluation."""
        meta = batch_img_metas[0]
        # MMSegmentation's sliding window states its crop as a torch.Size in img_shape.
        size = (
            meta["img_shape"] if isinstance(meta["img_shape"], torch.Size) else meta.get("pad_shape", meta["img_shape"])
        )
        return F.interpolate(seg_logits, size=tuple(size[:2]), mode="bicubic", align_corners=False)

    def switch_to_deploy(self) -> EfficientViTSegHead:
        """Multiply every batch norm into its convolution, for inference. Returns self."""
        return fuse_conv_bn(self.eval())
