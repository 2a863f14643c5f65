"""The authors' DVT checkpoints to ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from torch import Tensor

from mmvit_plugins.key_rules import KeyRule, apply_rules

__all__ = ["DVT_SIGNATURE", "convert_dvt"]

# The authors' names of the three models, from few tokens to many.
EXITS = ("less_less_token", "less_token", "normal_token")
# A key that every official DVT file has and no other family.
DVT_SIGNATURE = r"less_less_token\.cls_token"

_MODEL = r"(" + "|".join(EXITS) + r")\."
# Names below blocks.N., theirs to ours.
_BLOCK = {
    "attn.qkv": "qkv",
    "attn.proj": "proj",
    "mlp.fc1": "fc1",
    "mlp.fc2": "fc2",
    "norm1": "norm1",
    "norm2": "norm2",
}
_BLOCK |= {
    f"feature_resuse_mlp.{theirs}": f"reuse.{ours}"  # spelt so in the files
    for theirs, ours in {"0": "norm", "1.fc1": "fc1", "1.fc2": "fc2"}.items()
}
# Names below tokens_to_token.attentionN., Performer and plain attention.
_TOKEN_LAYER = {"kqv": "kqv", "proj": "proj", "norm1": "norm1", "norm2": "norm2", "mlp.0": "fc1", "mlp.2": "fc2"}
_TOKEN_LAYER |= {"attn.qkv": "qkv", "attn.proj": "proj", "mlp.fc1": "fc1", "mlp.fc2": "fc2"}
_RELATION = {"0": "conv1", "2": "conv2"}


def _rename(template: str, table: Mapping[str, str], group: int) -> Callable[[re.Match[str]], str]:
    """Replacement that puts the exit's number and the table's entry for ``group`` into ``template``."""

    def replace(match: re.Match[str]) -> str:
        groups = [table[g] if i == group else g for i, g in enumerate(match.groups(), start=1)]
        return template.format(EXITS.index(groups[0]), *groups[1:])

    return replace


def _any(table: Mapping[str, str]) -> str:
    return "(" + "|".join(map(re.escape, sorted(table, key=len, reverse=True))) + ")"


_PART = r"\.(weight|bias)"
RULES: list[KeyRule] = [
    (_MODEL + r"(cls_token|pos_embed)", _rename("backbone.exits.{0}.{1}", {}, 0), None),
    (_MODEL + r"(norm)" + _PART, _rename("backbone.exits.{0}.{1}.{2}", {}, 0), None),
    (_MODEL + r"(head)" + _PART, _rename("head.exits.{0}.fc.{2}", {}, 0), None),
    (_MODEL + r"patch_embed\.(proj)" + _PART, _rename("backbone.exits.{0}.embed.{1}.{2}", {}, 0), None),
    (_MODEL + r"tokens_to_token\.(project)" + _PART, _rename("backbone.exits.{0}.embed.{1}.{2}", {}, 0), None),
    (_MODEL + r"tokens_to_token\.(attention[12])\.w", _rename("backbone.exits.{0}.embed.{1}.features", {}, 0), None),
    (
        _MODEL + r"tokens_to_token\.(attention[12])\." + _any(_TOKEN_LAYER) + _PART,
        _rename("backbone.exits.{0}.embed.{1}.{2}.{3}", _TOKEN_LAYER, 3),
        None,
    ),
    (
        _MODEL + r"blocks\.(\d+)\." + _any(_BLOCK) + _PART,
        _rename("backbone.exits.{0}.blocks.{1}.{2}.{3}", _BLOCK, 3),
        None,
    ),
    (
        _MODEL + r"relation_reuse_conv\." + _any(_RELATION) + _PART,
        _rename("backbone.exits.{0}.relation_reuse.{1}.{2}", _RELATION, 2),
        None,
    ),
]


def convert_dvt(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Official DVT state dict (DeiT or T2T-ViT) -> MMPretrain layout (``backbone.exits.K``, ``head.exits.K.fc``).

    Pure and total.

    Raises:
        ValueError: a key that official DVT checkpoints do not have.
    """
    return apply_rules(state, RULES, "DVT")
