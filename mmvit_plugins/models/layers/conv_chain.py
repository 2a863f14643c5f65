"""Residual chains of convolutions: depthwise separable, inverted bottleneck, its fused form, and the basic block."""

from __future__ import annotations

from collections.abc import Sequence

from mmcv.cnn import ConvModule
from mmcv.cnn.bricks import DropPath
from mmengine.model import BaseModule
from torch import Tensor, nn

from .row_strips import conv_norm_act, run_by_strips, strip_rows

__all__ = ["ConvChain", "DSConv", "FusedMBConv", "MBConv", "ResBlock"]


class ConvChain(BaseModule):
    """Convolutions with norm and activation one after the other, and a skip around them where shapes allow one.

    The last convolution has no activation. In inference on a CPU large maps are computed by strips of rows, see
    :mod:`.row_strips`.

    Args:
        widths: channels of the input and of each convolution's output.
        kernels: side of each kernel; padding keeps the size.
        strides: stride of each convolution.
        depthwise: which convolutions are depthwise.
        normed: which convolutions have a norm; those without have a bias.
        norm_cfg: mmcv's config of the norms.
        act_cfg: mmcv's config of the activations.
        shortcut: add the input to the output.
        drop_path: rate at which a sample skips the convolutions in training.
        names: attribute names of the convolutions.

    Raises:
        ValueError: a skip around a chain that changes the shape.
    """

    def __init__(
        self,
        widths: Sequence[int],
        kernels: Sequence[int],
        strides: Sequence[int],
        depthwise: Sequence[bool],
        normed: Sequence[bool],
        norm_cfg: dict,
        act_cfg: dict,
        shortcut: bool,
        drop_path: float,
        names: Sequence[str],
    ) -> None:
        super().__init__()
        if shortcut and (widths[0] != widths[-1] or any(s != 1 for s in strides)):
            raise ValueError(f"a skip needs equal shapes, got channels {tuple(widths)} and strides {tuple(strides)}")
        self.names = tuple(names)
        for i, name in enumerate(names):
            conv = ConvModule(
                widths[i],
                widths[i + 1],
                kernels[i],
                stride=strides[i],
                padding=kernels[i] // 2,
                groups=widths[i] if depthwise[i] else 1,
                norm_cfg=norm_cfg if normed[i] else None,
                act_cfg=act_cfg if i < len(names) - 1 else None,
            )
            self.add_module(name, conv)
        self.shortcut = shortcut
        self.drop_path = DropPath(drop_path) if shortcut and drop_path > 0 else nn.Identity()

    @property
    def convs(self) -> list[ConvModule]:
        """The convolutions in order."""
        return [getattr(self, name) for name in self.names]

    def forward(self, x: Tensor) -> Tensor:
        """(B, C_in, H, W) -> (B, C_out, ceil(H / stride), ceil(W / stride))."""
        rows = strip_rows(self.convs, x)
        if rows:
            return run_by_strips(self.convs, x, rows, self.shortcut)
        y = x
        for conv in self.convs:
            y = conv_norm_act(conv, y)
        return x + self.drop_path(y) if self.shortcut else y


class DSConv(ConvChain):
    """Depthwise 3x3, then 1x1.

    Args:
        in_channels, out_channels: channels of input and output.
        stride: stride of the depthwise convolution.
        norm_cfg, act_cfg, shortcut, drop_path: as in :class:`ConvChain`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        stride: int,
        norm_cfg: dict,
        act_cfg: dict,
        shortcut: bool = False,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__(
            widths=(in_channels, in_channels, out_channels),
            kernels=(3, 1),
            strides=(stride, 1),
            depthwise=(True, False),
            normed=(True, True),
            norm_cfg=norm_cfg,
            act_cfg=act_cfg,
            shortcut=shortcut,
            drop_path=drop_path,
            names=("depth_conv", "point_conv"),
        )


class MBConv(ConvChain):
    """Inverted bottleneck: 1x1 expansion, depthwise 3x3, 1x1 projection.

    Args:
        in_channels, out_channels: channels of input and output.
        stride: stride of the depthwise convolution.
        expand_ratio: hidden channels / input channels.
        norm_cfg, act_cfg, shortcut, drop_path: as in :class:`ConvChain`.
        fewer_norm: biases in place of norms in the first two convolutions (EfficientViT's deeper stages).
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        stride: int,
        expand_ratio: float,
        norm_cfg: dict,
        act_cfg: dict,
        shortcut: bool = False,
        drop_path: float = 0.0,
        fewer_norm: bool = False,
    ) -> None:
        hidden = round(in_channels * expand_ratio)
        super().__init__(
            widths=(in_channels, hidden, hidden, out_channels),
            kernels=(1, 3, 1),
            strides=(1, stride, 1),
            depthwise=(False, True, False),
            normed=(not fewer_norm, not fewer_norm, True),
            norm_cfg=norm_cfg,
            act_cfg=act_cfg,
            shortcut=shortcut,
            drop_path=drop_path,
            names=("inverted_conv", "depth_conv", "point_conv"),
        )


class FusedMBConv(ConvChain):
    """Inverted bottleneck whose expansion is a dense 3x3 convolution: 3x3 expansion, 1x1 projection.

    Args:
        in_channels, out_channels: channels of input and output.
        stride: stride of the 3x3 convolution.
        expand_ratio: hidden channels / input channels.
        norm_cfg, act_cfg, shortcut, drop_path: as in :class:`ConvChain`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        stride: int,
        expand_ratio: float,
        norm_cfg: dict,
        act_cfg: dict,
        shortcut: bool = False,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__(
            widths=(in_channels, round(in_channels * expand_ratio), out_channels),
            kernels=(3, 1),
            strides=(stride, 1),
            depthwise=(False, False),
            normed=(True, True),
            norm_cfg=norm_cfg,
            act_cfg=act_cfg,
            shortcut=shortcut,
            drop_path=drop_path,
            names=("spatial_conv", "point_conv"),
        )


class ResBlock(ConvChain):
    """Two dense 3x3 convolutions.

    Args:
        in_channels, out_channels: channels of input and output.
        stride: stride of the first convolution.
        norm_cfg, act_cfg, shortcut, drop_path: as in :class:`ConvChain`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        stride: int,
        norm_cfg: dict,
        act_cfg: dict,
        shortcut: bool = False,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__(
            widths=(in_channels, out_channels, out_channels),
            kernels=(3, 3),
            strides=(stride, 1),
            depthwise=(False, False),
            normed=(True, True),
            norm_cfg=norm_cfg,
            act_cfg=act_cfg,
            shortcut=shortcut,
            drop_path=drop_path,
            names=("conv1", "conv2"),
        )
