"""Quadtrees against the loop over splits; tokens, maps, scorers, weights and budgets of Quadformer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hosts import require_host
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.quadtree import best_first, best_first_batched
from torch import Tensor

from mmvit_plugins.models.backbones.quadformer import Quadformer, sinusoid_positions
from mmvit_plugins.models.token_reduction import (
    FeatureScorer,
    PixelBlurScorer,
    QuadtreeReducer,
    RandomScorer,
    build_quadtree,
    legal_budget,
)
from mmvit_plugins.models.token_reduction.quadtree import Quadtree, pad_to_multiple, resolve_budget
from mmvit_plugins.registry import MODELS

SMALL = dict(embed_dims=32, depth=4, num_heads=2)


def leaves_of(tree: Quadtree, sample: int) -> list[tuple[int, int, int]]:
    """(top, left, size) of the used places, in their order."""
    return [(int(top), int(left), int(size)) for left, top, size in tree.boxes[sample] if size > 0]


@st.composite
def trees(draw: st.DrawFn, whole: bool | None = None) -> tuple[list[Tensor], tuple[int, int], int]:
    """Scores of two images (with ties at times), a grid and a legal budget."""
    depth = draw(st.integers(1, 4))
    rows, cols = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    cut = [0, 0] if whole or draw(st.booleans()) else [draw(st.integers(0, 2**depth - 1)) for _ in range(2)]
    grid = (rows * 2**depth - cut[0], cols * 2**depth - cut[1])
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    scores = [torch.randn(2, rows * 2**i, cols * 2**i, generator=generator) for i in range(depth)]
    if draw(st.booleans()):
        scores = [(s * 2).round() for s in scores]  # ties
    return scores, grid, legal_budget(grid, depth, draw(st.integers(1, grid[0] * grid[1])))


@settings(deadline=None, max_examples=150)
@given(trees())
def test_the_choice_equals_the_loop(case: tuple[list[Tensor], tuple[int, int], int]) -> None:
    scores, grid, count = case
    tree = build_quadtree(scores, grid, count)
    for sample in range(2):
        wanted = best_first([s[sample].numpy() for s in scores], grid, count)
        assert leaves_of(tree, sample) == wanted
        assert len(wanted) == count if tree.full else count - 2 <= len(wanted) <= count
        # Every cell belongs to the leaf that covers it.
        index = tree.token_map.index[sample, :, 0].view(grid)
        for number, (top, left, size) in enumerate(wanted):
            assert (index[top : top + size, left : left + size] == number).all()


@settings(deadline=None, max_examples=25)
@given(trees(whole=True))
def test_both_loops_agree(case: tuple[list[Tensor], tuple[int, int], int]) -> None:
    """The batched loop is what the speed is compared with, so it must be right (it has its own rule for ties)."""
    scores, grid, count = case
    generator = torch.Generator().manual_seed(0)
    scores = [s + 0.01 * torch.rand(s.shape, generator=generator) for s in scores]
    split = best_first_batched(scores, grid, count)
    boxes = build_quadtree(scores, grid, count).boxes
    assert (split.sum(dim=1) * 3 + scores[0][0].numel() == count).all()
    for level, part in enumerate(split.split([s[0].numel() for s in scores], dim=1)):
        # A split square of this level is no leaf, and neither is anything above it.
        side = 2 ** (len(scores) - level)
        columns = scores[level].shape[2]
        for sample in range(2):
            inside = {(int(t) // side * columns + int(x) // side) for x, t, s in boxes[sample] if s < side}
            assert inside == set(part[sample].nonzero().flatten().tolist())


def test_keys_that_do_not_fit_in_one_number_are_sorted_in_parts() -> None:
    """Eight levels: 21845 squares, keys of eight places."""
    generator = torch.Generator().manual_seed(3)
    scores = [torch.randn(1, 2**i, 2**i, generator=generator) for i in range(8)]
    wanted = best_first([s[0].numpy() for s in scores], (256, 256), 1 + 3 * 700)
    assert leaves_of(build_quadtree(scores, (256, 256), 1 + 3 * 700), 0) == wanted


def test_ties_go_to_the_larger_square_then_in_raster_order() -> None:
    zeros = [torch.zeros(1, 2, 2), torch.zeros(1, 4, 4)]
    boxes = leaves_of(build_quadtree(zeros, (8, 8), 4 + 3 * 2), 0)
    assert [b for b in boxes if b[2] == 4] == [(4, 0, 4), (4, 4, 4)], "the two upper roots are split"
    boxes = leaves_of(build_quadtree(zeros, (8, 8), 4 + 3 * 5), 0)
    assert [b[:2] for b in boxes if b[2] == 1] == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize(
    "grid, depth, wanted, legal", [((16, 16), 2, 100, 100), ((16, 16), 2, 102, 100), ((16, 16), 2, 3, 16)]
)
def test_budgets_of_whole_grids(grid: tuple[int, int], depth: int, wanted: int, legal: int) -> None:
    assert legal_budget(grid, depth, wanted) == legal


def test_budgets_given_by_users() -> None:
    assert resolve_budget(0.5, (15, 15), 2) == round(0.5 * 225)
    assert resolve_budget(1000, (15, 15), 2) == 225 and resolve_budget(1, (15, 15), 2) == 16
    for wrong in (0, -3, 0.0, 1.5, True, "100", None):
        with pytest.raises(ValueError, match="num_tokens") as caught:
            resolve_budget(wrong, (16, 16), 2)
        assert repr(wrong) in str(caught.value)


def test_illegal_requests_are_refused() -> None:
    scores = [torch.zeros(1, 4, 4), torch.zeros(1, 8, 8)]
    with pytest.raises(ValueError, match=r"16 \+ 3 k.*got 101.*nearest below is 100"):
        build_quadtree(scores, (16, 16), 101)
    with pytest.raises(ValueError, match=r"level 1 must be \(B, 8, 8\)"):
        build_quadtree([scores[0], scores[0]], (16, 16), 100)
    with pytest.raises(ValueError, match="max_patch_size must be min_patch_size times"):
        Quadformer(min_patch_size=16, max_patch_size=48)
    with pytest.raises(ValueError, match="origin"):
        Quadformer(origin="middle")
    with pytest.raises(ValueError, match="out_type"):
        Quadformer(with_cls_token=False, out_type="cls_token")
    with pytest.raises(ValueError, match="multiple of 4"):
        sinusoid_positions(torch.zeros(1, 1), torch.zeros(1, 1), 30)


def test_images_are_padded_by_repetition() -> None:
    x = torch.randn(2, 3, 5, 7)
    wanted = torch.nn.functional.pad(x, (0, 1, 0, 3), mode="replicate")
    assert torch.equal(pad_to_multiple(x, 8), wanted)


# --- tokens -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resample", ["bilinear", "area"])
@pytest.mark.parametrize("size", [(64, 96), (45, 70)], ids=str)
def test_each_token_is_its_patch_resized(resample: str, size: tuple[int, int]) -> None:
    """Patch by patch, cut from the padded image; the position is the patch's centre."""
    torch.manual_seed(0)
    model = Quadformer(arch=SMALL, min_patch_size=8, max_patch_size=32, num_tokens=30, resample=resample).eval()
    x = torch.randn(2, 3, *size)
    with torch.no_grad():
        patches, tree = model.tokenizer(x)
        mixed = model.tokenize(x)
        embedded = model.patch_embed(patches)
    padded = pad_to_multiple(x, 32)
    for sample in range(2):
        for number, (top, left, side) in enumerate(leaves_of(tree, sample)):
            top, left, pixels = top * 8, left * 8, side * 8
            patch = padded[sample : sample + 1, :, top : top + pixels, left : left + pixels]
            if resample == "area":
                small = torch.nn.functional.adaptive_avg_pool2d(patch, 8)
            else:
                small = torch.nn.functional.interpolate(patch, size=8, mode="bilinear")
            torch.testing.assert_close(patches[sample, number].view(3, 8, 8), small[0])
            y, z = (torch.tensor([[(corner + pixels / 2) / 8]]) for corner in (left, top))
            token = embedded[sample, number] + sinusoid_positions(y, z, 32)[0, 0]
            torch.testing.assert_close(mixed.tokens[sample, number], token)
    assert mixed.grid == (-(-size[0] // 8), -(-size[1] // 8))
    assert (mixed.key_mask is None) == (size == (64, 96))


def test_uniform_patches_are_a_plain_vit() -> None:
    """With one size the tokens are those of the convolution, in raster order."""
    torch.manual_seed(0)
    model = Quadformer(arch=SMALL, min_patch_size=8, max_patch_size=8, num_tokens=1).eval()
    x = torch.randn(2, 3, 24, 40)
    with torch.no_grad():
        tokens = model.tokenize(x).tokens
        wanted = model.patch_embed.projection(x).flatten(2).transpose(1, 2)
    y, z = torch.meshgrid(torch.arange(3) + 0.5, torch.arange(5) + 0.5, indexing="ij")
    torch.testing.assert_close(
        tokens - wanted, sinusoid_positions(z.reshape(1, -1), y.reshape(1, -1), 32).expand(2, -1, -1)
    )


def test_unused_places_change_nothing() -> None:
    """The content of a place that holds no leaf does not reach any output."""
    torch.manual_seed(0)
    model = Quadformer(arch=SMALL, min_patch_size=8, max_patch_size=32, num_tokens=20).eval()
    plain = model.tokenize

    def spoiled(x: Tensor) -> object:
        mixed = plain(x)
        assert not mixed.key_mask.all(), "the case must have an unused place"
        mixed.tokens[~mixed.key_mask] = 1e3
        return mixed

    x = torch.randn(6, 3, 45, 70)
    with torch.no_grad():
        wanted = model(x)
        model.tokenize = spoiled
        got = model(x)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_maps_are_constant_in_leaves_and_class_tokens_are_given() -> None:
    torch.manual_seed(0)
    model = Quadformer(arch=SMALL, min_patch_size=8, max_patch_size=32, num_tokens=20).eval()
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        maps, (_, tree) = model(x), model.tokenizer(x)
        model.out_type = "cls_token"
        tokens = model(x)
    for y in maps:
        for top, left, side in leaves_of(tree, 0):
            leaf = y[0, :, top : top + side, left : left + side]
            assert (leaf == leaf[:, :1, :1]).all()
    assert [tuple(t.shape) for t in tokens] == [(1, 32)] * 4
    (stage, token_map, grid, roots), *rest = model.token_maps(x)
    assert (stage, grid, roots, rest) == (0, (8, 8), (2, 2), [])
    assert torch.equal(token_map.index, tree.token_map.index)


def test_weights_of_mmpretrains_vit_load() -> None:
    """MMPretrain's own VisionTransformer with the position table set to ours gives the same features."""
    require_host("mmpretrain")
    from mmpretrain.models import VisionTransformer

    torch.manual_seed(0)
    arch = dict(embed_dims=32, num_layers=4, num_heads=2, feedforward_channels=128)
    theirs = VisionTransformer(arch, img_size=32, patch_size=8, out_type="featmap", norm_cfg=dict(type="LN", eps=1e-6))
    theirs.eval()  # returns None
    torch.nn.init.normal_(theirs.cls_token)
    torch.nn.init.normal_(theirs.pos_embed)
    ours = Quadformer(arch=SMALL, min_patch_size=8, max_patch_size=8, num_tokens=1, out_indices=(3,)).eval()
    ours.load_state_dict(theirs.state_dict())
    y, z = torch.meshgrid(torch.arange(4) + 0.5, torch.arange(4) + 0.5, indexing="ij")
    theirs.pos_embed.data[:, 1:] = sinusoid_positions(z.reshape(1, -1), y.reshape(1, -1), 32)
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(ours(x)[0], theirs(x)[0], rtol=1e-4, atol=1e-4)


# --- scorers ------------------------------------------------------------------------------------------------


def test_scores_see_detail() -> None:
    """Noise in one patch, smooth elsewhere: both scorers put that patch first."""
    x = torch.linspace(0, 1, 64).expand(1, 3, 64, 64).clone()
    x[:, :, 32:, :32] += torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    for scorer in (PixelBlurScorer(), FeatureScorer().eval()):
        scores = scorer(x, [32, 16], 8)
        assert [tuple(s.shape) for s in scores] == [(1, 2, 2), (1, 4, 4)]
        assert scores[0].flatten().argmax() == 2, type(scorer).__name__
    flat = PixelBlurScorer()(torch.ones(1, 3, 64, 64), [32], 8)[0]
    torch.testing.assert_close(flat, torch.zeros(1, 2, 2))


def test_feature_scores_are_the_formula() -> None:
    torch.manual_seed(0)
    scorer = FeatureScorer().train()
    assert not scorer.network.training and not any(p.requires_grad for p in scorer.parameters())
    x = torch.randn(2, 3, 128, 128)
    small = torch.nn.functional.interpolate(x, size=64, mode="bilinear")
    blurred = torch.nn.functional.interpolate(small, size=128, mode="bilinear")
    with torch.no_grad():
        error = (scorer.network(x) - scorer.network(blurred)).square().mean(dim=1)
    (got,) = scorer(x, [64], 32)
    torch.testing.assert_close(got, torch.nn.functional.avg_pool2d(error, 2))
    assert scorer(x, [16], 8)[0].shape == (2, 8, 8), "patches smaller than the stride"


def test_the_scorers_file_is_torchvisions(tmp_path: object) -> None:
    from torchvision.models import shufflenet_v2_x0_5

    network = shufflenet_v2_x0_5(weights=None).eval()
    torch.save(network.state_dict(), tmp_path / "shufflenet.pth")
    scorer = MODELS.build(dict(type="mmvit_plugins.FeatureScorer", checkpoint=str(tmp_path / "shufflenet.pth")))
    scorer.init_weights()
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        wanted = network.conv5(network.stage4(network.stage3(network.stage2(network.maxpool(network.conv1(x))))))
        torch.testing.assert_close(scorer.network(x), wanted)


def test_random_scores_are_fixed_in_eval_mode() -> None:
    scorer = RandomScorer().eval()
    x = torch.zeros(3, 3, 64, 64)
    first, again = scorer(x, [32, 16], 8), scorer(x[:1], [32, 16], 8)
    assert all(torch.equal(a[:1], b) and torch.equal(a[:1], a[1:2]) for a, b in zip(first, again, strict=True))
    scorer.train()
    drawn = scorer(x, [32, 16], 8)
    assert not torch.equal(drawn[0][0], drawn[0][1])


# --- the reducer --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", ["error", "activation"])
@pytest.mark.parametrize("grid", [(8, 8), (7, 13), (1, 1), (3, 2)], ids=str)
def test_the_reducer_keeps_what_every_reducer_keeps(score: str, grid: tuple[int, int]) -> None:
    reducer = MODELS.build(dict(type="mmvit_plugins.QuadtreeReducer", num_tokens=0.4, depth=2, score=score))
    x = torch.randn(2, grid[0] * grid[1], 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    y, token_map = reducer.reduce(x, grid)
    assert y.shape == (2, token_map.num, 5) and token_map.num <= max(0.4 * grid[0] * grid[1] + 1, 4)
    torch.testing.assert_close(token_map.mass().sum(dim=1), torch.full((2,), float(x.shape[1])))
    restored = reducer.restore(y, token_map)
    torch.testing.assert_close(reducer.restore(reducer.reduce(restored, grid)[0], token_map).shape, restored.shape)
    constant = torch.full_like(x, 3.0).detach()
    torch.testing.assert_close(token_map.restore(token_map.reduce(constant)), constant)
    other = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    adjoint = (token_map.mass().unsqueeze(-1) * y * other).sum()
    torch.testing.assert_close(adjoint, (x * token_map.restore(other)).sum())
    restored.square().sum().backward()
    assert x.grad.abs().sum() > 0


def test_error_scores_are_what_is_lost() -> None:
    """The sum of squared differences from the mean of the square, tokens outside not counted."""
    x = 100 + torch.randn(1, 7 * 6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    cells = x.view(7, 6, 3)
    root = {(i, j): cells[4 * i : 4 * i + 4, 4 * j : 4 * j + 4] for i in (0, 1) for j in (0, 1)}
    wanted = {k: float((v - v.mean(dim=(0, 1))).square().sum()) for k, v in root.items()}
    padded = torch.nn.functional.pad(x.view(1, 7, 6, 3), (0, 0, 0, 2, 0, 1))
    count = torch.nn.functional.pad(torch.ones(1, 7, 6, dtype=torch.float64), (0, 2, 0, 1))
    got = QuadtreeReducer(0.5, 2)._errors(padded, padded.square().sum(-1), count)[0][0]
    np.testing.assert_allclose(got.numpy().ravel(), [wanted[0, 0], wanted[0, 1], wanted[1, 0], wanted[1, 1]], rtol=1e-9)


def test_the_reducer_splits_where_the_map_changes() -> None:
    x = torch.zeros(1, 8, 8, 2)
    x[0, :4, :4] = torch.randn(4, 4, 2, generator=torch.Generator().manual_seed(0))
    tree = QuadtreeReducer(num_tokens=4 + 3 * 5, depth=2).quadtree(x.view(1, 64, 2), (8, 8))
    assert sorted(b for b in leaves_of(tree, 0) if b[2] == 4) == [(0, 4, 4), (4, 0, 4), (4, 4, 4)]
    for wrong in (dict(score="entropy"), dict(depth=0), dict(num_tokens=0)):
        with pytest.raises(ValueError):
            QuadtreeReducer(**wrong)
