"""Files of plain ViTs into the backbones on a plain ViT: MMPretrain's, distilled ones, timm's and the authors'."""

from __future__ import annotations

import copy
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hosts import require_host
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tome_backbone import TIMM_MODELS, randomise
from torch import Tensor, nn

from mmvit_plugins.checkpoints import OfficialPretrained
from mmvit_plugins.models import MSViT, Quadformer, ToMe
from mmvit_plugins.models.backbones.mixed_resolution import MixedResolutionViT, _count_leading_positions
from mmvit_plugins.models.backbones.plain_vit import build_plain_vit

require_host("mmpretrain")

ARCH = dict(embed_dims=24, num_layers=4, num_heads=2, feedforward_channels=96)
TIMM = dict(embed_dim=24, depth=4, num_heads=2, patch_size=8, img_size=32, dynamic_img_size=True, dynamic_img_pad=True)
IMAGE = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def build(name: str, **changes: Any) -> MixedResolutionViT:
    """A small model that has one token for each patch of 8 pixels, so that it is a plain ViT."""
    torch.manual_seed(1)
    arch = dict(embed_dims=24, depth=4, num_heads=2)
    if name == "MSViT":
        gate = dict(type="mmvit_plugins.FixedGate", scale="fine")
        return MSViT(**(dict(arch=arch, img_size=32, patch_size=8, gate=gate) | changes)).eval()
    return Quadformer(**(dict(arch=arch, min_patch_size=8, max_patch_size=8, num_tokens=1) | changes)).eval()


def run(model: nn.Module, x: Tensor = IMAGE) -> tuple[Tensor, ...]:
    with torch.no_grad():
        return model(x)


def timm_model(**changes: Any) -> nn.Module:
    timm = pytest.importorskip("timm")
    torch.manual_seed(2)
    return randomise(timm.create_model("vit_tiny_patch16_224", pretrained=False, num_classes=5, **TIMM | changes))


def initialised(model: nn.Module) -> nn.Module:
    model.init_weights()
    model.eval()
    return model


# --- distilled DeiT in MSViT and Quadformer -------------------------------------------------------------------


def distilled_and_plain() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """State dicts of MMPretrain's two classes with the same numbers."""
    config = dict(arch=ARCH, img_size=32, patch_size=8)
    distilled = randomise(build_plain_vit(dict(type="DistilledVisionTransformer", **config))).state_dict()
    plain = build_plain_vit(dict(type="VisionTransformer", **config))
    table = distilled["pos_embed"]
    same = {key: value for key, value in distilled.items() if key != "dist_token"}
    plain.load_state_dict(same | dict(pos_embed=torch.cat([table[:, :1], table[:, 2:]], dim=1)))
    assert table.shape[1] == 18 and not torch.equal(table[:, 0], table[:, 1])
    return distilled, plain.state_dict()


@pytest.mark.parametrize("name", ["MSViT", "Quadformer"])
@pytest.mark.parametrize("changes", [{}, dict(out_type="cls_token"), dict(with_cls_token=False)], ids=str)
def test_distilled_weights_are_those_of_the_plain_vit(name: str, changes: dict[str, Any]) -> None:
    distilled, plain = distilled_and_plain()
    first, second = build(name, **changes), build(name, **changes)
    first.load_state_dict(distilled)  # strict
    second.load_state_dict(plain)
    for got, wanted in zip(run(first), run(second), strict=True):
        assert torch.equal(got, wanted)
    if first.patch_embed.cls_token is not None:
        wanted = distilled["cls_token"] + distilled["pos_embed"][:, :1]
        assert torch.equal(first.patch_embed.cls_token, wanted)


def test_a_distilled_table_is_resized_like_a_plain_one() -> None:
    models = [build("MSViT", img_size=64), build("MSViT", img_size=64)]
    for model, state in zip(models, distilled_and_plain(), strict=True):
        model.load_state_dict(state)
    assert models[0].positions.grid == (8, 8)
    assert torch.equal(models[0].positions.table, models[1].positions.table)


@given(side=st.integers(1, 200), leading=st.integers(0, 2), more=st.integers(0, 2))
@settings(deadline=None)
def test_positions_of_leading_tokens_are_counted(side: int, leading: int, more: int) -> None:
    assert _count_leading_positions(side**2 + leading, min(leading + more, 2)) == leading


@pytest.mark.parametrize("name", ["MSViT", "Quadformer"])
def test_tables_of_no_square_grid_are_refused(name: str) -> None:
    state = distilled_and_plain()[1]
    with pytest.raises(ValueError, match="square grid.* 13 positions"):
        build(name).load_state_dict(state | dict(pos_embed=torch.zeros(1, 13, 24)))


# --- official layouts in MSViT and Quadformer ---------------------------------------------------------------


