"""The authors' EfficientViT checkpoints (classification and segmentation) to ours."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from mmvit_plugins.key_rules import KeyRule, apply_rules

__all__ = ["EFFICIENTVIT_SIGNATURE", "convert_efficientvit"]

# A key that every official file has and no other family.
EFFICIENTVIT_SIGNATURE = r"(?:backbone\.)?stages\.\d+\.op_list\.\d+\.context_module\.main\.aggreg\.\d+\.0\.weight"


def _stage(match: re.Match[str]) -> str:
    """L's first stage is our stem; B's stem has its own name."""
    number = int(match[1]) - 1
    return f"backbone.stem.{match[2]}" if number < 0 else f"backbone.stages.{number}.{match[2]}"


def _layer(key: str) -> str:
    """Names within a block."""
    for theirs, ours in (
        (".main.", "."),
        ("context_module.qkv.conv.", "attn.qkv."),
        ("context_module.aggreg.", "attn.aggregations."),
        ("context_module.proj.", "attn.proj."),
        ("local_module.", "ffn."),
        (".norm.", ".bn."),
    ):
        key = key.replace(theirs, ours)
    return key


_NORM = r"(?:weight|bias|running_mean|running_var|num_batches_tracked)"
_LEAF = rf"(?:conv\.(?:weight|bias)|norm\.{_NORM})"
_CONVS = rf"(?:inverted_conv|depth_conv|point_conv|spatial_conv|conv1|conv2)\.{_LEAF}"
_BLOCK = (
    rf"\d+\.(?:{_LEAF}|main\.{_CONVS}|local_module\.main\.{_CONVS}"
    rf"|context_module\.main\.(?:qkv\.conv\.weight|aggreg\.\d+\.[01]\.weight|proj\.{_LEAF}))"
)
_HEAD_RULES: list[KeyRule] = [
    # Classification: 1x1 convolution, (pool,) linear and norm, linear.
    (rf"head\.op_list\.0\.({_LEAF})", lambda m: _layer(f"head.conv.{m[1]}"), None),
    (r"head\.op_list\.2\.linear\.(weight)", r"head.hidden.\1", None),
    (r"head\.op_list\.2\.norm\.(weight|bias)", r"head.norm.\1", None),
    (r"head\.op_list\.3\.linear\.(weight|bias)", r"head.fc.\1", None),
    # Segmentation: inputs from stage 4 to stage 2, ours from 2 to 4 as the backbone returns them.
    (
        rf"head\.input_ops\.([012])\.(?:op_list\.0\.)?({_LEAF})",
        lambda m: _layer(f"decode_head.input_convs.{2 - int(m[1])}.{m[2]}"),
        None,
    ),
    (rf"head\.middle\.op_list\.(\d+\.main\.{_CONVS})", lambda m: _layer(f"decode_head.blocks.{m[1]}"), None),
]


def convert_efficientvit(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Official EfficientViT state dict -> MMPretrain layout (``backbone.``, ``head.``) or MMSegmentation's
    (``backbone.``, ``decode_head.``), whichever head the file has.

    Pure and total.

    Raises:
        ValueError: a key that official EfficientViT checkpoints do not have.
    """
    has_stem = any("input_stem." in key for key in state)
    expands = "head.output_ops.0.op_list.1.conv.weight" in state
    rules: list[KeyRule] = [
        (rf"(?:backbone\.)?input_stem\.op_list\.({_BLOCK})", lambda m: _layer(f"backbone.stem.{m[1]}"), None),
        (
            rf"(?:backbone\.)?stages\.(\d+)\.op_list\.({_BLOCK})",
            (lambda m: _layer(f"backbone.stages.{m[1]}.{m[2]}")) if has_stem else (lambda m: _layer(_stage(m))),
            None,
        ),
        *_HEAD_RULES,
    ]
    if expands:
        rules.append(
            (rf"head\.output_ops\.0\.op_list\.0\.({_LEAF})", lambda m: _layer(f"decode_head.expand.{m[1]}"), None)
        )
    rules.append((rf"head\.output_ops\.0\.op_list\.{int(expands)}\.conv\.(.+)", r"decode_head.conv_seg.\1", None))
    return apply_rules(state, rules, "EfficientViT")
