"""SparseViT without pruning: equal to the hosts' Swin; windows and attention against their equations; weights."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hosts import require_host
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from mmvit_plugins.checkpoints import OfficialPretrained, convert_official
from mmvit_plugins.models import SparseViT
from mmvit_plugins.models.backbones.sparsevit_weights import convert_sparsevit
from mmvit_plugins.models.layers.window_attention import (
    WindowAttention,
    shift_masks,
    window_kinds,
    window_numbers,
    window_partition,
    window_rows,
    window_unpartition,
)

ARCH = dict(dims=(8, 16, 24, 32), depths=(2, 2, 4, 2), heads=(1, 2, 3, 4))
HOST = dict(embed_dims=8, depths=(2, 2, 4, 2), num_heads=(1, 2, 4, 8))
OURS = dict(dims=(8, 16, 32, 64), depths=(2, 2, 4, 2), heads=(1, 2, 4, 8))


def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Weights that leave nothing at its neutral value."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            values = torch.randn(p.shape, generator=generator)
            p.copy_(values / p[0].numel() ** 0.5 if p.dim() > 1 else 0.2 * values + (p.mean() > 0.5))
    model.eval()  # MMDetection's returns None
    return model


def image(*size: int, seed: int = 1) -> Tensor:
    return torch.randn(size[0], 3, *size[1:], generator=torch.Generator().manual_seed(seed))


def outputs(model: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    with torch.no_grad():
        return model(x)


def assert_close(got: tuple[Tensor, ...], wanted: tuple[Tensor, ...], atol: float = 2e-5) -> None:
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a.contiguous(), b.contiguous(), rtol=0, atol=atol)


# --- against the hosts' Swin --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(224, 224), (65, 90), (37, 200)], ids=str)
def test_without_pruning_it_is_the_swin_of_mmdetection(size: tuple[int, int]) -> None:
    require_host("mmdet")
    from mmdet.models.backbones.swin import SwinTransformer

    host = randomise(SwinTransformer(**HOST))
    ours = SparseViT(OURS).eval()
    ours.load_state_dict({k[9:]: v for k, v in convert_sparsevit(host.state_dict()).items()})
    x = image(2, *size)
    assert_close(outputs(ours, x), outputs(host, x))
    assert_close(tuple(y.detach() for y in ours(x)), outputs(host, x))  # the way that training takes


@pytest.mark.parametrize("pad_small_map", [False, True])
def test_without_pruning_it_is_the_swin_of_mmpretrain(pad_small_map: bool) -> None:
    require_host("mmpretrain")
    from mmpretrain.models.backbones import SwinTransformer

    arch = dict(embed_dims=8, depths=HOST["depths"], num_heads=HOST["num_heads"])
    options = dict(out_indices=(0, 1, 2, 3), pad_small_map=pad_small_map, drop_path_rate=0.0)
    host = randomise(SwinTransformer(arch=arch, img_size=224, **options))
    ours = SparseViT(OURS, shift_small_maps=pad_small_map).eval()
    ours.load_state_dict({k[9:]: v for k, v in convert_sparsevit(host.state_dict()).items()})
    x = image(2, 224, 224)
    assert_close(outputs(ours, x), outputs(host, x))


def test_the_two_paddings_differ_only_where_there_is_padding() -> None:
    after, before = randomise(SparseViT(ARCH)), randomise(SparseViT(ARCH, padding="before_norm"))
    assert_close(outputs(before, image(1, 224, 224)), outputs(after, image(1, 224, 224)))
    a, b = outputs(before, image(1, 200, 224))[0], outputs(after, image(1, 200, 224))[0]
    assert (a - b).abs().max() > 1e-2
    assert torch.equal(a[:, :, :20], b[:, :, :20])  # far from it nothing changes in the first stage


# --- windows ------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 7), st.data())
def test_rows_numbers_and_partition_agree(height: int, width: int, window: int, data: st.DataObject) -> None:
    shift = data.draw(st.integers(0, window - 1))
    x = torch.arange(1.0, 1 + 2 * height * width).view(2, height, width, 1)
    windows = window_partition(x, window, shift)
    assert torch.equal(window_unpartition(windows, (height, width), window, shift), x)
    rows, real = window_rows(torch.arange(windows.shape[1]), (height, width), window, shift)
    taken = x[0].flatten()[rows.clamp_max(height * width - 1)] * real
    assert torch.equal(taken, windows[0, ..., 0])
    numbers = window_numbers((height, width), window, shift, x.device)
    for n in range(windows.shape[1]):
        assert torch.equal(x[0, ..., 0][numbers == n].sort().values, windows[0, n, :, 0][real[n]].sort().values)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 16), st.integers(1, 16), st.integers(2, 5), st.data())
def test_masks_keep_opposite_borders_apart(height: int, width: int, window: int, data: st.DataObject) -> None:
    """Two tokens of a window may see each other exactly if no border of the map lies between them."""
    shift = data.draw(st.integers(1, window - 1))
    rows, cols = -(-height // window), -(-width // window)
    place = torch.stack(torch.meshgrid(torch.arange(rows * window), torch.arange(cols * window), indexing="ij"), -1)
    place = window_partition(place[None].float(), window, shift)[0]
    far = ((place.unsqueeze(1) - place.unsqueeze(2)).abs() >= window).any(-1)
    kinds = window_kinds(torch.arange(rows * cols), (height, width), window)
    masks = shift_masks(window, shift, place)[kinds]
    if rows > 1 and cols > 1:
        assert torch.equal(masks == -100, far)
    assert torch.equal(masks, masks.transpose(1, 2)) and set(masks.unique().tolist()) <= {-100.0, 0.0}


def plain_attention(attn: WindowAttention, x: Tensor, mask: Tensor | None) -> Tensor:
    """From the equation, head by head."""
    window, dim = attn.window, x.shape[-1]
    width = dim // attn.num_heads
    place = torch.tensor([(i, j) for i in range(window) for j in range(window)])
    offset = place.unsqueeze(1) - place.unsqueeze(0) + window - 1
    table = attn.relative_position_bias_table[offset[..., 0] * (2 * window - 1) + offset[..., 1]]
    q, k, v = attn.qkv(x).split(dim, dim=-1)
    heads = []
    for h in range(attn.num_heads):
        part = slice(h * width, (h + 1) * width)
        logits = q[..., part] @ k[..., part].transpose(1, 2) / width**0.5 + table[..., h]
        heads.append((logits if mask is None else logits + mask).softmax(-1) @ v[..., part])
    return attn.proj(torch.cat(heads, -1))


@pytest.mark.parametrize("shift", [0, 2])
def test_attention_follows_its_equation(shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    attn = randomise(WindowAttention(12, 3, 5))
    x = torch.randn(4, 25, 12, generator=torch.Generator().manual_seed(0))
    kinds = torch.tensor([0, 1, 2, 3]) if shift else None
    masks = shift_masks(5, 2, x) if shift else None
    bias = attn.position_bias().unsqueeze(0)
    bias = bias + masks.unsqueeze(1) if shift else bias
    wanted = plain_attention(attn, x, masks)
    torch.testing.assert_close(attn(x, bias, kinds), wanted, rtol=0, atol=1e-5)
    monkeypatch.setattr(torch.jit, "is_tracing", lambda: True)  # the fused kernel, which GPUs and exports take
    torch.testing.assert_close(attn(x, bias, kinds), wanted, rtol=0, atol=1e-5)


# --- weights ------------------------------------------------------------------------------------------------


def as_microsoft(ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """Our state dict of a classifier's backbone in Microsoft's layout, with what else their files hold."""
    names = (("ffn.0", "mlp.fc1"), ("ffn.2", "mlp.fc2"), ("patch_embed.projection", "patch_embed.proj"))
    state = {"head.weight": torch.ones(5, 32), "head.bias": torch.ones(5)}
    for key, value in ours.items():
        parts = key.split(".")
        if parts[0].startswith("norm"):
            if parts[0] == "norm3":
                state[f"norm.{parts[1]}"] = value
            continue
        if "downsample" in key:
            parts[1] = str(int(parts[1]) - 1)
            # [(0, 0), (1, 0), (0, 1), (1, 1)]: two strided slices of the columns, each of the rows
            value = value.view(*value.shape[:-1], 2, 2, -1).transpose(-2, -3).reshape(value.shape)
        key = ".".join(parts).replace("stages.", "layers.")
        for a, b in names:
            key = key.replace(a, b)
        state[key] = value
    for i, depth in enumerate(ARCH["depths"]):
        for j in range(depth):
            state[f"layers.{i}.blocks.{j}.attn.relative_position_index"] = torch.zeros(49, 49, dtype=torch.long)
    state["layers.0.blocks.1.attn_mask"] = torch.zeros(64, 49, 49)
    return state


def test_microsoft_files_fill_dense_backbones_and_classifiers(tmp_path: object) -> None:
    model = randomise(SparseViT(ARCH))
    torch.save({"model": as_microsoft(model.state_dict())}, tmp_path / "swin.pth")
    other = SparseViT(ARCH)
    OfficialPretrained(str(tmp_path / "swin.pth"))(other)
    loaded = other.state_dict()
    for key, value in model.state_dict().items():
        assert torch.equal(loaded[key], value) != key.startswith(("norm0", "norm1", "norm2")), key
    whole, family = convert_official(as_microsoft(model.state_dict()))
    assert family == "sparsevit" and whole["head.fc.weight"].shape == (5, 32)
    with pytest.raises(ValueError, match="not keys of an official"):
        convert_sparsevit(as_microsoft(model.state_dict()) | {"layers.0.blocks.0.attn.logit_scale": torch.ones(1)})


def test_merged_positions_are_in_the_right_order() -> None:
    """Microsoft: cat of x[0::2, 0::2], x[1::2, 0::2], x[0::2, 1::2], x[1::2, 1::2]; OpenMMLab: unfold."""
    x = torch.randn(1, 4, 6, 3, generator=torch.Generator().manual_seed(0))
    weight = torch.randn(5, 12, generator=torch.Generator().manual_seed(1))
    cat = torch.cat([x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)], -1) @ weight.t()
    unfolded = F.unfold(x.permute(0, 3, 1, 2), 2, stride=2).transpose(1, 2).view(1, 2, 3, 12) @ weight.t()
    ours = x.view(1, 2, 2, 3, 2, 3).transpose(2, 3).reshape(1, 2, 3, 12)
    key = "layers.0.blocks.0.attn.relative_position_bias_table"
    for stages, wanted in (("layers", cat), ("stages", unfolded)):
        state = {key.replace("layers", stages): torch.ones(1), f"{stages}.0.downsample.reduction.weight": weight}
        mapped = convert_sparsevit(
            {k.replace("attn.rel", "attn.w_msa.rel") if stages == "stages" else k: v for k, v in state.items()}
        )
        got = ours @ mapped["backbone.stages.1.downsample.reduction.weight"].t()
        torch.testing.assert_close(got, wanted)


def test_a_detector_keeps_its_other_parts() -> None:
    require_host("mmdet")
    from mmdet.models.backbones.swin import SwinTransformer

    backbone = {f"backbone.{k}": v for k, v in SwinTransformer(**HOST).state_dict().items()}
    heads = {"neck.lateral_convs.0.conv.weight": torch.ones(1), "roi_head.bbox_head.fc_cls.bias": torch.ones(2)}
    converted, family = convert_official(backbone | heads)
    assert family == "sparsevit" and heads.keys() <= converted.keys()
    own = {f"backbone.{k}" for k in SparseViT(OURS).state_dict()}
    assert set(converted) == own | set(heads)


def test_tables_of_other_windows_are_resized(tmp_path: object) -> None:
    model = randomise(SparseViT(ARCH))
    torch.save({"model": as_microsoft(model.state_dict())}, tmp_path / "swin.pth")
    other = SparseViT(ARCH, window_size=8)
    OfficialPretrained(str(tmp_path / "swin.pth"))(other)
    key = "stages.1.blocks.0.attn.relative_position_bias_table"
    table, resized = model.state_dict()[key], other.state_dict()[key]
    assert resized.shape == (15 * 15, 2)
    assert torch.allclose(resized.view(15, 15, 2)[7, 7], table.view(13, 13, 2)[6, 6], atol=1e-5)  # the middle stays
    third = SparseViT(ARCH, window_size=8)
    third.load_state_dict(model.state_dict())  # plain loading does the same
    assert torch.equal(third.state_dict()[key], resized)
    with pytest.raises(RuntimeError, match="size mismatch"):
        SparseViT(ARCH | dict(heads=(2, 2, 3, 4))).load_state_dict(model.state_dict())
