"""What can be wrong with a user's files: data, checkpoints, images, labels. The message names the file."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import test_tools_errors as errors
import torch
from mmengine.config import Config
from test_tools_errors import fails

from mmvit_plugins.cli import convert_checkpoint, predict, test, train, visualize_tokens
from mmvit_plugins.cli.config_loading import load_config
from mmvit_plugins.cli.errors import UserError
from mmvit_plugins.cli.file_checks import check_datasets, check_pretrained
from mmvit_plugins.cli.inference import collect_images, output_stems
from mmvit_plugins.engine import LabelCheckHook, check_whole_image
from mmvit_plugins.engine.damaged_files import DamagedFileError

config, data, isolated = errors.config, errors.data, errors.isolated  # fixtures

GOLDENS = Path(__file__).parent / "goldens"


# Data, checkpoints, images


def test_missing_data_name_place_source_and_a_config_without_data(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    place = str(tmp_path / "data/mine")
    fails(capsys, train.main([str(config)]), place, "--data-root", "configs/stvit/upernet_scenes.py")
    fails(capsys, train.main(["stvit/upernet_camvid.py", "--data-root", "gone"]), str(tmp_path / "gone"), "CamVid")
    (tmp_path / "data/mine/images").mkdir(parents=True)
    with pytest.raises(UserError) as caught:
        check_datasets(load_config(train.parse_args([str(config)])), ["train_dataloader"])
    assert f"{place}/images (an empty folder)" in str(caught.value)
    assert f"{place}/labels (missing)" in str(caught.value)


def test_paths_that_are_no_local_files_are_left_to_their_backend() -> None:
    datasets = [
        dict(data_root="s3://bucket/x", data_prefix=dict(img="a")),
        dict(data_root="/gone", ann_file="a.json", backend_args=dict(backend="petrel")),
        dict(type="mmvit_plugins.ScenesSegDataset", split="train"),
    ]
    cfg = Config(dict(train_dataloader=dict(dataset=dict(datasets=datasets)), val_dataloader=None))
    check_datasets(cfg, ["train_dataloader", "val_dataloader", "test_dataloader"])


def test_missing_weights_name_the_file_and_the_way_out(
    config: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.pth").write_bytes(b"")
    gone = str(tmp_path / "gone.pth")
    with_data = [str(config), "--data-root", str(data)]
    fails(capsys, test.main([str(config), "gone.pth"]), gone, "there.pth")
    fails(capsys, train.main([*with_data, "--resume", "gone.pth"]), gone)
    init = "model.backbone.init_cfg.type=mmvit_plugins.OfficialPretrained"
    options = ["--cfg-options", init, "model.backbone.init_cfg.checkpoint=gone.pth"]
    fails(capsys, train.main([*with_data, *options]), gone, "model.backbone.init_cfg=None")
    assert (
        check_pretrained(Config(dict(model=dict(backbone=dict(init_cfg=dict(checkpoint="https://x/y.pth")))))) is None
    )
    fails(capsys, visualize_tokens.main(["--checkpoint", "gone.pth"]), gone)
    fails(capsys, convert_checkpoint.main(["gone.pth", "out.pth"]), gone)


def test_a_damaged_checkpoint_is_named(
    config: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, cut, text = tmp_path / "whole.pth", tmp_path / "cut.pth", tmp_path / "text.pth"
    torch.save(dict(state_dict={"a": torch.zeros(999)}, meta={}), whole)
    cut.write_bytes(whole.read_bytes()[:2000])
    text.write_text("404 not found")
    for damaged in (cut, text):
        arguments = [str(config), str(damaged), "--data-root", str(data), "--work-dir", str(tmp_path / "w")]
        fails(capsys, test.main(arguments), str(damaged))
        fails(capsys, convert_checkpoint.main([str(damaged), str(tmp_path / "out.pth")]), str(damaged))
    image = str(data / "images/0.jpg")
    arguments = [image, "--config", str(config), "--checkpoint", str(cut), "--device", "cpu"]
    fails(capsys, predict.main([*arguments, "--out-dir", str(tmp_path / "out")]), str(cut))
    arguments[4] = str(whole)
    fails(capsys, predict.main(arguments), str(whole), "no tensor", "backbone.stem.0.weight")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_image_is_named_in_training(
    workers: int, config: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(config), "--data-root", str(data), "--work-dir", str(tmp_path / "w")]
    options = ["--cfg-options", f"train_dataloader.num_workers={workers}"]
    image = data / "images/1.jpg"
    whole = image.read_bytes()
    image.write_bytes(whole[: len(whole) // 2])  # OpenCV reads it with a grey rest
    fails(capsys, train.main([*arguments, *options]), str(image))
    if workers == 0:
        image.write_bytes(b"")
        fails(capsys, train.main([*arguments, *options]), str(image))
        image.write_bytes(whole)
        label = data / "labels/1.png"
        label.write_bytes(label.read_bytes()[:40])
        fails(capsys, train.main([*arguments, *options]), str(label))


def test_whole_images_with_camera_data_behind_them_pass(data: Path) -> None:
    image = data / "images/0.jpg"
    image.write_bytes(image.read_bytes() + bytes(100_000))
    check_whole_image(image)
    image.write_bytes(image.read_bytes()[:300] + bytes(10_000))
    with pytest.raises(DamagedFileError, match=str(image)):
        check_whole_image(image)
    check_whole_image("scenes://train/0.png")


def test_images_and_outputs(tmp_path: Path) -> None:
    for name in ("a/x.jpg", "b/x.jpg", "b/x.png", "b/x_png.png", "b/readme.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    images = collect_images([str(tmp_path), str(tmp_path / "a/x.jpg")])
    assert [str(path.relative_to(tmp_path)) for path in images] == ["a/x.jpg", "b/x.jpg", "b/x.png", "b/x_png.png"]
    stems = [str(stem) for stem in output_stems(images)]
    assert stems == ["a/x", "b/x_jpg", "b/x_png", "b/x_png_2"]
    (tmp_path / "c").mkdir()
    for wrong in ("c", "d"):
        with pytest.raises(UserError, match=str(tmp_path / wrong)):
            collect_images([str(tmp_path / wrong)])


# Labels (R69)


def warnings_about(labels: list[int], num_classes: int, batches: int = 1) -> list[str]:
    """What the hook logs for one label map."""
    pytest.importorskip("mmseg")
    from mmengine.structures import PixelData
    from mmseg.structures import SegDataSample

    said: list[str] = []
    head = torch.nn.Identity()
    head.num_classes, head.ignore_index = num_classes, 255
    model = torch.nn.Module()
    model.decode_head = head
    runner = SimpleNamespace(model=model, logger=SimpleNamespace(warning=said.append))
    sample = SegDataSample(gt_sem_seg=PixelData(data=torch.tensor(labels).view(1, 1, -1)))
    sample.set_metainfo(dict(seg_map_path="labels/7.png"))
    hook = LabelCheckHook(num_batches=batches)
    for index in range(batches):
        hook.before_train_iter(runner, index, dict(data_samples=[sample]))
    hook.after_train(runner)
    return said


def test_labels_that_cannot_be_learned_are_named() -> None:
    assert warnings_about([0, 1, 2, 255], 3) == []
    (message,) = warnings_about([0, 1, 7, 200], 6, batches=3)
    assert "[7, 200]" in message and "labels/7.png" in message and "0..5" in message
    (message,) = warnings_about([0, 0, 0, 255], 2)
    assert "0: 75.0%" in message and "255 (ignored): 25.0%" in message and "1 of 2 classes" in message


# Conversion


def official(name: str = "stvit_small") -> dict[str, torch.Tensor]:
    """Keys and shapes of an official file; zeros, but for the last layer, which tells that values pass through."""
    entries = json.loads((GOLDENS / f"{name}.json").read_text())["entries"]
    state = {key: torch.zeros(entry["shape"]) for key, entry in entries.items()}
    return {key: value + (key == "head.bias") for key, value in state.items()}


@pytest.mark.parametrize(
    ("task", "parts"), [("cls", {"backbone", "neck", "head"}), ("seg", {"backbone"}), ("det", {"backbone"})]
)
def test_conversion_to_each_layout(
    task: str, parts: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "official.pth", tmp_path / "deep" / "ours.pth"
    torch.save(dict(model={f"module.{key}": value for key, value in official().items()}), source)
    assert convert_checkpoint.main([str(source), str(out), "--task", task]) == 0
    state = torch.load(out, weights_only=True)["state_dict"]
    assert {key.partition(".")[0] for key in state} == parts
    assert f"{len(state)} of {len(official())} tensors" in capsys.readouterr().out

    from mmvit_plugins.models import STViT

    backbone = STViT(arch="small")
    cut = {key[len("backbone.") :]: value for key, value in state.items() if key.startswith("backbone.")}
    missing, unexpected = backbone.load_state_dict(cut, strict=False)
    assert not unexpected and all(key.endswith("num_batches_tracked") for key in missing)
    assert task != "cls" or state["head.fc.bias"].eq(1).all()


def test_conversion_refuses_what_does_not_match(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "other.pth"
    torch.save({"layer1.weight": torch.zeros(3)}, source)
    out = tmp_path / "out.pth"
    fails(capsys, convert_checkpoint.main([str(source), str(out)]), "0 of 1", "layer1.weight")
    fails(capsys, convert_checkpoint.main([str(source), str(out), "--family", "nvit"]), "'nvit'", "stvit")
    assert not out.exists()
    torch.save(official(), source)
    fails(capsys, convert_checkpoint.main([str(source), str(source)]), str(source), "the input")
    torch.save({**official(), "extra.weight": torch.zeros(1)}, source)
    fails(capsys, convert_checkpoint.main([str(source), str(out)]), "extra.weight")
