"""Where a search keeps its trials: a journal file or a database, shared by workers, safe against kills."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

from optuna import Study
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import FrozenTrial, TrialState

__all__ = ["MendingJournalBackend", "free_stale_trials", "open_storage", "owner_mark", "queue_again"]

OWNER = "owner"


class MendingJournalBackend(JournalFileBackend):
    """Optuna's journal file, which also survives a writer that was killed in the middle of a line.

    Optuna refuses a journal with a broken line in it; here a line without an end is cut off, under the lock, before the
    next one is written. Works on network file systems (the lock is a symbolic link; one that a killed worker left is
    passed over after 30 s).

    Args:
        path: the file; made if it is not there.
    """

    def __init__(self, path: str) -> None:
        self.path, self.lock = path, JournalFileSymlinkLock(path)
        super().__init__(path, self.lock)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Write whole lines at the end of the whole lines."""
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
        self.lock.acquire()
        try:
            with open(self.path, "r+b") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(self._end_of_lines(file, end))
                file.truncate()
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
        finally:
            self.lock.release()

    @staticmethod
    def _end_of_lines(file: Any, end: int) -> int:
        """The place behind the last line end before ``end``."""
        while end:
            start = max(0, end - 65536)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
        return 0


def open_storage(name: str | Path) -> BaseStorage:
    """A storage by its name.

    Args:
        name: ``*.db`` a SQLite file, ``scheme://...`` any database that Optuna knows, else a journal file.

    Raises:
        ValueError: the folder of a file is missing.
    """
    text = str(name)
    if "://" in text:
        return RDBStorage(text)
    path = Path(text).absolute()
    if not path.parent.is_dir():
        raise ValueError(f"the storage {path} lies in a folder that is not there: make it, or choose another file")
    if path.suffix == ".db":
        return RDBStorage(f"sqlite:///{path}", engine_kwargs=dict(connect_args=dict(timeout=60)))
    return JournalStorage(MendingJournalBackend(str(path)))


def owner_mark() -> str:
    """``host:pid:start`` of this process."""
    return f"{socket.gethostname()}:{os.getpid()}:{_start_of(os.getpid())}"


def _start_of(pid: int) -> str | None:
    """When a process of this machine began (the kernel's clock ticks); None where there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
        try:  # no /proc here: the number alone must do
            os.kill(pid, 0)
        except OSError:
            return None
        return "0"
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


def _is_gone(mark: str | None) -> bool:
    """Whether the worker that set the mark ran on this machine and does not any more."""
    if not mark:
        return False
    host, pid, start = mark.rsplit(":", 2)
    return host == socket.gethostname() and _start_of(int(pid)) != start


def free_stale_trials(study: Study) -> list[FrozenTrial]:
    """Close trials whose worker was killed and queue their parameters once more; returns them.

    Only trials of this machine: whether a worker of another one lives cannot be seen from here, and its open trials
    harm nobody.
    """
    stale = [
        trial
        for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        if _is_gone(trial.user_attrs.get(OWNER))
    ]
    closed = []
    for trial in stale:
        try:
            study.tell(trial.number, state=TrialState.FAIL)
        except (ValueError, RuntimeError):  # another worker was faster
            continue
        queue_again(study, trial)
        closed.append(trial)
    return closed


def queue_again(study: Study, trial: FrozenTrial) -> None:
    """Let the next trial take the parameters of one that was not finished; nothing if it had none.

    A trial may end while it draws its parameters: those that it had are kept, the others are drawn anew. One that
    repeats an earlier trial also has the parameters that it was to repeat.
    """
    parameters = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
    if parameters:
        study.enqueue_trial(parameters)
