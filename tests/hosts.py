"""Skip what needs a host library that cannot be used here, and say why."""

from __future__ import annotations

import pytest

from mmvit_plugins.environment import find_problems

HOSTS = ("mmseg", "mmdet", "mmpretrain")


def require_host(name: str) -> None:
    """Skip the running test, or the module that is collected, unless ``name`` can be imported, with its operators if it
    needs them."""
    problems = find_problems([name])
    if problems:
        pytest.skip(f"{name} cannot be used here: {' '.join(problems)}", allow_module_level=True)
