"""TokenReductionNeck with every registered reducer: same maps out, identity at the start, places that are dropped."""

from __future__ import annotations

import copy
import doctest
import inspect
import pickle
from typing import Any

import pytest
import torch
from hosts import require_host
from torch import Tensor, nn

from mmvit_plugins.models import TokenReducer, TokenReductionNeck
from mmvit_plugins.registry import MODELS

CHANNELS, GRIDS = (8, 12, 16), ((9, 14), (5, 7), (3, 4))
#: Small settings of the reducers that need any; all others run with their defaults.
SETTINGS: dict[str, dict[str, Any]] = {
    "ContextClusters": dict(regions=2, centres=2),
    "PerceiverLatents": dict(num_latents=3, depth=1, num_heads=2, head_dim=4),
    "SuperTokens": dict(cell=3),
    "WindowPruning": dict(window=3),
    "WindowTokenMerging": dict(window=4),
}
REDUCERS = {
    name: cls for name, cls in MODELS.module_dict.items() if inspect.isclass(cls) and issubclass(cls, TokenReducer)
}
RESTORABLE = sorted(name for name, cls in REDUCERS.items() if cls.restorable)
every_reducer = pytest.mark.parametrize("name", RESTORABLE)
both_ways = pytest.mark.parametrize("cross_level", [False, True], ids=["per level", "cross level"])


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def maps(batch: int = 2, grids: tuple = GRIDS) -> tuple[Tensor, ...]:
    return tuple(numbers(batch, c, *g, seed=i) for i, (c, g) in enumerate(zip(CHANNELS, grids, strict=True)))


def reducer(name: str) -> dict[str, Any]:
    return dict(type=f"mmvit_plugins.{name}", **SETTINGS.get(name, {}))


def build(name: str, trained: bool = True, **changes: Any) -> TokenReductionNeck:
    torch.manual_seed(1)
    settings = dict(in_channels=CHANNELS, reducer=reducer(name), embed_dims=16, num_heads=2)
    neck = MODELS.build(dict(type="mmvit_plugins.TokenReductionNeck") | settings | changes).eval()
    if trained:
        for parameter in neck.parameters():
            nn.init.normal_(parameter, std=0.3)
    return neck


def test_the_registry_has_the_reducers_of_the_design() -> None:
    wanted = {"SuperTokens", "ContextClusters", "TokenMerging", "WindowPruning", "QuadtreeReducer", "PerceiverLatents"}
    assert wanted <= set(REDUCERS)


