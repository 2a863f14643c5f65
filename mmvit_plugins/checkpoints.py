"""Weights that the papers' authors published, into our models.

One way in for everybody: ``init_cfg=dict(type='mmvit_plugins.OfficialPretrained', checkpoint=...)`` in a config and
``tools/convert_checkpoint.py`` on the command line both call :func:`convert_official`. A family adds one entry to
``FAMILIES``: its signature key and its pure, total function from the official state dict to MMPretrain's layout.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from logging import WARNING

from mmengine.logging import print_log
from torch import Tensor, nn

from .key_rules import strip_prefixes
from .models.backbones.context_cluster_weights import CONTEXT_CLUSTER_SIGNATURE, convert_context_cluster
from .models.backbones.dvt_weights import DVT_SIGNATURE, convert_dvt
from .models.backbones.efficientvit_weights import EFFICIENTVIT_SIGNATURE, convert_efficientvit
from .models.backbones.sparsevit_weights import SPARSEVIT_SIGNATURE, convert_sparsevit
from .models.backbones.stvit_weights import STVIT_SIGNATURE, convert_stvit
from .models.backbones.tome_weights import TOME_SIGNATURE, convert_tome
from .models.voxel.flatformer_weights import FLATFORMER_SIGNATURE, convert_flatformer
from .registry import WEIGHT_INITIALIZERS
from .tensor_files import read_state_dict

__all__ = ["FAMILIES", "LAYOUTS", "OfficialPretrained", "convert_official", "load_report", "read_state_dict"]


@dataclass(frozen=True)
class Family:
    """How to recognise and convert one family's official files.

    Args:
        signature: regular expression of a key that each of its files has, without wrapper prefixes.
        convert: official state dict -> MMPretrain layout (``backbone.``, ``neck.``, ``head.``; a segmentation
            model's head: ``decode_head.``).
    """

    signature: str
    convert: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]


FAMILIES: dict[str, Family] = {
    "dvt": Family(DVT_SIGNATURE, convert_dvt),
    "efficientvit": Family(EFFICIENTVIT_SIGNATURE, convert_efficientvit),
    "flatformer": Family(FLATFORMER_SIGNATURE, convert_flatformer),
    "sparsevit": Family(SPARSEVIT_SIGNATURE, convert_sparsevit),
    "stvit": Family(STVIT_SIGNATURE, convert_stvit),
    "context_cluster": Family(CONTEXT_CLUSTER_SIGNATURE, convert_context_cluster),
    "tome": Family(TOME_SIGNATURE, convert_tome),  # last: any plain ViT
}

# Which of the converted parts a file for a library holds.
LAYOUTS: dict[str, tuple[str, ...]] = {
    "mmpretrain": ("backbone.", "neck.", "head."),
    "mmsegmentation": ("backbone.", "decode_head."),
    "mmdetection": ("backbone.",),
}


def _recognise(state: Mapping[str, Tensor]) -> str | None:
    """The family whose signature is among the keys."""
    return next((n for n, f in FAMILIES.items() if any(re.fullmatch(f.signature, key) for key in state)), None)


def convert_official(state: Mapping[str, Tensor], family: str | None = None) -> tuple[dict[str, Tensor], str]:
    """Official state dict (wrapper prefixes allowed) -> MMPretrain layout, and the name of its family.

    Args:
        state: the authors' state dict.
        family: name in ``FAMILIES``; None: recognised by its keys.

    Raises:
        ValueError: unknown family, no family recognised, or keys that the family does not have.
    """
    if family is not None and family not in FAMILIES:
        raise ValueError(f"unknown family {family!r}; known: {', '.join(FAMILIES)}")
    state = strip_prefixes(state)
    found = _recognise(state)
    if found is None or family not in (None, found):
        wanted = family or "any of " + ", ".join(FAMILIES)
        shown = ", ".join(list(state)[:3])
        raise ValueError(
            f"0 of {len(state)} tensors match {wanted}: this is no official checkpoint of it (keys: {shown}, ...)"
        )
    return FAMILIES[found].convert(state), found


@dataclass
class LoadReport:
    """What happened to each tensor.

    Args:
        matched: keys loaded.
        total: tensors the model has.
        missing: keys that the model has and the file lacks.
        unused: keys that the file has and the model does not (stages that were not built, other heads).
        mismatched: keys whose shapes differ, with both shapes.
    """

    total: int
    matched: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    mismatched: list[str] = field(default_factory=list)

    def missing_body(self) -> list[str]:
        """Missing keys but those of a classifier's neck and head, which a file for dense tasks does not have."""
        return [key for key in self.missing if not key.startswith(("neck.", "head."))]

    def other_depth(self) -> list[str]:
        """Unused keys of a stage that the model has: blocks that the model lacks."""
        parts = {key.rsplit(".", depth)[0] for key in self.matched for depth in range(1, key.count(".") + 1)}
        stages = {part for part in parts if re.search(r"\bstages\.\d+$", part)}
        return [key for key in self.unused if any(key.startswith(f"{stage}.") for stage in stages)]

    def __str__(self) -> str:
        lines = [f"{len(self.matched)} of {self.total} tensors loaded"]
        if self.missing:
            lines.append(f"not in the file: {', '.join(self.missing)}")
        if self.unused:
            kind = "blocks this model lacks" if self.other_depth() else "not needed by this model (harmless)"
            lines.append(f"in the file, {kind}: {', '.join(self.unused)}")
        if self.mismatched:
            lines.append(f"other shape: {', '.join(self.mismatched)}")
        return "; ".join(line if len(line) < 400 else line[:400] + " ..." for line in lines)


def load_report(model: nn.Module, state: Mapping[str, Tensor]) -> LoadReport:
    """Compare keys and shapes of a state dict with a model's. Counters of batch norms never count as missing."""
    own = {k: v for k, v in model.state_dict().items() if not k.endswith("num_batches_tracked")}
    report = LoadReport(total=len(own))
    for key, value in own.items():
        if key not in state:
            report.missing.append(key)
        elif state[key].shape != value.shape:
            report.mismatched.append(f"{key} (file {tuple(state[key].shape)}, model {tuple(value.shape)})")
        else:
            report.matched.append(key)
    report.unused = [k for k in state if k not in own and not k.endswith("num_batches_tracked")]
    return report


@WEIGHT_INITIALIZERS.register_module()
class OfficialPretrained:
    """Initialise a model from a checkpoint as its authors published it, or from one that was already converted.

    ``init_cfg=dict(type='mmvit_plugins.OfficialPretrained', checkpoint='stvit_small.pth')`` on a backbone, a neck or a
    whole MMPretrain classifier.

    Args:
        checkpoint: path or URL.
        family: name in ``FAMILIES``; None: recognised by the keys.
        part: which part of the file to take, ``'backbone'``, ``'neck'``, ``'head'`` or
            ``'decode_head'``; None: the one that fits best.

    Raises:
        ValueError: nothing in the file fits, or a tensor has another shape (the file of another architecture).
        FileNotFoundError: no such file.
    """

    def __init__(self, checkpoint: str, family: str | None = None, part: str | None = None) -> None:
        if not isinstance(checkpoint, str) or not checkpoint:
            raise ValueError(f"checkpoint must be a path or URL, got {checkpoint!r}")
        if part not in (None, "backbone", "neck", "head", "decode_head"):
            raise ValueError(f"part must be 'backbone', 'neck', 'head', 'decode_head' or None, got {part!r}")
        self.checkpoint, self.family, self.part = checkpoint, family, part

    def __call__(self, module: nn.Module) -> None:
        """Load into ``module`` in place and log how many tensors matched."""
        state = self._fit(module, read_state_dict(self.checkpoint))
        for name, part in module.named_modules():
            if hasattr(part, "fit_official_state"):  # position tables of another size
                state = part.fit_official_state(state, f"{name}." if name else "")
        own = module.state_dict()
        if any(key.startswith("backbone.") for key in own):
            # A classifier for other classes: its head stays as it is, everything else must fit.
            heads = [key for key in state if key.startswith(("head.", "decode_head.")) and key in own]
            other = [key for key in heads if own[key].shape != state[key].shape]
            if other:
                print_log(
                    f"{self.checkpoint}: {', '.join(other)} are for other classes, not loaded", "current", WARNING
                )
                state = {key: value for key, value in state.items() if key not in other}
        report = load_report(module, state)
        needed = [key for key in report.missing_body() if not _is_optional(module, key)]
        if not report.matched or report.mismatched or report.other_depth() or needed:
            raise ValueError(f"{self.checkpoint} does not fit {type(module).__name__}: {report}")
        module.load_state_dict({key: value for key, value in state.items() if key in own}, strict=False)
        _start_left_out(module, report)
        # mmengine initialises the children after this call: they are done. It asks each for `is_init`, also those
        # that are no BaseModule, such as mmcv's ConvModule.
        for child in module.modules():
            if child is not module and hasattr(child, "init_weights"):
                child.is_init = True
        print_log(f"{type(module).__name__} from {self.checkpoint}: {report}", logger="current")

    def _fit(self, module: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The part of a file, official or converted, whole model or backbone alone, that belongs to ``module``."""
        tensors = strip_prefixes(state)
        below = strip_prefixes(_part(tensors, "backbone"))
        readers = [part for part in module.modules() if hasattr(part, "from_official")]
        own_names = next((found for part in readers if (found := part.from_official(tensors)) is not None), None)
        for candidate in (tensors, below):
            if own_names is not None or self.family or _recognise(candidate):
                tensors = own_names or convert_official(candidate, self.family)[0]
                break
        # ToMe's names for a plain ViT, and those of MMPretrain, which other backbones on a plain ViT read.
        plain = {re.sub(r"^backbone\.model\.", "backbone.", key): value for key, value in tensors.items()}
        if self.part is not None:
            options = [_part(tensors, self.part), _part(plain, self.part)]
        else:
            names = ("backbone", "neck", "head", "decode_head")
            options = [tensors, *(_part(tensors, name) for name in names)]
            options += [{f"backbone.{key}": value for key, value in tensors.items()}, plain, _part(plain, "backbone")]
        own = set(module.state_dict())
        return max(options, key=lambda keys: len(own & set(keys)))

    def _get_init_info(self) -> str:
        """What mmengine writes into the initialisation log."""
        return f"{type(self).__name__}: load from {self.checkpoint}"


def _part(state: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The entries below ``name.``, without it."""
    return {key[len(name) + 1 :]: value for key, value in state.items() if key.startswith(f"{name}.")}


def _is_optional(module: nn.Module, key: str) -> bool:
    """Whether a backbone says of a weight that files need not have it (``optional_weights``, a regular expression).

    Norms behind the outputs of a dense backbone: a classifier's file has that of the last stage only.
    """
    backbone = getattr(module, "backbone", module)
    pattern = getattr(backbone, "optional_weights", None)
    return pattern is not None and re.fullmatch(pattern, key.removeprefix("backbone.")) is not None


def _start_left_out(module: nn.Module, report: LoadReport) -> None:
    """Initialise the parts that files need not have and this one has not, such as a gate."""
    missing = [key for key in report.missing if _is_optional(module, key)]
    started: tuple[str, ...] = ()
    for name, part in module.named_modules():
        path = f"{name}."
        if not name or not hasattr(part, "init_weights") or path.startswith(started):
            continue
        if any(key.startswith(path) for key in missing) and not any(key.startswith(path) for key in report.matched):
            part.init_weights()
            started += (path,)
