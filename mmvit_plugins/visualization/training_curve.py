"""Draw loss, learning rate and metrics of a run from the scalars that mmengine's LocalVisBackend writes."""

from __future__ import annotations

import json
from pathlib import Path

__all__ = ["draw_training_curve", "find_scalars", "read_scalars"]


def find_scalars(work_dir: str | Path) -> Path:
    """The scalar log of the latest run in ``work_dir``.

    Raises:
        FileNotFoundError: there is none; the config's visualiser has no ``LocalVisBackend``, or nothing ran there.
    """
    files = sorted(Path(work_dir).glob("*/vis_data/scalars.json"), key=lambda file: file.stat().st_mtime)
    if not files:
        raise FileNotFoundError(
            f"no scalar log */vis_data/scalars.json in {Path(work_dir).resolve()}; the config needs "
            "visualizer=dict(vis_backends=[dict(type='LocalVisBackend')])"
        )
    return files[-1]


def read_scalars(file: str | Path) -> dict[str, list[tuple[int, float]]]:
    """{name: [(iteration, value), ...]} of a ``scalars.json``, one JSON object a line.

    mmengine counts training lines in iterations and, by default, validation lines in epochs; here a validation line
    counts as the iteration of the training line before it.
    """
    curves: dict[str, list[tuple[int, float]]] = {}
    iteration = 0
    for line in Path(file).read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        step = record.pop("step", None)
        if "loss" in record and step is not None:
            iteration = step
        elif step is not None:
            step = max(step, iteration)
        for name, value in record.items():
            if step is not None and isinstance(value, (int, float)):
                curves.setdefault(name, []).append((int(step), float(value)))
    return curves


def draw_training_curve(
    scalars: str | Path, out_file: str | Path, metric: str = "mIoU", baseline: float | None = None, title: str = ""
) -> Path:
    """Write a picture with the loss on the left and ``metric`` on the right.

    Args:
        scalars: the ``scalars.json`` of a run.
        out_file: where the PNG goes; folders are made.
        metric: name of the validation metric, in the unit that the metric reports (percent for mIoU).
        baseline: value of ``metric`` to draw as a dashed line, for example that of a constant predictor.
        title: above both.

    Raises:
        ValueError: the log holds neither a loss nor the metric.
    """
    # The object interface: no global state of pyplot, no display needed.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    curves = read_scalars(scalars)
    if "loss" not in curves and metric not in curves:
        raise ValueError(f"{Path(scalars).resolve()} has neither 'loss' nor {metric!r}, only {sorted(curves)}")
    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    nothing = [(0, float("nan"))]
    left.plot(*zip(*curves.get("loss", nothing), strict=True), color="tab:blue")
    left.set(xlabel="iteration", ylabel="training loss", ylim=(0, None))
    right.plot(*zip(*curves.get(metric, nothing), strict=True), color="tab:orange", marker="o", label="model")
    if baseline is not None:
        right.axhline(baseline, color="gray", linestyle="--", label="constant predictor")
        right.legend()
    right.set(xlabel="iteration", ylabel=f"{metric} (validation)", ylim=(0, None))
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.suptitle(title)
    out_file = Path(out_file)
    out_file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out_file, dpi=110)
    return out_file
