"""Metrics of depth and surface normals."""

from __future__ import annotations

from typing import Any

import numpy as np

from mmvit_plugins.registry import METRICS

from .task_metric import TaskMetric

__all__ = ["DepthErrorMetric", "NormalsMetric", "angular_error"]


@METRICS.register_module()
class DepthErrorMetric(TaskMetric):
    """Errors over pixels whose depth is known (finite and above 0).

    Args:
        task: 'depth'.
        prefix: see :class:`TaskMetric`.
        collect_device: see :class:`TaskMetric`.

    Results: ``rmse`` = sqrt(sum over *all valid pixels of the set* / their number), in metres: the one of the survey
    and of InvPT. ``rmse_per_image``: the root for each image, averaged over images (ASTMT). ``abs_rel``: mean of
    ``|p - d| / d`` over all valid pixels of the set.
    """

    def __init__(self, task: str = "depth", prefix: str | None = None, collect_device: str = "cpu") -> None:
        super().__init__(task, prefix, collect_device)

    def measure(self, prediction: np.ndarray, truth: np.ndarray) -> Any:
        """(pixels, sum of squares, sum of relative errors)."""
        known = np.isfinite(truth) & (truth > 0)
        depth = truth[known].astype(np.float64)
        error = prediction[known].astype(np.float64) - depth
        return np.array([depth.size, np.square(error).sum(), (np.abs(error) / depth).sum()])

    def summarize(self, results: list[Any]) -> dict[str, float]:
        """See the class; images without a valid pixel count nowhere."""
        table = np.array([row for row in results if row[0]]).reshape(-1, 3)
        if not len(table):
            return {}
        pixels, squares, relative = table.sum(0)
        return dict(
            rmse=float(np.sqrt(squares / pixels)),
            rmse_per_image=float(np.sqrt(table[:, 1] / table[:, 0]).mean()),
            abs_rel=float(relative / pixels),
        )


def angular_error(prediction: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Angles in degrees between unit vectors (3, N) each, ``2 atan2(|p - g|, |p + g|)``: exact for small angles, where
    the arc cosine of a product is not."""
    prediction, truth = prediction.astype(np.float64), truth.astype(np.float64)
    distance, opposite = np.linalg.norm(prediction - truth, axis=0), np.linalg.norm(prediction + truth, axis=0)
    return np.degrees(2 * np.arctan2(distance, opposite))


@METRICS.register_module()
class NormalsMetric(TaskMetric):
    """Angle between predicted and true normals over all valid pixels of the set.

    Args:
        quantize: put the predictions through 8 bits a component first, as both reference implementations do when they
            store them as pictures.
        task: 'normals'.
        prefix: see :class:`TaskMetric`.
        collect_device: see :class:`TaskMetric`.

    Results: ``mean`` and ``rmse`` of the angle in degrees; ``within_11.25``, ``within_22.5``, ``within_30``: percent of
    the pixels below that angle.
    """

    LIMITS = (11.25, 22.5, 30.0)

    def __init__(
        self, quantize: bool = False, task: str = "normals", prefix: str | None = None, collect_device: str = "cpu"
    ) -> None:
        super().__init__(task, prefix, collect_device)
        self.quantize = quantize

    def measure(self, prediction: np.ndarray, truth: np.ndarray) -> Any:
        """(pixels, sum, sum of squares, pixels within each limit)."""
        length = np.linalg.norm(truth, axis=0)
        known = np.isfinite(length) & (length > 0.5)
        normals = truth[:, known] / length[known]
        prediction = prediction[:, known].astype(np.float64)
        if self.quantize:
            prediction = np.round((prediction + 1) * 127.5).clip(0, 255) / 127.5 - 1
        prediction = prediction / np.maximum(np.linalg.norm(prediction, axis=0), 1e-12)
        angles = angular_error(prediction, normals)
        return np.array(
            [angles.size, angles.sum(), np.square(angles).sum(), *((angles < x).sum() for x in self.LIMITS)]
        )

    def summarize(self, results: list[Any]) -> dict[str, float]:
        """See the class."""
        pixels, total, squares, *within = np.sum(results, axis=0)
        if not pixels:
            return {}
        shares = {f"within_{x:g}": float(100 * n / pixels) for x, n in zip(self.LIMITS, within, strict=True)}
        return dict(mean=float(total / pixels), rmse=float(np.sqrt(squares / pixels)), **shares)
