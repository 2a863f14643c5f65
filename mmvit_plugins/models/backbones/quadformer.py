"""Quadformer: a ViT whose tokens are the leaves of a quadtree over the image.

Paper: Ronen, Levy, Golbert, "Vision Transformers with Mixed-Resolution Tokenization", CVPRW 2023 (arXiv 2304.00287),
repository TomerRonen34/mixed-resolution-vit. Released were the tokenisation, not the models or their training: the
tokenisation is checked against outputs of the authors' code (tests/goldens), the transformer is a plain ViT.
Ours: images of any size (see ``token_reduction/quadtree.py``), maps for dense prediction, the budget as a share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from torch import Tensor, nn

from mmvit_plugins.registry import MODELS

from ..token_reduction.patch_scorers import resize
from ..token_reduction.quadtree import Quadtree, build_quadtree, pad_to_multiple, resolve_budget
from ..token_reduction.token_map import TokenMap
from .base import resolve_arch
from .mixed_resolution import MixedResolutionViT, MixedTokens, patchify

__all__ = ["ARCHS", "Quadformer", "QuadtreeTokenizer", "sinusoid_positions"]

# The widths of ViT and DeiT; `mini` is ours, for small machines.
ARCHS: dict[str, dict[str, Any]] = {
    "mini": dict(embed_dims=96, depth=8, num_heads=3),
    "tiny": dict(embed_dims=192, depth=12, num_heads=3),
    "small": dict(embed_dims=384, depth=12, num_heads=6),
    "base": dict(embed_dims=768, depth=12, num_heads=12),
    "large": dict(embed_dims=1024, depth=24, num_heads=16),
}
ORIGINS = ("centre", "corner")
RESAMPLE = ("bilinear", "area")


def sinusoid_positions(x: Tensor, y: Tensor, dim: int) -> Tensor:
    """Position encoding of real coordinates (B, N) -> (B, N, dim).

    The first half of the channels encodes x, the second y; of each, the first half are sines, the second cosines, with
    the frequencies exp(-i ln 10000 / (dim / 4 - 1)), i = 0 .. dim / 4 - 1.

    Raises:
        ValueError: ``dim`` is no multiple of 4, or less than 8.
    """
    if dim % 4 or dim < 8:
        raise ValueError(f"sinusoid positions need a multiple of 4 channels, at least 8, got {dim}")
    quarter = dim // 4
    steps = torch.arange(quarter, device=x.device, dtype=torch.float32)
    frequencies = torch.exp(steps * (-torch.log(torch.tensor(10000.0, device=x.device)) / (quarter - 1)))
    angles = [t.unsqueeze(-1) * frequencies for t in (x, y)]
    return torch.cat([part for a in angles for part in (a.sin(), a.cos())], dim=-1)


class QuadtreeTokenizer(BaseModule):
    """An image -> the patches of its quadtree, resized to the smallest size.

    Args:
        min_patch_size: side in pixels of the smallest patches, to which all are resized.
        max_patch_size: side of the roots: the smallest times a power of two. Equal to the smallest: uniform patches.
        num_tokens: L; int: a number, float: a share of the smallest patches. The next legal number below is taken.
        scorer: config of a scorer (``PixelBlurScorer``, ``FeatureScorer``, ``RandomScorer``).
        resample: how patches become small. ``'bilinear'`` (published) has no antialiasing: of a patch four times the
            smallest only the middle 2 x 2 of every 4 x 4 pixels are seen. ``'area'``: the mean of all pixels.

    Raises:
        ValueError: an argument is outside its legal values.
    """

    def __init__(
        self,
        min_patch_size: int,
        max_patch_size: int,
        num_tokens: int | float,
        scorer: Mapping[str, Any],
        resample: str = "bilinear",
    ) -> None:
        super().__init__()
        depth = (max_patch_size // max(min_patch_size, 1)).bit_length() - 1
        if min_patch_size < 1 or min_patch_size * 2**depth != max_patch_size:
            raise ValueError(
                "max_patch_size must be min_patch_size times 1, 2, 4, 8, ..., got "
                f"max_patch_size={max_patch_size} and min_patch_size={min_patch_size}"
            )
        resolve_budget(num_tokens, (1, 1), 0)
        if resample not in RESAMPLE:
            raise ValueError(f"resample must be one of {RESAMPLE}, got {resample!r}")
        self.min_patch_size, self.depth, self.num_tokens, self.resample = min_patch_size, depth, num_tokens, resample
        self.scorer = MODELS.build(dict(scorer)) if depth else None

    @property
    def sizes(self) -> list[int]:
        """Sides of the patches that can be split, from the roots on."""
        return [self.min_patch_size * 2**i for i in range(self.depth, 0, -1)]

    def grid(self, x: Tensor) -> tuple[int, int]:
        """(h, w) of the smallest patches that cover (B, C, H, W)."""
        return -(-int(x.shape[-2]) // self.min_patch_size), -(-int(x.shape[-1]) // self.min_patch_size)

    def quadtree(self, x: Tensor, padded: Tensor) -> Quadtree:
        """(B, C, H, W) and the same padded to whole roots -> the leaves; their cells are the smallest patches."""
        grid = self.grid(x)
        if self.scorer is None:
            count, cells = grid[0] * grid[1], torch.arange(grid[0] * grid[1], device=x.device)
            boxes = torch.stack([cells % grid[1], cells // grid[1], torch.ones_like(cells)], dim=-1)
            like = torch.ones(1, device=x.device)
            return Quadtree(TokenMap.identity(x.shape[0], count, like), boxes.expand(x.shape[0], -1, -1), True)
        scores = self.scorer(padded, self.sizes, self.min_patch_size)
        return build_quadtree(scores, grid, resolve_budget(self.num_tokens, grid, self.depth))

    def forward(self, x: Tensor) -> tuple[Tensor, Quadtree]:
        """(B, C, H, W) -> patches (B, L, C * s^2) for the smallest side s, and the quadtree."""
        smallest = self.min_patch_size
        padded = pad_to_multiple(x, smallest * 2**self.depth)
        tree = self.quadtree(x, padded)
        height, width = int(padded.shape[-2]) // smallest, int(padded.shape[-1]) // smallest
        left, top, size = tree.boxes.unbind(-1)
        patches, place, offset = [], torch.zeros_like(left), 0
        for factor in (2**i for i in range(self.depth + 1)):
            rows, cols = height // factor, width // factor
            if self.resample == "area":
                small = F.avg_pool2d(padded, factor)
            else:
                small = resize(padded, (rows * smallest, cols * smallest))
            patches.append(patchify(small, smallest))
            place = torch.where(size == factor, offset + (top // factor) * cols + left // factor, place)
            offset += rows * cols
        every = torch.cat(patches, dim=1)
        return every.gather(1, place.unsqueeze(-1).expand(-1, -1, every.shape[2])), tree


@MODELS.register_module()
class Quadformer(MixedResolutionViT):
    """Quadformer backbone: a plain ViT over the leaves of a quadtree of patches (CVPRW 2023).

    Input (B, 3, H, W) of any H, W >= 1. All images have the same number of tokens, so a batch needs no padding. Returns
    for each of ``out_indices`` a map (B, C, ceil(H / s), ceil(W / s)) with s = ``min_patch_size``, every leaf painted
    over its cells; or the class tokens.

    Args:
        arch: ``'tiny'``, ``'small'``, ``'base'``, ``'large'`` as ViT, ``'mini'`` is ours; or a mapping with the keys
            embed_dims, depth, num_heads.
        in_channels: channels of the image.
        min_patch_size: side of the smallest patches and stride of the maps.
        max_patch_size: side of the roots, a power of two times the smallest; the same: a ViT on uniform patches.
        num_tokens: budget L without the class token; int: a number, float: a share of the smallest patches. The next
            legal number below is taken, see :func:`legal_budget`.
        scorer: config of the scorer: type ``PixelBlurScorer``, ``FeatureScorer`` (the paper's main one; give it
            ``checkpoint``) or ``RandomScorer``, all in the scope ``mmvit_plugins``.
        resample: see :class:`QuadtreeTokenizer`.
        origin: ``'centre'``: the position of a token is the centre of its patch in units of the smallest (published);
            ``'corner'``: its upper left corner, which for uniform patches is the published baseline.
        mlp_ratio: hidden channels of the MLPs / channels.
        drop_path_rate: rate of the last layer; it grows linearly from 0.
        with_cls_token: have a class token; it has no position.
        out_type: ``'featmap'`` or ``'cls_token'``.
        out_indices: stages (quarters of the depth) whose outputs are returned; None: all.
        frozen_stages: -1: none; k: embedding and stages 0 to k have no gradient and stay in eval mode.
        norm_eval: keep batch norms in eval mode (the scorer's always are).
        with_cp: recompute activations in the backward pass (non-reentrant).
        init_cfg: mmengine's initialisation config.

    Raises:
        ValueError: an argument is outside its legal values.

    Examples:
        >>> import torch
        >>> from mmvit_plugins.models import Quadformer
        >>> model = Quadformer(arch='mini', num_tokens=49, out_indices=(1, 3)).eval()
        >>> with torch.no_grad():
        ...     outputs = model(torch.rand(1, 3, 256, 200))
        >>> [tuple(o.shape) for o in outputs]
        [(1, 96, 16, 13), (1, 96, 16, 13)]
        >>> model.out_channels, model.out_strides
        ((96, 96), (16, 16))
    """

    #: What the grid of :meth:`token_maps` counts, for the titles of pictures.
    reduced_name = "leaves"

    #: What a plain ViT's file does not have: the scorer then starts as without a file.
    optional_weights = r"tokenizer\.scorer\..+"

    def __init__(
        self,
        arch: str | Mapping[str, Any] = "small",
        in_channels: int = 3,
        min_patch_size: int = 16,
        max_patch_size: int = 64,
        num_tokens: int | float = 100,
        scorer: Mapping[str, Any] = dict(type="mmvit_plugins.PixelBlurScorer"),  # noqa: B006
        resample: str = "bilinear",
        origin: str = "centre",
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
        settings = resolve_arch(arch, ARCHS, "Quadformer")
        if origin not in ORIGINS:
            raise ValueError(f"origin must be one of {ORIGINS}, got {origin!r}")
        super().__init__(
            settings,
            in_channels,
            min_patch_size,
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
        self.origin = origin
        self.tokenizer = QuadtreeTokenizer(min_patch_size, max_patch_size, num_tokens, scorer, resample)
        self.freeze()

    def stem_parts(self) -> list[nn.Module]:
        """The embedding and the scorer."""
        return [self.patch_embed, self.tokenizer]

    def tokenize(self, x: Tensor) -> MixedTokens:
        """(B, 3, H, W) -> (B, L, C) tokens in raster order of their corners."""
        patches, tree = self.tokenizer(x)
        tokens = self.patch_embed(patches)
        left, top, size = tree.boxes.unbind(-1)
        offset = size / 2 if self.origin == "centre" else 0
        positions = sinusoid_positions(left + offset, top + offset, self.out_channels[0])
        return MixedTokens(tokens + positions.to(tokens.dtype), tree.token_map, self.tokenizer.grid(x), tree.used())

    @torch.no_grad()
    def token_maps(self, x: Tensor) -> list[tuple[int, TokenMap, tuple[int, int], tuple[int, int]]]:
        """Which leaf covers which cell, for pictures; the same in all stages, so it is given once.

        Args:
            x: (B, 3, H, W) images.

        Returns:
            One entry: stage 0, the map, the grid of the cells and the grid of the roots.
        """
        padded = pad_to_multiple(x, self.tokenizer.min_patch_size * 2**self.tokenizer.depth)
        grid, side = self.tokenizer.grid(x), 2**self.tokenizer.depth
        roots = (-(-grid[0] // side), -(-grid[1] // side))
        return [(self.out_indices[0], self.tokenizer.quadtree(x, padded).token_map, grid, roots)]
