"""The rows of one setting: every model in turn, and those that fail left out and remembered."""

from __future__ import annotations

import statistics
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from .counting import count_flops
from .memory import peak_mib
from .settings import Setting
from .subject import Subject
from .timing import interleaved_seconds

__all__ = ["Failure", "Procedure", "measure"]


@dataclass(frozen=True)
class Procedure:
    """How it is measured.

    Args:
        rounds: timed rounds.
        warmup: calls before the first round.
        device: where.
        flops_images: inference FLOPs are the mean over so many images.
        memory: measure peak memory.
    """

    rounds: int = 5
    warmup: int = 1
    device: str = "cpu"
    flops_images: int = 1
    memory: bool = True


@dataclass(frozen=True)
class Failure:
    """A model that could not be measured in a setting.

    Args:
        name: of the model.
        setting: which.
        error: what was raised.
        what: what is missing now.
    """

    name: str
    setting: Setting
    error: Exception
    what: str = "not measured"

    def __str__(self) -> str:
        text = f"{type(self.error).__name__}: {self.error}"
        if "more than 1 value per channel" in text:
            text += " (a batch norm over a pooled 1x1 map cannot train on one image: --batch 2)"
        return f"{self.name}, {self.setting}: {self.what}: {text}"

    def traceback(self) -> str:
        """For --debug."""
        return "".join(traceback.format_exception(self.error))


class _StepFailed(Exception):
    """Says which of several calls raised; the error is its cause."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def measure(
    subjects: Sequence[Subject],
    sources: Mapping[str, Mapping[str, Any]],
    setting: Setting,
    procedure: Procedure,
    advance: Callable[[], None] = lambda: None,
) -> tuple[list[dict[str, Any]], list[Failure]]:
    """Count, time and weigh models in one setting.

    Args:
        subjects: the models.
        sources: what each row depends on, by name (:func:`source_of`); goes into the row.
        setting: how they are run.
        procedure: how that is measured.
        advance: called after each timed turn.

    Returns:
        A row for each model that ran, and the failures of the others. A model whose memory alone could not be
        measured has both.
    """
    failures: list[Failure] = []

    def failed(subject: Subject, error: Exception, what: str = "not measured") -> None:
        subject.release()
        failures.append(Failure(subject.name, setting, error, what))

    flops, calls = {}, {}
    for subject in subjects:
        try:
            flops[subject.name] = _flops_per_image(subject, setting, procedure)
            calls[subject.name] = _named(subject.name, subject.step(setting))
        except Exception as error:
            failed(subject, error)
    times: dict[str, list[float]] = {}
    while calls:
        try:
            times = interleaved_seconds(calls, procedure.rounds, procedure.warmup, procedure.device, advance=advance)
            break
        except _StepFailed as error:  # the others begin anew: their rounds are to lie side by side
            cause = error.__cause__
            failed(next(s for s in subjects if s.name == error.name), cause if isinstance(cause, Exception) else error)
            del calls[error.name]
    rows = []
    for subject in subjects:
        if subject.name not in calls:
            continue
        row = _row(subject, sources[subject.name], setting, flops[subject.name], times[subject.name], procedure)
        if procedure.memory:
            row["peak_mib"] = None
            try:
                mib = peak_mib(
                    subject.step(setting), subject.source, setting, procedure.device, torch.get_num_threads()
                )
                row["peak_mib"] = None if mib is None else round(mib, 1)
            except Exception as error:
                failed(subject, error, "no peak memory")
        rows.append(row)
    return rows, failures


def _named(name: str, call: Callable[[], object]) -> Callable[[], object]:
    def run() -> object:
        try:
            return call()
        except Exception as error:
            raise _StepFailed(name) from error

    return run


def _row(
    subject: Subject,
    source: Mapping[str, Any],
    setting: Setting,
    flops: float,
    times: Sequence[float],
    procedure: Procedure,
) -> dict[str, Any]:
    median = statistics.median(times)
    return dict(
        name=subject.name,
        **source,
        **setting.as_dict(),
        parameters=subject.parameters,
        flops=round(flops),
        macs=round(flops / 2),
        latency_ms=round(median * 1e3, 3),
        images_per_s=round(setting.batch / median, 2),
        rounds_ms=[round(t * 1e3, 3) for t in times],
        warmup=procedure.warmup,
    )


def _flops_per_image(subject: Subject, setting: Setting, procedure: Procedure) -> float:
    """Mean over ``flops_images`` images; of a training step, which needs its batch, over the batch."""
    eager = replace(setting, compiled=False)
    if setting.mode == "train":
        return count_flops(subject.step(eager)) / setting.batch
    images = range(min(procedure.flops_images, len(subject.images) or procedure.flops_images))
    return statistics.mean(count_flops(subject.step(eager, image)) for image in images)
