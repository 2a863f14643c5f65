"""Start of one or several processes, with and without GPUs."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

from .config_loading import replace_sync_batch_norm
from .errors import UserError

if TYPE_CHECKING:
    from mmengine.config import Config

__all__ = ["end_processes", "leave", "on_cpu", "prepare_processes"]


def on_cpu() -> bool:
    """Whether mmengine will train on the CPU."""
    from mmengine.device import get_device

    return get_device() == "cpu"


def prepare_processes(cfg: Config, launcher: str, local_rank: int = 0) -> None:
    """Set the launcher in ``cfg``; on a machine without a GPU join the gloo group here.

    mmengine selects a CUDA device before it makes the process group, and wraps the model with a device number: both
    fail without a GPU. A group that is there already is used as it is, and an explicit wrapper config overrides the
    number.

    Raises:
        UserError: the launcher has not set what it promises, or cannot be used on this machine.
    """
    cfg.launcher = launcher
    os.environ.setdefault("LOCAL_RANK", str(local_rank))
    if launcher == "none":
        replace_sync_batch_norm(cfg.get("model"))
        return
    if launcher == "pytorch" and ("RANK" not in os.environ or "WORLD_SIZE" not in os.environ):
        raise UserError(
            "--launcher pytorch needs a process started by PyTorch: use tools/dist_train.sh CONFIG PROCESSES, or "
            "python -m torch.distributed.run --nproc_per_node=N tools/train.py CONFIG --launcher pytorch"
        )
    if not on_cpu():
        return
    if launcher != "pytorch":
        raise UserError(
            f"--launcher {launcher} needs a GPU in every process, this machine has none. Several CPU processes: "
            "tools/dist_train.sh (--launcher pytorch, gloo)"
        )
    import torch.distributed

    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")
    cfg.setdefault("env_cfg", {})["dist_cfg"] = dict(backend="gloo")
    wrapper = dict(
        type="MMDistributedDataParallel",
        broadcast_buffers=False,
        find_unused_parameters=cfg.get("find_unused_parameters", False),
    )
    wrapper.update(cfg.get("model_wrapper_cfg") or {})
    cfg.model_wrapper_cfg = {**wrapper, "device_ids": None}
    replace_sync_batch_norm(cfg.get("model"))


def end_processes() -> None:
    """Leave the process group, which PyTorch otherwise warns about."""
    import torch.distributed

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def leave(code: int, launcher: str) -> int:
    """The last step of a tool: ``code`` for ``sys.exit``; one of several processes ends at once with it.

    Gloo's threads may outlive the interpreter's teardown, which then aborts ("terminate called without an active
    exception") after all work is done and makes the launcher report a failure (seen once in some ten runs).
    """
    if launcher != "none" and code == 0:
        sys.stdout.flush()
        sys.stderr.flush()
        logging.shutdown()
        os._exit(code)
    return code
