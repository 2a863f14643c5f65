"""Find a config from any folder, load it, and apply what the command line changes in it."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmvit_plugins import ensure_config_scopes
from mmvit_plugins.environment import HOSTS, check_environment, configs_folder

from .errors import UserError

if TYPE_CHECKING:
    from mmengine.config import Config

__all__ = [
    "default_work_dir",
    "find_config",
    "load_config",
    "replace_sync_batch_norm",
    "set_data_root",
    "walk_datasets",
]

LOADERS = ("train_dataloader", "val_dataloader", "test_dataloader")
EVALUATORS = ("val_evaluator", "test_evaluator")


def find_config(name: str) -> Path:
    """The config file that ``name`` means.

    Tried in this order, each with and without ``.py``: the path as it is (from the current folder), below the shipped
    configs (``stvit/upernet_scenes.py``), and below their parent (``configs/stvit/upernet_scenes.py``), so that the
    names in the documentation work from any folder. ``mmvit_plugins::stvit/...`` works as in ``_base_``.

    Raises:
        UserError: no such file; the message lists the places and the nearest names.
    """
    plain = name.removeprefix("mmvit_plugins::")
    shipped = configs_folder()
    places = [Path(plain), shipped / plain]
    parts = Path(plain).parts
    if parts[:1] == ("configs",):
        places.append(shipped.joinpath(*parts[1:]))
    for place in places:
        for path in (place, place.with_name(place.name + ".py") if place.name else place):
            if path.is_file():
                return path.resolve()
    known = {
        str(file.relative_to(shipped)): file.stem
        for file in sorted(shipped.rglob("*.py"))
        if "_base_" not in file.relative_to(shipped).parts
    }
    wanted = plain.removeprefix("configs/").removesuffix(".py")
    near = difflib.get_close_matches(wanted, [path.removesuffix(".py") for path in known], n=3, cutoff=0.5)
    by_stem = difflib.get_close_matches(Path(wanted).name, set(known.values()), n=3, cutoff=0.6)
    near += [path.removesuffix(".py") for path, stem in known.items() if stem in by_stem]
    listed = ", ".join(dict.fromkeys(f"{path}.py" for path in near)) or ", ".join(known)
    looked = ", ".join(str(place.absolute()) for place in dict.fromkeys(places))
    raise UserError(f"there is no config {name!r}. Looked at {looked}. Near names in {shipped}: {listed}")


def load_config(args: argparse.Namespace) -> Config:
    """Load ``args.config``, apply ``--cfg-options`` and ``--data-root``, and check that its host library is usable.

    Raises:
        UserError: the file is missing or cannot be parsed, or an option cannot be applied.
        UnsuitableEnvironment: the host library of the config is missing.
    """
    check_environment("mmengine")
    from mmengine.config import Config

    ensure_config_scopes()
    path = find_config(args.config)
    try:
        cfg = Config.fromfile(path)
    except FileNotFoundError as error:
        raise UserError(f"config {path} inherits from a file that is missing: {error}") from error
    except (SyntaxError, KeyError, TypeError, NameError, ValueError) as error:
        raise UserError(f"config {path} cannot be parsed: {type(error).__name__}: {error}") from error
    _apply_options(cfg, args.cfg_options or [])
    if getattr(args, "data_root", None):
        set_data_root(cfg, args.data_root)
    scope = cfg.get("default_scope")
    if scope in HOSTS:
        check_environment(scope)
    if isinstance(cfg.get("visualizer"), dict):
        # Visualisers are kept by name in the process: a second run would write into the folder of the first.
        cfg.visualizer.pop("name", None)
    return cfg


def _apply_options(cfg: Config, options: list[str]) -> None:
    """Merge KEY=VALUE pairs, and say so when a key is new: a misspelt key would change nothing, silently."""
    from mmengine.config import DictAction

    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--options", nargs="+", action=DictAction, default={})
    for option in options:
        if "=" not in option:
            raise UserError(f"--cfg-options takes KEY=VALUE pairs, got {option!r}")
    changes: dict[str, Any] = parser.parse_args(["--options", *options]).options if options else {}
    for key in changes:
        if not _has_key(cfg, key):
            print(f"warning: --cfg-options {key}: the config has no such entry, it is added", file=sys.stderr)
    lengths = {key: (cfg.get("train_cfg") or {}).get(key) for key in ("max_iters", "max_epochs")}
    try:
        cfg.merge_from_dict(changes)
    except (KeyError, TypeError, IndexError) as error:
        raise UserError(f"--cfg-options {' '.join(options)} does not fit the config: {error}") from error
    if not any(key.startswith("param_scheduler") for key in changes):
        _end_schedules_with_training(cfg, lengths)


def _end_schedules_with_training(cfg: Config, lengths: dict[str, int | None]) -> None:
    """Schedulers that ended with the training go on doing so when an option made it longer or shorter."""
    for key, old in lengths.items():
        new = (cfg.get("train_cfg") or {}).get(key)
        if new == old or old is None or new is None:
            continue
        schedulers = cfg.get("param_scheduler") or []
        for one in schedulers if isinstance(schedulers, (list, tuple)) else [schedulers]:
            if (
                one.get("by_epoch", True) == (key == "max_epochs")
                and one.get("end") == old
                and one.get("begin", 0) < new
            ):
                one["end"] = new
                if "T_max" in one:
                    one["T_max"] += new - old
                print(f"note: {one['type']} ended at {old} with the training and now ends at {new}", file=sys.stderr)


def _has_key(cfg: Any, key: str) -> bool:
    for part in key.split("."):
        if isinstance(cfg, (list, tuple)) and part.isdigit() and int(part) < len(cfg):
            cfg = cfg[int(part)]
        elif hasattr(cfg, "keys") and part in cfg:
            cfg = cfg[part]
        else:
            return False
    return True


def walk_datasets(dataset: Any) -> Iterator[dict]:
    """``dataset`` (a config) and all that it wraps by ``dataset`` or ``datasets``."""
    if isinstance(dataset, (list, tuple)):
        for one in dataset:
            yield from walk_datasets(one)
    elif isinstance(dataset, dict):
        yield dataset
        yield from walk_datasets(dataset.get("dataset"))
        yield from walk_datasets(dataset.get("datasets"))


def set_data_root(cfg: Config, data_root: str) -> None:
    """Put ``data_root`` into every dataset of the three dataloaders and of its wrappers, and into the evaluators.

    mmengine merges ``--cfg-options data_root=...`` after the datasets have taken the value, so that one option alone
    does not reach them. Paths of evaluators (COCO's annotation file) that start with an old root are moved along.

    Raises:
        UserError: no dataset of the config has a data root.
    """
    old_roots: list[str] = []
    for loader in LOADERS:
        for dataset in walk_datasets((cfg.get(loader) or {}).get("dataset")):
            if dataset.get("data_root"):
                old_roots.append(str(dataset["data_root"]))
                dataset["data_root"] = data_root
    if not old_roots:
        raise UserError(
            f"--data-root {data_root}: no dataset of {cfg.filename} has a data_root (the built-in scenes need no data)"
        )
    for name in EVALUATORS:
        evaluators = cfg.get(name)
        for evaluator in evaluators if isinstance(evaluators, (list, tuple)) else [evaluators]:
            for key, value in (evaluator or {}).items():
                for old in old_roots:
                    if isinstance(value, str) and value.startswith(old):
                        evaluator[key] = str(Path(data_root) / value[len(old) :].lstrip("/"))
                        break
    cfg.data_root = data_root


def replace_sync_batch_norm(node: Any) -> int:
    """Turn every synchronised batch norm below ``node`` (a model config) into the plain one; returns how many.

    One process has nothing to synchronise with, and SyncBN refuses tensors on a CPU. Heads have their own
    ``norm_cfg``, so all of the config is walked.
    """
    count = 0
    if isinstance(node, dict):
        if node.get("type") in ("SyncBN", "MMSyncBN"):
            node["type"] = "BN"
            count += 1
        count += sum(replace_sync_batch_norm(value) for value in node.values())
    elif isinstance(node, (list, tuple)):
        count += sum(replace_sync_batch_norm(value) for value in node)
    return count


def default_work_dir(config: Path) -> str:
    """``work_dirs/<family>/<name>`` for a shipped config, ``work_dirs/<name>`` for any other, from the current
    folder."""
    shipped = configs_folder()
    if shipped in config.parents:
        return str(Path("work_dirs") / config.relative_to(shipped).with_suffix(""))
    return str(Path("work_dirs") / config.stem)
