"""Options and fixtures of the whole suite."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--goldens DIR``: compare with the manifests of another folder as well; may be given several times."""
    parser.addoption("--goldens", action="append", default=[], metavar="DIR", help="another folder of golden outputs")


@pytest.fixture(scope="session", autouse=True)
def threads() -> None:
    """The suite is made for two cores: one process with two threads, or workers of pytest-xdist with one each.

    Processes that tests start inherit it.
    """
    count = 1 if "PYTEST_XDIST_WORKER" in os.environ else 2
    os.environ.setdefault("OMP_NUM_THREADS", str(count))
    torch.set_num_threads(count)


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    """Every test draws the same random numbers, whatever ran before it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.fixture
def root() -> Path:
    """The checkout."""
    return ROOT
