"""Child registries of mmengine's, in the scope ``mmvit_plugins``.

A config writes ``type='mmvit_plugins.STViT'``: mmengine then imports this module by itself, whatever the default scope
is, and this module's locations import the rest on first use. It must stay importable with mmengine alone: mmengine
swallows an import error raised in here and reports "not in the registry" instead.
"""

from __future__ import annotations

import importlib
from typing import Any

from mmengine.registry import DATASETS as MMENGINE_DATASETS
from mmengine.registry import HOOKS as MMENGINE_HOOKS
from mmengine.registry import METRICS as MMENGINE_METRICS
from mmengine.registry import MODELS as MMENGINE_MODELS
from mmengine.registry import TASK_UTILS as MMENGINE_TASK_UTILS
from mmengine.registry import TRANSFORMS as MMENGINE_TRANSFORMS
from mmengine.registry import VISUALIZERS as MMENGINE_VISUALIZERS
from mmengine.registry import WEIGHT_INITIALIZERS as MMENGINE_WEIGHT_INITIALIZERS
from mmengine.registry import Registry

__all__ = [
    "DATASETS",
    "HOOKS",
    "METRICS",
    "MODELS",
    "SCOPE",
    "TASK_UTILS",
    "TRANSFORMS",
    "VISUALIZERS",
    "WEIGHT_INITIALIZERS",
]

SCOPE = "mmvit_plugins"
# Classes that build on a host library's: registered name -> module, imported when the name is first asked for, so that
# everything else works without the host.
HOSTED = {
    "BackboneLossClassifier": f"{SCOPE}.models.classifiers.backbone_loss_classifier",
    "BackboneLossEncoderDecoder": f"{SCOPE}.models.segmentors.backbone_loss_segmentor",
    "EfficientViTClsHead": f"{SCOPE}.models.heads.efficientvit_cls_head",
    "EfficientViTSegHead": f"{SCOPE}.models.heads.efficientvit_seg_head",
    "SelfDistillationClassifier": f"{SCOPE}.models.classifiers.self_distillation_classifier",
}


class HostedRegistry(Registry):
    """A registry that imports the module of a name in ``HOSTED`` before it looks the name up."""

    def get(self, key: str) -> Any:
        """As in mmengine.

        Raises:
            ImportError: the host library of a class is not installed.
        """
        name = key.removeprefix(f"{SCOPE}.") if isinstance(key, str) else key
        if name in HOSTED and name not in self._module_dict:
            importlib.import_module(HOSTED[name])
        return super().get(key)


def _child(parent: Registry, *locations: str) -> Registry:
    """A registry below ``parent`` in our scope that imports ``locations`` when it is first asked for a name."""
    return Registry(parent.name, parent=parent, scope=SCOPE, locations=[f"{SCOPE}.{loc}" for loc in locations])


MODELS = HostedRegistry(MMENGINE_MODELS.name, parent=MMENGINE_MODELS, scope=SCOPE, locations=[f"{SCOPE}.models"])
TASK_UTILS = _child(MMENGINE_TASK_UTILS, "models")
WEIGHT_INITIALIZERS = _child(MMENGINE_WEIGHT_INITIALIZERS, "checkpoints")
DATASETS = _child(MMENGINE_DATASETS, "datasets")
TRANSFORMS = _child(MMENGINE_TRANSFORMS, "datasets")
METRICS = _child(MMENGINE_METRICS, "evaluation")
HOOKS = _child(MMENGINE_HOOKS, "engine")
VISUALIZERS = _child(MMENGINE_VISUALIZERS, "visualization")
