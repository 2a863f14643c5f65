"""ToMe around real plain ViTs: nothing changes without merging, and merging does what the paper says."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from backbone_cases import image
from hosts import require_host
from mmengine.registry import DefaultScope
from torch import Tensor, nn

from mmvit_plugins.models import SimpleFeaturePyramid, SparseViT, ToMe, ToMeSwin
from mmvit_plugins.models.backbones import tome_swin
from mmvit_plugins.models.backbones.plain_vit import MMPretrainViT, build_plain_vit
from mmvit_plugins.models.backbones.tome_swin import match_windows, run_merging_swin_block
from mmvit_plugins.models.token_reduction import TokenMap

require_host("mmpretrain")

ARCH = dict(embed_dims=24, num_layers=3, num_heads=2, feedforward_channels=48)
SMALL = dict(arch=ARCH, img_size=32, patch_size=8)
QUICK_GELU = dict(layer_cfgs=dict(act_cfg=dict(type="mmpretrain.QuickGELU")), pre_norm=True)
PLAIN = {
    "ViT": dict(type="VisionTransformer"),
    "layer_scale": dict(type="VisionTransformer", layer_scale_init_value=0.3, qkv_bias=False),
    "CLIP": dict(type="VisionTransformer", **QUICK_GELU),
    "swiglu": dict(type="VisionTransformer", layer_cfgs=dict(ffn_type="swiglu_fused")),
    "no_class": dict(type="VisionTransformer", with_cls_token=False, out_type="featmap"),
    "distilled": dict(type="DistilledVisionTransformer"),
    "DeiT3": dict(type="DeiT3"),
    "MoCoV3": dict(type="MoCoV3ViT", stop_grad_conv1=True),
}
TIMM = dict(embed_dim=24, depth=3, num_heads=2, patch_size=8, img_size=32, dynamic_img_size=True, dynamic_img_pad=True)
TIMM_MODELS = {
    "plain": {},
    "registers": dict(reg_tokens=3, init_values=0.3, no_embed_class=True),
    "qk_norm": dict(qk_norm=True, init_values=0.3),
}


def randomise(model: nn.Module) -> nn.Module:
    """Weights that leave nothing at its neutral value."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            scale = parameter[0].numel() ** -0.5 if parameter.dim() > 1 else 0.3
            parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)
    model.eval()  # MMPretrain's train() returns None
    return model


def pair(config: dict[str, Any], **settings: Any) -> tuple[nn.Module, ToMe]:
    """The plain model and ToMe around it with the same weights, read from the plain model's state dict."""
    plain = randomise(build_plain_vit(config))
    model = ToMe(model=config, **settings).eval()
    model.load_state_dict(plain.state_dict())  # without `model.`: MMPretrain's checkpoints fit
    return plain, model


def run(model: nn.Module, x: Tensor) -> Any:
    with torch.no_grad():
        return model(x)


def flat(outputs: Any) -> list[Tensor]:
    return [t for out in outputs for t in (out if isinstance(out, tuple) else (out,))]


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("out_type", ["cls_token", "featmap", "avg_featmap", "raw"])
def test_without_merging_it_is_bit_identical(name: str, out_type: str) -> None:
    if (name, out_type) in {("no_class", "cls_token"), ("DeiT3", "avg_featmap")}:  # DeiT3 builds no norm for the latter
        pytest.skip("the plain model does not have it")
    config = SMALL | PLAIN[name] | dict(out_type=out_type, out_indices=[0, 2])
    plain, model = pair(config, r=0)
    for size in ((32, 32), (41, 19)):
        wanted, got = flat(run(plain, image(2, *size))), flat(run(model, image(2, *size)))
        assert len(got) == len(wanted) and all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


