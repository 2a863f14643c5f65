"""MMPretrain's ImageClassifier that also learns from the moving average of its own weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from mmpretrain.models import ImageClassifier
from torch import Tensor, nn

from mmvit_plugins.registry import MODELS

__all__ = ["SelfDistillationClassifier", "distillation_loss"]


def distillation_loss(scores: Tensor, teacher_scores: Tensor, use_sigmoid: bool, temperature: float = 1.0) -> Tensor:
    """How far a model is from its teacher, a mean over images; no gradient goes to the teacher.

    Args:
        scores: (B, classes) logits.
        teacher_scores: (B, classes) logits.
        use_sigmoid: classes are judged each for itself: binary cross entropy, summed over classes. Otherwise the
            Kullback-Leibler divergence of the softmax (SAF's equation for MESA, arXiv:2205.14083). Both have the
            same gradient as the divergence of the two distributions.
        temperature: divides both logits.
    """
    scores, teacher_scores = scores.float() / temperature, teacher_scores.detach().float() / temperature
    if use_sigmoid:
        losses = F.binary_cross_entropy_with_logits(scores, teacher_scores.sigmoid(), reduction="none")
        return losses.sum(1).mean()
    return F.kl_div(scores.log_softmax(1), teacher_scores.log_softmax(1), reduction="batchmean", log_target=True)


@MODELS.register_module()
class SelfDistillationClassifier(ImageClassifier):
    """MESA: the usual loss, plus ``ratio`` times the distance to what the averaged weights say of the same images.

    The averaged weights are mmengine's ``EMAHook``'s; ``mmvit_plugins.SelfDistillationHook`` hands them over while they
    are to be learnt from (EfficientViT: from a quarter of training on). Without the hook this is ``ImageClassifier``.
    Source: Du et al., *Sharpness-Aware Training for Free*, NeurIPS 2022 (arXiv:2205.14083), as used in EfficientViT's
    recipe for L1 to L3, of which we know the ratios and the begin only: the loss between the two, the same function as
    the classification loss's, and the temperature of 1 are ours.

    Args:
        distillation: ``ratio`` (default 1) and ``temperature`` (default 1).
        backbone, neck, head, pretrained, train_cfg, data_preprocessor, init_cfg: as in ``ImageClassifier``.

    Raises:
        ValueError: an unknown key in ``distillation``, or a value that is not positive.
    """

    def __init__(
        self,
        backbone: dict[str, Any],
        neck: dict[str, Any] | None = None,
        head: dict[str, Any] | None = None,
        pretrained: str | None = None,
        train_cfg: dict[str, Any] | None = None,
        data_preprocessor: dict[str, Any] | None = None,
        init_cfg: dict[str, Any] | None = None,
        distillation: Mapping[str, float] | None = None,
    ) -> None:
        values = {"ratio": 1.0, "temperature": 1.0, **(distillation or {})}
        if set(values) != {"ratio", "temperature"} or not all(value > 0 for value in values.values()):
            raise ValueError(f"distillation takes ratio and temperature, both positive, got {distillation!r}")
        super().__init__(backbone, neck, head, pretrained, train_cfg, data_preprocessor, init_cfg)
        self.ratio = float(values["ratio"])
        self.temperature = float(values["temperature"])
        # In a tuple, because a module's modules are its own: the teacher is in no state dict and not trained.
        self._teacher: tuple[ImageClassifier, ...] = ()

    def set_teacher(self, teacher: nn.Module | None) -> None:
        """Learn from this classifier, or from none."""
        self._teacher = () if teacher is None else (teacher,)

    def loss(self, inputs: Tensor, data_samples: Sequence[Any]) -> dict[str, Tensor]:
        """``ImageClassifier``'s losses and, with a teacher, ``loss_distillation``.

        Args:
            inputs: (B, 3, H, W) images, mixed already where mixup or cutmix is on: both see the same ones.
            data_samples: their labels.
        """
        if not self._teacher:
            return super().loss(inputs, data_samples)
        scores: list[Tensor] = []
        # The head's own loss calls the head; a second call would update the statistics of its norms twice.
        watch = self.head.register_forward_hook(lambda head, args, output: scores.append(output))
        try:
            losses = super().loss(inputs, data_samples)
        finally:
            watch.remove()
        distance = distillation_loss(scores[0], self._teacher_scores(inputs), self._use_sigmoid(), self.temperature)
        losses["loss_distillation"] = self.ratio * distance
        return losses

    @torch.no_grad()
    def _teacher_scores(self, inputs: Tensor) -> Tensor:
        """(B, classes) logits of the teacher in evaluation mode."""
        teacher = self._teacher[0]
        training = teacher.training
        teacher.eval()
        scores = teacher.head(teacher.extract_feat(inputs))
        teacher.train(training)
        return scores

    def _use_sigmoid(self) -> bool:
        """Whether the head's loss judges classes each for itself (MMPretrain's losses may wrap another one)."""
        return any(getattr(module, "use_sigmoid", False) for module in self.head.loss_module.modules())
