"""Joint augmentation of images and the labels of several tasks. What happens to each label: task_geometry.py."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mmcv.transforms import BaseTransform

from ..registry import TRANSFORMS
from .task_geometry import crop_sample, flip_sample, pad_sample, resize_sample, rotate_sample

__all__ = ["TaskCrop", "TaskFlip", "TaskResize", "TaskRotate"]

# All draw from numpy's global generator, which mmengine seeds in every worker, as the hosts' transforms do.


@TRANSFORMS.register_module()
class TaskResize(BaseTransform):
    """Resize to a fixed size or by a drawn factor.

    Args:
        scale: the longest and shortest side that the picture has to fit in, as the hosts' ``scale`` with
            ``keep_ratio=True``; before the drawn factor.
        ratio_range: least and largest factor, drawn evenly.
        ratios: factors of which one is drawn, such as (1, 1.2, 1.5).

    Raises:
        ValueError: nothing to do, both ``ratio_range`` and ``ratios``, or a factor that is not positive.
    """

    def __init__(
        self,
        scale: tuple[int, int] | None = None,
        ratio_range: tuple[float, float] | None = None,
        ratios: Sequence[float] | None = None,
    ) -> None:
        factors = list(ratios or ratio_range or [1.0])
        if (scale is None and not ratios and not ratio_range) or (ratios and ratio_range) or min(factors) <= 0:
            raise ValueError(
                "TaskResize takes a scale, and ratio_range or ratios (positive), but not both of these; got "
                f"scale={scale}, ratio_range={ratio_range}, ratios={ratios}"
            )
        self.scale, self.ratio_range, self.ratios = scale, ratio_range, ratios

    def transform(self, results: dict) -> dict:
        """Resize ``img`` and all labels."""
        height, width = results["img"].shape[:2]
        factor = 1.0
        if self.scale is not None:
            factor = min(max(self.scale) / max(height, width), min(self.scale) / min(height, width))
        if self.ratio_range is not None:
            factor *= np.random.uniform(*self.ratio_range)
        elif self.ratios is not None:
            factor *= self.ratios[np.random.randint(len(self.ratios))]
        resize_sample(results, (max(1, round(height * factor)), max(1, round(width * factor))))
        return results

    def __repr__(self) -> str:
        return f"TaskResize(scale={self.scale}, ratio_range={self.ratio_range}, ratios={self.ratios})"


@TRANSFORMS.register_module()
class TaskFlip(BaseTransform):
    """Mirror left and right in a share ``prob`` of the cases. ``flip`` of the sample says whether."""

    def __init__(self, prob: float = 0.5) -> None:
        self.prob = prob

    def transform(self, results: dict) -> dict:
        """Flip ``img`` and all labels, or leave them."""
        results["flip"] = bool(np.random.rand() < self.prob)
        if results["flip"]:
            results["flip_direction"] = "horizontal"
            flip_sample(results)
        return results

    def __repr__(self) -> str:
        return f"TaskFlip(prob={self.prob})"


@TRANSFORMS.register_module()
class TaskRotate(BaseTransform):
    """Turn by an angle drawn between ``-degree`` and ``degree``."""

    def __init__(self, degree: float = 20.0) -> None:
        self.degree = degree

    def transform(self, results: dict) -> dict:
        """Turn ``img`` and all labels."""
        rotate_sample(results, float(np.random.uniform(-self.degree, self.degree)))
        return results

    def __repr__(self) -> str:
        return f"TaskRotate(degree={self.degree})"


@TRANSFORMS.register_module()
class TaskCrop(BaseTransform):
    """Cut out a random place; pictures that are smaller are padded at the right and below.

    Args:
        crop_size: height and width of the result.
        cat_max_ratio: draw another place, up to ten times, while one class covers more than this share of the labelled
            pixels of ``gt_seg_map``, as MMSegmentation does; 1 switches it off.
    """

    def __init__(self, crop_size: tuple[int, int], cat_max_ratio: float = 1.0) -> None:
        self.crop_size = tuple(crop_size)
        self.cat_max_ratio = cat_max_ratio

    def transform(self, results: dict) -> dict:
        """Crop and pad ``img`` and all labels."""
        height, width = results["img"].shape[:2]
        inner = (min(self.crop_size[0], height), min(self.crop_size[1], width))
        for _ in range(10):
            top = np.random.randint(height - inner[0] + 1)
            left = np.random.randint(width - inner[1] + 1)
            if self._is_varied(results, top, left, inner):
                break
        crop_sample(results, top, left, inner)
        pad_sample(results, self.crop_size)
        return results

    def _is_varied(self, results: dict, top: int, left: int, size: tuple[int, int]) -> bool:
        if self.cat_max_ratio >= 1 or "gt_seg_map" not in results:
            return True
        window = results["gt_seg_map"][top : top + size[0], left : left + size[1]]
        labels, counts = np.unique(window, return_counts=True)
        counts = counts[labels != 255]
        return len(counts) > 1 and counts.max() / counts.sum() < self.cat_max_ratio

    def __repr__(self) -> str:
        return f"TaskCrop(crop_size={self.crop_size}, cat_max_ratio={self.cat_max_ratio})"
