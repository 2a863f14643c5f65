"""SparseViT's pruning: equal to a plain reference; what is kept, ratios, adaptation in training, pictures."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.registry import HOOKS
from test_sparsevit import ARCH, assert_close, image, outputs, plain_attention, randomise
from torch import Tensor, nn

from mmvit_plugins.models import SparseViT, WindowPruning
from mmvit_plugins.models.backbones.sparsevit_ratios import PUBLISHED_RATIOS, draw_ratios, resolve_ratios
from mmvit_plugins.models.layers.window_attention import (
    shift_masks,
    window_kinds,
    window_numbers,
    window_partition,
    window_unpartition,
)
from mmvit_plugins.models.token_reduction.window_pruning import kept_count, token_magnitudes, window_scores

# --- pruning ------------------------------------------------------------------------------------------------


def plain_sparsevit(model: SparseViT, x: Tensor) -> list[Tensor]:
    """Window by window, sample by sample, from the equations; maps of whole windows."""
    x, maps = model.patch_embed(x), []
    for i, stage in enumerate(model.stages):
        x = x if stage.downsample is None else stage.downsample(x)
        batch, height, width, dim = x.shape
        size = model.window_size
        scores = None
        for j, block in enumerate(stage.blocks):
            shift = (j % 2) * (size // 2)
            count = kept_count((height // size) * (width // size), model.pruning_ratios[i][j])
            if scores is None and model.pruning_ratios[i][j] > 0:
                magnitude = x.abs().mean(-1, keepdim=True)
                scores = [window_partition(magnitude, size, s).flatten(2).norm(dim=2) for s in (0, size // 2)]
            windows = window_partition(x, size, shift)
            kinds = window_kinds(torch.arange(windows.shape[1]), (height, width), size)
            masks = shift_masks(size, shift, x)[kinds]
            for b in range(batch):
                order = (
                    range(windows.shape[1]) if scores is None else scores[j % 2][b].argsort(descending=True).tolist()
                )
                for n in list(order)[:count]:
                    y = windows[b, n]
                    y = y + plain_attention(block.attn, block.norm1(y)[None], masks[n] if shift else None)[0]
                    windows[b, n] = y + block.ffn(block.norm2(y))
            x = window_unpartition(windows, (height, width), size, shift)
        maps.append(getattr(model, f"norm{i}")(x).permute(0, 3, 1, 2))
    return maps


@pytest.mark.parametrize("ratios", [(0.6, 0.5, (0.2, 0.2, 0.4, 0.4), 0), (0.0, (0.0, 0.3), (0, 0.5, 0, 0.5), 0.5), 0.3])
def test_pruned_maps_equal_a_plain_loop(ratios: object) -> None:
    model = randomise(SparseViT(ARCH, window_size=4, pruning_ratios=ratios))
    with torch.no_grad():
        wanted = plain_sparsevit(model, image(2, 256, 128))
    assert_close(outputs(model, image(2, 256, 128)), wanted)
    assert_close(tuple(y.detach() for y in model(image(2, 256, 128))), wanted)


def test_half_precision_keeps_the_same_windows_where_scores_differ_clearly() -> None:
    model = randomise(SparseViT(ARCH, window_size=4, pruning_ratios=(0.5, 0.5, (0, 0, 0.4, 0.4), 0)))
    x = image(1, 256, 256)
    wanted, choices = outputs(model, x), model.window_choices(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, others = outputs(model, x), model.window_choices(x)
    same = []
    for a, b in zip(sum(choices, []), sum(others, []), strict=True):
        gone = set(a.kept[0].tolist()) - set(b.kept[0].tolist())
        same.append(1 - len(gone) / a.kept.shape[1])
        if gone:  # near ties only
            last = a.scores[0][a.kept[0]].min()
            assert (a.scores[0][list(gone)] < 1.03 * last).all()
    assert min(same) > 0.75 and np.mean(same) > 0.95
    assert (got[0].float() - wanted[0]).abs().median() < 0.02


def test_pruned_windows_pass_through_unchanged() -> None:
    model = randomise(SparseViT(ARCH, window_size=4, pruning_ratios=(0.5, 0, 0, 0)))
    x = image(1, 70, 100)
    (choices, *_) = model.window_choices(x)
    before, after = model.patch_embed(x), model.stages[0](model.patch_embed(x), model.pruning_ratios[0], 0)
    kept = torch.zeros(before.shape[1:3], dtype=torch.bool)
    for choice in choices:
        numbers = window_numbers(choice.grid, 4, choice.shift, x.device)
        kept |= torch.isin(numbers, choice.kept[0])
    same = (before == after).all(-1)[0]
    assert torch.equal(same, ~kept) and 0 < kept.float().mean() < 1


def test_the_first_pruned_block_scores_for_the_stage() -> None:
    model = randomise(SparseViT(ARCH, window_size=4, pruning_ratios=(0, 0, (0, 0, 0.4, 0.6), 0)))
    choices = model.window_choices(image(2, 256, 256))
    assert [c.scores is None for c in choices[2]] == [True, True, False, False]
    assert [c.kept.shape[1] for c in choices[2]] == [16, 16, 9, 6]
    for c in choices[2][2:]:
        best = c.scores.gather(1, c.kept)
        assert torch.equal(best.sort(descending=True).values, best)
        assert (best.amin(1) >= c.scores.scatter(1, c.kept, -1).amax(1)).all()


def test_a_bright_object_is_kept() -> None:
    """Where activations are large the windows stay, whatever the order of the windows."""
    x = torch.zeros(1, 56, 56, 8)
    x[:, 14:21, 28:35] = 1.0
    reducer = WindowPruning(7, ratio=1 - 1.5 / 64)
    token_map = reducer.associate(x.flatten(1, 2), (56, 56))
    assert token_map.num == 1
    assert torch.equal(token_map.weight.view(56, 56) > 0, x[0, ..., 0] > 0)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 15), st.integers(1, 15), st.integers(1, 5), st.sampled_from((0.0, 0.2, 0.5, 0.8)), st.data())
def test_reducer_keeps_the_invariants_of_token_maps(h: int, w: int, window: int, ratio: float, data: object) -> None:
    shift = data.draw(st.integers(0, window - 1))
    reducer = WindowPruning(window, ratio, shift)
    x = torch.randn(2, h * w, 3, generator=torch.Generator().manual_seed(h * w))
    y, token_map = reducer.reduce(x, (h, w))
    total = -(-h // window) * -(-w // window)
    assert y.shape == (2, max(1, int(total * (1 - ratio))), 3) and token_map.index.shape == (2, h * w, 1)
    assert set(token_map.weight.unique().tolist()) <= {0.0, 1.0}
    torch.testing.assert_close(token_map.mass().sum(1), token_map.weight.sum((1, 2)))
    restored = reducer.restore(y, token_map, base=x)
    dropped = token_map.weight[..., 0] == 0
    assert torch.equal(restored[dropped], x[dropped])
    assert torch.equal(reducer.restore(torch.ones(2, token_map.num, 1), token_map), token_map.weight)
    scores = reducer.scores(x, (h, w))
    whole = token_magnitudes(x).square().sum(1)
    torch.testing.assert_close(scores.square().sum(1), whole)


def test_gradients_are_those_of_kept_windows_only() -> None:
    model = randomise(SparseViT(ARCH, window_size=4, pruning_ratios=(0.75, 0, 0, 0), out_indices=0)).train()
    model(image(1, 64, 64))[0].square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


@pytest.mark.parametrize("with_cp", [False, True])
def test_a_block_without_windows_has_zero_gradients(with_cp: bool) -> None:
    """One window at 32 x 32 pixels: any ratio drops it, the block is the identity, and DDP finds zero gradients."""
    model = randomise(SparseViT(ARCH, window_size=8, pruning_ratios=0.1, with_cp=with_cp))
    dense = copy.deepcopy(model)
    dense.set_pruning_ratios(0.0)
    assert model.kept_windows((32, 32)) == [[(0, 1)] * depth for depth in ARCH["depths"]]
    maps = model.train()(image(2, 32, 32))
    assert_close(maps, outputs(model.eval(), image(2, 32, 32)))
    assert not torch.allclose(maps[0], outputs(dense, image(2, 32, 32))[0], atol=1e-2)
    sum(y.square().mean() for y in maps).backward()
    for name, p in model.named_parameters():
        assert p.grad is not None and (p.grad.abs().max() == 0) == (".blocks." in name), name


# --- ratios -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ratios, said",
    [
        (1.0, "1.0"),
        (-0.1, "-0.1"),
        (float("nan"), "nan"),
        ("0.5", "'0.5'"),
        (True, "True"),
        ((0.1, 0.2), "4 stages"),
        ((0.1, 0.2, 0.3, (0.1,)), "2 blocks"),
        ((0, 0, (0.1, 0.1, 0.1, 1.5), 0), "stage 2, block 3"),
        ((0, 0, (0.5, 0.5, 0.0, 0.5), 0), "may not keep more"),
        ((0, 0, (0.5, 0.5, 0.2, 0.5), 0), "may not keep more"),
    ],
    ids=str,
)
def test_illegal_ratios_are_refused(ratios: object, said: str) -> None:
    with pytest.raises(ValueError, match="pruning_ratios") as caught:
        SparseViT(ARCH, pruning_ratios=ratios)
    assert said in str(caught.value)
    model = SparseViT(ARCH, pruning_ratios=0.3)
    with pytest.raises(ValueError):
        model.set_pruning_ratios(ratios)
    assert model.pruning_ratios[2] == (0.3,) * 4, "a refused setting changes nothing"


def test_the_limit_is_on_counts_and_on_parity() -> None:
    falling = (0, 0, (0.4, 0.6, 0.3, 0.6), 0)  # of 4 windows both keep 2; of 16 windows 9 and 11
    model = randomise(SparseViT(ARCH, pruning_ratios=falling))
    assert outputs(model, image(1, 224, 224))[2].shape == (1, 24, 14, 14)
    with pytest.raises(ValueError, match="stage 2 let block 2 keep 11 of 16 windows"):
        outputs(model, image(1, 448, 448))
    with pytest.raises(ValueError, match="stage 2"):
        model.kept_windows((448, 448))


def test_ratios_can_be_changed() -> None:
    model, x = randomise(SparseViT(ARCH)), image(1, 224, 224)
    dense = outputs(model, x)
    model.set_pruning_ratios((0.6, 0.5, (0.2, 0.2, 0.4, 0.4), 0.0))
    pruned = outputs(model, x)
    assert not torch.equal(dense[0], pruned[0])
    built = randomise(SparseViT(ARCH, pruning_ratios=[0.6, 0.5, [0.2, 0.2, 0.4, 0.4], 0]))
    assert all(torch.equal(a, b) for a, b in zip(pruned, outputs(built, x), strict=True))
    model.set_pruning_ratios(0.0)
    assert all(torch.equal(a, b) for a, b in zip(dense, outputs(model, x), strict=True))


def test_draws_follow_the_published_distribution() -> None:
    rng = np.random.default_rng(0)
    draws = [draw_ratios((2, 2, 6, 2), rng) for _ in range(2000)]
    for stages in draws[:50]:
        assert resolve_ratios(stages, (2, 2, 6, 2)) == stages
        for stage in stages:
            assert list(stage) == sorted(stage) and stage[::2] == stage[1::2]
    first = np.array([stages[0][0] for stages in draws])
    assert set(first) == set(PUBLISHED_RATIOS)
    assert np.allclose([np.mean(first == r) for r in PUBLISHED_RATIOS], 1 / 9, atol=0.03)
    third = np.array([stages[2] for stages in draws])
    # The smallest of three draws is 0 unless none of them is.
    assert np.mean(third[:, 0] == 0) == pytest.approx(1 - (8 / 9) ** 3, abs=0.04)
    assert draw_ratios((3,), np.random.default_rng(1), (0.5,)) == ((0.5, 0.5, 0.5),)


def step(hook: object, model: nn.Module, iteration: int, seed: int = 3, rank: int = 0) -> tuple:
    hook.before_train_iter(SimpleNamespace(model=model, iter=iteration, seed=seed, rank=rank), 0)
    return model.training_ratios


def test_adaptation_is_random_in_training_only() -> None:
    model = randomise(SparseViT(ARCH, pruning_ratios=(0.5, 0, 0, 0)))
    x, hook = image(1, 224, 224), HOOKS.build(dict(type="mmvit_plugins.SparsityAdaptationHook"))
    wanted = outputs(model, x)
    state = torch.get_rng_state(), np.random.get_state()[1].copy()
    draws = [step(hook, model, i) for i in range(8)]
    assert torch.equal(torch.get_rng_state(), state[0]) and (np.random.get_state()[1] == state[1]).all()
    assert len(set(draws)) > 6
    assert all(torch.equal(a, b) for a, b in zip(outputs(model.eval(), x), wanted, strict=True))
    trained = outputs(model.train(), x)
    model.set_pruning_ratios(draws[-1])
    assert all(torch.equal(a, b) for a, b in zip(outputs(model.train(), x), trained, strict=True))
    step(hook, model, 9)
    hook.after_train(SimpleNamespace(model=model))
    assert model.training_ratios is None


def test_adaptation_draws_depend_on_iteration_seed_and_rank() -> None:
    model = SparseViT(ARCH)
    build = lambda **kwargs: HOOKS.build(dict(type="mmvit_plugins.SparsityAdaptationHook", **kwargs))  # noqa: E731
    uninterrupted = [step(build(), model, i) for i in range(10)]
    assert [step(build(), model, i) for i in range(5, 10)] == uninterrupted[5:]  # as after a resume
    assert [step(build(), model, i, seed=4) for i in range(10)] != uninterrupted
    assert [step(build(), model, i, rank=1) for i in range(10)] != uninterrupted
    same = build(same_on_all_ranks=True)
    assert [step(same, model, i, rank=1) for i in range(10)] == [step(same, model, i, rank=0) for i in range(10)]
    with pytest.raises(ValueError, match="no mmvit_plugins.SparseViT"):
        build().before_train(SimpleNamespace(model=nn.Linear(1, 1)))
    with pytest.raises(ValueError, match="choices"):
        build(choices=[0.5, 1.0])


# --- pictures -----------------------------------------------------------------------------------------------


def test_token_maps_and_pictures_show_the_kept_windows() -> None:
    from mmvit_plugins.visualization import draw_token_regions, draw_window_choice

    model = randomise(SparseViT(ARCH, window_size=4, pruning_ratios=(0.5, 0.5, 0.5, 0.0)))
    x, pixels = image(1, 70, 100), np.full((70, 100, 3), 200, np.uint8)
    choices = model.window_choices(x)
    maps = model.token_maps(x)
    assert [m[0] for m in maps] == [0, 1, 2, 3]
    for (stage, token_map, grid, cells), blocks in zip(maps, choices, strict=True):
        assert grid == tuple(-(-side // (4 << stage)) for side in (70, 100))
        assert token_map.num == blocks[-1].kept.shape[1] and cells == tuple(-(-side // 4) for side in grid)
    last = choices[0][-1]
    scored, kept = draw_window_choice(pixels, last, 4, 4)
    numbers = window_numbers(last.grid, 4, last.shift, x.device).numpy()
    numbers = numbers[np.arange(70) // 4][:, np.arange(100) // 4]
    lines = (kept == 255).all(-1)
    inside = np.isin(numbers, last.kept[0].numpy())
    assert (kept[inside & ~lines] == 200).all() and (kept[~inside & ~lines] == 50).all()
    best = last.scores[0].argmax().item()
    assert scored.shape == kept.shape == pixels.shape
    assert len(np.unique(scored[(numbers == best) & ~lines], axis=0)) == 1
    regions = draw_token_regions(pixels, maps[0][1], maps[0][2], stride=4, border=None)
    assert (regions[~inside] == 50).all() and (regions[inside] == 200).all()
    with pytest.raises(ValueError, match="no window was scored"):
        draw_window_choice(pixels, choices[3][-1], 4, 32)
    with pytest.raises(ValueError, match="stride"):
        draw_window_choice(pixels, last, 4, 2)
    with pytest.raises(RuntimeError, match="eval"):
        model.train().token_maps(x)


def test_scores_are_the_norms_of_the_magnitudes() -> None:
    magnitudes = torch.rand(2, 9, 10, generator=torch.Generator().manual_seed(0))
    for shift in (0, 3):
        windows = window_partition(magnitudes.unsqueeze(-1), 7, shift)
        torch.testing.assert_close(window_scores(magnitudes, 7, shift), windows.flatten(2).norm(dim=2))
