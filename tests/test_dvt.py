"""DVT: geometry, reuse, weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hosts import require_host
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from mmvit_plugins.checkpoints import OfficialPretrained, convert_official
from mmvit_plugins.models import DVT
from mmvit_plugins.models.backbones.dvt import ARCHS, patch_geometry, sinusoid_positions
from mmvit_plugins.models.layers.cascade_reuse import FeatureReuse, RelationReuse, resize_columns, resize_rows
from mmvit_plugins.models.layers.soft_split import PerformerTokenLayer, SoftSplit, soft_split_geometry
from mmvit_plugins.registry import MODELS

HEAD = dict(type="mmpretrain.LinearClsHead", in_channels=64, num_classes=5)


def cascade(**changes: object) -> DVT:
    torch.manual_seed(0)
    return DVT(**(dict(arch="mini", image_size=32, token_grids=(2, 3, 5), reuse_hidden=16, reuse_channels=8) | changes))


def classifier(backbone: dict | None = None, **changes: object) -> nn.Module:
    require_host("mmpretrain")
    torch.manual_seed(0)
    backbone = dict(
        type="mmvit_plugins.DVT", arch="mini", image_size=32, token_grids=(2, 3, 5), reuse_hidden=16, reuse_channels=8
    ) | (backbone or {})
    model = MODELS.build(dict(type="mmvit_plugins.DVTClassifier", backbone=backbone, head=HEAD) | changes)
    for head in model.head.exits:  # confidences that differ
        nn.init.normal_(head.fc.weight, std=0.3)
    return model.eval()


# --- geometry -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tokens", "kernel"), [(7, (32, 0)), (10, (23, 3)), (14, (16, 0))])
def test_published_patches(tokens: int, kernel: tuple[int, int]) -> None:
    assert patch_geometry(224, tokens) == kernel


@pytest.mark.parametrize(("tokens", "kernel"), [(7, (14, 8, 3)), (10, (11, 6, 5)), (14, (7, 4, 2))])
def test_published_soft_splits(tokens: int, kernel: tuple[int, int, int]) -> None:
    assert soft_split_geometry(224, tokens) == kernel


def test_patches_of_224_serve_384() -> None:
    assert [patch_geometry(384, n)[0] for n in (12, 17, 24)] == [32, 23, 16]
    assert [soft_split_geometry(384, n)[:2] for n in (12, 16, 24)] == [(14, 8), (11, 6), (7, 4)]


@settings(deadline=None, max_examples=60)
@given(size=st.integers(8, 400), tokens=st.integers(1, 40))
def test_geometry_gives_the_wanted_grid(size: int, tokens: int) -> None:
    """Or says that it cannot."""
    try:
        kernel, padding = patch_geometry(size, tokens)
        assert (size + 2 * padding - kernel) // kernel + 1 == tokens and padding < kernel
        assert size + 2 * padding >= kernel * tokens, "every pixel is seen"
    except ValueError as error:
        assert "tokens" in str(error) or "patches" in str(error)
    try:
        kernel, stride, padding = soft_split_geometry(size, tokens)
    except ValueError as error:
        assert "tokens" in str(error)
        return
    windows = (size + 2 * padding - kernel) // stride + 1
    for _ in range(2):
        windows = (windows + 2 - 3) // 2 + 1
    assert windows == tokens


@pytest.mark.parametrize("embed", ["patch", "performer", "transformer"])
@pytest.mark.parametrize("size", [(32, 32), (40, 23), (9, 70)])
def test_any_image_size(embed: str, size: tuple[int, int]) -> None:
    model = cascade(arch=ARCHS["mini"] | dict(embed=embed), token_grids=(2, 4)).eval()
    outputs = model(torch.rand(2, 3, *size))
    assert [tuple(o.shape) for o in outputs] == [(2, 64), (2, 64)]
    assert all(torch.isfinite(o).all() for o in outputs)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(arch="huge"), "no arch 'huge'"),
        (dict(token_grids=()), "token_grids lists"),
        (dict(token_grids=(33,)), "1 to 32 tokens"),
        (dict(arch="t2t_mini", image_size=64, token_grids=(11,)), "legal numbers near"),
        (dict(token_grids=((2, 5),)), "proportions"),
    ],
)
def test_wrong_arguments(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cascade(**changes)


# --- reuse --------------------------------------------------------------------------------------------------


def resize_as_published(x: Tensor, source: int, target: int) -> Tensor:
    """(B, C, source, source): nearest to twice the side, then adaptive average."""
    return F.adaptive_avg_pool2d(F.interpolate(x, scale_factor=2, mode="nearest"), (target, target))


@settings(deadline=None, max_examples=25)
@given(source=st.integers(1, 9), target=st.integers(1, 14))
def test_resize(source: int, target: int) -> None:
    x = torch.rand(2, 3, source, source, dtype=torch.float64)
    wanted = resize_as_published(x, source, target).flatten(2)
    grids = ((source, source), (target, target))
    torch.testing.assert_close(resize_columns(x.flatten(2), *grids), wanted)
    torch.testing.assert_close(resize_rows(x.flatten(2).transpose(1, 2), *grids).transpose(1, 2), wanted)


def test_relation_reuse_by_hand() -> None:
    """Keys first, then queries, class row and column apart, against loops over the definition."""
    module = RelationReuse(2, 3).double()
    relation = torch.rand(1, 6, 5, 5, dtype=torch.float64)
    got = torch.cat(module(relation, (2, 2), (3, 3)), dim=1)
    x = module.conv2(F.gelu(module.conv1(relation)))
    keys = torch.zeros(1, 6, 5, 10, dtype=torch.float64)
    for query in range(5):
        cells = x[:, :, query, 1:].reshape(1, 6, 2, 2)
        keys[:, :, query] = torch.cat([x[:, :, query, :1], resize_as_published(cells, 2, 3).flatten(2)], dim=-1)
    wanted = torch.zeros(1, 6, 10, 10, dtype=torch.float64)
    for key in range(10):
        cells = keys[:, :, 1:, key].reshape(1, 6, 2, 2)
        wanted[:, :, :, key] = torch.cat([keys[:, :, :1, key], resize_as_published(cells, 2, 3).flatten(2)], dim=-1)
    torch.testing.assert_close(got, wanted)


def test_feature_reuse_leaves_the_class_token_out() -> None:
    module = FeatureReuse(8, 4, 6)
    features = torch.rand(2, 5, 8)
    context = module(features, (2, 2), (3, 3))
    assert context.shape == (2, 10, 6) and (context[:, 0] == 0).all() and (context[:, 1:] != 0).any()
    other = features.clone()
    other[:, 0] += 1
    assert module(other, (2, 2), (3, 3)).equal(context)


@pytest.mark.parametrize("features", [False, True])
@pytest.mark.parametrize("relations", [False, True])
def test_reuse_can_be_switched_off(features: bool, relations: bool) -> None:
    """What is off is not built; what is on matters; without both, exits are plain models of their own."""
    model = cascade(reuse_features=features, reuse_relations=relations).eval()
    names = {name.split(".", 2)[2] for name, _ in model.named_parameters()}
    assert any("reuse.norm" in name for name in names) == features
    assert any("relation_reuse" in name for name in names) == relations
    x = torch.rand(1, 3, 32, 32)
    before = model(x)
    with torch.no_grad():
        model.exits[0].blocks[-1].fc2.weight += 0.5  # changes the last tokens, no attention score
        model.exits[0].blocks[0].qkv.bias[:64] += 0.5
    after = model(x)
    assert not before[0].equal(after[0])
    assert before[1].equal(after[1]) == (not features and not relations)


def test_gradients_reach_everything_and_checkpointing_changes_nothing() -> None:
    x = torch.rand(2, 3, 32, 32)
    grads = []
    for with_cp in (False, True):
        model = cascade(with_cp=with_cp).train()
        sum(o.square().sum() for o in model(x)).backward()
        grads.append({name: p.grad for name, p in model.named_parameters()})
        assert all(grad is not None for grad in grads[-1].values())
    for name, grad in grads[0].items():
        torch.testing.assert_close(grads[1][name], grad, msg=name)


def test_performer_is_near_softmax_attention() -> None:
    """What the random features estimate: exp(q k) attention, for small inputs."""
    layer = PerformerTokenLayer(12, 16, num_features=2048).eval()
    layer.features.copy_(torch.randn(2048, 16))
    q, k, v = torch.randn(3, 1, 7, 16).mul(0.3).unbind(0)
    phi_q, phi_k = layer._phi(q), layer._phi(k)
    estimate = phi_q @ (phi_k.transpose(1, 2) @ v) / (phi_q @ phi_k.sum(1).unsqueeze(-1))
    torch.testing.assert_close(estimate, (q @ k.transpose(1, 2)).softmax(-1) @ v, atol=0.02, rtol=0.1)


def test_soft_split_tokens_are_linear_in_count() -> None:
    split = SoftSplit("performer", soft_split_geometry(64, 4), 32)
    tokens, grid = split(torch.rand(1, 3, 64, 64))
    assert grid == (4, 4) and tokens.shape == (1, 16, 32)


def test_sinusoid() -> None:
    table = sinusoid_positions(3, 4)[0]
    angles = torch.tensor([[p, p, p / 100, p / 100] for p in range(3)])
    torch.testing.assert_close(table, torch.where(torch.arange(4) % 2 == 0, angles.sin(), angles.cos()))


def test_bfloat16_is_near_float32() -> None:
    for arch in ("mini", "t2t_mini"):
        model = cascade(arch=arch, token_grids=(2, 4)).eval()
        x = torch.rand(1, 3, 32, 32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = model(x)
        for a, b in zip(low, model(x), strict=True):
            assert (a.float() - b).abs().max() < 0.15 * b.std() + 0.05


# --- weights ------------------------------------------------------------------------------------------------


def official_names(model: nn.Module) -> dict[str, Tensor]:
    """The state of a classifier under the names of the authors' files."""
    names = ("less_less_token", "less_token", "normal_token")
    tables = (
        (
            ".embed.",
            ".tokens_to_token." if ".attention1.features" in str(model.state_dict().keys()) else ".patch_embed.",
        ),
        (".features", ".w"),
        (".relation_reuse.conv1", ".relation_reuse_conv.0"),
        (".relation_reuse.conv2", ".relation_reuse_conv.2"),
        (".reuse.norm", ".feature_resuse_mlp.0"),
        (".reuse.fc", ".feature_resuse_mlp.1.fc"),
    )
    out = {}
    for key, value in model.state_dict().items():
        if key.startswith("data_preprocessor"):
            continue
        part, _, number, rest = key.split(".", 3)
        name = (
            f"{names[int(number)]}.{rest}".replace("fc.", "head.") if part == "head" else f"{names[int(number)]}.{rest}"
        )
        for ours, theirs in tables:
            name = name.replace(ours, theirs)
        if ".blocks." in name and "resuse" not in name:
            for ours, theirs in ((".qkv", ".attn.qkv"), (".proj.", ".attn.proj."), (".fc", ".mlp.fc")):
                name = name.replace(ours, theirs)
        if ".attention" in name:
            name = name.replace(".fc1", ".mlp.0").replace(".fc2", ".mlp.2")
        out[name] = value.clone()
    return out


