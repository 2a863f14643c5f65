"""Token merging: the matchings against the paper's words, and what every map of them keeps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mmvit_plugins.models.token_reduction import (
    MergeMap,
    TokenMap,
    TokenMerging,
    WindowTokenMerging,
    bipartite_soft_matching,
    grid_soft_matching,
    kth_bipartite_soft_matching,
    merge,
    merge_schedule,
    merge_weighted,
    threshold_matching,
)
from mmvit_plugins.registry import MODELS

FEW = settings(deadline=None, max_examples=40)


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def groups(token_map: TokenMap, sample: int = 0) -> list[tuple[int, ...]]:
    """The members of every reduced token, in order of the output."""
    index, weight = token_map.index[sample, :, 0].tolist(), token_map.weight[sample, :, 0].tolist()
    return [
        tuple(n for n, (m, w) in enumerate(zip(index, weight, strict=True)) if m == group and w > 0)
        for group in range(token_map.num)
    ]


def paper_groups(metric: Tensor, r: int, protected: set[int], lead: int) -> list[tuple[int, ...]]:
    """Section 3 in plain Python: one sample (N, C), with leading tokens, so that the order needs no scores."""
    unit = metric.double() / metric.double().norm(dim=1, keepdim=True)
    a, b = list(range(0, len(metric), 2)), list(range(1, len(metric), 2))
    edges = []
    for i in a:
        free = [j for j in b if j not in protected]
        if i in protected or not free:
            continue
        best = max(free, key=lambda j: float(unit[i] @ unit[j]))
        edges.append((float(unit[i] @ unit[best]), i, best))
    chosen = sorted(edges, reverse=True)[: min(r, (len(metric) - len(protected)) // 2)]
    goes = {i: j for _, i, j in chosen}
    stay = [i for i in a if i not in goes and i >= lead] + [j for j in b if j >= lead]
    return [tuple(sorted([n, *(i for i, j in goes.items() if j == n)])) for n in [*range(lead), *stay]]


@pytest.mark.parametrize(
    "prefix", [(True, False, 0), (True, True, 0), (True, False, 4), (False, False, 3), (True, True, 2)]
)
@given(count=st.integers(1, 24), r=st.integers(0, 14), seed=st.integers(0, 10**6))
@FEW
def test_the_pairs_are_those_of_the_paper(prefix: tuple[bool, bool, int], count: int, r: int, seed: int) -> None:
    lead = sum(map(int, prefix))
    count += lead
    metric = tokens(2, count, 5, seed=seed)
    token_map = bipartite_soft_matching(metric, r, *prefix)
    for sample in range(2):
        wanted = paper_groups(metric[sample], r, set(range(lead)), lead)
        assert groups(token_map, sample) == (wanted if token_map.num < count else [(n,) for n in range(count)])


def test_without_class_token_sources_come_with_falling_similarity() -> None:
    metric = tokens(1, 9, 4)
    unit = torch.nn.functional.normalize(metric[0], dim=1)
    best = (unit[::2] @ unit[1::2].T).max(dim=1).values
    order = (best.argsort(descending=True)[2:] * 2).tolist()
    assert [group[0] for group in groups(bipartite_soft_matching(metric, 2))[:3]] == order


MATCHINGS = {
    "bipartite": lambda m, grid: bipartite_soft_matching(m, m.shape[1] // 3),
    "class": lambda m, grid: bipartite_soft_matching(m, 5, class_token=True),
    "distilled": lambda m, grid: bipartite_soft_matching(m, 5, class_token=True, distill_token=True),
    "registers": lambda m, grid: bipartite_soft_matching(m, 5, class_token=True, num_registers=3),
    "only_distilled": lambda m, grid: bipartite_soft_matching(m, 5, distill_token=True),
    "kth2": lambda m, grid: kth_bipartite_soft_matching(m, 2),
    "kth4": lambda m, grid: kth_bipartite_soft_matching(m, 4),
    "grid": lambda m, grid: grid_soft_matching(m, grid, m.shape[1] // 2),
    "grid3": lambda m, grid: grid_soft_matching(m, grid, 1000, (3, 2)),
    "threshold": lambda m, grid: threshold_matching(m, 0.3),
    "threshold_class": lambda m, grid: threshold_matching(m, 0.1, 4, class_token=True),
    "window": lambda m, grid: WindowTokenMerging((3, 4), 5).associate(m, grid),
}
every_matching = pytest.mark.parametrize("name", MATCHINGS)
grids = st.tuples(st.integers(1, 13), st.integers(1, 9))


@every_matching
@given(grid=grids, seed=st.integers(0, 10**6))
@FEW
def test_every_map_keeps_what_token_maps_keep(name: str, grid: tuple[int, int], seed: int) -> None:
    count = grid[0] * grid[1]
    metric, x = tokens(3, count, 4, seed=seed), tokens(3, count, 6, seed=seed + 1)
    token_map = MATCHINGS[name](metric, grid)
    generic = TokenMap(token_map.index, token_map.weight, token_map.num)
    size = torch.randint(1, 5, (3, count), generator=torch.Generator().manual_seed(seed)).float()
    assert 1 <= token_map.num <= count or name == "window"
    # Every token has its place and merging back is a copy: the unmerge that the published code gets wrong.
    assert (token_map.weight == 1).all()
    merged = token_map.reduce(x)
    restored = token_map.restore(merged)
    assert torch.equal(restored, merged.gather(1, token_map.index.expand(-1, -1, 6)))
    torch.testing.assert_close(token_map.restore(token_map.reduce(torch.ones_like(x))), torch.ones_like(x))
    # The fast paths equal the generic map.
    torch.testing.assert_close(merged, generic.reduce(x))
    torch.testing.assert_close(token_map.reduce(x, size=size), generic.reduce(x, size=size))
    torch.testing.assert_close(token_map.mass(), generic.mass())
    y, sizes, other = merge_weighted(x, token_map, size, 2 * x)
    torch.testing.assert_close(y, generic.reduce(x, size=size))
    torch.testing.assert_close(other, 2 * y)
    assert torch.equal(sizes.sum(dim=1), size.sum(dim=1)), "tokens got lost"
    assert torch.equal(token_map.mass().sum(dim=1), torch.full((3,), float(count)))
    # Adjointness.
    left = (token_map.mass().unsqueeze(-1) * token_map.reduce(x) * merged).sum()
    torch.testing.assert_close(left, (x * token_map.restore(merged)).sum(), rtol=1e-4, atol=1e-4)


@every_matching
def test_a_sample_does_not_depend_on_its_batch_mates(name: str) -> None:
    metric, x, grid = tokens(4, 35, 4), tokens(4, 35, 6, seed=1), (5, 7)
    metric[2], x[3] = torch.nan, torch.nan
    together = MATCHINGS[name](metric, grid)
    for i in (0, 1):
        alone = MATCHINGS[name](metric[i : i + 1], grid)
        assert torch.equal(together.hard()[i], alone.hard()[0])
        torch.testing.assert_close(together.reduce(x)[i, : alone.num], alone.reduce(x[i : i + 1])[0])


@every_matching
def test_matching_draws_nothing_and_has_no_gradient(name: str) -> None:
    metric = tokens(2, 35, 4).requires_grad_()
    state = torch.get_rng_state()
    token_map = MATCHINGS[name](metric, (5, 7))
    assert torch.equal(torch.get_rng_state(), state)
    assert not token_map.weight.requires_grad
    x = tokens(2, 35, 6).requires_grad_()
    token_map.reduce(x).square().sum().backward()
    assert (x.grad.abs().sum(dim=2) > 0).all()


@given(first=st.integers(1, 12), second=st.integers(1, 12), distilled=st.booleans(), seed=st.integers(0, 10**6))
@FEW
def test_two_steps_equal_their_composition(first: int, second: int, distilled: bool, seed: int) -> None:
    x = tokens(2, 31, 5, seed=seed)
    one = bipartite_soft_matching(tokens(2, 31, 4, seed=seed), first, True, distilled)
    y, size = merge_weighted(x, one)
    two = bipartite_soft_matching(tokens(2, one.num, 4, seed=seed + 1), second, True, distilled)
    z, size = merge_weighted(y, two, size)
    both = one.then(two)
    torch.testing.assert_close(both.reduce(x), z)
    assert torch.equal(both.mass(), size)
    assert torch.equal(both.restore(z), one.restore(two.restore(z)))
    assert (both.hard()[:, : 1 + distilled] == torch.arange(1 + distilled)).all(), "leading tokens stay in front"


@given(count=st.integers(1, 23), k=st.integers(2, 9), seed=st.integers(0, 10**6))
@FEW
def test_every_kth(count: int, k: int, seed: int) -> None:
    metric = tokens(1, count, 4, seed=seed)
    token_map = kth_bipartite_soft_matching(metric, k)
    unit = torch.nn.functional.normalize(metric[0], dim=1)
    centres = list(range(k - 1, count, k)) or [count - 1]
    wanted = [centres[int((unit[n] @ unit[centres].T).argmax())] if n not in centres else n for n in range(count)]
    assert [centres[m] for m in token_map.hard()[0].tolist()] == wanted
    dropped = kth_bipartite_soft_matching(metric, k, remainder="drop")
    whole = count // k * k or count
    assert dropped.weight[0, :, 0].tolist() == [1.0] * whole + [0.0] * (count - whole)
    assert torch.equal(dropped.hard()[0, :whole], token_map.hard()[0, :whole])


@pytest.mark.parametrize("grid, stride", [((7, 13), (2, 2)), ((1, 5), (2, 2)), ((15, 16), (2, 2)), ((5, 5), (3, 2))])
def test_grid_cells_on_odd_grids(grid: tuple[int, int], stride: tuple[int, int]) -> None:
    """tomesd#8: sizes that no stride divides."""
    count = grid[0] * grid[1]
    token_map = grid_soft_matching(tokens(2, count, 4), grid, count, stride)
    fixed = [i * grid[1] + j for i in range(0, grid[0], stride[0]) for j in range(0, grid[1], stride[1])]
    assert token_map.num == len(fixed) and sorted(token_map.kept[0].tolist()) == fixed
    assert token_map.restore(token_map.reduce(tokens(2, count, 3))).shape == (2, count, 3)


