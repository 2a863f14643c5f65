"""tools/visualize_tokens.py: titles that count what was grouped, and the picture of several methods."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hosts import require_host
from mmengine.registry import MODELS

from mmvit_plugins.cli import visualize_tokens
from mmvit_plugins.cli.visualize_tokens import Normalisation, draw_stages
from mmvit_plugins.models.backbones.context_cluster import ARCHS

IMAGE = np.random.default_rng(0).integers(0, 256, (75, 101, 3), dtype=np.uint8)
MSVIT = dict(arch=dict(embed_dims=32, depth=4, num_heads=2), img_size=64, patch_size=8)
CLUSTERS = dict(ARCHS["mini"], regions=((4, 5), 4, 2, 1), centres=(1, 2, 2, 2))


def gate(scale: str) -> dict:
    return dict(type="mmvit_plugins.FixedGate", scale=scale)


@pytest.mark.parametrize(
    ("config", "title"),
    [
        # 19 x 26 tokens in cells of 8; 38 windows of 5 x 7 of 4 x 4 tokens, of which int(35 * 0.5) are kept
        (dict(type="STViT", arch="mini"), "stage 1: 3 x 4 super tokens of 19 x 26 tokens"),
        (
            dict(type="SparseViT", arch="mini", window_size=4, pruning_ratios=0.5),
            "stage 1: 17 windows of 19 x 26 tokens",
        ),
        (dict(type="Quadformer", arch="mini", num_tokens=40), "leaves of "),
        (dict(type="FlatFormer", arch="mini"), "groups of 19 x 26 tokens"),
        # 35 patches and the class token, of which three blocks merge 8 each
        (dict(type="ToMe", arch="mini", out_type="featmap", out_indices=(2,)), "11 merged tokens of 5 x 7 tokens"),
        # 5 x 7 windows of 16 tokens, each of which merges half; the one in the corner holds 6 tokens only
        (
            dict(type="ToMeSwin", arch="mini", window_size=4, r=0.5),
            "stage 1: 278 of 35 x 8 merged tokens (windows x each) of 19 x 26 tokens",
        ),
        # one centre in each of 4 x 5 regions, so that none is empty
        (dict(type="ContextCluster", arch=CLUSTERS), "stage 1: 4 x 5 clusters of 19 x 26 tokens"),
        # patches of 8 pixels, all but coarse ones of 16
        (dict(type="MSViT", gate=gate("coarse"), **MSVIT), "35 coarse and fine tokens of 10 x 13 tokens"),
        (dict(type="MSViT", gate=gate("fine"), **MSVIT), "130 coarse and fine tokens of 10 x 13 tokens"),
    ],
)
def test_titles_count_what_was_grouped(config: dict, title: str) -> None:
    if config["type"] == "ToMe":
        require_host("mmpretrain")
    torch.manual_seed(0)
    backbone = MODELS.build(dict(config, type=f"mmvit_plugins.{config['type']}")).eval()
    number, found, picture = next(draw_stages(backbone, IMAGE, Normalisation(), "mean", 1))
    assert title in found and found.startswith(f"stage {number}: ")
    assert picture.shape == IMAGE.shape


def test_compare_draws_several_methods(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--size", "61", "83", "--out-dir", str(tmp_path), "--compare", "stvit/upernet_scenes@2"]
    assert visualize_tokens.main([*arguments, "quadformer/fcn_scenes"]) == 0
    assert (tmp_path / "scene_methods.png").stat().st_size > 5000
    assert not (tmp_path / "scene_tokens.png").exists()
    assert visualize_tokens.main([*arguments[:-1], "stvit/upernet_scenes@7"]) == 2
    assert "no tokens are grouped in stage 7; in [1, 2]" in capsys.readouterr().err
    assert visualize_tokens.main([*arguments[:-1], "stvit/upernet_scenes@x"]) == 2
    assert "must be the number of a stage" in capsys.readouterr().err