@every_reducer
@both_ways
def test_maps_come_out_as_they_went_in(name: str, cross_level: bool) -> None:
    x = maps()
    plain = build(name, trained=False, cross_level=cross_level)
    plain.init_weights()
    assert plain.to_tokens[0].weight.abs().max() > 0
    for a, b in zip(plain(x), x, strict=True):
        assert torch.equal(a, b), "identity at the start"
    before = [m.clone() for m in x]
    out = build(name, cross_level=cross_level)(x)
    assert isinstance(out, tuple) and len(out) == 3
    for a, b, kept in zip(out, x, before, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype and a.isfinite().all()
        assert not torch.equal(a, b) and torch.equal(b, kept)


@every_reducer
@pytest.mark.parametrize("grids", [((1, 1), (1, 1), (1, 1)), ((2, 1), (1, 1), (1, 1)), ((16, 8), (8, 4), (4, 2))])
def test_maps_of_any_size(name: str, grids: tuple) -> None:
    x = maps(1, grids)
    for a, b in zip(build(name, cross_level=True)(x), x, strict=True):
        assert a.shape == b.shape and a.isfinite().all()


@every_reducer
def test_levels_see_each_other_only_across_levels(name: str) -> None:
    x = maps()
    other = (x[0], x[1] * 2 + 1, x[2])
    for cross_level in (False, True):
        neck = build(name, cross_level=cross_level)
        first, second = neck(x), neck(other)
        for i in (0, 2):
            assert torch.equal(first[i], second[i]) != cross_level


@every_reducer
def test_what_is_added_comes_back_through_the_reducers_map(name: str) -> None:
    """Tokens of one group get the same; a place that is dropped keeps its value."""
    neck, x = build(name), maps()
    tokens = neck.norms[0](x[0].flatten(2).transpose(1, 2))
    token_map = neck.reducers[0].associate(tokens, GRIDS[0])
    added = (neck(x)[0] - x[0]).flatten(2).transpose(1, 2)
    dropped = token_map.weight.sum(dim=2) <= 0
    assert (added[dropped] == 0).all()
    assert (added[~dropped].abs().amax(dim=-1) > 0).all()
    if token_map.index.shape[2] == 1:
        share = added / token_map.weight.clamp_min(1e-6)
        for b in range(2):
            group = token_map.index[b, :, 0]
            for m in group.unique():
                mine = share[b][(group == m) & ~dropped[b]]
                torch.testing.assert_close(mine, mine[:1].expand_as(mine), rtol=1e-3, atol=1e-4)


@every_reducer
def test_a_sample_does_not_depend_on_its_batch_mates(name: str) -> None:
    neck, x = build(name, cross_level=True), maps(3)
    together = neck(x)
    for i in range(3):
        for a, b in zip(neck(tuple(m[i : i + 1] for m in x)), together, strict=True):
            torch.testing.assert_close(a, b[i : i + 1], rtol=1e-4, atol=1e-4)


@every_reducer
@both_ways
def test_every_parameter_has_a_gradient_and_checkpointing_keeps_it(name: str, cross_level: bool) -> None:
    grads = []
    for with_cp in (False, True):
        neck = build(name, cross_level=cross_level, with_cp=with_cp, depth=2).train()
        sum(y.square().mean() for y in neck(maps())).backward()
        assert not [n for n, p in neck.named_parameters() if p.grad is None], "DDP would wait for these"
        grads.append({n: p.grad for n, p in neck.named_parameters()})
    for n, grad in grads[0].items():
        assert grad.isfinite().all()
        torch.testing.assert_close(grads[1][n], grad, rtol=1e-4, atol=1e-6)


@every_reducer
def test_bfloat16_autocast_and_copies(name: str) -> None:
    neck, x = build(name, cross_level=True), maps()
    wanted = neck(x)
    for other in (copy.deepcopy(neck), pickle.loads(pickle.dumps(neck))):
        assert all(torch.equal(a, b) for a, b in zip(other(x), wanted, strict=True))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = neck(x)
    for a, b in zip(got, wanted, strict=True):
        assert a.dtype == torch.float32 and a.isfinite().all()
        assert (a - b).norm() / b.norm() < 0.1


def test_empty_tokens_take_no_part() -> None:
    """A reduced token that no place belongs to is seen by nobody: clusters whose centre attracts no point."""
    neck = build("ContextClusters", in_channels=CHANNELS[:1])
    x = numbers(1, 8, 1, 1)  # one place, four centres in its region
    level = neck._reduce(0, x)
    assert (level.size > 0).sum() == 1 and level.tokens.shape[1] == 4
    full = neck._mix([level])[0]
    alone = neck._mix([level._replace(tokens=level.tokens[:, :1], size=level.size[:, :1])])[0]
    torch.testing.assert_close(full[:, :1], alone)


def test_levels_can_be_left_alone_and_reducers_differ() -> None:
    neck = build("SuperTokens", reducer=[None, reducer("TokenMerging"), reducer("ContextClusters")], cross_level=True)
    x = maps()
    out = neck(x)
    assert out[0] is x[0] and not torch.equal(out[1], x[1]) and not torch.equal(out[2], x[2])


@pytest.mark.parametrize("name", sorted(REDUCERS))
def test_tokens_and_pooled_tokens_for_classification(name: str) -> None:
    x = maps()
    for cross_level, count in ((False, 3), (True, 1)):
        tokens = build(name, cross_level=cross_level, output="tokens")(x)
        pooled = build(name, cross_level=cross_level, output="pooled")(x)
        assert len(tokens) == len(pooled) == count
        for z, p in zip(tokens, pooled, strict=True):
            assert z.dim() == 3 and z.shape[::2] == (2, 16) and p.shape == (2, 16)
    places = sum(h * w for h, w in GRIDS)
    if name not in ("EqualGroups", "ContextClusters"):  # one sorts, the other has four centres even for a 3 x 4 map
        assert tokens[0].shape[1] < places
    if name == "TokenMerging":  # the mean over places: what restoring and pooling would give
        neck = build(name, output="tokens", in_channels=CHANNELS[:1])
        level, (z,) = neck._reduce(0, x[0]), neck(x[:1])
        neck.output = "pooled"
        torch.testing.assert_close(neck(x[:1])[0], level.token_map.restore(z).mean(dim=1))


def test_pooling_a_level_that_keeps_nothing_gives_zeros() -> None:
    """Half of a single window is none."""
    config = dict(type="mmvit_plugins.WindowPruning", window=7)
    neck = MODELS.build(
        dict(type="mmvit_plugins.TokenReductionNeck", in_channels=[8, 16], reducer=config, embed_dims=16, num_heads=2)
        | dict(output="pooled")
    )
    first, second = neck((numbers(2, 8, 14, 14), numbers(2, 16, 7, 7)))
    assert torch.equal(second, torch.zeros(2, 16)) and first.isfinite().all() and first.any()


def test_feeds_the_linear_head_of_mmpretrain() -> None:
    require_host("mmpretrain")
    from mmengine.registry import DefaultScope
    from mmpretrain.registry import MODELS as HOST

    with DefaultScope.overwrite_default_scope("mmpretrain"):
        model = HOST.build(
            dict(
                type="ImageClassifier",
                backbone=dict(type="mmvit_plugins.ContextCluster", arch="mini", out_indices=(2, 3)),
                neck=dict(
                    type="mmvit_plugins.TokenReductionNeck",
                    in_channels=[96, 128],
                    reducer=reducer("PerceiverLatents"),
                    cross_level=True,
                    embed_dims=32,
                    output="pooled",
                ),
                head=dict(type="LinearClsHead", in_channels=32, num_classes=5),
            )
        ).eval()
    with torch.no_grad():
        assert model.head(model.extract_feat(numbers(2, 3, 64, 48))).shape == (2, 5)


@pytest.mark.parametrize(
    "changes, said",
    [
        (dict(in_channels=[]), "in_channels"),
        (dict(reducer="SuperTokens"), "SuperTokens"),
        (dict(reducer=[reducer("SuperTokens")]), "3 levels"),
        (dict(reducer=[None, None, None]), "None"),
        (dict(reducer=dict(type="mmvit_plugins.STViT")), "mmvit_plugins.SuperTokens"),
        (dict(reducer=reducer("PerceiverLatents")), "no way back"),
        (dict(depth=0), "depth"),
        (dict(drop_path_rate=1.0), "drop_path_rate"),
        (dict(output="map"), "output"),
        (dict(num_heads=3), "num_heads"),
    ],
    ids=str,
)
def test_illegal_arguments_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        build("SuperTokens", **changes)


@pytest.mark.parametrize("inputs", [maps()[:2], maps()[::-1], maps()[0]], ids=["two maps", "other order", "a tensor"])
def test_other_inputs_are_refused(inputs: Any) -> None:
    with pytest.raises(ValueError, match="TokenReductionNeck takes"):
        build("SuperTokens")(inputs)


def test_the_docstring_example_runs() -> None:
    (example,) = [t for t in doctest.DocTestFinder(recurse=False).find(TokenReductionNeck) if t.examples]
    result = doctest.DocTestRunner().run(example)
    assert result.attempted >= 4 and result.failed == 0
