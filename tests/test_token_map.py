"""Invariants of TokenMap on random maps, against dense matrices."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mmvit_plugins.models.token_reduction import SuperTokens, TokenMap

SIZES = st.integers(1, 9)


def random_map(seed: int, batch: int, count: int, num: int, k: int, normalise: bool = False) -> TokenMap:
    """A random map in float64; some weights are 0."""
    g = torch.Generator().manual_seed(seed)
    index = torch.stack([torch.randperm(num, generator=g)[:k] for _ in range(batch * count)]).view(batch, count, k)
    weight = torch.rand(batch, count, k, generator=g, dtype=torch.float64)
    weight = weight * (torch.rand(batch, count, k, generator=g) > 0.2)
    if normalise:
        weight = (weight + 1e-3) / (weight + 1e-3).sum(-1, keepdim=True)
    return TokenMap(index, weight, num)


def dense(token_map: TokenMap) -> Tensor:
    """W as a (B, N, M) matrix."""
    batch, count, _ = token_map.index.shape
    return torch.zeros(batch, count, token_map.num, dtype=token_map.weight.dtype).scatter_add(
        2, token_map.index, token_map.weight
    )


maps = st.builds(
    lambda seed, batch, count, num, k: random_map(seed, batch, count, num, min(k, num)),
    st.integers(0, 10**6),
    st.integers(1, 3),
    SIZES,
    SIZES,
    st.integers(1, 4),
)


def tokens(token_map: TokenMap, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Random (B, N, 3) and (B, M, 3) in float64."""
    g = torch.Generator().manual_seed(seed)
    batch, count, _ = token_map.index.shape
    shapes = ((batch, count, 3), (batch, token_map.num, 3))
    return tuple(torch.randn(*shape, generator=g, dtype=torch.float64) for shape in shapes)


@given(maps)
@settings(max_examples=60, deadline=None)
def test_products_equal_those_of_the_dense_matrix(token_map: TokenMap) -> None:
    x, y = tokens(token_map)
    w = dense(token_map)
    mass = w.sum(1)
    torch.testing.assert_close(token_map.mass(), mass)
    expected = torch.where(mass[..., None] > 0, w.transpose(1, 2) @ x / mass.clamp_min(1e-300)[..., None], 0)
    torch.testing.assert_close(token_map.reduce(x), expected)
    torch.testing.assert_close(token_map.restore(y), w @ y)
    prior = y + 1
    torch.testing.assert_close(token_map.reduce(x, prior), (w.transpose(1, 2) @ x + prior) / (mass + 1)[..., None])


@given(maps)
@settings(max_examples=60, deadline=None)
def test_total_mass_adjointness_and_base(token_map: TokenMap) -> None:
    x, y = tokens(token_map)
    torch.testing.assert_close(token_map.mass().sum(1), token_map.weight.sum((1, 2)))
    left = (token_map.mass().unsqueeze(-1) * token_map.reduce(x) * y).sum()
    torch.testing.assert_close(left, (x * token_map.restore(y)).sum())
    missing = (1 - token_map.weight.sum(-1, keepdim=True)).clamp_min(0)
    torch.testing.assert_close(token_map.restore(y, base=x), token_map.restore(y) + missing * x)


@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_constants_survive_when_rows_sum_to_one(seed: int, count: int, num: int) -> None:
    token_map = random_map(seed, 2, count, num, min(3, num), normalise=True)
    x = torch.full((2, count, 2), 3.25, dtype=torch.float64)
    torch.testing.assert_close(token_map.restore(token_map.reduce(x)), x)


@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 6), st.integers(1, 5), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_two_steps_equal_their_composition(seed: int, count: int, middle: int, num: int, k: int) -> None:
    fine = random_map(seed, 2, count, middle, min(k, middle))
    coarse = random_map(seed + 1, 2, middle, num, min(2, num))
    both = fine.then(coarse)
    x, y = tokens(both)
    torch.testing.assert_close(dense(both), dense(fine) @ dense(coarse))
    torch.testing.assert_close(both.restore(y), fine.restore(coarse.restore(y)))
    torch.testing.assert_close(both.reduce(x), coarse.reduce(fine.reduce(x), size=fine.mass()))


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), 1e300])
def test_values_of_weightless_tokens_do_not_matter(garbage: float) -> None:
    token_map = random_map(3, 2, 6, 4, 2)
    weight = token_map.weight.clone()
    weight[:, 2] = 0
    token_map = TokenMap(token_map.index, weight, 4)
    x, _ = tokens(token_map)
    dirty = x.clone()
    dirty[:, 2] = garbage
    dirty.requires_grad_()
    assert torch.equal(token_map.reduce(dirty), token_map.reduce(x))
    token_map.reduce(dirty).sum().backward()
    assert torch.equal(dirty.grad[:, 2], torch.zeros(2, 3, dtype=torch.float64))
    assert dirty.grad.isfinite().all()


def test_identity_changes_nothing_and_hard_is_the_argmax() -> None:
    x = torch.randn(2, 5, 3)
    same = TokenMap.identity(2, 5, like=x)
    assert torch.equal(same.reduce(x), x) and torch.equal(same.restore(x), x)
    token_map = TokenMap(torch.tensor([[[4, 1], [0, 2]]]), torch.tensor([[[0.1, 0.7], [0.6, 0.5]]]), 5)
    assert token_map.hard().tolist() == [[1, 0]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_sums_in_float32(dtype: torch.dtype) -> None:
    """4096 tokens in one group: a half precision sum would stop growing long before the end."""
    token_map = TokenMap(torch.zeros(1, 4096, 1, dtype=torch.long), torch.ones(1, 4096, 1, dtype=dtype), 1)
    out = token_map.reduce(torch.full((1, 4096, 2), 3.0, dtype=dtype))
    assert out.dtype == dtype and torch.equal(out, torch.full((1, 1, 2), 3.0, dtype=dtype))


def test_errors_name_the_shapes() -> None:
    token_map = random_map(0, 1, 6, 3, 1)
    with pytest.raises(ValueError, match=r"\(B, 6, C\).*\(1, 5, 2\)"):
        token_map.reduce(torch.zeros(1, 5, 2))
    with pytest.raises(ValueError, match=r"\(B, 3, C\)"):
        token_map.restore(torch.zeros(1, 6, 2))
    with pytest.raises(ValueError, match="3 reduced tokens.*takes 4"):
        token_map.then(random_map(0, 1, 4, 2, 1))
    with pytest.raises(ValueError, match=r"\(B, N, K\)"):
        TokenMap(torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 3), 1)
    with pytest.raises(ValueError, match=r"needs the grid \(H, W\)"):
        SuperTokens(2).reduce(torch.zeros(1, 6, 2), None)
    with pytest.raises(ValueError, match=r"\(B, 12, C\)"):
        SuperTokens(2).reduce(torch.zeros(1, 6, 2), (3, 4))


def test_a_map_to_no_tokens_at_all_where_nothing_was_kept() -> None:
    """Pruning may keep no window: every token has weight 0 and only ``base`` remains."""
    nothing = TokenMap(torch.zeros(2, 5, 1, dtype=torch.long), torch.zeros(2, 5, 1), 0)
    x = torch.rand(2, 5, 3)
    assert nothing.reduce(x).shape == (2, 0, 3) and nothing.mass().shape == (2, 0)
    assert torch.equal(nothing.restore(x[:, :0]), torch.zeros(2, 5, 3))
    assert torch.equal(nothing.restore(x[:, :0], base=x), x)
