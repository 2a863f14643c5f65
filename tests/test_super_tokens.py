"""Super tokens against a plain loop over tokens and cells, in float64, and against the generic TokenMap."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.stvit import ReferenceSTViT
from torch import Tensor

from mmvit_plugins.models import STViT
from mmvit_plugins.models.backbones.stvit_weights import convert_stvit
from mmvit_plugins.models.layers import ConvFFN
from mmvit_plugins.models.token_reduction import SuperTokenMap, SuperTokens, TokenMap
from mmvit_plugins.models.token_reduction.super_tokens import gather_neighbours, scatter_neighbours, to_cells


def loop_reference(
    x: Tensor, grid: tuple[int, int], cell: tuple[int, int], n_iter: int, border: str
) -> tuple[Tensor, Tensor]:
    """One image (N, C), token by token: super tokens (M, C) and W (N, M)."""
    (height, width), (h, w) = grid, cell
    rows, cols = -(-height // h), -(-width // w)
    dim = x.shape[1]
    masked = border == "masked"
    # Every position of the padded grid: (row, col, value or None for padding)
    positions = [
        (r, c, x[r * width + c] if r < height and c < width else None) for r in range(rows * h) for c in range(cols * w)
    ]
    centres = torch.zeros(rows, cols, dim, dtype=x.dtype)
    count = torch.zeros(rows, cols, dtype=x.dtype)
    for r, c, value in positions:
        if value is not None:
            centres[r // h, c // w] += value
        if value is not None or not masked:
            count[r // h, c // w] += 1
    centres = centres / count.clamp_min(1)[..., None]
    for _ in range(n_iter):
        total, mass = torch.zeros_like(centres), torch.zeros_like(count)
        matrix = torch.zeros(height * width, rows * cols, dtype=x.dtype)
        for r, c, value in positions:
            if value is None and masked:
                continue
            token = torch.zeros(dim, dtype=x.dtype) if value is None else value
            near = [(r // h + i, c // w + j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
            inside = [0 <= i < rows and 0 <= j < cols for i, j in near]
            logits = torch.stack(
                [
                    token @ centres[i, j] * dim**-0.5 if ok else torch.tensor(-torch.inf if masked else 0.0).to(x)
                    for (i, j), ok in zip(near, inside, strict=True)
                ]
            )
            for (i, j), ok, share in zip(near, inside, logits.softmax(0), strict=True):
                if ok:
                    total[i, j] += share * token
                    mass[i, j] += share
                    if value is not None:
                        matrix[r * width + c, i * cols + j] += share
        centres = torch.where(mass[..., None] > 0, total / mass.clamp_min(1e-300)[..., None], 0)
    return centres.view(rows * cols, dim), matrix


@given(
    st.tuples(st.integers(1, 7), st.integers(1, 7)),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.integers(1, 3),
    st.sampled_from(["published", "masked"]),
    st.integers(0, 10**6),
)
@settings(max_examples=40, deadline=None)
def test_equal_to_the_loop(grid: tuple[int, int], cell: tuple[int, int], n_iter: int, border: str, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(2, grid[0] * grid[1], 3, generator=g, dtype=torch.float64) * 2
    sampler = SuperTokens(cell, n_iter, border)
    y, token_map = sampler.reduce(x, grid)
    mixed = torch.randn(y.shape, generator=g, dtype=torch.float64)
    restored = sampler.restore(mixed, token_map)
    for b in range(2):
        centres, matrix = loop_reference(x[b], grid, cell, n_iter, border)
        torch.testing.assert_close(y[b], centres, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(restored[b], matrix @ mixed[b], rtol=1e-12, atol=1e-13)


def generic(token_map: SuperTokenMap) -> TokenMap:
    return TokenMap(token_map.index, token_map.weight, token_map.num)


@given(
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.integers(0, 10**6),
)
@settings(max_examples=40, deadline=None)
def test_fast_map_equals_the_generic_one(grid: tuple[int, int], cell: tuple[int, int], seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(2, grid[0] * grid[1], 3, generator=g, dtype=torch.float64)
    for border in ("published", "masked"):
        token_map = SuperTokens(cell, border=border).associate(x, grid)
        slow = generic(token_map)
        y = torch.randn(2, token_map.num, 3, generator=g, dtype=torch.float64)
        base = torch.randn_like(x)
        torch.testing.assert_close(token_map.restore(y), slow.restore(y))
        torch.testing.assert_close(token_map.restore(y, base), slow.restore(y, base))
        padded = (grid[0] % cell[0], grid[1] % cell[1]) != (0, 0)
        if border == "masked" or not padded:
            torch.testing.assert_close(token_map.mass(), slow.mass())
            torch.testing.assert_close(token_map.reduce(x), slow.reduce(x))
            torch.testing.assert_close(token_map.reduce(x, prior=y), slow.reduce(x, prior=y))
        if border == "masked":
            ones = torch.ones(2, x.shape[1], dtype=torch.float64)
            torch.testing.assert_close(token_map.weight.sum(-1), ones)
            constant = torch.full_like(x, 1.5)
            torch.testing.assert_close(token_map.restore(token_map.reduce(constant)), constant)
        left = (token_map.mass().unsqueeze(-1) * token_map.reduce(x) * y).sum()
        torch.testing.assert_close(left, (x * token_map.restore(y)).sum())


def test_gather_and_scatter_are_adjoint() -> None:
    s = torch.randn(2, 12, 5, dtype=torch.float64)
    t = torch.randn(2, 12, 9, 5, dtype=torch.float64)
    left, right = (gather_neighbours(s, (3, 4)) * t).sum(), (s * scatter_neighbours(t, (3, 4))).sum()
    torch.testing.assert_close(left, right)


def test_published_border_loses_the_share_of_missing_neighbours() -> None:
    """Equal tokens: all logits inside equal, those outside 0, so a corner keeps 4 e^l / (4 e^l + 5)."""
    x = torch.ones(1, 16, 4)
    token_map = SuperTokens(2).associate(x, (4, 4))
    e = torch.tensor(4 * 4**-0.5).exp()
    assert torch.allclose(token_map.weight.sum(-1), 4 * e / (4 * e + 5))


def test_cells_cut_and_pad() -> None:
    x = torch.arange(6.0).view(1, 6, 1)
    assert to_cells(x, (2, 3), (2, 2))[0, :, :, 0].tolist() == [[0, 1, 3, 4], [2, 0, 5, 0]]


def test_association_has_no_gradient_but_the_sums_do() -> None:
    x = torch.randn(1, 16, 4, dtype=torch.float64, requires_grad=True)
    sampler = SuperTokens(2)
    y, token_map = sampler.reduce(x, (4, 4))
    assert not token_map.affinity.requires_grad
    grad = torch.randn_like(y)
    y.backward(grad)
    torch.testing.assert_close(x.grad, token_map.restore(grad / token_map.mass().unsqueeze(-1)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e3])
def test_half_precision_is_finite_and_close(dtype: torch.dtype, scale: float) -> None:
    x = (torch.randn(1, 64, 8) * scale).to(dtype)
    half, _ = SuperTokens(4).reduce(x, (8, 8))
    full, _ = SuperTokens(4).reduce(x.float(), (8, 8))
    assert half.dtype == dtype
    torch.testing.assert_close(half.float(), full, rtol=1e-2, atol=1e-2 * max(scale, 1e-6))


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(cell=0), "cell must be at least 1"),
        (dict(cell=(2, 3, 4)), r"or \(h, w\), got \(2, 3, 4\)"),
        (dict(cell=2.0), r"cell must be .*got 2\.0"),
        (dict(n_iter=0), "n_iter must be at least 1, got 0"),
        (dict(border="zero"), "'published', 'masked'.*'zero'"),
    ],
)
def test_illegal_arguments(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SuperTokens(**arguments)


@pytest.mark.parametrize("size, n_iter, scale", [((64, 32), 1, 0), ((50, 41), 2, 0.3), ((9, 70), 1, 0.3)])
def test_model_equals_the_reference_in_float64(size: tuple[int, int], n_iter: int, scale: float) -> None:
    """Outputs in eval, outputs and gradients in training, on sizes that need padding."""
    arch = dict(dims=(16, 24, 32, 48), depths=(2, 1, 2, 1), heads=(1, 2, 2, 3), cells=(8, 4, 2, 1))
    arch["layer_scale"] = (0, 0, scale, scale)
    reference = ReferenceSTViT(n_iter=n_iter, **arch).double()
    for name, tensor in reference.state_dict().items():
        if name.endswith("running_var"):
            tensor.uniform_(0.5, 1.5)
        elif name.endswith("running_mean"):
            tensor.normal_(0, 0.1)
    model = STViT(arch=arch, n_iter=n_iter).double()
    ours = {k[9:]: v for k, v in convert_stvit(reference.state_dict()).items() if k.startswith("backbone.")}
    model.load_state_dict(ours)
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    for mode in (False, True):
        model.train(mode), reference.train(mode)
        ours, theirs = model(x), reference.forward_maps(x)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    sum((m * m).mean() for m in ours).backward()
    sum((m * m).mean() for m in theirs).backward()
    grads = {k: v.grad for k, v in reference.named_parameters() if v.grad is not None}
    expected = convert_stvit(grads)
    compared = 0
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[f"backbone.{name}"], rtol=1e-8, atol=1e-10)
        compared += 1
    assert compared == len(expected)


@pytest.mark.parametrize("grid", [(41, 64), (17, 130), (48, 33)])
def test_feed_forward_by_strips_equals_the_whole(grid: tuple[int, int]) -> None:
    """In inference large maps are computed some rows at a time."""
    ffn = ConvFFN(8, 4, dict(type="BN")).double().eval()
    ffn.norm.running_mean.normal_()
    ffn.norm.running_var.uniform_(0.5, 2)
    x = torch.randn(2, grid[0] * grid[1], 8, dtype=torch.float64)
    with torch.no_grad():
        assert ffn._strip_rows(x, grid) < grid[0]
        strips = ffn(x, grid)
    with torch.enable_grad():
        assert ffn._strip_rows(x, grid) == grid[0]
        torch.testing.assert_close(strips, ffn(x, grid).detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("norm", [dict(type="GN", num_groups=4), dict(type="BN", track_running_stats=False)])
def test_norms_of_the_whole_map_are_not_cut_into_strips(norm: dict) -> None:
    ffn, x = ConvFFN(8, 4, norm).eval(), torch.randn(1, 64 * 64, 8)
    with torch.no_grad():
        strips = ffn(x, (64, 64))
    torch.testing.assert_close(strips, ffn(x, (64, 64)).detach())


def test_hooks_keep_what_they_saw() -> None:
    """Inference writes into no tensor that a forward hook may hold."""
    model, kept = STViT(arch="mini").eval(), []
    for module in model.modules():
        module.register_forward_hook(lambda m, i, o: kept.append((o, o.clone())) if isinstance(o, Tensor) else None)
    with torch.no_grad():
        model(torch.randn(1, 3, 64, 64))
    assert len(kept) > 50 and all(torch.equal(output, copy) for output, copy in kept)


@pytest.mark.parametrize("border", ["published", "masked"])
def test_sizes_and_priors_on_padded_grids(border: str) -> None:
    """Size 1 for every token is the same as no size, padding or not; a prior is one more member."""
    x = torch.randn(2, 35, 3, dtype=torch.float64)
    token_map = SuperTokens(4, border=border).associate(x, (5, 7))
    plain = token_map.reduce(x)
    torch.testing.assert_close(token_map.reduce(x, size=torch.ones(2, 35, dtype=torch.float64)), plain)
    mass, prior = token_map.mass().unsqueeze(-1), torch.randn_like(plain)
    torch.testing.assert_close(token_map.reduce(x, prior=prior), (plain * mass + prior) / (mass + 1))


def test_autocast_does_not_lower_the_precision() -> None:
    x = torch.randn(1, 64, 8)
    token_map = SuperTokens(4).associate(x, (8, 8))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        reduced, restored = token_map.reduce(x), token_map.restore(token_map.reduce(x))
    assert torch.equal(reduced, token_map.reduce(x)) and torch.equal(restored, token_map.restore(token_map.reduce(x)))


def test_pictures_do_not_train() -> None:
    with pytest.raises(RuntimeError, match=r"call eval\(\) first"):
        STViT(arch="mini").train().token_maps(torch.zeros(1, 3, 32, 32))
