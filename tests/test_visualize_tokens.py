"""tools/visualize_tokens.py: titles that count what was grouped, and the picture of several methods."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.registry import MODELS

from mmvit_plugins.cli import visualize_tokens
from mmvit_plugins.cli.visualize_tokens import Normalisation, draw_stages

IMAGE = np.random.default_rng(0).integers(0, 256, (75, 101, 3), dtype=np.uint8)


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
    ],
)
def test_titles_count_what_was_grouped(config: dict, title: str) -> None:
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
