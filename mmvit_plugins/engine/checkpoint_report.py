"""How much of a checkpoint fits a model: mmengine loads without ``strict``, so a wrong file passes unnoticed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmengine.model import BaseTTAModel
from torch import Tensor, nn

__all__ = ["report_match"]


def report_match(model: nn.Module, checkpoint: Mapping[str, Any], source: str | Path, whole: bool = False) -> str:
    """One line on how many tensors of ``model`` the checkpoint holds in the same shape.

    Args:
        model: the model, not wrapped by DDP. Of a model for test-time augmentation the one inside counts.
        checkpoint: what was loaded, with or without a ``state_dict`` entry.
        source: the file, for the message.
        whole: refuse a file that lacks a whole part (a head or a backbone), whose outputs would be random.

    Raises:
        ValueError: nothing fits, so that the file belongs to another model; or, with ``whole``, a part has no tensor.
    """
    # Here, because it imports all models, which a hook alone does not need.
    from mmvit_plugins.checkpoints import load_report

    state = checkpoint.get("state_dict", checkpoint)
    state = {_plain(key): value for key, value in state.items() if isinstance(value, Tensor)}
    report = load_report(model.module if isinstance(model, BaseTTAModel) else model, state)
    source = os.path.abspath(source) if os.path.exists(source) else source
    if report.total and not report.matched:
        there, wanted = ", ".join(list(state)[:3]), ", ".join((report.missing + report.mismatched)[:3])
        raise ValueError(
            f"no tensor of {source} fits the model: it holds {len(state)} tensors such as {there}, and the model has "
            f"{report.total} such as {wanted}. Choose the config that the checkpoint was trained with, or convert "
            "official weights with tools/convert_checkpoint.py."
        )
    there = {key.split(".")[0] for key in report.matched}
    # An auxiliary head serves training only.
    parts = {key.split(".")[0] for key in report.missing + report.mismatched} - there - {"auxiliary_head"}
    if whole and parts:
        raise ValueError(
            f"{source} has no weights for {', '.join(sorted(parts))} of this model ({report}): its outputs would be "
            "random. Train first (load_from and init_cfg take such a file), or choose the config it was trained with."
        )
    return f"{source}: {report}"


def _plain(key: str) -> str:
    """``key`` without what DDP and torch.compile put before it."""
    key = key.replace("_orig_mod.", "")
    while key.startswith("module."):
        key = key[len("module.") :]
    return key
