"""The authors' STViT checkpoints to ours."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from mmvit_plugins.key_rules import KeyRule, apply_rules, squeeze_1x1

__all__ = ["STVIT_SIGNATURE", "convert_stvit"]

# A key that every official STViT file has and no other family.
STVIT_SIGNATURE = r"layers\.\d+\.blocks\.\d+\.attn\.stoken_refine\.qkv\.weight"


def _downsample(match: re.Match[str]) -> str:
    """The authors end a stage with the convolution that we begin the next one with."""
    return f"backbone.stages.{int(match[1]) + 1}.downsample.{match[2]}"


_BLOCK = r"layers\.(\d+)\.blocks\.(\d+)\."
_OURS = r"backbone.stages.\1.blocks.\2."
RULES: list[KeyRule] = [
    (r"patch_embed\.proj\.(.+)", r"backbone.stem.\1", None),
    (r"layers\.(\d+)\.downsample\.proj\.(.+)", _downsample, None),
    (_BLOCK + r"pos_embed\.conv\.(.+)", _OURS + r"pos_embed.\3", None),
    (_BLOCK + r"norm1\.norm\.(.+)", _OURS + r"norm1.\3", None),
    # One-hot kernels that the authors' gather and scatter of neighbours keep as parameters.
    (_BLOCK + r"attn\.(?:un)?fold\.weights", None, None),
    (_BLOCK + r"attn\.stoken_refine\.(.+)", _OURS + r"attn.attn.\3", squeeze_1x1),
    (_BLOCK + r"norm2\.(.+)", _OURS + r"ffn.norm.\3", None),
    (_BLOCK + r"mlp2\.conv\.conv\.(.+)", _OURS + r"ffn.dwconv.\3", None),
    (_BLOCK + r"mlp2\.(fc[12]\..+)", _OURS + r"ffn.\3", squeeze_1x1),
    (_BLOCK + r"gamma_?([12])", _OURS + r"gamma\3", Tensor.flatten),
    (r"proj\.(.+)", r"neck.proj.\1", squeeze_1x1),
    (r"norm\.(.+)", r"neck.norm.\1", None),
    (r"head\.(.+)", r"head.fc.\1", None),
]


def convert_stvit(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Official STViT state dict -> MMPretrain layout (``backbone.``, ``neck.``: STViTProjection, ``head.fc.``).

    Pure and total.

    Raises:
        ValueError: a key that official STViT checkpoints do not have.
    """
    return apply_rules(state, RULES, "STViT")
