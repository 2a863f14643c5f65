"""MSViT: a ViT with coarse tokens where a small gate finds nothing fine to see.

Paper: Havtorn, Royer, Blankevoort, Ehteshami Bejnordi, "MSViT: Dynamic Mixed-Scale Tokenization for Vision
Transformers", ICCV 2023 workshops (arXiv 2307.02321). The authors released their loss only, no model and no weights;
docs/msvit.md says of each choice whether it is the paper's or ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from mmengine.model.weight_init import trunc_normal_
from torch import Tensor, nn

from mmvit_plugins.registry import MODELS

from ..losses.backbone_losses import is_collecting, report_losses
from ..token_reduction.mixed_scale import MixedScales
from ..token_reduction.patch_scorers import resize
from ..token_reduction.quadtree import pad_to_multiple
from ..token_reduction.token_map import TokenMap
from .base import resolve_arch
from .mixed_resolution import MixedResolutionViT, MixedTokens, patchify
from .quadformer import ARCHS as VIT_ARCHS

__all__ = ["ARCHS", "MSViT", "PositionTable"]

#: The widths of ViT and DeiT; `mini` is ours.
ARCHS: dict[str, dict[str, Any]] = VIT_ARCHS
TRIMS = (None, "max", "mean")


class PositionTable(BaseModule):
    """Learned positions of a grid of cells, resized to any grid.

    Args:
        grid: (h, w) of the table.
        dim: channels.
    """

    def __init__(self, grid: tuple[int, int], dim: int) -> None:
        super().__init__()
        self.grid = grid
        self.table = nn.Parameter(torch.zeros(1, grid[0] * grid[1], dim))

    def init_weights(self) -> None:
        """As MMPretrain's ViT."""
        super().init_weights()
        trunc_normal_(self.table, std=0.02)

    def resized(self, table: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
        """(1, h * w, C) -> (1, C, *new), bicubic, in at least float32."""
        maps = table.transpose(1, 2).unflatten(2, old)
        if old == new:
            return maps.clone()  # a view of a parameter requires grad even under no_grad: FLOP counters stumble over it
        wide = maps.to(torch.promote_types(maps.dtype, torch.float32))
        return F.interpolate(wide, size=new, mode="bicubic", align_corners=False).to(maps.dtype)

    def forward(self, grid: tuple[int, int]) -> Tensor:
        """(1, C, *grid)."""
        return self.resized(self.table, self.grid, grid)


@MODELS.register_module()
class MSViT(MixedResolutionViT):
    """MSViT backbone: a plain ViT on tokens of two scales that a gate chooses (ICCV 2023 workshops).

    Input (B, 3, H, W) of any H, W >= 1. Returns for each of ``out_indices`` a map (B, C, ceil(H / s), ceil(W / s)) with
    s = ``patch_size``, a coarse token painted over its cells; or the class tokens. While training all tokens of both
    scales are computed and those not chosen are masked in the attention, so that the gate has a gradient for both
    choices. In eval mode only the chosen ones are computed; in a batch all images have as many as the fullest, the rest
    masked. (Exported and compiled graphs keep the masked form, whose shapes are fixed.)

    The gate's loss needs a model that collects it: ``mmvit_plugins.BackboneLossClassifier`` in the place of
    ``ImageClassifier`` or ``mmvit_plugins.BackboneLossEncoderDecoder`` in the place of ``EncoderDecoder``.

    Args:
        arch: ``'tiny'``, ``'small'``, ``'base'``, ``'large'`` as ViT and DeiT, ``'mini'`` is ours; or a mapping with
            the keys embed_dims, depth, num_heads.
        in_channels: channels of the image.
        img_size: side in pixels of the images that the table of positions is made for; other sizes resize it.
        patch_size: side of the fine patches and stride of the maps.
        ratio: side of a coarse patch / side of a fine one.
        gate: config of the gate: type ``PatchGate``, ``RandomGate`` or ``FixedGate``, in the scope ``mmvit_plugins``.
        gate_loss: config of the gate's loss, type ``BatchShapingLoss``; None: the gate learns from the task alone.
        train_trim: ``'max'``: in training too, compute only as many tokens as the fullest image has chosen;
            ``'mean'``: as many as the mean over the batch, fuller images lose their least certain tokens (the paper's
            adaptive trimming, after a burn-in: see ``TokenTrimmingHook``); None: all.
        mlp_ratio: hidden channels of the MLPs / channels.
        drop_path_rate: rate of the last layer; it grows linearly from 0.
        with_cls_token: have a class token; the table holds no position for it.
        out_type: ``'featmap'`` or ``'cls_token'``.
        out_indices: stages (quarters of the depth) whose outputs are returned; None: all.
        frozen_stages: -1: none; k: gate, embedding and stages 0 to k have no gradient and stay in eval mode.
        norm_eval: keep batch norms in eval mode (there are none).
        with_cp: recompute activations in the backward pass (non-reentrant).
        init_cfg: mmengine's initialisation config.

    Raises:
        ValueError: an argument is outside its legal values.

    Examples:
        >>> import torch
        >>> from mmvit_plugins.models import MSViT
        >>> model = MSViT(arch='mini', out_indices=(1, 3)).eval()
        >>> with torch.no_grad():
        ...     outputs = model(torch.rand(1, 3, 224, 200))
        >>> [tuple(o.shape) for o in outputs]
        [(1, 96, 14, 13), (1, 96, 14, 13)]
        >>> model.out_channels, model.out_strides
        ((96, 96), (16, 16))
    """

    #: What a plain ViT's file does not have: the gate and its loss then start as without a file.
    optional_weights = r"(?:gate|gate_loss)\..+"

    #: What the grid of :meth:`token_maps` counts, for the titles of pictures.
    reduced_name = "coarse and fine tokens"

    def __init__(
        self,
        arch: str | Mapping[str, Any] = "small",
        in_channels: int = 3,
        img_size: int = 224,
        patch_size: int = 16,
        ratio: int = 2,
        gate: Mapping[str, Any] = dict(type="mmvit_plugins.PatchGate"),  # noqa: B006
        gate_loss: Mapping[str, Any] | None = None,
        train_trim: str | None = None,
        mlp_ratio: float = 4.0,
        drop_path_rate: float = 0.0,
        with_cls_token: bool = True,
        out_type: str = "featmap",
        out_indices: int | Sequence[int] | None = None,
        frozen_stages: int = -1,
        norm_eval: bool = False,
        with_cp: bool = False,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        settings = resolve_arch(arch, ARCHS, "MSViT")
        if type(ratio) is not int or ratio < 2:
            raise ValueError(f"ratio must be a whole number of at least 2, got {ratio!r}")
        super().__init__(
            settings,
            in_channels,
            patch_size,
            mlp_ratio,
            drop_path_rate,
            with_cls_token,
            out_type,
            out_indices,
            frozen_stages,
            norm_eval,
            with_cp,
            init_cfg,
        )
        self.ratio = ratio
        self.set_train_trim(train_trim)
        cells = -(-img_size // patch_size)
        self.positions = PositionTable((cells, cells), settings["embed_dims"])
        pixels = in_channels * (patch_size * ratio) ** 2
        self.gate = MODELS.build(dict(gate, in_features=pixels, channels=in_channels))
        self.gate_loss = None if gate_loss is None else MODELS.build(dict(gate_loss))
        self.freeze()

    def set_train_trim(self, trim: str | None) -> None:
        """Change ``train_trim``.

        Raises:
            ValueError: no legal value, or ``'mean'`` for maps, where a lost token would leave a hole.
        """
        if trim not in TRIMS or (trim == "mean" and self.out_type == "featmap"):
            raise ValueError(f"train_trim must be one of {TRIMS} ('mean' with class tokens only), got {trim!r}")
        self.train_trim = trim

    def stem_parts(self) -> list[nn.Module]:
        """Embedding, positions, gate and its loss."""
        return [self.patch_embed, self.positions, self.gate, *([] if self.gate_loss is None else [self.gate_loss])]

    def tokenize(self, x: Tensor) -> MixedTokens:
        """(B, 3, H, W) -> tokens of both scales with their positions, as far as they are needed."""
        grid = -(-int(x.shape[-2]) // self.patch_size), -(-int(x.shape[-1]) // self.patch_size)
        padded = pad_to_multiple(x, self.patch_size * self.ratio)
        scales, soft = self._decide(padded, grid)
        height, width = scales.padded_grid
        small = resize(padded, (height // self.ratio * self.patch_size, width // self.ratio * self.patch_size))
        patches = torch.cat([patchify(padded, self.patch_size), patchify(small, self.patch_size)], dim=1)
        positions = self._positions(scales).expand(x.shape[0], -1, -1)
        used = scales.values(scales.coarse)
        fixed = torch.jit.is_tracing() or torch.compiler.is_compiling()
        training = self.training and used.requires_grad
        if fixed or (training and self.train_trim is None):
            tokens = self.patch_embed(patches) + positions
            mask = None if training else used > 0.5
            return MixedTokens(tokens, scales.whole_map(), grid, mask, used if training else None)
        order = self._order(scales.values(soft), used, trim=self.train_trim if training else "max")
        patches, positions = (t.gather(1, order.unsqueeze(-1).expand(-1, -1, t.shape[2])) for t in (patches, positions))
        tokens, used = self.patch_embed(patches) + positions, used.gather(1, order)
        if training:
            return MixedTokens(tokens, scales.kept_map(order), grid, None, used)
        full = bool((used > 0.5).all())
        return MixedTokens(tokens, scales.kept_map(order), grid, None if full else used > 0.5)

    def _decide(self, padded: Tensor, grid: tuple[int, int]) -> tuple[MixedScales, Tensor]:
        """The gate's decisions and (B, M) values for the image in whole coarse patches; reports the gate's loss."""
        coarse_grid = -(-grid[0] // self.ratio), -(-grid[1] // self.ratio)
        soft, coarse = self.gate(patchify(padded, self.patch_size * self.ratio), coarse_grid)
        if self.training and self.gate_loss is not None and torch.is_grad_enabled():
            if not is_collecting():
                raise RuntimeError(
                    "MSViT with a gate_loss was trained by a model that does not collect it, so its gate would not "
                    "learn the target share. Use type='mmvit_plugins.BackboneLossClassifier' in the place of "
                    "ImageClassifier, type='mmvit_plugins.BackboneLossEncoderDecoder' in the place of EncoderDecoder, "
                    "or gate_loss=None."
                )
            report_losses(self.gate_loss(soft, coarse_grid))
            report_losses(dict(coarse_share=coarse.detach().mean()))
        if not self.training:
            coarse = coarse.detach()
        return MixedScales(coarse, grid, self.ratio), soft.detach()

    def _positions(self, scales: MixedScales) -> Tensor:
        """(1, fine + coarse, C): the table for the fine cells, and its mean over each coarse patch."""
        fine = pad_to_multiple(self.positions(scales.grid), self.ratio)
        coarse = F.avg_pool2d(fine, self.ratio)
        return torch.cat([fine.flatten(2), coarse.flatten(2)], dim=2).transpose(1, 2)

    @staticmethod
    def _order(values: Tensor, used: Tensor, trim: str | None) -> Tensor:
        """(B, L) tokens to be kept, those in use first.

        Args:
            values: (B, M) how certain the gate is of each token.
            used: (B, M), 1 for the tokens in use.
            trim: ``'max'``: L is the largest number in use; ``'mean'``: the mean, the least certain are lost.
        """
        chosen = used > 0.5
        count = chosen.sum(dim=1)
        if trim == "mean":
            kept = -(-int(count.sum()) // count.numel())
            return torch.where(chosen, values + 1, values).argsort(dim=1, descending=True)[:, :kept]
        return torch.sort((~chosen).to(torch.uint8), dim=1, stable=True).indices[:, : int(count.max())]

    def adapt_positions(self, state: dict[str, Tensor], prefix: str, positions: Tensor) -> None:
        """A plain ViT's table, resized to ours.

        Raises:
            ValueError: it is of no square grid.
        """
        side = math.isqrt(positions.shape[1])
        if side**2 != positions.shape[1]:
            raise ValueError(
                f"pos_embed must be of a square grid, got {positions.shape[1]} positions of patches: load a file of a "
                "model for square images"
            )
        table = self.positions.resized(positions, (side, side), self.positions.grid)
        state[f"{prefix}positions.table"] = table.flatten(2).transpose(1, 2)

    @torch.no_grad()
    def token_maps(self, x: Tensor) -> list[tuple[int, TokenMap, tuple[int, int], tuple[int, int]]]:
        """Which token covers which cell, for pictures; the same in all stages, so it is given once.

        Args:
            x: (B, 3, H, W) images.

        Returns:
            One entry: stage, the map, the grid of the cells and the grid of the coarse patches.
        """
        if self.training:
            raise RuntimeError("token_maps() is for pictures: call eval() first, or the gate would draw noise")
        grid = -(-int(x.shape[-2]) // self.patch_size), -(-int(x.shape[-1]) // self.patch_size)
        scales, _ = self._decide(pad_to_multiple(x, self.patch_size * self.ratio), grid)
        return [(self.out_indices[0], scales.whole_map(), grid, scales.coarse_grid)]
