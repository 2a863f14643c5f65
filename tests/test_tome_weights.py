"""Weights of plain ViTs in ToMe: the layouts of public releases, MMPretrain's checkpoints, depths of layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from backbone_cases import image
from test_tome_backbone import PLAIN, SMALL, randomise, run
from torch import Tensor

from mmvit_plugins.checkpoints import OfficialPretrained, convert_official
from mmvit_plugins.models import ToMe
from mmvit_plugins.models.backbones.plain_vit import build_plain_vit
from mmvit_plugins.models.backbones.tome_weights import convert_tome


def official(kind: str) -> dict[str, Tensor]:
    """A state dict with the keys of a public release, for ``SMALL`` with 16 patches."""
    shapes = {"cls_token": (1, 1, 24), "pos_embed": (1, 17, 24), "patch_embed.proj.weight": (24, 3, 8, 8)}
    shapes |= {"patch_embed.proj.bias": (24,), "norm.weight": (24,), "norm.bias": (24,)}
    linear = {"attn.qkv": (72, 24), "attn.proj": (24, 24), "mlp.fc1": (48, 24), "mlp.fc2": (24, 48)}
    for i in range(3):
        for name, shape in linear.items():
            shapes |= {f"blocks.{i}.{name}.weight": shape, f"blocks.{i}.{name}.bias": shape[:1]}
        for name in ("norm1", "norm2"):
            shapes |= {f"blocks.{i}.{name}.weight": (24,), f"blocks.{i}.{name}.bias": (24,)}
    if kind == "dinov2":
        shapes |= {f"blocks.{i}.ls{j}.gamma": (24,) for i in range(3) for j in (1, 2)}
    if kind == "distilled":
        shapes |= {
            "dist_token": (1, 1, 24),
            "pos_embed": (1, 18, 24),
            "head_dist.weight": (5, 24),
            "head_dist.bias": (5,),
        }
    if kind == "mae":
        shapes |= {"mask_token": (1, 1, 8), "decoder_pred.weight": (4, 8)}
    if kind in ("timm", "distilled"):
        shapes |= {"head.weight": (5, 24), "head.bias": (5,)}
    generator = torch.Generator().manual_seed(3)
    state = {key: torch.randn(shape, generator=generator) * 0.1 for key, shape in shapes.items()}
    if kind == "moco":
        other = {f"momentum_encoder.{key}": value for key, value in state.items()}
        return {f"module.base_encoder.{k}": v for k, v in state.items()} | {f"module.{k}": v for k, v in other.items()}
    return clip_names(state) if kind == "clip" else state


def clip_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same values under OpenAI's names, with a little of the text model."""
    names = {
        "norm1": "ln_1",
        "norm2": "ln_2",
        "mlp.fc1": "mlp.c_fc",
        "mlp.fc2": "mlp.c_proj",
        "attn.proj": "attn.out_proj",
    }
    renamed = {
        "visual.class_embedding": state["cls_token"].flatten(),
        "visual.positional_embedding": state["pos_embed"][0],
        "visual.conv1.weight": state["patch_embed.proj.weight"],
        "visual.proj": torch.zeros(24, 8),
        "transformer.resblocks.0.ln_1.weight": torch.zeros(8),
        "logit_scale": torch.zeros(()),
    }
    for part in ("weight", "bias"):
        renamed |= {f"visual.ln_pre.{part}": state[f"norm.{part}"] + 1, f"visual.ln_post.{part}": state[f"norm.{part}"]}
    for key, value in state.items():
        if key.startswith("blocks."):
            key = key.replace("attn.qkv.", "attn.in_proj_")
            for ours, theirs in names.items():
                key = key.replace(f".{ours}.", f".{theirs}.")
            renamed[key.replace("blocks.", "visual.transformer.resblocks.")] = value
    return renamed


@pytest.mark.parametrize("kind", ["timm", "distilled", "mae", "moco", "clip", "dinov2"])
def test_public_layouts(kind: str, tmp_path: Any) -> None:
    extra = dict(distilled=PLAIN["distilled"], clip=PLAIN["CLIP"], dinov2=PLAIN["ViT"] | dict(layer_scale_init_value=1))
    config = SMALL | extra.get(kind, PLAIN["ViT"])
    state = official(kind)
    torch.save({"state_dict": state}, tmp_path / "official.pth")
    model = ToMe(
        model=config, init_cfg=dict(type="mmvit_plugins.OfficialPretrained", checkpoint=str(tmp_path / "official.pth"))
    )
    model.init_weights()
    converted, family = convert_official(state)
    assert family == "tome"
    own = model.state_dict()
    assert {f"backbone.{key}" for key in own} == {key for key in converted if key.startswith("backbone.")}
    assert all(torch.equal(own[key], converted[f"backbone.{key}"]) for key in own)
    values = official("timm" if kind == "clip" else kind)
    block = next(v for k, v in values.items() if k.endswith("blocks.1.mlp.fc2.weight"))
    assert torch.equal(own["model.layers.1.ffn.layers.1.weight"], block)
    assert {key for key in converted if key.startswith("head.")} == {
        f"head.layers.{key}" for key in state if key.startswith("head")
    }


def test_unknown_keys_are_refused() -> None:
    with pytest.raises(ValueError, match="patch_embed.other"):
        convert_tome(official("timm") | {"patch_embed.other": torch.zeros(1)})


def test_mmpretrains_checkpoints_and_other_sizes(tmp_path: Any) -> None:
    plain = randomise(build_plain_vit(SMALL | PLAIN["ViT"]))
    whole = {f"backbone.{key}": value for key, value in plain.state_dict().items()} | {
        "head.fc.weight": torch.zeros(5, 24)
    }
    torch.save({"state_dict": whole}, tmp_path / "classifier.pth")
    official_way = dict(type="mmvit_plugins.OfficialPretrained", checkpoint=str(tmp_path / "classifier.pth"))
    mmengine_way = dict(type="Pretrained", checkpoint=str(tmp_path / "classifier.pth"), prefix="backbone.")
    for init in (official_way, mmengine_way):
        model = ToMe(model=SMALL | PLAIN["ViT"], r=0, init_cfg=init).eval()
        model.init_weights()
        assert torch.equal(run(model, image(1, 32, 32))[0], run(plain, image(1, 32, 32))[0])
        larger = ToMe(model=SMALL | PLAIN["ViT"] | dict(img_size=64), r=0, init_cfg=init).eval()
        larger.init_weights()
        # A table resized once, or in each pass.
        torch.testing.assert_close(
            run(larger, image(1, 64, 64))[0], run(plain, image(1, 64, 64))[0], rtol=1e-4, atol=1e-5
        )
        classless = ToMe(model=SMALL | PLAIN["no_class"], init_cfg=init)
        classless.init_weights()
        assert torch.equal(classless.model.pos_embed, plain.pos_embed[:, 1:])
    with pytest.raises(ValueError, match="does not fit"):
        OfficialPretrained(str(tmp_path / "classifier.pth"))(
            ToMe(model=SMALL | dict(type="DistilledVisionTransformer"))
        )


def test_layer_wise_depths() -> None:
    model = ToMe(model=SMALL | PLAIN["ViT"])
    depth = {name: model.get_layer_depth(f"backbone.{name}", "backbone.") for name, _ in model.named_parameters()}
    plain = build_plain_vit(SMALL | PLAIN["ViT"])
    assert depth == {f"model.{name}": plain.get_layer_depth(name) for name, _ in plain.named_parameters()}
    assert model.get_layer_depth("head.fc.weight", "backbone.") == (4, 5)
