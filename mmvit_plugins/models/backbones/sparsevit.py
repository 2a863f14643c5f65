"""SparseViT: Swin Transformer whose blocks skip the windows with little activation.

Papers: Chen, Liu, Tang, Yi, Zhao, Han, "SparseViT: Revisiting Activation Sparsity for Efficient High-Resolution Vision
Transformer", CVPR 2023 (arXiv 2303.17605), repository mit-han-lab/sparsevit; Liu et al., "Swin Transformer", ICCV 2021
(arXiv 2103.14030). Not the SparseViT of 2025 that locates manipulated images.
Written from the equations and checked against outputs of the authors' code (tests/goldens). It differs from that code
in form: the shift is part of the index by which windows are read and written, so that no map is rolled and pruned
windows are never touched; in inference on a CPU, windows go through a whole block in parts that stay in the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from mmengine.model import BaseModule, ModuleList
from torch import Tensor, nn

from mmvit_plugins.registry import MODELS

from ..layers.memory_format import as_output
from ..layers.swin_block import PADDINGS, PatchEmbed, PatchMerging, SwinBlock, Windows
from ..layers.window_attention import window_grid
from ..token_reduction import TokenMap
from ..token_reduction.window_pruning import rank_windows, token_magnitudes, window_scores, windows_map
from .base import HierarchicalBackbone, resolve_arch
from .sparsevit_ratios import PruningRatios, check_counts, resolve_ratios

__all__ = ["ARCHS", "BlockChoice", "SparseViT"]

# Swin's sizes (its table 7); `mini` is ours.
ARCHS: dict[str, dict[str, Any]] = {
    "mini": dict(dims=(24, 48, 96, 128), depths=(2, 2, 4, 2), heads=(1, 2, 4, 4)),
    "tiny": dict(dims=(96, 192, 384, 768), depths=(2, 2, 6, 2), heads=(3, 6, 12, 24)),
    "small": dict(dims=(96, 192, 384, 768), depths=(2, 2, 18, 2), heads=(3, 6, 12, 24)),
    "base": dict(dims=(128, 256, 512, 1024), depths=(2, 2, 18, 2), heads=(4, 8, 16, 32)),
    "large": dict(dims=(192, 384, 768, 1536), depths=(2, 2, 18, 2), heads=(6, 12, 24, 48)),
}


@dataclass(frozen=True)
class BlockChoice:
    """The windows that one block computed.

    Args:
        scores: (B, rows * cols) importance of each window, from the input of the stage's first pruned block; None if no
            block up to this one was pruned.
        kept: (B, k) long, numbers of the computed windows in the (shifted) partition, the most important first.
        grid: (H, W) of the tokens.
        shift: tokens that the partition is shifted by.
    """

    scores: Tensor | None
    kept: Tensor
    grid: tuple[int, int]
    shift: int


class SparseViTStage(BaseModule):
    """Patch merging (not in the first stage), then blocks with plain and shifted windows in turn.

    Args:
        in_dim: channels of the input, None for the first stage.
        dim: channels C.
        drop_path: rate of every block; its length is the number of blocks.
        window: side of a window in tokens.
        shift_small_maps: see :class:`SparseViT`.
        with_cp: recompute the blocks' activations in the backward pass.
        block: the other arguments of :class:`SwinBlock`.
    """

    def __init__(
        self,
        in_dim: int | None,
        dim: int,
        drop_path: Sequence[float],
        window: int,
        shift_small_maps: bool,
        with_cp: bool,
        block: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.window, self.shift_small_maps, self.with_cp = window, shift_small_maps, with_cp
        self.downsample = None if in_dim is None else PatchMerging(in_dim, dim)
        self.blocks = ModuleList(SwinBlock(dim, window=window, drop_path=rate, **block) for rate in drop_path)

    def forward(self, x: Tensor, ratios: Sequence[float], number: int, record: list | None = None) -> Tensor:
        """(B, H, W, C_in) -> (B, ceil(H / 2), ceil(W / 2), C), or (B, H, W, C) in the first stage.

        Args:
            x: the map; the first stage may write to it.
            ratios: share of windows that each block drops.
            number: of the stage, for messages.
            record: gets a :class:`BlockChoice` for each block.

        Raises:
            ValueError: a block would keep more windows than an earlier one of its parity.
        """
        if self.downsample is not None:
            x = self.downsample(x)
        batch, height, width, dim = x.shape
        grid, shifts = (height, width), self._shifts(height, width)
        rows, cols = window_grid(grid, self.window)
        counts = check_counts(ratios, rows * cols, number)
        tokens = x.reshape(-1, dim)
        if (rows * self.window, cols * self.window) != grid:
            tokens = torch.cat([tokens, tokens.new_zeros(1, dim)])
        scores: list[Tensor | None] = [None, None]
        order = [torch.arange(rows * cols, device=x.device).expand(batch, -1)] * 2
        windows = [Windows.of(order[p], grid, self.window, shifts[p]) for p in range(2)]
        for j, (block, count) in enumerate(zip(self.blocks, counts, strict=True)):
            if count < rows * cols and scores[0] is None:  # once, for both partitions
                sizes = token_magnitudes(tokens[: batch * height * width]).view(batch, height, width)
                scores = [window_scores(sizes, self.window, shift) for shift in shifts]
                order = [rank_windows(s) for s in scores]
                windows = [Windows.of(order[p], grid, self.window, shifts[p]) for p in range(2)]
            if record is not None:
                record.append(BlockChoice(scores[j % 2], order[j % 2][:, :count], grid, shifts[j % 2]))
            # Without a window a block is the identity. With gradients it runs on nothing: DDP waits for them.
            if count or torch.is_grad_enabled():
                tokens = block.run(tokens, windows[j % 2].first(count), self.with_cp)
        return tokens[: batch * height * width].view(batch, height, width, dim)

    def _shifts(self, height: int, width: int) -> tuple[int, int]:
        """Of even and odd blocks."""
        small = min(height, width) <= self.window
        return 0, 0 if small and not self.shift_small_maps else self.window // 2


@MODELS.register_module()
class SparseViT(HierarchicalBackbone):
    """Swin Transformer with window pruning (MIT's SparseViT; CVPR 2023). Without pruning it is Swin.

    Input (B, 3, H, W) of any H, W >= 1. Returns a tuple with one map (B, C_i, ceil(H / s_i), ceil(W / s_i)) for each
    of ``out_indices``, each after a layer norm of its own; strides are 4, 8, 16, 32. The maps are in channels_last
    memory.

    Args:
        arch: ``'tiny'``, ``'small'``, ``'base'``, ``'large'`` as Swin; ``'mini'`` (1 M parameters) is ours, for small
            machines; or a mapping with the keys dims, depths, heads.
        pruning_ratios: share of windows that blocks skip, in [0, 1): one number, or one entry for each stage, which
            may be one number for each of its blocks. Kept are ``int(windows * (1 - ratio))``, those with the largest
            activations at the first pruned block of the stage; see :meth:`set_pruning_ratios`.
        in_channels: channels of the image.
        window_size: side of a window in tokens; position tables of other windows are resized on loading.
        mlp_ratio: hidden channels of the feed-forward networks / channels.
        qkv_bias: bias on the q, k, v projections.
        padding: how maps that are no multiple of the window are padded. ``'after_norm'``: zeros enter attention, as in
            the Swin of MMDetection, MMSegmentation and MMPretrain; ``'before_norm'``: as in SparseViT's code, where
            padding takes part as the bias of the norm. For the authors' detection weights use the latter.
        shift_small_maps: whether odd blocks shift where one window covers the shorter side. True: as in MMDetection,
            MMSegmentation, SparseViT's code and MMPretrain with ``pad_small_map=True``; False: as in MMPretrain's
            default and Microsoft's ImageNet code, whose last stage at 224 pixels is one window.
        drop_path_rate: rate of the last block; it grows linearly from 0. Published for ImageNet: 0.2, 0.3, 0.5 for T,
            S, B.
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
        >>> from mmvit_plugins.models import SparseViT
        >>> model = SparseViT(arch='mini', pruning_ratios=(0.6, 0.5, (0.2, 0.2, 0.4, 0.4), 0)).eval()
        >>> with torch.no_grad():
        ...     outputs = model(torch.rand(1, 3, 130, 220))
        >>> [tuple(o.shape) for o in outputs]
        [(1, 24, 33, 55), (1, 48, 17, 28), (1, 96, 9, 14), (1, 128, 5, 7)]
        >>> model.kept_windows((130, 220))
        [[(16, 40), (16, 40)], [(6, 12), (6, 12)], [(3, 4), (3, 4), (2, 4), (2, 4)], [(1, 1), (1, 1)]]
        >>> model.set_pruning_ratios(0.0)
    """

    optional_weights = r"norm\d\.(?:weight|bias)"  # a classifier's file has that of the last stage only
    reduced_name = "windows"  # what token_maps() groups into, for titles of pictures

    def __init__(
        self,
        arch: str | Mapping[str, Any] = "tiny",
        pruning_ratios: PruningRatios = 0.0,
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
        settings = resolve_arch(arch, ARCHS, "SparseViT")
        dims, depths, heads = settings["dims"], settings["depths"], settings["heads"]
        if not len(dims) == len(depths) == len(heads):
            raise ValueError(f"dims, depths and heads of arch must have one value for each stage, got {settings}")
        if type(window_size) is not int or window_size < 1:
            raise ValueError(f"window_size must be a whole number of tokens, at least 1, got {window_size!r}")
        if padding not in PADDINGS:
            raise ValueError(f"padding must be one of {PADDINGS}, got {padding!r}")
        if not 0 <= drop_path_rate < 1:
            raise ValueError(f"drop_path_rate must be in [0, 1), got {drop_path_rate}")
        if init_cfg is None:
            init_cfg = [
                dict(type="TruncNormal", layer="Linear", std=0.02, bias=0.0),
                dict(type="Constant", layer="LayerNorm", val=1.0, bias=0.0),
            ]
        super().__init__(
            len(dims), range(len(dims)) if out_indices is None else out_indices, frozen_stages, norm_eval, init_cfg
        )
        self.depths, self.window_size = tuple(depths), window_size
        self.set_pruning_ratios(pruning_ratios)
        rates = torch.linspace(0, drop_path_rate, sum(depths), device="cpu").tolist()
        self.patch_embed = PatchEmbed(in_channels, dims[0])
        self.stages = ModuleList()
        # Stages behind the last output are not built, nor norms of maps that are not returned: DDP would wait for them.
        for i in range(self.out_indices[-1] + 1):
            block = dict(num_heads=heads[i], mlp_ratio=mlp_ratio, qkv_bias=qkv_bias, padding=padding)
            drop_path = rates[sum(depths[:i]) : sum(depths[: i + 1])]
            in_dim = dims[i - 1] if i else None
            self.stages.append(
                SparseViTStage(in_dim, dims[i], drop_path, window_size, shift_small_maps, with_cp, block)
            )
            if i in self.out_indices:
                self.add_module(f"norm{i}", nn.LayerNorm(dims[i]))
        self.out_channels = tuple(dims[i] for i in self.out_indices)
        self.out_strides = tuple(4 * 2**i for i in self.out_indices)
        self.freeze()

    def set_pruning_ratios(self, ratios: PruningRatios) -> None:
        """Prune by these ratios from now on, in training and evaluation; forms as the constructor's ``pruning_ratios``.

        Kept counts may not grow within a stage between blocks of one parity, because windows are ranked once. That
        depends on the size of the map: here it is checked for an image of 32 window sizes (224 pixels), in each call
        and by :meth:`kept_windows` for the image's own size.

        Raises:
            ValueError: a ratio outside [0, 1), another count of stages or blocks, or counts that grow.
        """
        resolved = resolve_ratios(ratios, self.depths)
        for i, stage in enumerate(resolved):
            check_counts(stage, max(1, 8 >> i) ** 2, i)
        self.pruning_ratios = resolved
        self.training_ratios: tuple[tuple[float, ...], ...] | None = None

    def set_training_ratios(self, ratios: PruningRatios | None) -> None:
        """Prune by these in train mode only; None: as in evaluation. For sparsity-aware adaptation.

        Raises:
            ValueError: as :meth:`set_pruning_ratios`.
        """
        self.training_ratios = None if ratios is None else resolve_ratios(ratios, self.depths)

    def kept_windows(self, size: tuple[int, int]) -> list[list[tuple[int, int]]]:
        """(computed, all) windows of each block of each stage, for an image of (height, width) pixels.

        Raises:
            ValueError: the counts of a stage grow at this size.
        """
        stages = []
        for i, ratios in enumerate(self.pruning_ratios):
            rows, cols = window_grid((-(-size[0] // (4 << i)), -(-size[1] // (4 << i))), self.window_size)
            stages.append([(count, rows * cols) for count in check_counts(ratios, rows * cols, i)])
        return stages

    def frozen_parts(self, upto: int) -> list[nn.Module]:
        """Patch embedding, stages 0 to ``upto`` and their output norms."""
        norms = [getattr(self, f"norm{i}") for i in self.out_indices if i <= upto]
        return [self.patch_embed, *self.stages[: upto + 1], *norms]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """(B, 3, H, W) -> one (B, C_i, ceil(H / s_i), ceil(W / s_i)) for each of ``out_indices``.

        Raises:
            ValueError: at this size, a block would keep more windows than an earlier one of its parity.
        """
        return self._forward(x, None)

    def _forward(self, x: Tensor, record: list[list[BlockChoice]] | None) -> tuple[Tensor, ...]:
        ratios = self.pruning_ratios if self.training_ratios is None or not self.training else self.training_ratios
        x = self.patch_embed(x)
        outputs = []
        for i, stage in enumerate(self.stages):
            choices = None if record is None else []
            x = stage(x, ratios[i], i, choices)
            if record is not None:
                record.append(choices)
            if i in self.out_indices:
                outputs.append(as_output(getattr(self, f"norm{i}")(x).permute(0, 3, 1, 2)))
        return tuple(outputs)

    @torch.no_grad()
    def window_choices(self, x: Tensor) -> list[list[BlockChoice]]:
        """Which windows each block of each stage computes for images (B, 3, H, W), and by which scores.

        Raises:
            ValueError: as :meth:`forward`.
        """
        choices: list[list[BlockChoice]] = []
        self._forward(x, choices)
        return choices

    def token_maps(self, x: Tensor) -> list[tuple[int, TokenMap, tuple[int, int], tuple[int, int]]]:
        """Which window each token belongs to, in the last block of every stage; weight 0 where it is pruned.

        Args:
            x: (B, 3, H, W) images.

        Returns:
            For each stage: its number, the map, the grid of tokens and the grid of windows.

        Raises:
            RuntimeError: in train mode, where ratios may be random.
        """
        if self.training:
            raise RuntimeError("token_maps() is for pictures: call eval() first, in train mode ratios may be random")
        maps = []
        for i, choices in enumerate(self.window_choices(x)):
            last = choices[-1]
            token_map = windows_map(last.kept, last.grid, self.window_size, last.shift)
            maps.append((i, token_map, last.grid, window_grid(last.grid, self.window_size)))
        return maps