@pytest.mark.parametrize("name", PLAIN)
def test_the_halves_of_a_block_make_the_block(name: str) -> None:
    """A threshold that no pair reaches runs everything through the halves, with sizes of 1."""
    plain, model = pair(SMALL | PLAIN[name] | dict(out_type="featmap", out_indices=[0, 2]), r=None, threshold=1.0)
    for a, b in zip(run(model, image(2, 41, 19)), run(plain, image(2, 41, 19)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", TIMM_MODELS)
def test_timm_models_keep_registers_layer_scale_and_norms(name: str) -> None:
    pytest.importorskip("timm")
    config = dict(type="TIMMBackbone", model_name="vit_tiny_patch16_224", **TIMM, **TIMM_MODELS[name])
    plain = randomise(build_plain_vit(config))
    for settings in (dict(r=0), dict(r=None, threshold=1.0)):
        model = ToMe(model=config, **settings).eval()
        model.load_state_dict(plain.state_dict())
        x = image(2, 41, 19)
        (wanted,), (got,) = run(plain, x), run(model, x)
        assert torch.equal(got, wanted) if settings == dict(r=0) else (got - wanted).abs().max() < 1e-4
    model = ToMe(model=config, r=3, out_type="featmap", out_indices=(1, 2)).eval()
    lead = 1 + TIMM_MODELS[name].get("reg_tokens", 0)
    *_, last = model.run_blocks(image(2, 41, 19))
    assert last.x.shape[1] == lead + 18 - 9
    assert (last.token_map.hard()[:, :lead] == torch.arange(lead)).all(), "class and register tokens never merge"
    assert [tuple(y.shape) for y in model(image(2, 41, 19))] == [(2, 24, 6, 3)] * 2


def test_models_that_compute_otherwise_are_refused() -> None:
    with pytest.raises(ValueError, match="ViTEVA02"):
        ToMe(model=dict(type="ViTEVA02", arch="tiny"))

    from mmpretrain.models.backbones import VisionTransformer

    class Other(VisionTransformer):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)

    with pytest.raises(ValueError, match="Other"):
        MMPretrainViT.check(Other(**SMALL))


def test_a_missing_mmpretrain_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import mmvit_plugins.models.backbones.plain_vit as module

    def missing(name: str) -> None:
        raise ImportError(f"{name} is not installed")

    monkeypatch.setattr(module, "require", missing)
    with pytest.raises(ImportError, match="mmpretrain is not installed"):
        ToMe("mini")
    assert "mmpretrain" in sys.modules  # only because the tests above needed it


def test_a_token_of_size_s_counts_s_times() -> None:
    """Proportional attention through the fused kernel (section 3): as attention over the repeated tokens."""
    layer = randomise(build_plain_vit(SMALL | dict(type="VisionTransformer"))).layers[0]
    x, size = torch.randn(2, 9, 24), torch.tensor([[1, 2, 3, 1, 5, 1, 1, 4, 1], [2] * 9]).float()
    got, _ = MMPretrainViT.attend(layer, x, size.log()[:, None, None, :])
    for i in range(2):
        repeated = x[i : i + 1].repeat_interleave(size[i].long(), dim=1)
        wanted, _ = MMPretrainViT.attend(layer, repeated, None)
        first = size[i].cumsum(0).long() - size[i].long()
        torch.testing.assert_close(got[i], wanted[0, first], rtol=1e-4, atol=1e-5)
    plain, _ = MMPretrainViT.attend(layer, x, None)
    torch.testing.assert_close(got[1], plain[1], rtol=1e-4, atol=1e-5)
    assert (got[0] - plain[0]).abs().max() > 1e-2


@pytest.mark.parametrize("name", ["ViT", "no_class", "distilled"])
def test_maps_lie_in_raster_order_and_hold_no_class_token(name: str) -> None:
    """Blocks that change nothing: every place shows the mean of the tokens that merged with it."""
    model = ToMe(model=SMALL | PLAIN[name] | dict(out_type="featmap", final_norm=False), r=4, out_indices=(0, 1, 2))
    randomise(model)
    for layer in model.model.layers:
        for linear in (layer.attn.proj, layer.ffn.layers[1]):
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)
    x = image(2, 41, 19)
    tokens = MMPretrainViT.embed(model.model, x)[0][:, model.num_prefix :]
    maps = model.token_maps(x)
    assert [token_map.num for _, token_map, _, _ in maps] == [14, 10, 6]
    for y, (_, token_map, grid, _) in zip(run(model, x), maps, strict=True):
        assert grid == (6, 3)
        wanted = token_map.restore(token_map.reduce(tokens))
        torch.testing.assert_close(y.flatten(2).transpose(1, 2), wanted, rtol=1e-4, atol=1e-5)


