"""Equal-size groups, and FlatFormer's encoder of sparse pillars."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import flatformer as reference
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from mmvit_plugins.checkpoints import OfficialPretrained, convert_official
from mmvit_plugins.models import EqualGroups, FlatFormer, FlatFormerEncoder, InformativeTokens, TokenMap
from mmvit_plugins.models.token_reduction.equal_groups import ORDERS, serpentine_keys
from mmvit_plugins.registry import MODELS

quick = settings(deadline=None, max_examples=30)
orders = st.sampled_from(ORDERS)
sides = st.tuples(st.integers(1, 9), st.integers(1, 9))


def sparse_batch(counts: list[int], extent: tuple[int, int], seed: int = 0) -> Tensor:
    """(N, 4) = sample, z, y, x: so many places of each sample, each once; rows of all samples shuffled."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for sample, count in enumerate(counts):
        place = torch.randperm(extent[0] * extent[1], generator=generator)[:count]
        rows.append(torch.stack([torch.full_like(place, sample), place * 0, place // extent[0], place % extent[0]], 1))
    rows = torch.cat(rows)
    return rows[torch.randperm(len(rows), generator=generator)]


def small_encoder(**changes: object) -> FlatFormerEncoder:
    arguments = dict(in_channels=16, num_heads=2, num_blocks=1, window_shape=(3, 4, 1), sparse_shape=(13, 11, 1))
    encoder = MODELS.build(dict(type="mmvit_plugins.FlatFormerEncoder", group_size=6, **(arguments | changes)))
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return encoder.eval()


# --- the order ----------------------------------------------------------------------------------------------


@quick
@given(extent=st.tuples(st.integers(1, 20), st.integers(1, 20)), window=sides, order=orders)
def test_keys_order_the_grid_as_tuples_do(
    extent: tuple[int, int], window: tuple[int, int], order: tuple[str, bool]
) -> None:
    """No two places share a key, whatever the sizes, and the order is that of the paper's formula without constants."""
    places = [(x, y) for y in range(extent[1]) for x in range(extent[0])]
    x, y = torch.tensor(places).unbind(1)
    keys = serpentine_keys(x, y, extent, window, *order)
    assert len(keys.unique()) == len(places)
    assert 0 <= keys.min() and keys.max() < EqualGroups(5, window, *order).num_keys(extent)
    assert keys.argsort().tolist() == reference.sort_sample(places, window, *order)


def test_a_window_is_passed_in_steps_of_one() -> None:
    """Serpentines: inside a window each token is next to the one before it; windows follow their neighbours."""
    x, y = torch.arange(144) % 12, torch.arange(144) // 12
    for axis in "xy":
        at = serpentine_keys(x, y, (12, 12), (4, 3), axis).argsort()
        steps = (x[at].diff().abs() + y[at].diff().abs()).view(-1)
        inside = torch.arange(1, 144) % 12 != 0
        assert (steps[inside] == 1).all()
        windows = torch.stack([x[at] // 4, y[at] // 3], 1)[::12]
        assert (windows.diff(dim=0).abs().sum(1) == 1).all()


@quick
@given(counts=st.lists(st.integers(0, 30), min_size=1, max_size=4), size=st.integers(1, 12), window=sides, order=orders)
def test_sparse_groups_are_those_of_the_loops(
    counts: list[int], size: int, window: tuple[int, int], order: tuple[str, bool]
) -> None:
    extent = (7, 5)
    coors = sparse_batch(counts, extent)
    groups = EqualGroups(size, window, *order).associate_sparse(coors[:, 3], coors[:, 2], coors[:, 0], extent, counts)
    members, places = [], {}
    for sample in range(len(counts)):
        rows = (coors[:, 0] == sample).nonzero()[:, 0]
        in_order = reference.sort_sample([(int(c[3]), int(c[2])) for c in coors[rows]], window, *order)
        for group, own in reference.groups_of_sample(in_order, size):
            places.update({int(rows[n]): len(members) * size + i for i, n in enumerate(group[:own])})
            members.append(sorted(rows[group].tolist()))
    assert groups.num == len(members) * size
    assert groups.index[0, :, 0].tolist() == [places[row] for row in range(len(coors))]
    real = torch.ones(1, groups.num, dtype=torch.bool) if groups.real is None else groups.real
    for i, group in enumerate(members):
        part = slice(i * size, (i + 1) * size)
        assert sorted(groups.source[0, part][real[0, part]].tolist()) == group


# --- the maps -----------------------------------------------------------------------------------------------


def maps_of_all_kinds() -> dict[str, TokenMap]:
    x = torch.randn(3, 35, 4, generator=torch.Generator().manual_seed(5))
    kept = InformativeTokens(0.6).associate(x)
    coors = sparse_batch([9, 0, 3, 14], (6, 6))
    sparse = EqualGroups(5, 4).associate_sparse(coors[:, 3], coors[:, 2], coors[:, 0], (6, 6), [9, 0, 3, 14])
    return dict(
        dense=EqualGroups(8, 3, "y", True).associate(x, (7, 5)),
        fewer_than_a_group=EqualGroups(64, 3).associate(x, (7, 5)),
        kept=kept,
        kept_in_groups=EqualGroups(8, 3).associate_kept(kept.source, (7, 5)),
        sparse=sparse,
    )


@pytest.mark.parametrize("kind", list(maps_of_all_kinds()))
def test_maps_agree_with_the_generic_one(kind: str) -> None:
    """A selection gives what TokenMap's products give, except that copies without mass hold a token instead of zero."""
    special = maps_of_all_kinds()[kind]
    generic = TokenMap(special.index, special.weight, special.num)
    batch, count = special.index.shape[:2]
    x, y = torch.randn(batch, count, 4), torch.randn(batch, special.num, 4)
    mass = special.mass()
    torch.testing.assert_close(special.reduce(x) * mass.unsqueeze(2), generic.reduce(x) * mass.unsqueeze(2))
    torch.testing.assert_close(special.restore(y), generic.restore(y))
    torch.testing.assert_close(special.restore(y, base=x), generic.restore(y, base=x))
    torch.testing.assert_close(special.reduce(x, prior=y), generic.reduce(x, prior=y))
    assert mass.sum() == special.weight.sum()
    adjoint = ((mass.unsqueeze(2) * special.reduce(x) * y).sum(), (x * special.restore(y)).sum())
    torch.testing.assert_close(*adjoint)
    # What was taken comes back; what was not stays.
    assert torch.equal(special.restore(special.reduce(x), base=x), x)


def test_the_most_active_tokens_are_kept() -> None:
    x = torch.zeros(2, 6, 3)
    x[0, [4, 1]], x[0, 2], x[1] = -5.0, 1.0, 2.0
    kept = InformativeTokens(0.5).associate(x)
    assert kept.source.tolist() == [[1, 2, 4], [0, 1, 2]]  # of equal ones the first
    assert kept.weight[0, :, 0].tolist() == [0, 1, 1, 0, 1, 0]
    assert InformativeTokens(0.01).associate(x).num == 1
    whole = InformativeTokens(1.0).associate(x)
    assert whole.complete and torch.equal(whole.reduce(x), x)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: EqualGroups(0), "group_size"),
        (lambda: EqualGroups(8, (3, 0)), r"\(3, 0\)"),
        (lambda: EqualGroups(8, 3, "z"), "'z'"),
        (lambda: InformativeTokens(0.0), r"0\.0"),
        (lambda: InformativeTokens(1.5), r"1\.5"),
        (lambda: small_encoder(window_shape=(3, 4, 2)), "window_shape"),
        (lambda: small_encoder(sparse_shape=(3, 4)), "sparse_shape"),
        (lambda: small_encoder(output_shape=(13, 11)), r"\(11, 13\)"),
        (lambda: small_encoder(num_blocks=0), "num_blocks"),
        (lambda: small_encoder(num_heads=3), "num_heads"),
        (lambda: small_encoder(activation="swish"), "swish"),
        (lambda: FlatFormer("mini", keep_ratio=(0.5, 0.5)), "keep_ratio"),
        (lambda: FlatFormer("mini", keep_ratio=0), "keep_ratio"),
    ],
)
def test_illegal_arguments_are_refused_by_name(build: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        build()


# --- the encoder --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("counts", [[40, 25], [40, 3], [0, 17, 0], [5], [1, 2, 1]], ids=str)
def test_the_encoder_is_that_of_the_loops(counts: list[int]) -> None:
    """Also with samples smaller than a group (6) and empty ones, at which the authors' code fails."""
    encoder, coors = small_encoder(), sparse_batch(counts, (13, 11))
    features = torch.randn(len(coors), 16)
    pos = encoder.positions(coors[:, 3], coors[:, 2])
    with torch.no_grad():
        wanted = reference.encode(encoder.layers, features, coors, pos, (3, 4), 6)
        canvas = encoder(features, coors, len(counts))
    assert canvas.shape == (len(counts), 16, 11, 13)
    got = canvas[coors[:, 0], :, coors[:, 2], coors[:, 3]]
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5)
    canvas[coors[:, 0], :, coors[:, 2], coors[:, 3]] = 0
    assert not canvas.any(), "places without a pillar are zero"


@quick
@given(counts=st.lists(st.integers(0, 12), min_size=2, max_size=4), extent=st.tuples(st.integers(4, 5), st.just(3)))
def test_samples_never_mix(counts: list[int], extent: tuple[int, int]) -> None:
    """On grids so small that the authors' offset between samples is too small."""
    encoder = small_encoder(sparse_shape=(*extent, 1))
    coors = sparse_batch(counts, extent)
    features = torch.randn(len(coors), 16)
    with torch.no_grad():
        together = encoder(features, coors, len(counts))
        for sample in range(len(counts)):
            own = coors[:, 0] == sample
            alone = encoder(features[own], coors[own] * torch.tensor([0, 1, 1, 1]), 1)
            torch.testing.assert_close(together[sample : sample + 1], alone, rtol=0, atol=1e-5)


def test_the_order_of_rows_does_not_matter() -> None:
    encoder, coors = small_encoder(), sparse_batch([50, 31], (13, 11))
    features, order = torch.randn(81, 16), torch.randperm(81)
    with torch.no_grad():
        wanted = encoder(features, coors, 2)
        torch.testing.assert_close(encoder(features[order], coors[order], 2), wanted, rtol=0, atol=1e-5)
        assert torch.equal(encoder(features, coors.int()), wanted)  # the batch size from the coordinates


@pytest.mark.parametrize("with_cp", [False, True])
def test_inputs_stay_and_gradients_flow(with_cp: bool) -> None:
    encoder, coors = small_encoder(with_cp=with_cp).train(), sparse_batch([9, 0, 4], (13, 11))
    features = torch.randn(13, 16, requires_grad=True)
    before, places = features.detach().clone(), coors.clone()
    (encoder(features, coors, 3) * torch.randn(3, 16, 11, 13)).sum().backward()
    assert torch.equal(features, before) and torch.equal(coors, places)
    assert features.grad.abs().amax(dim=1).min() > 0, "every pillar, those of small samples too"
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in encoder.parameters())


def test_gradients_are_those_of_the_loops() -> None:
    encoder, coors = small_encoder().double(), sparse_batch([9, 4], (13, 11))
    features = torch.randn(13, 16, dtype=torch.float64, requires_grad=True)
    pos, weights = encoder.positions(coors[:, 3], coors[:, 2]).double(), torch.randn(13, 16, dtype=torch.float64)
    (wanted,) = torch.autograd.grad(
        (reference.encode(encoder.layers, features, coors, pos, (3, 4), 6) * weights).sum(), features
    )
    out = encoder.encode(features, coors[:, 3], coors[:, 2], coors[:, 0], [9, 4])
    (got,) = torch.autograd.grad((out * weights).sum(), features)
    torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-8)


