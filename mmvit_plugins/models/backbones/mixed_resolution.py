"""A plain ViT whose tokens cover squares of different sizes; Quadformer and MSViT differ in how they choose them.

All squares are resized to the smallest size and share one patch embedding, so the transformer sees ordinary tokens. In
maps each token is painted over the cells that it covers.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from mmengine.model import BaseModule, ModuleList
from mmengine.model.weight_init import trunc_normal_
from torch import Tensor, nn

from ..layers.checkpointing import checkpoint_module
from ..layers.memory_format import as_map, as_output
from ..layers.vit_block import ViTBlock
from ..token_reduction.token_map import TokenMap
from .base import HierarchicalBackbone

__all__ = ["MixedResolutionViT", "MixedTokens", "PatchEmbedding", "patchify"]

NUM_STAGES = 4
OUT_TYPES = ("featmap", "cls_token")


def patchify(image: Tensor, size: int) -> Tensor:
    """(B, C, H, W), H and W multiples of ``size`` -> (B, H * W / size^2, C * size^2), patches in raster order."""
    batch, channels, height, width = (int(n) for n in image.shape)
    rows, cols = height // size, width // size
    x = image.reshape(batch, channels, rows, size, cols, size).permute(0, 2, 4, 1, 3, 5)
    return x.reshape(batch, rows * cols, channels * size * size)


@dataclass(frozen=True, eq=False)
class MixedTokens:
    """Tokens of a batch of images, and what they cover.

    Args:
        tokens: (B, M, C), without the class token.
        token_map: the (B, h * w) cells of the image -> M tokens.
        grid: (h, w) of the cells.
        key_mask: (B, M) bool, False: no token looks at this one; None: all are seen.
        key_weight: (B, M) weights of the tokens in attention, see ``weighted_attention``; takes the mask's place.
    """

    tokens: Tensor
    token_map: TokenMap
    grid: tuple[int, int]
    key_mask: Tensor | None = None
    key_weight: Tensor | None = None


class PatchEmbedding(BaseModule):
    """The projection of patches, and the class token.

    Args:
        in_channels: channels of the image.
        dim: channels C of a token.
        patch_size: side of the patches after resizing.
        with_cls_token: have a class token.
    """

    def __init__(self, in_channels: int, dim: int, patch_size: int, with_cls_token: bool) -> None:
        super().__init__()
        self.projection = nn.Conv2d(in_channels, dim, patch_size, stride=patch_size)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim)) if with_cls_token else None

    def init_weights(self) -> None:
        """As MMPretrain's ViT, but the class token too is drawn from a truncated normal of 0.02."""
        super().init_weights()
        if self.cls_token is not None:
            trunc_normal_(self.cls_token, std=0.02)

    def forward(self, patches: Tensor) -> Tensor:
        """(B, N, in_channels * patch_size^2) -> (B, N, C)."""
        weight = self.projection.weight.flatten(1)
        # Without autocast: gradients of pixels that nobody has normalised overflow float16.
        with torch.autocast(patches.device.type, enabled=False):
            return nn.functional.linear(patches.to(weight.dtype), weight, self.projection.bias)


