"""One place that turns a user's error into a message with the fix, and lets real bugs keep their traceback."""

from __future__ import annotations

import argparse
import linecache
import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from mmvit_plugins.environment import UnsuitableEnvironment

__all__ = ["UserError", "explain", "run_tool"]

PACKAGE = Path(__file__).resolve().parents[1]


class UserError(Exception):
    """Wrong input: the message says what was received, what is legal, and what to change. The tool ends with 2."""

    exit_code = 2


def run_tool(tool: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Run ``tool`` and return its exit code; a user's error is printed without a traceback, unless ``--debug`` is
    given.

    Returns:
        The tool's own code; 2 for a wrong argument or missing file, 1 for a failed run, 130 for Ctrl-C.
    """
    try:
        return tool(args)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except Exception as error:
        message = explain(error)
        if message is None:
            raise
        if getattr(args, "debug", False):
            traceback.print_exc()
        sys.stdout.flush()
        print(f"\nerror: {message}", file=sys.stderr)
        if not getattr(args, "debug", False):
            print("(--debug shows where it happened)", file=sys.stderr)
        return getattr(error, "exit_code", 1)


def explain(error: BaseException) -> str | None:
    """The message for an error that its user can mend, None for a bug."""
    # Imported late: the engine needs torch, which may be the very thing that is missing.
    if isinstance(error, (UserError, UnsuitableEnvironment)):
        return str(error)
    kind, text = type(error).__name__, str(error)
    if kind == "DamagedFileError":
        return _innermost(text, kind)
    if isinstance(error, FileNotFoundError):
        return _missing_file(error)
    if isinstance(error, ModuleNotFoundError):
        fix = f"{sys.executable} -m pip install {_distribution(error.name)}"
        return f"the Python package {error.name!r} is missing: {fix}"
    if isinstance(error, KeyError) and "registry" in text and "is not in the" in text:
        return f"the config names something that nobody has registered: {text.strip(chr(34))}"
    if isinstance(error, IndexError) and re.search(r"Target \d+ is out of bounds", text):
        return (
            f"{text} The label maps hold a value that is neither a class 0..n-1 nor the ignored one; the warning about "
            "label values above names them. Change the label maps, num_classes of the heads, or reduce_zero_label."
        )
    if kind == "OutOfMemoryError":
        first = text.splitlines()[0]
        return (
            f"{first}\nSmaller: --cfg-options train_dataloader.batch_size=1, --amp, or model.backbone.with_cp=True "
            "(recomputes activations in the backward pass)."
        )
    if isinstance(error, RuntimeError) and "Expected to have finished reduction in the prior iteration" in text:
        return (
            "with several processes every parameter must take part in the loss, and some did not: most often a stage "
            "of the backbone whose output no head uses. Name the stages that are used in model.backbone.out_indices "
            "(and set the heads' in_index to match), or set find_unused_parameters=True, which is slower."
        )
    if isinstance(error, ValueError) and _raised_by_us(error):
        return text
    return None


def _innermost(text: str, kind: str) -> str:
    """The message alone, out of the traceback text that a data-loading worker puts around it."""
    return text.rpartition(f"{kind}: ")[2].strip() if "Original Traceback" in text else text


def _missing_file(error: FileNotFoundError) -> str:
    start = f"relative paths start at {os.getcwd()}"
    if error.filename is None:  # raised with a message by a host, or sent by a worker process
        return f"{_innermost(str(error), 'FileNotFoundError')} ({start})"
    return f"there is no {os.path.abspath(error.filename)} (given as {error.filename!r}; {start})"


def _distribution(module: str | None) -> str:
    names = {"cv2": "opencv-python-headless", "PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml"}
    top = (module or "").partition(".")[0]
    return names.get(top, top)


def _raised_by_us(error: BaseException) -> bool:
    """Whether a ``raise`` statement of this package made ``error``: these have a message for the user by contract.

    A ValueError that Python raises for a mistake of ours (unpacking, int("x")) comes from another kind of line.
    """
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return False
    last = frames[-1]
    line = last.line or linecache.getline(last.filename, last.lineno or 0)
    return PACKAGE in Path(last.filename).resolve().parents and line.strip().startswith("raise ")
