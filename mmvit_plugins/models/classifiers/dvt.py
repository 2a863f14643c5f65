"""Classifiers with several exits: the joint loss, and real early exit at inference.

DVT (arXiv 2105.15075, sec. 3): all exits are trained together, the loss is the sum of theirs. At test time a sample
leaves at the first exit whose largest softmax probability reaches the exit's threshold. The published model always runs
all exits; here a batch is split as samples leave, and later models run on the rest only.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from mmengine.model import BaseModel, BaseModule
from torch import Tensor, nn

from mmvit_plugins.registry import MODELS

__all__ = ["DVTClassifier", "ExitHeads", "ExitResult"]


class ExitResult(NamedTuple):
    """Of B samples, in their order.

    ``scores`` (B, classes): probabilities of the exit that answered; ``index`` (B,) long: which exit; ``confidence``
    (B,): its largest probability; ``all_scores`` (B, K, classes): every exit's, if all were run, else None.
    """

    scores: Tensor
    index: Tensor
    confidence: Tensor
    all_scores: Tensor | None


class ExitHeads(BaseModule):
    """One head for each exit.

    Args:
        head: config of an MMPretrain head, built once for each exit.
        num_exits: number of exits.
    """

    def __init__(self, head: Mapping[str, Any], num_exits: int) -> None:
        super().__init__()
        self.exits = nn.ModuleList(MODELS.build(copy.deepcopy(head)) for _ in range(num_exits))
        self.num_classes = self.exits[0].num_classes


@MODELS.register_module()
class DVTClassifier(BaseModel):
    """A cascade and its heads, used like MMPretrain's ImageClassifier.

    Predictions are MMPretrain's DataSamples with ``pred_score`` and ``pred_label`` of the exit that answered, and:
    ``exit_index`` (from 0), ``exit_confidence``, ``exit_scores`` (K, classes) when all exits were run, and
    ``exit_costs`` (K costs) when the checkpoint's meta holds them.

    Args:
        backbone: config of a cascade with ``num_exits`` and ``run_exit``, such as ``mmvit_plugins.DVT``.
        head: config of an MMPretrain head, built once for each exit; its loss is that of the exit.
        exit_thresholds: one confidence for each exit but the last (one for the last is allowed and ignored). None:
            those in the meta of the checkpoint that is tested, and without them no early exit. Given here, they win.
        report_all_exits: always run all exits, for metrics of each exit; the answer still follows the thresholds.
        loss_weights: weight of each exit's loss; None: 1 each, as published.
        train_cfg: batch augmentations, as in MMPretrain.
        data_preprocessor: as in MMPretrain.
        init_cfg: mmengine's initialisation config.

    Raises:
        ValueError: a number of thresholds or weights that does not fit the exits.
    """

    def __init__(
        self,
        backbone: dict,
        head: dict,
        exit_thresholds: Sequence[float] | None = None,
        report_all_exits: bool = False,
        loss_weights: Sequence[float] | None = None,
        train_cfg: dict | None = None,
        data_preprocessor: dict | nn.Module | None = None,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        if data_preprocessor is None or isinstance(data_preprocessor, Mapping):
            data_preprocessor = dict(data_preprocessor or {})
            data_preprocessor.setdefault("type", "mmpretrain.ClsDataPreprocessor")
            data_preprocessor.setdefault("batch_augments", train_cfg)
            data_preprocessor = MODELS.build(data_preprocessor)
        super().__init__(data_preprocessor=data_preprocessor, init_cfg=init_cfg)
        self.backbone = MODELS.build(backbone)
        self.head = ExitHeads(head, self.backbone.num_exits)
        self.report_all_exits = report_all_exits
        weights = [1.0] * self.num_exits if loss_weights is None else [float(w) for w in loss_weights]
        if len(weights) != self.num_exits:
            raise ValueError(f"loss_weights needs one number for each of {self.num_exits} exits, got {loss_weights!r}")
        self.loss_weights = tuple(weights)
        self._configured = self._check_thresholds(exit_thresholds)
        self.exit_thresholds = self._configured
        self.exit_costs: tuple[float, ...] | None = None

    @property
    def num_exits(self) -> int:
        """Models of the cascade."""
        return self.backbone.num_exits

    def _check_thresholds(self, thresholds: Sequence[float] | None) -> tuple[float, ...] | None:
        if thresholds is None:
            return None
        if len(thresholds) not in (self.num_exits - 1, self.num_exits):
            raise ValueError(
                f"{self.num_exits} exits need {self.num_exits - 1} thresholds (the last exit takes everybody), got "
                f"{list(thresholds)!r}"
            )
        return tuple(float(t) for t in thresholds[: self.num_exits - 1])

    def load_meta(self, meta: Mapping[str, Any]) -> bool:
        """Take thresholds and costs from a checkpoint's meta, as tools/search_exits.py writes them.

        Thresholds of the config win over those of the meta. Returns whether the meta held any.
        """
        stored = (meta or {}).get("early_exit")
        self.exit_thresholds, self.exit_costs = self._configured, None
        if stored is None:
            return False
        if self._configured is None:
            self.exit_thresholds = self._check_thresholds(stored["thresholds"])
        costs = stored.get("costs")
        self.exit_costs = None if costs is None else tuple(float(cost) for cost in costs)
        return True

    def extract_feat(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """(B, 3, H, W) -> the class tokens of all exits, each (B, C)."""
        return self.backbone(inputs)

    def forward(self, inputs: Tensor, data_samples: list | None = None, mode: str = "tensor") -> Any:
        """As MMPretrain's classifiers: 'tensor' gives the logits of all exits, 'loss' a dict, 'predict' DataSamples.

        Raises:
            ValueError: another mode.
        """
        if mode == "tensor":
            return tuple(head((token,)) for head, token in zip(self.head.exits, self.backbone(inputs), strict=True))
        if mode == "loss":
            return self.loss(inputs, data_samples)
        if mode == "predict":
            return self.predict(inputs, data_samples)
        raise ValueError(f"mode is 'tensor', 'loss' or 'predict', got {mode!r}")

    def loss(self, inputs: Tensor, data_samples: list) -> dict[str, Tensor]:
        """The weighted loss of each exit, ``loss_exit1`` ...; training adds them up."""
        losses: dict[str, Tensor] = {}
        tokens = self.backbone(inputs)
        for number, (head, token) in enumerate(zip(self.head.exits, tokens, strict=True)):
            for key, value in head.loss((token,), data_samples).items():
                weighted = value * self.loss_weights[number] if "loss" in key else value
                losses[f"{key}_exit{number + 1}"] = weighted
        return losses

    def run_exits(self, inputs: Tensor, thresholds: Sequence[float] | None, all_exits: bool = False) -> ExitResult:
        """Classify a batch, each sample by the first exit that is sure.

        Args:
            inputs: (B, 3, H, W), preprocessed.
            thresholds: K - 1 confidences; None: everything goes to the last exit.
            all_exits: run every exit on every sample, whatever the thresholds.
        """
        last = self.num_exits - 1
        limits = (*(thresholds if thresholds is not None else [float("inf")] * last), float("-inf"))
        batch, classes = len(inputs), self.head.num_classes
        scores = inputs.new_zeros(batch, classes, dtype=torch.float32)
        index = torch.full((batch,), last, device=inputs.device)
        open_ = torch.ones(batch, dtype=torch.bool, device=inputs.device)
        rows = torch.arange(batch, device=inputs.device)
        kept, state = [], None
        for number, limit in enumerate(limits):
            token, state = self.backbone.run_exit(number, inputs, state)
            probs = self.head.exits[number]((token,)).float().softmax(dim=-1)
            kept.append(probs)
            leaves = (probs.amax(dim=-1) >= limit) & open_[rows]
            gone = rows[leaves]
            scores[gone], index[gone], open_[gone] = probs[leaves], number, False
            if all_exits or number == last:
                continue
            stay = (~leaves).nonzero()[:, 0]
            if not len(stay):
                break
            if len(stay) < len(rows):
                rows, inputs, state = rows[stay], inputs[stay], state.select(stay)
        return ExitResult(scores, index, scores.amax(dim=-1), torch.stack(kept, dim=1) if all_exits else None)

    def predict(self, inputs: Tensor, data_samples: list | None = None) -> list:
        """DataSamples in the order of the inputs; see the class for their fields."""
        from mmpretrain.structures import DataSample

        # Without thresholds all exits run anyway.
        all_exits = self.report_all_exits or self.exit_thresholds is None
        result = self.run_exits(inputs, self.exit_thresholds, all_exits)
        samples = [None] * len(inputs) if data_samples is None else data_samples
        out = []
        for i, sample in enumerate(samples):
            sample = DataSample() if sample is None else sample
            sample.set_pred_score(result.scores[i]).set_pred_label(result.scores[i].argmax(dim=0, keepdim=True))
            sample.exit_index = int(result.index[i])
            sample.exit_confidence = float(result.confidence[i].detach())
            if result.all_scores is not None:
                sample.exit_scores = result.all_scores[i]
            if self.exit_costs is not None:
                sample.exit_costs = self.exit_costs
            out.append(sample)
        return out