def test_a_batch_without_pillars_still_reaches_every_parameter() -> None:
    """Otherwise one empty batch would stop DDP."""
    encoder = small_encoder().train()
    canvas = encoder(torch.zeros(0, 16), torch.zeros(0, 4, dtype=torch.long), 2)
    assert canvas.shape == (2, 16, 11, 13) and not canvas.any()
    canvas.sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in encoder.parameters())
    assert encoder(torch.zeros(0, 16), torch.zeros(0, 4, dtype=torch.long)).shape == (0, 16, 11, 13)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    encoder, coors = small_encoder(), sparse_batch([40, 3], (13, 11))
    features = torch.randn(43, 16)
    with torch.no_grad():
        wanted = encoder(features, coors, 2)
        with torch.autocast("cpu", dtype=dtype):
            got = encoder(features, coors, 2)
        assert (got.float() - wanted).norm() / wanted.norm() < 0.03
        pure = encoder.to(dtype)(features.to(dtype), coors, 2)
        assert pure.dtype == dtype and (pure.float() - wanted).norm() / wanted.norm() < 0.05


def test_wrong_coordinates_are_refused() -> None:
    encoder, coors, features = small_encoder(), sparse_batch([5, 5], (13, 11)), torch.randn(10, 16)
    for column, value in ((0, 2), (1, 1), (2, 11), (3, 13), (3, -1)):
        wrong = coors.clone()
        wrong[3, column] = value
        with pytest.raises(ValueError, match="sparse_shape"):
            encoder(features, wrong, 2)
    with pytest.raises(ValueError, match=r"\(9, 16\)"):
        encoder(features[:9], coors, 2)
    with pytest.raises(ValueError, match="float"):
        encoder(features, coors.float(), 2)


