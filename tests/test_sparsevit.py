"""SparseViT: equal to the hosts' Swin without pruning, to a plain reference with it; ratios, adaptation, weights."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hosts import require_host
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.registry import HOOKS
from torch import Tensor, nn

from mmvit_plugins.checkpoints import OfficialPretrained, convert_official
from mmvit_plugins.models import SparseViT, WindowPruning
from mmvit_plugins.models.backbones.sparsevit_ratios import PUBLISHED_RATIOS, draw_ratios, resolve_ratios
from mmvit_plugins.models.backbones.sparsevit_weights import convert_sparsevit
from mmvit_plugins.models.layers.window_attention import (
    WindowAttention,
    shift_masks,
    window_kinds,
    window_numbers,
    window_partition,
    window_rows,
    window_unpartition,
)
from mmvit_plugins.models.token_reduction.window_pruning import kept_count, token_magnitudes, window_scores

ARCH = dict(dims=(8, 16, 24, 32), depths=(2, 2, 4, 2), heads=(1, 2, 3, 4))
HOST = dict(embed_dims=8, depths=(2, 2, 4, 2), num_heads=(1, 2, 4, 8))
OURS = dict(dims=(8, 16, 32, 64), depths=(2, 2, 4, 2), heads=(1, 2, 4, 8))


def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Weights that leave nothing at its neutral value."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            values = torch.randn(p.shape, generator=generator)
            p.copy_(values / p[0].numel() ** 0.5 if p.dim() > 1 else 0.2 * values + (p.mean() > 0.5))
    model.eval()  # MMDetection's returns None
    return model


def image(*size: int, seed: int = 1) -> Tensor:
    return torch.randn(size[0], 3, *size[1:], generator=torch.Generator().manual_seed(seed))


def outputs(model: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    with torch.no_grad():
        return model(x)


def assert_close(got: tuple[Tensor, ...], wanted: tuple[Tensor, ...], atol: float = 2e-5) -> None:
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a.contiguous(), b.contiguous(), rtol=0, atol=atol)


# --- against the hosts' Swin --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(224, 224), (65, 90), (37, 200)], ids=str)
def test_without_pruning_it_is_the_swin_of_mmdetection(size: tuple[int, int]) -> None:
    require_host("mmdet")
    from mmdet.models.backbones.swin import SwinTransformer

    host = randomise(SwinTransformer(**HOST))
    ours = SparseViT(OURS).eval()
    ours.load_state_dict({k[9:]: v for k, v in convert_sparsevit(host.state_dict()).items()})
    x = image(2, *size)
    assert_close(outputs(ours, x), outputs(host, x))
    assert_close(tuple(y.detach() for y in ours(x)), outputs(host, x))  # the way that training takes


@pytest.mark.parametrize("pad_small_map", [False, True])
def test_without_pruning_it_is_the_swin_of_mmpretrain(pad_small_map: bool) -> None:
    require_host("mmpretrain")
    from mmpretrain.models.backbones import SwinTransformer

    arch = dict(embed_dims=8, depths=HOST["depths"], num_heads=HOST["num_heads"])
    options = dict(out_indices=(0, 1, 2, 3), pad_small_map=pad_small_map, drop_path_rate=0.0)
    host = randomise(SwinTransformer(arch=arch, img_size=224, **options))
    ours = SparseViT(OURS, shift_small_maps=pad_small_map).eval()
    ours.load_state_dict({k[9:]: v for k, v in convert_sparsevit(host.state_dict()).items()})
    x = image(2, 224, 224)
    assert_close(outputs(ours, x), outputs(host, x))


def test_the_two_paddings_differ_only_where_there_is_padding() -> None:
    after, before = randomise(SparseViT(ARCH)), randomise(SparseViT(ARCH, padding="before_norm"))
    assert_close(outputs(before, image(1, 224, 224)), outputs(after, image(1, 224, 224)))
    a, b = outputs(before, image(1, 200, 224))[0], outputs(after, image(1, 200, 224))[0]
    assert (a - b).abs().max() > 1e-2
    assert torch.equal(a[:, :, :20], b[:, :, :20])  # far from it nothing changes in the first stage


# --- windows ------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 7), st.data())
def test_rows_numbers_and_partition_agree(height: int, width: int, window: int, data: st.DataObject) -> None:
    shift = data.draw(st.integers(0, window - 1))
    x = torch.arange(1.0, 1 + 2 * height * width).view(2, height, width, 1)
    windows = window_partition(x, window, shift)
    assert torch.equal(window_unpartition(windows, (height, width), window, shift), x)
    rows, real = window_rows(torch.arange(windows.shape[1]), (height, width), window, shift)
    taken = x[0].flatten()[rows.clamp_max(height * width - 1)] * real
    assert torch.equal(taken, windows[0, ..., 0])
    numbers = window_numbers((height, width), window, shift, x.device)
    for n in range(windows.shape[1]):
        assert torch.equal(x[0, ..., 0][numbers == n].sort().values, windows[0, n, :, 0][real[n]].sort().values)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 16), st.integers(1, 16), st.integers(2, 5), st.data())
def test_masks_keep_opposite_borders_apart(height: int, width: int, window: int, data: st.DataObject) -> None:
    """Two tokens of a window may see each other exactly if no border of the map lies between them."""
    shift = data.draw(st.integers(1, window - 1))
    rows, cols = -(-height // window), -(-width // window)
    place = torch.stack(torch.meshgrid(torch.arange(rows * window), torch.arange(cols * window), indexing="ij"), -1)
    place = window_partition(place[None].float(), window, shift)[0]
    far = ((place.unsqueeze(1) - place.unsqueeze(2)).abs() >= window).any(-1)
    kinds = window_kinds(torch.arange(rows * cols), (height, width), window)
    masks = shift_masks(window, shift, place)[kinds]
    if rows > 1 and cols > 1:
        assert torch.equal(masks == -100, far)
    assert torch.equal(masks, masks.transpose(1, 2)) and set(masks.unique().tolist()) <= {-100.0, 0.0}


def plain_attention(attn: WindowAttention, x: Tensor, mask: Tensor | None) -> Tensor:
    """From the equation, head by head."""
    window, dim = attn.window, x.shape[-1]
    width = dim // attn.num_heads
    place = torch.tensor([(i, j) for i in range(window) for j in range(window)])
    offset = place.unsqueeze(1) - place.unsqueeze(0) + window - 1
    table = attn.relative_position_bias_table[offset[..., 0] * (2 * window - 1) + offset[..., 1]]
    q, k, v = attn.qkv(x).split(dim, dim=-1)
    heads = []
    for h in range(attn.num_heads):
        part = slice(h * width, (h + 1) * width)
        logits = q[..., part] @ k[..., part].transpose(1, 2) / width**0.5 + table[..., h]
        heads.append((logits if mask is None else logits + mask).softmax(-1) @ v[..., part])
    return attn.proj(torch.cat(heads, -1))


@pytest.mark.parametrize("shift", [0, 2])
def test_attention_follows_its_equation(shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    attn = randomise(WindowAttention(12, 3, 5))
    x = torch.randn(4, 25, 12, generator=torch.Generator().manual_seed(0))
    kinds = torch.tensor([0, 1, 2, 3]) if shift else None
    masks = shift_masks(5, 2, x) if shift else None
    bias = attn.position_bias().unsqueeze(0)
    bias = bias + masks.unsqueeze(1) if shift else bias
    wanted = plain_attention(attn, x, masks)
    torch.testing.assert_close(attn(x, bias, kinds), wanted, rtol=0, atol=1e-5)
    monkeypatch.setattr(torch.jit, "is_tracing", lambda: True)  # the fused kernel, which GPUs and exports take
    torch.testing.assert_close(attn(x, bias, kinds), wanted, rtol=0, atol=1e-5)


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


# --- weights ------------------------------------------------------------------------------------------------


def as_microsoft(ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """Our state dict of a classifier's backbone in Microsoft's layout, with what else their files hold."""
    names = (("ffn.0", "mlp.fc1"), ("ffn.2", "mlp.fc2"), ("patch_embed.projection", "patch_embed.proj"))
    state = {"head.weight": torch.ones(5, 32), "head.bias": torch.ones(5)}
    for key, value in ours.items():
        parts = key.split(".")
        if parts[0].startswith("norm"):
            if parts[0] == "norm3":
                state[f"norm.{parts[1]}"] = value
            continue
        if "downsample" in key:
            parts[1] = str(int(parts[1]) - 1)
            # [(0, 0), (1, 0), (0, 1), (1, 1)]: two strided slices of the columns, each of the rows
            value = value.view(*value.shape[:-1], 2, 2, -1).transpose(-2, -3).reshape(value.shape)
        key = ".".join(parts).replace("stages.", "layers.")
        for a, b in names:
            key = key.replace(a, b)
        state[key] = value
    for i, depth in enumerate(ARCH["depths"]):
        for j in range(depth):
            state[f"layers.{i}.blocks.{j}.attn.relative_position_index"] = torch.zeros(49, 49, dtype=torch.long)
    state["layers.0.blocks.1.attn_mask"] = torch.zeros(64, 49, 49)
    return state


def test_microsoft_files_fill_dense_backbones_and_classifiers(tmp_path: object) -> None:
    model = randomise(SparseViT(ARCH))
    torch.save({"model": as_microsoft(model.state_dict())}, tmp_path / "swin.pth")
    other = SparseViT(ARCH)
    OfficialPretrained(str(tmp_path / "swin.pth"))(other)
    loaded = other.state_dict()
    for key, value in model.state_dict().items():
        assert torch.equal(loaded[key], value) != key.startswith(("norm0", "norm1", "norm2")), key
    whole, family = convert_official(as_microsoft(model.state_dict()))
    assert family == "sparsevit" and whole["head.fc.weight"].shape == (5, 32)
    with pytest.raises(ValueError, match="not keys of an official"):
        convert_sparsevit(as_microsoft(model.state_dict()) | {"layers.0.blocks.0.attn.logit_scale": torch.ones(1)})


def test_merged_positions_are_in_the_right_order() -> None:
    """Microsoft: cat of x[0::2, 0::2], x[1::2, 0::2], x[0::2, 1::2], x[1::2, 1::2]; OpenMMLab: unfold."""
    x = torch.randn(1, 4, 6, 3, generator=torch.Generator().manual_seed(0))
    weight = torch.randn(5, 12, generator=torch.Generator().manual_seed(1))
    cat = torch.cat([x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)], -1) @ weight.t()
    unfolded = F.unfold(x.permute(0, 3, 1, 2), 2, stride=2).transpose(1, 2).view(1, 2, 3, 12) @ weight.t()
    ours = x.view(1, 2, 2, 3, 2, 3).transpose(2, 3).reshape(1, 2, 3, 12)
    key = "layers.0.blocks.0.attn.relative_position_bias_table"
    for stages, wanted in (("layers", cat), ("stages", unfolded)):
        state = {key.replace("layers", stages): torch.ones(1), f"{stages}.0.downsample.reduction.weight": weight}
        mapped = convert_sparsevit(
            {k.replace("attn.rel", "attn.w_msa.rel") if stages == "stages" else k: v for k, v in state.items()}
        )
        got = ours @ mapped["backbone.stages.1.downsample.reduction.weight"].t()
        torch.testing.assert_close(got, wanted)


def test_a_detector_keeps_its_other_parts() -> None:
    require_host("mmdet")
    from mmdet.models.backbones.swin import SwinTransformer

    backbone = {f"backbone.{k}": v for k, v in SwinTransformer(**HOST).state_dict().items()}
    heads = {"neck.lateral_convs.0.conv.weight": torch.ones(1), "roi_head.bbox_head.fc_cls.bias": torch.ones(2)}
    converted, family = convert_official(backbone | heads)
    assert family == "sparsevit" and heads.keys() <= converted.keys()
    own = {f"backbone.{k}" for k in SparseViT(OURS).state_dict()}
    assert set(converted) == own | set(heads)


def test_tables_of_other_windows_are_resized(tmp_path: object) -> None:
    model = randomise(SparseViT(ARCH))
    torch.save({"model": as_microsoft(model.state_dict())}, tmp_path / "swin.pth")
    other = SparseViT(ARCH, window_size=8)
    OfficialPretrained(str(tmp_path / "swin.pth"))(other)
    key = "stages.1.blocks.0.attn.relative_position_bias_table"
    table, resized = model.state_dict()[key], other.state_dict()[key]
    assert resized.shape == (15 * 15, 2)
    assert torch.allclose(resized.view(15, 15, 2)[7, 7], table.view(13, 13, 2)[6, 6], atol=1e-5)  # the middle stays
    third = SparseViT(ARCH, window_size=8)
    third.load_state_dict(model.state_dict())  # plain loading does the same
    assert torch.equal(third.state_dict()[key], resized)
    with pytest.raises(RuntimeError, match="size mismatch"):
        SparseViT(ARCH | dict(heads=(2, 2, 3, 4))).load_state_dict(model.state_dict())


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
