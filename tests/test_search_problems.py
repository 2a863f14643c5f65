"""What is searched: exit thresholds and pruning ratios; the tools from checkpoint to config."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hosts import require_host

pytest.importorskip("optuna", reason="needs the extra `search`")

from optuna.trial import FixedTrial  # noqa: E402

from mmvit_plugins.cli import search_exits, search_sparsity  # noqa: E402
from mmvit_plugins.evaluation.exit_rule import ExitScores, published_candidates, simulate_exits  # noqa: E402
from mmvit_plugins.models import SparseViT  # noqa: E402
from mmvit_plugins.registry import MODELS  # noqa: E402
from mmvit_plugins.search.engine import SearchSettings, best_of, finished, run_search  # noqa: E402
from mmvit_plugins.search.exit_costs import COSTS, exit_costs, exit_milliseconds  # noqa: E402
from mmvit_plugins.search.exits import ExitProblem, best_within, read_scores, time_early_exit, write_scores  # noqa: E402
from mmvit_plugins.search.sparsity import (  # noqa: E402
    BackboneCost,
    SparsityProblem,
    as_config,
    describe,
    find_pruned_backbone,
    ratios_of,
    uniform_candidates,
)


def exit_scores(count: int = 400) -> ExitScores:
    """Later exits are right more often, and confidence tells something about being right."""
    generator = torch.Generator().manual_seed(0)
    difficulty = torch.rand(count, generator=generator)
    skill = torch.tensor([[0.5], [0.7], [0.85]])
    correct = difficulty < skill
    confidence = (skill - difficulty) / 2 + 0.5 + 0.1 * torch.rand(3, count, generator=generator)
    return ExitScores(confidence.clamp(0.01, 1), correct, (1.0, 3.0, 8.0))


def test_exit_search_meets_the_budget_and_the_published_rule(tmp_path: Path) -> None:
    scores = exit_scores()
    settings = SearchSettings(budget=4.0, trials=30, storage=str(tmp_path / "t.log"), population=10)
    best = best_of(finished(run_search(ExitProblem(scores), settings), 4.0))
    outcome = simulate_exits(scores, best.user_attrs["candidate"])
    assert outcome.cost <= 4.0 and best.values == [outcome.accuracy, outcome.cost]
    rule = best_within(scores, 4.0)
    assert rule.cost <= 4.0
    assert rule.accuracy == max(o.accuracy for o in published_candidates(scores) if o.cost <= 4.0)
    assert best.values[0] > rule.accuracy - 8
    assert best_within(scores, 0.5) is None


def test_scores_survive_a_file(tmp_path: Path) -> None:
    scores = exit_scores(7)
    write_scores(scores, tmp_path / "s.pt")
    again = read_scores(tmp_path / "s.pt")
    assert again.costs == scores.costs and again.confidence.equal(scores.confidence)
    assert again.correct.equal(scores.correct)


def test_exit_costs_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiply-adds of a cascade without reuse, layer by layer."""
    require_host("mmpretrain")
    backbone = dict(
        type="mmvit_plugins.DVT", arch="mini", image_size=32, token_grids=(2, 4), reuse_features=False,
        reuse_relations=False,
    )  # fmt: skip
    head = dict(type="mmpretrain.LinearClsHead", in_channels=64, num_classes=5)
    model = MODELS.build(dict(type="mmvit_plugins.DVTClassifier", backbone=backbone, head=head)).eval()
    expected, total = [], 0
    for side, kernel in ((2, 16), (4, 8)):
        n = 1 + side * side
        block = n * 64 * (3 * 64 + 64 + 2 * 2 * 64) + 2 * n * n * 64
        total += side * side * 3 * kernel * kernel * 64 + 3 * block + 64 * 5
        expected.append(total / 1e9)
    costs, unit = exit_costs(model, torch.rand(1, 3, 32, 32), "flops")
    assert unit == "GMAC" and costs == pytest.approx(expected, rel=1e-6)
    assert 0 < min(exit_milliseconds(model, torch.rand(2, 3, 32, 32), rounds=1))
    monkeypatch.setitem(COSTS, "latency", ("ms", lambda *_: (2.0, 1.5)))  # noise may not make a later exit cheaper
    assert exit_costs(model, torch.rand(1, 3, 32, 32), "latency") == ((2.0, 2.0), "ms")
    with pytest.raises(ValueError, match="flops, latency"):
        exit_costs(model, torch.rand(1, 3, 32, 32), "energy")


# --- pruning ratios -----------------------------------------------------------------------------------------


def pruned() -> SparseViT:
    torch.manual_seed(0)
    return SparseViT(arch="mini", window_size=4).eval()


