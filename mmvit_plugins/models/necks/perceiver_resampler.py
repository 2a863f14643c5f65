"""Flamingo's Perceiver resampler as a neck: any number of tokens or frames in, a fixed number of tokens out."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from torch import Tensor, nn

from mmvit_plugins.key_rules import KeyRule, apply_rules
from mmvit_plugins.registry import MODELS

from ..layers import as_tokens
from ..token_reduction import PerceiverLatents

__all__ = ["PerceiverResampler", "convert_flamingo_resampler"]


def _stretch(table: Tensor, count: int) -> Tensor:
    """(T, D) embeddings of T times -> (count, D): the first ones, or, for more than T, all of them stretched."""
    if count <= table.shape[0]:
        return table[:count]
    with torch.autocast(table.device.type, enabled=False):
        dtype = torch.promote_types(table.dtype, torch.float32)
        wide = F.interpolate(table.t().unsqueeze(0).to(dtype), size=count, mode="linear", align_corners=True)
        return wide[0].t().to(table.dtype)


@MODELS.register_module()
class PerceiverResampler(BaseModule):
    """Perceiver resampler (Flamingo, section 2.2 and appendix A.1.1).

    Every frame's tokens get the frame's time embedding, all are flattened, and learned latents read them in ``depth``
    layers. Equal to MMPretrain's Flamingo resampler with the same weights (:func:`convert_flamingo_resampler`); what
    that one cannot do: more frames than were trained (the time embeddings are interpolated, as the paper does at
    inference), and feature maps as input, so that it is a neck.

    Args:
        in_channels: channels D of the tokens.
        num_latents: tokens that come out.
        depth: layers.
        num_heads: heads.
        head_dim: channels of a head.
        ffn_ratio: hidden channels of the feed-forward networks / D.
        max_num_frames: frames with a time embedding; None: no time embedding.
        max_num_media: images or videos in a sequence with an embedding of their own; None: no such embedding.
        pool: return the mean of the latents (B, D), what MMPretrain's LinearClsHead takes, instead of (B, M, D).
        in_index: which map of a tuple is read.
        init_cfg: mmengine's initialisation config; default: truncated normal of 0.02 for linear layers.

    Raises:
        ValueError: an argument is outside its legal values.

    Examples:
        >>> import torch
        >>> from mmvit_plugins.models import PerceiverResampler
        >>> neck = PerceiverResampler(in_channels=32, num_latents=4, depth=1, max_num_frames=8)
        >>> neck((torch.rand(2, 32, 7, 5),))[0].shape  # a backbone's map
        torch.Size([2, 4, 32])
        >>> neck(torch.rand(2, 1, 12, 35, 32)).shape  # one video of 12 frames of 35 tokens
        torch.Size([2, 1, 4, 32])
    """

    def __init__(
        self,
        in_channels: int,
        num_latents: int = 64,
        depth: int = 6,
        num_heads: int = 8,
        head_dim: int = 64,
        ffn_ratio: float = 4,
        max_num_frames: int | None = None,
        max_num_media: int | None = None,
        pool: bool = False,
        in_index: int = -1,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        if init_cfg is None:
            init_cfg = dict(type="TruncNormal", layer="Linear", std=0.02)
        super().__init__(init_cfg=init_cfg)
        for name, value in dict(max_num_frames=max_num_frames, max_num_media=max_num_media).items():
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"{name} must be a whole number of at least 1, or None, got {value!r}")
        self.resampler = PerceiverLatents(in_channels, num_latents, depth, num_heads, head_dim, ffn_ratio)
        self.frame_embed = self._table(max_num_frames, in_channels)
        self.media_embed = self._table(max_num_media, in_channels)
        self.pool = pool
        self.in_index = in_index

    @staticmethod
    def _table(count: int | None, dim: int) -> nn.Parameter | None:
        return None if count is None else nn.Parameter(torch.randn(count, dim))

    def forward(self, inputs: Tensor | tuple[Tensor, ...] | list[Tensor]) -> Tensor | tuple[Tensor]:
        """Read tokens.

        Args:
            inputs: (B, T, F, N, D): B sequences of T images or videos of F frames of N tokens; or, as a neck, a map
                (B, D, H, W) or tokens (B, N, D), alone or in a tuple, of which ``in_index`` is read.

        Returns:
            (B, T, M, D) for five dimensions (a tensor, as MMPretrain's); otherwise a tuple of one (B, M, D). With
            ``pool`` there is no M.

        Raises:
            ValueError: another number of dimensions or channels.
        """
        x = inputs[self.in_index] if isinstance(inputs, tuple | list) else inputs
        is_sequence = x.dim() == 5
        if x.dim() == 4:
            x = as_tokens(x)
        if x.dim() == 3:
            x = x[:, None, None]
        dim = self.resampler.latents.shape[1]
        if x.dim() != 5 or x.shape[-1] != dim:
            raise ValueError(
                f"PerceiverResampler takes (B, T, F, N, {dim}), a map (B, {dim}, H, W) or tokens (B, N, {dim}), got "
                f"{tuple((inputs[self.in_index] if isinstance(inputs, tuple | list) else inputs).shape)}"
            )
        if self.frame_embed is not None:
            x = x + _stretch(self.frame_embed, x.shape[2])[:, None]
        x = x.flatten(2, 3)
        if self.media_embed is not None:
            x = x + _stretch(self.media_embed, x.shape[1])[:, None]
        latents = self.resampler.read(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        if self.pool:
            latents = latents.mean(dim=2)
        return latents if is_sequence else (latents.squeeze(1),)


def _layer(match: re.Match[str]) -> str:
    names = dict(norm_media="norm_tokens", norm_latents="norm_latents", to_q="q", to_kv="kv", to_out="proj")
    return f"resampler.layers.{match[1]}.attn.{names[match[2]]}.{match[3]}"


RULES: list[KeyRule] = [
    (r"latents", "resampler.latents", None),
    (r"frame_embs", "frame_embed", None),
    (r"media_time_embs", "media_embed", lambda table: table.flatten(1)),
    (r"layers\.(\d+)\.0\.(norm_media|norm_latents|to_q|to_kv|to_out)\.(weight|bias)", _layer, None),
    (r"layers\.(\d+)\.1\.([013])\.(weight|bias)", r"resampler.layers.\1.ffn.\2.\3", None),
    (r"norm\.(weight|bias)", r"resampler.norm.\1", None),
]


def convert_flamingo_resampler(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """State dict of MMPretrain's (and OpenFlamingo's) resampler -> that of :class:`PerceiverResampler`. Pure and total.

    Raises:
        ValueError: a key that such a resampler does not have.
    """
    return apply_rules(state, RULES, "Flamingo resampler")
