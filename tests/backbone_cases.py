"""A small instance of every registered backbone, for the contract tests.

Every class of our registry that is a :class:`HierarchicalBackbone` is tested, without being named here: in the first
``arch`` of its module's ``ARCHS``. A family whose smallest published size is too slow for a test, or that has settings
worth testing beside the default, gets an entry in ``SETTINGS``.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

import mmvit_plugins.models  # noqa: F401  (fills the registry)
from mmvit_plugins.models.backbones import HierarchicalBackbone
from mmvit_plugins.registry import MODELS

# Cells that the odd sizes of the tests cut, a learned scale on the branches, and plain attention in the last stage.
_SMALL_STVIT = dict(
    dims=(8, 16, 24, 32), depths=(2, 1, 1, 1), heads=(1, 2, 3, 4), cells=(4, 3, 2, 1), layer_scale=(0, 0, 0.5, 0.5)
)
_SMALL_VIT = dict(embed_dims=32, depth=5, num_heads=2)
_SMALL_SWIN = dict(dims=(8, 16, 24, 32), depths=(2, 2, 3, 1), heads=(1, 2, 3, 4))
_SMALL_FLATFORMER = dict(dims=(8, 16, 24, 32), depths=(2, 1, 2, 1), heads=(1, 2, 3, 4))
#: Name in the registry -> keyword arguments of each variant to test.
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "ToMeSwin": {"merging": dict(arch=_SMALL_SWIN, window_size=3, r=(2, 0, 4, 0.3))},
    "SparseViT": {
        "dense": dict(arch=_SMALL_SWIN, window_size=3),
        # Windows of 2 tokens: 1 of them in the last stage at 64 x 64 pixels, which must not be dropped.
        "pruned": dict(
            arch=_SMALL_SWIN, window_size=2, padding="before_norm", pruning_ratios=(0.6, 0.5, (0.2, 0.2, 0.4), 0)
        ),
    },
    # Groups that cross windows, samples smaller than a group in the last stage. Dropped patches are in
    # test_flatformer_backbone.py.
    "FlatFormer": {"all": dict(arch=_SMALL_FLATFORMER, window=4, group_size=12)},
    # Heads of 16, the smallest published: the attention jumps from 0 to a mean of values where the first of a query's
    # channels (of those with a positive key) becomes positive. With 8 some token of the tests' images is at that jump,
    # and rounding of its input to bfloat16 decides on which side: a map is then 5 % off by this one token.
    "EfficientViT": {
        "b": dict(arch=dict(series="b", widths=(8, 8, 12, 16, 32), depths=(1, 2, 2, 1, 1), head_dim=16)),
        "l": dict(arch=dict(series="l", widths=(4, 6, 8, 12, 16), depths=(1, 1, 1, 1, 1), head_dim=16)),
    },
    # Regions that the odd sizes of the tests cut unevenly, more centres than a small region has points, and a layer
    # scale that lets the branches be seen.
    "ContextCluster": {
        "clusters": dict(
            arch=dict(
                dims=(8, 16, 24, 32),
                depths=(2, 1, 1, 1),
                heads=(2, 2, 3, 4),
                head_dims=(8, 8, 8, 8),
                mlp_ratios=(8, 8, 4, 4),
                regions=(4, (3, 2), 2, 1),
                centres=(2, (5, 3), 2, 2),
            ),
            layer_scale=0.3,
        ),
    },
    # Noise in training would be another draw in every process and call.
    "MSViT": {
        "gate": dict(
            arch=_SMALL_VIT, img_size=64, patch_size=8, gate=dict(type="mmvit_plugins.PatchGate", noise=False)
        ),
        "all coarse": dict(
            arch=_SMALL_VIT,
            img_size=64,
            patch_size=4,
            gate=dict(type="mmvit_plugins.FixedGate", scale="coarse"),
            with_cls_token=False,
        ),
    },
    # Roots that the odd sizes of the tests cut. Resized as published, a patch four times the smallest does not see all
    # of its pixels, so that variant has two sizes only.
    "Quadformer": {
        "two sizes": dict(arch=_SMALL_VIT, min_patch_size=8, max_patch_size=16, num_tokens=0.5),
        "three sizes": dict(
            arch=_SMALL_VIT, min_patch_size=4, max_patch_size=16, num_tokens=40, resample="area", with_cls_token=False
        ),
    },
    "STViT": {
        "published": dict(arch=_SMALL_STVIT),
        "masked": dict(arch=_SMALL_STVIT, border="masked", n_iter=2),
    },
}
MAX_PARAMETERS = 3e6
#: Of two windows (or pairs of tokens) with nearly equal scores, half precision may choose the other one: then a map
#: differs by more than rounding does. The families' own tests compare the choices.
CHOOSING = {"SparseViT-pruned", "ToMeSwin-merging"}


@dataclass(frozen=True)
class BackboneCase:
    """One backbone with the arguments that make it small."""

    name: str
    cls: type[HierarchicalBackbone]
    settings: dict[str, Any] = field(hash=False)

    def build(self, **changes: Any) -> HierarchicalBackbone:
        """A model with weights and norm statistics that leave nothing at its neutral value; the same at each call."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            model = self.cls(**(self.settings | changes))
            model.init_weights()
            for module in model.modules():
                if isinstance(module, _BatchNorm):
                    nn.init.normal_(module.running_mean, std=0.2)
                    nn.init.uniform_(module.running_var, 0.5, 1.5)
                if isinstance(module, (nn.Conv2d, nn.Linear)) and module.weight.numel():
                    nn.init.kaiming_normal_(module.weight, nonlinearity="linear")
                if getattr(module, "bias", None) is not None:
                    nn.init.normal_(module.bias, std=0.1)
            assert sum(p.numel() for p in model.parameters()) < MAX_PARAMETERS, f"give {self.name} an entry in SETTINGS"
        return model

    def __str__(self) -> str:
        return self.name


def _first_arch(cls: type) -> dict[str, Any]:
    archs = getattr(sys.modules[cls.__module__], "ARCHS", None)
    assert archs, f"{cls.__module__} has no ARCHS: give {cls.__name__} an entry in SETTINGS"
    return dict(arch=next(iter(archs)))


def registered_backbones() -> dict[str, type[HierarchicalBackbone]]:
    """All backbones of our registry."""
    found = {name: cls for name, cls in MODELS.module_dict.items() if inspect.isclass(cls)}
    return {name: cls for name, cls in sorted(found.items()) if issubclass(cls, HierarchicalBackbone)}


def backbone_cases() -> list[BackboneCase]:
    """Every registered backbone in each of its variants."""
    return [
        BackboneCase(f"{name}-{variant}", cls, settings)
        for name, cls in registered_backbones().items()
        for variant, settings in SETTINGS.get(name, {"first": _first_arch(cls)}).items()
    ]


def image(*size: int, seed: int = 1) -> Tensor:
    """(B, 3, H, W) normal random numbers, independent of the global generator."""
    return torch.randn(size[0], 3, *size[1:], generator=torch.Generator().manual_seed(seed))
