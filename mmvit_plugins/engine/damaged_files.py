"""Name the file when reading an image, a label map or a checkpoint fails.

The hosts' loaders decode bytes, so that Pillow's and OpenCV's messages do not say which of 100 000 files is broken,
and a cut-off JPEG is decoded with a grey lower half and no message at all.
"""

from __future__ import annotations

import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["DamagedFileError", "NamedLoader", "check_whole_image", "name_damaged_samples", "reading_checkpoint"]

# Where a whole file of the format ends. Cameras append data of their own behind it, hence the search in a tail.
END_MARKERS = {".jpg": b"\xff\xd9", ".jpeg": b"\xff\xd9", ".png": b"IEND"}
TAIL_BYTES = 4096
# What decoders raise for broken data; Pillow raises SyntaxError for a broken PNG. Anything else is a bug and stays one.
DECODING_ERRORS = (OSError, ValueError, AssertionError, EOFError, SyntaxError, struct.error, zlib.error)
PATH_KEYS = ("img_path", "seg_map_path", "depth_map_path", "filename")


class DamagedFileError(RuntimeError):
    """A file is there but cannot be read. The message names it. Takes one string, so it can cross a worker process."""


def check_whole_image(path: str | Path) -> None:
    """Raise :class:`DamagedFileError` if the JPEG or PNG at ``path`` is cut off.

    Cheap for whole files: it reads the last 4 KiB, and decodes the image only if the end marker is not there. Paths
    that are no local file, and other formats, pass.
    """
    path = str(path)
    marker = END_MARKERS.get(os.path.splitext(path)[1].lower())
    if marker is None or not os.path.isfile(path):
        return
    with open(path, "rb") as file:
        file.seek(max(os.path.getsize(path) - TAIL_BYTES, 0))
        if marker in file.read():
            return
    from PIL import Image

    try:
        with Image.open(path) as image:
            image.load()
    except Exception as error:
        raise DamagedFileError(f"cannot read image {os.path.abspath(path)}: {error}") from error


class NamedLoader:
    """A loading transform of any host that names the file when it fails. Picklable, so it works in worker processes.

    Args:
        transform: the transform of the host, called with the dict of one sample.
    """

    def __init__(self, transform: Callable[[dict], dict | None]) -> None:
        self.transform = transform

    def __call__(self, results: dict) -> dict | None:
        paths = [str(results[key]) for key in PATH_KEYS if isinstance(results.get(key), (str, Path))]
        try:
            for path in paths:
                check_whole_image(path)
            return self.transform(results)
        except (DamagedFileError, FileNotFoundError):
            raise
        except Exception as error:
            if not paths or not (isinstance(error, DECODING_ERRORS) or type(error).__module__.startswith("cv2")):
                raise
            where = " with ".join(os.path.abspath(path) if os.path.exists(path) else path for path in paths)
            what = f"{type(self.transform).__name__}: {type(error).__name__}: {error}"
            raise DamagedFileError(f"cannot read the sample {where} ({what})") from error

    def __getattr__(self, name: str) -> Any:
        # Hosts look at attributes of their transforms (``reduce_zero_label``, ``with_mask``).
        if name == "transform":  # unpickling asks before __init__ has run
            raise AttributeError(name)
        return getattr(self.transform, name)

    def __repr__(self) -> str:
        return repr(self.transform)


def name_damaged_samples(dataset: Any) -> None:
    """Wrap the loading transforms of ``dataset``, and of the datasets that it wraps, in :class:`NamedLoader`, in
    place."""
    for wrapped in [getattr(dataset, "dataset", None), *(getattr(dataset, "datasets", None) or [])]:
        if wrapped is not None:
            name_damaged_samples(wrapped)
    transforms = getattr(getattr(dataset, "pipeline", None), "transforms", None)
    if isinstance(transforms, list):
        transforms[:] = [
            NamedLoader(transform) if type(transform).__name__.startswith("Load") else transform
            for transform in transforms
        ]


@contextmanager
def reading_checkpoint(path: str | Path) -> Iterator[None]:
    """Turn what torch raises for a file that is no whole checkpoint into a :class:`DamagedFileError` naming
    ``path``."""
    try:
        yield
    except (EOFError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        raise DamagedFileError(_damaged_checkpoint(path, error)) from error
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except (RuntimeError, ValueError, KeyError, IndexError, AttributeError, OSError) as error:
        # OSError: of a small file that is cut off, PyTorch seeks the end before its beginning.
        if not _raised_while_unpickling(error):
            raise
        raise DamagedFileError(_damaged_checkpoint(path, error)) from error


def _damaged_checkpoint(path: str | Path, error: Exception) -> str:
    size = os.path.getsize(path) if os.path.isfile(path) else 0
    reason = (str(error).splitlines() or [""])[0]
    return (
        f"cannot read checkpoint {os.path.abspath(path)} ({size} bytes): {type(error).__name__}: {reason} "
        "It is cut off or no checkpoint of PyTorch; copy or download it again."
    )


def _raised_while_unpickling(error: BaseException) -> bool:
    """Whether ``error`` comes out of ``torch.load``, and not out of the code that uses what was loaded."""
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename.replace(os.sep, "/").endswith("torch/serialization.py"):
            return True
        frame = frame.tb_next
    return False