def test_means_are_weighted_by_size() -> None:
    """MAE's pooling: sum of size * token / number of patches, then the norm."""
    config = SMALL | dict(type="VisionTransformer", out_type="avg_featmap", final_norm=False)
    _, model = pair(config, r=3)
    x = image(2, 32, 32)
    *_, last = model.run_blocks(x)
    assert last.size[:, 1:].sum(dim=1).tolist() == [16.0, 16.0]
    wanted = model.model.ln2((last.x * last.size.unsqueeze(-1))[:, 1:].sum(dim=1) / 16)
    torch.testing.assert_close(run(model, x)[0], wanted)


@pytest.mark.parametrize(
    "r, left", [(2, [15, 13, 11]), ([5, 0, 1], [12, 12, 11]), ((2, -1), [13, 11, 11]), (40, [9, 5, 3])], ids=str
)
def test_how_many_tokens_are_left(r: Any, left: list[int]) -> None:
    _, model = pair(SMALL | PLAIN["ViT"], r=r)
    with torch.no_grad():
        assert [tokens.x.shape[1] for tokens in model.run_blocks(image(1, 32, 32))] == left


def test_the_class_token_does_not_depend_on_the_shortcut_in_the_last_block() -> None:
    for name in ("ViT", "distilled"):
        _, model = pair(SMALL | PLAIN[name], r=3)
        x = image(2, 32, 32)
        *_, last = model.run_blocks(x)
        whole = MMPretrainViT.final_norm(model.model, last.x)
        for i, token in enumerate(flat(run(model, x))):
            torch.testing.assert_close(token, whole[:, i], rtol=1e-4, atol=1e-5)


def test_a_threshold_merges_more_in_a_plainer_image() -> None:
    _, model = pair(SMALL | PLAIN["ViT"] | dict(out_type="featmap"), r=None, threshold=0.9)
    busy, plain = image(1, 64, 64), torch.zeros(1, 3, 64, 64)
    sizes = [int((list(model.run_blocks(x))[-1].size > 0).sum()) for x in (busy, plain)]
    assert sizes[1] < sizes[0]
    together = run(model, torch.cat([busy, plain]))[0]
    for i, x in enumerate((busy, plain)):
        torch.testing.assert_close(together[i : i + 1], run(model, x)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [(48, 48), (41, 19), (8, 8)], ids=str)
def test_windows_without_merging(size: tuple[int, int]) -> None:
    """All blocks global: windows are only an order of the tokens. One window over all: likewise."""
    config = SMALL | PLAIN["no_class"]
    plain, whole = pair(config, r=0, window_size=4, global_blocks=(0, 1, 2))
    one = ToMe(model=config, r=0, window_size=9).eval()
    one.load_state_dict(whole.state_dict())
    for model in (whole, one):
        torch.testing.assert_close(run(model, image(2, *size))[0], run(plain, image(2, *size))[0], rtol=1e-4, atol=1e-5)


def test_windows_see_only_themselves_and_merge_alike() -> None:
    model = randomise(ToMe(model=SMALL | PLAIN["no_class"], r=3, window_size=4))
    x = image(1, 64, 64)
    changed = x.clone()
    changed[:, :, :32, :32] += 1
    apart = (run(model, x)[0] != run(model, changed)[0]).any(dim=1)[0]
    assert apart[:4, :4].all() and not apart[4:].any() and not apart[:, 4:].any()
    ((_, token_map, grid, _),) = model.token_maps(x)
    assert grid == (8, 8) and token_map.num == 4 * (16 - 9)
    assert [len(token_map.hard().view(8, 8)[:4, 4:].unique())] == [7]
    averaged = randomise(ToMe(model=SMALL | PLAIN["no_class"] | dict(out_type="avg_featmap"), r=3, window_size=3))
    *_, last = averaged.run_blocks(image(2, 41, 19))
    assert last.size.view(2, -1).sum(dim=1).tolist() == [18.0, 18.0], "padding has no weight"
    assert run(averaged, image(2, 41, 19))[0].isfinite().all()


def test_windows_refuse_a_class_token() -> None:
    with pytest.raises(ValueError, match="with_cls_token=False"):
        ToMe(model=SMALL | PLAIN["ViT"], window_size=4)


