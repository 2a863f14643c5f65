"""Find pruning ratios of SparseViT under a limit of latency or FLOPs, by evolution on the validation metric."""

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
    from mmengine.runner import Runner

    from mmvit_plugins.search.latency import PredictionError
    from mmvit_plugins.search.sparsity import BackboneCost

__all__ = ["main", "search_sparsity"]

EXAMPLES = """examples:
  %(prog)s configs/sparsevit/upernet_scenes.py ADAPTED.pth --budget 0.7 --trials 60 --samples 50
  %(prog)s CONFIG ADAPTED.pth --max-cost 34 --size 672 672 --batch-size 4 --workers 4
The weights should come from sparsity-aware adaptation. best.py is a config with the ratios found for tools/train.py,
which fine-tunes from the checkpoint. The metric is the one that the config's CheckpointHook saves the best of."""


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser("search_sparsity", __doc__ or "", EXAMPLES)
    parser.add_argument("config", help="a file, or the name of a shipped config such as sparsevit/upernet_scenes.py")
    parser.add_argument("checkpoint", help="weights after sparsity-aware adaptation: a file or URL")
    parser.add_argument(
        "--cost", choices=("table", "measured", "flops"), default="table",
        help="latency from a table measured once, measured for each candidate, or GMAC (%(default)s)",
    )  # fmt: skip
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument("--budget", type=float, default=0.7, help="share of the unpruned backbone's cost (%(default)s)")
    limit.add_argument("--max-cost", type=float, metavar="X", help="ms or GMAC of a batch through the backbone")
    parser.add_argument("--size", type=int, nargs=2, metavar=("H", "W"), help="pixels (default: a validation image's)")
    parser.add_argument("--batch-size", type=int, default=1, help="images of a batch whose cost counts (%(default)s)")
    parser.add_argument("--samples", type=int, metavar="N", help="validate on the first N samples only")
    parser.add_argument("--rounds", type=int, default=15, help="measurements of a latency (%(default)s)")
    parser.add_argument(
        "--latency-table", metavar="FILE", help="where the table is kept (default: latency.json in --out-dir)"
    )
    parser.add_argument("--table-only", action="store_true", help="measure the table and its error, and end")
    parser.add_argument("--metric", help="key of the validation metric, larger is better (default: save_best's)")
    add_search_arguments(parser, trials=100, population=25)
    add_config_arguments(parser)
    args = parser.parse_args(argv)
    args.argv = list(sys.argv[1:] if argv is None else argv)
    return args


def search_sparsity(args: argparse.Namespace) -> int:
    """Measure the table, search, measure what was found, and write config, report and plot."""
    check_environment("mmengine", "mmcv")
    check_optuna()
    cfg = load_config(args)
    check_checkpoint(args.checkpoint)
    check_datasets(cfg, ("val_dataloader",))
    place = args.out_dir or Path(cfg.get("work_dir") or default_work_dir(find_config(args.config)), "search_sparsity")
    folder = Path(place).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    args.metric = _metric(cfg, args)
    runner = _build_runner(cfg, args, folder)
    cost, error = _build_cost(runner, args, folder)
    if error is not None:
        print(f"latency table: {1e3 * cost.table.reference:.4g} ms unpruned, error {error}", flush=True)
    if not args.table_only:
        _search(runner, cost, error, args, folder)
    return 0


def _metric(cfg: Config, args: argparse.Namespace) -> str:
    """The key of the validation metric.

    Raises:
        UserError: the config does not say it.
    """
    found = args.metric or (cfg.default_hooks.get("checkpoint") or {}).get("save_best")
    if not isinstance(found, str) or found == "auto":
        raise UserError("name the validation metric: --metric mIoU (the config's CheckpointHook has no save_best)")
    return found


