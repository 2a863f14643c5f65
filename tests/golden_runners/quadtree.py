"""Quadtrees and their tokens against the authors' tokenisation; settings as the manifest states them."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from mmvit_plugins.models.backbones.quadformer import Quadformer
from mmvit_plugins.models.token_reduction import PixelBlurScorer

# Published scores are computed in another order: the manifest names up to 2e-5 between float32 and float64.
SCORE_RTOL = 5e-5
TOKEN_ATOL = 1e-4


def subsample(x: Tensor, text: str) -> Tensor:
    """``x[:, ::4, ::6]`` for the text ``'[:, ::4, ::6]'``."""
    steps = [int(part.strip().rpartition(":")[2] or 1) for part in text.strip("[] ").split(",")]
    return x[tuple(slice(None, None, step) for step in steps)]


def build(state: dict[str, Tensor], case: dict[str, Any], image: Tensor) -> Quadformer:
    """The model of a case with the published embedding."""
    weight = state["patch_embed.proj.weight"]
    side = weight.shape[-1]
    uniform = "num_patches" not in case
    smallest = case.get("min_patch_size", side)
    model = Quadformer(
        arch=dict(embed_dims=weight.shape[0], depth=4, num_heads=1),
        min_patch_size=smallest,
        max_patch_size=smallest if uniform else case["max_patch_size"],
        num_tokens=1.0 if uniform else case["num_patches"],
        origin="corner" if uniform else "centre",
    ).eval()
    if smallest == side:
        embed = dict(cls_token=state["cls_token"].view(1, 1, -1))
        embed.update({f"projection.{k}": state[f"patch_embed.proj.{k}"] for k in ("weight", "bias")})
        model.patch_embed.load_state_dict(embed)
    else:
        assert "tokens" not in case["outputs"], "the published embedding does not fit these patches"
    return model


def check(fill: ModuleType, path: Path, case_name: str, _folder: Path) -> None:
    """Boxes equal; scores and tokens within the tolerance."""
    cases = {case["name"]: (case, expected) for case, expected in fill.golden_cases(path.stem)}
    case, expected = cases[case_name]
    if case_name in {c.get("images_from") for c, _ in cases.values()}:
        assert expected["images"].dtype == torch.uint8
        return
    x = cases[case["images_from"]][1]["images"].float() / 255
    state = fill.official_state_dict(path.stem)
    assert set(state) == set(json.loads(path.read_text())["entries"])
    model = build(state, case, x)
    known = {"boxes", "tokens", *(f"scores_{size}" for size in model.tokenizer.sizes)}
    assert set(case["outputs"]) <= known
    with torch.no_grad():
        mixed, (_, tree) = model.tokenize(x), model.tokenizer(x)
    for name in case["outputs"]:
        if name == "boxes":
            assert torch.equal(tree.boxes * model.patch_size, expected[name])
        elif name == "tokens":
            cls_token = model.patch_embed.cls_token.detach().expand(x.shape[0], -1, -1)
            part = subsample(torch.cat([cls_token, mixed.tokens], dim=1), case["tokens_sub"])
            torch.testing.assert_close(part, expected[name], rtol=0, atol=TOKEN_ATOL)
        else:
            # Theirs are negative: the lowest is split first.
            (scores,) = PixelBlurScorer()(x, [int(name.partition("_")[2])], model.patch_size)
            torch.testing.assert_close(-scores.flatten(1), expected[name], rtol=SCORE_RTOL, atol=1e-7)
