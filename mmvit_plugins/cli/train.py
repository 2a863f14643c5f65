"""Train a classifier, detector or segmentor; the config's ``default_scope`` decides which."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from mmvit_plugins.environment import check_environment

from .arguments import add_config_arguments, add_launcher_arguments, make_parser
from .config_loading import default_work_dir, find_config, load_config
from .errors import UserError, run_tool
from .file_checks import check_checkpoint, check_datasets, check_pretrained
from .processes import end_processes, leave, on_cpu, prepare_processes

if TYPE_CHECKING:
    from mmengine.config import Config
    from mmengine.runner import Runner

__all__ = ["build_runner", "enable_amp", "main", "train"]

EXAMPLES = """examples:
  %(prog)s configs/stvit/upernet_scenes.py                     built-in scenes, needs no data
  %(prog)s configs/stvit/upernet_ade20k.py --data-root /data/ade/ADEChallengeData2016 --amp
  %(prog)s configs/stvit/upernet_ade20k.py --resume            from the last checkpoint of its work folder
  tools/dist_train.sh configs/stvit/upernet_ade20k.py 8        eight processes"""


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser("train", __doc__ or "", EXAMPLES)
    parser.add_argument("config", help="a file, or the name of a shipped config such as stvit/upernet_scenes.py")
    parser.add_argument("--work-dir", metavar="DIR", help="checkpoints and logs (default: work_dirs/<family>/<name>)")
    parser.add_argument(
        "--resume",
        nargs="?",
        const="auto",
        metavar="CHECKPOINT",
        help="go on from CHECKPOINT, or from the last one in the work folder",
    )
    parser.add_argument("--amp", action="store_true", help="mixed precision: float16 on a GPU, bfloat16 on a CPU")
    parser.add_argument("--auto-scale-lr", action="store_true", help="scale the learning rate to the real batch size")
    parser.add_argument("--seed", type=int, help="seed of all random numbers (default: the config's)")
    add_config_arguments(parser)
    add_launcher_arguments(parser)
    return parser.parse_args(argv)


def enable_amp(cfg: Config) -> None:
    """Mixed precision in ``cfg``: float16 with loss scaling on a GPU, bfloat16 autocast on a CPU.

    Raises:
        UserError: the config's optimiser wrapper is neither plain nor one for mixed precision.
    """
    wrapper = cfg.optim_wrapper
    kind = wrapper.setdefault("type", "OptimWrapper")
    if kind not in ("OptimWrapper", "AmpOptimWrapper"):
        raise UserError(f"--amp works with optim_wrapper.type OptimWrapper or AmpOptimWrapper, the config has {kind}")
    if not on_cpu():
        wrapper["type"] = "AmpOptimWrapper"
        wrapper.setdefault("loss_scale", "dynamic")
        return
    for key in ("loss_scale", "dtype", "use_fsdp"):
        wrapper.pop(key, None)
    wrapper["type"] = "mmvit_plugins.CPUAmpOptimWrapper"
    # The dumped config must work by itself: this type is registered by the import of the package's engine.
    imports = cfg.get("custom_imports") or dict(imports=[], allow_failed_imports=False)
    names = [imports["imports"]] if isinstance(imports["imports"], str) else list(imports["imports"])
    cfg.custom_imports = dict(imports, imports=[*dict.fromkeys([*names, "mmvit_plugins.engine"])])


def _apply_arguments(cfg: Config, args: argparse.Namespace) -> None:
    if args.work_dir is not None:
        cfg.work_dir = args.work_dir
    elif cfg.get("work_dir") is None:
        cfg.work_dir = default_work_dir(find_config(args.config))
    if args.resume is not None:
        cfg.resume = True
        cfg.load_from = None if args.resume == "auto" else args.resume
    if args.seed is not None:
        cfg.randomness = {**(cfg.get("randomness") or {}), "seed": args.seed}
    if args.auto_scale_lr:
        if "base_batch_size" not in (cfg.get("auto_scale_lr") or {}):
            raise UserError(
                f"--auto-scale-lr: {cfg.filename} has no auto_scale_lr.base_batch_size. Add "
                "auto_scale_lr=dict(enable=True, base_batch_size=<the batch size that its learning rate is meant for>)"
            )
        cfg.auto_scale_lr.enable = True
    # A config for mixed precision on a GPU runs here as well.
    if args.amp or (cfg.optim_wrapper.get("type") == "AmpOptimWrapper" and on_cpu()):
        enable_amp(cfg)


def _check_labels(cfg: Config) -> None:
    """Add the hook that warns about label values, unless the config has its own."""
    hooks, kind = list(cfg.get("custom_hooks") or []), "mmvit_plugins.LabelCheckHook"
    if not any(hook.get("type") == kind for hook in hooks):
        cfg.custom_hooks = [*hooks, dict(type=kind)]


def build_runner(cfg: Config) -> Runner:
    """The runner for ``cfg``: ours, which names damaged files, or the one that ``runner_type`` asks for."""
    from mmengine.registry import RUNNERS

    import mmvit_plugins.engine  # noqa: F401  (registers the optimiser wrapper for CPUs)
    from mmvit_plugins.engine import ReportingRunner

    return RUNNERS.build(cfg) if "runner_type" in cfg else ReportingRunner.from_cfg(cfg)


def train(args: argparse.Namespace) -> int:
    """Check everything that can be checked beforehand, then train."""
    check_environment("mmengine", "mmcv")
    cfg = load_config(args)
    for part in ("train_dataloader", "train_cfg", "optim_wrapper"):
        if cfg.get(part) is None:
            raise UserError(f"{cfg.filename} has no {part}: it cannot be trained")
    _apply_arguments(cfg, args)
    check_datasets(cfg, ("train_dataloader", "val_dataloader"))
    check_pretrained(cfg)
    if cfg.get("load_from"):
        check_checkpoint(cfg.load_from)
    if cfg.get("default_scope") == "mmseg":
        _check_labels(cfg)
    prepare_processes(cfg, args.launcher, args.local_rank)
    try:
        runner = build_runner(cfg)
        runner.train()
        if runner.rank == 0:
            print(f"Trained. Checkpoints and logs: {os.path.abspath(cfg.work_dir)}", flush=True)
    finally:
        end_processes()
    return 0


def main(argv: list[str] | None = None) -> int:
    """``tools/train.py``; returns the exit code."""
    args = parse_args(argv)
    return leave(run_tool(train, args), args.launcher)


if __name__ == "__main__":
    sys.exit(main())
