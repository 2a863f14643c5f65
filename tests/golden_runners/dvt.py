"""DVT: the cascade of any variant, and the published rule for thresholds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmvit_plugins.checkpoints import OfficialPretrained
from mmvit_plugins.evaluation.exit_rule import ExitScores, exit_shares, find_thresholds, simulate_exits
from mmvit_plugins.models.backbones.dvt import ARCHS
from mmvit_plugins.registry import MODELS

# Of the authors' models.
GRIDS = (7, 10, 14)


def stated_slices(text: str) -> tuple[slice, ...]:
    """The last ``[:, ::3, ::8]`` of what the manifest says about an output; none: in full."""
    found = re.findall(r"\[([\d:, ]+)\]", text)
    parts = found[-1].split(",") if found else []
    return tuple(slice(*(int(n) if n.strip() else None for n in part.strip().split(":"))) for part in parts)


def stated_block(manifest: dict[str, Any]) -> int:
    """The block whose context the manifest stores."""
    found = re.search(r"block (\d+)", manifest["outputs"].get("context_2", ""))
    return int(found[1]) if found else 0


def settings(variant: str, manifest: dict[str, Any]) -> dict[str, Any]:
    """Arguments of DVT: by the name, then what the manifest states or the shapes of its weights show."""
    if variant not in ARCHS:
        raise ValueError(f"DVT has no arch {variant!r}; it has {', '.join(ARCHS)}")
    arch, entries = dict(ARCHS[variant]), manifest["entries"]
    if any(".tokens_to_token." in key for key in entries):
        arch["embed"] = "performer" if any(".kqv." in key for key in entries) else "transformer"
    features = any("feature_resuse" in key for key in entries)
    relations = any("relation_reuse" in key for key in entries)
    return dict(arch=arch, token_grids=GRIDS, reuse_features=features, reuse_relations=relations)


def outputs(model: torch.nn.Module, x: Tensor, block: int) -> dict[str, Tensor]:
    """What the manifest names, in full."""
    result: dict[str, Tensor] = {}
    hooks = []
    for number, part in enumerate(model.backbone.exits, start=1):
        if part.relation_reuse is not None:
            hooks.append(
                part.relation_reuse.register_forward_hook(
                    lambda _, __, out, n=number: result.update({f"relation_{n}": torch.cat(out, dim=1)})
                )
            )
        if part.blocks[block].reuse is not None:
            hooks.append(
                part.blocks[block].reuse.register_forward_hook(
                    lambda _, __, out, n=number: result.update({f"context_{n}": out})
                )
            )
    state = None
    with torch.no_grad():
        for number in range(len(model.backbone.exits)):
            token, state = model.backbone.run_exit(number, x, state)
            result[f"exit{number + 1}"] = model.head.exits[number]((token,))
            if number == 0:
                result["features_1"], result["relation_1"] = state.features, state.relation
    for hook in hooks:
        hook.remove()
    return result


def check_model(fill: ModuleType, variant: str, manifest: dict[str, Any], name: str, case: str, folder: Path) -> None:
    """All outputs within 1e-4, absolute."""
    head = dict(
        type="mmpretrain.LinearClsHead",
        in_channels=ARCHS[variant]["dim"],
        num_classes=manifest.get("arguments", {}).get("num_classes", 1000),
    )
    backbone = dict(type="mmvit_plugins.DVT", **settings(variant, manifest))
    model = MODELS.build(dict(type="mmvit_plugins.DVTClassifier", backbone=backbone, head=head)).eval()
    checkpoint = folder / "official.pth"
    torch.save({"model": fill.official_state_dict(name)}, checkpoint)
    OfficialPretrained(str(checkpoint))(model)
    counted = sum(t.numel() for t in model.state_dict().values())
    assert counted >= manifest["parameters"]
    info, expected = next((c, e) for c, e in fill.golden_cases(name) if c["name"] == case)
    found = outputs(model, fill.golden_input(info["input"], f"{name}/{case}"), stated_block(manifest))
    assert set(info["outputs"]) <= set(found)
    for key in info["outputs"]:
        part = found[key][stated_slices(manifest["outputs"].get(key, ""))]
        torch.testing.assert_close(part, expected[key], rtol=0, atol=1e-4, msg=lambda m, k=key: f"{k}: {m}")


def check_rule(path: Path, case: dict[str, Any]) -> None:
    """Thresholds equal, accuracy and mean cost for every p."""
    with np.load(path.with_suffix(".npz")) as arrays:
        stored = {k: torch.from_numpy(arrays[f"{case['name']}/{k}"]) for k in case["outputs"]}
    train = ExitScores.from_probabilities(stored["train_probs"], stored["train_targets"], case["flops"])
    test = ExitScores.from_probabilities(
        stored.get("test_probs", stored["train_probs"]),
        stored.get("test_targets", stored["train_targets"]),
        case["flops"],
    )
    if "p" in case:
        shares = torch.stack([exit_shares(p, len(case["flops"])) for p in case["p"]])
        torch.testing.assert_close(shares, stored["probs"], rtol=0, atol=1e-7)
    for row, shares in enumerate(stored["probs"].reshape(-1, len(case["flops"]))):
        thresholds = find_thresholds(train.confidence, shares)
        wanted = stored["thresholds"].reshape(-1, len(thresholds))[row]
        assert torch.tensor(thresholds, dtype=wanted.dtype).equal(wanted)
        outcome = simulate_exits(test, thresholds)
        assert abs(outcome.accuracy - float(stored["accuracy"].flatten()[row])) < 1e-4
        assert abs(outcome.cost - float(stored["expected_flops"].flatten()[row])) < 1e-4


def check(fill: ModuleType, path: Path, case_name: str, folder: Path) -> None:
    """One case of a manifest ``dvt_<variant>``; ``dvt_exit`` is the rule."""
    manifest = json.loads(path.read_text())
    if path.stem == "dvt_exit":
        check_rule(path, next(c for c in manifest["cases"] if c["name"] == case_name))
    else:
        check_model(fill, path.stem.removeprefix("dvt_"), manifest, path.stem, case_name, folder)
