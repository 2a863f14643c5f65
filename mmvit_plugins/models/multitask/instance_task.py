"""Any detector of MMDetection as one more task on shared features."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from mmengine.config import ConfigDict
from mmengine.model import BaseModule
from torch import Tensor, nn

from mmvit_plugins.environment import require
from mmvit_plugins.registry import MODELS
from mmvit_plugins.structures import MultiTaskSample

__all__ = ["InstanceTask"]


@MODELS.register_module()
class SharedFeatures(nn.Module):
    """Stands where a detector has its backbone: its input are the features already."""

    def forward(self, features: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The features as they are."""
        return features


@MODELS.register_module()
class InstanceTask(BaseModule):
    """Objects with boxes (and masks) found by a detector of MMDetection whose backbone is the shared one.

    Args:
        detector: config of the detector without ``backbone`` and ``data_preprocessor``; its ``neck`` starts from the
            maps that the dense heads get. With ``_scope_='mmdet'`` its parts need no prefix.
        loss_weight: factor on the sum of the detector's losses.
        name: 'instances'; the model fills it in.
        head: not used; a detector brings its own.

    Raises:
        ValueError: the detector's config has a backbone, or the loss weight is not positive.
        UnsuitableEnvironment: MMDetection cannot be used.
    """

    def __init__(
        self, detector: dict, loss_weight: float = 1.0, name: str = "instances", head: dict | None = None
    ) -> None:
        super().__init__()
        require("mmdet")
        if "backbone" in detector:
            raise ValueError("the detector of an InstanceTask has no backbone of its own: remove `backbone` from it")
        if not loss_weight > 0:
            raise ValueError(f"loss_weight of task {name!r} must be positive, got {loss_weight}; leave the task out")
        self.name = name
        self.loss_weight = float(loss_weight)
        # MMDetection reads parts of it as attributes, which a plain dict has not.
        config = ConfigDict(copy.deepcopy(dict(detector)))
        config.backbone = ConfigDict(type="mmvit_plugins.SharedFeatures")
        self.detector = MODELS.build(config)

    def forward(self, features: Sequence[Tensor]) -> tuple:
        """The raw outputs of the detector's dense head (of the RPN for two stages)."""
        features = tuple(features)
        features = self.detector.neck(features) if self.detector.with_neck else features
        head = getattr(self.detector, "bbox_head", None)
        return (self.detector.rpn_head if head is None or not callable(head) else head)(features)

    def labelled(self, samples: Sequence[MultiTaskSample]) -> bool:
        """Whether any sample says which instances it has; an image known to be empty counts."""
        return any("gt_instances" in sample for sample in samples)

    def loss(self, features: Sequence[Tensor], samples: list[MultiTaskSample], size: tuple[int, int]) -> Tensor:
        """Sum of the detector's losses over the labelled images; 0 with zero gradients if there are none.

        Args:
            features: maps of the backbone or neck.
            samples: B samples; images without ``gt_instances`` are left out, not taken for empty ones.
            size: height and width of the input.
        """
        chosen = [index for index, sample in enumerate(samples) if "gt_instances" in sample]
        if not chosen:
            total = sum(feature.sum() for feature in features) * 0.0
            return total + sum(parameter.sum() for parameter in self.detector.parameters()) * 0.0
        if len(chosen) < len(samples):
            rows = torch.tensor(chosen, device=features[0].device)
            features = [feature.index_select(0, rows) for feature in features]
        losses = self.detector.loss(tuple(features), [samples[index] for index in chosen])
        return sum(
            part.mean()
            for name, value in losses.items()
            if "loss" in name
            for part in (value if isinstance(value, (list, tuple)) else [value])
        )

    def predict(self, features: Sequence[Tensor], samples: list[MultiTaskSample]) -> None:
        """Put ``pred_instances``, at the original size, into the samples."""
        self.detector.predict(tuple(features), samples, rescale=True)
