"""What the rows of a report depend on, so that a run which goes on with a report does not mix models in it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..cli.errors import UserError

if TYPE_CHECKING:
    from mmengine.config import Config

__all__ = ["check_kept_rows", "source_of"]

#: What of a config decides about cost: the model, the step that trains it, and the frame of point clouds.
MODEL_KEYS = ("default_scope", "model", "data_preprocessor", "optim_wrapper")


def source_of(
    config: str, cfg: Config, cfg_options: Sequence[str], images: Sequence[str], flops_images: int
) -> dict[str, Any]:
    """Columns of a row that say what was measured.

    Args:
        config: as it was given.
        cfg: the config with its changes.
        cfg_options: the changes.
        images: photographs; none: rendered scenes.
        flops_images: over how many FLOPs are averaged.
    """
    from mmvit_plugins.cli.inference import bird_eye_step

    parts = [cfg.get(key) for key in MODEL_KEYS] + [bird_eye_step(cfg)]
    return dict(
        config=config,
        cfg_options=" ".join(cfg_options),
        model_digest=_digest(json.dumps(parts, default=str)),
        images=_describe(images),
        flops_images=flops_images,
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _describe(images: Sequence[str]) -> str:
    """Few words, for a cell of a table: photographs are known by their names and sizes."""
    if not images:
        return "rendered scenes"
    known = _digest("\n".join(f"{path} {Path(path).stat().st_size}" for path in images))
    return f"{len(images)} files from {images[0]} on ({known})"


def check_kept_rows(rows: Iterable[Mapping[str, Any]], sources: Mapping[str, Mapping[str, Any]], where: Path) -> bool:
    """Check that ``rows`` of a report are of what is to be measured under the same names now.

    Args:
        rows: of the report.
        sources: for each name of this run, :func:`source_of`.
        where: the report's folder, for the message.

    Returns:
        Whether all rows say what they depend on. Reports of older versions name the config only, and only that is
        compared.

    Raises:
        UserError: a row is of another model, or measured on other images; with all differences.
    """
    found, complete = [], True
    for row in rows:
        source = sources.get(row["name"])
        if source is None:
            continue
        complete = complete and "model_digest" in row
        found += [line for line in _differences(row, source) if line not in found]
    if found:
        raise UserError(
            f"--resume: {where} holds rows that were measured otherwise:\n  " + "\n  ".join(found) + "\nGive other "
            "names (NAME=CONFIG), another --out, or measure all of it again, without --resume."
        )
    return complete


def _differences(row: Mapping[str, Any], source: Mapping[str, Any]) -> list[str]:
    name = row["name"]
    found = []
    if row.get("model_digest", source["model_digest"]) != source["model_digest"]:
        texts = [" ".join(filter(None, (one["config"], one["cfg_options"]))) for one in (row, source)]
        changed = f"{texts[0]} then, {texts[1]} now" if texts[0] != texts[1] else f"{texts[0]} has changed since"
        found.append(f"{name}: another model: {changed}")
    elif "model_digest" not in row and _stem(row["config"]) != _stem(source["config"]):
        found.append(f"{name}: another config: {row['config']} then, {source['config']} now")
    for key in ("images", "flops_images"):
        if key in row and row[key] != source[key]:
            found.append(f"{name}: other {key}: {row[key]} then, {source[key]} now")
    return found


def _stem(config: str) -> tuple[str, ...]:
    """Folder and name: the same for ``stvit/in1k`` and ``configs/stvit/in1k.py``."""
    return Path(config).with_suffix("").parts[-2:]
