"""Activation checkpointing that leaves the same trace as a plain forward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

__all__ = ["checkpoint_module"]


@contextmanager
def _frozen_statistics(module: nn.Module) -> Iterator[None]:
    """The second forward pass of a checkpointed module must not move its running statistics once more."""
    norms = [m for m in module.modules() if isinstance(m, _BatchNorm) and m.training and m.track_running_stats]
    before = [(m.momentum, m.num_batches_tracked) for m in norms]
    for m in norms:
        m.momentum = 0.0
        m.num_batches_tracked = m.num_batches_tracked.clone()
    try:
        yield
    finally:
        for m, (momentum, tracked) in zip(norms, before, strict=True):
            m.momentum, m.num_batches_tracked = momentum, tracked


def checkpoint_module(module: nn.Module, *args: Any) -> Any:
    """``module(*args)``, its activations recomputed in the backward pass.

    The non-reentrant form: works under DDP with and without ``find_unused_parameters``, and does not need an input that
    requires grad. Gradients and batch norm statistics equal those of a plain call.
    """
    if not torch.is_grad_enabled():
        return module(*args)
    if torch.compiler.is_compiling():
        # The compiler takes no context_fn; what it recomputes does not write to buffers a second time.
        return checkpoint(module, *args, use_reentrant=False)

    def contexts() -> tuple[AbstractContextManager, AbstractContextManager]:
        return nullcontext(), _frozen_statistics(module)

    return checkpoint(module, *args, use_reentrant=False, context_fn=contexts)
