"""What every registered backbone promises about its outputs and arguments; see DESIGN's contract and backbone_cases."""

from __future__ import annotations

import copy
import doctest
import gc
import inspect
import pickle
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from backbone_cases import BackboneCase, backbone_cases, image, registered_backbones
from torch import Tensor, nn

CASES = backbone_cases()
SIZES = [(1, 1), (1, 7), (5, 3), (33, 47), (65, 90), (64, 64)]
every_backbone = pytest.mark.parametrize("case", CASES, ids=str)


def outputs(model: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    with torch.no_grad():
        return model.eval()(x)


def assert_same(got: tuple[Tensor, ...], wanted: tuple[Tensor, ...], tolerance: float = 1e-5) -> None:
    """Equal up to rounding, measured against the size of each map's values."""
    assert len(got) == len(wanted)
    for i, (a, b) in enumerate(zip(got, wanted, strict=True)):
        assert a.shape == b.shape
        scale = float(b.abs().max()) or 1.0
        assert float((a - b).abs().max()) <= tolerance * scale, f"map {i}"


def test_the_rule_finds_the_backbones() -> None:
    assert "STViT" in registered_backbones()
    assert {case.cls for case in CASES} == set(registered_backbones().values())


@every_backbone
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_any_size_gives_the_promised_shapes(case: BackboneCase, size: tuple[int, int]) -> None:
    model = case.build()
    maps = outputs(model, image(2, *size))
    assert isinstance(maps, tuple) and len(maps) == len(model.out_indices)
    assert len(model.out_channels) == len(model.out_strides) == len(maps)
    assert list(model.out_strides) == sorted(model.out_strides), "equal in a plain ViT, never falling"
    for y, channels, stride in zip(maps, model.out_channels, model.out_strides, strict=True):
        assert tuple(y.shape) == (2, channels, -(-size[0] // stride), -(-size[1] // stride))
        assert y.dtype == torch.float32 and y.isfinite().all()
        assert y.is_contiguous(), "mmcv's RoIAlign reads memory in the order of (B, C, H, W)"


@every_backbone
def test_maps_depend_on_the_whole_input(case: BackboneCase) -> None:
    """No constant output, and no pixel row or column that padding or cropping loses."""
    model = case.build().eval()
    x = image(1, 33, 47).requires_grad_()
    for y in model(x):
        (gradient,) = torch.autograd.grad(y.square().sum(), x, retain_graph=True)
        assert gradient.abs().amax(dim=(0, 1, 3)).min() > 0 and gradient.abs().amax(dim=(0, 1, 2)).min() > 0


@every_backbone
def test_a_sample_does_not_depend_on_its_batch_mates(case: BackboneCase) -> None:
    model = case.build()
    x = image(3, 130, 150)  # large enough for code that works by parts, whose number depends on the batch
    together = outputs(model, x)
    for i in range(3):
        assert_same(tuple(y[i : i + 1] for y in together), outputs(model, x[i : i + 1]))
    x[1] = torch.nan
    x[2] *= 1e4
    assert_same(tuple(y[:1] for y in outputs(model, x)), tuple(y[:1] for y in together))


@every_backbone
def test_the_size_is_free_at_run_time(case: BackboneCase) -> None:
    model = case.build()
    first = outputs(model, image(1, 224, 224))
    keys = list(model.state_dict())
    outputs(model, image(2, 96, 40))
    again = outputs(model, image(1, 224, 224))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert list(model.state_dict()) == keys


def resolved(given: int | tuple[int, ...] | list[int], stages: int) -> list[int]:
    return [i % stages for i in ([given] if isinstance(given, int) else given)]


@every_backbone
@pytest.mark.parametrize(
    "given", [0, 2, -1, (1,), [1, 3], (-4, -1), (0, -1), (1, 2, 3), [0, 1, 2]], ids=lambda given: str(given)
)
def test_out_indices_in_every_form(case: BackboneCase, given: int | tuple[int, ...] | list[int]) -> None:
    whole, x = case.build(), image(2, 65, 90)
    stages = len(whole.out_channels)
    part = case.build(out_indices=given)
    state = whole.state_dict()
    part.load_state_dict({key: state[key] for key in part.state_dict()})
    wanted = resolved(given, stages)
    assert part.out_channels == tuple(whole.out_channels[i] for i in wanted)
    assert part.out_strides == tuple(whole.out_strides[i] for i in wanted)
    maps = outputs(whole, x)
    # Under no_grad: maps that are handed out stay as they are when later stages run.
    assert_same(outputs(part, x), tuple(maps[i] for i in wanted))


@every_backbone
@pytest.mark.parametrize("given", [(4,), (-9,), (0, 0), (2, 1), (3, -1), (), (0.0,), ("0",)], ids=str)
def test_illegal_out_indices_are_refused(case: BackboneCase, given: tuple) -> None:
    with pytest.raises(ValueError, match="out_indices") as caught:
        case.build(out_indices=given)
    assert str(given) in str(caught.value), "the message must name what was received"


@every_backbone
@pytest.mark.parametrize(
    "name, value, said",
    [
        ("arch", "nonesuch", "nonesuch"),
        ("arch", {"nonesuch": 1}, "nonesuch"),
        ("arch", 3, "3"),
        ("frozen_stages", 4, "4"),
        ("frozen_stages", -2, "-2"),
        ("drop_path_rate", 1.0, "1.0"),
        ("drop_path_rate", -0.1, "-0.1"),
    ],
    ids=str,
)
def test_illegal_arguments_are_refused_by_name(case: BackboneCase, name: str, value: object, said: str) -> None:
    with pytest.raises(ValueError, match=name) as caught:
        case.build(**{name: value})
    assert said in str(caught.value), "the message must name what was received"


@pytest.mark.parametrize("name, cls", registered_backbones().items(), ids=list(registered_backbones()))
def test_constructors_have_the_common_arguments(name: str, cls: type) -> None:
    parameters = inspect.signature(cls).parameters
    common = {"arch", "out_indices", "frozen_stages", "norm_eval", "with_cp", "drop_path_rate", "init_cfg"}
    assert common <= set(parameters)
    assert not [p for p in parameters.values() if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    assert not [p.name for p in parameters.values() if p.annotation is p.empty]


@pytest.mark.parametrize("name, cls", registered_backbones().items(), ids=list(registered_backbones()))
def test_the_docstring_example_runs(name: str, cls: type) -> None:
    (example,) = [test for test in doctest.DocTestFinder(recurse=False).find(cls, name) if test.examples]
    result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example)
    assert result.attempted >= 3 and result.failed == 0


@every_backbone
def test_inputs_stay_as_they_are_in_any_memory_layout(case: BackboneCase) -> None:
    model = case.build()
    plain = image(2, 33, 47)
    wanted = outputs(model, plain.clone())
    layouts = {
        "contiguous": plain.clone(),
        "channels_last": plain.clone(memory_format=torch.channels_last),
        "a view": torch.cat([plain, plain], dim=3)[..., :47],
        "transposed": plain.transpose(2, 3).contiguous().transpose(2, 3),
    }
    for name, x in layouts.items():
        before, strides = x.clone(), x.stride()
        assert_same(outputs(model, x), wanted)
        assert torch.equal(x, before) and x.stride() == strides, f"{name} input was changed"
    expanded = plain[:1].expand(2, -1, -1, -1)
    assert_same(outputs(model, expanded), tuple(y[:1].expand_as(y) for y in wanted))


@every_backbone
def test_with_and_without_gradients_agree(case: BackboneCase) -> None:
    model, x = case.build().eval(), image(2, 161, 203)
    assert_same(tuple(y.detach() for y in model(x)), outputs(model, x))
    with torch.inference_mode():
        assert_same(model(x), outputs(model, x))


@every_backbone
def test_copies_and_pickles_are_the_same_model(case: BackboneCase) -> None:
    model, x = case.build(), image(1, 33, 47)
    wanted = outputs(model, x)  # a call first: nothing that it may leave behind must be in the way
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert all(torch.equal(a, b) for a, b in zip(outputs(other, x), wanted, strict=True))
        with torch.no_grad():
            next(other.parameters()).add_(1)
        assert not torch.equal(next(other.parameters()), next(model.parameters())), "the copy shares weights"


@every_backbone
def test_the_state_holds_weights_and_norm_statistics_only(case: BackboneCase) -> None:
    model = case.build()
    outputs(model, image(1, 33, 47))
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    extra = set(model.state_dict()) - {name for name, _ in model.named_parameters()}
    assert not [key for key in extra if not key.endswith(statistics)]


@every_backbone
def test_two_threads_at_once(case: BackboneCase) -> None:
    model = case.build().eval()
    inputs = [image(1, 33 + 8 * i, 47, seed=i) for i in range(4)]
    wanted = [outputs(model, x) for x in inputs]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(3):
            for got, want in zip(pool.map(lambda x: outputs(model, x), inputs), wanted, strict=True):
                assert_same(got, want, 1e-6)


@every_backbone
def test_evaluation_draws_no_random_numbers(case: BackboneCase) -> None:
    model = case.build(drop_path_rate=0.5)
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    first = outputs(model, image(1, 33, 47))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all() and random.getstate() == states[2]
    assert all(torch.equal(a, b) for a, b in zip(outputs(model, image(1, 33, 47)), first, strict=True))


def living_tensors() -> set[int]:
    gc.collect()
    # By type(): isinstance() would wake PyTorch's lazy modules.
    return {id(thing) for thing in gc.get_objects() if issubclass(type(thing), Tensor)}


@every_backbone
@pytest.mark.parametrize("with_cp", [False, True], ids=["plain", "with_cp"])
def test_no_activation_is_kept(case: BackboneCase, with_cp: bool) -> None:
    model = case.build(with_cp=with_cp)

    def use() -> None:
        outputs(model, image(1, 33, 47))
        sum(y.sum() for y in model.train()(image(2, 33, 47))).backward()
        model.zero_grad(set_to_none=True)

    use()  # the first call may fill caches of PyTorch itself
    before = living_tensors()
    use()
    assert not living_tensors() - before


@every_backbone
def test_nothing_is_scripted(case: BackboneCase) -> None:
    """torch.jit is deprecated, and scripted parts can neither be pickled nor compiled."""
    assert not [m for m in case.build().modules() if isinstance(m, torch.jit.ScriptModule)]
