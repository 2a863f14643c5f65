"""What a benchmark leaves behind: JSON, CSV, and ratios to a baseline."""

from __future__ import annotations

import csv
import json
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from .settings import Setting

__all__ = ["compare_rows", "environment_of", "read_report", "write_report"]

SETTING_FIELDS = tuple(field.name for field in fields(Setting))
#: Measured quantities that can be compared as ratios.
QUANTITIES = ("latency_ms", "flops", "parameters", "peak_mib")


def environment_of(device: str, threads: int) -> dict[str, Any]:
    """What the figures depend on besides model and setting."""
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else _processor()
    return dict(
        device=name, torch=torch.__version__, threads=threads, cores=os.cpu_count(), python=platform.python_version()
    )


def _processor() -> str:
    """The processor's name: /proc/cpuinfo on Linux knows more than platform."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def write_report(folder: Path, environment: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    """``benchmark.json`` and ``benchmark.csv`` in ``folder``, each replaced as a whole."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(dict(environment=environment, rows=list(rows)), indent=2) + "\n"
    _replace(folder / "benchmark.json", text)
    columns = list(dict.fromkeys(key for row in rows for key in row if not isinstance(row[key], (list, dict))))
    part = folder / "benchmark.csv.part"
    with open(part, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns + [f"environment_{key}" for key in environment], extrasaction="ignore")
        writer.writeheader()
        writer.writerows({**row, **{f"environment_{k}": v for k, v in environment.items()}} for row in rows)
    part.replace(folder / "benchmark.csv")


def _replace(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def read_report(path: str | Path) -> dict[str, Any]:
    """A ``benchmark.json``, or the folder that holds one.

    Raises:
        ValueError: the file is no report.
    """
    path = Path(path)
    path = path / "benchmark.json" if path.is_dir() else path
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is no report of tools/benchmark.py: {error}") from error
    if not isinstance(report, dict) or "rows" not in report:
        raise ValueError(f"{path} is no report of tools/benchmark.py: it has no 'rows'")
    return report


def compare_rows(rows: Iterable[dict[str, Any]], baseline: str) -> list[dict[str, Any]]:
    """Each row's quantities divided by those of ``baseline`` in the same setting; below 1 is cheaper.

    A ratio of latencies is that of the fastest rounds, because other work only ever adds time: over five reports of
    twelve models it repeats to 18 % (27 % with a disturbed one), where medians, and medians of the ratio within a
    round, reach 43 and 52 % (docs/benchmark.md). ``same_session`` says whether the two rows are of one run, that is,
    whether their rounds lay side by side.

    Raises:
        ValueError: no row is named so.
    """
    rows = list(rows)
    base = {_setting_of(row): row for row in rows if row["name"] == baseline}
    if not base:
        raise ValueError(f"nothing is named {baseline!r}; names: {', '.join(dict.fromkeys(r['name'] for r in rows))}")
    compared = []
    for row in rows:
        other = base.get(_setting_of(row))
        if other is None or row["name"] == baseline:
            continue
        ratios = {key: row[key] / other[key] for key in QUANTITIES if row.get(key) and other.get(key)}
        if row.get("rounds_ms") and other.get("rounds_ms"):
            ratios["latency_ms"] = min(row["rounds_ms"]) / min(other["rounds_ms"])
        same = row.get("session") == other.get("session")
        setting = {key: row[key] for key in SETTING_FIELDS}
        compared.append({"name": row["name"], "same_session": same, **setting, **ratios})
    return compared


def _setting_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[key] for key in SETTING_FIELDS)
