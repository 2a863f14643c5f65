"""Every model against the outputs of its authors' code, from their state dict through the converter that users call.

One test for each manifest and case of ``tests/goldens`` and of every ``--goldens DIR``. Names are resolved by rule:
``<family>_<variant>`` is the family's class with ``arch='<variant>'``; what a manifest states wins over the rule.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from golden_runners import dvt, flatformer, quadtree, sparsevit
from golden_runners.context_cluster import run_context_cluster
from golden_runners.efficientvit import run_efficientvit
from golden_runners.tome import check_tome
from torch import Tensor, nn

from mmvit_plugins.checkpoints import OfficialPretrained
from mmvit_plugins.models.backbones.stvit import ARCHS as STVIT_ARCHS
from mmvit_plugins.registry import MODELS

HERE = Path(__file__).parent / "goldens"


def load_fill(folder: Path) -> ModuleType:
    """``fill.py`` of this folder, looking at ``folder``."""
    spec = importlib.util.spec_from_file_location("golden_fill", HERE / "fill.py")
    fill = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fill)
    fill.HERE = folder
    return fill


def stvit_settings(variant: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of STViT: by the name, then what the manifest states."""
    if variant not in STVIT_ARCHS:
        raise ValueError(f"STViT has no arch {variant!r}; it has {', '.join(STVIT_ARCHS)}")
    arch = dict(STVIT_ARCHS[variant])
    given = arguments.get("STViT", {})
    names = dict(dims="embed_dim", depths="depths", heads="num_heads", cells="stoken_size")
    arch.update({ours: given[theirs] for ours, theirs in names.items() if theirs in given})
    if "layerscale" in given:
        arch["layer_scale"] = [1e-6 * bool(used) for used in given["layerscale"]]
    assert given.get("qkv_bias", True) and given.get("qk_scale") is None, "no published model differs here"
    return dict(arch=arch, n_iter=given.get("n_iter", 1), mlp_ratio=given.get("mlp_ratio", 4))


def run_stvit(variant: str, manifest: dict[str, Any], checkpoint: str, x: Tensor) -> tuple[dict[str, Tensor], float]:
    """Outputs by the manifest's names, and the tolerance as a share of each map's std."""
    given = manifest["arguments"].get("STViT", {})
    backbone = MODELS.build(dict(type="mmvit_plugins.STViT", **stvit_settings(variant, manifest["arguments"])))
    dim, width = backbone.out_channels[-1], given.get("projection", 1024)
    classifier = nn.ModuleDict(
        dict(
            backbone=backbone,
            neck=MODELS.build(dict(type="mmvit_plugins.STViTProjection", in_channels=dim, out_channels=width)),
            head=nn.ModuleDict(dict(fc=nn.Linear(width, given.get("num_classes", 1000)))),
        )
    ).eval()
    OfficialPretrained(checkpoint)(classifier)
    outputs: dict[str, Tensor] = {}
    with torch.no_grad():
        outputs["patch_embed"] = backbone.stem(x)
        maps = backbone(x)
        outputs.update({f"stage{i}": m for i, m in enumerate(maps)})
        outputs["features"] = classifier["neck"](maps)[0]
        outputs["logits"] = classifier["head"]["fc"](outputs["features"])
    return outputs, 2e-4 if variant == "large" else 1e-4


FAMILIES: dict[str, Callable[[str, dict[str, Any], str, Tensor], tuple[dict[str, Tensor], float]]] = {
    "stvit": run_stvit,
    "coc": run_context_cluster,
    "efficientvit": run_efficientvit,
}


# Families whose manifests have a form of their own: (fill.py of the folder, manifest, case, empty folder) -> None.
CHECKS: dict[str, Callable[[ModuleType, Path, str, Path], None]] = {
    "dvt": dvt.check,
    "flatformer": flatformer.check,
    "quadtree": quadtree.check,
    "sparsevit": sparsevit.check,
    "tome": check_tome,
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each manifest and case."""
    params = []
    for folder in [HERE, *(Path(d).resolve() for d in metafunc.config.getoption("goldens"))]:
        manifests = sorted(folder.glob("*.json"))
        if not manifests:
            raise pytest.UsageError(f"no golden manifests (*.json) in {folder}")
        for path in manifests:
            for case in json.loads(path.read_text())["cases"]:
                params.append(pytest.param(path, case["name"], id=f"{folder.name}/{path.stem}/{case['name']}"))
    metafunc.parametrize("path, case_name", params)


def test_golden(path: Path, case_name: str, tmp_path: Path) -> None:
    """Every stored slice within the tolerance; mean, std and largest value of the whole map as well."""
    family = max((f for f in [*FAMILIES, *CHECKS] if (path.stem + "_").startswith(f + "_")), key=len, default=None)
    if family is None:
        pytest.skip(f"{path.stem}: no model of this package belongs to it yet")
    fill = load_fill(path.parent)
    if family in CHECKS:
        CHECKS[family](fill, path, case_name, tmp_path)
        return
    manifest = json.loads(path.read_text())
    case, expected = next((c, e) for c, e in fill.golden_cases(path.stem) if c["name"] == case_name)
    checkpoint = tmp_path / "official.pth"
    torch.save({"model": fill.official_state_dict(path.stem)}, checkpoint)
    x = fill.golden_input(case["input"], f"{path.stem}/{case_name}")
    outputs, share = FAMILIES[family](path.stem[len(family) + 1 :], manifest, str(checkpoint), x)
    assert set(case["outputs"]) <= set(outputs)
    for name, info in case["outputs"].items():
        full, atol = outputs[name], share * info["std"]
        assert list(full.shape) == info["shape"], name
        part = full[tuple(slice(None, None, step) for step in info["steps"])]
        torch.testing.assert_close(part, expected[name], rtol=0, atol=atol, msg=lambda m, n=name: f"{n}: {m}")
        assert abs(full.mean().item() - info["mean"]) <= atol, name
        assert abs(full.std(correction=0).item() - info["std"]) <= atol, name
        assert abs(full.abs().max().item() - info["absmax"]) <= 2 * atol, name
