"""What a user can get wrong: the message names the thing and the fix, without a traceback; bugs keep theirs."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.logging import MessageHub, MMLogger
from mmengine.registry import DefaultScope
from mmengine.visualization import Visualizer

from mmvit_plugins.cli import demo, predict, test, train, visualize_tokens
from mmvit_plugins.cli.config_loading import (
    default_work_dir,
    find_config,
    load_config,
    replace_sync_batch_norm,
    set_data_root,
)
from mmvit_plugins.cli.errors import UserError, explain, run_tool
from mmvit_plugins.cli.inference import output_stems
from mmvit_plugins.engine.damaged_files import DamagedFileError

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


# Arguments, packages, scripts


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
