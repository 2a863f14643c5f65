"""One dense task of a multi-task model: its head, its loss, and what its output means."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from mmengine.structures import PixelData
from torch import Tensor

from mmvit_plugins.models.losses.dense_tasks import normal_is_known
from mmvit_plugins.registry import MODELS
from mmvit_plugins.structures import MultiTaskSample, find_task_map

__all__ = ["BoundaryTask", "DenseTask", "DepthTask", "NormalsTask", "SaliencyTask", "SegmentationTask"]


class DenseTask(BaseModule):
    """Base of the dense tasks.

    Args:
        name: entry of :data:`~mmvit_plugins.structures.TASK_MAPS`; the model fills it in.
        channels: outputs at each pixel.
        head: config of any module that takes the backbone's (or neck's) tuple of maps and returns logits
            (B, channels, h, w), such as every decode head of MMSegmentation. Its ``num_classes`` is set to
            ``channels``. The model fills in its own ``head`` where a task has none.
        loss: config of a loss called with the logits and the label, both of the input's size.
        loss_weight: factor on the loss.

    Raises:
        ValueError: there is no head, or the loss weight is not positive.
    """

    def __init__(self, name: str, channels: int, head: dict | None, loss: dict, loss_weight: float) -> None:
        super().__init__()
        self.name = name
        self.map = find_task_map(name)
        if head is None:
            raise ValueError(f"task {name!r} has no head: give it one, or give the model a head for all its tasks")
        if not loss_weight > 0:
            raise ValueError(f"loss_weight of task {name!r} must be positive, got {loss_weight}; leave the task out")
        self.channels = channels
        self.loss_weight = float(loss_weight)
        head = dict(copy.deepcopy(head), num_classes=channels)
        with warnings.catch_warnings():
            # MMSegmentation's heads speak of thresholds and of sigmoid for one or two channels; losses are ours.
            warnings.filterwarnings("ignore", message=".*(threshold is not defined|binary segmentation).*")
            self.head = MODELS.build(head)
        self.criterion = MODELS.build(loss)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Maps of the backbone or neck -> logits (B, channels, h, w)."""
        return self.head(features)

    # --- training -----------------------------------------------------------------------------------------------

    def loss(self, features: Sequence[Tensor], samples: list[MultiTaskSample], size: tuple[int, int]) -> Tensor:
        """The loss of a batch, without ``loss_weight``; 0 with zero gradients if nothing of it is labelled.

        Args:
            features: maps of the backbone or neck.
            samples: B samples; those without a label of this task count for nothing.
            size: height and width of the input.
        """
        logits = self.forward(features)
        target = self.stack_targets(samples, size, logits.device)
        rows = self.known(target).flatten(1).any(1)
        if not rows.any():
            return logits.sum() * 0.0
        if not rows.all():
            # Left out here and not in the loss: losses of hosts may divide by the labelled pixels of each image.
            logits, target = logits[rows], target[rows]
        return self.compare(F.interpolate(logits.float(), size, mode="bilinear", align_corners=False), target)

    def compare(self, logits: Tensor, target: Tensor) -> Tensor:
        """Logits and labels of the labelled images, at the input's size -> the loss."""
        return self.criterion(logits, target)

    def labelled(self, samples: Sequence[MultiTaskSample]) -> bool:
        """Whether any pixel of the batch has a label of this task."""
        present = [sample.get(self.map.truth) for sample in samples]
        return any(bool(self.known(label.data[None]).any()) for label in present if label is not None)

    def stack_targets(self, samples: Sequence[MultiTaskSample], size: tuple[int, int], device: torch.device) -> Tensor:
        """(B, channels of the label, H, W): labels of the batch; padding and missing labels hold the fill value.

        Raises:
            ValueError: a label is larger than the input, so that it belongs to another size.
        """
        dtype = torch.long if self.map.is_label else torch.float32
        shape = (len(samples), self.map.channels, *size)
        target = torch.full(shape, self.map.fill, dtype=dtype, device=device)
        for row, sample in zip(target, samples, strict=True):
            label = sample.get(self.map.truth)
            if label is None:
                continue
            height, width = label.data.shape[-2:]
            if (
                height > size[0]
                or width > size[1]
                or (height, width) != tuple(sample.get("img_shape", (height, width)))
            ):
                raise ValueError(
                    f"the {self.name} label of {sample.get('img_path')} has {height} x {width} pixels, its image "
                    f"{tuple(sample.get('img_shape', ()))}: load labels before the image is resized in training"
                )
            row[:, :height, :width] = label.data.to(dtype)
        return target

    def known(self, target: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, 1, H, W) bool: pixels with a label."""
        return target != self.map.fill

    # --- prediction ---------------------------------------------------------------------------------------------

    def predict(self, logits: Tensor, sample: MultiTaskSample, size: tuple[int, int]) -> Tensor:
        """The result for one image at its original size.

        Args:
            logits: (channels, h, w).
            sample: its ``img_shape`` is cut out of the padded input and brought to ``ori_shape``.
            size: height and width of the padded input.

        Returns:
            (channels of the prediction, H, W).
        """
        logits = F.interpolate(logits[None].float(), size, mode="bilinear", align_corners=False)
        height, width = sample.get("img_shape", size)
        logits = logits[:, :, :height, :width]
        original = tuple(sample.get("ori_shape", (height, width)))
        if original != (height, width):
            logits = F.interpolate(logits, original, mode="bilinear", align_corners=False)
        return self.decode(logits, sample)[0]

    def decode(self, logits: Tensor, sample: MultiTaskSample) -> Tensor:
        """Logits (1, channels, H, W) -> what the task predicts."""
        raise NotImplementedError

    def add_prediction(self, sample: MultiTaskSample, prediction: Tensor) -> None:
        """Put the result into the sample."""
        sample.set_field(PixelData(data=prediction), self.map.prediction)

    def extra_repr(self) -> str:
        """For ``print(model)``."""
        return f"name={self.name}, channels={self.channels}, loss_weight={self.loss_weight}"


@MODELS.register_module()
class SegmentationTask(DenseTask):
    """A class at each pixel: semantic segmentation (``semseg``) or human parts (``parts``).

    Args:
        num_classes: number of classes.
        name: see :class:`DenseTask`.
        head: see :class:`DenseTask`.
        loss: default: MMSegmentation's cross-entropy, mean over labelled pixels. Called with ``ignore_index`` too.
        loss_weight: both reference implementations use 1 for semantic segmentation and 2 for parts.
    """

    def __init__(
        self, num_classes: int, name: str = "semseg", head: dict | None = None, loss: dict | None = None,
        loss_weight: float = 1.0,
    ) -> None:  # fmt: skip
        loss = loss or dict(type="mmseg.CrossEntropyLoss", avg_non_ignore=True)
        super().__init__(name, num_classes, head, loss, loss_weight)

    def loss(self, features: Sequence[Tensor], samples: list[MultiTaskSample], size: tuple[int, int]) -> Tensor:
        """See :meth:`DenseTask.loss`; labels beyond the classes are named.

        Raises:
            ValueError: a label is neither a class nor 255.
        """
        if torch.device(features[0].device).type == "cpu":  # on a GPU the check would wait for the device
            self._check_labels(samples)
        return super().loss(features, samples, size)

    def _check_labels(self, samples: Sequence[MultiTaskSample]) -> None:
        for sample in samples:
            label = sample.get(self.map.truth)
            if label is None:
                continue
            wrong = (label.data >= self.channels) & (label.data != self.map.fill) | (label.data < 0)
            if wrong.any():
                raise ValueError(
                    f"the {self.name} label of {sample.get('img_path')} holds "
                    f"{label.data[wrong].unique().tolist()[:8]}; legal are 0 to {self.channels - 1} and "
                    f"{self.map.fill} (no label). Change num_classes, or the label maps (reduce_zero_label?)."
                )

    def stack_targets(self, samples: Sequence[MultiTaskSample], size: tuple[int, int], device: torch.device) -> Tensor:
        """(B, H, W), as losses of class numbers take them."""
        return super().stack_targets(samples, size, device)[:, 0]

    def compare(self, logits: Tensor, target: Tensor) -> Tensor:
        """As MMSegmentation's heads call their losses, which otherwise ignore no label, or another one."""
        return self.criterion(logits, target, ignore_index=self.map.fill)

    def decode(self, logits: Tensor, sample: MultiTaskSample) -> Tensor:
        """Class numbers (1, 1, H, W), int64."""
        return logits.argmax(1, keepdim=True)


