"""How many tokens merge in each block of a transformer (ToMe).

Paper: Bolya, Fu, Dai, Zhang, Feichtenhofer, Hoffman, "Token Merging: Your ViT But Faster", ICLR 2023 (arXiv
2210.09461): constant and decreasing schedules.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real

__all__ = ["merge_schedule"]


def _is_whole(value: object) -> bool:
    """Whole numbers, those of NumPy too, but not True and False."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_inflection(value: object) -> bool:
    """The second number of a list of two that cannot be a count."""
    return isinstance(value, Real) and (not isinstance(value, Integral) or value < 0)


def merge_schedule(r: int | Sequence[int] | tuple[int, float], depth: int) -> list[int]:
    """How many pairs merge in each of ``depth`` blocks.

    Args:
        r: a number: the same in every block; a list: one for each block, missing ones are 0; a tuple
            ``(r, inflection)``: from int(r (1 - inflection)) in the first block in equal steps to 2 r minus that in the
            last, cut to whole numbers: -1 falls from 2 r to 0, 1 rises. A list of two whose second number is negative
            or a float counts as one.
        depth: number of blocks.

    Raises:
        ValueError: negative counts, more numbers than blocks, or an inflection outside -1 to 1.
    """
    if _is_whole(r):
        counts: list[int] = [int(r)] * depth
    elif isinstance(r, Sequence) and len(r) == 2 and (isinstance(r, tuple) or _is_inflection(r[1])):
        average, inflection = r
        if not -1 <= inflection <= 1 or average < 0:
            raise ValueError(f"(r, inflection) takes r >= 0 and an inflection from -1 to 1, got {tuple(r)}")
        start = int(average * (1.0 - inflection))
        step = (2 * average - 2 * start) / max(1, depth - 1)
        counts = [int(start + step * i) for i in range(depth)]
    elif isinstance(r, Sequence) and len(r) <= depth and all(map(_is_whole, r)):
        counts = [*map(int, r), *[0] * (depth - len(r))]
    else:
        raise ValueError(f"r must be a number, a list of at most {depth} whole numbers, or (r, inflection), got {r!r}")
    if min(counts) < 0:
        raise ValueError(f"r must be at least 0 in every block, got {counts} from {r!r}")
    return counts
