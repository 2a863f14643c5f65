"""Counting, timing and reports of the benchmark, by hand-computed cases and one small run of the tool."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mmvit_plugins.benchmark import (
    Setting,
    compare_rows,
    count_flops,
    environment_of,
    fit_exponent,
    interleaved_seconds,
    read_report,
    write_report,
)
from mmvit_plugins.benchmark.settings import parse_size, product_of
from mmvit_plugins.cli.benchmark import main

CONFIG = "stvit/cls_scenes.py"


def test_flops_of_products_and_convolutions() -> None:
    assert count_flops(lambda: nn.Linear(8, 3)(torch.zeros(5, 8))) == 2 * 5 * 8 * 3
    conv = nn.Conv2d(8, 12, 3, padding=1, groups=4)
    assert count_flops(lambda: conv(torch.zeros(2, 8, 6, 7))) == 2 * (2 * 6 * 7) * 12 * (8 // 4) * 9


@pytest.mark.parametrize("groups", [1, 4, 8])
def test_flops_of_a_grouped_convolution_and_its_gradients(groups: int) -> None:
    """Three products of equal size: torch 2.10 alone counts the two gradients of a grouped one as if it were dense."""
    conv = nn.Conv2d(8, 8, 3, padding=1, groups=groups)
    x = torch.randn(2, 8, 6, 7, requires_grad=True)
    forward = 2 * (2 * 6 * 7) * 8 * (8 // groups) * 9
    assert count_flops(lambda: conv(x).sum().backward()) == 3 * forward
    frozen = torch.randn(2, 8, 6, 7)
    assert count_flops(lambda: conv(frozen).sum().backward()) == 2 * forward  # no gradient of the image
    transposed = nn.ConvTranspose2d(8, 8, 2, stride=2, groups=groups)
    forward = 2 * (2 * 6 * 7) * 8 * (8 // groups) * 4
    assert count_flops(lambda: transposed(x).sum().backward()) == 3 * forward


def test_flops_of_fused_attention_equal_those_of_its_two_products() -> None:
    q, k, v = (torch.randn(2, 3, n, 16, requires_grad=True) for n in (10, 14, 14))

    def plain() -> torch.Tensor:
        return (q @ k.transpose(2, 3)).softmax(-1) @ v

    expected = 2 * 2 * 3 * 10 * 14 * (16 + 16)
    assert count_flops(plain) == expected
    assert count_flops(lambda: F.scaled_dot_product_attention(q, k, v)) == expected
    with torch.no_grad():
        assert count_flops(lambda: F.scaled_dot_product_attention(q, k, v)) == expected


def test_calls_take_turns() -> None:
    order: list[str] = []
    times = interleaved_seconds(
        {name: lambda name=name: order.append(name) for name in "ab"}, rounds=3, warmup=2, shortest=0.0
    )
    assert {name: len(values) for name, values in times.items()} == {"a": 3, "b": 3}
    assert order[-6:] == ["a", "b"] * 3
    with pytest.raises(ValueError, match="rounds must be at least 1"):
        interleaved_seconds({}, rounds=0)


def test_settings() -> None:
    assert parse_size("512") == (512, 512) and parse_size("512x1024") == (512, 1024)
    for wrong in ("", "0", "1x2x3", "a", "-4", "3.5"):
        with pytest.raises(ValueError, match="a size is"):
            parse_size(wrong)
    settings = product_of([(32, 64), (32, 64)], batch=[1, 2], dtype=["float32", "bfloat16"])
    assert len(settings) == 4 and settings[0] == Setting(32, 64)
    assert settings[0].pixels == 2048 and "bfloat16" in str(settings[1])
    with pytest.raises(ValueError, match=r"dtype is one of float32, bfloat16, float16, got 'int8'"):
        Setting(dtype="int8")


def row(name: str, rounds: list[float], **more: object) -> dict:
    return dict(
        name=name, **Setting(**more).as_dict(), latency_ms=float(np.median(rounds)), rounds_ms=rounds, flops=100
    )


def test_ratios_are_those_of_the_fastest_rounds(tmp_path: Path) -> None:
    """The machine slows down tenfold after the first round, and a single call of b is interrupted."""
    rows = [row("a", [10.0, 100.0, 110.0]), row("b", [320.0, 20.0, 220.0]), row("b", [1.0], height=99)]
    (ratio,) = compare_rows(rows, "a")
    assert ratio["name"] == "b" and ratio["latency_ms"] == 2.0 and ratio["flops"] == 1.0
    with pytest.raises(ValueError, match="nothing is named 'c'; names: a, b"):
        compare_rows(rows, "c")
    write_report(tmp_path, environment_of("cpu", 3), rows)
    assert read_report(tmp_path)["rows"] == rows and read_report(tmp_path)["environment"]["threads"] == 3
    with open(tmp_path / "benchmark.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert lines[1]["latency_ms"] == "220.0" and lines[1]["environment_threads"] == "3"
    (tmp_path / "benchmark.json").write_text("[")
    with pytest.raises(ValueError, match="no report of"):
        read_report(tmp_path)


def test_exponent() -> None:
    pixels = [224**2, 512**2, 1024**2]
    assert fit_exponent(pixels, [3.0 * p**1.5 for p in pixels]) == pytest.approx(1.5)
    assert fit_exponent([4, 4], [1.0, 2.0]) is None


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the tool leaves for one small classifier at two sizes."""
    pytest.importorskip("mmpretrain")
    out = tmp_path_factory.mktemp("benchmark")
    arguments = ["--sizes", "32", "48x64", "--rounds", "1", "--no-memory", "--out", str(out)]
    assert main([f"ours={CONFIG}", *arguments]) == 0
    return out


