"""FLOPs by torch's FlopCounterMode, with the operators that it leaves out or counts wrongly."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

__all__ = ["count_flops"]


def _attention(query: Any, key: Any, value: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    """The fused kernel for CPUs: (B, heads, N, head width) each, 2 FLOPs a multiply-add, both products."""
    return sdpa_flop_count(*(_shape(x) for x in (query, key, value)))


def _attention_backward(
    grad_out: Any, query: Any, key: Any, value: Any, *args: Any, out_shape: Any = None, **kwargs: Any
) -> int:
    """Five products of the forward's size: the scores again, and the gradients of value, scores, query and key."""
    return sdpa_flop_count(*(_shape(x) for x in (query, key, value))) * 5 // 2


def _convolution_backward(
    grad_out: Any,
    inputs: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    output_mask: list[bool],
    out_shape: Any = None,
) -> int:
    """As many multiply-adds as the forward pass for each wanted gradient (torch 2.10 takes grouped ones for dense)."""
    positions = math.prod(_shape(inputs if transposed else grad_out))
    return 2 * positions * math.prod(_shape(weight)[1:]) * (bool(output_mask[0]) + bool(output_mask[1]))


def _shape(x: Any) -> torch.Size:
    """torch 2.4 hands over tensors or shapes, depending on the wrapper."""
    return x.shape if isinstance(x, Tensor) else torch.Size(x)


def _corrections() -> dict[Any, Callable[..., int]]:
    aten = torch.ops.aten
    found: dict[Any, Callable[..., int]] = {aten.convolution_backward: _convolution_backward}
    for name, count in (
        ("_scaled_dot_product_flash_attention_for_cpu", _attention),
        ("_scaled_dot_product_flash_attention_for_cpu_backward", _attention_backward),
    ):
        if hasattr(aten, name):
            found[getattr(aten, name)] = count
    return found


def count_flops(call: Callable[[], object]) -> int:
    """FLOPs of one call: matrix products, convolutions and attention, fused attention included.

    2 FLOPs are one multiply-add, so MACs are half of it. Element-wise work (norms, activations, softmax) is not
    counted, as everywhere in the field. What depends on the data (kept windows, merged tokens) is counted as it
    happens: the call's own input decides.

    Args:
        call: runs what is to be counted once, in eager mode.
    """
    with FlopCounterMode(display=False, custom_mapping=_corrections()) as counter:
        call()
    return int(counter.get_total_flops())
