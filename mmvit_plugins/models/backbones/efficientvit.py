"""EfficientViT of MIT: multi-scale linear attention for high-resolution dense prediction.

Paper: Cai, Li, Hu, Gan, Han, "EfficientViT: Lightweight Multi-Scale Attention for High-Resolution Dense Prediction",
ICCV 2023 (arXiv 2205.14756), repository mit-han-lab/efficientvit. Not Microsoft's EfficientViT (cascaded group
attention, CVPR 2023). Written from the equations and checked against outputs of the authors' code (tests/goldens). It
differs in form, not in result: channels_last throughout, inverted bottlenecks by strips of rows on a CPU, the
attention as two matrix products whose inner one is d x d, and no padding with a row of ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from mmcv.cnn import ConvModule
from mmcv.cnn.bricks import DropPath
from mmcv.cnn.utils import fuse_conv_bn
from mmengine.model import BaseModule, ModuleList, Sequential
from torch import Tensor, nn

from mmvit_plugins.registry import MODELS

from ..layers import (
    DSConv,
    FusedMBConv,
    MBConv,
    MultiScaleLinearAttention,
    ResBlock,
    as_output,
    checkpoint_module,
    conv_norm_act,
)
from .base import HierarchicalBackbone, resolve_arch

__all__ = ["ACTIVATIONS", "ARCHS", "SERIES", "EfficientViT", "EfficientViTBlock"]

# Figure 6 and table 1 of the paper, its repository, and for l0 the authors' EfficientViT-SAM (arXiv 2402.05008), which
# publishes no classifier of it. Widths and depths: stem, then stages 1 to 4.
ARCHS: dict[str, dict[str, Any]] = {
    "b0": dict(series="b", widths=(8, 16, 32, 64, 128), depths=(1, 2, 2, 2, 2), head_dim=16),
    "b1": dict(series="b", widths=(16, 32, 64, 128, 256), depths=(1, 2, 3, 3, 4), head_dim=16),
    "b2": dict(series="b", widths=(24, 48, 96, 192, 384), depths=(1, 3, 4, 4, 6), head_dim=32),
    "b3": dict(series="b", widths=(32, 64, 128, 256, 512), depths=(1, 4, 6, 6, 9), head_dim=32),
    "l0": dict(series="l", widths=(32, 64, 128, 256, 512), depths=(1, 1, 1, 4, 4), head_dim=32),
    "l1": dict(series="l", widths=(32, 64, 128, 256, 512), depths=(1, 1, 1, 6, 6), head_dim=32),
    "l2": dict(series="l", widths=(32, 64, 128, 256, 512), depths=(1, 2, 2, 8, 8), head_dim=32),
    "l3": dict(series="l", widths=(64, 128, 256, 512, 1024), depths=(1, 2, 2, 8, 8), head_dim=32),
}
# What the two series differ in; entries with four values are of stages 1 to 4. `counted`: the depth counts the block of
# stride 2 that opens the stage.
SERIES: dict[str, dict[str, Any]] = {
    "b": dict(
        stem="dsconv",
        blocks=("mbconv", "mbconv", "attention", "attention"),
        expand_ratios=(4, 4, 4, 4),
        downsample_ratios=(4, 4, 4, 4),
        fewer_norm=(False, False, True, True),
        counted=(True, True, False, False),
        act="hswish",
        norm_eps=1e-5,
    ),
    "l": dict(
        stem="res",
        blocks=("fused", "fused", "mbconv", "attention"),
        expand_ratios=(4, 4, 4, 6),
        downsample_ratios=(16, 16, 16, 24),
        fewer_norm=(False, False, True, True),
        counted=(False, False, False, False),
        act="gelu",
        norm_eps=1e-7,
    ),
}
ACTIVATIONS: dict[str, dict[str, Any]] = {
    "hswish": dict(type="HSwish"),
    "gelu": dict(type="GELU", approximate="tanh"),
}
_ARCH_LENGTH = 5


class EfficientViTBlock(BaseModule):
    """x <- x + attention(x); x <- x + MBConv(x), the first two convolutions of it with biases in place of norms.

    Args:
        dim: channels C.
        head_dim: channels of a head.
        expand_ratio: hidden channels of the MBConv / C.
        norm_cfg, act_cfg: mmcv's configs of norms and activations.
        drop_path: rates of the two branches.
    """

    def __init__(
        self,
        dim: int,
        head_dim: int,
        expand_ratio: float,
        norm_cfg: dict,
        act_cfg: dict,
        drop_path: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        super().__init__()
        self.attn = MultiScaleLinearAttention(dim, head_dim, norm_cfg=norm_cfg)
        self.drop_path = DropPath(drop_path[0]) if drop_path[0] > 0 else nn.Identity()
        self.ffn = MBConv(
            dim, dim, 1, expand_ratio, norm_cfg, act_cfg, shortcut=True, drop_path=drop_path[1], fewer_norm=True
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        return self.ffn(x + self.drop_path(self.attn(x)))


def _checked_arch(arch: str | Mapping[str, Any]) -> dict[str, Any]:
    """The settings of ``arch``, their lengths and its series checked."""
    settings = resolve_arch(arch, ARCHS, "EfficientViT")
    if settings["series"] not in SERIES:
        raise ValueError(f"series of arch must be one of {', '.join(SERIES)}, got {settings['series']!r}")
    for key in ("widths", "depths"):
        if not isinstance(settings[key], Sequence) or len(settings[key]) != _ARCH_LENGTH:
            raise ValueError(f"{key} of arch must have {_ARCH_LENGTH} values, stem and 4 stages, got {settings[key]}")
    if min(settings["depths"]) < 1:
        raise ValueError(f"depths of arch must be at least 1, got {settings['depths']}")
    return settings


def _block_counts(depths: Sequence[int], series: Mapping[str, Any]) -> list[int]:
    """Blocks of stride 1 in each of the four stages."""
    return [depth - counted for depth, counted in zip(depths[1:], series["counted"], strict=True)]


def _drop_rates(depths: Sequence[int], series: Mapping[str, Any], rate: float) -> Iterator[float]:
    """The rates of the branches with a skip, in order: ``rate`` (i + 1) / N. B's stem does not count."""
    counts = zip(_block_counts(depths, series), series["blocks"], strict=True)
    branches = sum(count * (2 if kind == "attention" else 1) for count, kind in counts)
    branches += depths[0] if series["stem"] == "res" else 0
    return iter([rate * (i + 1) / branches for i in range(branches)])


