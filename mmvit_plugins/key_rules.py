"""Renaming of state dicts by rules, total: every key is either mapped or named as known and not needed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

__all__ = ["KeyRule", "apply_rules", "squeeze_1x1", "strip_prefixes"]

# pattern; replacement (a template or a function of the match), None: known and not needed; change of the tensor
KeyRule = tuple[str, "str | Callable[[re.Match[str]], str] | None", "Callable[[Tensor], Tensor] | None"]

# What wrappers put before every key, in any order and nesting.
WRAPPER_PREFIXES = ("module.", "_orig_mod.", "backbone.", "model.", "state_dict.")


def squeeze_1x1(weight: Tensor) -> Tensor:
    """Kernel of a 1x1 convolution (out, in, 1, 1) -> weight of a linear layer (out, in); others unchanged."""
    return weight.flatten(1) if weight.dim() == 4 and weight.shape[2:] == (1, 1) else weight


def apply_rules(state: Mapping[str, Tensor], rules: Sequence[KeyRule], family: str) -> dict[str, Tensor]:
    """A new state dict with every key rewritten by the first rule whose pattern matches the whole key.

    Raises:
        ValueError: keys that no rule knows, or two keys that would get the same name.
    """
    compiled = [(re.compile(pattern), replacement, change) for pattern, replacement, change in rules]
    renamed: dict[str, Tensor] = {}
    unknown: list[str] = []
    for key, value in state.items():
        for pattern, replacement, change in compiled:
            match = pattern.fullmatch(key)
            if match is None:
                continue
            if replacement is not None:
                new_key = replacement(match) if callable(replacement) else match.expand(replacement)
                if new_key in renamed:
                    raise ValueError(f"two keys of this {family} checkpoint become {new_key!r}, the second is {key!r}")
                renamed[new_key] = value if change is None else change(value)
            break
        else:
            unknown.append(key)
    if unknown:
        shown = ", ".join(unknown[:5]) + (", ..." if len(unknown) > 5 else "")
        raise ValueError(
            f"{len(unknown)} of {len(state)} keys are not keys of an official {family} checkpoint: {shown}"
        )
    return renamed


def strip_prefixes(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Remove prefixes that wrappers put before *all* keys (``module.``, ``_orig_mod.``, ``backbone.`` ...), nested too.

    ``_orig_mod.`` goes wherever it is, because compiled submodules carry it inside the key.
    """
    state = {key.replace("_orig_mod.", ""): value for key, value in state.items()}
    while state:
        for prefix in WRAPPER_PREFIXES:
            if all(key.startswith(prefix) for key in state):
                state = {key[len(prefix) :]: value for key, value in state.items()}
                break
        else:
            return state
    return state
