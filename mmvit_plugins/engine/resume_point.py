"""The checkpoint that an interrupted training goes on from.

mmengine writes checkpoints in place and trusts the file named by ``last_checkpoint``: a process that is killed while it
saves leaves a cut-off file as the latest one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mmengine.runner import CheckpointLoader

from .damaged_files import DamagedFileError, reading_checkpoint

__all__ = ["find_resume_point", "publish_whole_file", "read_training_state"]

NUMBERED = re.compile(r"(?:iter|epoch)_(\d+)\.pth")
UNFINISHED = ".part"


def read_training_state(path: str | Path) -> dict[str, Any]:
    """Load a checkpoint of a training to the CPU.

    Raises:
        DamagedFileError: it cannot be read, or it holds weights only, with no place in the training to go on from.
    """
    with reading_checkpoint(path):
        checkpoint = CheckpointLoader.load_checkpoint(str(path), map_location="cpu")
    if not isinstance(checkpoint, dict) or "meta" not in checkpoint or "iter" not in checkpoint["meta"]:
        raise DamagedFileError(
            f"{os.path.abspath(path)} is no checkpoint of a training (it holds no meta.iter), so no training can go "
            "on from it. To start a new training with its weights: --cfg-options load_from=FILE, without --resume."
        )
    return checkpoint


def find_resume_point(work_dir: str | Path, warn: Callable[[str], None]) -> str | None:
    """The newest whole checkpoint of ``work_dir``, or None if it has none.

    First the one that ``last_checkpoint`` names, by its path or, in a folder that has been moved, by its name; then
    the numbered ones before it, newest first.

    Args:
        work_dir: folder of the training.
        warn: called with a sentence for each damaged file that is passed over.

    Raises:
        DamagedFileError: there are checkpoints, and none of them is whole; all are named.
    """
    damaged: list[str] = []
    for path in _candidates(Path(work_dir)):
        try:
            read_training_state(path)
        except DamagedFileError as error:
            damaged.append(str(error))
            continue
        if damaged:
            warn(f"{' '.join(damaged)} Going on from {path} instead.")
        return str(path)
    if damaged:
        raise DamagedFileError(f"no checkpoint of {Path(work_dir).absolute()} is whole: {' '.join(damaged)}")
    return None


def _candidates(work_dir: Path) -> Iterator[Path]:
    pointer = work_dir / "last_checkpoint"
    named = pointer.read_text().strip() if pointer.is_file() else ""
    last = None
    if named:  # an empty file: killed between opening and writing it
        places = [Path(named), work_dir / Path(named).name]
        last = next((place for place in places if place.is_file()), None)
    folder = last.parent if last else work_dir
    numbers = {path: int(match[1]) for path in folder.glob("*.pth") if (match := NUMBERED.fullmatch(path.name))}
    newest = numbers.get(last) if last else None
    if last:
        yield last
    for path in sorted(numbers, key=numbers.__getitem__, reverse=True):
        # Later ones than the last are from an earlier, longer training in the same folder.
        if path != last and (newest is None or numbers[path] < newest):
            yield path


def publish_whole_file(unfinished: Path, final: Path) -> None:
    """Give a completely written file its final name, in one step that leaves the old file or the new one."""
    with open(unfinished, "rb") as file:
        os.fsync(file.fileno())
    os.replace(unfinished, final)
