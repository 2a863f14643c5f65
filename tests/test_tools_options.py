"""What options of the tools change beyond what they name, and checkpoints that hold only a part of a model."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest
import torch
from torch import nn

from mmvit_plugins.cli.config_loading import load_config
from mmvit_plugins.engine import report_match
from mmvit_plugins.registry import MODELS

CONFIG = """
train_cfg = dict(type="IterBasedTrainLoop", max_iters=100)
param_scheduler = [
    dict(type="LinearLR", by_epoch=False, begin=0, end=10),
    dict(type="CosineAnnealingLR", by_epoch=False, begin=10, end=100, T_max=90),
    dict(type="PolyLR", by_epoch=True, begin=0, end=100),
]
"""


def load(tmp_path: Path, *options: str) -> list[dict]:
    """The schedulers of ``CONFIG`` with these ``--cfg-options``."""
    path = tmp_path / "config.py"
    path.write_text(CONFIG)
    return load_config(Namespace(config=str(path), cfg_options=list(options), data_root=None)).param_scheduler


def test_schedulers_end_with_the_training(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    warmup, cosine, by_epoch = load(tmp_path, "train_cfg.max_iters=40")
    assert warmup["end"] == 10 and by_epoch["end"] == 100  # what did not end with the training stays
    assert cosine["end"] == 40 and cosine["T_max"] == 30
    assert "now ends at 40" in capsys.readouterr().err


def test_schedulers_that_an_option_names_stay(tmp_path: Path) -> None:
    _, cosine, _ = load(tmp_path, "train_cfg.max_iters=40", "param_scheduler.1.end=80")
    assert cosine["end"] == 80 and cosine["T_max"] == 90


class Segmentor(nn.Module):
    """Parts as a host's segmentor names them."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.decode_head, self.auxiliary_head = nn.Linear(2, 2), nn.Linear(2, 3), nn.Linear(2, 1)


def test_a_checkpoint_without_the_head_is_for_training_only() -> None:
    model = Segmentor()
    part = {key: value for key, value in model.state_dict().items() if key.startswith("backbone.")}
    assert "2 of 6 tensors loaded" in report_match(model, part, "backbone.pth")
    with pytest.raises(ValueError, match=r"backbone.pth has no weights for decode_head of this model"):
        report_match(model, part, "backbone.pth", whole=True)
    without_aux = {key: value for key, value in model.state_dict().items() if not key.startswith("aux")}
    assert "4 of 6 tensors loaded" in report_match(model, without_aux, "whole.pth", whole=True)


def test_projection_keeps_its_statistics_with_norm_eval() -> None:
    for norm_eval in (False, True):
        neck = MODELS.build(dict(type="mmvit_plugins.STViTProjection", in_channels=4, norm_eval=norm_eval))
        assert neck.train() is neck
        neck((torch.randn(2, 4, 3, 3),))
        assert bool(neck.norm.running_mean.eq(0).all()) is norm_eval
