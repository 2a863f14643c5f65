"""Loading of official files: prefixes, wrong files, damaged files, and what mmengine does around it."""

from __future__ import annotations

import argparse
import logging
import os
import pickle
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer
from mmengine.registry import MODELS as MMENGINE_MODELS
from reference.stvit import ReferenceSTViT
from torch import Tensor, nn

from mmvit_plugins.checkpoints import OfficialPretrained, convert_official, load_report
from mmvit_plugins.key_rules import apply_rules, strip_prefixes
from mmvit_plugins.models import STViT, STViTProjection
from mmvit_plugins.tensor_files import read_state_dict

ARCH = dict(
    dims=(16, 24, 32, 48), depths=(1, 1, 1, 1), heads=(1, 2, 2, 3), cells=(8, 4, 1, 1), layer_scale=(0, 0, 1, 1)
)


@pytest.fixture(scope="module")
def official() -> dict[str, Tensor]:
    """The state dict of a small model, keys as the authors name them."""
    torch.manual_seed(1)
    return ReferenceSTViT(**ARCH, num_classes=7).state_dict()


def save(content: object, path: Path) -> str:
    torch.save(content, path)
    return str(path)


def same(model: nn.Module, other: nn.Module) -> bool:
    ours, theirs = model.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


@pytest.mark.parametrize(
    "prefix", ["", "module.", "_orig_mod.", "backbone.", "module._orig_mod.backbone.", "backbone.module._orig_mod."]
)
@pytest.mark.parametrize("wrap", ["model", "state_dict", None])
def test_prefixes_in_any_order(official: dict, prefix: str, wrap: str | None, tmp_path: Path) -> None:
    plain, loaded = STViT(arch=ARCH), STViT(arch=ARCH)
    OfficialPretrained(save(official, tmp_path / "plain.pth"))(plain)
    state = {prefix + key: value for key, value in official.items()}
    content = {wrap: state, "epoch": 3, "args": argparse.Namespace(lr=0.1)} if wrap else state
    OfficialPretrained(save(content, tmp_path / "wrapped.pth"))(loaded)
    assert same(plain, loaded)
    assert torch.equal(loaded.stages[2].blocks[0].gamma1, official["layers.2.blocks.0.gamma_1"].flatten())


def test_compiled_submodules_and_converted_files(official: dict, tmp_path: Path) -> None:
    """Our own layouts load as well: backbone alone, whole segmentor, compiled."""
    expected, _ = convert_official(official)
    reference, loaded = STViT(arch=ARCH), STViT(arch=ARCH)
    OfficialPretrained(save(official, tmp_path / "official.pth"))(reference)
    segmentor = {k.replace("backbone.", "backbone._orig_mod."): v for k, v in expected.items()}
    segmentor["decode_head.conv_seg.weight"] = torch.zeros(3, 4, 1, 1)
    for name, content in {
        "segmentor": {"state_dict": segmentor},
        "backbone": {k[9:]: v for k, v in expected.items() if k.startswith("backbone.")},
        "official inside a segmentor": {
            **{f"backbone.{k}": v for k, v in official.items()},
            "decode_head.conv_seg.weight": torch.zeros(3, 4, 1, 1),
        },
    }.items():
        loaded = STViT(arch=ARCH)
        OfficialPretrained(save(content, tmp_path / "file.pth"))(loaded)
        assert same(reference, loaded), name


