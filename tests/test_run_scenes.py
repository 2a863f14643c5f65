"""tools/run_scenes.py: resumed trainings, tables beside constant predictors and the yardstick."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hosts import require_host

from mmvit_plugins.cli.config_loading import find_config
from mmvit_plugins.cli.run_scenes import CONFIGS, main, make_tables
from mmvit_plugins.cli.train import main as train

SMALL = [
    "train_dataloader.dataset.size=[32,32]",
    "val_dataloader.dataset.size=[32,32]",
    "train_dataloader.dataset.num_scenes=8",
    "val_dataloader.dataset.num_scenes=10",
    "train_dataloader.batch_size=4",
    "train_cfg.max_epochs=1",
    "default_hooks.checkpoint.interval=1",
]


def result(value: float, schedule: object = 1, data: object = "a", scope: str = "mmseg") -> dict[str, object]:
    metrics = {"mIoU": value} if scope == "mmseg" else {"coco/bbox_mAP": value, "coco/segm_mAP": value / 2}
    return dict(scope=scope, data=data, schedule=schedule, length="5 iters of 8", parameters=2e6, metrics=metrics)


def test_tables() -> None:
    """One for each task and data; compared are runs of equal schedule; fractions become percent."""
    runs = {
        "benchmark/resnet50_x.py": result(40.0),
        "a/x.py": result(50.5),
        "b/x.py": result(60.0, schedule=2),
        "c/other.py": result(30.0, data="b"),
        "c/y.py": result(0.5, data="c", scope="mmdet"),
    }
    seen = [
        (dict(scope=r["scope"], data=r["data"], label="x", metrics=dict.fromkeys(r["metrics"], 0.0)))
        for r in runs.values()
    ]
    text = make_tables(runs, [seen[0], seen[3], seen[4]])
    first, other, boxes = text.split("\n\n")[1::2] if text.count("\n\n") == 5 else pytest.fail(text)
    rows = first.splitlines()
    assert rows[0] == "| config | M parameters | training | mIoU | against ResNet-50 |"
    assert rows[2] == "| benchmark/resnet50_x.py | 2.00 | 5 iters of 8 | 40.0 |  |"
    assert rows[3:5] == [
        "| a/x.py | 2.00 | 5 iters of 8 | 50.5 | +10.5 |",
        "| b/x.py | 2.00 | 5 iters of 8 | 60.0 | other schedule |",
    ]
    assert rows[5] == "| constant: x |  |  | 0.0 |  |" and len(rows) == 6
    assert "against" not in other and "| c/other.py | 2.00 | 5 iters of 8 | 30.0 |" in other
    assert "| box AP | mask AP |" in boxes and "| 50.0 | 25.0 |" in boxes


def test_all_named_configs_are_there() -> None:
    for names in CONFIGS.values():
        assert "resnet50" in names[0] and len(names) == 5
        for name in names:
            assert find_config(name).is_file()


def test_runs_resume_and_join_those_of_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A finished run is not repeated, other settings are refused, a work folder of tools/train.py gives a row."""
    require_host("mmpretrain")
    arguments = ["efficientvit/cls_scenes.py", "--out-dir", str(tmp_path / "out"), "--cfg-options", *SMALL]
    assert main(["--table", *arguments]) == 2
    assert "no finished run" in capsys.readouterr().err
    assert main(arguments) == 0
    file = tmp_path / "out/efficientvit/cls_scenes/result.json"
    first, printed = json.loads(file.read_text()), capsys.readouterr().out
    top = first["metrics"]["accuracy/top1"]
    assert f"| efficientvit/cls_scenes.py | {first['parameters'] / 1e6:.2f} | 1 epochs of 4 | {top:.1f} |" in printed
    stamp = file.stat().st_mtime_ns
    assert main(arguments) == 0 and file.stat().st_mtime_ns == stamp
    assert main([*arguments, "randomness.seed=3"]) == 2
    assert "made with other settings" in capsys.readouterr().err
    file.rename(tmp_path / "kept.json")  # as if it had been killed before its end
    assert main(["--seed", "3", *arguments]) == 2
    assert "settings.json was made with other settings: seed was None, asked for is 3." in capsys.readouterr().err
    (tmp_path / "kept.json").rename(file)

    work = tmp_path / "work"
    assert train(["efficientvit/cls_scenes.py", "--work-dir", str(work), "--cfg-options", *SMALL]) == 0
    capsys.readouterr()
    assert main([*arguments[:3], "--table", "--runs", f"plain={work}"]) == 0
    table = json.loads((tmp_path / "out/table.json").read_text())
    one, two = table["runs"]["efficientvit/cls_scenes.py"], table["runs"]["plain"]
    for key in ("metrics", "parameters", "schedule", "data", "length"):
        assert one[key] == two[key], key
    (constant,) = table["constant_predictors"]
    assert constant["label"].startswith("always") and 0 <= constant["metrics"]["accuracy/top1"] <= 100
    (work / "last_checkpoint").write_text("epoch_0.pth")
    assert main(["--table", "--runs", f"plain={work}"]) == 2
    assert "not finished: epoch_0.pth" in capsys.readouterr().err
    assert main(["--table", "--runs", str(work)]) == 2
    assert "NAME=DIR" in capsys.readouterr().err
