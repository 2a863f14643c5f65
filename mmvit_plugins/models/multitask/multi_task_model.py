"""Several dense tasks, and instances if wanted, on one backbone."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

from mmengine.model import BaseModel
from torch import Tensor, nn

from mmvit_plugins.registry import MODELS
from mmvit_plugins.structures import MultiTaskSample

from .instance_task import InstanceTask

__all__ = ["MultiTaskModel"]


@MODELS.register_module()
class MultiTaskModel(BaseModel):
    """One backbone, one neck at most, and a head for each task.

    Every task sees the same maps and nothing of the other tasks: its loss depends on its own labels alone. A sample
    that lacks the label of a task (no ``gt_`` field) counts for nothing in that task's loss, so partially labelled
    data, and mixtures of data sets with different labels, train as they are. Heads run on all images of a batch, so
    batch norms inside a head see unlabelled images too, as they do in the backbone.

    Args:
        backbone: config of any backbone, ours or a host's, that returns a tuple of maps.
        tasks: config of each task by name: :class:`SegmentationTask` (``semseg``, ``parts``), :class:`DepthTask`,
            :class:`NormalsTask`, :class:`BoundaryTask`, :class:`SaliencyTask`, :class:`InstanceTask`
            (``instances``).
        head: config of the head of all tasks that have none of their own; ``num_classes`` is filled in.
        neck: config of a neck, or a list of necks that follow each other. All tasks see its output.
        only: names of the tasks to build, for single-task twins; None builds all.
        weighting: config of a module that balances the losses, such as :class:`UncertaintyWeighting`; None leaves it
            to the ``loss_weight`` of the tasks.
        data_preprocessor: usually :class:`MultiTaskDataPreprocessor`.
        init_cfg: as in mmengine.

    Raises:
        ValueError: no task, or ``only`` names one that is not there.
    """

    def __init__(
        self,
        backbone: dict,
        tasks: Mapping[str, dict],
        head: dict | None = None,
        neck: dict | Sequence[dict] | None = None,
        only: str | Sequence[str] | None = None,
        weighting: dict | None = None,
        data_preprocessor: dict | nn.Module | None = None,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        super().__init__(data_preprocessor=data_preprocessor, init_cfg=init_cfg)
        chosen = list(tasks) if only is None else [only] if isinstance(only, str) else list(only)
        unknown = [name for name in chosen if name not in tasks]
        if unknown or not chosen or len(set(chosen)) != len(chosen):
            raise ValueError(
                f"MultiTaskModel needs one task at least, and only={only!r} must name different ones out of "
                f"{', '.join(tasks) or 'none'}"
            )
        self.backbone = MODELS.build(backbone)
        self.neck = _build_neck(neck)
        self.tasks = nn.ModuleDict()
        for name in chosen:
            config = copy.deepcopy(dict(tasks[name]))
            self.tasks[name] = MODELS.build({"head": copy.deepcopy(head), **config, "name": name})
        self.weighting = None if weighting is None else MODELS.build(weighting)
        if self.weighting is not None:
            self.weighting.set_tasks(chosen)

    @property
    def with_neck(self) -> bool:
        """Whether there is a neck; hosts' hooks ask for it."""
        return self.neck is not None

    def extract_feat(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """(B, 3, H, W) -> the maps that all tasks see."""
        features = self.backbone(inputs)
        features = features if isinstance(features, (list, tuple)) else [features]
        return tuple(features if self.neck is None else self.neck(tuple(features)))

    def forward(
        self, inputs: Tensor, data_samples: list[MultiTaskSample] | None = None, mode: str = "tensor"
    ) -> dict[str, Tensor] | list[MultiTaskSample]:
        """As mmengine's models.

        Args:
            inputs: (B, 3, H, W), normalised.
            data_samples: B samples; needed for a loss.
            mode: 'loss': weighted loss of each task; 'predict': the samples with predictions; 'tensor': logits of each
                task.

        Raises:
            ValueError: another mode.
        """
        if mode == "loss":
            return self.loss(inputs, data_samples or [])
        if mode == "predict":
            return self.predict(inputs, data_samples)
        if mode == "tensor":
            features = self.extract_feat(inputs)
            return {name: task(features) for name, task in self.tasks.items()}
        raise ValueError(f"mode of MultiTaskModel must be 'loss', 'predict' or 'tensor', got {mode!r}")

    def loss(self, inputs: Tensor, data_samples: list[MultiTaskSample]) -> dict[str, Tensor]:
        """``<task>/loss`` as it is summed up, and ``<task>/unweighted`` for the log where the two differ."""
        features = self.extract_feat(inputs)
        size = tuple(inputs.shape[-2:])
        plain = {name: task.loss(features, data_samples, size) for name, task in self.tasks.items()}
        weighted = {name: loss * self.tasks[name].loss_weight for name, loss in plain.items()}
        if self.weighting is not None:
            labelled = {name: task.labelled(data_samples) for name, task in self.tasks.items()}
            weighted = self.weighting(weighted, labelled)
        losses = {}
        for name, loss in weighted.items():
            losses[f"{name}/loss"] = loss
            if self.weighting is not None or self.tasks[name].loss_weight != 1:
                losses[f"{name}/unweighted"] = plain[name].detach()
        return losses

    def predict(self, inputs: Tensor, data_samples: list[MultiTaskSample] | None = None) -> list[MultiTaskSample]:
        """The samples (new ones if there are none) with the predictions of all tasks, at the original image sizes."""
        size = tuple(inputs.shape[-2:])
        if data_samples is None:
            meta = dict(img_shape=size, ori_shape=size, batch_input_shape=size, scale_factor=(1.0, 1.0))
            data_samples = [MultiTaskSample(metainfo=meta) for _ in inputs]
        features = self.extract_feat(inputs)
        for sample in data_samples:
            sample.set_metainfo(dict(tasks=tuple(self.tasks)))
        for task in self.tasks.values():
            if isinstance(task, InstanceTask):
                task.predict(features, data_samples)
                continue
            for logits, sample in zip(task(features), data_samples, strict=True):
                task.add_prediction(sample, task.predict(logits, sample, size))
        return data_samples


def _build_neck(neck: dict | Sequence[dict] | None) -> nn.Module | None:
    if neck is None:
        return None
    configs = [neck] if isinstance(neck, dict) else list(neck)
    modules = [MODELS.build(copy.deepcopy(config)) for config in configs]
    return modules[0] if len(modules) == 1 else nn.Sequential(*modules)
