"""SparseViT against its goldens: maps, chosen windows and their scores."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from mmvit_plugins.checkpoints import OfficialPretrained
from mmvit_plugins.models.backbones.sparsevit import ARCHS
from mmvit_plugins.registry import MODELS

ATOL = 1e-4


def settings(variant: str, given: dict[str, Any]) -> dict[str, Any]:
    """Arguments of SparseViT: by the name, then what the manifest states."""
    if variant not in ARCHS:
        raise ValueError(f"SparseViT has no arch {variant!r}; it has {', '.join(ARCHS)}")
    arch = dict(ARCHS[variant])
    depths = given.get("depths", arch["depths"])
    arch.update(depths=depths, heads=given.get("num_heads", arch["heads"]))
    if "embed_dims" in given:
        arch["dims"] = [given["embed_dims"] * 2**i for i in range(len(depths))]
    assert given.get("patch_norm", True) and given.get("qk_scale") is None, "no published model differs here"
    names = ("window_size", "mlp_ratio", "qkv_bias", "out_indices")
    return dict(arch=arch, padding="before_norm", **{name: given[name] for name in names if name in given})


def check(fill: ModuleType, path: Path, case_name: str, folder: Path) -> None:
    """Every stored slice within 1e-4; mean, std and largest value of the whole map; the same windows."""
    manifest = json.loads(path.read_text())
    case, expected = next((c, e) for c, e in fill.golden_cases(path.stem) if c["name"] == case_name)
    torch.save({"state_dict": fill.official_state_dict(path.stem)}, folder / "official.pth")
    model = MODELS.build(
        dict(type="mmvit_plugins.SparseViT", **settings(path.stem.split("_", 1)[1], manifest["arguments"]))
    ).eval()
    OfficialPretrained(str(folder / "official.pth"))(model)
    model.set_pruning_ratios(case["pruning_ratios"])
    x = fill.golden_input(case["input"], f"{path.stem}/{case_name}")
    with torch.no_grad():
        maps = dict(zip((f"stage{i}" for i in model.out_indices), model(x), strict=True))
    blocks = {f"s{i}b{j}": b for i, stage in enumerate(model.window_choices(x)) for j, b in enumerate(stage)}
    for name, wanted in expected.items():
        kind, _, block = name.partition("/")
        if kind == "index":
            assert torch.equal(blocks[block].kept.sort(dim=1).values, wanted), name
        elif kind == "score":
            torch.testing.assert_close(blocks[block].scores, wanted, rtol=1e-5, atol=1e-5, msg=lambda m, n=name: n + m)
        else:
            full, stats = maps[name].contiguous(), case["stats"][name]
            assert list(full.shape) == case["shapes"][name], name
            part = full.flatten()[:: case["steps"][name]]
            torch.testing.assert_close(part, wanted, rtol=0, atol=ATOL, msg=lambda m, n=name: f"{n}: {m}")
            assert abs(full.mean().item() - stats["mean"]) <= ATOL, name
            assert abs(full.std(correction=0).item() - stats["std"]) <= ATOL, name
            assert abs(full.abs().max().item() - stats["absmax"]) <= 2 * ATOL, name
    for name, (total, computed) in case["windows"].items():
        kept = blocks[name].kept
        assert kept.shape[1] == computed, name
        stage, block = (int(n) for n in name[1:].split("b"))
        assert model.kept_windows(tuple(case["input"][2:]))[stage][block] == (computed, total), name
