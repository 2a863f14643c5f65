"""More processes on one search: copies of the running command on the same storage."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

__all__ = ["helpers"]


@contextmanager
def helpers(module: str, argv: Sequence[str], count: int) -> Iterator[list[subprocess.Popen]]:
    """Start ``count`` processes ``python -m module argv --worker N`` (N from 1) and wait for them at the end.

    If this process fails or is interrupted, they are ended too; their open trials are closed by the next run.

    Args:
        module: the tool, such as ``mmvit_plugins.cli.search_exits``.
        argv: its arguments, as this process got them.
        count: helpers beside this process.

    Raises:
        RuntimeError: a helper failed.
    """
    path = os.pathsep.join(filter(None, [*sys.path, os.environ.get("PYTHONPATH")]))
    started = [
        subprocess.Popen(
            [sys.executable, "-m", module, *argv, "--worker", str(number)],
            stdout=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
        )
        for number in range(1, count + 1)
    ]
    try:
        yield started
        codes = [process.wait() for process in started]
    except BaseException:
        for process in started:
            if process.poll() is None:
                process.terminate()
        for process in started:
            process.wait()
        raise
    if any(codes):
        raise RuntimeError(f"{sum(map(bool, codes))} of {count} helper processes failed; their messages are above")
