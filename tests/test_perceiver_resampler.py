"""Perceiver resampler: MMPretrain's results, any number of tokens and frames, no way back."""

from __future__ import annotations

import doctest
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from mmvit_plugins.models import PerceiverResampler
from mmvit_plugins.models.necks.perceiver_resampler import convert_flamingo_resampler
from mmvit_plugins.models.token_reduction.perceiver import DenseMap
from mmvit_plugins.models.token_reduction.token_map import TokenMap
from mmvit_plugins.registry import MODELS


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def neck(**changes: object) -> PerceiverResampler:
    torch.manual_seed(2)
    settings = dict(in_channels=16, num_latents=5, depth=2, num_heads=2, head_dim=12, max_num_frames=4)
    return MODELS.build(dict(type="mmvit_plugins.PerceiverResampler") | settings | changes).eval()


def flamingo_modules() -> ModuleType:
    """MMPretrain's file with the resampler. Without transformers its package refuses to be imported as a whole."""
    pytest.importorskip("einops", reason="einops is not installed")
    spec = importlib.util.find_spec("mmpretrain")
    if spec is None:
        pytest.skip("mmpretrain is not installed")
    path = Path(spec.origin).parent / "models" / "multimodal" / "flamingo" / "modules.py"
    spec = importlib.util.spec_from_file_location("flamingo_modules", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("frames, media", [(None, None), (4, None), (4, 3)], ids=str)
def test_equals_mmpretrain_with_the_same_weights(frames: int | None, media: int | None) -> None:
    modules = flamingo_modules()
    torch.manual_seed(0)
    sizes = dict(depth=3, num_latents=7, max_num_frames=frames, max_num_media=media)
    theirs = modules.PerceiverResampler(dim=24, dim_head=10, heads=3, ff_mult=3, **sizes).eval()
    for name, parameter in theirs.named_parameters():
        nn.init.normal_(parameter, std=0.3, mean=float("norm" in name))
    ours = PerceiverResampler(24, num_heads=3, head_dim=10, ffn_ratio=3, **sizes).eval()
    ours.load_state_dict(convert_flamingo_resampler(theirs.state_dict()))
    x = numbers(2, 3, 4, 9, 24)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=2e-5)
    ours(x).square().sum().backward()
    theirs(x).square().sum().backward()
    grads = convert_flamingo_resampler({name: p.grad for name, p in theirs.named_parameters()})
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, grads[name], rtol=1e-3, atol=1e-3, msg=lambda m, n=name: f"{n} {m}")


def test_the_converter_is_strict() -> None:
    with pytest.raises(ValueError, match="layers.0.2.weight"):
        convert_flamingo_resampler({"layers.0.2.weight": torch.zeros(1)})


@pytest.mark.parametrize("shape", [(2, 16, 7, 5), (2, 16, 1, 1), (2, 35, 16), (2, 500, 16)], ids=str)
def test_any_number_of_tokens_gives_a_fixed_number(shape: tuple[int, ...]) -> None:
    x = numbers(*shape)
    (latents,) = neck()((numbers(1), x))
    assert latents.shape == (2, 5, 16)
    tokens = x if x.dim() == 3 else x.flatten(2).transpose(1, 2)
    torch.testing.assert_close(latents, neck()(tokens[:, None, None]).squeeze(1))
    torch.testing.assert_close(neck(pool=True)(x)[0], latents.mean(dim=1))
    order = torch.randperm(tokens.shape[1])
    torch.testing.assert_close(neck()(tokens[:, order])[0], latents, rtol=1e-4, atol=1e-5)