def _build_runner(cfg: Config, args: argparse.Namespace, folder: Path) -> Runner:
    """A runner whose validation loop can be run again and again, with the checkpoint loaded."""
    from .config_loading import replace_sync_batch_norm
    from .inference import quiet_hosts
    from .train import build_runner

    cfg.work_dir, cfg.load_from, cfg.resume = str(folder / "logs"), args.checkpoint, False
    cfg.log_level = "ERROR"
    # Nothing is trained, saved or drawn, and no hook may change the ratios.
    cfg.default_hooks.update(checkpoint=None, logger=None)
    cfg.default_hooks.pop("visualization", None)
    cfg.custom_hooks = []
    replace_sync_batch_norm(cfg.model)
    for key in ("train_dataloader", "train_cfg", "optim_wrapper", "param_scheduler", "test_dataloader", "test_cfg"):
        cfg.pop(key, None)
    cfg.pop("test_evaluator", None)
    if args.samples:
        cfg.val_dataloader.dataset.indices = args.samples
    with quiet_hosts(cfg.get("default_scope")):
        runner = build_runner(cfg)
        runner.load_or_resume()
    runner.model.eval()
    return runner


def _build_cost(runner: Runner, args: argparse.Namespace, folder: Path) -> tuple[BackboneCost, PredictionError | None]:
    """The cost function and the table's error; helpers and later runs take the table that was measured first.

    The error is measured beside the table: later the machine may be faster or slower.

    Raises:
        UserError: only a table is wanted, and the cost needs none.
    """
    import torch

    from mmvit_plugins.search.latency import LatencyTable, PredictionError
    from mmvit_plugins.search.sparsity import BackboneCost, find_pruned_backbone

    if args.table_only and args.cost != "table":
        raise UserError(f"--table-only goes with --cost table, got --cost {args.cost}")
    backbone = find_pruned_backbone(runner.model)
    loader = runner.build_dataloader(runner._val_dataloader)
    inputs = runner.model.data_preprocessor(next(iter(loader)), False)["inputs"]
    image = inputs[:1].to(next(backbone.parameters()).device)
    if args.size:
        image = torch.nn.functional.interpolate(image, size=tuple(args.size), mode="bilinear", antialias=True)
    images = image.repeat(args.batch_size, 1, 1, 1)
    path, table, error = Path(args.latency_table or folder / "latency.json"), None, None
    key = dict(size=list(images.shape), device=str(images.device), threads=torch.get_num_threads())
    if args.cost == "table" and path.is_file():
        stored = json.loads(path.read_text())
        if stored["key"] == key:
            changes = tuple({float(k): v for k, v in change.items()} for change in stored["changes"])
            table = LatencyTable(stored["reference"], changes)
            error = PredictionError(**stored["error"]) if "error" in stored else None
            print(f"latency table of an earlier run: {path}")
    cost = BackboneCost(backbone, images, args.cost, args.rounds, table)
    if cost.table is not None and error is None:
        error = cost.check_table()
        content = dict(key=key, reference=cost.table.reference, changes=[dict(c) for c in cost.table.changes])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content | dict(error=asdict(error)), indent=1) + "\n", encoding="utf-8")
    return cost, error


def _search(
    runner: Runner, cost: BackboneCost, error: PredictionError | None, args: argparse.Namespace, folder: Path
) -> None:
    """Evolution and random search, then the report."""
    from mmvit_plugins.search.engine import run_search
    from mmvit_plugins.search.progress import SearchProgress
    from mmvit_plugins.search.sparsity import SparsityProblem, uniform_candidates
    from mmvit_plugins.search.workers import helpers

    backbone, metric = cost.backbone, args.metric
    uniform = uniform_candidates(cost.depths)
    dense = cost(uniform[0])
    budget = args.budget * dense if args.max_cost is None else args.max_cost
    if budget < cost(uniform[-1]):
        raise UserError(
            f"a limit of {budget:.4g} {cost.unit} is below the cheapest candidate's {cost(uniform[-1]):.4g} (all 0.8)"
        )
    known: dict[Any, float] = {}

    def evaluate(ratios: tuple[tuple[float, ...], ...]) -> float:
        if ratios not in known:
            backbone.set_pruning_ratios(ratios)
            known[ratios] = float(_validate(runner)[metric])
        return known[ratios]

    problem, studies = SparsityProblem(cost, evaluate, cost.depths), {}
    with helpers("mmvit_plugins.cli.search_sparsity", args.argv, 0 if args.worker else args.workers - 1):
        for sampler in ("nsga2", "random") if args.baseline else ("nsga2",):
            settings = search_settings(args, sampler, budget, folder)
            with SearchProgress(sampler, settings.trials, budget) as progress:
                studies[sampler] = run_search(problem, settings, args.worker, progress.update)
    if not args.worker:
        _report(runner.cfg, problem, cost, error, studies, budget, args, folder)