@given(count=st.integers(2, 30), threshold=st.floats(-1, 1), seed=st.integers(0, 10**6))
@FEW
def test_a_threshold_merges_exactly_the_pairs_above_it(count: int, threshold: float, seed: int) -> None:
    metric = tokens(3, count, 3, seed=seed)
    token_map = threshold_matching(metric, threshold, class_token=True)
    unit = torch.nn.functional.normalize(metric, dim=2)
    for i in range(3):
        scores = unit[i, 2::2] @ unit[i, 1::2].T
        best = scores.max(dim=1).values if scores.shape[0] else torch.zeros(0)
        assert (token_map.mass()[i] > 0).sum() == count - int((best > threshold).sum())
    strongest = (
        min(int((unit[i, 2::2] @ unit[i, 1::2].T).amax(dim=1).gt(threshold).sum()) for i in range(3))
        if count > 2
        else 0
    )
    assert token_map.num == count - strongest


def test_threshold_ends() -> None:
    metric = tokens(2, 20, 3)
    assert threshold_matching(metric, 1.0).num == 20
    assert threshold_matching(torch.ones(2, 20, 3), 1.0).num == 20
    assert threshold_matching(torch.ones(2, 20, 3), 0.99).num == 10
    everything = threshold_matching(metric, -1.0, 4, class_token=True)
    assert torch.equal(everything.hard(), bipartite_soft_matching(metric, 4, class_token=True).hard())


