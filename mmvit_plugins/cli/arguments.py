"""The arguments that several tools share, so that they mean the same everywhere."""

from __future__ import annotations

import argparse
import os

__all__ = ["add_config_arguments", "add_debug_argument", "add_launcher_arguments", "make_parser"]


def make_parser(name: str, description: str, epilog: str | None = None) -> argparse.ArgumentParser:
    """A parser for the tool ``name`` (``mmvit-<name>`` and ``tools/<name>.py``) with ``--debug``."""
    parser = argparse.ArgumentParser(
        prog=name, description=description, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_debug_argument(parser)
    return parser


def add_debug_argument(parser: argparse.ArgumentParser) -> None:
    """``--debug``: errors with their traceback."""
    parser.add_argument("--debug", action="store_true", help="show the traceback of every error")


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """``--cfg-options`` and ``--data-root``, which change what the config says."""
    parser.add_argument(
        "--cfg-options",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="change entries of the config, e.g. train_cfg.max_iters=100 model.backbone.arch=base; lists as a=[1,2]",
    )
    parser.add_argument(
        "--data-root", metavar="DIR", help="where the data lie: replaces data_root in every dataset of the config"
    )


def add_launcher_arguments(parser: argparse.ArgumentParser) -> None:
    """``--launcher`` and the rank that old launchers pass."""
    parser.add_argument(
        "--launcher",
        choices=("none", "pytorch", "slurm", "mpi"),
        default="none",
        help="how several processes are started; tools/dist_train.sh and slurm_train.sh set it",
    )
    # torch.distributed.launch passes the rank as an argument, torchrun in the environment.
    parser.add_argument("--local-rank", "--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", 0)))