def test_candidates() -> None:
    assert ratios_of([[0.1], [0.2, 0.3]], (2, 3)) == ((0.1, 0.1), (0.2, 0.2, 0.3))
    assert uniform_candidates((2, 4), (0.0, 0.5)) == [[[0.0], [0.0, 0.0]], [[0.5], [0.5, 0.5]]]
    assert describe([[0.3], [0.0], [0.1, 0.2, 0.2]]) == "0.3 | 0 | 0.1, 0.2, 0.2"
    assert as_config([[0.3], [0.1, 0.2]], (1, 4)) == [[0.3], [0.1, 0.1, 0.2, 0.2]]
    problem = SparsityProblem(lambda c: 0.0, lambda r: 0.0, (2, 4))
    trial = FixedTrial(dict(stage0_pair0=3, stage1_pair0=8, stage1_pair1=1))
    assert problem.suggest(trial) == [[0.3], [0.1, 0.8]], "sorted within a stage"


def test_cost_of_a_backbone() -> None:
    """More pruning costs less, the backbone keeps its own ratios, the table is near what it was made from."""
    backbone, images = pruned(), torch.rand(1, 3, 64, 64)
    backbone.set_pruning_ratios(0.25)
    flops = BackboneCost(backbone, images, "flops")
    costs = [flops(one) for one in uniform_candidates(backbone.depths, (0.0, 0.4, 0.8))]
    assert costs[0] > costs[1] > costs[2] and flops.unit == "GMAC" and flops.check_table() is None
    cost = BackboneCost(backbone, images, "table", rounds=2)
    assert cost.unit == "ms" and len(cost.table.changes) == sum(-(-d // 2) for d in backbone.depths)
    dense, *_ = uniform_candidates(backbone.depths)
    assert cost(dense) == pytest.approx(1e3 * cost.table.reference)
    error = cost.check_table(2)
    assert error.count == 2 and 0 <= error.mean <= error.largest
    assert {r for stage in backbone.pruning_ratios for r in stage} == {0.25}
    again = BackboneCost(backbone, images, "table", table=cost.table)
    assert again([[0.4]] * 4 if len(again.table.changes) == 4 else dense) >= 0
    with pytest.raises(ValueError, match="table, measured, flops"):
        BackboneCost(backbone, images, "watts")


def test_finds_the_backbone() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), pruned())
    assert find_pruned_backbone(model) is model[1]
    with pytest.raises(ValueError, match="no backbone with pruning ratios"):
        find_pruned_backbone(torch.nn.Linear(1, 1))


# --- the tools ----------------------------------------------------------------------------------------------


