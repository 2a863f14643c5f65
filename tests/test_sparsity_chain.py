"""The chain of SparseViT on scenes: its steps, the uniform ratio of equal latency, its table and picture."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hosts import require_host

pytest.importorskip("optuna", reason="needs the extra `search`")

from mmvit_plugins.cli import run_sparsity_chain as chain  # noqa: E402
from mmvit_plugins.cli import sparsity_chain_report as report  # noqa: E402
from mmvit_plugins.cli.errors import UserError  # noqa: E402
from mmvit_plugins.registry import DATASETS, MODELS  # noqa: E402

GENES = 5
# 10 ms unpruned; each gene saves up to 1 ms, linearly.
TABLE = dict(
    reference=0.01,
    changes=[{f"{r / 10}": -0.001 * r / 8 for r in range(9)} for _ in range(GENES)],
    error=dict(mean=0.02, largest=0.05, count=10),
)


def arguments(out: Path, *more: str) -> object:
    return chain.parse_args(["--out-dir", str(out), *more])


def test_plan_runs_in_order_and_nothing_twice(tmp_path: Path) -> None:
    """Every file that a step needs is made by an earlier one, and no two make the same."""
    steps = list(chain.plan(arguments(tmp_path, "--budgets", "60", "--seeds", "0", "3"), tmp_path))
    files = [step.file for step in steps]
    assert len(set(files)) == len(files) and len({step.name for step in steps}) == len(steps)
    for number, step in enumerate(steps):
        needed = {Path(text.removeprefix("load_from=")) for text in step.arguments if text.endswith(".pth")}
        assert needed <= set(files[:number]), step.name
    names = [step.name for step in steps]
    assert names[0] == "pretrain" and names[4:7] == ["adapt", "table", "search_60"]
    for name in ("dense_256", "dense_128", "unpruned", "uniform_60", "evolved_60", "random_60"):
        assert name in names and f"test_{name}_seed3" in names
    seeded = next(step for step in steps if step.name == "evolved_60_seed3")
    assert seeded.arguments[-2:] == ("--seed", "3") and "--seed" not in steps[names.index("evolved_60")].arguments


def test_equal_total_lengths() -> None:
    """After equal starts, dense models go on for as long as adaptation and fine-tuning take."""
    args = arguments(Path("x"))
    steps = {step.name: step for step in chain.plan(args, Path("x"))}
    length = {name: chain._load(args, name).train_cfg.max_iters for name in (chain.ADAPT, chain.FINETUNE)}
    for name, config in chain.DENSE.items():
        assert chain._load(args, config).train_cfg.max_iters == 600
        assert steps[f"start_{name}"].file.name == "iter_600.pth"
        assert f"train_cfg.max_iters={sum(length.values())}" in steps[name].arguments
        assert steps[name].arguments[-1] == f"load_from={steps[f'start_{name}'].file}"
    assert steps["adapt"].arguments[-1] == f"load_from={steps['start_dense_256'].file}"


@pytest.mark.parametrize("budget", [0.9, 0.75, 0.6])
def test_uniform_ratio_of_a_budget(budget: float) -> None:
    """10 ms - 5 ms * ratio / 0.8: the smallest ratio on the grid that is fast enough."""
    ratio = chain.uniform_ratio(TABLE, budget)
    assert ratio == pytest.approx(np.ceil(100 * (1 - budget) * 0.8 / 0.5 - 1e-6) / 100)
    with pytest.raises(UserError, match=r"ratio 0\.8 needs 5 ms"):
        chain.uniform_ratio(TABLE, 0.49)


def test_low_resolution_keeps_the_labels() -> None:
    """128 x 128 pixels, 256 x 256 labels; at half the size a pixel is the mean of four."""
    require_host("mmseg")
    from mmengine.registry import init_default_scope

    init_default_scope("mmseg")
    samples = {}
    for name in ("dense_256", "dense_128"):
        cfg = chain._load(arguments(Path("x")), chain.DENSE[name])
        for part in ("val", "test"):
            samples[name, part] = DATASETS.build({**cfg[f"{part}_dataloader"].dataset, "indices": 1})[0]
        dataset = DATASETS.build({**cfg.train_dataloader.dataset, "indices": 1})
        assert dataset[0]["data_samples"].gt_sem_seg.shape == (256, 256)
    for part in ("val", "test"):
        full, low = samples["dense_256", part], samples["dense_128", part]
        assert low["inputs"].shape == (3, 128, 128)
        assert low["data_samples"].gt_sem_seg.data.equal(full["data_samples"].gt_sem_seg.data)
        mean = full["inputs"].float().reshape(3, 128, 2, 128, 2).mean((2, 4))
        assert (low["inputs"].float() - mean).abs().max() <= 0.51
    assert samples["dense_256", "val"]["data_samples"].img_path != samples["dense_256", "test"]["data_samples"].img_path


def test_configs_of_the_ratios_found(tmp_path: Path) -> None:
    require_host("mmseg")
    from mmengine.config import Config

    args = arguments(tmp_path, "--budgets", "60")
    chain._write_configs(args, tmp_path)
    assert [file.name for file in (tmp_path / "configs").iterdir()] == ["unpruned.py"]
    (tmp_path / "search_60").mkdir()
    (tmp_path / "latency.json").write_text(json.dumps(TABLE))
    found = dict(nsga2=dict(ratios=[[0.5], [0.4], [0.1, 0.8], [0.0]]), random=dict(ratios=[[0.8], [0], [0, 0], [0]]))
    (tmp_path / "search_60/report.json").write_text(json.dumps(dict(results=found)))
    chain._write_configs(args, tmp_path)
    cfg = Config.fromfile(tmp_path / "configs/evolved_60.py")
    assert cfg.model.backbone.pruning_ratios == [[0.5, 0.5], [0.4, 0.4], [0.1, 0.1, 0.8, 0.8], [0.0, 0.0]]
    assert cfg.load_from.endswith("adapt/iter_200.pth") and cfg.train_cfg.max_iters == 200
    assert Config.fromfile(tmp_path / "configs/uniform_60.py").model.backbone.pruning_ratios == 0.64
    assert MODELS.build(cfg.model.backbone).kept_windows((256, 256))[0][0] == (128, 256)


def test_table_and_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = arguments(tmp_path, "--budgets", "60", "--seeds", "0", "1")
    known = [m for m in chain.models(args, tmp_path) if m.name.partition("_seed")[0] in ("dense_128", "evolved_60")]
    with pytest.raises(UserError, match="--only latency"):
        report.rows_of(known, tmp_path)
    ratios = [[0.4, 0.4], [0.8, 0.8], [0.0, 0.0, 0.8, 0.8], [0.4, 0.4]]
    cost = dict(backbone_gmac=0.1, model_gmac=0.2, backbone_ms=1.25, model_ms=3.0)
    timed = {
        "dense_128": dict(size=[128, 128], ratios=[[0, 0]] * 4, **cost),
        "evolved_60": dict(size=[256, 256], ratios=ratios, **cost),
    }
    (tmp_path / report.LATENCIES).write_text(json.dumps(dict(batch_size=4, models=timed)))
    (tmp_path / "latency.json").write_text(json.dumps(TABLE))
    for number, model in enumerate(known):
        folder = model.checkpoint.parent
        folder.mkdir()
        (folder / "test.json").write_text(json.dumps(dict(metrics=dict(mIoU=50.0 + number))))
        (folder / "before.json").write_text(json.dumps(dict(metrics=dict(mIoU=40.0))))
    report.write_report(known, tmp_path, args)
    rows = {row["name"]: row for row in json.loads((tmp_path / "table.json").read_text())["rows"]}
    assert rows["dense_128"]["mIoU"] == 51.0 and rows["evolved_60"]["mIoUs"] == [51.0, 53.0]
    # Two halves and two whole changes of 1 ms: 7 ms for four images.
    assert rows["evolved_60"]["predicted_ms"] == pytest.approx(1.75)
    text = (tmp_path / "table.md").read_text()
    assert "| 0.4 \\| 0.8 \\| 0, 0.8 \\| 0.4 | 0.100 | 1.25 | 1.75 | 3.00 | 40.00 | 52.00 (51.00, 53.00) |" in text
    assert "40.0 % at most in this table" in text and (tmp_path / "chain.png").is_file()
    assert str(tmp_path / "table.md") in capsys.readouterr().out


def test_a_step_that_fails_says_why(tmp_path: Path) -> None:
    step = chain.Step("x", "test", ("sparsevit/upernet_scenes_256.py", str(tmp_path / "no.pth")), tmp_path / "a.json")
    with pytest.raises(UserError, match=r"step x ended with code 2(.|\n)*no\.pth"):
        chain._run(step, False)
    (tmp_path / "a.json").touch()
    chain._run(step, False)  # done: nothing runs
    with pytest.raises(UserError, match="percents from 1 to below 100"):
        chain.run_chain(arguments(tmp_path, "--budgets", "0.6"))
    with pytest.raises(UserError, match="names no step; there are pretrain, start_dense_256"):
        chain.run_chain(arguments(tmp_path, "--only", "dens"))
