"""Built-in scenes as point clouds with a semantic map seen from above (bird's eye view, BEV)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from mmcv.transforms import BaseTransform
from mmengine.structures import PixelData

from ..environment import require
from ..registry import DATASETS, TRANSFORMS
from .scenes.bird_eye import BEV_CLASSES, BEV_PALETTE, bird_eye_map, ground_points
from .scenes_dataset import ScenesDataset

__all__ = ["FlipPoints", "LoadSceneBEV", "PackPoints", "ScenesBEVDataset"]


@DATASETS.register_module()
class ScenesBEVDataset(ScenesDataset):
    """Scenes for segmentation of point clouds from above: ground, and the four shapes.

    Arguments are those of :class:`ScenesDataset`; the classes cannot be chosen. Begin the pipeline with
    :class:`LoadSceneBEV`. ``size`` is that of the depth image the points come from: the number of points.

    Raises:
        ValueError: for an illegal argument, or other classes.
    """

    METAINFO = dict(classes=BEV_CLASSES, palette=BEV_PALETTE)

    def _load_metainfo(self, metainfo: dict | None = None) -> dict:
        loaded = super()._load_metainfo(metainfo)
        if loaded["classes"] != BEV_CLASSES:
            raise ValueError(f"ScenesBEVDataset has the classes {', '.join(BEV_CLASSES)}, got {loaded['classes']}")
        return loaded | dict(label_map=None, reduce_zero_label=False)


@TRANSFORMS.register_module()
class LoadSceneBEV(BaseTransform):
    """The point cloud of a scene in the frame of the ground, and its semantic map from above.

    Required keys: ``scene``. Added keys: ``points`` float32 (P, 3), metres, x right, y forward, z up, the camera above
    the origin; ``gt_seg_map`` uint8 (ny, nx), row 0 nearest to the camera, 255 where the camera does not look;
    ``img_shape`` and ``ori_shape`` (ny, nx); ``scale_factor``; ``flip`` False.

    Args:
        point_cloud_range: (x0, y0, z0, x1, y1, z1) metres; points outside are left out.
        cells: (ny, nx) of the map.

    Raises:
        ValueError: for an empty range, or when a pipeline runs on another dataset's samples.
    """

    def __init__(self, point_cloud_range: Sequence[float], cells: tuple[int, int]) -> None:
        limits = np.array(point_cloud_range, dtype=np.float64)
        if limits.shape != (6,) or (limits[:3] >= limits[3:]).any():
            raise ValueError(f"point_cloud_range must be (x0, y0, z0, x1, y1, z1), rising, got {point_cloud_range!r}")
        if len(cells) != 2 or min(cells) < 1:
            raise ValueError(f"cells must be (ny, nx), both at least 1, got {cells!r}")
        self.limits, self.cells = limits, (int(cells[0]), int(cells[1]))

    def transform(self, results: dict) -> dict:
        """Points and map of ``results['scene']``, which leaves the results."""
        if "scene" not in results:
            raise ValueError("LoadSceneBEV found no scene in the sample: it loads samples of ScenesBEVDataset.")
        scene = results.pop("scene")
        results.pop("scene_layers", None)
        points = ground_points(scene)
        inside = ((points >= self.limits[:3]) & (points < self.limits[3:])).all(axis=1)
        results["points"] = points[inside]
        results["gt_seg_map"] = bird_eye_map(scene, tuple(self.limits[[0, 1, 3, 4]]), self.cells)
        results["img_shape"] = results["ori_shape"] = self.cells
        results["scale_factor"], results["flip"], results["flip_direction"] = (1.0, 1.0), False, None
        return results

    def __repr__(self) -> str:
        return f"{type(self).__name__}(point_cloud_range={self.limits.tolist()}, cells={self.cells})"


@TRANSFORMS.register_module()
class FlipPoints(BaseTransform):
    """Mirror points and map, left to right, in a share ``prob`` of the samples.

    Required keys: ``points``, ``gt_seg_map``. Changed keys: both, ``flip`` and ``flip_direction``, by which
    MMSegmentation turns predictions back at test time.

    Args:
        prob: share of the samples, in [0, 1].

    Raises:
        ValueError: ``prob`` is outside its legal values.
    """

    def __init__(self, prob: float = 0.5) -> None:
        if not 0 <= prob <= 1:
            raise ValueError(f"prob of FlipPoints must be in [0, 1], got {prob!r}")
        self.prob = prob

    def transform(self, results: dict) -> dict:
        """The range of x must be symmetric about the camera."""
        if np.random.rand() < self.prob:
            results["points"] = results["points"] * np.array([-1, 1, 1], dtype=np.float32)
            results["gt_seg_map"] = results["gt_seg_map"][:, ::-1].copy()
            results["flip"], results["flip_direction"] = True, "horizontal"
        return results


@TRANSFORMS.register_module()
class PackPoints(BaseTransform):
    """``inputs``: float32 (P, 3) points; ``data_samples``: MMSegmentation's sample with the map from above."""

    META = ("img_id", "img_path", "img_shape", "ori_shape", "scale_factor", "flip", "flip_direction")

    def transform(self, results: dict) -> dict:
        """Needs mmseg."""
        try:
            from mmseg.structures import SegDataSample
        except (ImportError, AssertionError):  # mmseg asserts the versions of mmcv that it accepts
            require("mmseg")
            raise
        sample = SegDataSample(metainfo={key: results[key] for key in self.META if key in results})
        if "gt_seg_map" in results:
            sample.gt_sem_seg = PixelData(data=torch.from_numpy(results["gt_seg_map"].astype(np.int64))[None])
        return dict(inputs=torch.from_numpy(np.ascontiguousarray(results["points"])), data_samples=sample)
