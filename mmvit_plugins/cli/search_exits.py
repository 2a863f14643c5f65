"""Find exit thresholds of a cascade (DVT) for a budget of mean cost, and store them in the checkpoint."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmvit_plugins.environment import check_environment

from .arguments import add_config_arguments, make_parser
from .config_loading import default_work_dir, find_config, load_config
from .errors import UserError, run_tool
from .file_checks import check_checkpoint, check_datasets
from .search_arguments import add_search_arguments, check_optuna, search_settings

if TYPE_CHECKING:
    from mmengine.config import Config
    from torch import nn
    from torch.utils.data import DataLoader

    from mmvit_plugins.evaluation.exit_rule import ExitOutcome, ExitScores

__all__ = ["main", "search_exits"]

EXAMPLES = """examples:
  %(prog)s configs/dvt/cls_digits.py work_dirs/dvt/cls_digits/epoch_40.pth --budget 0.5
  %(prog)s CONFIG CHECKPOINT --cost latency --max-cost 3.5 --wall-time
The thresholds are chosen on the validation split and reported on the test split. best.pth holds them in its meta, where
tools/test.py and tools/predict.py find them; best.py is a config with them for tools/train.py."""


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser("search_exits", __doc__ or "", EXAMPLES)
    parser.add_argument("config", help="a file, or the name of a shipped config such as dvt/cls_digits.py")
    parser.add_argument("checkpoint", help="trained weights: a file or URL")
    parser.add_argument("--cost", choices=("flops", "latency"), default="flops", help="what the budget limits")
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument(
        "--budget", type=float, default=0.5, help="mean cost as a share of the last exit's (%(default)s)"
    )
    limit.add_argument("--max-cost", type=float, metavar="X", help="mean cost in GMAC (flops) or ms (latency)")
    parser.add_argument("--calibrate", choices=("val", "test"), default="val", help="split that thresholds come from")
    parser.add_argument("--batch-size", type=int, default=1, help="images at once when latency is measured")
    parser.add_argument(
        "--beside", nargs=2, metavar=("CONFIG", "CHECKPOINT"),
        help="a DVTClassifier to compare with, such as the largest model trained alone; run to its last exit",
    )  # fmt: skip
    parser.add_argument("--wall-time", action="store_true", help="also time real early exit over the thresholds")
    add_search_arguments(parser, trials=200, population=20)
    add_config_arguments(parser)
    args = parser.parse_args(argv)
    args.argv = list(sys.argv[1:] if argv is None else argv)
    return args


def search_exits(args: argparse.Namespace) -> int:
    """Measure all exits once, then search on the stored confidences."""
    check_environment("mmengine", "mmcv", "mmpretrain")
    check_optuna()
    cfg = load_config(args)
    check_checkpoint(args.checkpoint)
    check_datasets(cfg, ("val_dataloader", "test_dataloader"))
    folder = Path(
        args.out_dir or Path(cfg.get("work_dir") or default_work_dir(find_config(args.config)), "search_exits")
    )
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if args.worker:
        from mmvit_plugins.search.exits import read_scores

        _search(read_scores(folder / "scores.pt"), args, folder)
        return 0
    from mmvit_plugins.search.exits import write_scores

    model, loader, scores, unit = _measure(cfg, args)
    write_scores(scores[args.calibrate], folder / "scores.pt")
    found = _search(scores[args.calibrate], args, folder)
    picks = _choose(scores, found, unit, args)
    record = _write_winner(cfg, scores[args.calibrate], picks, unit, args, folder)
    other, beside = _load_beside(args, loader) if args.beside else (None, None)
    walls = _wall_times(model, loader, scores[args.calibrate], other) if args.wall_time else []
    _draw(scores, found, record["budget"], unit, beside, args, folder)
    _write_report(cfg, scores, found, picks, record, walls, beside, args, folder)
    return 0


def _budget(scores: ExitScores, args: argparse.Namespace) -> float:
    """The largest legal mean cost.

    Raises:
        UserError: not even leaving at the first exit is cheap enough.
    """
    budget = args.budget * scores.costs[-1] if args.max_cost is None else args.max_cost
    if budget < scores.costs[0]:
        raise UserError(
            f"a budget of {budget:.4g} is below the cost of the first exit, {scores.costs[0]:.4g} "
            f"({100 * scores.costs[0] / scores.costs[-1]:.1f} % of the last one's): nothing can meet it"
        )
    return budget


def _measure(cfg: Config, args: argparse.Namespace) -> tuple[nn.Module, DataLoader, dict[str, ExitScores], str]:
    """The model, the test split's loader, the confidences of both splits, and the unit of the costs."""
    import torch
    from mmengine.runner import Runner

    from mmvit_plugins.search.exit_costs import exit_costs
    from mmvit_plugins.search.exits import collect_scores

    from .inference import Predictor, choose_device, quiet_hosts

    device = choose_device(args.device)
    with quiet_hosts(cfg.get("default_scope")):
        predictor = Predictor(cfg, args.checkpoint, device)
        model = predictor.model
        if not hasattr(model, "run_exits"):
            raise UserError(f"{cfg.filename} has a {type(model).__name__}, not a cascade such as DVTClassifier")
        loaders = {name: Runner.build_dataloader(cfg[f"{name}_dataloader"]) for name in ("val", "test")}
    print(predictor.report)
    batch = model.data_preprocessor(next(iter(loaders["val"])), False)["inputs"]
    images = batch[:1] if args.cost == "flops" else batch[:1].repeat(args.batch_size, 1, 1, 1)
    with torch.no_grad():
        costs, unit = exit_costs(model, images, args.cost)
        scores = {name: collect_scores(model, loader, costs) for name, loader in loaders.items()}
    for number, cost in enumerate(costs):
        accuracy = 100 * scores["test"].correct[number].double().mean()
        print(f"exit {number + 1}: {cost:.4g} {unit} a sample, {accuracy:.2f} % of the test split")
    return model, loaders["test"], scores, unit


