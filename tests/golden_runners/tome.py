"""Token merging: the matching alone (tome_merge), and whole DeiTs (tome_<arch>)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from mmvit_plugins.checkpoints import OfficialPretrained
from mmvit_plugins.models.backbones.plain_vit import ARCHS as TOME_ARCHS
from mmvit_plugins.models.token_reduction import (
    TokenMap,
    bipartite_soft_matching,
    kth_bipartite_soft_matching,
    merge,
    merge_weighted,
)
from mmvit_plugins.registry import MODELS

__all__ = ["check_tome"]


def check_tome(fill: ModuleType, path: Path, case_name: str, folder: Path) -> None:
    """Compare one case: values within 1e-4 absolute, counts, sizes and sources equal."""
    manifest = json.loads(path.read_text())
    case, expected = next((c, e) for c, e in fill.golden_cases(path.stem) if c["name"] == case_name)
    name = f"{path.stem}/{case_name}"
    metric = fill.golden_input(case["input"], name)
    if path.stem == "tome_merge":
        outputs = run_merge(case, metric, fill.golden_input(case["x"], f"{name}/x"), partial(second_metric, fill, name))
    else:
        torch.save({"model": fill.official_state_dict(path.stem)}, folder / "official.pth")
        outputs = run_model(path.stem.removeprefix("tome_"), manifest, case, metric, str(folder / "official.pth"))
    assert set(case["outputs"]) <= set(outputs)
    for key in case["outputs"]:
        exact = not expected[key].is_floating_point() or key.startswith("size")
        got = outputs[key].to(expected[key].dtype)
        atol = 0 if exact else 1e-4
        torch.testing.assert_close(got, expected[key], rtol=0, atol=atol, msg=lambda m, n=key: f"{n}: {m}")


def second_metric(fill: ModuleType, name: str, count: int) -> Tensor:
    """The metric of the second merge, for so many tokens."""
    return fill.golden_input([3, count, 16], f"{name}/metric2")


def source_matrix(token_map: TokenMap) -> Tensor:
    """(B, M, N): 1 where the reduced token holds the token."""
    matrix = torch.zeros(token_map.index.shape[0], token_map.num, token_map.index.shape[1])
    return matrix.scatter(1, token_map.index.transpose(1, 2), token_map.weight.transpose(1, 2))


def run_merge(case: dict[str, Any], metric: Tensor, x: Tensor, second: Callable[[int], Tensor]) -> dict[str, Tensor]:
    """The outputs that the manifest describes."""
    if case["kind"] == "kth":
        first = kth_bipartite_soft_matching(metric, case["k"], remainder="drop")
        merged, size = merge_weighted(x, first)
        whole = x.shape[1] // case["k"] * case["k"]
        outputs = dict(merged=merged, size=size.unsqueeze(-1), source=source_matrix(first), mean=merge(x, first))
        return outputs | dict(unmerge=first.restore(merged)[:, :whole])
    tokens = dict(class_token=case["class_token"], distill_token=case["distill_token"])
    first = bipartite_soft_matching(metric, case["r"], **tokens)
    merged1, size1 = merge_weighted(x, first)
    coarser = bipartite_soft_matching(second(merged1.shape[1]), case["r"], **tokens)
    merged2, size2 = merge_weighted(merged1, coarser, size1)
    both = first.then(coarser)
    return dict(
        merged1=merged1,
        size1=size1.unsqueeze(-1),
        source1=source_matrix(first),
        merged2=merged2,
        size2=size2.unsqueeze(-1),
        source2=source_matrix(both),
        mean1=merge(x, first, "mean"),
        amax1=merge(x, first, "amax"),
        unmerge1=first.restore(merged1),
        unmerge2=both.restore(merged2),
    )


def inner_model(variant: str, manifest: dict[str, Any]) -> dict[str, Any]:
    """Arguments of ToMe for timm's model of that name; what the manifest states wins over the golden's name."""
    name = manifest.get("base", {}).get("model", variant)
    match = re.fullmatch(r"((?:vit|deit)_\w+?)(_distilled)?(?:_patch(\d+)_(\d+))?", name)
    if match is None or match.group(1) not in TOME_ARCHS:
        raise ValueError(f"ToMe has no arch {name!r}; it has {', '.join(TOME_ARCHS)}")
    arch, distilled, patch, size = match.groups()
    if not distilled and not patch:
        return dict(arch=arch)
    kind = "DistilledVisionTransformer" if distilled else "VisionTransformer"
    grid = dict(patch_size=int(patch or 16), img_size=int(size or 224))
    return dict(model=dict(type=f"mmpretrain.{kind}", arch=TOME_ARCHS[arch], **grid))


def run_model(
    variant: str, manifest: dict[str, Any], case: dict[str, Any], x: Tensor, checkpoint: str
) -> dict[str, Tensor]:
    """A classifier with the official weights; ``variant`` is the arch."""
    r = case["r"]
    settings = inner_model(variant, manifest) | dict(prop_attn=case["prop_attn"])
    backbone = MODELS.build(
        dict(type="mmvit_plugins.ToMe", r=tuple(r["schedule"]) if isinstance(r, dict) else r, **settings)
    )
    classes = next(e["shape"][0] for key, e in manifest["entries"].items() if key == "head.weight")
    heads = {"head": nn.Linear(backbone.out_channels[0], classes)}
    if "head_dist.weight" in manifest["entries"]:
        heads["head_dist"] = nn.Linear(backbone.out_channels[0], classes)
    head = nn.ModuleDict(dict(layers=nn.ModuleDict(heads)))
    model = nn.ModuleDict(dict(backbone=backbone, head=head)).eval()
    OfficialPretrained(checkpoint)(model)
    with torch.no_grad():
        every = list(backbone.run_blocks(x))
        out = backbone(x)[0]
        pair = out if isinstance(out, tuple) else (out,)
        logits = [layer(token) for layer, token in zip(heads.values(), pair, strict=True)]
    last = every[-1]
    outputs = dict(
        logits=sum(logits) / len(logits),  # DeiT with distillation averages its two heads
        num_tokens=torch.tensor([tokens.x.shape[1] for tokens in every]),
        last_tokens=last.x[:, ::4, ::16],
    )
    if last.token_map is not None:
        outputs |= dict(source=last.token_map.hard(), size=last.size)
    return outputs
