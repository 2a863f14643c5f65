"""What a user can get wrong: the message names the thing and the fix, without a traceback; bugs keep theirs."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.logging import MessageHub, MMLogger
from mmengine.registry import DefaultScope
from mmengine.visualization import Visualizer

from mmvit_plugins.cli import convert_checkpoint, demo, predict, test, train, visualize_tokens
from mmvit_plugins.cli.config_loading import (
    default_work_dir,
    find_config,
    load_config,
    replace_sync_batch_norm,
    set_data_root,
)
from mmvit_plugins.cli.errors import UserError, explain, run_tool
from mmvit_plugins.cli.file_checks import check_datasets, check_pretrained
from mmvit_plugins.cli.inference import collect_images, output_stems
from mmvit_plugins.engine import LabelCheckHook, check_whole_image
from mmvit_plugins.engine.damaged_files import DamagedFileError

GOLDENS = Path(__file__).parent / "goldens"

# A folder of images and label maps, and the smallest model that MMSegmentation has.
CONFIG = """
default_scope = "mmseg"
model = dict(
    type="EncoderDecoder",
    data_preprocessor=dict(type="SegDataPreProcessor", size=(32, 32), bgr_to_rgb=True),
    backbone=dict(type="mmvit_plugins.STViT", arch="mini", out_indices=(0,)),
    decode_head=dict(
        type="FCNHead", in_channels=24, in_index=0, channels=24, num_convs=0, concat_input=False, num_classes=2,
        loss_decode=dict(type="CrossEntropyLoss")),
    train_cfg=dict(), test_cfg=dict(mode="whole"))
pipeline = [dict(type="LoadImageFromFile"), dict(type="LoadAnnotations"), dict(type="PackSegInputs")]
dataset = dict(
    type="BaseSegDataset", data_root="data/mine", data_prefix=dict(img_path="images", seg_map_path="labels"),
    img_suffix=".jpg", seg_map_suffix=".png", metainfo=dict(classes=("a", "b")), pipeline=pipeline)
train_dataloader = dict(
    batch_size=2, num_workers=0, sampler=dict(type="InfiniteSampler", shuffle=False),
    dataset=dict(type="RepeatDataset", times=2, dataset=dataset))
test_dataloader = dict(
    batch_size=1, num_workers=0, sampler=dict(type="DefaultSampler", shuffle=False), dataset=dataset)
test_evaluator = dict(type="IoUMetric", iou_metrics=["mIoU"], prefix_file="data/mine/list.txt")
test_cfg = dict(type="TestLoop")
optim_wrapper = dict(type="OptimWrapper", optimizer=dict(type="SGD", lr=0.01))
train_cfg = dict(type="IterBasedTrainLoop", max_iters=2)
default_hooks = dict(checkpoint=dict(type="CheckpointHook", by_epoch=False, interval=100))
log_processor = dict(by_epoch=False)
"""


@pytest.fixture(autouse=True)
def isolated() -> Iterator[None]:
    """mmengine keeps loggers, scopes and visualisers for the whole process; tests leave none behind."""
    kept = [(kind, dict(kind._instance_dict)) for kind in (DefaultScope, MMLogger, MessageHub, Visualizer)]
    yield
    for kind, instances in kept:
        kind._instance_dict.clear()
        kind._instance_dict.update(instances)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Four images with labels 0 and 1."""
    root, random = tmp_path / "pictures", np.random.default_rng(0)
    for name in ("images", "labels"):
        (root / name).mkdir(parents=True)
    for index in range(4):
        cv2.imwrite(str(root / f"images/{index}.jpg"), random.integers(0, 256, (32, 32, 3), dtype=np.uint8))
        cv2.imwrite(str(root / f"labels/{index}.png"), random.integers(0, 2, (32, 32), dtype=np.uint8))
    return root


def fails(capsys: pytest.CaptureFixture[str], code: int, *needed: str) -> None:
    """The tool's message holds all of ``needed``, and no traceback."""
    err = capsys.readouterr().err
    assert code in (1, 2), code
    assert "error: " in err and "Traceback" not in err
    for text in needed:
        assert text in err, f"{text!r} is not in:\n{err}"


# Configs


