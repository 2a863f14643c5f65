"""EfficientViT's attention, blocks and backbone against the plain oracle, and what only this family has."""

from __future__ import annotations

import pytest
import torch
from backbone_cases import image
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.efficientvit import LinearAttention, ReferenceEfficientViT
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmvit_plugins.checkpoints import convert_official
from mmvit_plugins.models import EfficientViT
from mmvit_plugins.models.backbones.efficientvit import ARCHS, SERIES
from mmvit_plugins.models.layers import (
    DSConv,
    FusedMBConv,
    MBConv,
    MultiScaleLinearAttention,
    ResBlock,
    conv_norm_act,
    relu_linear_attention,
    row_strips,
)

SMALL = {
    "b": dict(series="b", widths=(8, 8, 16, 16, 32), depths=(1, 2, 3, 2, 1), head_dim=8),
    "l": dict(series="l", widths=(4, 8, 8, 16, 32), depths=(1, 1, 2, 1, 2), head_dim=8),
}
LAYER = dict(norm_cfg=dict(type="BN"), act_cfg=dict(type="HSwish"))
DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


def stirred(model: nn.Module, seed: int = 3) -> nn.Module:
    """The model in eval mode, nothing of its norms and biases at a neutral value."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, (_BatchNorm, nn.LayerNorm)):
            module.weight.data.uniform_(0.5, 1.5, generator=generator)
            module.bias.data.normal_(0, 0.1, generator=generator)
        if isinstance(module, _BatchNorm):
            module.running_mean.normal_(0, 0.2, generator=generator)
            module.running_var.uniform_(0.5, 1.5, generator=generator)
    return model.eval()


def pair(series: str) -> tuple[ReferenceEfficientViT, EfficientViT]:
    """Oracle and ours with the same weights, brought over by the converter."""
    reference = stirred(ReferenceEfficientViT(**SMALL[series]))
    ours = EfficientViT(arch=SMALL[series]).eval()
    state, family = convert_official(reference.state_dict())
    assert family == "efficientvit"
    ours.load_state_dict({key.removeprefix("backbone."): value for key, value in state.items()}, strict=True)
    return reference, ours


# --- attention -----------------------------------------------------------------------------------------------


def quadratic(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The definition, with the N x M matrix."""
    scores = q.relu() @ k.relu().transpose(-1, -2)
    return scores @ v / (scores.sum(-1, keepdim=True) + 1e-15)


@given(n=st.integers(1, 40), m=st.integers(1, 40), d=st.integers(1, 9), e=st.integers(1, 9), seed=st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_the_linear_form_is_the_quadratic_form(n: int, m: int, d: int, e: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(2, *s, generator=generator, dtype=torch.float64) for s in ((n, d), (m, d), (m, e)))
    torch.testing.assert_close(relu_linear_attention(q, k, v), quadratic(q, k, v), rtol=1e-9, atol=1e-9)


@given(n=st.integers(1, 30), seed=st.integers(0, 2**31), scale=st.floats(1e-3, 1e3))
@settings(max_examples=25, deadline=None)
def test_outputs_are_means_of_values(n: int, seed: int, scale: float) -> None:
    """Constants stay, results lie between smallest and largest value, the order of keys does not matter."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(n, 4, generator=generator) for _ in range(3))
    q, k = q.abs() + 0.1, k.abs() + 0.1
    torch.testing.assert_close(relu_linear_attention(q, k, torch.full_like(v, scale)), torch.full_like(v, scale))
    out = relu_linear_attention(q * scale, k, v)
    assert (out <= v.amax(0) + 1e-4).all() and (out >= v.amin(0) - 1e-4).all()
    order = torch.randperm(n, generator=generator)
    torch.testing.assert_close(relu_linear_attention(q * scale, k[order], v[order]), out, rtol=1e-4, atol=1e-5)


def test_zero_keys_or_queries_give_zero() -> None:
    q, k, v = (torch.rand(3, 5, 4) for _ in range(3))
    assert torch.equal(relu_linear_attention(q, -k, v), torch.zeros(3, 5, 4))
    assert torch.equal(relu_linear_attention(-q, k, v), torch.zeros(3, 5, 4))
    assert relu_linear_attention(q, k, v).abs().min() > 0


INPUTS = {
    "zeros": lambda x: x * 0,
    "negative": lambda x: -x.abs(),
    "times 1000": lambda x: x * 1e3,
    "normal": lambda x: x,
}


@DTYPES
@pytest.mark.parametrize("kind", INPUTS)
def test_attention_in_half_precision(dtype: torch.dtype, kind: str) -> None:
    """Finite forward and backward, and as close to float32 as the inputs' rounding allows."""
    x = INPUTS[kind](torch.randn(3, 2, 400, 16)).to(dtype)
    half = [part.clone().requires_grad_() for part in x]
    single = [part.float().requires_grad_() for part in x]
    out, wanted = relu_linear_attention(*half), relu_linear_attention(*single)
    assert out.dtype == dtype and out.isfinite().all()
    torch.testing.assert_close(out.float(), wanted, rtol=1e-2, atol=1e-3 * float(x.abs().max()))
    (out.float() / max(1.0, float(x.abs().max()))).square().sum().backward()
    assert all(part.grad.isfinite().all() for part in half)


@DTYPES
@pytest.mark.parametrize("kind", INPUTS)
def test_attention_layer_under_autocast(dtype: torch.dtype, kind: str) -> None:
    layer = stirred(MultiScaleLinearAttention(16, 8)).train()
    x = INPUTS[kind](torch.randn(2, 16, 9, 11))
    with torch.no_grad():
        wanted = layer(x)
    with torch.autocast("cpu", dtype=dtype):
        out = layer(x.requires_grad_())
    assert out.dtype == dtype and out.isfinite().all()
    torch.testing.assert_close(out.float(), wanted, rtol=0.05, atol=0.05)
    out.float().square().mean().backward()
    assert x.grad.isfinite().all() and all(p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (9, 11), (16, 16)], ids=str)