def test_zero_and_equal_tokens_give_finite_and_repeatable_maps() -> None:
    for x in (torch.zeros(2, 16, 4), torch.ones(2, 16, 4)):
        token_map = bipartite_soft_matching(x, 5)
        assert torch.equal(token_map.hard(), bipartite_soft_matching(x, 5).hard())
        assert token_map.kept.shape[1] == 11 and (token_map.reduce(x) == x[:, :11]).all()


@given(
    grid=grids, window=st.tuples(st.integers(1, 5), st.integers(1, 5)), r=st.integers(0, 12), seed=st.integers(0, 99)
)
@FEW
def test_every_window_merges_the_same_number(grid: tuple[int, int], window: tuple[int, int], r: int, seed: int) -> None:
    metric = tokens(2, grid[0] * grid[1], 4, seed=seed)
    token_map = WindowTokenMerging(window, r).associate(metric, grid)
    places = window[0] * window[1]
    left = places - min(r, places // 2)
    rows, cols = -(-grid[0] // window[0]), -(-grid[1] // window[1])
    assert token_map.num == rows * cols * left
    index = token_map.hard().view(2, *grid)
    for row in range(rows):
        for col in range(cols):
            cut = (
                slice(None),
                slice(row * window[0], (row + 1) * window[0]),
                slice(col * window[1], (col + 1) * window[1]),
            )
            part = index[cut].flatten(1)
            first = (row * cols + col) * left
            assert part.min() >= first and part.max() < first + left, "a token left its window"
            for sample in range(2):
                assert len(part[sample].unique()) == min(left, part.shape[1])
            if part.shape[1] == places:  # whole windows: as each alone
                alone = bipartite_soft_matching(metric.view(2, *grid, 4)[cut].flatten(1, 2), r, class_token=False)
                pairs = (part.unsqueeze(1) == part.unsqueeze(2), alone.hard().unsqueeze(1) == alone.hard().unsqueeze(2))
                assert torch.equal(*pairs)


@pytest.mark.parametrize("mode", ["sum", "mean", "amax"])
def test_modes_of_merging(mode: str) -> None:
    x, token_map = tokens(2, 11, 3), kth_bipartite_soft_matching(tokens(2, 11, 4), 3, remainder="drop")
    for sample in range(2):
        for m, members in enumerate(groups(token_map, sample)):
            part = x[sample, list(members)]
            wanted = dict(sum=part.sum(0), mean=part.mean(0), amax=part.amax(0))[mode]
            torch.testing.assert_close(merge(x, token_map, mode)[sample, m], wanted)


def test_half_precision_merges_in_float32() -> None:
    x, token_map = tokens(2, 40, 8), bipartite_soft_matching(tokens(2, 40, 4), 20)
    got, size = merge_weighted(x.bfloat16(), token_map)
    assert got.dtype == torch.bfloat16 and size.dtype == torch.float32
    torch.testing.assert_close(got, merge_weighted(x.bfloat16().float(), token_map)[0].bfloat16())
    assert isinstance(token_map, MergeMap)


def test_schedules() -> None:
    assert merge_schedule(13, 3) == [13, 13, 13]
    assert merge_schedule([3, 1], 4) == [3, 1, 0, 0]
    assert merge_schedule((13, -1), 12) == [26, 23, 21, 18, 16, 14, 11, 9, 7, 4, 2, 0]
    assert merge_schedule((8, 0.0), 3) == [8, 8, 8]
    assert merge_schedule((4, 1.0), 5) == [0, 2, 4, 6, 8]
    assert merge_schedule((8, -1), 1) == [16]
    assert merge_schedule([13, -1], 12) == merge_schedule((13, -1), 12)
    numpy = merge_schedule(np.int64(3), 2) + merge_schedule([np.int32(2)], 2) + merge_schedule((np.int64(4), -1), 2)
    assert numpy == [3, 3, 2, 0, 8, 0] and {type(n) for n in numpy} == {int}


@pytest.mark.parametrize(
    "r", [-1, [1, 2, 3, 4], (8, 2), (-1, 0.5), [1, -2, 3], "8", True, [1, True], 1.5, None], ids=str
)
def test_illegal_schedules(r: object) -> None:
    with pytest.raises(ValueError, match="r must|inflection"):
        merge_schedule(r, 3)


@pytest.mark.parametrize(
    "changes",
    [dict(mode="x"), dict(r=-1), dict(r=1.0), dict(r=True), dict(k=1), dict(stride=(0, 1)), dict(threshold=2)],
    ids=str,
)
def test_the_reducer_refuses(changes: dict) -> None:
    with pytest.raises(ValueError, match=r"expected|must be"):
        MODELS.build(dict(type="mmvit_plugins.TokenMerging") | changes)


@pytest.mark.parametrize("mode", TokenMerging.MODES)
def test_the_reducer_reduces_and_restores(mode: str) -> None:
    reducer = MODELS.build(dict(type="mmvit_plugins.TokenMerging", mode=mode, r=0.5, threshold=0.5))
    x = tokens(2, 35, 8)
    y, token_map = reducer.reduce(x, (5, 7))
    assert y.shape == (2, token_map.num, 8) and token_map.num < 35
    assert reducer.restore(y, token_map).shape == x.shape
    with pytest.raises(ValueError, match="grid"):
        reducer.reduce(x, (5, 8))


@pytest.mark.parametrize("changes", [dict(window=0), dict(window=(3,)), dict(r=-1), dict(r=1.0)], ids=str)
def test_the_window_reducer_refuses(changes: dict) -> None:
    with pytest.raises(ValueError, match=r"window must|r must"):
        WindowTokenMerging(**changes)
