"""Pruning ratios of SparseViT: how they are given, what is legal, and how adaptation draws them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..token_reduction.window_pruning import check_ratio, kept_count

__all__ = ["PUBLISHED_RATIOS", "check_counts", "draw_ratios", "kept_counts", "resolve_ratios"]

# A number for everything, one for each stage, or one for each block of a stage.
PruningRatios = float | Sequence[float | Sequence[float]]

# What sparsity-aware adaptation and the search choose from (the authors' code).
PUBLISHED_RATIOS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def resolve_ratios(ratios: PruningRatios, depths: Sequence[int]) -> tuple[tuple[float, ...], ...]:
    """``ratios`` in any of its forms as one tuple for each stage with one number for each block.

    Args:
        ratios: one number; a sequence with one entry for each stage, itself a number or one number for each block.
        depths: blocks of each stage.

    Raises:
        ValueError: a number outside [0, 1), or another count of stages or blocks.
    """
    stages = list(ratios) if _is_list(ratios) else [ratios] * len(depths)
    if len(stages) != len(depths):
        raise ValueError(
            f"pruning_ratios must be one number or have one entry for each of {len(depths)} stages, got {ratios!r}"
        )
    resolved = []
    for i, (stage, depth) in enumerate(zip(stages, depths, strict=True)):
        blocks = list(stage) if _is_list(stage) else [stage] * depth
        if len(blocks) != depth:
            raise ValueError(
                f"pruning_ratios of stage {i} must be one number or one for each of its {depth} blocks, got {stage!r}"
            )
        resolved.append(
            tuple(check_ratio(ratio, f"pruning_ratios of stage {i}, block {j},") for j, ratio in enumerate(blocks))
        )
    return tuple(resolved)


def kept_counts(ratios: Sequence[float], windows: int) -> list[int]:
    """Windows that each block of a stage keeps out of ``windows``."""
    return [kept_count(windows, ratio) for ratio in ratios]


def check_counts(ratios: Sequence[float], windows: int, stage: int) -> list[int]:
    """:func:`kept_counts`, after checking that they do not grow.

    Windows are ranked once in a stage for each parity (plain and shifted partition), and later blocks keep a prefix of
    what earlier ones of their parity kept. The rule is on counts: ratios may fall where the count stays the same.

    Raises:
        ValueError: a block would keep more windows than an earlier one of its parity.
    """
    counts = kept_counts(ratios, windows)
    for j in range(2, len(counts)):
        if counts[j] > counts[j - 2]:
            raise ValueError(
                f"pruning_ratios of stage {stage} let block {j} keep {counts[j]} of {windows} windows, but block "
                f"{j - 2} before it only {counts[j - 2]}: within a stage, blocks of the same partition (even: plain, "
                f"odd: shifted) may not keep more than earlier ones. Got {list(ratios)}; sort them ascending."
            )
    return counts


def draw_ratios(
    depths: Sequence[int], rng: np.random.Generator, choices: Sequence[float] = PUBLISHED_RATIOS
) -> tuple[tuple[float, ...], ...]:
    """Random ratios of sparsity-aware adaptation (section 3 of the paper; distribution of the authors' code).

    For each stage one draw for each two consecutive blocks (plain and shifted), uniform among ``choices``, sorted
    ascending.

    Args:
        depths: blocks of each stage.
        rng: where the random numbers come from; nothing else is touched.
        choices: ratios to draw from.
    """
    stages = []
    for depth in depths:
        pairs = sorted(float(choices[i]) for i in rng.integers(len(choices), size=-(-depth // 2)))
        stages.append(tuple(pairs[j // 2] for j in range(depth)))
    return tuple(stages)
