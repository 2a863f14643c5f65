"""The parts of plain vision transformers, under one interface, for models that own the loop over the blocks.

A plain ViT (MMPretrain's VisionTransformer and its relatives, or timm's through MMPretrain's TIMMBackbone) is taken
apart into tokens from the image and blocks of two halves (attention, feed-forward network). Each half repeats what the
block itself does with its own parts: layer scale, norms of queries and keys, dropout and drop path stay. A class that
changes one of the methods repeated here is refused, because leaving its change out would go unnoticed.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
import torch.nn.functional as F
from mmcv.cnn.bricks import DropPath
from mmengine.registry import DefaultScope
from torch import Tensor, nn

from mmvit_plugins.environment import require

__all__ = ["ARCHS", "MMPretrainViT", "TimmViT", "build_plain_vit", "plain_vit_parts"]

OUT_TYPES = ("cls_token", "featmap", "avg_featmap", "raw")


def _arch(embed_dims: int, num_layers: int, num_heads: int) -> dict[str, int]:
    return dict(embed_dims=embed_dims, num_layers=num_layers, num_heads=num_heads, feedforward_channels=4 * embed_dims)


# Plain ViTs of MMPretrain's VisionTransformer; DeiT's and timm's names. `mini` (1 M parameters) is ours.
ARCHS: dict[str, dict[str, int]] = {
    "mini": _arch(128, 6, 4),
    "deit_tiny": _arch(192, 12, 3),
    "deit_small": _arch(384, 12, 6),
    "deit_base": _arch(768, 12, 12),
    "vit_tiny": _arch(192, 12, 3),
    "vit_small": _arch(384, 12, 6),
    "vit_base": _arch(768, 12, 12),
    "vit_large": _arch(1024, 24, 16),
    "vit_huge": _arch(1280, 32, 16),
}


def build_plain_vit(config: Mapping[str, Any]) -> nn.Module:
    """Build a ViT in MMPretrain's scope.

    Raises:
        ImportError: MMPretrain is not installed.
    """
    require("mmpretrain")
    import mmpretrain.models  # noqa: F401  (fills the registry)
    from mmpretrain.registry import MODELS

    with DefaultScope.overwrite_default_scope("mmpretrain"):
        vit = MODELS.build(dict(config))
    for module in vit.modules():
        if isinstance(module, DropPath):  # it has a number of NumPy, at which torch.compile breaks the graph
            module.drop_prob = float(module.drop_prob)
    if hasattr(vit, "timm_model"):  # it then loads files in timm's own names, wherever it is built in
        vit._register_load_state_dict_pre_hook(TimmViT.adapt_state, with_module=True)
    return vit


def _attention_output(
    attn: nn.Module, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: float, dim: int
) -> Tensor:
    """Fused attention, heads joined: (B, heads, N, d) each -> (B, N, C)."""
    bias = None if bias is None else bias.to(q.dtype)
    function = getattr(attn, "scaled_dot_product_attention", F.scaled_dot_product_attention)
    out = function(q, k, v, attn_mask=bias, dropout_p=dropout)
    return out.transpose(1, 2).reshape(q.shape[0], q.shape[2], dim)


class MMPretrainViT:
    """VisionTransformer, DistilledVisionTransformer, DeiT3 and subclasses with the same ``forward`` (MoCoV3ViT)."""

    @staticmethod
    def check(vit: nn.Module) -> None:
        """Raises ValueError for a class whose forward, or whose layers', this does not repeat."""
        from mmpretrain.models.backbones import DeiT3, DistilledVisionTransformer, VisionTransformer
        from mmpretrain.models.utils.attention import MultiheadAttention

        layer_types = {
            sys.modules[cls.__module__].__dict__[name].forward
            for cls, name in ((VisionTransformer, "TransformerEncoderLayer"), (DeiT3, "DeiT3TransformerEncoderLayer"))
        }
        known = [cls.forward for cls in (VisionTransformer, DistilledVisionTransformer, DeiT3)]
        if type(vit).forward not in known:
            raise _unknown(vit, "VisionTransformer, DistilledVisionTransformer, DeiT3, MoCoV3ViT or TIMMBackbone")
        for layer in vit.layers:
            plain = type(layer.attn).forward is MultiheadAttention.forward and not layer.attn.v_shortcut
            if type(layer).forward not in layer_types or not plain:
                raise _unknown(layer, "TransformerEncoderLayer with MultiheadAttention, or DeiT3's")

    @staticmethod
    def file_names(vit: nn.Module) -> dict[str, str | None]:
        """Names in the files of such a model -> those in its state dict, None: not needed."""
        return {name: name for name in vit.state_dict()}

    @staticmethod
    def adapt_state(vit: nn.Module, state: dict[str, Tensor], prefix: str) -> None:
        """Resize a position table of another grid in float32, drop a class token that ``vit`` lacks; in place."""
        key = f"{prefix}pos_embed"
        if key in state and hasattr(vit, "_prepare_pos_embed"):
            table = {"pos_embed": state[key]}
            with suppress(AssertionError):  # a table of another kind of model: left as it is, and refused for its shape
                vit._prepare_pos_embed(table, "")
            state[key] = table["pos_embed"]
        if vit.cls_token is None:
            state.pop(f"{prefix}cls_token", None)

    @staticmethod
    def from_official(vit: nn.Module, state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor] | None:
        """None: the conversion of the family gives this model's names."""
        return None

    @staticmethod
    def prefix(vit: nn.Module) -> dict[str, Any]:
        """Which tokens lead the sequence, as the arguments of the matchings."""
        return dict(class_token=vit.cls_token is not None, distill_token=hasattr(vit, "dist_token"), num_registers=0)

    @staticmethod
    def blocks(vit: nn.Module) -> nn.ModuleList:
        return vit.layers

    @staticmethod
    def embed(vit: nn.Module, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """(B, 3, H, W) -> tokens (B, prefix + h * w, C) and the grid (h, w)."""
        from mmpretrain.models.utils import resize_pos_embed

        x, grid = vit.patch_embed(x)
        prefix = [getattr(vit, name, None) for name in ("cls_token", "dist_token")]
        prefix = [token.expand(x.shape[0], -1, -1) for token in prefix if token is not None]
        positions_of_prefix = vit.pos_embed.shape[1] - vit.patch_resolution[0] * vit.patch_resolution[1]
        position = resize_pos_embed(
            vit.pos_embed, vit.patch_resolution, grid, mode=vit.interpolate_mode, num_extra_tokens=positions_of_prefix
        )
        if positions_of_prefix or not prefix:
            x = vit.drop_after_pos((torch.cat([*prefix, x], dim=1) if prefix else x) + position)
        else:  # DeiT III: the class token has no position
            x = torch.cat([*prefix, vit.drop_after_pos(x + position)], dim=1)
        if len(prefix) < 2 and hasattr(vit, "pre_norm"):  # DistilledVisionTransformer leaves it out
            x = vit.pre_norm(x)
        return x, grid

    @staticmethod
    def attend(layer: nn.Module, x: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """Attention before the output projection, and the keys' mean over the heads, by which tokens are compared.

        Args:
            layer: one block.
            x: (B, N, C) tokens.
            bias: added to the logits, (B, 1, 1, N).

        Returns:
            (B, N, C) and (B, N, d).
        """
        attn, (batch, count, _) = layer.attn, x.shape
        qkv = attn.qkv(layer.ln1(x)).reshape(batch, count, 3, attn.num_heads, attn.head_dims)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        out = _attention_output(attn, q, k, v, bias, attn.attn_drop if attn.training else 0.0, attn.embed_dims)
        return out, qkv[:, :, 1].detach().mean(dim=2)

    @staticmethod
    def project(layer: nn.Module, out: Tensor) -> Tensor:
        """What :meth:`attend` gave -> the attention branch, to be added to the tokens; linear in eval mode."""
        attn = layer.attn
        return attn.out_drop(attn.gamma1(attn.proj_drop(attn.proj(out))))

    @staticmethod
    def feed(layer: nn.Module, x: Tensor) -> Tensor:
        """x + feed-forward network. (MMPretrain's DeiT3 uses the first norm here as well.)"""
        norm = layer.ln1 if type(layer).__name__.startswith("DeiT3") else layer.ln2
        return layer.ffn(norm(x), identity=x)

    @staticmethod
    def final_norm(vit: nn.Module, x: Tensor) -> Tensor:
        return vit.ln1(x) if vit.final_norm else x

    @staticmethod
    def drop_final_norm(vit: nn.Module) -> None:
        """For a model whose last block is not used."""
        if vit.final_norm:
            vit.final_norm, vit.ln1 = False, nn.Identity()

    @staticmethod
    def pooled_norm(vit: nn.Module, x: Tensor) -> Tensor:
        return vit.ln2(x)

    @staticmethod
    def geometry(vit: nn.Module) -> tuple[int, int]:
        """Channels and stride."""
        return vit.embed_dims, vit.patch_embed.projection.stride[0]


# What OpenMMLab's models put before timm's names.
_TIMM_WRAPPERS = r"^(?:backbone\.)?(?:model\.)?(?:timm_model\.)?"


class TimmViT:
    """timm's VisionTransformer inside MMPretrain's TIMMBackbone: registers, norms of queries and keys, layer scale."""

    @staticmethod
    def check(vit: nn.Module) -> None:
        """Raises ValueError for a model that is no plain timm ViT."""
        from timm.models import vision_transformer as timm_vit

        inner = vit.timm_model
        wanted = "timm's VisionTransformer with its own Block and Attention"
        if type(inner).forward_features is not getattr(timm_vit.VisionTransformer, "forward_features", None):
            raise _unknown(inner, wanted)
        for block in inner.blocks:
            if (
                type(block).forward is not timm_vit.Block.forward
                or type(block.attn).forward is not timm_vit.Attention.forward
            ):
                raise _unknown(block, wanted)

    @staticmethod
    def file_names(vit: nn.Module) -> dict[str, str | None]:
        """As :meth:`MMPretrainViT.file_names`: timm's names as well; TIMMBackbone has no classifier."""
        own = {name: name for name in vit.state_dict()}
        heads = (f"{head}.{part}" for head in ("head", "head_dist") for part in ("weight", "bias"))
        return dict.fromkeys(heads) | {name.removeprefix("timm_model."): name for name in own} | own

    @staticmethod
    def adapt_state(vit: nn.Module, state: dict[str, Tensor], prefix: str, *args: Any) -> None:
        """Give timm's names those of ``vit``, leave out its classifier, resize a table of positions, in place."""
        for name, target in TimmViT.file_names(vit).items():
            if name != target and f"{prefix}{name}" in state:
                value = state.pop(f"{prefix}{name}")
                if target is not None:
                    state[f"{prefix}{target}"] = value
        key, inner = f"{prefix}timm_model.pos_embed", vit.timm_model
        if key in state and inner.pos_embed is not None and state[key].shape[1] != inner.pos_embed.shape[1]:
            grid = inner.patch_embed.grid_size
            leading = inner.pos_embed.shape[1] - grid[0] * grid[1]
            patches = state[key].shape[1] - leading
            if patches > 0 and math.isqrt(patches) ** 2 == patches:  # else refused for its shape
                from timm.layers import resample_abs_pos_embed

                state[key] = resample_abs_pos_embed(state[key], list(grid), num_prefix_tokens=leading)

    @staticmethod
    def from_official(vit: nn.Module, state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor] | None:
        """A file in timm's names -> the layout of the families' conversions (``backbone.``, ``head.layers.``).

        Args:
            vit: the model.
            state: the file's state dict.
            prefix: of the model's keys in that layout.

        Returns:
            The renamed state dict, or None for a file in other names.
        """
        if not any(re.match(_TIMM_WRAPPERS + r"blocks\.0\.", name) for name in state):
            return None
        renamed = {}
        for name, value in state.items():
            if re.fullmatch(r"head(?:_dist)?\.(?:weight|bias)", name):
                name = f"head.layers.{name}"
            elif not name.startswith(("neck.", "head.")):
                name = prefix + re.sub(_TIMM_WRAPPERS, "", name, count=1)
            renamed[name] = value
        TimmViT.adapt_state(vit, renamed, prefix)
        return renamed

    @staticmethod
    def prefix(vit: nn.Module) -> dict[str, Any]:
        class_token = vit.timm_model.cls_token is not None
        return dict(
            class_token=class_token,
            distill_token=False,
            num_registers=vit.timm_model.num_prefix_tokens - int(class_token),
        )

    @staticmethod
    def blocks(vit: nn.Module) -> nn.Module:
        return vit.timm_model.blocks

    @staticmethod
    def embed(vit: nn.Module, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """(B, 3, H, W) -> tokens (B, prefix + h * w, C) and the grid (h, w); other sizes need ``dynamic_img_size``."""
        vit = vit.timm_model
        x = vit.patch_embed(x)
        grid = (x.shape[1], x.shape[2]) if x.dim() == 4 else tuple(vit.patch_embed.grid_size)
        return vit.norm_pre(vit.patch_drop(vit._pos_embed(x))), grid

    @staticmethod
    def attend(block: nn.Module, x: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """As :meth:`MMPretrainViT.attend`; the keys are taken behind their norm."""
        attn, (batch, count, _) = block.attn, x.shape
        normed = block.norm1(x)
        q, k, v = attn.qkv(normed).reshape(batch, count, 3, attn.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = attn.q_norm(q), attn.k_norm(k)
        dropout = attn.attn_drop.p if attn.training else 0.0
        out = _attention_output(attn, q, k, v, bias, dropout, attn.num_heads * q.shape[-1])
        out = getattr(attn, "norm", nn.Identity())(out)
        if getattr(attn, "gate", None) is not None:
            out = out * attn.gate(normed).sigmoid()
        return out, k.detach().mean(dim=1)

    @staticmethod
    def project(block: nn.Module, out: Tensor) -> Tensor:
        """As :meth:`MMPretrainViT.project`."""
        return block.drop_path1(block.ls1(block.attn.proj_drop(block.attn.proj(out))))

    @staticmethod
    def feed(block: nn.Module, x: Tensor) -> Tensor:
        return x + block.drop_path2(block.ls2(block.mlp(block.norm2(x))))

    @staticmethod
    def final_norm(vit: nn.Module, x: Tensor) -> Tensor:
        return vit.timm_model.norm(x)

    @staticmethod
    def drop_final_norm(vit: nn.Module) -> None:
        vit.timm_model.norm = nn.Identity()

    @staticmethod
    def pooled_norm(vit: nn.Module, x: Tensor) -> Tensor:
        return vit.timm_model.fc_norm(x)

    @staticmethod
    def geometry(vit: nn.Module) -> tuple[int, int]:
        return vit.timm_model.embed_dim, vit.timm_model.patch_embed.proj.stride[0]


def _unknown(module: nn.Module, wanted: str) -> ValueError:
    return ValueError(
        f"ToMe takes plain vision transformers apart: {wanted}. {type(module).__name__} computes in another way, which "
        "would be lost. Load its weights into one of these classes if they fit."
    )


def plain_vit_parts(vit: nn.Module) -> type[MMPretrainViT] | type[TimmViT]:
    """The interface that fits ``vit``.

    Raises:
        ValueError: it is no plain ViT that is known here.
    """
    parts = TimmViT if hasattr(vit, "timm_model") else MMPretrainViT
    parts.check(vit)
    return parts
