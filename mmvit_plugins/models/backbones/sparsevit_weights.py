"""Swin and SparseViT checkpoints to ours: Microsoft's layout and that of the OpenMMLab libraries.

SparseViT's authors publish MMDetection files. Their detectors, and classifiers, keep the other parts' names. Position
index tables and masks, which are computed from the window, are left out. The 2 x 2 tokens of a patch merging are
concatenated row by row here, column by column in Microsoft's code, and channel by channel in OpenMMLab's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from torch import Tensor

from mmvit_plugins.key_rules import KeyRule, apply_rules

__all__ = ["SPARSEVIT_SIGNATURE", "convert_sparsevit"]

_PREFIX = r"(?:backbone\.)?"
# A key that every file of either layout has, and no other family, nor our own layout.
SPARSEVIT_SIGNATURE = (
    _PREFIX + r"(?:layers\.\d+\.blocks\.\d+\.attn|stages\.\d+\.blocks\.\d+\.attn\.w_msa)\.relative_position_bias_table"
)


def _from_columns(value: Tensor) -> Tensor:
    """(..., 4 C), last dimension position-major with positions (0, 0), (1, 0), (0, 1), (1, 1) -> row by row."""
    return value.unflatten(-1, (4, -1))[..., [0, 2, 1, 3], :].flatten(-2)


def _from_channels(value: Tensor) -> Tensor:
    """(..., 4 C), last dimension channel-major with positions row by row -> position-major."""
    return value.unflatten(-1, (-1, 4)).transpose(-1, -2).flatten(-2)


def _downsample(match: re.Match[str]) -> str:
    """Both layouts end a stage with the merging that we begin the next one with."""
    return f"backbone.stages.{int(match[1]) + 1}.downsample.{match[2]}"


def _rules(block: str, ours: str, merge: Callable[[Tensor], Tensor]) -> list[KeyRule]:
    """What both layouts share, for blocks and stages that match ``block`` and ``block`` without its last part."""
    stage = block.partition(r"blocks\.")[0]
    return [
        (_PREFIX + r"patch_embed\.proj(?:ection)?\.(weight|bias)", r"backbone.patch_embed.projection.\1", None),
        (_PREFIX + r"patch_embed\.norm\.(.+)", r"backbone.patch_embed.norm.\1", None),
        (stage + r"downsample\.((?:norm|reduction)\..+)", _downsample, merge),
        (block + r"(norm[12]\..+)", ours + r"\3", None),
        (block + r"attn\.(?:w_msa\.)?(relative_position_bias_table|(?:qkv|proj)\..+)", ours + r"attn.\3", None),
        # Computed from the window.
        (block + r"(?:attn\.(?:w_msa\.)?relative_position_index|attn_mask)", None, None),
        (block + r"(?:mlp\.fc1|ffn\.layers\.0\.0)\.(.+)", ours + r"ffn.0.\3", None),
        (block + r"(?:mlp\.fc2|ffn\.layers\.1)\.(.+)", ours + r"ffn.2.\3", None),
        (_PREFIX + r"norm(\d)\.(.+)", r"backbone.norm\1.\2", None),
        (r"head\.(weight|bias)", r"head.fc.\1", None),
        # The rest of a classifier, detector or segmentor.
        (r"((?:head\.fc|neck|rpn_head|roi_head|bbox_head|mask_head|decode_head|auxiliary_head)\..+)", r"\1", None),
    ]


_OURS = r"backbone.stages.\1.blocks.\2."
MICROSOFT = _rules(_PREFIX + r"layers\.(\d+)\.blocks\.(\d+)\.", _OURS, _from_columns)
OPENMMLAB = _rules(_PREFIX + r"stages\.(\d+)\.blocks\.(\d+)\.", _OURS, _from_channels)


def convert_sparsevit(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Swin or SparseViT state dict -> MMPretrain layout (``backbone.``, ``head.fc.``; heads of detectors as they are).

    Pure and total. Microsoft's classifiers have one norm, that of the last stage.

    Raises:
        ValueError: a key that such checkpoints do not have.
    """
    stages = [int(match[1]) for key in state if (match := re.match(_PREFIX + r"(?:layers|stages)\.(\d+)\.", key))]
    last: KeyRule = (_PREFIX + r"norm\.(.+)", rf"backbone.norm{max(stages, default=0)}.\1", None)
    microsoft = any(re.match(_PREFIX + r"layers\.", key) for key in state)
    return apply_rules(state, [last, *(MICROSOFT if microsoft else OPENMMLAB)], "SparseViT or Swin")