# --- the neck and Swin --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(4, 5), (1, 1), (7, 3)], ids=str)
def test_the_simple_pyramid(size: tuple[int, int]) -> None:
    neck = SimpleFeaturePyramid(16, 8, num_outs=5)
    x = torch.randn(2, 16, *size)
    maps = neck((torch.zeros(1), x))
    sizes = [(4 * size[0], 4 * size[1]), (2 * size[0], 2 * size[1]), size]
    for _ in range(2):
        sizes.append(tuple(-(-side // 2) for side in sizes[-1]))
    assert [tuple(y.shape) for y in maps] == [(2, 8, *s) for s in sizes]
    sum(y.square().sum() for y in maps).backward()
    assert not [name for name, p in neck.named_parameters() if p.grad is None]


@pytest.mark.parametrize("changes", [dict(scales=(3,)), dict(scales=()), dict(num_outs=3)], ids=str)
def test_the_simple_pyramid_refuses(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="scales|num_outs"):
        SimpleFeaturePyramid(16, **changes)


SWIN = dict(arch=dict(dims=(8, 16), depths=(2, 2), heads=(1, 2)), window_size=4)


@pytest.mark.parametrize("size", [(64, 64), (45, 70)], ids=str)
def test_swin_without_merging(size: tuple[int, int]) -> None:
    plain = randomise(SparseViT(**SWIN))
    model = ToMeSwin(**SWIN, r=0).eval()
    model.load_state_dict(plain.state_dict())
    x = image(2, *size)
    assert all(torch.equal(a, b) for a, b in zip(run(model, x), run(plain, x), strict=True))
    with torch.no_grad():
        y, stage = plain.patch_embed(x), plain.stages[0]
        wanted, shifts = stage(y.clone(), (0.0, 0.0), 0), stage._shifts(*y.shape[1:3])
        for j, block in enumerate(stage.blocks):
            y = run_merging_swin_block(block, 0, 4, shifts[j], y)
    torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-5)


def test_swin_merges_alike_in_every_window() -> None:
    model = randomise(ToMeSwin(**SWIN, r=(6, 0.25)))
    assert model.merged_per_window == (6, 4)
    numpy = ToMeSwin(**SWIN, r=(np.int64(6), np.float64(0.25)))
    assert numpy.merged_per_window == (6, 4) and {type(r) for r in numpy.merged_per_window} == {int}
    assert ToMe(model=SMALL | PLAIN["ViT"], r=np.int64(3)).r == [3, 3, 3]
    maps = model.token_maps(image(1, 64, 64))
    assert [(i, token_map.num, grid, cells) for i, token_map, grid, cells in maps] == [
        (0, 16 * 10, (16, 16), (16, 10)),
        (1, 4 * 12, (8, 8), (4, 12)),
    ]
    for r in (-1, 1.0, (1, 2, 3), True):
        with pytest.raises(ValueError, match="r must"):
            ToMeSwin(**SWIN, r=r)


def test_swin_gives_a_merged_group_one_change() -> None:
    """Tokens alike in a window get the same feed-forward update; a constant map stays constant."""
    model = randomise(ToMeSwin(**SWIN, r=8))
    block = model.stages[0].blocks[0]
    x = torch.randn(1, 1, 1, 8).expand(1, 8, 8, 8).contiguous()
    with torch.no_grad():
        y = run_merging_swin_block(block, 8, 4, 0, x)
        plain = run_merging_swin_block(block, 0, 4, 0, x)
    torch.testing.assert_close(y, plain, rtol=1e-4, atol=1e-5)


def test_swin_in_bfloat16_differs_by_its_choices_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """With float32's pairs, autocast is as close to float32 as in models that choose nothing."""
    model, x, chosen = randomise(ToMeSwin(**SWIN, r=(6, 4))), image(2, 64, 64), []

    def record(*arguments: Any) -> TokenMap:
        chosen.append(match_windows(*arguments))
        return chosen[-1]

    monkeypatch.setattr(tome_swin, "match_windows", record)
    wanted, again = run(model, x), iter(chosen)
    monkeypatch.setattr(tome_swin, "match_windows", lambda *arguments: next(again))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = run(model, x)
    assert len(chosen) == 4 and next(again, None) is None
    assert all(0 < (a.float() - b).norm() / b.norm() < 0.03 for a, b in zip(got, wanted, strict=True))


def test_builds_in_every_scope() -> None:
    from mmengine.registry import MODELS

    for scope in ("mmseg", "mmdet", "mmpretrain", "mmengine"):
        with DefaultScope.overwrite_default_scope(scope):
            assert type(MODELS.build(dict(type="mmvit_plugins.ToMe", arch="mini"))) is ToMe
