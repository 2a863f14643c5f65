"""Plots of a benchmark: cost against resolution with the fitted exponent, memory, and accuracy against cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .records import SETTING_FIELDS

__all__ = ["fit_exponent", "plot_accuracy", "plot_costs"]

#: Column of a row, unit of the axis and its factor.
COSTS = {
    "latency_ms": ("latency (ms)", 1.0),
    "flops": ("GFLOP", 1e-9),
    "peak_mib": ("peak memory (MiB)", 1.0),
}


def fit_exponent(pixels: Sequence[float], costs: Sequence[float]) -> float | None:
    """p of cost ~ pixels ** p by least squares on logarithms: 1 is linear. None with fewer than two sizes."""
    if len(set(pixels)) < 2:
        return None
    return float(np.polyfit(np.log(pixels), np.log(costs), 1)[0])


def plot_costs(rows: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """One picture for each cost that was measured at two sizes or more; returns the files.

    A line is a model in one setting; what varies between lines beside the model is named in the legend.
    """
    written = []
    for column, (unit, factor) in COSTS.items():
        lines = _lines(rows, column)
        lines = {label: points for label, points in lines.items() if len(points) > 1}
        if not lines:
            continue
        figure, axes = _new_figure(len(lines))
        for (label, points), style in zip(lines.items(), _styles(len(lines)), strict=True):
            pixels, costs = zip(*points, strict=True)
            exponent = fit_exponent(pixels, costs)
            axes.plot(pixels, np.array(costs) * factor, label=f"{label}: {exponent:.2f}", markersize=4, **style)
        ticks = sorted({(row["height"] * row["width"], f"{row['height']}x{row['width']}") for row in rows})
        axes.set(xscale="log", yscale="log", xlabel="input (pixels)", ylabel=unit)
        axes.set_xticks([tick for tick, _ in ticks], [text for _, text in ticks])
        axes.minorticks_off()
        written.append(_save(figure, axes, folder / f"{column.split('_')[0]}.png", "model: fitted exponent p"))
    return written


def plot_accuracy(points: Sequence[dict[str, Any]], cost: str, metric: str, path: Path) -> Path:
    """Accuracy against cost.

    Args:
        points: each with ``name``, the column ``cost`` and ``value`` of the metric.
        cost: a column of ``COSTS``, or ``parameters``.
        metric: its name, for the axis.
        path: of the picture.
    """
    unit, factor = COSTS.get(cost, ("parameters (M)", 1e-6))
    figure, axes = _new_figure(0)
    for point in points:
        x = point[cost] * factor
        axes.plot(x, point["value"], "o")
        axes.annotate(point["name"], (x, point["value"]), xytext=(5, 4), textcoords="offset points", fontsize=8)
    axes.set(xlabel=unit, ylabel=metric)
    axes.margins(0.15)
    return _save(figure, axes, path, None)


def _lines(rows: Sequence[dict[str, Any]], column: str) -> dict[str, list[tuple[float, float]]]:
    """{label: [(pixels, cost), ...]}, sorted by pixels."""
    others = [field for field in SETTING_FIELDS if field not in ("height", "width")]
    varied = [field for field in others if len({row[field] for row in rows}) > 1]
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row.get(column):
            label = ", ".join([row["name"], *(f"{field} {row[field]}" for field in varied)])
            lines.setdefault(label, []).append((row["height"] * row["width"], row[column]))
    return {label: sorted(points) for label, points in lines.items()}


def _styles(count: int) -> list[dict[str, Any]]:
    """Colours and markers that tell up to 30 lines apart."""
    markers = "osD^v"
    return [dict(color=f"C{i % 10}", marker=markers[i // 10 % len(markers)]) for i in range(count)]


def _new_figure(lines: int) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7.5, max(4.2, 0.24 * lines)), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def _save(figure: Figure, axes: Axes, path: Path, legend: str | None) -> Path:
    axes.grid(alpha=0.3)
    if legend:
        axes.legend(title=legend, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return path
