"""Peak memory of one call, on a CPU in a process of its own."""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
from collections.abc import Callable

import torch

from .settings import Setting
from .timing import resident_kib

__all__ = ["peak_mib"]


def peak_mib(call: Callable[[], object], source: dict, setting: Setting, device: str, threads: int) -> float | None:
    """MiB that one call adds at its peak to what was there before it (weights and inputs are not counted).

    On a GPU it is torch's own account. On a CPU a new process builds the model and reports the growth of its peak
    resident size, because this one holds the leftovers of everything that ran before; Linux only, None elsewhere.

    Args:
        call: one step, for a GPU.
        source: what :class:`Subject` is made from, for the new process.
        setting: how it is run.
        device: where.
        threads: torch threads of the new process.

    Raises:
        RuntimeError: the new process failed; with the end of its messages.
    """
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    if not sys.platform.startswith("linux"):
        return None
    request = json.dumps(dict(source=source, setting=setting.as_dict(), threads=threads))
    command = [sys.executable, "-m", "mmvit_plugins.benchmark.memory", request]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"measuring memory failed with exit code {done.returncode}: {done.stderr.strip()[-800:]}")
    return float(done.stdout.strip().splitlines()[-1])


def _measure(request: str) -> float:
    """The other side of :func:`peak_mib`: the growth of this process's peak by one step, in MiB."""
    from .subject import Subject

    given = json.loads(request)
    torch.set_num_threads(given["threads"])
    setting = Setting(**given["setting"])
    subject = Subject(**given["source"])
    small = Setting(**(given["setting"] | dict(height=min(setting.height, 64), width=min(setting.width, 64))))
    subject.step(small)()  # what the first call loads stays resident and is not the step's
    call = subject.step(setting)
    _give_back_freed_memory()
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:  # forget the peak of imports and building
        file.write("5")
    before = resident_kib("VmRSS")
    call()
    return (resident_kib("VmHWM") - before) / 1024


def _give_back_freed_memory() -> None:
    """Return to the system what building and rendering freed: a call that reused it would seem to need less."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; other C libraries return memory by themselves
    if trim is not None:
        trim(0)


if __name__ == "__main__":
    print(_measure(sys.argv[1]))
