"""The authors' FlatFormer weights to ours.

The licence of Waymo's data keeps the authors from publishing their weights; files of your own training with their
code have this layout, the encoder alone or inside a detector of MMDetection3D.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from mmvit_plugins.key_rules import KeyRule, apply_rules

__all__ = ["FLATFORMER_SIGNATURE", "convert_flatformer"]

# A key that every FlatFormer encoder has and no other family.
FLATFORMER_SIGNATURE = r"(?:(?:pts_)?middle_encoder\.)?block_list\.\d+\.block\.\d+\.attn\.attn\.in_proj_weight"

# Where MMDetection3D's detectors keep it; their other parts (points to pillars, 2-D network, head) are not ours.
_IN_A_DETECTOR = ("pts_middle_encoder.", "middle_encoder.")
_LAYERS_OF_A_BLOCK = 4
_LAYER = r"block_list\.(\d+)\.block\.(\d+)\."


def _layer(match: re.Match[str], rest: str) -> str:
    return f"backbone.layers.{_LAYERS_OF_A_BLOCK * int(match[1]) + int(match[2])}.{rest}"


RULES: list[KeyRule] = [
    (_LAYER + r"attn\.attn\.(qk|v)\.(weight|bias)", lambda m: _layer(m, f"attn.{m[3]}.{m[4]}"), None),
    (_LAYER + r"attn\.attn\.out_proj\.(weight|bias)", lambda m: _layer(m, f"attn.proj.{m[3]}"), None),
    (_LAYER + r"((?:fc|norm)[12]\.(?:weight|bias))", lambda m: _layer(m, m[3]), None),
]


def convert_flatformer(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Official state dict of the encoder -> ``backbone.`` keys of :class:`FlatFormerEncoder`.

    The authors keep the projections of queries, keys and values in one matrix. Of a whole detector only the encoder is
    taken. Pure and, for the encoder, total.

    Raises:
        ValueError: a key that FlatFormer's encoder does not have.
    """
    for prefix in _IN_A_DETECTOR:
        part = {key[len(prefix) :]: value for key, value in state.items() if key.startswith(prefix)}
        state = part or state
    split: dict[str, Tensor] = {}
    for key, value in state.items():
        match = re.fullmatch(r"(.*attn\.attn\.)in_proj_(weight|bias)", key)
        if match is None:
            split[key] = value
            continue
        if value.shape[0] % 3:
            raise ValueError(f"{key} must hold queries, keys and values of one width each, got {tuple(value.shape)}")
        dim = value.shape[0] // 3
        split[f"{match[1]}qk.{match[2]}"], split[f"{match[1]}v.{match[2]}"] = value[: 2 * dim], value[2 * dim :]
    return apply_rules(split, RULES, "FlatFormer")