def official(layout: str) -> dict[str, Tensor]:
    """The numbers of one timm model as others name them."""
    state = timm_model().state_dict()
    if layout == "distilled":
        table = state["pos_embed"]
        state |= dict(dist_token=torch.ones(1, 1, 24), pos_embed=torch.cat([table[:, :1], table], dim=1))
        return state | {"head_dist.weight": torch.zeros(5, 24), "head_dist.bias": torch.zeros(5)}
    if layout == "mae":
        return {k: v for k, v in state.items() if "head" not in k} | dict(mask_token=torch.zeros(1, 1, 8))
    if layout == "moco":
        return {f"module.base_encoder.{key}": value for key, value in state.items()}
    return state


def as_mmpretrain(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """timm's names -> those of MMPretrain's VisionTransformer, read by the model itself."""
    names = {"blocks.": "layers.", ".norm": ".ln", "mlp.fc1": "ffn.layers.0.0", "mlp.fc2": "ffn.layers.1"}
    names |= {"patch_embed.proj.": "patch_embed.projection."}
    renamed = {}
    for key, value in state.items():
        for old, new in names.items():
            key = key.replace(old, new)
        renamed[f"ln1.{key[5:]}" if key.startswith("norm.") else key] = value
    return {key: value for key, value in renamed.items() if not key.startswith("head")}


@pytest.mark.parametrize("name", ["MSViT", "Quadformer"])
@pytest.mark.parametrize("layout", ["timm", "distilled", "mae", "moco", "mmpretrain", "classifier"])
def test_official_files_load(name: str, layout: str, tmp_path: Path) -> None:
    reference = timm_model()
    state = official(layout)
    if layout in ("mmpretrain", "classifier"):
        state = as_mmpretrain(state)
    if layout == "classifier":
        state = {f"backbone.{key}": v for key, v in state.items()} | {"head.layers.head.weight": torch.zeros(5, 24)}
    torch.save({"model": state} if layout == "mae" else state, tmp_path / "file.pth")
    init = dict(type="mmvit_plugins.OfficialPretrained", checkpoint=str(tmp_path / "file.pth"))
    model = initialised(build(name, out_type="cls_token", init_cfg=init))
    plain = build(name, out_type="cls_token")
    plain.load_state_dict(as_mmpretrain(reference.state_dict()))
    for key, value in plain.state_dict().items():
        assert torch.equal(model.state_dict()[key], value), key
    if name == "MSViT":  # learned positions: with fine patches alone it is the file's model
        with torch.no_grad():
            wanted = reference.forward_features(IMAGE)[:, 0]
        torch.testing.assert_close(run(model)[-1], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("part", [None, "backbone"])
def test_a_whole_classifier_reads_backbone_and_head(part: str | None, tmp_path: Path) -> None:
    from mmengine.registry import DefaultScope
    from mmpretrain.registry import MODELS

    torch.save(official("timm"), tmp_path / "file.pth")
    with DefaultScope.overwrite_default_scope("mmpretrain"):
        backbone = dict(type="mmvit_plugins.MSViT", arch=dict(embed_dims=24, depth=4, num_heads=2), patch_size=8)
        backbone |= dict(img_size=32, out_type="cls_token", out_indices=(3,))
        head = dict(type="VisionTransformerClsHead", num_classes=5, in_channels=24)
        model = MODELS.build(dict(type="ImageClassifier", backbone=backbone, head=head))
    OfficialPretrained(str(tmp_path / "file.pth"), part=part)(model if part is None else model.backbone)
    wanted = timm_model()
    assert torch.equal(model.backbone.layers[3].attn.qkv.weight, wanted.blocks[3].attn.qkv.weight)
    assert torch.equal(model.head.layers.head.weight, wanted.head.weight) is (part is None)


def test_what_the_file_lacks_starts_as_without_it(tmp_path: Path) -> None:
    torch.save(official("timm"), tmp_path / "file.pth")
    init = dict(type="mmvit_plugins.OfficialPretrained", checkpoint=str(tmp_path / "file.pth"))
    gate = dict(type="mmvit_plugins.PatchGate", init_share=0.9)
    model = initialised(build("MSViT", gate=gate, init_cfg=init))
    assert torch.equal(model.layers[1].attn.qkv.weight, timm_model().blocks[1].attn.qkv.weight)
    assert math.isclose(model.gate.decide.bias.item(), math.log(9), rel_tol=1e-5)
    assert not any(layer[0].bias.any() for layer in model.gate.hidden)
    from torchvision.models import shufflenet_v2_x0_5

    torch.manual_seed(5)
    scorer = randomise(shufflenet_v2_x0_5(weights=None))
    torch.save(scorer.state_dict(), tmp_path / "scorer.pth")
    config = dict(type="mmvit_plugins.FeatureScorer", checkpoint=str(tmp_path / "scorer.pth"))
    model = initialised(build("Quadformer", max_patch_size=16, num_tokens=7, scorer=config, init_cfg=init))
    assert torch.equal(model.tokenizer.scorer.network[0][0].weight, scorer.conv1[0].weight)
    # Its own file has the gate's weights, which are kept.
    own = initialised(build("MSViT", gate=gate))
    torch.save(own.state_dict(), tmp_path / "own.pth")
    init["checkpoint"] = str(tmp_path / "own.pth")
    again = initialised(build("MSViT", gate=gate, init_cfg=init))
    assert all(torch.equal(again.state_dict()[key], value) for key, value in own.state_dict().items())


@pytest.mark.parametrize("name", ["MSViT", "Quadformer"])
@pytest.mark.parametrize(
    "changes, named",
    [(dict(init_values=0.3), "gamma1"), (dict(pre_norm=True), "pre_norm"), (dict(depth=5), "layers.4")],
)
def test_vits_that_compute_more_are_refused(name: str, changes: dict, named: str, tmp_path: Path) -> None:
    torch.save(timm_model(**changes).state_dict(), tmp_path / "file.pth")
    with pytest.raises(ValueError, match=f"plain ViT of 4 layers.*{named}"):
        OfficialPretrained(str(tmp_path / "file.pth"))(build(name))


def test_fewer_layers_are_read_for_fewer_stages(tmp_path: Path) -> None:
    torch.save(timm_model().state_dict(), tmp_path / "file.pth")
    model = build("MSViT", out_indices=(1,))
    OfficialPretrained(str(tmp_path / "file.pth"))(model)
    assert len(model.layers) == 2
    assert torch.equal(model.layers[1].attn.qkv.weight, timm_model().blocks[1].attn.qkv.weight)


# --- timm's files in ToMe around timm's models --------------------------------------------------------------


def around_timm(**changes: Any) -> dict[str, Any]:
    return dict(type="mmpretrain.TIMMBackbone", model_name="vit_tiny_patch16_224", **TIMM | changes)


@pytest.mark.parametrize("kind", TIMM_MODELS)
@pytest.mark.parametrize("way", ["official", "outer", "inner", "load_state_dict"])
def test_timm_files_load_into_tome_around_timm(kind: str, way: str, tmp_path: Path) -> None:
    reference, config = timm_model(**TIMM_MODELS[kind]), around_timm(**TIMM_MODELS[kind])
    path = str(tmp_path / "timm.pth")
    torch.save(reference.state_dict(), path)
    assert "head.weight" in reference.state_dict()
    plain = dict(type="Pretrained", checkpoint=path)
    init = dict(official=dict(type="mmvit_plugins.OfficialPretrained", checkpoint=path), outer=plain).get(way)
    model = ToMe(model=config | dict(init_cfg=plain) if way == "inner" else config, r=0, out_type="raw", init_cfg=init)
    if way == "load_state_dict":
        model.load_state_dict(reference.state_dict())  # strict
    else:
        model.init_weights()
    model.eval()
    with torch.no_grad():
        wanted = reference.forward_features(IMAGE)
    assert torch.equal(run(model)[0], wanted)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        twin.load_state_dict(reference.state_dict())
        assert torch.equal(run(twin)[0], wanted)


def test_heads_own_files_and_other_sizes(tmp_path: Path) -> None:
    from mmengine.registry import DefaultScope
    from mmpretrain.registry import MODELS
    from timm.layers import resample_abs_pos_embed

    reference = timm_model()
    torch.save(reference.state_dict(), tmp_path / "timm.pth")
    with DefaultScope.overwrite_default_scope("mmpretrain"):
        backbone = dict(type="mmvit_plugins.ToMe", model=around_timm(), out_type="cls_token")
        head = dict(type="VisionTransformerClsHead", num_classes=5, in_channels=24)
        models = [MODELS.build(dict(type="ImageClassifier", backbone=backbone, head=head)) for _ in range(2)]
    OfficialPretrained(str(tmp_path / "timm.pth"))(models[0])
    state = models[0].state_dict()
    assert torch.equal(state["head.layers.head.weight"], reference.head.weight)
    assert torch.equal(state["backbone.model.timm_model.blocks.3.mlp.fc2.weight"], reference.blocks[3].mlp.fc2.weight)
    torch.save(state, tmp_path / "own.pth")
    OfficialPretrained(str(tmp_path / "own.pth"))(models[1])
    assert all(torch.equal(models[1].state_dict()[key], value) for key, value in state.items())
    bare = ToMe(model=around_timm())
    torch.save({k.removeprefix("backbone."): v for k, v in state.items() if "backbone" in k}, tmp_path / "bare.pth")
    OfficialPretrained(str(tmp_path / "bare.pth"))(bare)
    assert torch.equal(bare.model.timm_model.pos_embed, reference.pos_embed)
    wanted = resample_abs_pos_embed(reference.pos_embed, [8, 8])
    for kind in ("mmvit_plugins.OfficialPretrained", "Pretrained"):
        init = dict(type=kind, checkpoint=str(tmp_path / "timm.pth"))
        larger = initialised(ToMe(model=around_timm(img_size=64), init_cfg=init))
        assert torch.equal(larger.model.timm_model.pos_embed, wanted)


def test_another_timm_model_is_refused(tmp_path: Path) -> None:
    torch.save(timm_model().state_dict(), tmp_path / "timm.pth")
    for changes in (dict(qk_norm=True), dict(embed_dim=32)):
        with pytest.raises(ValueError, match="does not fit ToMe"):
            OfficialPretrained(str(tmp_path / "timm.pth"))(ToMe(model=around_timm(**changes)))