def test_search_exits_tool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From a checkpoint to thresholds in its meta, which test and predict use; and to a config."""
    require_host("mmpretrain")
    pytest.importorskip("sklearn")
    from mmengine.config import Config

    from mmvit_plugins.cli.config_loading import find_config
    from mmvit_plugins.cli.inference import Predictor

    config = str(find_config("dvt/cls_digits.py"))
    cfg = Config.fromfile(config)
    cfg.model.setdefault("data_preprocessor", {})
    from mmengine.registry import init_default_scope

    init_default_scope("mmpretrain")
    model = MODELS.build(cfg.model)
    for head in model.head.exits:
        torch.nn.init.normal_(head.fc.weight, std=0.5)
    weights, out = tmp_path / "w.pth", tmp_path / "out"
    torch.save(dict(state_dict=model.state_dict(), meta=dict(epoch=3)), weights)
    few = ["--cfg-options", *(f"{split}_dataloader.dataset.indices=40" for split in ("val", "test"))]
    arguments = [
        config,
        str(weights),
        *few,
        "--device",
        "cpu",
        "--budget",
        "0.4",
        "--trials",
        "6",
        "--population",
        "4",
        "--beside",
        config,
        str(weights),
        "--out-dir",
        str(out),
    ]
    assert search_exits.main(arguments) == 0
    assert "random: 6/6 evaluated" in capsys.readouterr().out
    report = json.loads((out / "report.json").read_text())
    chosen = report["chosen"]
    assert (
        report["held_out"][chosen["found_by"]]["cost"] <= chosen["budget"] == pytest.approx(0.4 * chosen["costs"][-1])
    )
    assert report["beside"] == report["exits_test"][-1]  # the same model, run to its last exit
    assert (out / "pareto.png").is_file()
    stored = torch.load(out / "best.pth", weights_only=False)
    assert stored["meta"]["early_exit"] == chosen and stored["meta"]["epoch"] == 3
    found = Config.fromfile(out / "best.py")
    assert list(found.model.exit_thresholds) == chosen["thresholds"][:-1] and found.load_from == str(out / "best.pth")
    predictor = Predictor(Config.fromfile(config), str(out / "best.pth"))
    assert predictor.model.exit_thresholds == tuple(chosen["thresholds"][:-1])
    # Again: the search goes on, nothing is evaluated twice.
    assert search_exits.main(arguments) == 0
    assert json.loads((out / "report.json").read_text())["trials"] == dict(nsga2=6, random=6)
    assert search_exits.main([config, str(weights), *few, "--max-cost", "1e-9", "--out-dir", str(out)]) == 2
    assert "below the cost of the first exit" in capsys.readouterr().err


def test_early_exit_is_timed() -> None:
    require_host("mmpretrain")
    from mmpretrain.structures import DataSample

    backbone = dict(type="mmvit_plugins.DVT", arch="mini", image_size=32, token_grids=(2, 3, 4))
    head = dict(type="mmpretrain.LinearClsHead", in_channels=64, num_classes=5)
    model = MODELS.build(dict(type="mmvit_plugins.DVTClassifier", backbone=backbone, head=head)).eval()
    batch = dict(
        inputs=torch.randint(0, 255, (4, 3, 32, 32), dtype=torch.uint8),
        data_samples=[DataSample().set_gt_label(i) for i in range(4)],
    )
    rows = time_early_exit(model, [batch], exit_scores(50), rounds=1, strengths=(1, 20), beside=model)
    assert [row["name"] for row in rows] == ["all to the last exit", "p = 1", "p = 20", "beside"]
    assert rows[3]["accuracy"] == rows[0]["accuracy"] and rows[3]["cost"] is None
    assert rows[0]["cost"] == 8.0 and all(row["milliseconds"] > 0 for row in rows)


def test_search_sparsity_tool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From adapted weights to ratios in a config for tools/train.py."""
    require_host("mmseg")
    from mmengine.config import Config

    from mmvit_plugins.cli.config_loading import find_config

    config = str(find_config("sparsevit/upernet_scenes.py"))
    from mmengine.registry import init_default_scope

    init_default_scope("mmseg")
    weights, out = tmp_path / "w.pth", tmp_path / "out"
    torch.save(dict(state_dict=MODELS.build(Config.fromfile(config).model).state_dict()), weights)
    arguments = [config, str(weights), "--cost", "flops", "--budget", "0.8", "--trials", "2", "--population", "2"]
    arguments += ["--samples", "1", "--size", "64", "64", "--out-dir", str(out)]
    assert search_sparsity.main(arguments) == 0
    report = json.loads((out / "report.json").read_text())
    assert (
        report["table_error"] is None
        and report["samples"] == 1
        and report["input"] == [1, 3, 64, 64]
        and report["unit"] == "GMAC"
    )
    assert set(report["results"]) == {"unpruned", "uniform", "nsga2", "random"}
    for name in ("uniform", "nsga2", "random"):
        assert report["results"][name]["cost"] <= report["budget"]
    found = Config.fromfile(out / "best.py")
    ratios = [list(stage) for stage in found.model.backbone.pruning_ratios]
    searched = [report["results"][name]["ratios"] for name in ("nsga2", "random")]
    assert ratios in [as_config(one, SparseViT(arch="mini").depths) for one in searched]
    assert found.load_from == str(weights) and (out / "pareto.png").is_file()
    MODELS.build(found.model)
    assert "chosen:" in capsys.readouterr().out


def test_latency_table_is_measured_once_with_its_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--table-only`` in one process, read by another; the error belongs to the table and is not measured again."""
    require_host("mmseg")
    from mmengine.config import Config
    from mmengine.registry import init_default_scope

    from mmvit_plugins.cli.config_loading import find_config

    init_default_scope("mmseg")
    config, weights, table = "sparsevit/upernet_scenes.py", tmp_path / "w.pth", tmp_path / "tables/cpu.json"
    torch.save(dict(state_dict=MODELS.build(Config.fromfile(find_config(config)).model).state_dict()), weights)
    arguments = [config, str(weights), "--size", "32", "32", "--rounds", "1", "--out-dir", str(tmp_path / "out")]
    arguments += ["--latency-table", str(table), "--device", "cpu", "--table-only"]
    assert search_sparsity.main(arguments) == 0
    stored = json.loads(table.read_text())
    assert stored["error"]["count"] == 10 and stored["key"]["size"] == [1, 3, 32, 32]
    assert not (tmp_path / "out/report.json").exists()
    table.write_text(json.dumps(stored | dict(error=dict(mean=0.5, largest=0.75, count=10))))
    assert search_sparsity.main(arguments) == 0
    out = capsys.readouterr().out
    assert f"latency table of an earlier run: {table}" in out and "error 50.0 % on average, 75.0 % at most" in out
    assert search_sparsity.main([*arguments, "--cost", "flops"]) == 2
