"""EfficientViT's heads for MMPretrain and MMSegmentation, its converter, configs and training hook."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from backbone_cases import image
from hosts import require_host
from mmengine.config import Config, ConfigDict
from reference.efficientvit import ReferenceClsHead, ReferenceEfficientViT, ReferenceModel, ReferenceSegHead
from test_efficientvit import SMALL, stirred
from test_export import check_onnx, export_onnx
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmvit_plugins.checkpoints import LAYOUTS, OfficialPretrained, convert_official
from mmvit_plugins.engine import RandomInputSizeHook
from mmvit_plugins.models import EfficientViT
from mmvit_plugins.models.backbones.efficientvit import SERIES
from mmvit_plugins.models.layers.linear_attention import relu_linear_attention
from mmvit_plugins.registry import MODELS

CONFIGS = Path(__file__).resolve().parent.parent / "configs" / "efficientvit"


def seg_pair(series: str, final: float) -> tuple[ReferenceModel, nn.ModuleDict]:
    """Oracle and ours, both with a segmentation head; ours without the oracle's weights yet."""
    require_host("mmseg")
    large, dims = series == "l", SMALL[series]["widths"][2:]
    head = ReferenceSegHead(dims, 8, 2, 1 if large else 4, final, 5, large)
    reference = stirred(ReferenceModel(ReferenceEfficientViT(**SMALL[series]), head))
    options = dict(channels=8, depth=2, final_expand=final, num_classes=5, in_channels=dims, expand_ratio=4)
    if large:
        options.update(block="fused", expand_ratio=1)
    ours = nn.ModuleDict(
        dict(
            backbone=EfficientViT(arch=SMALL[series], out_indices=(1, 2, 3)),
            decode_head=MODELS.build(
                dict(type="mmvit_plugins.EfficientViTSegHead", act=SERIES[series]["act"], **options)
            ),
        )
    ).eval()
    return reference, ours


@pytest.mark.parametrize("series", SMALL)
@pytest.mark.parametrize("final", [1, 4])
def test_segmentation_head_is_the_oracles(series: str, final: float, tmp_path: Path) -> None:
    """From an official file through the converter; at sizes that are multiples of 32, where the authors' head works."""
    reference, ours = seg_pair(series, final)
    torch.save({"state_dict": reference.state_dict()}, tmp_path / "official.pth")
    OfficialPretrained(str(tmp_path / "official.pth"))(ours)
    x = image(2, 64, 96)
    with torch.no_grad():
        wanted, got = reference(x), ours["decode_head"](ours["backbone"](x))
    assert (got - wanted).abs().max() <= 3e-5 * wanted.std()


def test_official_weights_survive_initialisation(tmp_path: Path) -> None:
    """mmengine initialises children after their parent; convolutions would draw new weights then."""
    reference, ours = seg_pair("b", 4)
    torch.save(reference.state_dict(), tmp_path / "official.pth")
    loader = dict(type="mmvit_plugins.OfficialPretrained", checkpoint=str(tmp_path / "official.pth"))
    wanted, _ = convert_official(reference.state_dict())
    for name, part in ours.items():
        part.init_cfg = loader
        part.init_weights()
        for key, value in part.state_dict().items():
            assert torch.equal(value, wanted[f"{name}.{key}"]), key


