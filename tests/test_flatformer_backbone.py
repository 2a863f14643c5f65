"""FlatFormer's backbone for images: the contract with dropped patches, groups, operations, pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import test_backbone_contract as contract
import test_backbone_training as training
import test_export as export
import torch
from backbone_cases import BackboneCase
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from mmvit_plugins.models import EqualGroups, FlatFormer
from mmvit_plugins.models.token_reduction.equal_groups import ORDERS

# The contract holds with dropped patches as well, but for bfloat16 near float32: rounding changes which patches near
# the threshold are chosen, and with them the groups.
KEPT = BackboneCase(
    "FlatFormer-kept",
    FlatFormer,
    dict(
        arch=dict(dims=(8, 16, 24, 32), depths=(2, 1, 2, 1), heads=(1, 2, 3, 4)),
        window=(5, 4),
        group_size=12,
        keep_ratio=(0.9, 0.75, 0.75, 0.6),
    ),
)


@pytest.mark.parametrize("size", [(1, 1), (5, 3), (65, 90)], ids=str)
def test_any_size_with_dropped_patches(size: tuple[int, int]) -> None:
    contract.test_any_size_gives_the_promised_shapes(KEPT, size)


@pytest.mark.parametrize(
    "check",
    [
        contract.test_a_sample_does_not_depend_on_its_batch_mates,
        contract.test_with_and_without_gradients_agree,
        contract.test_evaluation_draws_no_random_numbers,
        contract.test_copies_and_pickles_are_the_same_model,
        training.test_checkpointing_changes_neither_gradients_nor_statistics,
        export.test_exported_program_gives_the_same,
    ],
    ids=lambda check: check.__name__,
)
def test_the_contract_with_dropped_patches(check: Callable[[BackboneCase], None]) -> None:
    check(KEPT)


def test_onnx_with_dropped_patches(tmp_path: Path) -> None:
    export.test_onnx_at_a_fixed_size(KEPT, tmp_path)


@pytest.mark.parametrize("out_indices", [(0, 1, 2, 3), (2,)], ids=str)
def test_every_parameter_is_used_with_dropped_patches(out_indices: tuple[int, ...]) -> None:
    training.test_every_parameter_is_used(KEPT, out_indices)


def stage_map(model: FlatFormer, stage: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """Map at the entrance of a stage's layers and behind them."""
    x = model.stem(x)
    for part in model.stages[:stage]:
        x = part(x)
    part = model.stages[stage]
    before = x if part.downsample is None else part.downsample(x)
    return before, part(x)


def test_dropped_patches_pass_unchanged() -> None:
    model, x = FlatFormer("mini", keep_ratio=(0.25, 0.5, 0.75, 1.0)).eval(), torch.randn(2, 3, 80, 112)
    for stage, share in enumerate((0.25, 0.5, 0.75, 1.0)):
        with torch.no_grad():
            before, after = stage_map(model, stage, x)
        changed = (before != after).any(dim=1).flatten(1)
        assert (changed.sum(dim=1) == int(share * changed.shape[1])).all()
        score = before.abs().mean(dim=1).flatten(1)
        for b in range(2):
            assert share == 1 or score[b][changed[b]].min() >= score[b][~changed[b]].max()


def test_keeping_all_is_the_same_by_both_ways() -> None:
    """A ratio of 1 skips the choice; the choice of everything gives the same."""
    plain = FlatFormer("mini").eval()
    chosen = FlatFormer("mini").eval()
    chosen.load_state_dict(plain.state_dict())
    for stage in chosen.stages:
        stage.chooser.num_kept = lambda count: count
        stage.chooser.keep_ratio = 0.999
    with torch.no_grad():
        for a, b in zip(plain(torch.ones(2, 3, 65, 90)), chosen(torch.ones(2, 3, 65, 90)), strict=True):
            torch.testing.assert_close(a, b)


def test_whole_windows_are_the_groups() -> None:
    """On a grid of whole windows with as many patches as a group, groups are the windows."""
    groups = EqualGroups(16, 4).associate(torch.zeros(1, 96, 1), (8, 12))
    y, x = torch.arange(96) // 12, torch.arange(96) % 12
    window = ((y // 4) * 3 + x // 4)[groups.source[0]].view(-1, 16)
    assert (window == window[:, :1]).all() and len(window[:, 0].unique()) == 6


def test_dropping_saves_operations() -> None:
    flops = []
    for ratio in (1.0, 0.5):
        model = FlatFormer("mini", keep_ratio=ratio).eval()
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(torch.randn(1, 3, 256, 256))
        convs = sum(n for op, n in counter.get_flop_counts()["Global"].items() if "conv" in str(op))
        flops.append(counter.get_total_flops() - convs)
    assert flops[1] / flops[0] == pytest.approx(0.5, abs=0.02)


def test_layers_take_the_orders_in_turn() -> None:
    model = FlatFormer("tiny")
    got = [(stage.groupings[i].axis, stage.groupings[i].shift) for stage in model.stages for i in stage.order_of_layer]
    assert got == [ORDERS[i % 4] for i in range(16)]


def test_pictures_of_groups_and_dropped_patches() -> None:
    model = FlatFormer("mini", keep_ratio=0.5, group_size=10).eval()
    for stage, groups, grid, cells in model.token_maps(torch.randn(1, 3, 65, 90)):
        count = grid[0] * grid[1]
        assert groups.index.shape == (1, count, 1) and groups.num == cells[0]
        assert groups.weight.sum() == max(1, count // 2), stage
        kept = groups.weight[0, :, 0] > 0
        assert groups.index[0, kept, 0].unique().tolist() == list(range(groups.num))
    with pytest.raises(RuntimeError, match="eval"):
        model.train().token_maps(torch.randn(1, 3, 64, 64))
