"""The tools on what ships: the configs of classification and detection on built-in scenes, and the demo."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import test_tools as tools

from mmvit_plugins.cli import demo, predict, test, train
from mmvit_plugins.datasets import ScenesSegDataset
from mmvit_plugins.environment import has_compiled_operators

images, isolated = tools.images, tools.isolated  # fixtures

SMALL = [
    "train_cfg.max_epochs=1",
    "train_cfg.val_interval=1",
    "default_hooks.checkpoint.interval=1",
    *(f"{split}_dataloader.batch_size=2" for split in ("train", "val", "test")),
    *(f"{split}_dataloader.dataset.num_scenes=3" for split in ("train", "val", "test")),
]


@pytest.mark.parametrize(("name", "metric"), [("cls_scenes", "accuracy/top1"), ("mask_rcnn_scenes", "coco/segm_mAP")])
def test_the_other_tasks_train_test_and_predict(
    name: str, metric: str, images: Path, tmp_path: Path, root: Path
) -> None:
    if name.startswith("mask_rcnn") and not has_compiled_operators():
        pytest.skip("mmdet needs mmcv with compiled operators: make build-ops")
    (images / "broken.jpg").unlink()
    shipped = f"configs/stvit/{name}.py"
    assert train.main([shipped, "--work-dir", str(tmp_path / "w"), "--cfg-options", *SMALL]) == 0
    checkpoint, out = str(tmp_path / "w/epoch_1.pth"), tmp_path / "out"
    tested = [shipped, checkpoint, "--work-dir", str(tmp_path / "t"), "--cfg-options", *SMALL]
    assert test.main([*tested, "--out", str(tmp_path / "m.json"), "--show-dir", str(tmp_path / "pictures")]) == 0
    assert metric in json.loads((tmp_path / "m.json").read_text())["metrics"]
    assert len(list((tmp_path / "pictures").glob("*.png"))) == 3
    predicted = [str(images), "--config", shipped, "--checkpoint", checkpoint, "--out-dir", str(out)]
    assert predict.main([*predicted, "--score-threshold", "0"]) == 0
    entries = json.loads((out / "predictions.json").read_text())["images"]
    assert [entry["overlay"] for entry in entries] == ["overlays/a.png", "overlays/b/a.png", "overlays/c.png"]
    assert all((out / entry["overlay"]).is_file() for entry in entries) and not (out / "labels").exists()
    if name == "cls_scenes":
        scores = [one["score"] for one in entries[0]["top"]]
        assert scores == sorted(scores, reverse=True) and sum(scores) == pytest.approx(1, abs=1e-3)
        return
    from pycocotools.mask import decode

    for instance in entries[0]["instances"]:
        x1, y1, x2, y2 = instance["bbox"]
        assert 0 <= x1 <= x2 <= 80 and 0 <= y1 <= y2 <= 64
        assert instance["class"] in ("sphere", "box", "cylinder", "cone")
        assert decode(instance["mask"]).shape == (64, 80)
    assert entries[0]["instances"], "a threshold of 0 keeps what an untrained model guesses"


SMALL_DEMO = [
    "--max-iters=2",
    "--pictures=1",
    "--cfg-options",
    *(f"{split}_dataloader.dataset.num_scenes=3" for split in ("train", "val", "test")),
    "train_dataloader.batch_size=2",
]


def test_demo_leaves_everything_and_fails_below_the_wanted_miou(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not (root / "configs/stvit/upernet_scenes.py").is_file():
        pytest.skip("configs/stvit/upernet_scenes.py is not there")
    folder = tmp_path / "demo"
    assert demo.main(["--work-dir", str(folder), "--min-miou", "0", *SMALL_DEMO]) == 0
    printed = capsys.readouterr().out
    record = json.loads((folder / "metrics.json").read_text())
    for name in ("metrics.json", "training_curve.png", "predictions.png", "predictions", "super_tokens", "iter_2.pth"):
        assert (folder / name).exists() and str(folder / name) in printed
    assert (folder / "predictions" / "scene_00.png").is_file() and (folder / "super_tokens" / "scene_00.png").is_file()
    # The constant predictor, counted by hand: one class right wherever it is, the others 0.
    label = ScenesSegDataset.METAINFO["classes"].index(record["constant_class"])
    maps = [ScenesSegDataset(split="val", num_scenes=3, size=(128, 128)).scene(i).semantic for i in range(3)]
    present = np.unique(np.stack(maps))
    assert record["mIoU_constant_predictor"] == pytest.approx((np.stack(maps) == label).mean() / len(present), abs=1e-3)
    # Again, with a bar that two iterations cannot reach: a new training, and exit code 1.
    (folder / "predictions" / "scene_05.png").write_bytes(b"stale")
    assert demo.main(["--work-dir", str(folder), "--min-miou", "0.99", *SMALL_DEMO]) == 1
    assert "below 0.99" in capsys.readouterr().err
    assert not (folder / "predictions" / "scene_05.png").exists()
    assert json.loads((folder / "metrics.json").read_text())["mIoU"] == pytest.approx(record["mIoU"], abs=0.02)


def test_demo_does_not_touch_a_folder_of_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "iter_9.pth").write_bytes(b"precious")
    assert demo.main(["--work-dir", str(tmp_path), *SMALL_DEMO]) == 2
    assert str(tmp_path) in capsys.readouterr().err
    assert (tmp_path / "iter_9.pth").read_bytes() == b"precious"
