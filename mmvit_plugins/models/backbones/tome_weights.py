"""Checkpoints of plain vision transformers -> our ToMe: keys of timm, DeiT, MAE, MoCo v3, CLIP and MMPretrain."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from mmvit_plugins.key_rules import KeyRule, apply_rules

__all__ = ["TOME_SIGNATURE", "convert_tome"]

# The first block of a ViT as timm (and so DeiT, MAE, MoCo v3) or OpenAI's CLIP name it; of MMPretrain's files (and
# those of ToMe itself) the position table, because other models of ours name their blocks alike.
TOME_SIGNATURE = (
    r"(?:base_encoder\.)?blocks\.0\.attn\.qkv\.weight|visual\.transformer\.resblocks\.0\.attn\.in_proj_weight"
    r"|(?:backbone\.)?(?:model\.)?pos_embed"
)

_TO = r"backbone.model."
_BLOCK, _LAYER = r"(?:base_encoder\.)?blocks\.(\d+)\.", _TO + r"layers.\1."
_CLIP = r"visual\.transformer\.resblocks\.(\d+)\."
_TIMM: list[KeyRule] = [
    (r"(?:base_encoder\.)?(cls_token|pos_embed|dist_token)", _TO + r"\1", None),
    (r"(?:base_encoder\.)?patch_embed\.proj\.(.+)", _TO + r"patch_embed.projection.\1", None),
    (_BLOCK + r"norm([12])\.(.+)", _LAYER + r"ln\2.\3", None),
    (_BLOCK + r"attn\.((?:qkv|proj)\..+)", _LAYER + r"attn.\2", None),
    (_BLOCK + r"mlp\.fc1\.(.+)", _LAYER + r"ffn.layers.0.0.\2", None),
    (_BLOCK + r"mlp\.fc2\.(.+)", _LAYER + r"ffn.layers.1.\2", None),
    (_BLOCK + r"(?:ls1\.gamma|gamma_1)", _LAYER + r"attn.gamma1.weight", None),
    (_BLOCK + r"(?:ls2\.gamma|gamma_2)", _LAYER + r"ffn.gamma2.weight", None),
    (r"(?:base_encoder\.)?norm\.(.+)", _TO + r"ln1.\1", None),
    (r"norm_pre\.(.+)", _TO + r"pre_norm.\1", None),
    (r"fc_norm\.(.+)", _TO + r"ln2.\1", None),
    (r"head(_dist)?\.(weight|bias)", lambda m: f"head.layers.head{m.group(1) or ''}.{m.group(2)}", None),
    # What pretraining needs: MAE's decoder, MoCo's second encoder, projector and predictor.
    (r"mask_token|decoder_.+|(?:momentum_encoder|predictor)\..+|base_encoder\.head\..+", None, None),
]
_OPENAI_CLIP: list[KeyRule] = [
    (r"visual\.class_embedding", _TO + r"cls_token", lambda t: t.view(1, 1, -1)),
    (r"visual\.positional_embedding", _TO + r"pos_embed", lambda t: t.unsqueeze(0)),
    (r"visual\.conv1\.weight", _TO + r"patch_embed.projection.weight", None),
    (r"visual\.ln_pre\.(.+)", _TO + r"pre_norm.\1", None),
    (r"visual\.ln_post\.(.+)", _TO + r"ln1.\1", None),
    (_CLIP + r"ln_([12])\.(.+)", _LAYER + r"ln\2.\3", None),
    (_CLIP + r"attn\.in_proj_(weight|bias)", _LAYER + r"attn.qkv.\2", None),
    (_CLIP + r"attn\.out_proj\.(.+)", _LAYER + r"attn.proj.\2", None),
    (_CLIP + r"mlp\.c_fc\.(.+)", _LAYER + r"ffn.layers.0.0.\2", None),
    (_CLIP + r"mlp\.c_proj\.(.+)", _LAYER + r"ffn.layers.1.\2", None),
    # The projection to the common space, and the text model.
    (r"visual\.proj|text_projection|logit_scale|positional_embedding", None, None),
    (r"(?:transformer|token_embedding|ln_final)\..+|input_resolution|context_length|vocab_size", None, None),
]
_TENSOR = r"(cls_token|pos_embed|dist_token|(?:patch_embed|layers|ln1|ln2|pre_norm)\..+)"
_MMPRETRAIN: list[KeyRule] = [
    (r"(?:backbone\.)?(?:model\.)?" + _TENSOR, _TO + r"\1", None),
    (r"((?:neck|head)\..+)", r"\1", None),
    (r"data_preprocessor\..+|target_generator\..+", None, None),
]


def convert_tome(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """State dict of a plain ViT -> MMPretrain layout of ToMe (``backbone.model.``, ``head.layers.``).

    Pure and total. The shapes stay as they are; :class:`ToMe` resizes position tables when they are loaded.

    Raises:
        ValueError: keys that none of the known layouts has.
    """
    if any(key.startswith("visual.") for key in state):
        return apply_rules(state, _OPENAI_CLIP, "CLIP")
    if any(key.endswith("layers.0.ln1.weight") for key in state):
        return apply_rules(state, _MMPRETRAIN, "MMPretrain ViT")
    return apply_rules(state, _TIMM, "ViT")