def _validate(runner: Runner) -> dict[str, float]:
    """Metrics of the validation loop, without its prints."""
    from contextlib import redirect_stdout
    from io import StringIO

    with redirect_stdout(StringIO()):
        runner._val_loop = runner.build_val_loop(runner._val_loop)
        return runner.val_loop.run()


def _report(
    cfg: Config,
    problem: Any,
    cost: BackboneCost,
    error: PredictionError | None,
    studies: dict[str, Any],
    budget: float,
    args: argparse.Namespace,
    folder: Path,
) -> None:
    """Compare with uniform ratios, measure the winner, and write everything."""
    from mmvit_plugins.search.engine import best_of, finished
    from mmvit_plugins.search.plots import Series, plot_search
    from mmvit_plugins.search.sparsity import describe, uniform_candidates

    metric = args.metric
    uniform = [(cost(one), problem.score(one), one) for one in uniform_candidates(cost.depths)]
    rows = {"unpruned": uniform[0]}
    legal = [row for row in uniform if row[0] <= budget]
    rows["uniform"] = max(legal, key=lambda row: row[1])
    for name, study in studies.items():
        best = best_of(finished(study, budget))
        if best is not None:
            rows[name] = (best.values[1], best.values[0], best.user_attrs["candidate"])
    for name, (price, score, candidate) in rows.items():
        print(f"{name}: {metric} {score:.4g} at {price:.4g} {cost.unit}, ratios {describe(candidate)}")
    searched = {name: row for name, row in rows.items() if name in studies}
    winner = max(searched, key=lambda name: (searched[name][1], -searched[name][0]))
    _write_config(cfg, cost, winner, rows[winner], budget, metric, args, folder)
    series = {"uniform": Series([(price, score) for price, score, _ in uniform], "line")}
    for name, study in studies.items():
        points = [(trial.values[1], trial.values[0]) for trial in finished(study)]
        series[f"{name}, {len(points)} trials"] = Series(points)
    title = "" if error is None else f"latency predicted, error {error}"
    plot_search(series, folder / "pareto.png", f"backbone, {cost.unit}", metric, title, budget)
    content = dict(
        config=str(cfg.filename),
        checkpoint=str(args.checkpoint),
        cost=args.cost,
        unit=cost.unit,
        budget=budget,
        input=list(cost.images.shape),
        metric=metric,
        samples=args.samples,
        table_error=None if error is None else asdict(error),
        results={n: dict(cost=c, score=s, ratios=r) for n, (c, s, r) in rows.items()},
        uniform=[dict(cost=c, score=s, ratios=r) for c, s, r in uniform],
        trials={n: [dict(cost=t.values[1], score=t.values[0]) for t in finished(s)] for n, s in studies.items()},
    )
    (folder / "report.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"chosen: {winner}. best.py, report.json and pareto.png: {folder}")


def _write_config(
    cfg: Config,
    cost: BackboneCost,
    winner: str,
    row: tuple[float, float, Any],
    budget: float,
    metric: str,
    args: argparse.Namespace,
    folder: Path,
) -> None:
    """A config with the ratios found, which begins from the adapted weights: for tools/train.py and tools/test.py."""
    from mmvit_plugins.search.sparsity import as_config

    price, score, candidate = row
    (folder / "best.py").write_text(
        f"# Found by tools/search_sparsity.py ({winner}): {metric} {score:.4g} at {price:.4g} {cost.unit}, "
        f"limit {budget:.4g}.\n"
        f"_base_ = {str(Path(cfg.filename).absolute())!r}\n"
        f"model = dict(backbone=dict(pruning_ratios={as_config(candidate, cost.depths)!r}))\n"
        f"load_from = {str(Path(args.checkpoint).absolute())!r}\n",
        encoding="utf-8",
    )


def main(argv: list[str] | None = None) -> int:
    """``tools/search_sparsity.py``; returns the exit code."""
    return run_tool(search_sparsity, parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