def test_attention_layer_is_the_oracles(size: tuple[int, int]) -> None:
    """Also where the authors' code takes the quadratic form (at most 8 tokens here)."""
    reference = stirred(LinearAttention(16, 8, 1e-5))
    ours = MultiScaleLinearAttention(16, 8).eval()
    names = {"qkv.conv.": "qkv.", "aggreg.": "aggregations.", "proj.norm.": "proj.bn."}
    state = reference.state_dict()
    for theirs, our_name in names.items():
        state = {key.replace(theirs, our_name): value for key, value in state.items()}
    ours.load_state_dict(state)
    x = torch.randn(2, 16, *size)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), reference(x), rtol=1e-4, atol=1e-5)


def test_attention_errors_name_the_numbers() -> None:
    with pytest.raises(ValueError, match="16 channels, head_dim 5"):
        MultiScaleLinearAttention(16, 5)
    with pytest.raises(ValueError, match=r"odd.*\(4,\)"):
        MultiScaleLinearAttention(16, 8, scales=(4,))


# --- backbone ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("series", SMALL)
@pytest.mark.parametrize("size", [(64, 96), (33, 47), (1, 5), (300, 180)], ids=str)
@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "with gradients"])
def test_backbone_is_the_oracles(series: str, size: tuple[int, int], gradients: bool) -> None:
    reference, ours = pair(series)
    x = image(2, *size)
    with torch.set_grad_enabled(gradients):
        stem, wanted, got = ours.stem(x), reference.forward_maps(x), ours(x)
    for a, b in zip([stem, *got], wanted, strict=True):
        assert (a - b).abs().max() <= 3e-5 * b.std(), "more than the goldens' tolerance"


@pytest.mark.parametrize("series", SMALL)
def test_gradients_are_the_oracles(series: str) -> None:
    reference, ours = pair(series)
    x, y = image(2, 65, 40).requires_grad_(), image(2, 65, 40).requires_grad_()
    reference.train(), ours.train()
    (wanted,) = torch.autograd.grad(sum(m.square().mean() for m in reference.forward_maps(x)[1:]), x)
    (got,) = torch.autograd.grad(sum(m.square().mean() for m in ours(y)), y)
    assert (got - wanted).abs().max() <= 1e-4 * wanted.abs().max()


# Million parameters with the published classifier: the authors' table (B0: timm's), rounded as there.
PUBLISHED = dict(b0=3.41, b1=9.1, b2=24, b3=49, l1=53, l2=64, l3=246)


@pytest.mark.parametrize("arch", PUBLISHED)
def test_published_sizes(arch: str) -> None:
    pytest.importorskip("mmpretrain", reason="the classification head needs it")
    from mmvit_plugins.models.heads.efficientvit_cls_head import PUBLISHED_WIDTHS, EfficientViTClsHead

    with torch.device("meta"):
        backbone = EfficientViT(arch=arch)
        act = SERIES[ARCHS[arch]["series"]]["act"]
        head = EfficientViTClsHead(1000, backbone.out_channels[-1], PUBLISHED_WIDTHS[arch], act=act)
    count = sum(p.numel() for m in (backbone, head) for p in m.parameters()) / 1e6
    assert count == pytest.approx(PUBLISHED[arch], abs=0.01 if arch == "b0" else 0.05 if arch == "b1" else 0.6)


@pytest.mark.parametrize("arch, eps", [("b0", 1e-5), ("l1", 1e-7)])
def test_norms_have_the_authors_eps_unless_told_otherwise(arch: str, eps: float) -> None:
    with torch.device("meta"):
        default, other = EfficientViT(arch=arch), EfficientViT(arch=arch, norm_cfg=dict(type="SyncBN", eps=1e-3))
    for model, wanted in ((default, eps), (other, 1e-3)):
        assert {m.eps for m in model.modules() if isinstance(m, _BatchNorm)} == {wanted}