def _load_beside(args: argparse.Namespace, loader: DataLoader) -> tuple[nn.Module, dict[str, float]]:
    """The model of --beside, its cost and its accuracy on the test split in percent."""
    import torch

    from mmvit_plugins.search.exit_costs import exit_costs
    from mmvit_plugins.search.exits import collect_scores

    from .inference import Predictor, choose_device, quiet_hosts

    config, checkpoint = args.beside
    cfg = load_config(argparse.Namespace(config=config, cfg_options=[], data_root=args.data_root))
    check_checkpoint(checkpoint)
    with quiet_hosts(cfg.get("default_scope")):
        model = Predictor(cfg, checkpoint, choose_device(args.device)).model
    if not hasattr(model, "run_exits"):
        raise UserError(f"--beside: {cfg.filename} has a {type(model).__name__}, not a DVTClassifier")
    images = model.data_preprocessor(next(iter(loader)), False)["inputs"]
    images = images[:1] if args.cost == "flops" else images[:1].repeat(args.batch_size, 1, 1, 1)
    with torch.no_grad():
        costs, unit = exit_costs(model, images, args.cost)
        accuracy = 100 * float(collect_scores(model, loader, costs).correct[-1].double().mean())
    print(f"beside, {config}: {costs[-1]:.4g} {unit} a sample, {accuracy:.2f} % of the test split")
    return model, dict(cost=costs[-1], accuracy=accuracy)


