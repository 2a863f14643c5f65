"""Convolutions in inference on a CPU: norms multiplied into kernels, and chains of them by strips of rows.

The hidden map of an inverted bottleneck at 1024 x 1024 pixels has 67 MB: layer by layer it goes to memory and back
for every convolution, norm and activation. A strip of some rows goes through all layers at once instead, while it is
in the processor's cache; the rows that the kernels read above and below it are computed again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from mmcv.cnn import ConvModule
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .memory_format import as_map, as_tokens

__all__ = ["conv_norm_act", "fold_norm", "run_by_strips", "strip_rows"]

# Bytes of a strip's widest hidden map; 1 MiB is slower by a quarter at 1024 pixels, from 4 MiB on it is flat.
STRIP_BYTES = 4 << 20
MIN_ROWS = 8
# Tokens up to which a matrix product is faster than oneDNN's 1x1 convolution, if that does not widen the map. Below the
# second number of values PyTorch does not use oneDNN at all.
LINEAR_TOKENS = 3200
SMALL_MAP = 20480
_ROOT = math.sqrt(2 / math.pi)


def in_plain_inference(x: Tensor) -> bool:
    """Whether nothing but the result is asked for: no gradients, no graph of the operations, on a CPU."""
    if torch.is_grad_enabled() or x.device.type != "cpu":
        return False
    return not (torch.compiler.is_compiling() or torch.jit.is_tracing())


def can_fold(layer: ConvModule) -> bool:
    """Whether the layer's norm is a fixed scale and shift."""
    norm = layer.norm
    if isinstance(norm, _BatchNorm):
        return not norm.training and norm.running_mean is not None
    return norm is None or isinstance(norm, nn.Identity)


def fold_norm(layer: ConvModule) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of the convolution with the batch norm behind it (in eval mode) multiplied in."""
    conv, norm = layer.conv, layer.norm
    if not isinstance(norm, _BatchNorm):
        return conv.weight, conv.bias
    scale = torch.rsqrt(norm.running_var + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight
    bias = (norm.running_mean if conv.bias is None else norm.running_mean - conv.bias) * -scale
    if norm.bias is not None:
        bias = bias + norm.bias
    return conv.weight * scale.view(-1, 1, 1, 1), bias


def conv_norm_act(layer: ConvModule, x: Tensor) -> Tensor:
    """``layer(x)``, in inference on a CPU with the norm in the kernel where the map is larger than that.

    (B, C_in, H, W) -> (B, C_out, ceil(H / stride), ceil(W / stride)).
    """
    if not in_plain_inference(x):
        return layer(x)
    tokens = x.shape[0] * x.shape[2] * x.shape[3] // (layer.stride[0] * layer.stride[1])
    folds = can_fold(layer) and layer.conv.weight[0].numel() <= tokens
    weight, bias = fold_norm(layer) if folds else (layer.conv.weight, layer.conv.bias)
    if _is_matrix_product(layer, tokens):
        x = as_map(F.linear(as_tokens(x), weight.flatten(1), bias), (x.shape[2], x.shape[3]))
    else:
        x = F.conv2d(x, weight, bias, layer.stride, layer.conv.padding, groups=layer.groups)
    if not folds and layer.norm is not None:
        x = layer.norm(x)
    return _activated(layer, x)


def _is_matrix_product(layer: ConvModule, tokens: int) -> bool:
    """Whether to compute a 1x1 convolution as one, which is a matter of speed alone."""
    if layer.kernel_size != (1, 1) or layer.groups != 1 or layer.stride != (1, 1) or tokens > LINEAR_TOKENS:
        return False
    return layer.out_channels <= layer.in_channels or tokens * layer.in_channels <= SMALL_MAP


def _activated(layer: ConvModule, x: Tensor) -> Tensor:
    """The layer's activation, in place: ``x`` is the caller's own."""
    if not layer.with_activation:
        return x
    act = layer.activate
    if not isinstance(act, nn.GELU) or act.approximate != "tanh" or x.dtype != torch.float32:
        return act(x)
    # x (1 + tanh z) / 2 = x sigmoid(2 z), z = sqrt(2 / pi) (x + 0.044715 x^3): half the time of PyTorch's kernel.
    z = (x * x).mul_(2 * _ROOT * 0.044715).add_(2 * _ROOT).mul_(x)
    return z.sigmoid_().mul_(x)


def strip_rows(layers: Sequence[ConvModule], x: Tensor) -> int:
    """Output rows to compute at a time; 0: all at once.

    Strips are for plain inference on a CPU with norms that know their statistics, and for maps that do not fit the
    cache.
    """
    if not in_plain_inference(x) or not all(can_fold(layer) for layer in layers):
        return 0
    # Values of each map that belong to one place of the output.
    stride, widths = 1, []
    for layer in reversed(layers):
        widths.append(layer.out_channels * stride * stride)
        stride *= layer.stride[0]
    widths.append(x.shape[1] * stride * stride)
    row_bytes = x.shape[0] * (x.shape[3] // stride + 1) * max(widths) * x.element_size()
    height = (x.shape[2] - 1) // stride + 1
    strips = min(round(height * row_bytes / STRIP_BYTES), height // MIN_ROWS)
    return math.ceil(height / strips) if strips > 1 else 0


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
        # Which rows of each layer's input the strip needs: from the last layer back to the first.
        needed = [(top, min(top + rows, heights[-1]))]
        for layer, height in zip(reversed(layers), reversed(heights[:-1]), strict=True):
            first, last = _rows_read(layer, needed[0])
            # Rows outside the map are zeros of this layer's padding, not outputs of the layer before.
            needed.insert(0, (max(first, 0), min(last, height)))
        y = x[:, :, needed[0][0] : needed[0][1]]
        for layer, folded, have, want in zip(layers, weights, needed, needed[1:], strict=False):
            y = _strip_of_layer(layer, folded, y, have, want)
        strips.append(y + x[:, :, needed[-1][0] : needed[-1][1]] if shortcut else y)
    return torch.cat(strips, dim=2)


def _rows_read(layer: ConvModule, rows: tuple[int, int]) -> tuple[int, int]:
    """The rows of the input, padding included, that rows [first, last) of the output are made of."""
    pad, stride = layer.kernel_size[0] // 2, layer.stride[0]
    return rows[0] * stride - pad, (rows[1] - 1) * stride + pad + 1


def _strip_of_layer(
    layer: ConvModule, folded: tuple[Tensor, Tensor | None], x: Tensor, have: tuple[int, int], want: tuple[int, int]
) -> Tensor:
    """Rows ``want`` of a layer's output from the rows ``have`` of its input."""
    first, last = _rows_read(layer, want)
    above, below = have[0] - first, last - have[1]
    if above or below:
        x = F.pad(x, (0, 0, above, below))
    x = F.conv2d(x, *folded, stride=layer.stride, padding=(0, layer.kernel_size[1] // 2), groups=layer.groups)
    return _activated(layer, x)
