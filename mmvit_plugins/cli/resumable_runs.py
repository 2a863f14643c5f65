"""Trainings one after another that go on where they were stopped: a run with a result.json is done."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import UserError

if TYPE_CHECKING:
    from mmengine.config import Config

__all__ = ["claim_folder", "markdown_table", "read_result", "set_length", "train_to_the_end", "write_result"]


def read_result(file: Path, settings: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """The result of a finished run, None where there is none.

    Args:
        file: ``result.json`` of the run.
        settings: what the run must have been made with; None: anything.

    Raises:
        UserError: it was made with other settings; the message names them.
    """
    if not file.is_file():
        return None
    result = json.loads(file.read_text(encoding="utf-8"))
    if settings is not None:
        _refuse_others(file, result["settings"], settings)
    return result


def _refuse_others(file: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raise a UserError that names the settings which differ, and both their values."""
    different = [key for key in dict.fromkeys((*old, *new)) if old.get(key) != new.get(key)]
    if different:
        listed = "; ".join(f"{key} was {old.get(key)!r}, asked for is {new.get(key)!r}" for key in different)
        raise UserError(
            f"{file} was made with other settings: {listed}. Ask for the same, choose another --out-dir, or remove "
            f"{file.parent}."
        )


def claim_folder(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write ``settings.json`` of a run before it trains, so that it is never resumed with other settings.

    Settings of a run that has not come to its first checkpoint are replaced: nothing of it is left.

    Args:
        folder: of the run; made if it is not there.
        settings: plain values by name.

    Raises:
        UserError: there are checkpoints of other settings, or checkpoints without any.
    """
    file = folder / "settings.json"
    if any(folder.glob("*.pth")):
        if not file.is_file():
            raise UserError(
                f"{folder} has checkpoints but no settings.json, so that nobody knows what they were trained with: "
                "choose another --out-dir, or remove the folder."
            )
        _refuse_others(file, json.loads(file.read_text(encoding="utf-8")), settings)
        return
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(file, settings)


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    temporary.replace(file)


def write_result(file: Path, result: Mapping[str, Any]) -> None:
    """Write ``result.json``: under its name when it is complete, so that a run is done or not done."""
    _write_json(file, result)


def set_length(cfg: Config, iters: int) -> None:
    """Fit loop, schedule and checkpoints to ``iters``.

    Raises:
        UserError: shorter than the warm-up.
    """
    old = cfg.train_cfg.max_iters
    cfg.train_cfg.max_iters = iters
    for scheduler in cfg.param_scheduler:
        if scheduler.get("end") == old:
            scheduler["end"] = iters
        if scheduler.get("end", 0) > iters or scheduler.get("begin", 0) >= iters:
            raise UserError(f"--iters {iters} is shorter than the warm-up of {cfg.filename}: {dict(scheduler)}")
    cfg.default_hooks.checkpoint.interval = min(cfg.default_hooks.checkpoint.interval, max(1, iters // 4))


def train_to_the_end(cfg: Config) -> tuple[dict[str, float], int, float]:
    """Train (or go on in ``cfg.work_dir``) and validate at the end: metrics, parameters, seconds of this call."""
    from mmengine.hooks import Hook

    from .inference import quiet_hosts
    from .processes import prepare_processes
    from .train import build_runner

    found: dict[str, float] = {}

    class KeepMetrics(Hook):
        def after_val_epoch(self, runner: Any, metrics: dict[str, float] | None = None) -> None:
            found.update(metrics or {})

    start = time.monotonic()
    prepare_processes(cfg, "none")
    cfg.log_level = "ERROR"
    # With load_from, mmengine would take "resume" for going on with that file's training.
    cfg.resume = cfg.get("load_from") is None or any(Path(cfg.work_dir).glob("*.pth"))
    if cfg.resume:
        cfg.load_from = None
    cfg.custom_hooks = [*(cfg.get("custom_hooks") or []), dict(type="mmvit_plugins.ConsoleProgressHook", seconds=20.0)]
    with quiet_hosts(cfg.get("default_scope")):
        runner = build_runner(cfg)
        runner.register_hook(KeepMetrics(), priority="VERY_LOW")
        runner.train()
        if not found:  # it had been stopped between its last checkpoint and its result
            found.update(runner.val_loop.run())
    parameters = sum(parameter.numel() for parameter in runner.model.parameters())
    return {key: float(value) for key, value in found.items()}, parameters, round(time.monotonic() - start, 1)


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells, the first of them the heads."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]) + "\n"
