"""Pictures of token maps, training curves and panels: what is drawn, not only that something is."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmvit_plugins.models.backbones import STViT
from mmvit_plugins.models.token_reduction import TokenMap
from mmvit_plugins.visualization import (
    distinct_colors,
    draw_panel,
    draw_token_regions,
    draw_training_curve,
    find_scalars,
    read_scalars,
    token_regions,
)


def hard_map(labels: list[int], num: int, weight: list[float] | None = None) -> TokenMap:
    """A map with K = 1 of one image."""
    index = torch.tensor(labels).view(1, -1, 1)
    weights = torch.ones(index.shape) if weight is None else torch.tensor(weight).view(index.shape)
    return TokenMap(index, weights, num)


def test_regions_follow_the_tokens_and_cut_off_the_padding() -> None:
    # 2 x 3 tokens of 4 pixels cover 8 x 12; the image is 7 x 9.
    regions = token_regions(hard_map([0, 1, 1, 2, 2, 0], 3), (2, 3), (7, 9), stride=4)
    assert regions.shape == (7, 9)
    assert (regions[:4, :4] == 0).all() and (regions[:4, 4:] == 1).all()
    assert (regions[4:, :8] == 2).all() and (regions[4:, 8:] == 0).all()


def test_the_largest_weight_decides_and_the_sample_is_chosen() -> None:
    index = torch.tensor([[[0, 1], [0, 1]], [[0, 1], [0, 1]]])
    weight = torch.tensor([[[0.9, 0.1], [0.2, 0.8]], [[0.1, 0.9], [0.6, 0.4]]])
    token_map = TokenMap(index, weight, 2)
    assert token_regions(token_map, (1, 2), (1, 2), 1, sample=0).tolist() == [[0, 1]]
    assert token_regions(token_map, (1, 2), (1, 2), 1, sample=1).tolist() == [[1, 0]]


@settings(max_examples=30, deadline=None)
@given(
    height=st.integers(1, 40), width=st.integers(1, 40), stride=st.sampled_from([1, 2, 4, 8]), seed=st.integers(0, 9)
)
def test_every_pixel_has_the_region_of_its_token(height: int, width: int, stride: int, seed: int) -> None:
    grid = (-(-height // stride), -(-width // stride))
    labels = np.random.default_rng(seed).integers(0, 5, grid)
    regions = token_regions(hard_map(labels.ravel().tolist(), 5), grid, (height, width), stride)
    y, x = np.divmod(np.arange(height * width), width)
    assert (regions.ravel() == labels[y // stride, x // stride]).all()


def test_mean_style_fills_regions_with_their_average_and_draws_borders_between_them() -> None:
    image = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    token_map = hard_map([0, 1, 0, 1], 2)
    picture = draw_token_regions(image, token_map, (2, 2), "mean", border=None)
    for half in (np.s_[:, :4], np.s_[:, 4:]):
        assert (picture[half] == image[half].reshape(-1, 3).mean(0).round()).all()
    bordered = draw_token_regions(image, token_map, (2, 2), "mean", scale=3, border=(255, 0, 0))
    assert bordered.shape == (24, 24, 3)
    assert (bordered[:, 11] == (255, 0, 0)).all(), "the last column of the left region, one pixel of the picture wide"
    rest = np.delete(bordered, 11, axis=1)
    assert not (rest == (255, 0, 0)).all(-1).any(), "one region over two rows of tokens has no border inside"


def test_distinct_style_separates_regions_of_equal_colour() -> None:
    image = np.full((6, 6, 3), 100, dtype=np.uint8)
    picture = draw_token_regions(image, hard_map(list(range(9)), 9), (3, 3), "distinct", border=None)
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) == 9
    assert len(np.unique(draw_token_regions(image, hard_map(list(range(9)), 9), (3, 3), border=None))) == 1


def test_dropped_tokens_show_the_darkened_image() -> None:
    image = np.full((2, 4, 3), 200, dtype=np.uint8)
    picture = draw_token_regions(image, hard_map([0, 0], 1, weight=[1.0, 0.0]), (1, 2), border=None)
    assert (picture[:, :2] == 200).all() and (picture[:, 2:] == 50).all()


@pytest.mark.parametrize(
    ("grid", "size", "stride"),
    [
        ((3, 4), (75, 101), 32),  # a pyramid's odd image: the last row and column stick out
        ((5, 5), (70, 70), 14),  # covers the image exactly, so not 16
        ((3, 3), (21, 20), 8),  # 7 covers it as well, but pyramids have powers of two
        ((6, 6), (70, 71), 12),  # no power of two gives 6 x 6
    ],
)
def test_the_stride_is_found_from_grid_and_image(grid: tuple, size: tuple, stride: int) -> None:
    token_map = hard_map(list(range(grid[0] * grid[1])), grid[0] * grid[1])
    assert np.array_equal(token_regions(token_map, grid, size), token_regions(token_map, grid, size, stride))


@pytest.mark.parametrize("size", [(224, 224), (333, 217), (7, 50)])
def test_super_tokens_of_a_backbone_cover_the_image(size: tuple[int, int]) -> None:
    model = STViT(arch="mini", out_indices=(0, 1)).eval()
    image = np.random.default_rng(1).integers(0, 256, (*size, 3), dtype=np.uint8)
    x = torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255
    maps = model.token_maps(x)
    assert [stage for stage, *_ in maps] == [0, 1]
    for stage, token_map, grid, cells in maps:
        regions = token_regions(token_map, grid, size, stride=4 * 2**stage)
        assert regions.min() >= 0 and regions.max() < cells[0] * cells[1]
        # A token belongs to one of the nine cells around its own; a cell is 32 pixels in both stages.
        y, x_pixel = np.mgrid[: size[0], : size[1]]
        rows, cols = np.divmod(regions, cells[1])
        assert (abs(rows - y // 32) <= 1).all() and (abs(cols - x_pixel // 32) <= 1).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(grid=(2, 3)), "6 tokens, the token map has 4"),
        (dict(grid=(2, 2), stride=3), "cover 6 x 6, less than the image of 8 x 8"),
        (dict(grid=(2, 2), style="median"), r"\('mean', 'distinct'\), got 'median'"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw_token_regions(np.zeros((8, 8, 3), np.uint8), hard_map([0, 1, 0, 1], 2), **arguments)
    with pytest.raises(ValueError, match=r"\(8, 8\) uint8"):
        draw_token_regions(np.zeros((8, 8), np.uint8), hard_map([0], 1), (1, 1))


def test_curves_put_validation_on_the_axis_of_iterations(tmp_path: Path) -> None:
    log = tmp_path / "run" / "vis_data" / "scalars.json"
    log.parent.mkdir(parents=True)
    lines = [
        {"loss": 2.0, "lr": 0.1, "step": 10},
        {"loss": 1.0, "step": 20},
        {"mIoU": 30.0, "step": 0},
        {"loss": 0.5, "step": 40},
        {"mIoU": 60.0, "step": 40},
    ]
    log.write_text("\n".join(map(json.dumps, lines)))
    assert find_scalars(tmp_path) == log
    curves = read_scalars(log)
    assert curves["loss"] == [(10, 2.0), (20, 1.0), (40, 0.5)]
    assert curves["mIoU"] == [(20, 30.0), (40, 60.0)]
    plain = cv2.imread(str(draw_training_curve(log, tmp_path / "a" / "plain.png")))
    lined = cv2.imread(str(draw_training_curve(log, tmp_path / "lined.png", baseline=10.0)))
    assert plain.shape == lined.shape and (plain != lined).any()
    with pytest.raises(ValueError, match="neither 'loss' nor 'mIoU'"):
        log.write_text(json.dumps({"lr": 1, "step": 1}))
        draw_training_curve(log, tmp_path / "none.png")
    with pytest.raises(FileNotFoundError, match="LocalVisBackend"):
        find_scalars(tmp_path / "a")


def test_panel_shows_every_picture(tmp_path: Path) -> None:
    pictures = [(name, np.full((40, 30, 3), color, np.uint8)) for name, color in (("a", 10), ("b", 90), ("c", 170))]
    panel = cv2.imread(str(draw_panel(pictures, tmp_path / "panel.png", columns=2)))
    shares = [(panel == color).all(-1).mean() for color in (10, 90, 170)]
    assert min(shares) > 0.1 and max(shares) - min(shares) < 0.02
    with pytest.raises(ValueError, match="at least one"):
        draw_panel([], tmp_path / "none.png")


def test_distinct_colors_are_distinct() -> None:
    assert len(np.unique(distinct_colors(60), axis=0)) == 60 and distinct_colors(0).shape == (0, 3)
