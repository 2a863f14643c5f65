"""Swin with token merging: equal merging per window, between attention and feed-forward network.

Sources: Bolya et al., "Token Merging", ICLR 2023 (arXiv 2210.09461), section 3, for the matching and its place in the
block; its authors' advice for windowed attention (facebookresearch/ToMe#42): merge the same number in each window; Liu
et al., "Swin Transformer", ICCV 2021 (arXiv 2103.14030). The combination is ours. The next block shifts its windows, so
the tokens are restored behind each block: what the feed-forward network adds to a merged token is added to all of its
members, which keep their own values otherwise. Attention sees all tokens, so position bias and masks are Swin's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from numbers import Integral
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mmvit_plugins.registry import MODELS

from ..layers.memory_format import as_output
from ..layers.swin_block import SwinBlock, Windows
from ..layers.window_attention import window_grid, window_partition, window_unpartition
from ..token_reduction import TokenMap, bipartite_soft_matching
from .sparsevit import ARCHS, SparseViT

__all__ = ["ARCHS", "ToMeSwin", "run_merging_swin_block"]


def run_merging_swin_block(block: SwinBlock, r: int, window: int, shift: int, x: Tensor) -> Tensor:
    """One Swin block in which every window merges r tokens for the feed-forward network.

    Args:
        block: the block.
        r: tokens to merge in each window; windows with padding merge fewer.
        window: side of a window in tokens.
        shift: tokens that the partition is shifted by.
        x: (B, H, W, C).

    Returns:
        (B, H, W, C).
    """
    batch, grid = x.shape[0], (x.shape[1], x.shape[2])
    rows, cols = window_grid(grid, window)
    places = Windows.of(torch.arange(rows * cols, device=x.device).expand(batch, -1), grid, window, shift)
    windows = window_partition(x, window, shift)
    windows = block.attend(windows, block.position_bias(shift), places.kinds, places.real).flatten(0, 1)
    normed = block.norm2(windows)
    token_map = match_windows(normed, r, places.real)
    change = token_map.restore(block.ffn(token_map.reduce(normed)))
    windows = windows + block.drop_path(change.view(batch, -1, *change.shape[1:])).flatten(0, 1)
    return window_unpartition(windows.view(batch, rows * cols, window * window, -1), grid, window, shift)


def match_windows(tokens: Tensor, r: int, real: Tensor | None) -> TokenMap:
    """The map of each window (B * windows, P, C) to P - r tokens; ``real`` (B, windows, P, 1) is False for padding."""
    valid = None if real is None else real.flatten(0, 1).squeeze(-1)
    return bipartite_soft_matching(tokens, r, valid=valid)


@MODELS.register_module()
class ToMeSwin(SparseViT):
    """Swin Transformer whose feed-forward networks work on merged tokens.

    Takes Swin's checkpoints as :class:`SparseViT` does, needs no training, and is Swin where r is 0. Returns a tuple
    with one map (B, C_i, ceil(H / s_i), ceil(W / s_i)) for each of ``out_indices``; strides are 4, 8, 16, 32.

    Args:
        arch: ``'tiny'``, ``'small'``, ``'base'``, ``'large'`` as Swin; ``'mini'`` (1 M parameters) is ours; or a
            mapping with the keys dims, depths, heads.
        r: tokens that each window merges in the blocks of a stage, one entry for each stage or one for all: a whole
            number, or a share of the window below 1 as a float. At most half of the window merges.
        in_channels: channels of the image.
        window_size: side of a window in tokens.
        mlp_ratio: hidden channels of the feed-forward networks / channels.
        qkv_bias: bias on the q, k, v projections.
        padding: see :class:`SparseViT`.
        shift_small_maps: see :class:`SparseViT`.
        drop_path_rate: rate of the last block; it grows linearly from 0.
        out_indices: stages whose maps are returned; None: all.
        frozen_stages: -1: none; k: patch embedding and stages 0 to k, with their output norms, have no gradient and
            stay in eval mode.
        norm_eval: keep batch norms in eval mode; this model has none.
        with_cp: recompute activations in the backward pass (non-reentrant).
        init_cfg: mmengine's initialisation config; default: truncated normal of 0.02 for linear layers.

    Raises:
        ValueError: an argument is outside its legal values.

    Examples:
        >>> import torch
        >>> from mmvit_plugins.models import ToMeSwin
        >>> model = ToMeSwin(arch='mini', r=(0.4, 0.4, 0.25, 0)).eval()
        >>> with torch.no_grad():
        ...     outputs = model(torch.rand(1, 3, 65, 90))
        >>> [tuple(o.shape) for o in outputs]
        [(1, 24, 17, 23), (1, 48, 9, 12), (1, 96, 5, 6), (1, 128, 3, 3)]
        >>> model.merged_per_window
        (19, 19, 12, 0)
    """

    reduced_name = "merged tokens (windows x each)"

    def __init__(
        self,
        arch: str | Mapping[str, Any] = "tiny",
        r: int | float | Sequence[int | float] = 0.4,
        in_channels: int = 3,
        window_size: int = 7,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        padding: str = "after_norm",
        shift_small_maps: bool = True,
        drop_path_rate: float = 0.0,
        out_indices: int | Sequence[int] | None = None,
        frozen_stages: int = -1,
        norm_eval: bool = False,
        with_cp: bool = False,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        super().__init__(
            arch,
            0.0,
            in_channels,
            window_size,
            mlp_ratio,
            qkv_bias,
            padding,
            shift_small_maps,
            drop_path_rate,
            out_indices,
            frozen_stages,
            norm_eval,
            with_cp,
            init_cfg,
        )
        self.with_cp = with_cp
        self.merged_per_window = self._per_window(r, len(self.depths), window_size)

    @staticmethod
    def _per_window(r: int | float | Sequence[int | float], stages: int, window: int) -> tuple[int, ...]:
        values = list(r) if isinstance(r, Sequence) else [r] * stages
        places = window * window
        for value in values:
            whole = isinstance(value, Integral) and not isinstance(value, bool)
            if not (whole or isinstance(value, float)) or value < 0 or (not whole and value >= 1):
                raise ValueError(f"r must be a whole number >= 0 or a share in [0, 1) for each stage, got {r!r}")
        if len(values) != stages:
            raise ValueError(f"r must have one entry for each of {stages} stages, got {r!r}")
        return tuple(min(int(v * places) if isinstance(v, float) else int(v), places // 2) for v in values)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """(B, 3, H, W) -> one (B, C_i, ceil(H / s_i), ceil(W / s_i)) for each of ``out_indices``."""
        if not any(self.merged_per_window[: len(self.stages)]):
            return super().forward(x)
        x = self.patch_embed(x)
        outputs = []
        for i, (stage, r) in enumerate(zip(self.stages, self.merged_per_window, strict=False)):
            if r == 0:
                x = stage(x, (0.0,) * self.depths[i], i)
            else:
                x = x if stage.downsample is None else stage.downsample(x)
                shifts = stage._shifts(x.shape[1], x.shape[2])
                for j, block in enumerate(stage.blocks):
                    run = partial(run_merging_swin_block, block, r, self.window_size, shifts[j % 2])
                    saves = self.with_cp and torch.is_grad_enabled()
                    x = checkpoint(run, x, use_reentrant=False) if saves else run(x)
            if i in self.out_indices:
                outputs.append(as_output(getattr(self, f"norm{i}")(x).permute(0, 3, 1, 2)))
        return tuple(outputs)

    @torch.no_grad()
    def token_maps(self, x: Tensor) -> list[tuple[int, TokenMap, tuple[int, int], tuple[int, int]]]:
        """What merged in the first block of every stage, whose windows are not shifted.

        Args:
            x: (B, 3, H, W) images.

        Returns:
            For each stage that merges: its number, the map, the grid of tokens, and (windows, tokens of each).

        Raises:
            RuntimeError: in train mode.
        """
        from ..token_reduction.window_tome import join_windows

        if self.training:
            raise RuntimeError("token_maps() is for pictures: call eval() first, or paths would be dropped")
        maps, x = [], self.patch_embed(x)
        for i, (stage, r) in enumerate(zip(self.stages, self.merged_per_window, strict=False)):
            x = x if stage.downsample is None else stage.downsample(x)
            grid, window, shifts = (x.shape[1], x.shape[2]), self.window_size, stage._shifts(x.shape[1], x.shape[2])
            rows, cols = window_grid(grid, window)
            if r:
                places = Windows.of(torch.arange(rows * cols, device=x.device).expand(len(x), -1), grid, window, 0)
                bias, block = stage.blocks[0].position_bias(0), stage.blocks[0]
                tokens = block.attend(window_partition(x, window), bias, places.kinds, places.real).flatten(0, 1)
                local = match_windows(block.norm2(tokens), r, places.real)
                maps.append((i, join_windows(local, grid, (window, window)), grid, (rows * cols, local.num)))
            for j, block in enumerate(stage.blocks):
                x = run_merging_swin_block(block, r, window, shifts[j % 2], x)
        return maps
