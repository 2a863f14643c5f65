"""The tools, from training to pictures, on built-in scenes with a tiny model; in this process where possible."""

from __future__ import annotations

import json
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.logging import MessageHub, MMLogger
from mmengine.registry import DefaultScope
from mmengine.visualization import Visualizer

from mmvit_plugins.cli import predict, test, train, visualize_tokens
from mmvit_plugins.datasets import ScenesSegDataset

pytest.importorskip("mmseg")

CONFIG = """
default_scope = "mmseg"
size = (64, 64)
norm_cfg = dict(type="SyncBN", requires_grad=True)
model = dict(
    type="EncoderDecoder",
    data_preprocessor=dict(
        type="SegDataPreProcessor", mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], bgr_to_rgb=True,
        pad_val=0, seg_pad_val=255, size=size),
    backbone=dict(
        type="mmvit_plugins.STViT", arch="mini", out_indices=(0, 1, 2), drop_path_rate=0.3, norm_cfg=norm_cfg),
    decode_head=dict(
        type="FCNHead", in_channels=96, in_index=2, channels=8, num_convs=1, num_classes=6, norm_cfg=norm_cfg,
        loss_decode=dict(type="CrossEntropyLoss")),
    train_cfg=dict(), test_cfg=dict(mode="whole"))
pipeline = [dict(type="mmvit_plugins.LoadScene"), dict(type="PackSegInputs")]
tta_pipeline = [
    dict(type="mmvit_plugins.LoadScene"),
    dict(type="TestTimeAug", transforms=[
        [dict(type="RandomFlip", prob=prob, direction="horizontal") for prob in (0.0, 1.0)],
        [dict(type="PackSegInputs")]])]
tta_model = dict(type="SegTTAModel")
train_dataloader = dict(
    batch_size=2, num_workers=0, sampler=dict(type="InfiniteSampler", shuffle=True),
    dataset=dict(
        type="mmvit_plugins.ScenesSegDataset", split="train", num_scenes=8, size=size,
        pipeline=[pipeline[0], dict(type="RandomFlip", prob=0.5), pipeline[1]]))
val_dataloader = dict(
    batch_size=1, num_workers=0, sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(type="mmvit_plugins.ScenesSegDataset", split="val", num_scenes=3, size=size, pipeline=pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(type="IoUMetric", iou_metrics=["mIoU"])
test_evaluator = val_evaluator
optim_wrapper = dict(type="OptimWrapper", optimizer=dict(type="SGD", lr=0.01, momentum=0.9))
param_scheduler = [dict(type="PolyLR", power=1.0, eta_min=0.0, begin=0, end=100, by_epoch=False)]
train_cfg = dict(type="IterBasedTrainLoop", max_iters=4, val_interval=4)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
default_hooks = dict(
    checkpoint=dict(type="CheckpointHook", by_epoch=False, interval=2), logger=dict(type="LoggerHook", interval=1))
log_processor = dict(by_epoch=False)
visualizer = dict(type="SegLocalVisualizer", vis_backends=[dict(type="LocalVisBackend")], name="visualizer")
auto_scale_lr = dict(enable=False, base_batch_size=4)
randomness = dict(seed=0)
"""


@contextmanager
def own_globals() -> Iterator[None]:
    """mmengine keeps loggers, scopes and visualisers by name for the whole process; tests leave none behind."""
    kept = [(kind, dict(kind._instance_dict)) for kind in (DefaultScope, MMLogger, MessageHub, Visualizer)]
    try:
        yield
    finally:
        for kind, instances in kept:
            kind._instance_dict.clear()
            kind._instance_dict.update(instances)


