"""Accuracy out of result files, beside cost."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..cli.errors import UserError

__all__ = ["accuracy_points", "read_accuracies"]


def read_accuracies(given: Sequence[str], metric: str | None) -> tuple[dict[str, float], str]:
    """Read ``NAME=FILE`` of tools/test.py's ``--out`` files.

    Args:
        given: the texts.
        metric: which one of the files' metrics; None: the first of the first file.

    Returns:
        {name: value}, and the metric's name.

    Raises:
        UserError: a file is missing, of another kind, or has no number of that name.
    """
    values: dict[str, float] = {}
    for text in given:
        name, _, file = text.partition("=")
        if not name or not file or name in values:
            raise UserError(f"--accuracy takes NAME=FILE, each name once; got {text!r}")
        metrics = _metrics(text, Path(file))
        metric = metric or next(iter(metrics), None)
        if metric not in metrics:
            raise UserError(f"--accuracy {text}: the file has no metric {metric!r}; it has {', '.join(metrics)}")
        value = metrics[metric]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise UserError(f"--accuracy {text}: {metric} is {value!r}, no finite number; another one: --metric NAME")
        values[name] = float(value)
    return values, str(metric)


def _metrics(text: str, file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise UserError(f"--accuracy {text}: there is no {file.absolute()}")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:  # no JSON, or no text at all
        raise UserError(f"--accuracy {text}: {file} is no result file of tools/test.py: {error}") from error
    metrics = content.get("metrics") if isinstance(content, dict) else None
    if not isinstance(metrics, dict) or not metrics:
        raise UserError(
            f"--accuracy {text}: {file} is no result file of tools/test.py: it has no 'metrics' {{name: value}}"
        )
    return metrics


def accuracy_points(rows: Sequence[dict[str, Any]], values: dict[str, float], cost: str) -> list[dict[str, Any]]:
    """Points for :func:`~mmvit_plugins.benchmark.plot_accuracy`; of several settings the first counts.

    Raises:
        UserError: a name has no such cost in the report.
    """
    points = []
    for name, value in values.items():
        row = next((row for row in rows if row["name"] == name and row.get(cost)), None)
        if row is None:
            names = ", ".join(dict.fromkeys(row["name"] for row in rows)) or "none"
            raise UserError(f"--accuracy {name}: nothing of that name has {cost} in the report; names: {names}")
        points.append({"name": name, cost: row[cost], "value": value})
    return points