def test_time_embeddings_are_stretched_over_more_frames() -> None:
    model = neck()
    x = numbers(1, 1, 7, 3, 16)
    table = model.frame_embed.detach()
    at = torch.linspace(0, 3, 7)
    low = at.floor().long().clamp_max(2)
    wanted = table[low] + (at - low).unsqueeze(1) * (table[low + 1] - table[low])
    plain = neck(max_num_frames=None)
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if k != "frame_embed"})
    torch.testing.assert_close(model(x), plain(x + wanted[:, None]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model(x[:, :, :3]), plain(x[:, :, :3] + table[:3, None]))
    assert not torch.allclose(model(x), model(x.flip(2)), atol=1e-3), "the order of frames does not matter"


def test_frames_of_a_video_are_read_together_and_media_apart() -> None:
    model = neck()
    x = numbers(2, 3, 2, 6, 16)
    together = model(x)
    assert together.shape == (2, 3, 5, 16)
    for t in range(3):
        torch.testing.assert_close(model(x[:, t : t + 1]), together[:, t : t + 1], rtol=1e-4, atol=1e-5)


def test_the_reducer_gives_its_attention_and_no_way_back() -> None:
    reducer = MODELS.build(
        dict(type="mmvit_plugins.PerceiverLatents", dim=16, num_latents=5, depth=2, num_heads=2, head_dim=8)
    )
    x = numbers(2, 12, 16)
    latents, token_map = reducer.reduce(x, (3, 4))
    torch.testing.assert_close(latents, reducer.read(x))
    assert not reducer.restorable and token_map.num == 5 and token_map.weight.shape == (2, 12, 5)
    # Latents read one another as well: the tokens' share is below 1.
    assert (token_map.mass() < 1).all() and (token_map.mass() > 0).all()
    assert torch.equal(reducer.associate(x).weight, token_map.weight)
    with pytest.raises(ValueError, match="no way back"):
        reducer.restore(latents, token_map)


def test_dense_map_equals_the_sparse_one() -> None:
    weight = numbers(2, 9, 4).relu()
    weight[:, 3] = 0
    dense = DenseMap(weight)
    sparse = TokenMap(dense.index.clone(), weight, 4)
    x, prior, size = numbers(2, 9, 3, seed=1), numbers(2, 4, 3, seed=2), torch.rand(2, 9) + 1
    x[:, 3] = torch.nan
    for given in (dict(), dict(prior=prior), dict(size=size), dict(prior=prior, size=size)):
        torch.testing.assert_close(dense.reduce(x, **given), sparse.reduce(x, **given))
    torch.testing.assert_close(dense.mass(), sparse.mass())
    torch.testing.assert_close(dense.restore(prior), sparse.restore(prior))
    torch.testing.assert_close(dense.restore(prior, size[..., None]), sparse.restore(prior, size[..., None]))
    assert torch.equal(dense.hard(), sparse.hard())


def test_bfloat16_autocast_is_close() -> None:
    model, x = neck(), numbers(2, 16, 6, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (got,) = model(x)
    (wanted,) = model(x)
    assert (got.float() - wanted).norm() / wanted.norm() < 0.03


@pytest.mark.parametrize(
    "name, value", [("num_latents", 0), ("depth", -1), ("head_dim", 1.5), ("max_num_frames", 0), ("max_num_media", "a")]
)
def test_illegal_arguments_are_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name) as caught:
        neck(**{name: value})
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("shape", [(0, 16, 2, 3), (0, 5, 16), (0, 2, 3, 5, 16)], ids=str)
def test_no_images_give_no_latents(shape: tuple[int, ...]) -> None:
    out = neck()(torch.zeros(shape))
    one = neck()(torch.zeros((1, *shape[1:])))
    out, one = (t[0] if isinstance(t, tuple) else t for t in (out, one))
    assert out.shape == (0, *one.shape[1:])


@pytest.mark.parametrize("shape", [(2, 8, 7, 5), (16,), (2, 35, 8), (1, 1, 1, 2, 3, 16)], ids=str)
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="PerceiverResampler") as caught:
        neck()(numbers(*shape))
    assert str(shape) in str(caught.value)


def test_the_docstring_example_runs() -> None:
    (example,) = [t for t in doctest.DocTestFinder(recurse=False).find(PerceiverResampler) if t.examples]
    result = doctest.DocTestRunner().run(example)
    assert result.attempted >= 4 and result.failed == 0