@MODELS.register_module()
class EfficientViT(HierarchicalBackbone):
    """EfficientViT backbone (MIT's; ICCV 2023).

    Input (B, 3, H, W) of any H, W >= 1. Returns a tuple with one map (B, C_i, ceil(H / s_i), ceil(W / s_i)) for each
    of ``out_indices``; strides are 4, 8, 16, 32. The maps are in channels_last memory. The stem, at stride 2, is
    ``self.stem``.

    Args:
        arch: ``'b0'`` to ``'b3'`` (hardswish) or ``'l0'`` to ``'l3'`` (GELU, fused bottlenecks) as published; or a
            mapping with the keys series ('b' or 'l'), widths and depths (stem and four stages), head_dim.
        in_channels: channels of the image.
        drop_path_rate: rate of the last branch; rates grow linearly. Published: 0.05 for b1 and b2, else 0.1.
        norm_cfg: mmcv's config of the norms; without ``eps`` it is the authors': 1e-5 for b, 1e-7 for l.
        out_indices: stages whose maps are returned; None: all.
        frozen_stages: -1: none; k: stem and stages 0 to k have no gradient and stay in eval mode.
        norm_eval: keep batch norms in eval mode.
        with_cp: recompute activations in the backward pass (non-reentrant).
        init_cfg: mmengine's initialisation config.

    Raises:
        ValueError: an argument is outside its legal values.

    Examples:
        >>> import torch
        >>> from mmvit_plugins.models import EfficientViT
        >>> model = EfficientViT(arch='b0').eval()
        >>> with torch.no_grad():
        ...     outputs = model(torch.rand(1, 3, 65, 90))
        >>> [tuple(o.shape) for o in outputs]
        [(1, 16, 17, 23), (1, 32, 9, 12), (1, 64, 5, 6), (1, 128, 3, 3)]
    """

    def __init__(
        self,
        arch: str | Mapping[str, Any] = "b1",
        in_channels: int = 3,
        drop_path_rate: float = 0.0,
        norm_cfg: Mapping[str, Any] = dict(type="BN"),  # noqa: B006
        out_indices: int | Sequence[int] | None = None,
        frozen_stages: int = -1,
        norm_eval: bool = False,
        with_cp: bool = False,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        settings = _checked_arch(arch)
        if not 0 <= drop_path_rate < 1:
            raise ValueError(f"drop_path_rate must be in [0, 1), got {drop_path_rate}")
        num_stages = len(settings["widths"]) - 1
        super().__init__(
            num_stages, range(num_stages) if out_indices is None else out_indices, frozen_stages, norm_eval, init_cfg
        )
        self.with_cp = with_cp
        series, widths, depths = SERIES[settings["series"]], settings["widths"], settings["depths"]
        layer = dict(norm_cfg=dict(eps=series["norm_eps"]) | dict(norm_cfg), act_cfg=ACTIVATIONS[series["act"]])
        rates, counts = _drop_rates(depths, series, drop_path_rate), _block_counts(depths, series)
        self.stem = Sequential(ConvModule(in_channels, widths[0], 3, stride=2, padding=1, **layer))
        for _ in range(depths[0]):
            if series["stem"] == "res":
                block = ResBlock(widths[0], widths[0], 1, shortcut=True, drop_path=next(rates), **layer)
            else:
                block = DSConv(widths[0], widths[0], 1, shortcut=True, **layer)
            self.stem.append(block)
        self.stages = ModuleList()
        # Stages behind the last output are not built: DDP would wait for their gradients.
        for i in range(self.out_indices[-1] + 1):
            blocks = [self._downsample(series, i, widths[i], widths[i + 1], layer)]
            for _ in range(counts[i]):
                blocks.append(self._block(series, i, widths[i + 1], settings["head_dim"], rates, layer))
            self.stages.append(Sequential(*blocks))
        self.out_channels = tuple(widths[i + 1] for i in self.out_indices)
        self.out_strides = tuple(4 * 2**i for i in self.out_indices)
        self.freeze()

    @staticmethod
    def _downsample(series: Mapping[str, Any], stage: int, in_dim: int, dim: int, layer: dict[str, Any]) -> nn.Module:
        """The block of stride 2 that opens a stage."""
        ratio, fewer_norm = series["downsample_ratios"][stage], series["fewer_norm"][stage]
        if series["blocks"][stage] == "fused":
            return FusedMBConv(in_dim, dim, 2, ratio, **layer)
        return MBConv(in_dim, dim, 2, ratio, fewer_norm=fewer_norm, **layer)

    @staticmethod
    def _block(
        series: Mapping[str, Any], stage: int, dim: int, head_dim: int, rates: Iterator[float], layer: dict[str, Any]
    ) -> nn.Module:
        """A block of stride 1."""
        kind, ratio, fewer_norm = (series[key][stage] for key in ("blocks", "expand_ratios", "fewer_norm"))
        if kind == "attention":
            return EfficientViTBlock(dim, head_dim, ratio, drop_path=(next(rates), next(rates)), **layer)
        options = dict(shortcut=True, drop_path=next(rates), **layer)
        if kind == "fused":
            return FusedMBConv(dim, dim, 1, ratio, **options)
        return MBConv(dim, dim, 1, ratio, fewer_norm=fewer_norm, **options)

    def frozen_parts(self, upto: int) -> list[nn.Module]:
        """The stem and stages 0 to ``upto``."""
        return [self.stem, *self.stages[: upto + 1]]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """(B, 3, H, W) -> one (B, C_i, ceil(H / s_i), ceil(W / s_i)) for each of ``out_indices``."""
        x = x.contiguous(memory_format=torch.channels_last)
        for i, layer in enumerate(self.stem):
            x = self._run(layer, x) if i else self._first_conv(layer, x)  # the first one is no block
        outputs = []
        for i, stage in enumerate(self.stages):
            for block in stage:
                x = self._run(block, x)
            if i in self.out_indices:
                outputs.append(as_output(x))
        return tuple(outputs)

    @staticmethod
    def _first_conv(layer: ConvModule, x: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, C, ceil(H / 2), ceil(W / 2)), outside autocast, in the dtype of the weights.

        On an image of one colour the variance here is zero, and the backward pass of the norm multiplies gradients by
        1 / sqrt(eps), 316 or 3162: they overflow float16.
        """
        with torch.autocast(x.device.type, enabled=False):
            return conv_norm_act(layer, x.to(layer.conv.weight.dtype))

    def _run(self, block: nn.Module, x: Tensor) -> Tensor:
        return checkpoint_module(block, x) if self.with_cp else block(x)

    def switch_to_deploy(self) -> EfficientViT:
        """Multiply every batch norm into its convolution, for inference: same result, no norms. Returns self.

        It cannot be undone, and the state dict has other keys afterwards: load weights first.
        """
        return fuse_conv_bn(self.eval())
