"""Pictures of a search: score against cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .engine import pareto_front

__all__ = ["Series", "plot_search"]

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """Points of one kind.

    Args:
        points: (cost, score).
        style: 'front' (all points faint, their Pareto front as a line), 'line' or 'marks'.
        labels: a text at each point.
    """

    points: Sequence[Point]
    style: str = "front"
    labels: Sequence[str] = ()


def plot_search(
    series: Mapping[str, Series], path: Path, cost: str, score: str, title: str, budget: float | None = None
) -> Path:
    """Draw ``series`` into a PNG and return its path.

    Args:
        series: by name, drawn in this order.
        path: the file.
        cost: label of the horizontal axis.
        score: label of the vertical axis.
        title: above.
        budget: a vertical line.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, (name, one) in enumerate(series.items()):
        if not one.points:
            continue
        color, mark = f"C{number}", "osD^vP*X"[number % 8]
        x, y = zip(*one.points, strict=True)
        if one.style == "front":
            axes.plot(x, y, mark, color=color, alpha=0.25, markersize=4, markeredgewidth=0)
            front = pareto_front(one.points)
            axes.step(*zip(*front, strict=True), where="post", color=color, marker=mark, markersize=4, label=name)
        elif one.style == "line":
            axes.plot(x, y, "-", marker=mark, color=color, markersize=3, label=name)
        else:
            axes.plot(x, y, mark, color=color, markersize=8, label=name)
        for point, text in zip(one.points, one.labels, strict=False):
            axes.annotate(text, point, xytext=(5, -11), textcoords="offset points", fontsize=8, color=color)
    if budget is not None:
        axes.axvline(budget, color="0.5", linestyle=":", label=f"budget {budget:.3g}")
    axes.set(xlabel=cost, ylabel=score, title=title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return path