def test_the_tool_measures_draws_and_resumes(report: Path, capsys: pytest.CaptureFixture) -> None:
    first = read_report(report)["rows"]
    assert [(r["height"], r["width"]) for r in first] == [(32, 32), (48, 64)]
    assert all(r["macs"] * 2 == r["flops"] > 0 and r["latency_ms"] > 0 and r["name"] == "ours" for r in first)
    assert (report / "latency.png").stat().st_size > 5000 and (report / "flops.png").exists()
    sizes = ["--sizes", "32", "48x64", "--rounds", "1", "--no-memory"]
    again = [f"ours={CONFIG}", f"twin={CONFIG}", *sizes, "--out", str(report), "--resume", "--compare", "ours"]
    assert main(again) == 0
    rows = read_report(report)["rows"]
    assert rows[:2] == first and [r["name"] for r in rows[2:]] == ["twin", "twin"]
    assert rows[2]["flops"] == rows[0]["flops"]
    assert "ratios to ours" in (text := capsys.readouterr().out) and "parameters 1.00" in text
    result = report / "metrics.json"
    result.write_text(json.dumps(dict(metrics={"accuracy/top1": 50.0})))
    assert main(["--plot", str(report), "--accuracy", f"ours={result}", "--cost", "flops"]) == 0
    assert (report / "accuracy.png").stat().st_size > 5000


def test_training_step_memory_and_precision(tmp_path: Path) -> None:
    pytest.importorskip("mmpretrain")
    arguments = ["--sizes", "32", "--batch", "2", "--rounds", "1", "--dtype", "bfloat16", "--layout", "channels_last"]
    assert main([f"ours={CONFIG}", *arguments, "--part", "backbone", "--mode", "train", "--out", str(tmp_path)]) == 0
    (only,) = read_report(tmp_path)["rows"]
    assert only["mode"] == "train" and only["dtype"] == "bfloat16" and only["part"] == "backbone"
    assert only["peak_mib"] is None or only["peak_mib"] > 0
    assert only["images_per_s"] == pytest.approx(2e3 / only["latency_ms"], rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give at least one config"),
        ([CONFIG, "--sizes", "big"], "a size is SIDE or HEIGHTxWIDTH"),
        ([CONFIG, CONFIG], "two configs are named 'stvit/cls_scenes'"),
        ([CONFIG, "--compare", "other"], "no config is named so; names: stvit/cls_scenes"),
        ([CONFIG, "--dtype", "int8"], "dtype is one of"),
        ([CONFIG, "--images", "nowhere"], "there is no"),
        ([CONFIG, "--rounds", "0"], "at least 1"),
        (["stvit/nothing.py"], "there is no config"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main([*arguments, "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
