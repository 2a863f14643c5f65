"""Heads for the host libraries. Each module imports its host, so none of them is imported before it is asked for.

In configs they are found by their registered names (``registry.HOSTED``), in Python by attribute access.
"""

from __future__ import annotations

import importlib
from typing import Any

from mmvit_plugins.registry import HOSTED

__all__ = ["EfficientViTClsHead", "EfficientViTSegHead"]  # noqa: F822


def __getattr__(name: str) -> Any:
    """The head of that name, its host imported now."""
    if name in HOSTED and HOSTED[name].startswith(f"{__name__}."):
        return getattr(importlib.import_module(HOSTED[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
