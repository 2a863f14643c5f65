"""Context Cluster for tests/test_goldens.py."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mmvit_plugins.checkpoints import OfficialPretrained
from mmvit_plugins.models.backbones.context_cluster import ARCHS
from mmvit_plugins.registry import MODELS

__all__ = ["run_context_cluster"]

NAMES = dict(
    dims="embed_dims", depths="layers", mlp_ratios="mlp_ratios", heads="heads", head_dims="head_dim", regions="fold_w"
)
# What every published model has, and ours has no argument for.
FIXED = dict(
    downsamples=[True] * 4,
    in_patch_size=4,
    in_stride=4,
    in_pad=0,
    down_patch_size=3,
    down_stride=2,
    down_pad=1,
    use_layer_scale=True,
)


def settings_of(variant: str, given: dict[str, Any]) -> dict[str, Any]:
    """Arguments of ContextCluster: by the name, then what the manifest states."""
    if variant not in ARCHS:
        raise ValueError(f"ContextCluster has no arch {variant!r}; it has {', '.join(ARCHS)}")
    arch = dict(ARCHS[variant])
    arch.update({ours: given[theirs] for ours, theirs in NAMES.items() if theirs in given})
    for ours, (down, across) in dict(regions=("fold_w", "fold_h"), centres=("proposal_w", "proposal_h")).items():
        if down in given:  # their "w" is the dimension of the rows
            arch[ours] = list(zip(given[down], given[across], strict=True))
    for name, value in FIXED.items():
        assert given.get(name, value) == value, f"no published model differs in {name}"
    return dict(arch=arch)


def run_context_cluster(
    variant: str, manifest: dict[str, Any], checkpoint: str, x: Tensor
) -> tuple[dict[str, Tensor], float]:
    """Outputs by the manifest's names, and the tolerance as a share of each map's std."""
    given = manifest["arguments"].get("ContextCluster", {})
    dense = given.get("fork_feat", "_feat" in variant)
    config = dict(type="mmvit_plugins.ContextCluster", **settings_of(variant, given))
    backbone = MODELS.build(config | dict(out_indices=(0, 1, 2, 3) if dense else (3,)))
    head = nn.ModuleDict(dict(fc=nn.Linear(backbone.out_channels[-1], given.get("num_classes", 1000))))
    model = nn.ModuleDict(dict(backbone=backbone) if dense else dict(backbone=backbone, head=head)).eval()
    OfficialPretrained(checkpoint)(model)
    outputs: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        return lambda module, args, out: outputs.update({name: out})

    backbone.stem.register_forward_hook(keep("patch_embed"))
    for i, stage in enumerate(backbone.stages):
        stage.register_forward_hook(keep(f"stage{i}"))
    with torch.no_grad():
        maps = backbone(x)
        if dense:  # the published dense model norms every output
            outputs.update({f"stage{i}": m for i, m in enumerate(maps)})
        else:
            outputs["logits"] = head["fc"](maps[-1].mean(dim=(2, 3)))
    return outputs, 3e-5