def _search(scores: ExitScores, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The studies of both samplers; with helpers if asked for."""
    from mmvit_plugins.search.engine import run_search
    from mmvit_plugins.search.exits import ExitProblem
    from mmvit_plugins.search.progress import SearchProgress
    from mmvit_plugins.search.workers import helpers

    budget, studies = _budget(scores, args), {}
    count = 0 if args.worker else args.workers - 1
    with helpers("mmvit_plugins.cli.search_exits", args.argv, count):
        for sampler in ("nsga2", "random") if args.baseline else ("nsga2",):
            settings = search_settings(args, sampler, budget, folder)
            with SearchProgress(sampler, settings.trials, budget) as progress:
                studies[sampler] = run_search(ExitProblem(scores), settings, args.worker, progress.update)
    return studies


def _choose(
    scores: dict[str, ExitScores], studies: dict[str, Any], unit: str, args: argparse.Namespace
) -> dict[str, ExitOutcome]:
    """The best thresholds of each method on the held-out split, printed beside what they give on the test split.

    Raises:
        UserError: none meets the budget.
    """
    from mmvit_plugins.evaluation.exit_rule import simulate_exits
    from mmvit_plugins.search.engine import best_of, finished
    from mmvit_plugins.search.exits import best_within

    held_out, budget = scores[args.calibrate], _budget(scores[args.calibrate], args)
    picks: dict[str, ExitOutcome] = {}
    published = best_within(held_out, budget)
    if published is not None:
        picks["published rule"] = published
    for name, study in studies.items():
        best = best_of(finished(study, budget))
        if best is not None:
            picks[name] = simulate_exits(held_out, best.user_attrs["candidate"])
    if not picks:
        raise UserError(
            f"no thresholds within the budget of {budget:.4g} {unit} were found: raise --trials or --budget"
        )
    for name, pick in picks.items():
        tested = simulate_exits(scores["test"], pick.thresholds)
        print(
            f"{name}: held out {pick.accuracy:.2f} % at {pick.cost:.4g} {unit}; "
            f"test {tested.accuracy:.2f} % at {tested.cost:.4g} {unit}, "
            f"thresholds {[round(t, 4) for t in pick.thresholds[:-1]]}"
        )
    return picks


def _write_winner(
    cfg: Config,
    scores: ExitScores,
    picks: dict[str, ExitOutcome],
    unit: str,
    args: argparse.Namespace,
    folder: Path,
) -> dict[str, Any]:
    """best.pth and best.py of the best held-out accuracy; returns the record that the checkpoint's meta holds."""
    from mmvit_plugins.search.exits import store_thresholds

    winner = max(picks, key=lambda name: (picks[name].accuracy, -picks[name].cost))
    record = dict(
        thresholds=[float(t) for t in picks[winner].thresholds],
        costs=list(scores.costs),
        unit=unit,
        budget=_budget(scores, args),
        found_by=winner,
        split=args.calibrate,
    )
    store_thresholds(args.checkpoint, folder / "best.pth", record)
    _write_config(cfg, record, folder)
    return record


def _write_report(
    cfg: Config,
    scores: dict[str, ExitScores],
    studies: dict[str, Any],
    picks: dict[str, ExitOutcome],
    record: dict[str, Any],
    walls: list[dict[str, Any]],
    beside: dict[str, float] | None,
    args: argparse.Namespace,
    folder: Path,
) -> None:
    """report.json."""
    from mmvit_plugins.evaluation.exit_rule import simulate_exits
    from mmvit_plugins.search.engine import finished

    content = dict(
        config=str(cfg.filename),
        checkpoint=str(args.checkpoint),
        chosen=record,
        held_out={name: asdict(pick) for name, pick in picks.items()},
        test={name: asdict(simulate_exits(scores["test"], pick.thresholds)) for name, pick in picks.items()},
        exits_test=[
            dict(cost=cost, accuracy=100 * float(correct.double().mean()))
            for cost, correct in zip(scores["test"].costs, scores["test"].correct, strict=True)
        ],
        trials={name: len(finished(study)) for name, study in studies.items()},
        wall_time=walls,
        beside=beside,
    )
    (folder / "report.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"chosen: {record['found_by']}. best.pth, best.py, report.json and pareto.png: {folder}")


def _write_config(cfg: Config, record: dict[str, Any], folder: Path) -> None:
    """A config with the thresholds fixed, which begins from the checkpoint: for tools/train.py and tools/test.py."""
    (folder / "best.py").write_text(
        f"# Found by tools/search_exits.py: mean cost at most {record['budget']:.6g} {record['unit']}.\n"
        f"_base_ = {str(Path(cfg.filename).absolute())!r}\n"
        f"model = dict(exit_thresholds={record['thresholds'][:-1]!r})\n"
        f"load_from = {str(folder / 'best.pth')!r}\n",
        encoding="utf-8",
    )


def _wall_times(
    model: nn.Module, loader: DataLoader, scores: ExitScores, beside: nn.Module | None
) -> list[dict[str, Any]]:
    """Real early exit on the test split, timed for thresholds of the published rule from early to late."""
    from mmvit_plugins.search.exits import time_early_exit

    rows = time_early_exit(model, loader, scores, beside=beside)
    print("real early exit on the test split (batches as the config says):")
    for row in rows:
        cost = "" if row["cost"] is None else f" and {row['cost']:.4g}"
        print(f"  {row['name']}: {row['accuracy']:.2f} %, {row['milliseconds']:.3f} ms{cost} a sample")
    return rows


def _draw(
    scores: dict[str, ExitScores],
    studies: dict[str, Any],
    budget: float,
    unit: str,
    beside: dict[str, float] | None,
    args: argparse.Namespace,
    folder: Path,
) -> None:
    """Accuracy on the test split against mean cost, thresholds from the held-out split."""
    from mmvit_plugins.evaluation.exit_rule import published_candidates, simulate_exits
    from mmvit_plugins.search.engine import finished
    from mmvit_plugins.search.plots import Series, plot_search

    test = scores["test"]

    def on_test(thresholds: Any) -> tuple[float, float]:
        outcome = simulate_exits(test, thresholds)
        return outcome.cost, outcome.accuracy

    alone = [
        (cost, 100 * float(correct.double().mean())) for cost, correct in zip(test.costs, test.correct, strict=True)
    ]
    series = {
        "one exit for all": Series(alone, "marks", [f"exit {n + 1}" for n in range(len(alone))]),
        "published rule, p = 1..59": Series(
            sorted(on_test(o.thresholds) for o in published_candidates(scores[args.calibrate])), "line"
        ),
    }
    if beside is not None:
        series["trained alone"] = Series([(beside["cost"], beside["accuracy"])], "marks")
    for name, study in studies.items():
        series[f"{name}, {len(finished(study))} trials"] = Series(
            [on_test(trial.user_attrs["candidate"]) for trial in finished(study)]
        )
    plot_search(
        series, folder / "pareto.png", f"mean cost of a sample, {unit}", "accuracy on the test split, %", "", budget
    )


def main(argv: list[str] | None = None) -> int:
    """``tools/search_exits.py``; returns the exit code."""
    return run_tool(search_exits, parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
