"""Context Cluster: clusters, regions of any size, and the fused block against the equations taken literally."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.context_cluster import ReferenceContextCluster
from torch import Tensor, nn

from mmvit_plugins.checkpoints import FAMILIES, OfficialPretrained, convert_official
from mmvit_plugins.models import ContextCluster, ContextClusters, Regions
from mmvit_plugins.models.backbones.context_cluster import ARCHS
from mmvit_plugins.models.layers.cluster_mixing import ClusterMixing
from mmvit_plugins.registry import MODELS

ARCH = dict(
    dims=(8, 16, 24, 32),
    depths=(2, 1, 1, 1),
    heads=(2, 2, 3, 4),
    head_dims=(8, 8, 8, 8),
    mlp_ratios=(8, 8, 4, 4),
    regions=(4, 2, 2, 1),
    centres=(2, 3, 2, 2),
)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None, max_examples=60)
@given(
    st.tuples(st.integers(1, 13), st.integers(1, 13)),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
)
def test_regions_tile_the_grid_and_centres_are_their_pools(
    grid: tuple[int, int], counts: tuple[int, int], centres: tuple[int, int]
) -> None:
    """R89: 1 x 1, 2 x 2 or 5 x 3 of them, on maps that they do not divide and on smaller ones."""
    x = numbers(2, grid[0] * grid[1], 3)
    regions = Regions.of(grid, counts, centres, x)
    points = regions.split(x)
    assert torch.equal(regions.join(points), x)
    pooled = torch.matmul(regions.pool, points)
    maps = x.view(2, *grid, 3)
    rows, cols = ([n * i // c for i in range(c + 1)] for n, c in zip(grid, regions.counts, strict=True))
    for r in range(regions.num):
        down, across = divmod(r, regions.counts[1])
        part = maps[:, rows[down] : rows[down + 1], cols[across] : cols[across + 1]]
        assert part.numel() > 0
        wanted = F.adaptive_avg_pool2d(part.permute(0, 3, 1, 2), centres).flatten(2).transpose(1, 2)
        torch.testing.assert_close(pooled[:, r], wanted)
        used = points[:, r] if regions.used is None else points[:, r][:, regions.used[r, :, 0] > 0]
        torch.testing.assert_close(used, part.reshape(2, -1, 3))


def literal_clusters(x: Tensor, grid: tuple[int, int], regions: int, centres: int, alpha: float, beta: float) -> dict:
    """Every point and cluster of one image (N, C), by loops over regions; only sizes that divide."""
    h, w = grid[0] // regions, grid[1] // regions
    index, weight, reduced = torch.empty(grid, dtype=torch.long), torch.empty(grid), []
    for i in range(regions):
        for j in range(regions):
            where = (slice(i * h, i * h + h), slice(j * w, j * w + w))
            part = x.view(*grid, -1)[where]
            pool = F.adaptive_avg_pool2d(part.permute(2, 0, 1), centres).flatten(1).T
            cosine = F.cosine_similarity(part.reshape(-1, 1, x.shape[1]), pool[None], dim=2)
            value, best = torch.sigmoid(beta + alpha * cosine).max(dim=1)
            index[where] = (best + (i * regions + j) * centres**2).view(h, w)
            weight[where] = value.view(h, w)
            for k in range(centres**2):
                mine = (best == k).float() * value
                total = pool[k] + (mine[:, None] * part.reshape(-1, x.shape[1])).sum(0)
                reduced.append(total / (1 + mine.sum()))
    return dict(index=index.flatten(), weight=weight.flatten(), reduced=torch.stack(reduced))


def test_clusters_are_those_of_the_equations() -> None:
    x = numbers(2, 48, 5)
    reducer = MODELS.build(dict(type="mmvit_plugins.ContextClusters", regions=2, centres=2))
    nn.init.constant_(reducer.alpha, -1.7)
    nn.init.constant_(reducer.beta, 0.4)
    reduced, token_map = reducer.reduce(x, (6, 8))
    assert token_map.num == 16 and token_map.index.shape == (2, 48, 1)
    for b in range(2):
        wanted = literal_clusters(x[b], (6, 8), 2, 2, -1.7, 0.4)
        assert torch.equal(token_map.index[b, :, 0], wanted["index"])
        torch.testing.assert_close(token_map.weight[b, :, 0], wanted["weight"])
        torch.testing.assert_close(reduced[b], wanted["reduced"])
    restored = reducer.restore(reduced, token_map)
    wanted = reduced.gather(1, token_map.index.expand(-1, -1, 5)) * token_map.weight
    torch.testing.assert_close(restored, wanted)


def test_equal_centres_give_the_point_to_the_first() -> None:
    _, token_map = ContextClusters(regions=1, centres=(5, 3)).reduce(torch.ones(1, 4, 2), (2, 2))
    assert token_map.num == 15 and not token_map.index.any()
    torch.testing.assert_close(token_map.weight, torch.full((1, 4, 1), torch.sigmoid(torch.tensor(1.0))))


def test_clusters_carry_gradients_to_points_and_scales() -> None:
    reducer = ContextClusters(2, 2).double()
    x = numbers(1, 24, 3).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: reducer.restore(*reducer.reduce(x, (4, 6))), (x,))
    reducer.restore(*reducer.reduce(x, (4, 6))).square().sum().backward()
    assert reducer.alpha.grad.abs() > 0 and reducer.beta.grad.abs() > 0


@pytest.mark.parametrize("name, value", [("regions", 0), ("regions", (2,)), ("centres", 1.5), ("centres", (2, -1))])
def test_illegal_sides_are_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name) as caught:
        ContextClusters(**{name: value})
    assert str(value) in str(caught.value)


@pytest.mark.parametrize("grid", [(6, 8), (7, 5)], ids=str)
def test_mixing_equals_one_reduction_for_each_head(grid: tuple[int, int]) -> None:
    """Values first, then clusters, then the projection: the reducer as oracle for the order that is fast."""
    mixing = ClusterMixing(12, 3, 4, regions=2, centres=2)
    x = numbers(2, grid[0] * grid[1], 12)
    regions = mixing.clusters.cut(grid, x)
    kept, answer = mixing(regions.split(x), regions)
    got = regions.join(torch.matmul(kept, answer)) + mixing.proj.bias
    f, v = (y.unflatten(-1, (3, 4)).permute(0, 2, 1, 3).flatten(0, 1) for y in (mixing.f(x), mixing.v(x)))
    token_map = mixing.clusters.associate(f, grid)
    prior = torch.matmul(regions.pool, regions.split(v)).flatten(1, 2)
    heads = token_map.restore(token_map.reduce(v, prior)).view(2, 3, -1, 4)
    torch.testing.assert_close(got, mixing.proj(heads.transpose(1, 2).flatten(2)), rtol=1e-4, atol=1e-5)


def pair() -> tuple[ReferenceContextCluster, ContextCluster]:
    torch.manual_seed(3)
    reference, ours = ReferenceContextCluster(**ARCH, layer_scale=0.5), ContextCluster(arch=ARCH)
    for parameter in reference.parameters():
        nn.init.normal_(parameter, std=0.3)
    state, family = convert_official(reference.state_dict())
    assert family == "context_cluster"
    ours.load_state_dict({key.removeprefix("backbone."): value for key, value in state.items()})
    return reference, ours


@pytest.mark.parametrize("train", [False, True], ids=["by parts", "whole"])
def test_backbone_equals_the_reference(train: bool) -> None:
    reference, ours = pair()
    x = numbers(2, 3, 96, 160)
    with torch.set_grad_enabled(train):
        got, wanted = ours.train(train)(x), reference.train(train).forward_maps(x)
    for a, b in zip(got, wanted, strict=True):
        assert (a - b).abs().max() < 2e-4 * b.std()
    if train:
        losses = [sum(y.square().mean() for y in maps) for maps in (got, wanted)]
        for loss in losses:
            loss.backward()
        grads = convert_official({name: p.grad for name, p in reference.named_parameters()})[0]
        for name, p in ours.named_parameters():
            wanted = grads[f"backbone.{name}"]
            assert (p.grad - wanted).abs().max() <= 2e-3 * wanted.abs().max() + 1e-6, name


def test_no_tensor_has_points_x_centres_x_channels_entries() -> None:
    model = ContextCluster(arch=dict(ARCH, centres=(7, 7, 7, 7), regions=(1, 1, 1, 1))).eval()
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, Tensor):
                largest = max(largest, out.numel())
            return out

    with torch.no_grad(), Watch():
        model(numbers(1, 3, 256, 256))
    points, centres, head_dim = 64 * 64, 49, 8
    assert largest <= 2 * points * centres < points * centres * head_dim  # similarities of two heads are the largest


@pytest.mark.parametrize("kind", ["classifier", "dense"])
def test_official_files_load_into_dense_backbones(kind: str, tmp_path: pytest.TempPathFactory) -> None:
    reference, ours = pair()
    state = dict(reference.state_dict())
    if kind == "classifier":  # one norm and a head
        norms = {key: state.pop(key) for key in [k for k in state if k.startswith("norm")]}
        state |= {f"norm.{leaf}": norms[f"norm6.{leaf}"] for leaf in ("weight", "bias")}
        state |= {"head.weight": torch.ones(5, 32), "head.bias": torch.ones(5)}
    torch.save(state, tmp_path / "official.pth")
    init_cfg = dict(type="mmvit_plugins.OfficialPretrained", checkpoint=str(tmp_path / "official.pth"))
    model = ContextCluster(arch=ARCH, init_cfg=init_cfg)
    model.init_weights()
    for key, value in ours.state_dict().items():
        fresh = kind == "classifier" and key[:8] in ("norms.0.", "norms.1.", "norms.2.")
        wanted = torch.full_like(value, float(key.endswith("weight"))) if fresh else value
        assert torch.equal(model.state_dict()[key], wanted), key
    del state["network.0.0.norm1.bias"]
    torch.save(state, tmp_path / "official.pth")
    with pytest.raises(ValueError, match="norm1.bias"):
        OfficialPretrained(str(tmp_path / "official.pth"))(model)


def test_the_converter_is_strict_and_total() -> None:
    reference, _ = pair()
    state = reference.state_dict()
    convert = FAMILIES["context_cluster"].convert
    assert len(convert(state)) == len(state)
    for wrong in ("network.0.0.extra", "network.7.proj.weight", "norm1.weight", "head.scale"):
        with pytest.raises(ValueError, match=wrong):
            convert(state | {wrong: torch.zeros(1)})


# The README's "M" is 2^20.
@pytest.mark.parametrize("arch, published", [("tiny", 5.3), ("small", 14.0), ("medium", 27.9)])
def test_parameters_are_as_published(arch: str, published: float) -> None:
    model = ContextCluster(arch=arch, out_indices=(3,))
    head = 1000 * (model.out_channels[0] + 1)
    assert round((sum(p.numel() for p in model.parameters()) + head) / 2**20, 1) == published


def test_dense_variants_differ_in_centres_only() -> None:
    for name in ("small", "medium"):
        for side in (2, 5, 7):
            assert ARCHS[f"{name}_feat{side}"] == dict(ARCHS[name], centres=(side,) * 4)


@pytest.mark.parametrize("size", [(64, 96), (75, 53)], ids=str)
def test_token_maps_say_who_mixes_with_whom(size: tuple[int, int]) -> None:
    model = ContextCluster(arch=ARCH).eval()
    maps = model.token_maps(numbers(2, 3, *size))
    assert [stage for stage, *_ in maps] == [0, 1, 2, 3]
    for stage, token_map, grid, cells in maps:
        assert grid == tuple(-(-n // (4 * 2**stage)) for n in size)
        assert token_map.index.shape == (2, grid[0] * grid[1], 1) and token_map.num == cells[0] * cells[1]
        assert (token_map.weight > 0).all() and (token_map.weight < 1).all()
        # A token's cluster is one of its own region.
        regions = model.stages[stage].blocks[-1].mixing.clusters.cut(grid, token_map.weight)
        mine = regions.split(token_map.index) // (token_map.num // regions.num)
        number = torch.arange(regions.num).view(1, -1, 1, 1)
        assert (mine == number).all()
    other = model.token_maps(numbers(2, 3, *size), head=1)
    assert not torch.equal(other[0][1].index, maps[0][1].index)