@pytest.mark.parametrize("arch, count", [("b0", 1 + 1 + 2 * 2 + 2 * 2), ("l1", 1 + 1 + 1 + 6 + 2 * 6)])
def test_drop_rates_grow_over_the_branches_with_a_skip(arch: str, count: int) -> None:
    """All but B's stem; the authors drop block i of N with rate (i + 1) / N."""
    with torch.device("meta"):
        model = EfficientViT(arch=arch, drop_path_rate=0.1)
    rates = [m.drop_prob for m in model.modules() if type(m).__name__ == "DropPath"]
    assert rates == pytest.approx([0.1 * (i + 1) / count for i in range(count)])


@pytest.mark.parametrize(
    "arch, said",
    [
        (SMALL["b"] | dict(series="c"), "'c'"),
        (SMALL["b"] | dict(widths=(8, 8, 16)), r"\(8, 8, 16\)"),
        (SMALL["b"] | dict(depths=(1, 1, 0, 1, 1)), r"\(1, 1, 0, 1, 1\)"),
    ],
)
def test_illegal_archs_are_refused(arch: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        EfficientViT(arch=arch)


# --- strips and folded norms ---------------------------------------------------------------------------------

BLOCKS = {
    "DSConv": lambda stride: DSConv(6, 6, stride, shortcut=stride == 1, **LAYER),
    "MBConv": lambda stride: MBConv(6, 6, stride, 4, shortcut=stride == 1, **LAYER),
    "MBConv with fewer norms": lambda stride: MBConv(6, 8, stride, 4, fewer_norm=True, **LAYER),
    "FusedMBConv": lambda stride: FusedMBConv(6, 8, stride, 4, **LAYER),
    "ResBlock": lambda stride: ResBlock(6, 6, stride, shortcut=stride == 1, **LAYER),
}


@given(
    kind=st.sampled_from(list(BLOCKS)),
    stride=st.sampled_from([1, 2]),
    height=st.integers(1, 40),
    width=st.integers(1, 9),
    rows=st.integers(1, 45),
)
@settings(max_examples=60, deadline=None)
def test_strips_make_the_whole(kind: str, stride: int, height: int, width: int, rows: int) -> None:
    block = stirred(BLOCKS[kind](stride))
    x = torch.randn(2, 6, height, width).contiguous(memory_format=torch.channels_last)
    wanted = block(x)  # with gradients: layer by layer
    before = x.clone()
    with torch.no_grad():
        got = row_strips.run_by_strips(block.convs, x, rows, block.shortcut)
    assert got.shape == wanted.shape and torch.equal(x, before)
    torch.testing.assert_close(got, wanted.detach(), rtol=1e-4, atol=1e-5)


def test_large_maps_go_by_strips_and_small_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    block, calls = stirred(MBConv(6, 8, 2, 4, **LAYER)), []
    whole = row_strips.run_by_strips

    def counted(*args: object) -> Tensor:
        calls.append(args[2])
        return whole(*args)

    monkeypatch.setattr("mmvit_plugins.models.layers.conv_chain.run_by_strips", counted)
    monkeypatch.setattr(row_strips, "STRIP_BYTES", 40_000)
    large, small = torch.randn(1, 6, 101, 50), torch.randn(1, 6, 20, 10)
    with torch.no_grad():
        got = block(large)
        assert len(calls) == 1 and row_strips.MIN_ROWS <= calls[0] <= 26
        block(small)
    torch.testing.assert_close(got, block(large).detach(), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        block.train()(large)
    assert len(calls) == 1, "small maps, training and gradients go layer by layer"


@pytest.mark.parametrize("act", [dict(type="HSwish"), dict(type="GELU", approximate="tanh"), None], ids=str)
@pytest.mark.parametrize("channels, size", [((300, 4), (2, 3)), ((4, 300), (9, 9)), ((5, 7), (70, 60))], ids=str)
def test_every_way_to_compute_a_layer_is_the_layer(act: dict | None, channels: tuple, size: tuple) -> None:
    from mmcv.cnn import ConvModule

    layer = stirred(ConvModule(*channels, 1, norm_cfg=dict(type="BN"), act_cfg=act))
    x = 3 * torch.randn(1, channels[0], *size)
    wanted = layer(x).detach()
    with torch.no_grad():
        got = conv_norm_act(layer, x)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("series", SMALL)
def test_deploy_form_is_the_same_without_norms(series: str) -> None:
    model = pair(series)[1]
    x = image(2, 77, 140)
    with torch.no_grad():
        wanted = model(x)
        deployed = model.switch_to_deploy()
        got = deployed(x)
    assert deployed is model and not model.training
    assert not [m for m in model.modules() if isinstance(m, _BatchNorm)]
    with_gradients = model(x)
    for a, b, c in zip(got, with_gradients, wanted, strict=True):
        assert (a - c).abs().max() <= 1e-4 * c.abs().max() and (b - c).abs().max() <= 1e-4 * c.abs().max()
