"""The loading step of a pipeline on built-in scenes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mmcv.transforms import BaseTransform

from ..environment import require
from ..registry import TRANSFORMS
from .scenes import Scene

__all__ = ["LAYERS", "LoadScene"]

LAYERS = ("label", "instances", "seg", "depth", "normals", "boundary", "saliency", "camera", "points")


@TRANSFORMS.register_module()
class LoadScene(BaseTransform):
    """Put the image and the annotations of a scene under the keys that the host libraries' transforms expect.

    It takes the place of ``LoadImageFromFile`` and ``LoadAnnotations``. (Those two work as well, through the
    ``scenes://`` addresses of the datasets; this one saves encoding and decoding.)

    Required keys: ``scene``, which the datasets of this package add.

    Added keys, always: ``img`` uint8 (H, W, 3), ``img_shape``, ``ori_shape``, ``scale_factor`` (1.0, 1.0).
    Added keys by layer:

    * ``label``: ``gt_label`` (int), the shape of the main object.
    * ``instances``: ``gt_bboxes`` (mmdet HorizontalBoxes, N), ``gt_bboxes_labels`` int64 (N,), ``gt_ignore_flags``
      bool (N,), ``gt_masks`` (mmdet BitmapMasks, N). Needs mmdet.
    * ``seg``: ``gt_seg_map`` uint8 (H, W).
    * ``depth``: ``gt_depth`` float32 (H, W), metres along the optical axis, 0 where there is none.
    * ``normals``: ``gt_normals`` float32 (H, W, 3), unit vectors in the camera frame (x right, y down, z forward),
      0 where there is none. A flip of the image must also negate their x (or y).
    * ``boundary``: ``gt_boundary`` uint8 (H, W), 1 on occlusion boundaries.
    * ``saliency``: ``gt_saliency`` uint8 (H, W), 1 on the main object.
    * ``camera``: ``cam2img`` float32 (3, 3), pixel centres at integers, for the image as loaded.
    * ``points``: ``points`` float32 (P, 3) in metres, camera frame, and ``pts_semantic_mask`` int64 (P,).

    Maps of the layers ``seg`` to ``saliency`` are listed in ``seg_fields``, so that the geometric transforms of
    MMSegmentation keep them in step with the image.

    Args:
        layers: names out of the above; None takes those that the dataset is made for.
        channel_order: 'bgr' as mmcv loads files and the data preprocessors of the hosts expect, or 'rgb'.

    Raises:
        ValueError: for an unknown layer or channel order, or when a pipeline runs on another dataset's samples.
        ImportError: for instances without mmdet.
    """

    def __init__(self, layers: Sequence[str] | None = None, channel_order: str = "bgr") -> None:
        unknown = [name for name in layers or () if name not in LAYERS]
        if unknown:
            raise ValueError(f"LoadScene knows no layer {unknown[0]!r}; use names out of {', '.join(LAYERS)}.")
        if channel_order not in ("bgr", "rgb"):
            raise ValueError(f"channel_order must be 'bgr' or 'rgb', but got {channel_order!r}.")
        self.layers = None if layers is None else tuple(layers)
        self.channel_order = channel_order

    def transform(self, results: dict) -> dict:
        """Load the layers of ``results['scene']``; the scene itself leaves the results."""
        if "scene" not in results:
            raise ValueError(
                "LoadScene found no scene in the sample. It loads samples of ScenesClsDataset, ScenesDetDataset, "
                "ScenesSegDataset and ScenesMultiTaskDataset; use LoadImageFromFile for datasets of files."
            )
        scene: Scene = results.pop("scene")
        own_layers = results.pop("scene_layers", ("label",))
        # A copy: later transforms may write into the image, and the scene is shared.
        results["img"] = np.ascontiguousarray(scene.rgb[..., ::-1]) if self.channel_order == "bgr" else scene.rgb.copy()
        results["img_shape"] = results["ori_shape"] = scene.size
        results["scale_factor"] = (1.0, 1.0)
        for layer in own_layers if self.layers is None else self.layers:
            getattr(self, f"_load_{layer}")(results, scene)
        return results

    def _load_label(self, results: dict, scene: Scene) -> None:
        results.setdefault("gt_label", scene.label)

    def _load_instances(self, results: dict, scene: Scene) -> None:
        try:
            from mmdet.structures.bbox import HorizontalBoxes
            from mmdet.structures.mask import BitmapMasks
        except (ImportError, AssertionError):  # mmdet asserts the versions of mmcv that it accepts
            require("mmdet")  # says what is missing or unfit, and the fix
            raise
        labels = scene.box_labels
        label_map = results.get("box_label_map")
        keep = np.array([label_map is None or label in label_map for label in labels.tolist()], dtype=bool)
        if label_map is not None:
            labels = np.array([label_map[label] for label in labels[keep].tolist()], dtype=np.int64)
        results["gt_bboxes"] = HorizontalBoxes(scene.boxes[keep])
        results["gt_bboxes_labels"] = labels
        results["gt_ignore_flags"] = scene.ignore_flags[keep]
        results["gt_masks"] = BitmapMasks(scene.masks[keep], *scene.size)

    def _load_seg(self, results: dict, scene: Scene) -> None:
        semantic = scene.semantic
        label_map = results.get("label_map")
        if label_map is not None:
            table = np.arange(256, dtype=np.uint8)
            table[list(label_map)] = list(label_map.values())
            semantic = table[semantic]
        self._add_map(results, "gt_seg_map", semantic)

    def _load_depth(self, results: dict, scene: Scene) -> None:
        self._add_map(results, "gt_depth", scene.depth)

    def _load_normals(self, results: dict, scene: Scene) -> None:
        self._add_map(results, "gt_normals", scene.normals)

    def _load_boundary(self, results: dict, scene: Scene) -> None:
        self._add_map(results, "gt_boundary", scene.boundary)

    def _load_saliency(self, results: dict, scene: Scene) -> None:
        self._add_map(results, "gt_saliency", scene.saliency)

    def _load_camera(self, results: dict, scene: Scene) -> None:
        results["cam2img"] = scene.intrinsics

    def _load_points(self, results: dict, scene: Scene) -> None:
        results["points"] = scene.points
        results["pts_semantic_mask"] = scene.point_labels

    @staticmethod
    def _add_map(results: dict, key: str, value: np.ndarray) -> None:
        results[key] = value
        results.setdefault("seg_fields", []).append(key)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(layers={self.layers}, channel_order={self.channel_order!r})"