def test_every_key_is_mapped_or_refused(official: dict) -> None:
    converted, family = convert_official(official)
    assert family == "stvit"
    kept = [k for k in official if not k.endswith(("unfold.weights", "fold.weights"))]
    assert len(converted) == len(kept)
    with pytest.raises(ValueError, match=r"1 of \d+ keys are not keys of an official STViT.*layers\.0\.surprise"):
        convert_official({**official, "layers.0.surprise": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"0 of 1 tensors match any of .*stvit.*conv1\.weight"):
        convert_official({"conv1.weight": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"unknown family 'vit'.*stvit"):
        convert_official(official, "vit")
    with pytest.raises(ValueError, match="two keys of this x checkpoint become 'c'"):
        apply_rules({"a": torch.zeros(1), "b": torch.zeros(1)}, [("[ab]", "c", None)], "x")


def test_strip_prefixes_keeps_a_key_that_only_some_have() -> None:
    state = {"backbone.a": torch.zeros(1), "head.b": torch.zeros(1)}
    assert set(strip_prefixes(state)) == set(state)


def test_wrong_files_are_refused_with_a_report(official: dict, tmp_path: Path) -> None:
    other = ReferenceSTViT(**{**ARCH, "dims": (16, 24, 32, 64), "heads": (1, 2, 2, 4)}).state_dict()
    with pytest.raises(ValueError, match=r"does not fit STViT: \d+ of \d+ tensors loaded; other shape: .*\(file \("):
        OfficialPretrained(save(other, tmp_path / "other.pth"))(STViT(arch=ARCH))
    with pytest.raises(ValueError, match=r"does not fit STViT: 0 of \d+ tensors loaded"):
        OfficialPretrained(save({"conv1.weight": torch.zeros(3)}, tmp_path / "resnet.pth"))(STViT(arch=ARCH))
    with pytest.raises(FileNotFoundError, match=str(tmp_path / "none.pth")):
        OfficialPretrained(str(tmp_path / "none.pth"))(STViT(arch=ARCH))
    with pytest.raises(ValueError, match="holds no state dict"):
        read_state_dict(save({"epoch": 3}, tmp_path / "empty.pth"))
    with pytest.raises(ValueError, match="part must be"):
        OfficialPretrained("x.pth", part="body")


def test_a_damaged_file_is_named(official: dict, tmp_path: Path) -> None:
    path = Path(save(official, tmp_path / "cut.pth"))
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"cut\.pth is damaged"):
        read_state_dict(str(path))
    path.write_bytes(b"no checkpoint at all")
    with pytest.raises(ValueError, match=r"cut\.pth is damaged"):
        read_state_dict(str(path))


class Trap:
    """An object that runs code when it is unpickled in the usual way."""

    def __reduce__(self) -> tuple:
        return Path.write_text, (Path(os.environ["TRAP"]), "sprung")


def test_code_in_a_file_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAP", str(tmp_path / "trap"))
    state = {"a": torch.arange(3.0), "b": nn.Parameter(torch.ones(2, dtype=torch.bfloat16))}
    path = save({"state_dict": state, "extra": [Trap(), {"deep": Trap()}]}, tmp_path / "code.pth")
    loaded = read_state_dict(path)
    assert torch.equal(loaded["a"], state["a"]) and torch.equal(loaded["b"], state["b"])
    assert not (tmp_path / "trap").exists()
    torch.load(path, weights_only=False)
    assert (tmp_path / "trap").read_text() == "sprung"


def test_code_in_an_old_file_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before version 1.6 torch wrote a plain pickle."""
    monkeypatch.setenv("TRAP", str(tmp_path / "trap"))
    (tmp_path / "bare.pth").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ValueError, match=r"bare\.pth is damaged or is no PyTorch checkpoint"):
        read_state_dict(str(tmp_path / "bare.pth"))
    assert not (tmp_path / "trap").exists()
    state = {"a": torch.arange(3.0)}
    torch.save(
        {"model": state, "args": argparse.Namespace(lr=1)}, tmp_path / "old.pth", _use_new_zipfile_serialization=False
    )
    assert torch.equal(read_state_dict(str(tmp_path / "old.pth"))["a"], state["a"])


def test_places_of_the_weights_in_a_file(tmp_path: Path) -> None:
    state = {"a": torch.arange(3.0)}
    for content in (
        {"step": torch.tensor(3), "state_dict": state},
        {"checkpoint": {"model": state}},
        {"epoch": 1, "model_ema": state},
    ):
        assert set(read_state_dict(save(content, tmp_path / "file.pth"))) == {"a"}
    (tmp_path / "page.pth").write_text("<!DOCTYPE html><html>404</html>")
    with pytest.raises(ValueError, match="looks like a web page"):
        read_state_dict(str(tmp_path / "page.pth"))
    url = (tmp_path / "none.pth").as_uri().replace("file://", "http://127.0.0.1:9")
    monkey = pytest.MonkeyPatch()
    monkey.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"cannot fetch http://127\.0\.0\.1:9.*give its path"):
        read_state_dict(url)
    monkey.undo()


def test_another_depth_or_a_part_is_refused(official: dict, tmp_path: Path) -> None:
    path = save(official, tmp_path / "official.pth")
    deeper = STViT(arch={**ARCH, "depths": (1, 1, 2, 1)})
    with pytest.raises(ValueError, match=r"not in the file: stages\.2\.blocks\.1"):
        OfficialPretrained(path)(deeper)
    more = ReferenceSTViT(**{**ARCH, "depths": (1, 1, 2, 1)}).state_dict()
    with pytest.raises(ValueError, match=r"blocks this model lacks: stages\.2\.blocks\.1"):
        OfficialPretrained(save(more, tmp_path / "more.pth"))(STViT(arch=ARCH))


def test_checkpoints_of_mmengine_are_read(tmp_path: Path) -> None:
    """They hold log buffers and numpy numbers."""
    buffer = HistoryBuffer()
    buffer.update(1.5)
    state = OrderedDict(a=torch.ones(2))
    content = dict(
        state_dict=state, message_hub=dict(log_scalars={"loss": buffer}), meta=dict(iter=3, seed=np.int64(0))
    )
    assert torch.equal(read_state_dict(save(content, tmp_path / "iter_3.pth"))["a"], torch.ones(2))


def test_unbuilt_stages_are_harmless_and_missing_ones_are_named(
    official: dict, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = STViT(arch=ARCH, out_indices=(0, 1))
    converted, _ = convert_official(official)
    backbone = {k[9:]: v for k, v in converted.items() if k.startswith("backbone.")}
    report = load_report(model, backbone)
    assert len(report.matched) == report.total and not report.missing and not report.mismatched
    assert any(key.startswith("stages.2.") for key in report.unused)
    assert f"{report.total} of {report.total} tensors loaded" in str(report) and "harmless" in str(report)
    del backbone["stem.0.weight"]
    assert "not in the file: stem.0.weight" in str(load_report(model, backbone))
    logger = logging.getLogger("mmengine")
    with caplog.at_level(logging.INFO, logger=logger.name):
        OfficialPretrained(save(official, tmp_path / "official.pth"))(model)


def test_init_weights_loads_and_children_do_not_start_over(official: dict, tmp_path: Path) -> None:
    """mmengine initialises children after the parent: they must not overwrite what was loaded."""
    path = save(official, tmp_path / "official.pth")
    init_cfg = dict(type="mmvit_plugins.OfficialPretrained", checkpoint=path)
    model = MMENGINE_MODELS.build(dict(type="mmvit_plugins.STViT", arch=ARCH, init_cfg=init_cfg))
    model.init_weights()
    expected = STViT(arch=ARCH)
    OfficialPretrained(path)(expected)
    assert same(model, expected)
    neck = MMENGINE_MODELS.build(dict(type="mmvit_plugins.STViTProjection", in_channels=48, init_cfg=init_cfg))
    neck.init_weights()
    assert torch.equal(neck.proj.weight, official["proj.weight"].flatten(1))


def test_a_whole_classifier_equals_the_reference(official: dict, tmp_path: Path) -> None:
    """MMPretrain's ImageClassifier with our backbone and neck, from the authors' file, in one init_cfg."""
    pytest.importorskip("mmpretrain", reason="mmpretrain is not installed")
    from mmpretrain.registry import MODELS

    reference = ReferenceSTViT(**ARCH, num_classes=7)
    reference.load_state_dict(official)
    model = MODELS.build(
        dict(
            type="mmpretrain.ImageClassifier",
            backbone=dict(type="mmvit_plugins.STViT", arch=ARCH, out_indices=(3,)),
            neck=dict(type="mmvit_plugins.STViTProjection", in_channels=48),
            head=dict(type="mmpretrain.LinearClsHead", num_classes=7, in_channels=1024),
            init_cfg=dict(
                type="mmvit_plugins.OfficialPretrained", checkpoint=save(official, tmp_path / "official.pth")
            ),
        )
    )
    model.init_weights()
    model.eval(), reference.eval()
    x = torch.randn(2, 3, 65, 90)
    with torch.no_grad():
        torch.testing.assert_close(model(x, mode="tensor"), reference(x))
        assert torch.equal(model.head.fc.weight, reference.head.weight)


def test_projection_takes_tuples_and_maps() -> None:
    neck = STViTProjection(4, 6).eval()
    x = torch.randn(2, 4, 3, 5)
    assert torch.equal(neck((torch.zeros(1), x))[0], neck(x)[0]) and neck(x)[0].shape == (2, 6)


def test_a_classifier_for_other_classes_keeps_its_head(official: dict, tmp_path: Path) -> None:
    head = nn.ModuleDict(dict(fc=nn.Linear(1024, 3)))
    parts = dict(backbone=STViT(arch=ARCH), neck=STViTProjection(48), head=head)
    model = nn.ModuleDict(parts)
    before = head["fc"].weight.clone()
    OfficialPretrained(save(official, tmp_path / "official.pth"))(model)
    assert torch.equal(head["fc"].weight, before)
    assert torch.equal(parts["neck"].proj.weight, official["proj.weight"].flatten(1))
