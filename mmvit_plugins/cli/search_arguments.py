"""What the searches have in common on the command line."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import UserError

if TYPE_CHECKING:
    from mmvit_plugins.search.engine import SearchSettings

__all__ = ["add_search_arguments", "check_optuna", "search_settings"]


def add_search_arguments(parser: argparse.ArgumentParser, trials: int, population: int) -> None:
    """Storage, workers, trials, sampler's numbers, and where the results go."""
    parser.add_argument("--trials", type=int, default=trials, help="evaluated candidates in all (%(default)s)")
    parser.add_argument("--population", type=int, default=population, help="of a generation (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the sampler")
    parser.add_argument(
        "--workers", type=int, default=1, help="processes here (%(default)s); other machines: the same --storage"
    )
    parser.add_argument(
        "--storage",
        metavar="FILE|URL",
        help="trials of all workers: a journal file, *.db (SQLite) or a database's URL (default: trials.log in "
        "--out-dir); the same one again goes on with the search",
    )
    parser.add_argument("--study", default="search", help="name in the storage (%(default)s)")
    parser.add_argument(
        "--baseline", action=argparse.BooleanOptionalAction, default=True, help="random search with as many trials"
    )
    parser.add_argument(
        "--out-dir", metavar="DIR", help="report, plot, config and checkpoint (default: in the work dir)"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--worker", type=int, default=0, help=argparse.SUPPRESS)


def check_optuna() -> None:
    """Say how to get Optuna.

    Raises:
        UserError: it is not installed.
    """
    if find_spec("optuna") is None:
        raise UserError("the searches need Optuna: pip install optuna, or pip install 'mmvit-plugins[search]'")


def search_settings(args: argparse.Namespace, sampler: str, budget: float, folder: Path) -> SearchSettings:
    """Settings of one sampler's study; ``<study>-<sampler>`` in the storage.

    Raises:
        UserError: an illegal number.
    """
    from mmvit_plugins.search.engine import SearchSettings

    if args.workers < 1:
        raise UserError(f"--workers takes a number from 1 up, got {args.workers}")
    try:
        return SearchSettings(
            budget=budget,
            trials=args.trials,
            storage=args.storage or str(folder / "trials.log"),
            study=f"{args.study}-{sampler}",
            sampler=sampler,
            population=args.population,
            seed=args.seed,
        )
    except ValueError as error:
        raise UserError(str(error)) from error
