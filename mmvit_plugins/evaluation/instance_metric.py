"""Average precision of instances found beside dense tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mmengine.evaluator import BaseMetric

from mmvit_plugins.environment import require
from mmvit_plugins.registry import METRICS

__all__ = ["InstanceMetric"]


@METRICS.register_module()
class InstanceMetric(BaseMetric):
    """MMDetection's ``CocoMetric`` on the instances that the samples carry (``gt_instances``, ``ignored_instances``).

    Their classes are ``instance_classes`` of the data set, not those of its label map. Samples without instance labels
    are left out.

    Args:
        metric: 'bbox', 'segm' or both.
        prefix: of the results.
        collect_device: 'cpu' or 'gpu'.

    Results: as ``CocoMetric``, such as ``coco/bbox_mAP`` (0 to 1).
    """

    def __init__(
        self, metric: str | Sequence[str] = ("bbox",), prefix: str | None = "coco", collect_device: str = "cpu"
    ) -> None:
        super().__init__(collect_device=collect_device, prefix=prefix)
        require("mmdet")
        from mmdet.evaluation import CocoMetric

        self.coco = CocoMetric(metric=[metric] if isinstance(metric, str) else list(metric))

    @property
    def dataset_meta(self) -> dict | None:
        """Meta information of the data set."""
        return self._dataset_meta

    @dataset_meta.setter
    def dataset_meta(self, meta: dict) -> None:
        self._dataset_meta = meta
        self.coco.dataset_meta = dict(meta, classes=tuple(meta["instance_classes"]))

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Take the predictions and labels of a batch; one entry for each sample."""
        for sample in data_samples:
            if "gt_instances" not in sample or "pred_instances" not in sample:
                self.results.append(None)
                continue
            truth = _annotations(sample["gt_instances"], 0) + _annotations(sample.get("ignored_instances"), 1)
            self.coco.process({}, [dict(sample, instances=truth)])
            self.results.append(self.coco.results.pop())

    def compute_metrics(self, results: list[Any]) -> dict[str, float]:
        """See the class."""
        kept = [result for result in results if result is not None]
        return dict(self.coco.compute_metrics(kept)) if kept else {}


def _annotations(instances: Any, ignore: int) -> list[dict[str, Any]]:
    """Boxes, labels and masks in MMDetection's annotation form."""
    from pycocotools.mask import encode

    if instances is None or not len(instances["labels"]):
        return []
    found = []
    masks = instances["masks"].to_ndarray() if "masks" in instances else None
    for index, (box, label) in enumerate(zip(instances["bboxes"].tolist(), instances["labels"].tolist(), strict=True)):
        found.append(dict(bbox=box, bbox_label=label, ignore_flag=ignore))
        if masks is not None:
            code = encode(np.asfortranarray(masks[index].astype(np.uint8)))
            found[-1]["mask"] = dict(size=list(code["size"]), counts=code["counts"].decode())
    return found