@pytest.fixture(autouse=True)
def isolated() -> Iterator[None]:
    with own_globals():
        yield


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "tiny.py"
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def trained(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The work folder of a training of four iterations."""
    folder = tmp_path_factory.mktemp("trained")
    with own_globals(), torch.random.fork_rng(devices=[]):
        assert train.main([str(config), "--work-dir", str(folder)]) == 0
    return folder


def run(tool: str, *args: object, cwd: Path, root: Path, processes: int = 0) -> subprocess.CompletedProcess[str]:
    """A tool in a process of its own, from another folder and without PYTHONPATH."""
    start = [sys.executable]
    if processes:
        start += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [*start, str(root / "tools" / tool), *map(str, args)]
    return subprocess.run(
        command, cwd=cwd, env={**env, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )


def weights(path: Path) -> dict[str, torch.Tensor]:
    return torch.load(path, map_location="cpu", weights_only=False)["state_dict"]


def val_metrics(folder: Path) -> dict[str, float]:
    """The last validation metrics in the log of a work folder."""
    lines = [json.loads(line) for file in folder.glob("*/vis_data/scalars.json") for line in file.open()]
    return [line for line in lines if "mIoU" in line][-1]


def test_train_leaves_checkpoints_and_a_config_that_runs_in_one_process(trained: Path) -> None:
    assert (trained / "last_checkpoint").read_text().strip().endswith("iter_4.pth")
    dumped = Config.fromfile(trained / "tiny.py")
    assert "SyncBN" not in json.dumps(dumped.model.to_dict())
    assert dumped.model.decode_head.norm_cfg.type == "BN"
    assert [hook.type for hook in dumped.custom_hooks] == ["mmvit_plugins.LabelCheckHook"]


def test_resumed_training_ends_where_the_uninterrupted_one_does(config: Path, trained: Path, tmp_path: Path) -> None:
    """With dropout, drop path and random flips."""
    arguments = [str(config), "--work-dir", str(tmp_path)]
    assert train.main([*arguments, "--cfg-options", "train_cfg.max_iters=2"]) == 0
    assert train.main([*arguments, "--resume"]) == 0
    straight, resumed = weights(trained / "iter_4.pth"), weights(tmp_path / "iter_4.pth")
    start = weights(trained / "iter_2.pth")
    torch.testing.assert_close(weights(tmp_path / "iter_2.pth"), start)
    assert any(not torch.equal(start[key], value) for key, value in straight.items())
    for key, value in straight.items():
        torch.testing.assert_close(resumed[key], value, rtol=1e-5, atol=1e-6, msg=lambda m, k=key: f"{k}: {m}")


def test_resume_from_a_given_file_and_seed_and_auto_scale_lr_reach_the_run(
    config: Path, trained: Path, tmp_path: Path
) -> None:
    arguments = ["--work-dir", str(tmp_path), "--resume", str(trained / "iter_2.pth"), "--seed", "7", "--auto-scale-lr"]
    assert train.main([str(config), *arguments, "--cfg-options", "train_cfg.max_iters=3"]) == 0
    assert (tmp_path / "iter_3.pth").is_file() and not (tmp_path / "iter_2.pth").exists()
    dumped = Config.fromfile(tmp_path / "tiny.py")
    assert dumped.randomness.seed == 7 and dumped.auto_scale_lr.enable is True


def test_amp_on_a_cpu_trains_in_bfloat16_and_resumes(config: Path, tmp_path: Path) -> None:
    arguments = [str(config), "--work-dir", str(tmp_path), "--amp"]
    assert train.main([*arguments, "--cfg-options", "train_cfg.max_iters=2"]) == 0
    assert train.main([*arguments, "--resume", "--cfg-options", "train_cfg.max_iters=3"]) == 0
    dumped = Config.fromfile(tmp_path / "tiny.py")
    assert dumped.optim_wrapper.type == "mmvit_plugins.CPUAmpOptimWrapper"
    assert dumped.custom_imports.imports == ["mmvit_plugins.engine"]
    assert all(torch.isfinite(value).all() for value in weights(tmp_path / "iter_3.pth").values())

    from mmvit_plugins.engine import CPUAmpOptimWrapper

    layer = torch.nn.Linear(4, 4)
    wrapper = CPUAmpOptimWrapper(optimizer=torch.optim.SGD(layer.parameters(), lr=0.1))
    with wrapper.optim_context(layer):
        out = layer(torch.rand(2, 4))
    assert out.dtype == torch.bfloat16
    wrapper.backward(out.float().sum())
    assert layer.weight.dtype == layer.weight.grad.dtype == torch.float32


def test_test_reports_the_metrics_of_training_and_writes_everything(
    config: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, dump, pictures = tmp_path / "a" / "m.json", tmp_path / "b" / "p.pkl", tmp_path / "pictures"
    arguments = [str(config), str(trained / "iter_4.pth"), "--work-dir", str(tmp_path / "w")]
    outputs = ["--out", str(out), "--dump", str(dump), "--show-dir", str(pictures)]
    assert test.main([*arguments, *outputs]) == 0
    record = json.loads(out.read_text())
    assert record["metrics"]["mIoU"] == pytest.approx(val_metrics(trained)["mIoU"], abs=1e-4)
    assert record["tta"] is False and record["checkpoint"] == str(trained / "iter_4.pth")
    assert len(pickle.loads(dump.read_bytes())) == 3
    drawn = sorted(pictures.glob("*.png"))
    assert len(drawn) == 3 and cv2.imread(str(drawn[0])).shape == (320, 320, 3)
    report = capsys.readouterr().out
    assert "tensors loaded" in report and str(out) in report and str(pictures) in report


def test_tta_averages_the_flipped_image(config: Path, trained: Path, tmp_path: Path) -> None:
    arguments = [str(config), str(trained / "iter_4.pth"), "--work-dir", str(tmp_path), "--tta"]
    assert test.main([*arguments, "--dump", str(tmp_path / "p.pkl"), "--out", str(tmp_path / "m.json")]) == 0
    assert json.loads((tmp_path / "m.json").read_text())["tta"] is True
    # A tool for the same model without flips, averaged by hand.
    from mmvit_plugins.cli.config_loading import load_config
    from mmvit_plugins.cli.inference import Predictor

    predictor = Predictor(load_config(test.parse_args(arguments[:2])), str(trained / "iter_4.pth"))
    image = ScenesSegDataset(split="val", num_scenes=1, size=(64, 64)).scene(0).rgb
    x = visualize_tokens.Normalisation()(image)
    with torch.no_grad():
        plain, flipped = predictor.model.encode_decode(torch.cat([x, x.flip(3)]), [dict(img_shape=(64, 64))] * 2)
    wanted = (plain.softmax(0) + flipped.flip(2).softmax(0)).argmax(0)
    got = pickle.loads((tmp_path / "p.pkl").read_bytes())[0]["pred_sem_seg"]["data"].squeeze()
    assert (got == wanted).float().mean() > 0.999


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Three scenes, two of one name, and a file that is no image."""
    folder, scenes = tmp_path / "images", ScenesSegDataset(split="test", num_scenes=3, size=(64, 80))
    for index, name in enumerate(("a.png", "b/a.png", "c.jpg")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        assert cv2.imwrite(str(folder / name), scenes.scene(index).rgb[..., ::-1])
    (folder / "broken.jpg").write_bytes((folder / "c.jpg").read_bytes()[:700])
    return folder


def test_predict_writes_label_maps_overlays_and_names_the_damaged_image(
    config: Path, trained: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, checkpoint = tmp_path / "out", str(trained / "iter_4.pth")
    arguments = [str(images), "--config", str(config), "--checkpoint", checkpoint, "--out-dir", str(out)]
    assert predict.main([*arguments, "--device", "cpu"]) == 1
    captured = capsys.readouterr()
    assert str(images / "broken.jpg") in captured.err and "Traceback" not in captured.err
    assert sorted(str(file.relative_to(out)) for file in out.rglob("*.png")) == [
        "labels/a.png",
        "labels/b/a.png",
        "labels/c.png",
        "overlays/a.png",
        "overlays/b/a.png",
        "overlays/c.png",
    ]
    record = json.loads((out / "predictions.json").read_text())
    assert [Path(entry["image"]).relative_to(images).as_posix() for entry in record["images"]] == [
        "a.png",
        "b/a.png",
        "c.jpg",
    ]
    labels = cv2.imread(str(out / "labels/b/a.png"), cv2.IMREAD_UNCHANGED)
    assert labels.shape == (64, 80) and labels.dtype == np.uint8
    classes, shares = record["classes"], record["images"][1]["class_shares"]
    assert sum(shares.values()) == pytest.approx(1)
    assert shares == {classes[i]: pytest.approx((labels == i).mean()) for i in np.unique(labels)}
    # The scene that the dataset gives is the same to the model as its file: same channel order, same pixels.
    model = predict.Predictor(predict.load_config(predict.parse_args(arguments)), checkpoint).model
    x = visualize_tokens.Normalisation()(ScenesSegDataset(split="test", num_scenes=2, size=(64, 80)).scene(1).rgb)
    with torch.no_grad():
        wanted = model.encode_decode(x, [dict(img_shape=(64, 80))]).argmax(1)[0].numpy()
    assert (labels == wanted).mean() > 0.999


@pytest.mark.parametrize("size", [(224, 224), (333, 217), (5, 3)])
def test_visualize_tokens_of_any_size(size: tuple[int, int], tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    cv2.imwrite(str(path), np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8))
    arguments = [str(path), "--arch", "mini", "--out-dir", str(tmp_path / "out"), "--scale", "2", "--device", "cpu"]
    assert visualize_tokens.main([*arguments, "--no-borders"]) == 0
    assert visualize_tokens.main([*arguments[:-4], "--style", "distinct", "--stages", "2", "--scale", "1"]) == 0
    first = cv2.imread(str(tmp_path / "out/photo_stage1.png"))
    assert first.shape == (2 * size[0], 2 * size[1], 3)
    tokens = -(-size[0] // 4) * -(-size[1] // 4)
    regions = len(np.unique(first.reshape(-1, 3), axis=0))
    assert 1 <= regions <= math.ceil(size[0] / 32) * math.ceil(size[1] / 32) <= max(tokens, 1)
    if size == (224, 224):  # noise: nothing but chance merges regions
        assert regions > 24
    assert cv2.imread(str(tmp_path / "out/photo_stage2.png")).shape == (*size, 3)
    assert (tmp_path / "out/photo_tokens.png").is_file()


def test_visualize_tokens_of_a_trained_config_and_of_the_built_in_scene(
    config: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights_of = ["--config", str(config), "--checkpoint", str(trained / "iter_4.pth")]
    assert visualize_tokens.main([*weights_of, "--out-dir", str(tmp_path), "--size", "64", "96"]) == 0
    assert "tensors loaded" in capsys.readouterr().out
    assert cv2.imread(str(tmp_path / "scene_stage1.png")).shape[:2] == (64 * 7, 96 * 7)


def test_two_processes_train_and_evaluate_on_the_cpu(config: Path, trained: Path, tmp_path: Path, root: Path) -> None:
    launch = ["--launcher", "pytorch", "--work-dir", "w"]
    options = ["--cfg-options", "train_cfg.max_iters=2", "val_cfg=None", "val_dataloader=None", "val_evaluator=None"]
    done = run("train.py", config, *launch, *options, cwd=tmp_path, root=root, processes=2)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("Trained.") == 1 and (tmp_path / "w" / "iter_2.pth").is_file()
    # Three scenes on two processes: the sampler repeats one, which must not count twice.
    done = run("test.py", config, trained / "iter_4.pth", *launch, "--out=m.json", cwd=tmp_path, root=root, processes=2)
    assert done.returncode == 0, done.stderr[-2000:]
    together = json.loads((tmp_path / "m.json").read_text())["metrics"]["mIoU"]
    assert together == pytest.approx(val_metrics(trained)["mIoU"], abs=1e-4)


def test_tools_run_as_programs_from_any_folder(config: Path, trained: Path, tmp_path: Path, root: Path) -> None:
    checkpoint = trained / "iter_4.pth"
    for tool, args, made in (
        ("test.py", [config, checkpoint, "--out", "m.json"], "m.json"),
        ("visualize_tokens.py", ["--arch", "mini", "--size", "64", "64"], "token_pictures/scene_tokens.png"),
    ):
        done = run(tool, *args, cwd=tmp_path, root=root)
        assert done.returncode == 0, done.stderr[-2000:]
        assert (tmp_path / made).is_file()
    assert (tmp_path / "work_dirs" / "tiny").is_dir()
    assert not list(root.joinpath("tools").glob("work_dirs"))
