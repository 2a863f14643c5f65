"""Chains of convolutions by strips of rows, so that what lies between them stays in the processor's cache.

The hidden map of an inverted bottleneck at 1024 x 1024 pixels has 67 MB: layer by layer it goes to memory and back
for every convolution, norm and activation. A strip of some rows goes through all layers at once instead; the rows
that the kernels read above and below it are computed again.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from mmcv.cnn import ConvModule
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["fold_norm", "run_by_strips", "strip_rows"]

# Bytes of a strip's widest hidden map. Measured with tools/benchmark_reference.py.
STRIP_BYTES = 1 << 20


def fold_norm(layer: ConvModule) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of the convolution with the batch norm behind it (in eval mode) multiplied in."""
    conv, norm = layer.conv, layer.norm
    if not isinstance(norm, _BatchNorm):
        return conv.weight, conv.bias
    scale = torch.rsqrt(norm.running_var + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight
    mean = norm.running_mean if conv.bias is None else norm.running_mean - conv.bias
    bias = -mean * scale
    if norm.bias is not None:
        bias = bias + norm.bias
    return conv.weight * scale.view(-1, 1, 1, 1), bias


def strip_rows(layers: Sequence[ConvModule], x: Tensor) -> int:
    """Output rows to compute at a time; 0: all at once.

    Strips are for inference on a CPU with norms that know their statistics, and for maps that do not fit the cache.
    """
    if torch.is_grad_enabled() or x.device.type != "cpu" or torch.compiler.is_compiling() or torch.jit.is_tracing():
        return 0
    for layer in layers:
        norm = layer.norm
        if isinstance(norm, _BatchNorm):
            if norm.training or norm.running_mean is None:
                return 0
        elif norm is not None and not isinstance(norm, nn.Identity):
            return 0
    # Rows of the input that belong to one row of the output, and the widest map that they make.
    stride, widest = 1, x.shape[1]
    total = 1
    for layer in layers:
        total *= layer.stride[0]
    left = total
    for layer in layers:
        widest = max(widest, layer.out_channels * left)
        left //= layer.stride[0]
    stride = total
    row_bytes = x.shape[0] * x.shape[3] * widest * x.element_size()
    rows = max(4, STRIP_BYTES // row_bytes)
    return rows if 2 * rows * stride < x.shape[2] else 0


def run_by_strips(layers: Sequence[ConvModule], x: Tensor, rows: int, shortcut: bool) -> Tensor:
    """The layers one after the other, ``rows`` rows of the output at a time.

    Args:
        layers: convolutions with square kernels and padding k // 2, their norms in eval mode.
        x: (B, C_in, H, W).
        rows: output rows of a strip.
        shortcut: add the input to the output.

    Returns:
        (B, C_out, ceil(H / stride), ceil(W / stride)).
    """
    heights = [x.shape[2]]
    for layer in layers:
        heights.append((heights[-1] - 1) // layer.stride[0] + 1)
    weights = [fold_norm(layer) for layer in layers]
    strips = []
    for top in range(0, heights[-1], rows):
        bottom = min(top + rows, heights[-1])
        # Which rows of each layer's input the strip needs: from the last layer back to the first.
        needed = [(top, bottom)]
        for layer in reversed(layers):
            first, last = needed[0]
            pad, stride = layer.kernel_size[0] // 2, layer.stride[0]
            needed.insert(0, (first * stride - pad, (last - 1) * stride + pad + 1))
            # Rows outside the map are zeros of this layer's padding, not outputs of the layer before.
            height = heights[len(layers) - len(needed) + 1]
            needed[0] = (max(needed[0][0], 0), min(needed[0][1], height))
        y = x[:, :, needed[0][0] : needed[0][1]]
        for i, layer in enumerate(layers):
            y = _strip_layer(layer, weights[i], y, needed[i], needed[i + 1], heights[i])
        strips.append(y + x[:, :, top:bottom] if shortcut else y)
    return torch.cat(strips, dim=2)


def _strip_layer(
    layer: ConvModule,
    weight_bias: tuple[Tensor, Tensor | None],
    x: Tensor,
    have: tuple[int, int],
    want: tuple[int, int],
    height: int,
) -> Tensor:
    """Rows ``want`` of a layer's output from the rows ``have`` of its input, whose whole height is ``height``."""
    pad, stride = layer.kernel_size[0] // 2, layer.stride[0]
    above = have[0] - (want[0] * stride - pad)
    below = (want[1] - 1) * stride + pad + 1 - have[1]
    if above or below:
        x = F.pad(x, (0, 0, above, below))
    x = F.conv2d(x, *weight_bias, stride=stride, padding=(0, pad), groups=layer.groups)
    return layer.activate(x) if layer.with_activation else x
