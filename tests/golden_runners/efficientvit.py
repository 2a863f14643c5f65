"""Outputs of EfficientViT under the names of the golden manifests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mmvit_plugins.checkpoints import OfficialPretrained
from mmvit_plugins.models.backbones.efficientvit import ARCHS, SERIES
from mmvit_plugins.registry import MODELS

__all__ = ["run_efficientvit"]

_CLASSES = {"cityscapes": 19, "ade20k": 150}


def backbone_of(arch: str, arguments: dict[str, Any]) -> nn.Module:
    """The backbone by its name, then what the manifest states."""
    if arch not in ARCHS:
        raise ValueError(f"EfficientViT has no arch {arch!r}; it has {', '.join(ARCHS)}")
    settings, norm_cfg = dict(ARCHS[arch]), dict(type="BN")
    (given,) = [value for key, value in arguments.items() if "Backbone" in key] or [{}]
    names = dict(widths="width_list", depths="depth_list", head_dim="dim" if "dim" in given else "qkv_dim")
    settings.update({ours: given[theirs] for ours, theirs in names.items() if theirs in given})
    series = SERIES[settings["series"]]
    assert given.get("act_func", series["act"]) == series["act"], "no published model differs here"
    assert not any(given.get(key) for key in ("block_list", "expand_list", "fewer_norm_list"))
    return MODELS.build(dict(type="mmvit_plugins.EfficientViT", arch=settings, norm_cfg=norm_cfg))


def cls_head_of(arch: str, given: dict[str, Any], in_channels: int) -> nn.Module:
    """The published classification head."""
    from mmvit_plugins.models.heads.efficientvit_cls_head import PUBLISHED_WIDTHS

    widths = given.get("width_list") or PUBLISHED_WIDTHS[arch]
    classes, act = given.get("n_classes", 1000), SERIES[ARCHS[arch]["series"]]["act"]
    options = dict(num_classes=classes, in_channels=in_channels, widths=tuple(widths), act=act)
    return MODELS.build(dict(type="mmvit_plugins.EfficientViTClsHead", **options))


def seg_head_of(arch: str, dataset: str, given: dict[str, Any], in_channels: tuple[int, ...]) -> nn.Module:
    """The published segmentation head."""
    from mmvit_plugins.models.heads.efficientvit_seg_head import PUBLISHED_HEADS

    settings = dict(PUBLISHED_HEADS.get((arch, dataset), {}))
    names = dict(channels="head_width", depth="head_depth", expand_ratio="expand_ratio")
    settings.update({ours: given[theirs] for ours, theirs in names.items() if theirs in given})
    if "final_expand" in given:
        settings["final_expand"] = given["final_expand"] or 1
    if not settings:
        raise ValueError(f"no segmentation head of {arch} for {dataset} is published")
    classes = given.get("n_classes", _CLASSES[dataset])
    settings.update(num_classes=classes, in_channels=in_channels)
    return MODELS.build(dict(type="mmvit_plugins.EfficientViTSegHead", **settings))


def run_efficientvit(
    variant: str, manifest: dict[str, Any], checkpoint: str, x: Tensor
) -> tuple[dict[str, Tensor], float]:
    """Outputs by the manifest's names, and the tolerance as a share of each map's std."""
    arguments = manifest["arguments"]
    outputs: dict[str, Tensor] = {}
    if variant.startswith("seg_"):
        _, arch, dataset = variant.split("_")
        backbone = backbone_of(arch, arguments)
        head = seg_head_of(arch, dataset, arguments.get("SegHead", {}), backbone.out_channels[1:])
        model = nn.ModuleDict(dict(backbone=backbone, decode_head=head)).eval()
    else:
        backbone = backbone_of(variant, arguments)
        head = cls_head_of(variant, arguments.get("ClsHead", {}), backbone.out_channels[-1])
        model = nn.ModuleDict(dict(backbone=backbone, head=head)).eval()
    OfficialPretrained(checkpoint)(model)
    with torch.no_grad():
        outputs["stage0"] = backbone.stem(x)
        maps = backbone(x)
        outputs.update({f"stage{i + 1}": m for i, m in enumerate(maps)})
        if variant.startswith("seg_"):
            outputs["segout"] = head(maps[1:])
        else:
            outputs["logits"] = head(maps)
    return outputs, 3e-5
