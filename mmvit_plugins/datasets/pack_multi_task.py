"""The last step of a pipeline for several tasks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from mmcv.transforms import BaseTransform
from mmengine.structures import InstanceData, PixelData

from mmvit_plugins.structures import TASK_MAPS, MultiTaskSample, TaskMap

from ..registry import TRANSFORMS

__all__ = ["PackDenseTaskInputs"]


@TRANSFORMS.register_module()
class PackDenseTaskInputs(BaseTransform):
    """Turn what the pipeline has gathered into ``inputs`` (uint8, 3 x H x W) and a :class:`MultiTaskSample`.

    Labels that are not there leave no field: their tasks do not learn from the sample, and metrics skip it.

    Args:
        meta_keys: entries of the pipeline's dict that go along as meta information, where they exist.
    """

    META_KEYS = (
        "img_id",
        "img_path",
        "ori_shape",
        "img_shape",
        "scale_factor",
        "depth_scale",
        "flip",
        "cam2img",
        "instances",
    )

    def __init__(self, meta_keys: Sequence[str] = META_KEYS) -> None:
        self.meta_keys = tuple(meta_keys)

    def transform(self, results: dict) -> dict:
        """See the class."""
        image = results["img"]
        if image.ndim == 2:
            image = image[..., None]
        sample = MultiTaskSample()
        for entry in TASK_MAPS.values():
            if results.get(entry.results_key) is not None:
                sample.set_field(PixelData(data=_label_tensor(results[entry.results_key], entry)), entry.truth)
        if "gt_bboxes" in results:
            _add_instances(sample, results)
        sample.set_metainfo({key: results[key] for key in self.meta_keys if key in results})
        return dict(inputs=torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))), data_samples=sample)

    def __repr__(self) -> str:
        return f"PackDenseTaskInputs(meta_keys={self.meta_keys})"


def _label_tensor(label: np.ndarray, entry: TaskMap) -> torch.Tensor:
    """(H, W) or (H, W, C) -> (C, H, W), int64 or float32."""
    label = label[None] if label.ndim == 2 else label.transpose(2, 0, 1)
    return torch.from_numpy(np.ascontiguousarray(label, dtype=np.int64 if entry.is_label else np.float32))


def _add_instances(sample: MultiTaskSample, results: dict) -> None:
    """Boxes, labels and masks as MMDetection's own packing does; those to be ignored apart."""
    boxes = results["gt_bboxes"]
    boxes = torch.as_tensor(boxes.tensor if hasattr(boxes, "tensor") else boxes, dtype=torch.float32)
    flags = np.asarray(results.get("gt_ignore_flags", np.zeros(len(boxes), bool)), dtype=bool)
    for name, chosen in (("gt_instances", ~flags), ("ignored_instances", flags)):
        rows = np.nonzero(chosen)[0]
        instances = InstanceData(
            bboxes=boxes[rows],
            labels=torch.from_numpy(np.asarray(results["gt_bboxes_labels"], dtype=np.int64)[rows]),
        )
        if "gt_masks" in results:
            instances.masks = results["gt_masks"][rows]
        setattr(sample, name, instances)