class MixedResolutionViT(HierarchicalBackbone):
    """Base of ViTs over mixed-resolution tokens. A subclass implements :meth:`tokenize`.

    The layers are in four stages of about equal length (for depth 12: 3 each), all of one width and stride. The keys
    are those of MMPretrain's VisionTransformer and DistilledVisionTransformer, whose state dicts (ViT, DeiT, MAE)
    load as they are: the position of the class token is added to it, a distillation token and its position are left
    out.
    ``OfficialPretrained`` reads timm's and the authors' layouts of such models too.

    Args:
        settings: embed_dims, depth (at least 4), num_heads.
        in_channels: channels of the image.
        patch_size: stride of the maps and side of the resized patches.
        mlp_ratio: hidden channels of the MLPs / channels.
        drop_path_rate: rate of the last layer; it grows linearly from 0.
        with_cls_token: have a class token.
        out_type: ``'featmap'``: maps; ``'cls_token'``: (B, C) class tokens.
        out_indices: stages whose outputs are returned; None: all.
        frozen_stages: -1: none; k: embedding and stages 0 to k.
        norm_eval: keep batch norms in eval mode (there are none in the transformer).
        with_cp: recompute activations in the backward pass.
        init_cfg: mmengine's initialisation config.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        in_channels: int,
        patch_size: int,
        mlp_ratio: float,
        drop_path_rate: float,
        with_cls_token: bool,
        out_type: str,
        out_indices: int | Sequence[int] | None,
        frozen_stages: int,
        norm_eval: bool,
        with_cp: bool,
        init_cfg: dict | list[dict] | None,
    ) -> None:
        who, depth, dim = type(self).__name__, settings["depth"], settings["embed_dims"]
        if depth < NUM_STAGES:
            raise ValueError(f"depth of {who} must be at least {NUM_STAGES}, got {depth}")
        if out_type not in OUT_TYPES or (out_type == "cls_token" and not with_cls_token):
            raise ValueError(f"out_type of {who} must be one of {OUT_TYPES} (the last needs one), got {out_type!r}")
        if not 0 <= drop_path_rate < 1:
            raise ValueError(f"drop_path_rate must be in [0, 1), got {drop_path_rate}")
        if init_cfg is None:
            init_cfg = [
                dict(type="TruncNormal", layer=["Linear", "Conv2d"], std=0.02, bias=0.0),
                dict(type="Constant", layer="LayerNorm", val=1.0, bias=0.0),
            ]
        out_indices = range(NUM_STAGES) if out_indices is None else out_indices
        super().__init__(NUM_STAGES, out_indices, frozen_stages, norm_eval, init_cfg)
        self.patch_size, self.out_type, self.with_cp = patch_size, out_type, with_cp
        self.patch_embed = PatchEmbedding(in_channels, dim, patch_size, with_cls_token)
        self.ends = tuple(depth * (i + 1) // NUM_STAGES for i in range(NUM_STAGES))
        rates = torch.linspace(0, drop_path_rate, depth).tolist()[: self.ends[self.out_indices[-1]]]
        self.layers = ModuleList(ViTBlock(dim, settings["num_heads"], mlp_ratio, rate) for rate in rates)
        # Only the last stage has a norm behind it, as in MMPretrain's ViT.
        self.ln1 = nn.LayerNorm(dim, eps=1e-6) if NUM_STAGES - 1 in self.out_indices else None
        self.out_channels = (dim,) * len(self.out_indices)
        self.out_strides = (patch_size,) * len(self.out_indices)
        self._register_load_state_dict_pre_hook(self._adapt_state)

    @abstractmethod
    def tokenize(self, x: Tensor) -> MixedTokens:
        """(B, 3, H, W) -> embedded tokens with their positions."""

    def stem_parts(self) -> list[nn.Module]:
        """What comes before the layers, for ``frozen_stages``."""
        return [self.patch_embed]

    def frozen_parts(self, upto: int) -> list[nn.Module]:
        """The stem and stages 0 to ``upto``."""
        last = [self.ln1] if upto == NUM_STAGES - 1 and self.ln1 is not None else []
        return [*self.stem_parts(), *list(self.layers)[: self.ends[upto]], *last]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """(B, 3, H, W) -> one (B, C, ceil(H / s), ceil(W / s)), or (B, C), for each of ``out_indices``."""
        mixed = self.tokenize(x)
        tokens, mask, weight = mixed.tokens, mixed.key_mask, mixed.key_weight
        cls_token = self.patch_embed.cls_token
        prefix = 0 if cls_token is None else 1
        if cls_token is not None:
            tokens = torch.cat([cls_token.to(tokens.dtype).expand(tokens.shape[0], -1, -1), tokens], dim=1)
            mask = None if mask is None else torch.cat([torch.ones_like(mask[:, :1]), mask], dim=1)
            weight = None if weight is None else torch.cat([torch.ones_like(weight[:, :1]), weight], dim=1)
        outputs, start = [], 0
        for stage, end in enumerate(self.ends[: self.out_indices[-1] + 1]):
            for i in range(start, end):  # a slice would build a new module list in every call
                layer, args = self.layers[i], (tokens, mask, weight)
                tokens = checkpoint_module(layer, *args) if self.with_cp else layer(*args)
            start = end
            if stage in self.out_indices:
                y = self.ln1(tokens) if stage == NUM_STAGES - 1 else tokens
                if self.out_type == "cls_token":
                    outputs.append(y[:, 0])
                else:
                    outputs.append(as_output(as_map(mixed.token_map.restore(y[:, prefix:]), mixed.grid)))
        return tuple(outputs)

    def _adapt_state(self, state: dict[str, Tensor], prefix: str, *args: Any) -> None:
        """Keys of MMPretrain's VisionTransformers that have another place here, in place."""
        leading = [state.pop(f"{prefix}{name}", None) for name in ("cls_token", "dist_token")]
        cls_token, positions = leading[0], state.pop(f"{prefix}pos_embed", None)
        if positions is not None:
            first = _count_leading_positions(positions.shape[1], sum(token is not None for token in leading))
            if cls_token is not None and first:
                cls_token = cls_token + positions[:, :1]
            self.adapt_positions(state, prefix, positions[:, first:])
        if cls_token is not None and self.patch_embed.cls_token is not None:
            state[f"{prefix}patch_embed.cls_token"] = cls_token

    def adapt_positions(self, state: dict[str, Tensor], prefix: str, positions: Tensor) -> None:
        """What becomes of a learned table (1, N, C) of positions; by default it is not needed."""

    def fit_official_state(self, state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
        """A plain ViT's state under the names of this backbone, for ``OfficialPretrained``.

        Args:
            state: state dict of the module that is loaded, in MMPretrain's names.
            prefix: of this backbone's keys in it.

        Raises:
            ValueError: the file's ViT computes something that this one does not.
        """
        state, depth, own = dict(state), self.ends[-1], self.state_dict()
        self._adapt_state(state, prefix)
        lacking = []
        for name in (key[len(prefix) :] for key in state if key.startswith(prefix)):
            layer = re.match(r"layers\.(\d+)\.", name)
            not_built = layer is not None and len(self.layers) <= int(layer[1]) < depth
            if name not in own and not not_built and (layer is not None or name.startswith("pre_norm.")):
                lacking.append(name)
        if lacking:
            shown = ", ".join(lacking[:3]) + (", ..." if len(lacking) > 3 else "")
            raise ValueError(
                f"{type(self).__name__} is a plain ViT of {depth} layers, without layer scale and without a norm "
                f"before the first layer; the file has {shown}, which would be lost. Load a ViT, DeiT or MAE of "
                "this arch."
            )
        return state


def _count_leading_positions(count: int, tokens: int) -> int:
    """How many positions of a table are those of its file's leading tokens, before those of a square grid.

    No two of n^2, 1 + n^2 and 2 + n^2 (n >= 1) are the same number.

    Args:
        count: positions in the table.
        tokens: leading tokens (class, distillation) in the file; they need not have positions (DeiT III).

    Raises:
        ValueError: the rest is no square grid.
    """
    if not tokens:
        return 0
    for leading in range(min(tokens + 1, count)):
        if math.isqrt(count - leading) ** 2 == count - leading:
            return leading
    raise ValueError(
        f"pos_embed must hold the positions of a square grid behind those of at most {tokens} leading tokens, got "
        f"{count} positions: load a file of a model for square images"
    )
