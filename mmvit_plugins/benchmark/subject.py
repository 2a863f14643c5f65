"""A model of a config, ready to be run in any :class:`Setting`."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from torch import Tensor, nn

from .images import load_images, training_samples
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
            scenes.
        cfg_options: KEY=VALUE changes of the config.

    Raises:
        UserError: the config is missing or cannot be used here.
        ValueError: it has no such part.
    """

    def __init__(
        self,
        name: str,
        config: str,
        part: str = "model",
        device: str = "cpu",
        images: Sequence[str] = (),
        cfg_options: Sequence[str] = (),
    ) -> None:
        from mmvit_plugins.cli.config_loading import load_config, replace_sync_batch_norm

        self.source = dict(
            name=name, config=config, part=part, device=device, images=list(images), cfg_options=list(cfg_options)
        )
        self.name, self.part, self.device, self.images = name, part, device, list(images)
        self.cfg = load_config(argparse.Namespace(config=config, cfg_options=list(cfg_options)))
        init_default_scope(self.cfg.get("default_scope") or "mmengine")
        model = copy.deepcopy(self.cfg.model)
        replace_sync_batch_norm(model)
        preprocessor = self.cfg.get("data_preprocessor")
        if preprocessor is not None:  # at the top of MMPretrain's configs; mmengine's Runner moves it
            model.setdefault("data_preprocessor", preprocessor)
        self.preprocessor = model.get("data_preprocessor") or {}
        if part == "backbone":
            if "backbone" not in model:
                raise ValueError(f"{config} has no model.backbone: measure the whole, --part model")
            model = model.backbone
            model.pop("init_cfg", None)
        self.model: nn.Module = MODELS.build(model).to(device)
        self._compiled: nn.Module | None = None
        self._optim: Any = None

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
            setting: how.
            image: run on this one of the images alone (batch 1); None: on ``setting.batch`` of them.
        """
        channels_last = setting.layout == "channels_last"
        self.model.to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
        pictures = load_images(self.images, (setting.height, setting.width), setting.batch, image)
        model = self._runnable(setting)
        if self.part == "backbone":
            batch = self.normalised(pictures)
            batch = batch.contiguous(memory_format=torch.channels_last) if channels_last else batch
            run = self._train_backbone if setting.mode == "train" else self._infer_backbone
            return lambda: run(model, batch, setting)
        scope = self.cfg.get("default_scope") or ""
        samples = training_samples(scope, self.cfg.model, (setting.height, setting.width), len(pictures))
        data = dict(inputs=pictures, data_samples=samples)
        if getattr(getattr(self.model, "data_preprocessor", None), "size", None) is not None:
            self.model.data_preprocessor.size = (setting.height, setting.width)  # MMSegmentation pads crops to it
        run = self._train_model if setting.mode == "train" else self._infer_model
        return lambda: run(model, data, setting)

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

    def _infer_backbone(self, model: nn.Module, batch: Tensor, setting: Setting) -> None:
        with torch.no_grad(), self._autocast(setting):
            model(batch)

    def _train_backbone(self, model: nn.Module, batch: Tensor, setting: Setting) -> None:
        model.zero_grad(set_to_none=True)
        with self._autocast(setting):
            outputs = model(batch)
        sum(x.float().square().mean() for x in _floating(outputs)).backward()

    def _infer_model(self, model: nn.Module, data: dict, setting: Setting) -> None:
        with torch.no_grad(), self._autocast(setting):
            model.test_step(_copied(data))

    def _train_model(self, model: nn.Module, data: dict, setting: Setting) -> None:
        if self._optim is None or self._optim[0] is not model:
            self._optim = model, build_optim_wrapper(model, copy.deepcopy(self.cfg.optim_wrapper))
        optim = self._optim[1]
        with self._autocast(setting):
            losses = model(**model.data_preprocessor(_copied(data), True), mode="loss")
        optim.update_params(model.parse_losses(losses)[0])


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