@pytest.mark.parametrize("arch", ["mini", "t2t_mini"])
def test_official_names(arch: str, tmp_path: Path) -> None:
    """DeiT's and T2T's files load whole, by the path that users call."""
    settings_ = dict(arch=arch, image_size=32, token_grids=(2, 4, 8))
    source = classifier(settings_)
    state = official_names(source)
    converted, family = convert_official({f"module.{key}": value for key, value in state.items()})
    assert family == "dvt" and all(
        converted[key].equal(value) for key, value in source.state_dict().items() if key in converted
    )
    torch.save({"model": state}, tmp_path / "official.pth")
    torch.manual_seed(9)
    target = classifier(settings_)
    for p in target.parameters():
        nn.init.normal_(p)
    OfficialPretrained(str(tmp_path / "official.pth"))(target)
    x = torch.rand(2, 3, 32, 32)
    assert all(a.equal(b) for a, b in zip(source(x), target(x), strict=True))
    with pytest.raises(ValueError, match="not keys of an official DVT"):
        convert_official(state | {"less_token.extra": torch.zeros(1)})


def test_weights_of_another_image_size() -> None:
    """Same patches, other grids: everything loads, positions are resized."""
    small, large = cascade(image_size=32, token_grids=(2, 4)), cascade(image_size=64, token_grids=(4, 8))
    with torch.no_grad():
        for part in small.exits:
            part.pos_embed.copy_(
                torch.arange(part.pos_embed.shape[1], dtype=torch.float)[None, :, None].expand_as(part.pos_embed)
            )
    large.load_state_dict(small.state_dict())
    table = large.exits[0].pos_embed[0, :, 0].detach()
    assert table[0] == 0 and len(table) == 17
    assert table[1:].mean() == pytest.approx(2.5, abs=0.05) and table[1] < table[4] < table[16]
