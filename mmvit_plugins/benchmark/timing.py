"""Times that can be compared on a machine whose speed drifts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch

__all__ = ["interleaved_seconds", "resident_kib", "seconds_of"]


def seconds_of(call: Callable[[], object], device: str = "cpu") -> float:
    """Wall time of one call; on a GPU until the device has finished."""
    wait = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    wait()
    start = time.perf_counter()
    call()
    wait()
    return time.perf_counter() - start


def interleaved_seconds(
    calls: Mapping[str, Callable[[], object]],
    rounds: int,
    warmup: int = 1,
    device: str = "cpu",
    shortest: float = 0.05,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Times of each call, one for each round; in a round every call has its turn, so that all see the same machine.

    Args:
        calls: by name.
        rounds: measured rounds, at least 1.
        warmup: calls of each before the first round, not measured.
        device: where the calls run.
        shortest: a call that takes less, in seconds, is repeated within its turn and the fastest counts, so that one
            interruption does not decide.
        advance: called after each call, for a progress bar.

    Raises:
        ValueError: no round.
    """
    if rounds < 1 or warmup < 0:
        raise ValueError(f"rounds must be at least 1 and warmup at least 0, got {rounds} and {warmup}")
    for call in calls.values():
        for _ in range(warmup):
            call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            first = seconds_of(call, device)
            more = min(20, round(shortest / max(first, 1e-6))) - 1
            times[name].append(min([first, *(seconds_of(call, device) for _ in range(more))]))
            advance()
    return times


def resident_kib(field: str) -> int:
    """A line of Linux's /proc/self/status in KiB: VmRSS is the resident size, VmHWM its peak."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field + ":"))
