"""How a loss that arises inside a backbone reaches the model that trains it.

The hosts' models call ``backbone(inputs)`` and then their heads: there is no place for a loss of the backbone. A module
reports its loss with :func:`report_losses`; a model that wraps its ``loss()`` in :func:`collect_losses` gets them.
Nothing is kept on any module, threads do not see each other, and the loss is a term of the model's loss like any other:
logged, scaled with it, its gradients averaged over processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

__all__ = ["BackboneLosses", "collect_losses", "is_collecting", "report_losses"]

_COLLECTED: ContextVar[dict[str, Tensor] | None] = ContextVar("collected_losses", default=None)


@contextmanager
def collect_losses() -> Iterator[dict[str, Tensor]]:
    """The losses that are reported inside the block, in a new dict. Blocks may be nested: the inner one gets them."""
    losses: dict[str, Tensor] = {}
    token = _COLLECTED.set(losses)
    try:
        yield losses
    finally:
        _COLLECTED.reset(token)


def is_collecting() -> bool:
    """Whether anybody waits for losses."""
    return _COLLECTED.get() is not None


def report_losses(losses: Mapping[str, Tensor]) -> None:
    """Hand losses to the model around. Names with "loss" in them are added up by mmengine, others only logged.

    Outside of :func:`collect_losses` nothing happens. A name that was reported before in this block is added to.
    """
    collected = _COLLECTED.get()
    if collected is not None:
        for name, value in losses.items():
            collected[name] = collected[name] + value if name in collected else value


class BackboneLosses:
    """Mixin for a host's model (any with a ``loss`` method): its losses and those that its parts report."""

    def loss(self, inputs: Tensor, data_samples: list) -> dict[str, Tensor]:
        """As the host's, with the reported losses as well."""
        with collect_losses() as reported:
            losses = super().loss(inputs, data_samples)
        return {**losses, **reported}
