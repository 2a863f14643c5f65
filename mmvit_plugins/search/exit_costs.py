"""What a sample costs that leaves a cascade at a given exit."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .latency import trimmed_mean_seconds

__all__ = ["COSTS", "exit_costs", "exit_gmacs", "exit_milliseconds"]


def _runs(model: nn.Module, images: Tensor) -> list[Callable[[], object]]:
    """For each exit a call that runs the models up to it, heads included."""

    def run(upto: int) -> None:
        state = None
        with torch.no_grad():
            for number in range(upto + 1):
                token, state = model.backbone.run_exit(number, images, state)
                model.head.exits[number]((token,)).softmax(dim=-1)

    return [lambda upto=number: run(upto) for number in range(model.num_exits)]


def exit_gmacs(model: nn.Module, images: Tensor) -> tuple[float, ...]:
    """Multiply-adds in 10^9 of one sample up to each exit.

    Matrix products, convolutions and attention, as everywhere; the reuse of features and relations is part of the exit
    that reuses them. What the papers call FLOPs.

    Args:
        model: ``DVTClassifier`` in eval mode.
        images: (B, 3, H, W).
    """
    from mmvit_plugins.benchmark.counting import count_flops

    return tuple(count_flops(run) / 2e9 / len(images) for run in _runs(model, images))


def exit_milliseconds(model: nn.Module, images: Tensor, rounds: int = 15) -> tuple[float, ...]:
    """Milliseconds of one sample up to each exit on the images' device, in batches of the given size.

    Rounds go through all exits in turn, so that a drift of the machine meets all; the inner half is averaged.
    """
    seconds = trimmed_mean_seconds(_runs(model, images), images.device.type, rounds)
    return tuple(1e3 * value / len(images) for value in seconds)


COSTS: dict[str, tuple[str, Callable[[nn.Module, Tensor], tuple[float, ...]]]] = {
    "flops": ("GMAC", exit_gmacs),
    "latency": ("ms", exit_milliseconds),
}


def exit_costs(model: nn.Module, images: Tensor, kind: str) -> tuple[tuple[float, ...], str]:
    """Costs up to each exit, made non-decreasing, and their unit; ``kind`` is a key of ``COSTS``.

    Raises:
        ValueError: another kind.
    """
    if kind not in COSTS:
        raise ValueError(f"a cost is one of {', '.join(COSTS)}, got {kind!r}")
    unit, measure = COSTS[kind]
    costs = [max(value, 0.0) for value in measure(model, images)]
    for number in range(1, len(costs)):
        costs[number] = max(costs[number], costs[number - 1])
    return tuple(costs), unit