@MODELS.register_module()
class DepthTask(DenseTask):
    """Metres along the optical axis.

    Args:
        name: see :class:`DenseTask`.
        head: see :class:`DenseTask`.
        loss: default: :class:`MaskedL1Loss`. MMSegmentation's ``SiLogLoss`` fits with ``positive=True``.
        loss_weight: both reference implementations use 1.
        positive: a softplus on the output; without it the output is the depth itself, as in both of them.
    """

    def __init__(
        self, name: str = "depth", head: dict | None = None, loss: dict | None = None, loss_weight: float = 1.0,
        positive: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(name, 1, head, loss or dict(type="mmvit_plugins.MaskedL1Loss"), loss_weight)
        self.positive = positive

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """(B, 1, h, w)."""
        logits = super().forward(features)
        return F.softplus(logits) if self.positive else logits

    def known(self, target: Tensor) -> Tensor:
        """Finite and above 0."""
        return torch.isfinite(target) & (target > 0)

    def decode(self, logits: Tensor, sample: MultiTaskSample) -> Tensor:
        """Depth of the image as it was before any resize, (1, 1, H, W)."""
        return logits * float(sample.get("depth_scale", 1.0))


@MODELS.register_module()
class NormalsTask(DenseTask):
    """Unit surface normals in the camera frame.

    Args:
        name: see :class:`DenseTask`.
        head: see :class:`DenseTask`.
        loss: default: :class:`NormalsLoss` with the survey's mean over elements.
        loss_weight: both reference implementations use 10.
    """

    def __init__(
        self, name: str = "normals", head: dict | None = None, loss: dict | None = None, loss_weight: float = 10.0
    ) -> None:
        super().__init__(name, 3, head, loss or dict(type="mmvit_plugins.NormalsLoss"), loss_weight)

    def known(self, target: Tensor) -> Tensor:
        """All but the zero vector."""
        return normal_is_known(target)

    def decode(self, logits: Tensor, sample: MultiTaskSample) -> Tensor:
        """Unit vectors (1, 3, H, W)."""
        return F.normalize(logits, dim=1)


@MODELS.register_module()
class BoundaryTask(DenseTask):
    """The probability that a pixel lies on a boundary.

    Args:
        name: see :class:`DenseTask`.
        head: see :class:`DenseTask`.
        loss: default: :class:`BalancedBCELoss` with weight 0.95 on boundaries.
        loss_weight: both reference implementations use 50.
    """

    def __init__(
        self, name: str = "boundary", head: dict | None = None, loss: dict | None = None, loss_weight: float = 50.0
    ) -> None:
        super().__init__(name, 1, head, loss or dict(type="mmvit_plugins.BalancedBCELoss"), loss_weight)

    def decode(self, logits: Tensor, sample: MultiTaskSample) -> Tensor:
        """Probabilities (1, 1, H, W)."""
        return logits.sigmoid()


@MODELS.register_module()
class SaliencyTask(DenseTask):
    """The probability that a pixel belongs to what the picture is about.

    Args:
        channels: 1 (survey) or 2 (InvPT) logits.
        name: see :class:`DenseTask`.
        head: see :class:`DenseTask`.
        loss: default: :class:`SaliencyLoss`.
        loss_weight: both reference implementations use 5.

    Raises:
        ValueError: other ``channels``.
    """

    def __init__(
        self, channels: int = 1, name: str = "saliency", head: dict | None = None, loss: dict | None = None,
        loss_weight: float = 5.0,
    ) -> None:  # fmt: skip
        if channels not in (1, 2):
            raise ValueError(f"SaliencyTask has 1 or 2 channels, got {channels!r}")
        super().__init__(name, channels, head, loss or dict(type="mmvit_plugins.SaliencyLoss"), loss_weight)

    def decode(self, logits: Tensor, sample: MultiTaskSample) -> Tensor:
        """Probabilities (1, 1, H, W)."""
        return logits.sigmoid() if self.channels == 1 else logits.softmax(1)[:, 1:]
