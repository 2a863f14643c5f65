"""A model of a config, ready to be run in any :class:`Setting`."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.optim import OptimWrapper, build_optim_wrapper
from mmengine.registry import MODELS, DefaultScope, init_default_scope
from torch import Tensor, nn

from ..cli.errors import UserError
from .clouds import find_cloud_frame
from .images import load_images
from .labels import training_samples
from .settings import Setting

__all__ = ["Subject"]


class Subject:
    """Builds a model once and runs it in many settings.

    Args:
        name: for tables and plots.
        config: file, or name of a shipped config.
        part: ``backbone`` (``model.backbone`` alone) or ``model``.
        device: such as ``cpu`` or ``cuda:0``.
        images: photographs to run on, which matters where the number of tokens depends on them; none: rendered
            scenes. Models of point clouds take none: they run on the points of rendered scenes.
        cfg_options: KEY=VALUE changes of the config.
        cfg: the config, if it is loaded and changed already.

    Raises:
        UserError: the config is missing, cannot be used here, cannot be built, has no such part, or takes no images.
    """

    def __init__(
        self,
        name: str,
        config: str,
        part: str = "model",
        device: str = "cpu",
        images: Sequence[str] = (),
        cfg_options: Sequence[str] = (),
        cfg: Config | None = None,
    ) -> None:
        from mmvit_plugins.cli.config_loading import load_config, replace_sync_batch_norm

        self.source = dict(
            name=name, config=config, part=part, device=device, images=list(images), cfg_options=list(cfg_options)
        )
        self.name, self.part, self.device, self.images = name, part, device, list(images)
        if cfg is None:
            cfg = load_config(argparse.Namespace(config=config, cfg_options=list(cfg_options)))
        self.cfg = cfg
        self.scope = self.cfg.get("default_scope") or "mmengine"
        init_default_scope(self.scope)
        if not self.cfg.get("model"):
            raise UserError(f"{config} has no model: it is no config of a task")
        model = copy.deepcopy(self.cfg.model)
        replace_sync_batch_norm(model)
        preprocessor = self.cfg.get("data_preprocessor")
        if preprocessor is not None:  # at the top of MMPretrain's configs; mmengine's Runner moves it
            model.setdefault("data_preprocessor", preprocessor)
        self.preprocessor = model.get("data_preprocessor") or {}
        if part == "backbone":
            if not model.get("backbone"):
                raise UserError(f"{config} has no model.backbone: measure the whole, --part model")
            model = model.backbone
            model.pop("init_cfg", None)
        self.model: nn.Module = _build(model, config).to(device)
        self.clouds = find_cloud_frame(self.model, self.cfg)
        if self.clouds is not None and self.images:
            raise UserError(f"{config} takes point clouds, which --images does not have: measure it without --images")
        self._compiled: nn.Module | None = None
        self._optim: tuple[nn.Module, OptimWrapper] | None = None

    @property
    def parameters(self) -> int:
        """Number of parameters of the part."""
        return sum(p.numel() for p in self.model.parameters())

    def normalised(self, images: Sequence[Tensor]) -> Tensor:
        """uint8 RGB images (3, H, W) -> (B, 3, H, W) as the backbone sees them."""
        mean = self.preprocessor.get("mean") or (123.675, 116.28, 103.53)
        std = self.preprocessor.get("std") or (58.395, 57.12, 57.375)
        mean, std = (torch.tensor(values, dtype=torch.float32).view(3, 1, 1) for values in (mean, std))
        return torch.stack([(image.float() - mean) / std for image in images]).to(self.device)

    def step(self, setting: Setting, image: int | None = None) -> Callable[[], object]:
        """A function without arguments that runs the model once.

        Args:
            setting: how. For a model of point clouds the size is that of the depth picture the points come from.
            image: run on this one of the images alone (batch 1); None: on ``setting.batch`` of them.
        """
        channels_last = setting.layout == "channels_last"
        self.model.to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
        # Several hosts take turns, and optimisers and samples are found in the scope of their own.
        with DefaultScope.overwrite_default_scope(self.scope):
            model = self._runnable(setting)
            data = self._backbone_input(setting, image) if self.part == "backbone" else self._data(setting, image)
            if self.part == "model" and setting.mode == "train":
                self._prepare_optimiser(model)
        if self.part == "backbone":
            run = self._train_backbone if setting.mode == "train" else self._infer_backbone
        else:
            run = self._train_model if setting.mode == "train" else self._infer_model
        return lambda: run(model, data, setting)

    def release(self) -> None:
        """Forget gradients and the optimiser: after a step that failed, half-way or for want of memory."""
        self.model.zero_grad(set_to_none=True)
        self._optim = None
        if self.device.startswith("cuda"):
            torch.cuda.empty_cache()

    def _inputs(self, setting: Setting, image: int | None) -> list[Tensor]:
        size = (setting.height, setting.width)
        if self.clouds is not None:
            return self.clouds.clouds(size, setting.batch, image)
        return load_images(self.images, size, setting.batch, image)

    def _backbone_input(self, setting: Setting, image: int | None) -> Tensor | list[Tensor]:
        inputs = self._inputs(setting, image)
        if self.clouds is not None:
            return [cloud.to(self.device) for cloud in inputs]
        batch = self.normalised(inputs)
        return batch.contiguous(memory_format=torch.channels_last) if setting.layout == "channels_last" else batch

    def _data(self, setting: Setting, image: int | None) -> dict:
        """What a whole model's data preprocessor takes: a batch as it comes from a dataloader."""
        inputs, size = self._inputs(setting, image), (setting.height, setting.width)
        if self.clouds is not None:
            samples = self.clouds.samples(self.model, size, setting.batch, image)
        else:
            samples = training_samples(self.scope, self.model, size, len(inputs))
        if getattr(getattr(self.model, "data_preprocessor", None), "size", None) is not None:
            self.model.data_preprocessor.size = size  # MMSegmentation pads crops to it
        return dict(inputs=inputs, data_samples=samples)

    def _runnable(self, setting: Setting) -> nn.Module:
        self.model.train(setting.mode == "train")
        if not setting.compiled:
            return self.model
        if self._compiled is None:
            # Not torch.compile(model): a whole model is entered through train_step and test_step, not through __call__.
            self._compiled = copy.deepcopy(self.model)
            part = self._compiled if self.part == "backbone" else self._compiled.backbone
            part.compile()
        return self._compiled.train(setting.mode == "train")

    def _autocast(self, setting: Setting) -> Any:
        if setting.dtype == "float32":
            return nullcontext()
        return torch.autocast(self.device.split(":")[0], dtype=getattr(torch, setting.dtype))

    def _infer_backbone(self, model: nn.Module, batch: Tensor | list[Tensor], setting: Setting) -> None:
        with torch.no_grad(), self._autocast(setting):
            model(batch)

    def _train_backbone(self, model: nn.Module, batch: Tensor | list[Tensor], setting: Setting) -> None:
        model.zero_grad(set_to_none=True)
        with self._autocast(setting):
            outputs = model(batch)
        sum(x.float().square().mean() for x in _floating(outputs)).backward()

    def _infer_model(self, model: nn.Module, data: dict, setting: Setting) -> None:
        with torch.no_grad(), self._autocast(setting):
            model.test_step(_copied(data))

    def _prepare_optimiser(self, model: nn.Module) -> None:
        if self._optim is None or self._optim[0] is not model:
            if "optim_wrapper" not in self.cfg:
                raise ValueError(f"{self.source['config']} has no optim_wrapper: a training step needs one")
            self._optim = model, build_optim_wrapper(model, copy.deepcopy(self.cfg.optim_wrapper))

    def _train_model(self, model: nn.Module, data: dict, setting: Setting) -> None:
        optim = self._optim[1]
        with self._autocast(setting):
            losses = model(**model.data_preprocessor(_copied(data), True), mode="loss")
        optim.update_params(model.parse_losses(losses)[0])


def _build(model: dict, config: str) -> nn.Module:
    try:
        return MODELS.build(model)
    except (TypeError, ValueError, KeyError, AttributeError, AssertionError) as error:
        text = str(error.args[0]) if error.args else "a condition does not hold"  # str(KeyError) adds quotes
        raise UserError(f"the model of {config} cannot be built: {type(error).__name__}: {text}") from error


def _floating(outputs: Any) -> Iterator[Tensor]:
    """Every tensor with a gradient in a nested output."""
    if isinstance(outputs, Tensor):
        if outputs.requires_grad:
            yield outputs
    elif isinstance(outputs, dict):
        yield from _floating(list(outputs.values()))
    elif isinstance(outputs, (list, tuple)):
        for one in outputs:
            yield from _floating(one)


def _copied(data: dict) -> dict:
    """The same images with fresh samples: hosts write predictions and padded shapes into them."""
    return dict(inputs=list(data["inputs"]), data_samples=[sample.clone() for sample in data["data_samples"]])


def default_name(config: str) -> str:
    """``stvit/in1k`` for ``configs/stvit/in1k.py``."""
    path = Path(config)
    return f"{path.parent.name}/{path.stem}" if path.parent.name not in ("", ".") else path.stem