def test_configs_are_found_from_any_folder(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = (root / "configs/stvit/upernet_camvid.py").resolve()
    monkeypatch.chdir(tmp_path)
    for name in ("configs/stvit/upernet_camvid.py", "stvit/upernet_camvid", "mmvit_plugins::stvit/upernet_camvid.py"):
        assert find_config(name) == wanted
    (tmp_path / "stvit").mkdir()
    (tmp_path / "stvit/upernet_camvid.py").write_text("a = 1")
    assert find_config("stvit/upernet_camvid.py") == tmp_path / "stvit/upernet_camvid.py", "the user's own comes first"
    assert default_work_dir(wanted) == "work_dirs/stvit/upernet_camvid"
    assert default_work_dir(tmp_path / "mine.py") == "work_dirs/mine"


def test_an_unknown_config_suggests_near_names(capsys: pytest.CaptureFixture[str]) -> None:
    fails(capsys, train.main(["stvit/upernet_camvit.py"]), "no config 'stvit/upernet_camvit.py'", "upernet_camvid.py")


def test_a_config_that_cannot_be_parsed_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("model = dict(")
    fails(capsys, train.main([str(broken)]), str(broken), "cannot be parsed")
    broken.write_text("_base_ = './gone.py'")
    fails(capsys, train.main([str(broken)]), str(broken), "gone.py")


def test_cfg_options_say_when_a_key_is_new_or_does_not_fit(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--cfg-options", "train_cfg.max_itres=5", "train_cfg.max_iters=7", "model.train_cfg.new=[1,2]"]
    cfg = load_config(train.parse_args([str(config), *arguments]))
    assert cfg.train_cfg.max_iters == 7 and cfg.model.train_cfg.new == [1, 2]
    warned = capsys.readouterr().err
    assert "train_cfg.max_itres" in warned and "train_cfg.max_iters:" not in warned
    fails(capsys, train.main([str(config), "--cfg-options", "pipeline.9.type=x"]), "pipeline.9.type=x")
    fails(capsys, train.main([str(config), "--cfg-options", "max_iters"]), "KEY=VALUE", "'max_iters'")


def test_data_root_reaches_wrapped_datasets_and_evaluators(config: Path) -> None:
    cfg = load_config(train.parse_args([str(config), "--data-root", "/new/place"]))
    assert cfg.train_dataloader.dataset.dataset.data_root == "/new/place"
    assert cfg.test_dataloader.dataset.data_root == "/new/place"
    assert cfg.test_evaluator.prefix_file == "/new/place/list.txt"
    concat = Config(dict(train_dataloader=dict(dataset=dict(datasets=[dict(data_root="a"), dict(data_root="b/")]))))
    set_data_root(concat, "/c")
    assert [one.data_root for one in concat.train_dataloader.dataset.datasets] == ["/c", "/c"]
    with pytest.raises(UserError, match="no dataset .* has a data_root"):
        set_data_root(Config(dict(train_dataloader=dict(dataset=dict(type="X")))), "/c")


def test_sync_batch_norm_becomes_plain_everywhere() -> None:
    model = dict(
        neck=[dict(norm_cfg=dict(type="SyncBN"))], head=dict(norm_cfg=dict(type="MMSyncBN", eps=1)), bn="SyncBN"
    )
    assert replace_sync_batch_norm(model) == 2
    assert model == dict(neck=[dict(norm_cfg=dict(type="BN"))], head=dict(norm_cfg=dict(type="BN", eps=1)), bn="SyncBN")


# Data, checkpoints, packages


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


def test_wrong_arguments(config: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = tmp_path / "x.pth"
    torch.save({"a": torch.zeros(1)}, checkpoint)
    tested = [str(config), str(checkpoint), "--data-root", str(data), "--work-dir", str(tmp_path / "w")]
    fails(capsys, test.main([*tested, "--tta"]), "tta_model", "tta_pipeline")
    fails(capsys, test.main([*tested, "--dump", "x.json"]), ".pkl", "'x.json'")
    fails(capsys, train.main([str(config), "--data-root", str(data), "--auto-scale-lr"]), "base_batch_size")
    fails(capsys, train.main([str(config), "--data-root", str(data), "--launcher", "pytorch"]), "dist_train.sh")
    wrapper = ["--amp", "--cfg-options", "optim_wrapper.type=ApexOptimWrapper"]
    fails(capsys, train.main([str(config), "--data-root", str(data), *wrapper]), "AmpOptimWrapper", "ApexOptimWrapper")
    predicted = [str(data), "--config", str(config), "--checkpoint", str(checkpoint), "--device"]
    fails(capsys, predict.main([*predicted, "cuda:97"]), "cuda:97", "--device cpu")
    fails(capsys, predict.main([*predicted, "gpu"]), "'gpu'")
    fails(capsys, visualize_tokens.main(["--arch", "huge", "--out-dir", str(tmp_path)]), "huge", "small")
    fails(capsys, visualize_tokens.main(["--stages", "4", "--arch=mini", "--out-dir", str(tmp_path)]), "[4]")
    fails(capsys, visualize_tokens.main(["--size", "0", "4"]), "[0, 4]")
    fails(capsys, demo.main(["--config", str(config), "--work-dir", str(tmp_path / "d"), "--max-iters=0"]), "got 0")


def test_a_missing_library_is_named_by_every_tool(tmp_path: Path, root: Path) -> None:
    """Without torch, mmengine and mmcv the tools still start, and say what to install."""
    hide = (
        "import sys, importlib.metadata as m, importlib.util as u, runpy\n"
        "m.packages_distributions = lambda: {}\n"
        "find = u.find_spec\n"
        "gone = ('torch', 'mmengine', 'mmcv')\n"
        "u.find_spec = lambda name, *a: None if name.split('.')[0] in gone else find(name, *a)\n"
        f"sys.argv = ['train.py', 'stvit/upernet_scenes.py']; sys.path.insert(0, {str(root / 'tools')!r})\n"
        f"runpy.run_path({str(root / 'tools/train.py')!r}, run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", hide], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "torch is not installed" in done.stderr and "pip install" in done.stderr


def test_shell_scripts_pass_everything_on(tmp_path: Path, root: Path) -> None:
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\necho "srun $*"\n')
    srun.chmod(0o755)
    env = {**os.environ, "PYTHON": "echo", "PORT": "1234", "GPUS": "4", "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def output(*command: str) -> subprocess.CompletedProcess[str]:
        line = ["bash", str(root / "tools" / command[0]), *command[1:]]
        return subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    train_py = str(root / "tools" / "train.py")
    local = output("dist_train.sh", "a config.py", "2", "--cfg-options", "x=[1, 2]").stdout
    assert "--nproc_per_node=2" in local and "--master_port=1234" in local
    assert f"{train_py} a config.py --launcher pytorch --cfg-options x=[1, 2]" in local
    slurm = output("slurm_train.sh", "gpu", "job", "config.py", "--amp").stdout
    assert "-p gpu --job-name=job --gres=gpu:4 --ntasks=4 --ntasks-per-node=4" in slurm
    assert f"echo -u {train_py} config.py --launcher slurm --amp" in slurm
    for script in ("dist_train.sh", "slurm_train.sh"):
        done = output(script, "config.py")
        assert done.returncode == 2 and f"tools/{script}" in done.stderr


# The errors themselves


def test_messages_for_users_and_tracebacks_for_bugs(capsys: pytest.CaptureFixture[str]) -> None:
    def tool(error: Exception) -> int:
        raise error

    args = argparse.Namespace(debug=False)
    assert run_tool(lambda _: tool(UserError("x must be 1, got 2")), args) == 2
    assert "error: x must be 1, got 2" in capsys.readouterr().err
    assert run_tool(lambda _: tool(UserError("again")), argparse.Namespace(debug=True)) == 2
    assert "Traceback" in capsys.readouterr().err
    for bug in (RuntimeError("shapes"), ValueError("not ours"), KeyError("typo"), TypeError("None"), IndexError("3")):
        with pytest.raises(type(bug)):
            run_tool(lambda _, bug=bug: tool(bug), args)
    assert run_tool(lambda _: tool(KeyboardInterrupt()), args) == 130

    from mmvit_plugins.models.backbones.base import resolve_out_indices

    def explained(call: object, *arguments: object) -> str | None:
        with pytest.raises(ValueError) as caught:
            call(*arguments)
        return explain(caught.value)

    assert "out_indices of X" in explained(resolve_out_indices, (9,), 4, "X"), "a raise of ours is a message"
    assert explained(output_stems.__globals__["Path"]("x").relative_to, "/y") is None, "a ValueError of Python is a bug"
    worker = (
        "Caught DamagedFileError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n  x\n"
    )
    assert (
        explain(DamagedFileError(f"{worker}mmvit_plugins.DamagedFileError: cannot read /a.jpg")) == "cannot read /a.jpg"
    )
    assert "out_indices" in explain(RuntimeError("Expected to have finished reduction in the prior iteration before"))
    assert "num_classes" in explain(IndexError("Target 12 is out of bounds."))
    assert "nobody has registered" in explain(KeyError("X is not in the mmseg::model registry. Please"))
    assert "pip install opencv-python-headless" in explain(ModuleNotFoundError("cv2", name="cv2"))


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
