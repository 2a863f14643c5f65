"""The tools on a multi-task config: pictures and files of all tasks, resumed comparison, Delta_m of files."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from hosts import require_host
from mmengine.structures import InstanceData, PixelData

from mmvit_plugins.cli.errors import UserError
from mmvit_plugins.cli.predict import describe, write_task_maps
from mmvit_plugins.cli.resumable_runs import claim_folder
from mmvit_plugins.cli.run_multitask import _entry, compare, main, make_table
from mmvit_plugins.structures import MultiTaskSample
from mmvit_plugins.visualization import draw_prediction, draw_task_map

SMALL = [
    "train_dataloader.dataset.size=[32,32]",
    "val_dataloader.dataset.size=[32,32]",
    "train_dataloader.dataset.num_scenes=4",
    "val_dataloader.dataset.num_scenes=2",
    "train_dataloader.batch_size=2",
    "param_scheduler.0.end=2",
    "param_scheduler.1.begin=2",
]


def predicted(size: tuple[int, int] = (20, 30)) -> MultiTaskSample:
    sample = MultiTaskSample(metainfo=dict(tasks=("semseg", "parts", "depth", "normals", "boundary", "saliency")))
    half = torch.zeros(1, *size)
    half[:, :, size[1] // 2 :] = 1
    sample.pred_sem_seg = PixelData(data=half.long())
    sample.pred_parts = PixelData(data=half.long() * 6)
    sample.pred_depth = PixelData(data=half * 2 + 1.5)
    sample.pred_normals = PixelData(data=torch.tensor([0.0, -1.0, 0.0]).view(3, 1, 1).expand(3, *size).clone())
    sample.pred_boundary = PixelData(data=half * 0.8)
    sample.pred_saliency = PixelData(data=half)
    return sample


def test_all_tasks_side_by_side() -> None:
    """One tile for the image and each task; a second row when there are labels."""
    image = np.full((20, 30, 3), 100, np.uint8)
    sample = predicted()
    one = draw_prediction(image, sample, dict(classes=("a", "b"), palette=[[255, 0, 0], [0, 255, 0]]))
    scale = 12  # to 240 pixels
    assert one.shape == (20 * scale + 22, 7 * (30 * scale + 4), 3)
    tile = one[22:, 30 * scale + 6 : 2 * (30 * scale + 4) - 2]
    assert (tile[5, 5] == np.round(0.45 * 100 + 0.55 * np.array([255, 0, 0]))).all()
    assert (tile[5, -5] == np.round(0.45 * 100 + 0.55 * np.array([0, 255, 0]))).all()
    sample.gt_depth = PixelData(data=torch.ones(1, 20, 30))
    two = draw_prediction(image, sample)
    assert two.shape == (2 * one.shape[0], one.shape[1], 3)


def test_what_a_map_looks_like() -> None:
    image = np.full((2, 2, 3), 200, np.uint8)
    up = np.zeros((3, 2, 2))
    up[1, 0] = -1
    assert draw_task_map("normals", up, image)[:, 0].tolist() == [[127, 255, 127], [0, 0, 0]]
    depth = np.array([[[1.0, 9.0], [0.0, 5.0]]])
    drawn = draw_task_map("depth", depth, image).astype(int).sum(-1)
    assert drawn[0, 0] > drawn[1, 1] > drawn[0, 1] and drawn[1, 0] == 0
    lines = draw_task_map("boundary", np.array([[[0.0, 1.0], [255.0, 0.5]]]), image)[..., 0]
    assert lines.tolist() == [[255, 0], [255, 127]]
    assert draw_task_map("saliency", np.array([[[0.0, 1.0], [0, 0]]]), image)[0, :, 0].tolist() == [40, 200]


def test_files_and_description(tmp_path: Path) -> None:
    sample = predicted()
    files = write_task_maps(sample, tmp_path, Path("sub/x"))
    assert set(files) == {"parts", "depth", "normals", "boundary", "saliency"}
    depth = cv2.imread(str(tmp_path / "depth/sub/x.png"), cv2.IMREAD_UNCHANGED)
    assert depth.dtype == np.uint16 and set(np.unique(depth)) == {1500, 3500}
    normals = cv2.imread(str(tmp_path / "normals/sub/x.png"))[..., ::-1]
    assert normals[0, 0].tolist() == [128, 0, 128]
    assert cv2.imread(str(tmp_path / "boundary/sub/x.png"), -1).max() == 204
    assert cv2.imread(str(tmp_path / "parts/sub/x.png"), -1).max() == 6
    found = json.loads(json.dumps(describe(sample, ("road", "car"), 0.3)))
    assert found["class_shares"] == {"road": 0.5, "car": 0.5} and found["part_shares"] == {"0": 0.5, "6": 0.5}
    assert found["depth"] == {"least": 1.5, "median": 3.5, "greatest": 3.5} and found["saliency_share"] == 0.5


def test_instances_and_parts_have_names_of_their_own() -> None:
    """Class 1 of the instances is not class 1 of the label map; without a name the number stays."""
    sample = predicted()
    sample.set_metainfo(dict(tasks=("semseg", "parts", "instances")))
    sample.pred_instances = InstanceData(
        labels=torch.tensor([1, 2, 0]), scores=torch.tensor([0.9, 0.8, 0.1]), bboxes=torch.zeros(3, 4)
    )
    found = describe(sample, ("road", "car"), 0.3, ("ball", "box"), ("background", "head"))
    assert [(row["label"], row["class"]) for row in found["instances"]] == [(1, "box"), (2, "2")]
    assert found["part_shares"] == {"background": 0.5, "6": 0.5} and set(found["class_shares"]) == {"road", "car"}


def test_gain_of_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """tools/test.py --out wraps metrics in a record; plain tables work too. What one side lacks is named."""
    rows = dict(
        multi=dict(metrics={"semseg/mIoU": 36.0, "depth/rmse": 0.6, "boundary/odsF": 70.0}),
        semseg={"semseg/mIoU": 40.0},
        depth=dict(metrics={"depth/rmse": 0.5, "depth/abs_rel": 0.1}),
    )
    paths = []
    for name, row in rows.items():
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps(row))
    assert compare([str(path) for path in paths]) == 0
    printed = capsys.readouterr().out
    assert "Delta_m over 2 tasks: -15.00 %" in printed and "left out, in one side only: boundary/odsF" in printed
    assert main(["--compare", str(paths[0])]) == 2
    assert main(["--compare", str(paths[0]), str(tmp_path / "no.json")]) == 2


def test_table() -> None:
    entry = dict(
        name="x",
        single={"semseg/mIoU": 40.0, "depth/rmse": 0.5},
        multi={"semseg/mIoU": 36.0, "depth/rmse": 0.6},
        single_parameters=2_000_000,
        multi_parameters=1_200_000,
        gain=-15.0,
    )
    lines = make_table([entry]).splitlines()
    assert lines[0] == "| config | models | M parameters | semseg/mIoU ↑ | depth/rmse ↓ | Delta_m % |"
    assert lines[3] == "| x | multi-task | 1.20 | 36.000 | 0.600 | -15.00 |"


def test_table_goes_on_without_a_gain() -> None:
    """A single-task value of 0, nan and a metric that nothing measured: a dash, the reason below, the others stay."""

    def runs(single: dict, multi: dict) -> dict:
        rest = dict(parameters=1e6, seconds=1.0)
        return dict(
            multi=dict(metrics=multi, **rest), boundary=dict(metrics=single, **rest), depth=dict(metrics=single, **rest)
        )

    good = {"boundary/odsF": 50.0, "depth/rmse": 2.0}
    better = {"boundary/odsF": 55.0, "depth/rmse": 1.8}
    entries = [
        _entry("zero", runs({**good, "boundary/odsF": 0.0}, better)),
        _entry("nan", runs(good, {**better, "depth/rmse": float("nan")})),
        _entry("absent", runs({"depth/rmse": 2.0}, better)),
        _entry("fine", runs(good, better)),
    ]
    table, *reasons = make_table(json.loads(json.dumps(entries, allow_nan=False))).strip().split("\n\n")
    ends = [row.split(" | ", 3)[3] for row in table.splitlines()[3::2]]
    assert ends == ["55.000 | 1.800 | - |", "55.000 | - | - |", "55.000 | 1.800 | - |", "55.000 | 1.800 | +10.00 |"]
    assert table.splitlines()[6].endswith("| - | 2.000 |  |")
    assert reasons[0].startswith("zero has no Delta_m: ") and "is 0 for boundary/odsF" in reasons[0]
    assert reasons[1:] == [
        "nan has no Delta_m: run multi has no value of depth/rmse (nan)",
        "absent has no Delta_m: run boundary has no value of boundary/odsF (not measured)",
    ]


def test_folders_belong_to_settings(tmp_path: Path) -> None:
    """Checkpoints bind a folder; without any, its settings are replaced. Checkpoints of unknown origin are refused."""
    claim_folder(tmp_path / "run", dict(seed=1, iters=None))
    claim_folder(tmp_path / "run", dict(seed=2, iters=5))
    (tmp_path / "run/iter_3.pth").touch()
    claim_folder(tmp_path / "run", dict(seed=2, iters=5))
    with pytest.raises(UserError, match="settings: seed was 2, asked for is 3; iters was 5, asked for is None. Ask"):
        claim_folder(tmp_path / "run", dict(seed=3, iters=None))
    (tmp_path / "run/settings.json").unlink()
    with pytest.raises(UserError, match="no settings.json"):
        claim_folder(tmp_path / "run", dict(seed=2, iters=5))


def test_comparison_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two tasks of one backbone; a second call trains nothing, a lost result is made again, other settings refused."""
    require_host("mmseg")
    arguments = ["multitask/efficientvit_scenes.py", "--tasks", "depth", "saliency", "--iters", "4"]
    arguments += ["--out-dir", str(tmp_path), "--cfg-options", *SMALL]
    assert main(["--table", *arguments]) == 2
    assert "run without --table" in capsys.readouterr().err
    assert main(arguments) == 0
    folder = tmp_path / "efficientvit_scenes"
    table = json.loads((tmp_path / "table.json").read_text())[0]
    assert set(table["single"]) == {"depth/rmse", "saliency/max_mIoU_survey"} == set(table["multi"])
    assert table["multi_parameters"] < table["single_parameters"]
    first = {run: json.loads((folder / run / "result.json").read_text()) for run in ("multi", "depth", "saliency")}
    assert set(first["depth"]["metrics"]) == {"depth/rmse", "depth/rmse_per_image", "depth/abs_rel"}
    (folder / "depth/result.json").unlink()  # as if it had been killed before its end
    assert json.loads((folder / "depth/settings.json").read_text()) == first["depth"]["settings"]
    capsys.readouterr()
    assert main(["--seed", "7", *arguments]) == 2
    assert "seed was None, asked for is 7." in capsys.readouterr().err, "of the finished run"
    (folder / "multi/result.json").rename(tmp_path / "kept.json")
    assert main(["--seed", "7", *arguments]) == 2
    error = capsys.readouterr().err
    assert "multi/settings.json was made with other settings: seed was None, asked for is 7." in error
    (tmp_path / "kept.json").rename(folder / "multi/result.json")
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "depth (depth), 4 iterations" in printed and "multi (" not in printed and "1/4 " not in printed
    again = json.loads((folder / "depth/result.json").read_text())
    assert again["metrics"] == pytest.approx(first["depth"]["metrics"])
    assert main([*arguments, "train_cfg.val_interval=7"]) == 2
    assert "made with other settings" in capsys.readouterr().err
    assert main(["stvit/upernet_scenes.py", "--out-dir", str(tmp_path)]) == 2