@pytest.mark.parametrize("size", [(1, 1), (7, 300), (65, 90), (100, 33)], ids=str)
def test_segmentation_head_takes_any_size(size: tuple[int, int]) -> None:
    _, ours = seg_pair("b", 4)
    with torch.no_grad():
        out = ours["decode_head"](ours["backbone"](image(2, *size)))
    assert tuple(out.shape) == (2, 5, -(-size[0] // 8), -(-size[1] // 8)) and out.isfinite().all()


def test_classification_head_is_the_oracles(tmp_path: Path) -> None:
    require_host("mmpretrain")
    for series in SMALL:
        act = nn.GELU(approximate="tanh") if series == "l" else nn.Hardswish()
        eps, dim = SERIES[series]["norm_eps"], SMALL[series]["widths"][-1]
        head = ReferenceClsHead(dim, (24, 20), 7, eps, act)
        reference = stirred(ReferenceModel(ReferenceEfficientViT(**SMALL[series]), head))
        torch.save(reference.state_dict(), tmp_path / "official.pth")
        options = dict(num_classes=7, in_channels=dim, widths=(24, 20), act=SERIES[series]["act"])
        ours = nn.ModuleDict(
            dict(
                backbone=EfficientViT(arch=SMALL[series]),
                head=MODELS.build(dict(type="mmvit_plugins.EfficientViTClsHead", **options)),
            )
        ).eval()
        OfficialPretrained(str(tmp_path / "official.pth"))(ours)
        x = image(2, 64, 40)
        with torch.no_grad():
            wanted, got = reference(x), ours["head"](ours["backbone"](x))
        assert (got - wanted).abs().max() <= 3e-5 * wanted.std()


def test_deployed_heads_give_the_same() -> None:
    require_host("mmpretrain")
    _, ours = seg_pair("l", 4)
    stirred(ours)
    cls = stirred(
        MODELS.build(dict(type="mmvit_plugins.EfficientViTClsHead", num_classes=3, in_channels=32, widths=(12, 10)))
    )
    with torch.no_grad():
        maps = ours["backbone"](image(2, 65, 90))
        for head in (ours["decode_head"], cls):
            wanted = head(maps)
            assert head.switch_to_deploy() is head
            assert not [m for m in head.modules() if isinstance(m, _BatchNorm)]
            assert (head(maps) - wanted).abs().max() <= 1e-4 * wanted.abs().max()


def test_sizes_of_the_published_segmentation_models() -> None:
    """Million parameters of papers.md, section 6, rounded as there."""
    require_host("mmseg")
    from mmvit_plugins.models.heads.efficientvit_seg_head import PUBLISHED_HEADS, EfficientViTSegHead

    published = {
        "cityscapes": dict(b0=0.7, b1=4.8, b2=15, b3=40, l1=40, l2=53),
        "ade20k": dict(b1=4.8, b2=15, b3=39, l1=40, l2=51),
    }
    assert set(PUBLISHED_HEADS) == {(arch, data) for data, rows in published.items() for arch in rows}
    for (arch, data), settings in PUBLISHED_HEADS.items():
        with torch.device("meta"):
            backbone = EfficientViT(arch=arch, out_indices=(1, 2, 3))
            head = EfficientViTSegHead(backbone.out_channels, 19 if data == "cityscapes" else 150, **settings)
        count = sum(p.numel() for m in (backbone, head) for p in m.parameters()) / 1e6
        assert count == pytest.approx(published[data][arch], abs=0.05 if arch in ("b0", "b1") else 0.6), (arch, data)


def segmenter(test_cfg: dict) -> nn.Module:
    """MMSegmentation's EncoderDecoder with a small model of ours."""
    require_host("mmseg")
    from mmengine.registry import DefaultScope
    from mmseg.registry import MODELS as MMSEG_MODELS

    head = dict(type="mmvit_plugins.EfficientViTSegHead", in_channels=[16, 16, 32], channels=8, depth=1, num_classes=4)
    backbone = dict(type="mmvit_plugins.EfficientViT", arch=SMALL["b"], out_indices=(1, 2, 3))
    with DefaultScope.overwrite_default_scope("mmseg"):
        return stirred(
            MMSEG_MODELS.build(
                dict(type="EncoderDecoder", backbone=backbone, decode_head=head, test_cfg=ConfigDict(test_cfg))
            )
        )


@pytest.mark.parametrize(
    "test_cfg", [dict(mode="whole"), dict(mode="slide", crop_size=(40, 48), stride=(30, 30))], ids=lambda c: c["mode"]
)
def test_prediction_has_the_images_size(test_cfg: dict) -> None:
    model = segmenter(test_cfg)
    meta = dict(img_shape=(65, 90), ori_shape=(65, 90), pad_shape=(65, 90))
    with torch.no_grad():
        logits = model.inference(image(1, 65, 90), [meta])
    assert tuple(logits.shape) == (1, 4, 65, 90) and logits.isfinite().all()


def test_logits_are_resized_bicubically_in_evaluation() -> None:
    """A step overshoots, which bilinear interpolation never does."""
    model = segmenter(dict(mode="whole"))
    step = torch.zeros(1, 4, 4, 8)
    step[..., 4:] = 1
    out = model.decode_head.predict_by_feat(step, [dict(img_shape=(32, 64))])
    assert tuple(out.shape) == (1, 4, 32, 64) and out.max() > 1.05 and out.min() < -0.05


@pytest.mark.parametrize("exporter", ["tracing", "program"])
def test_onnx_of_the_segmentation_model(exporter: str, tmp_path: Path) -> None:
    """At a size that is no multiple of anything; no Pad whose amounts are computed."""
    model = segmenter(dict(mode="whole"))
    x = image(1, 65, 90)
    with torch.no_grad():
        wanted = model(x, mode="tensor")
    export_onnx(model, x, tmp_path / "segmenter.onnx", exporter)
    check_onnx(tmp_path / "segmenter.onnx", x, (wanted,))


@pytest.mark.parametrize("exporter", ["tracing", "program"])
def test_onnx_of_queries_that_are_all_negative(exporter: str, tmp_path: Path) -> None:
    """The exporter's optimiser takes an addition of 1e-15 for one of zero: 0 / 0 must not be left."""

    class Attention(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return relu_linear_attention(x, x, x)

    x = image(1, 6, 8)
    x[:, :, :3] = -x[:, :, :3].abs()
    with torch.no_grad():
        wanted = Attention()(x)
    assert not wanted[:, :, :3].any() and wanted[:, :, 3:].any()
    export_onnx(Attention(), x, tmp_path / "attention.onnx", exporter)
    check_onnx(tmp_path / "attention.onnx", x, (wanted,))


@pytest.mark.parametrize(
    "changes, said",
    [(dict(act="relu"), "'relu'"), (dict(block="res"), "'res'"), (dict(in_channels=[4, 8]), r"\(4, 8\)")],
    ids=str,
)
def test_illegal_head_arguments_are_refused(changes: dict, said: str) -> None:
    require_host("mmseg")
    options = dict(in_channels=[4, 8, 8], channels=8, num_classes=4) | changes
    with pytest.raises(ValueError, match=said):
        MODELS.build(dict(type="mmvit_plugins.EfficientViTSegHead", **options))


# --- converter -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("series", SMALL)
def test_converter_is_pure_and_total(series: str) -> None:
    reference, _ = seg_pair(series, 4)
    state = reference.state_dict()
    before = {key: value.clone() for key, value in state.items()}
    wrapped = {f"module.{key}": value for key, value in state.items()}
    converted, family = convert_official(wrapped)
    assert family == "efficientvit" and len(converted) == len(state)
    assert all(torch.equal(value, before[key]) for key, value in state.items())
    assert {key.split(".")[0] for key in converted} == {"backbone", "decode_head"}
    assert all(key.startswith(LAYOUTS["mmsegmentation"]) for key in converted)
    for stranger in ("backbone.stages.1.op_list.0.main.inverted_conv.scale", "head.op_list.7.weight", "other"):
        with pytest.raises(ValueError, match=stranger.replace(".", r"\.")):
            convert_official(state | {stranger: torch.zeros(1)})


# --- without hosts -------------------------------------------------------------------------------------------

WITHOUT_HOSTS = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("mmdet", "mmseg", "mmpretrain"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocker())
import mmvit_plugins.models
from mmengine.registry import MODELS
print(MODELS.build(dict(type="mmvit_plugins.EfficientViT", arch="b0")).out_channels)
for name in ("EfficientViTSegHead", "EfficientViTClsHead"):
    try:
        MODELS.get(f"mmvit_plugins.{name}")
    except ImportError as error:
        print(error)
"""


def test_backbone_works_and_heads_say_what_is_missing_without_hosts(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_HOSTS], cwd=root, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert done[-3] == "(16, 32, 64, 128)"
    assert "mmseg" in done[-2] and "mmpretrain" in done[-1]


def test_heads_are_attributes_too() -> None:
    require_host("mmseg")
    from mmvit_plugins.models import heads

    assert heads.EfficientViTSegHead is MODELS.get("mmvit_plugins.EfficientViTSegHead")
    with pytest.raises(AttributeError, match="EfficientViTNoHead"):
        heads.EfficientViTNoHead  # noqa: B018


# --- configs and hook ----------------------------------------------------------------------------------------


def test_configs_have_the_published_heads() -> None:
    require_host("mmseg")
    require_host("mmpretrain")
    from mmvit_plugins.models.heads.efficientvit_cls_head import PUBLISHED_WIDTHS
    from mmvit_plugins.models.heads.efficientvit_seg_head import PUBLISHED_HEADS

    for (arch, data), settings in PUBLISHED_HEADS.items():
        model = Config.fromfile(CONFIGS / f"{arch}_seg_{data}.py").model
        assert model.backbone.arch == arch and f"efficientvit_{arch}." in model.backbone.init_cfg.checkpoint
        assert {key: model.decode_head[key] for key in settings} == settings, (arch, data)
    for arch, widths in PUBLISHED_WIDTHS.items():
        model = Config.fromfile(CONFIGS / f"{arch}_in1k.py").model
        assert model.backbone.arch == arch and tuple(model.head.widths) == widths
        assert model.head.get("act", "hswish") == SERIES[arch[0]]["act"]
    b0, b1 = (Config.fromfile(CONFIGS / f"{arch}_seg_ade20k.py").model.decode_head for arch in ("b0", "b1"))
    assert (b0.channels, b0.depth, b0.final_expand) == (32, 1, b1.final_expand)


def test_camvid_config_is_comparable_with_the_others() -> None:
    ours, theirs = (
        Config.fromfile(CONFIGS.parent / name).to_dict()
        for name in ("efficientvit/b0_seg_camvid.py", "stvit/segformer_mit_b0_camvid.py")
    )
    a, b = ours.pop("model"), theirs.pop("model")
    assert ours == theirs and a["data_preprocessor"] == b["data_preprocessor"]
    assert a["decode_head"]["loss_decode"] == b["decode_head"]["loss_decode"]


def test_batches_are_resized_to_the_drawn_size() -> None:
    hook = RandomInputSizeHook(sizes=(16, 24, 32))
    sizes = [hook.size_of(5, i) for i in range(60)]
    assert set(sizes) == {16, 24, 32} and sizes == [hook.size_of(5, i) for i in range(60)]
    assert sizes != [hook.size_of(6, i) for i in range(60)]
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    for i in (sizes.index(16), sizes.index(32)):
        runner, batch = SimpleNamespace(seed=5, iter=i), dict(inputs=images.clone())
        hook.before_train_iter(runner, 0, batch)
        assert tuple(batch["inputs"].shape) == (2, 3, sizes[i], sizes[i]) and batch["inputs"].dtype == torch.uint8
        listed = dict(inputs=list(images))
        hook.before_train_iter(runner, 0, listed)
        assert torch.equal(torch.stack(listed["inputs"]), batch["inputs"])
        if sizes[i] == 32:
            assert torch.equal(batch["inputs"], images)
        else:
            assert (batch["inputs"].float().mean() - images.float().mean()).abs() < 3
    with pytest.raises(ValueError, match=r"\(0,\)"):
        RandomInputSizeHook(sizes=(0,))
