"""What the benchmark says of wrong input, of models that fail, and of a report that holds something else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hosts import require_host
from PIL import Image

from mmvit_plugins.benchmark import (
    Procedure,
    Setting,
    Subject,
    measure,
    measuring,
    print_ratios,
    read_accuracies,
    read_report,
)
from mmvit_plugins.cli.benchmark import main
from mmvit_plugins.cli.errors import UserError

CONFIG = "stvit/cls_scenes.py"
QUICK = ["--sizes", "32", "--rounds", "1", "--warmup", "0", "--no-memory"]


def photograph(path: Path, seed: int = 0) -> Path:
    Image.fromarray(np.random.RandomState(seed).randint(0, 255, (40, 50, 3), dtype=np.uint8)).save(path)
    return path


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of one small classifier."""
    require_host("mmpretrain")
    out = tmp_path_factory.mktemp("report")
    assert main([f"ours={CONFIG}", *QUICK, "--out", str(out)]) == 0
    return out


def copy_of(report: Path, tmp_path: Path, change: Callable[[dict], object] = lambda row: None) -> Path:
    content = read_report(report)
    for one in content["rows"]:
        change(one)
    (tmp_path / "benchmark.json").write_text(json.dumps(content))
    return tmp_path


# --- going on with a report -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        ("msvit/cls_scenes.py", [], f"ours: another model: {CONFIG} then, msvit/cls_scenes.py now"),
        (CONFIG, ["--cfg-options", "model.backbone.drop_path_rate=0.3"], "cls_scenes.py model.backbone.drop_path_rate"),
        (CONFIG, ["--flops-images", "2"], "ours: other flops_images: 1 then, 2 now"),
        (CONFIG, ["--images"], "ours: other images: rendered scenes then, 1 files from"),
    ],
)
def test_rows_of_something_else_are_not_kept(
    config: str, options: list[str], message: str, report: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """The size is another one, too: one name is one model in the whole report."""
    if options == ["--images"]:
        options = ["--images", str(photograph(tmp_path / "a.png"))]
    out = copy_of(report, tmp_path)
    before = (out / "benchmark.json").read_text()
    arguments = [f"ours={config}", *options, *QUICK, "--sizes", "48", "--out", str(out), "--resume"]
    assert main(arguments) == 2
    text = capsys.readouterr().err
    assert "--resume" in text and message in text and (out / "benchmark.json").read_text() == before


def test_a_config_that_was_edited_is_another_model(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    require_host("mmpretrain")
    config = tmp_path / "mine.py"
    base = '_base_ = "mmvit_plugins::stvit/cls_scenes.py"\n'
    config.write_text(base)
    arguments = [f"ours={config}", *QUICK, "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    assert main([*arguments, "--resume"]) == 0  # nothing to do
    config.write_text(
        '_base_ = "mmvit_plugins::stvit/cls_scenes.py"\nmodel = dict(backbone=dict(drop_path_rate=0.3))\n'
    )
    assert main([*arguments, "--resume"]) == 2
    assert "mine.py has changed since" in capsys.readouterr().err


def test_the_same_model_by_another_path_is_the_same(
    report: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (before,) = read_report(report)["rows"]
    out = copy_of(report, tmp_path)
    assert main(["ours=configs/stvit/cls_scenes", *QUICK, "--out", str(out), "--resume"]) == 0
    assert read_report(out)["rows"] == [before] and before["model_digest"] and before["images"] == "rendered scenes"
    old = copy_of(report, tmp_path, lambda row: row.pop("model_digest"))  # an older version did not note it
    assert main(["ours=configs/stvit/cls_scenes", *QUICK, "--out", str(old), "--resume"]) == 0
    assert "does not say what its rows depend on" in capsys.readouterr().err
    assert main(["ours=msvit/cls_scenes", *QUICK, "--out", str(old), "--resume"]) == 2
    assert "ours: another config: stvit/cls_scenes.py then, msvit/cls_scenes now" in capsys.readouterr().err


def test_times_of_different_runs_are_marked(report: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    arguments = [f"ours={CONFIG}", f"twin={CONFIG}", *QUICK, "--compare", "ours"]
    assert main([*arguments, "--out", str(copy_of(report, tmp_path)), "--resume"]) == 0
    text = capsys.readouterr().out
    assert "* note: the two times are of different runs" in text and "parameters 1.00  flops 1.00  latency_ms" in text
    rows = read_report(tmp_path)["rows"]
    assert rows[0]["session"] < rows[1]["session"]
    print_ratios([dict(row, session="now") for row in rows], "ours")
    text = capsys.readouterr().out
    assert "note" not in text and "*" not in text
    print_ratios(rows, "nobody")
    assert "no ratios to nobody" in capsys.readouterr().out


# --- wrong input ------------------------------------------------------------------------------------------------


def test_files_that_are_no_images_are_named(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    good, text, cut = photograph(tmp_path / "good.png"), tmp_path / "notes.txt", tmp_path / "pictures" / "cut.png"
    text.write_text("no image")
    cut.parent.mkdir()
    cut.write_bytes(photograph(tmp_path / "whole.png").read_bytes()[:900])
    (broken := tmp_path / "other" / "broken.jpg").parent.mkdir()
    broken.write_bytes(b"no image")
    for given, named in (
        ([good, text], text),
        ([cut.parent], cut),
        ([broken.parent], broken),
        ([good, broken], broken),
    ):
        assert main([CONFIG, "--images", *map(str, given), "--out", str(tmp_path / "out")]) == 2
        assert f"--images: cannot read {named}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no result file of tools/test.py"),
        ("[1]", "it has no 'metrics'"),
        ('{"metrics": [1]}', "it has no 'metrics'"),
        ('{"metrics": {"mIoU": "high"}}', "mIoU is 'high', no finite number"),
        ('{"metrics": {"mIoU": NaN}}', "mIoU is nan, no finite number"),
        ('{"metrics": {"mIoU": true}}', "mIoU is True, no finite number"),
        ('{"metrics": {"aAcc": 1.0}}', "no metric 'mIoU'; it has aAcc"),
        (None, "there is no"),
    ],
)
def test_result_files_that_hold_no_number(
    content: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Found before anything is measured."""
    file = tmp_path / "metrics.json"
    if content is not None:
        file.write_text(content)
    arguments = [CONFIG, "--accuracy", f"ours={file}", "--metric", "mIoU", "--out", str(tmp_path / "out")]
    assert main(arguments) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_accuracies(tmp_path: Path) -> None:
    (file := tmp_path / "metrics.json").write_text('{"metrics": {"mIoU": 50, "aAcc": 60.5}}')
    assert read_accuracies([f"a={file}", f"b={file}"], None) == ({"a": 50.0, "b": 50.0}, "mIoU")
    assert read_accuracies([f"a={file}"], "aAcc") == ({"a": 60.5}, "aAcc")
    with pytest.raises(UserError, match="each name once"):
        read_accuracies([f"a={file}", f"a={file}"], None)


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        ([CONFIG, "--cfg-options", "model.backbone.nope=3"], [f"the model of {CONFIG} cannot be built", "'nope'"]),
        ([CONFIG, "--cfg-options", "model.backbone.arch=huge"], [f"the model of {CONFIG} cannot be built", "huge"]),
        (["msvit/cls_scenes.py", "_base_/datasets/scenes_cls.py"], ["_base_/datasets/scenes_cls.py has no model"]),
        (["dvt/cls_scenes.py", "--part", "backbone", "--cfg-options", "model.backbone=None"], ["no model.backbone"]),
    ],
)
def test_configs_that_cannot_be_built_are_named(
    arguments: list[str], messages: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Nothing is measured. (Options change every config, so that there is no good one beside it.)"""
    require_host("mmpretrain")
    assert main([*arguments, *QUICK, "--out", str(tmp_path / "out")]) == 2
    text = capsys.readouterr().err
    assert all(message in text for message in messages) and "Traceback" not in text
    assert not (tmp_path / "out").exists()


def test_point_clouds_are_not_in_photographs(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    require_host("mmseg")
    image = str(photograph(tmp_path / "a.png"))
    assert main(["flatformer/bev_scenes.py", "--images", image, *QUICK, "--out", str(tmp_path / "out")]) == 2
    assert "takes point clouds" in capsys.readouterr().err


# --- models that fail -------------------------------------------------------------------------------------------


class Fake:
    """Stands for a Subject whose step raises at the given call of it (-1: never)."""

    parameters, images = 5, ()

    def __init__(self, name: str, fails_at: int = -1) -> None:
        self.name, self.fails_at, self.calls, self.released = name, fails_at, 0, False

    def step(self, setting: Setting, image: int | None = None) -> Callable[[], object]:
        def call() -> None:
            self.calls += 1
            if self.calls == self.fails_at:
                raise RuntimeError(f"call {self.calls}")

        return call

    def release(self) -> None:
        self.released = True


@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_what_fails_is_left_out_and_the_others_go_on(fails_at: int) -> None:
    """When FLOPs are counted, in the warm-up, and in a timed round."""
    fakes = [Fake("a"), Fake("b", fails_at), Fake("c")]
    sources = {fake.name: dict(config="x") for fake in fakes}
    rows, (failure,) = measure(fakes, sources, Setting(), Procedure(rounds=1, memory=False))
    assert [row["name"] for row in rows] == ["a", "c"] and all(len(row["rounds_ms"]) == 1 for row in rows)
    assert rows[0]["config"] == "x" and rows[0]["parameters"] == 5
    assert str(failure) == f"b, {Setting()}: not measured: RuntimeError: call {fails_at}"
    assert fakes[1].released and not fakes[0].released and "raise RuntimeError" in failure.traceback()


def test_times_stay_where_memory_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "peak_mib", lambda *args: Fake("x", 1).step(Setting())())
    (row,), (failure,) = measure([Fake("a")], {"a": {}}, Setting(), Procedure(rounds=1))
    assert row["latency_ms"] >= 0 and row["peak_mib"] is None and failure.what == "no peak memory"


def test_the_tool_ends_with_1_and_names_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    require_host("mmpretrain")
    step = Subject.step

    def fail(self: Subject, setting: Setting, image: int | None = None) -> Callable[[], object]:
        if self.name == "bad" and setting.mode == "train":
            raise RuntimeError("expected scalar type Float but found BFloat16")
        return step(self, setting, image)

    monkeypatch.setattr(Subject, "step", fail)
    arguments = [f"bad={CONFIG}", f"good={CONFIG}", *QUICK, "--mode", "train", "inference", "--batch", "2"]
    assert main([*arguments, "--compare", "bad", "--out", str(tmp_path)]) == 1
    rows = read_report(tmp_path)["rows"]
    assert [(row["name"], row["mode"]) for row in rows] == [
        ("good", "train"),
        ("bad", "inference"),
        ("good", "inference"),
    ]
    text = capsys.readouterr().err
    assert "1 failed" in text and "bad, 32x32, batch 2, float32, contiguous, model, train: not measured" in text
    assert "RuntimeError: expected scalar type Float" in text and "Traceback" not in text


def test_what_was_measured_before_ctrl_c_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    require_host("mmpretrain")
    timed, turns = measuring.interleaved_seconds, []

    def interrupted(*args: object, **kwargs: object) -> dict:
        turns.append(1)
        if len(turns) == 2:
            raise KeyboardInterrupt
        return timed(*args, **kwargs)

    monkeypatch.setattr(measuring, "interleaved_seconds", interrupted)
    assert main([CONFIG, *QUICK, "--sizes", "32", "48", "--out", str(tmp_path)]) == 130
    assert [row["height"] for row in read_report(tmp_path)["rows"]] == [32]
    assert "interrupted" in capsys.readouterr().err