def test_positions_normalised_to_the_grid() -> None:
    encoder = small_encoder(normalize_pos=True)
    x, y = torch.tensor([0, 12]), torch.tensor([0, 10])
    pos = encoder.positions(x, y)
    assert torch.allclose(pos[1, 0], torch.sin(torch.tensor(2 * torch.pi * 12 / 13)))
    assert torch.allclose(pos[1, 9], torch.cos(torch.tensor(2 * torch.pi * 10 / 11)))


def test_the_cost_grows_linearly() -> None:
    """Operations at 4 times the tokens, on clustered coordinates: 4 times as many, up to one group of each sample."""
    encoder = small_encoder(sparse_shape=(400, 400, 1))
    flops = []
    for count in (1000, 4000):
        place = torch.randperm(400 * 40, generator=torch.Generator().manual_seed(0))[:count]
        coors = torch.stack([place * 0, place * 0, place // 400, place % 400], 1)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            encoder(torch.randn(count, 16), coors, 1)
        flops.append(counter.get_total_flops())
    assert flops[1] / flops[0] == pytest.approx(4, rel=0.01)


# --- official weights ---------------------------------------------------------------------------------------


def official(encoder: FlatFormerEncoder) -> dict[str, Tensor]:
    """The encoder's weights under the authors' names."""
    state = {}
    for i, layer in enumerate(encoder.layers):
        own, prefix = layer.state_dict(), f"block_list.{i // 4}.block.{i % 4}."
        for leaf in ("weight", "bias"):
            state[f"{prefix}attn.attn.in_proj_{leaf}"] = torch.cat([own[f"attn.qk.{leaf}"], own[f"attn.v.{leaf}"]])
            state[f"{prefix}attn.attn.out_proj.{leaf}"] = own[f"attn.proj.{leaf}"]
            for name in ("fc1", "fc2", "norm1", "norm2"):
                state[f"{prefix}{name}.{leaf}"] = own[f"{name}.{leaf}"]
    return state


@pytest.mark.parametrize("prefix", ["", "module.", "pts_middle_encoder.", "middle_encoder."])
def test_weights_go_there_and_back(prefix: str, tmp_path: Path) -> None:
    encoder = small_encoder(num_blocks=2)
    state = {prefix + key: value for key, value in official(encoder).items()}
    if "encoder" in prefix:
        state["bbox_head.conv.weight"] = torch.zeros(3)
    torch.save(state, tmp_path / "official.pth")
    other = small_encoder(num_blocks=2)
    OfficialPretrained(str(tmp_path / "official.pth"))(other)
    for key, value in encoder.state_dict().items():
        assert torch.equal(other.state_dict()[key], value), key


def test_unknown_keys_are_refused() -> None:
    state = official(small_encoder())
    before = dict(state)
    converted, family = convert_official(state)
    assert family == "flatformer" and state == before
    assert sum(v.numel() for v in converted.values()) == sum(v.numel() for v in state.values())
    with pytest.raises(ValueError, match=r"block_list\.0\.block\.0\.fc3\.weight"):
        convert_official(state | {"block_list.0.block.0.fc3.weight": torch.zeros(1)})
    with pytest.raises(ValueError, match="0 of"):
        convert_official({"block_list.weight": torch.zeros(1)})
