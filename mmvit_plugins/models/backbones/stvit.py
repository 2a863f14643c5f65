"""STViT, the vision transformer with super token sampling.

Paper: Huang, Zhou, Cao, He, Tan, "Vision Transformer with Super Token Sampling", CVPR 2023 (arXiv 2211.11167),
repository hhb072/STViT. Not changsn's STViT-R (semantic tokens), another paper of the same conference.
Written from the equations and checked against outputs of the authors' code (tests/goldens). It differs from that code
in form, not in result: tokens and maps share channels_last memory, attention is fused, the nine one-hot convolutions
that gather neighbours are slices, and skips are folded into depthwise kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from mmcv.cnn import build_norm_layer
from mmcv.cnn.bricks import DropPath
from mmengine.model import BaseModule, ModuleList
from torch import Tensor, nn

from mmvit_plugins.registry import MODELS

from ..layers import ConvFFN, ResidualDepthwiseConv, SelfAttention, as_map, as_output, as_tokens, checkpoint_module
from ..token_reduction import SuperTokens, TokenMap
from .base import HierarchicalBackbone, resolve_arch

__all__ = ["ARCHS", "STViT", "STViTBlock", "SuperTokenAttention"]

# Table 1 of the paper; layer scale and drop path from the authors' repository. `tiny` and `mini` are ours.
ARCHS: dict[str, dict[str, Any]] = {
    "mini": dict(
        dims=(24, 48, 96, 128), depths=(1, 2, 3, 2), heads=(1, 2, 3, 4), cells=(8, 4, 1, 1), layer_scale=(0, 0, 0, 0)
    ),
    "tiny": dict(
        dims=(32, 64, 160, 256), depths=(2, 3, 7, 3), heads=(1, 2, 5, 8), cells=(8, 4, 1, 1), layer_scale=(0, 0, 0, 0)
    ),
    "small": dict(
        dims=(64, 128, 320, 512), depths=(3, 5, 9, 3), heads=(1, 2, 5, 8), cells=(8, 4, 1, 1), layer_scale=(0, 0, 0, 0)
    ),
    "base": dict(
        dims=(96, 192, 384, 512),
        depths=(4, 6, 14, 6),
        heads=(2, 3, 6, 8),
        cells=(8, 4, 1, 1),
        layer_scale=(0, 0, 1e-6, 1e-6),
    ),
    "large": dict(
        dims=(96, 192, 448, 640),
        depths=(4, 7, 19, 8),
        heads=(2, 3, 7, 10),
        cells=(8, 4, 1, 1),
        layer_scale=(0, 0, 1e-6, 1e-6),
    ),
}


class SuperTokenAttention(BaseModule):
    """STA (section 3.2): sample super tokens, attend among them, map them back to the tokens.

    With a cell of 1 x 1 token it is plain attention among all tokens.

    Args:
        dim: channels C.
        num_heads: heads.
        cell: side of a super token's cell, in tokens, or (h, w).
        n_iter: association steps.
        border: border rule of :class:`SuperTokens`.
    """

    def __init__(
        self, dim: int, num_heads: int, cell: int | tuple[int, int], n_iter: int = 1, border: str = "published"
    ) -> None:
        super().__init__()
        sampler = SuperTokens(cell, n_iter, border)
        self.sampler = sampler if max(sampler.cell) > 1 else None
        self.attn = SelfAttention(dim, num_heads)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """(B, H * W, C) on grid (H, W) -> (B, H * W, C).

        Raises:
            ValueError: ``grid`` is None or does not fit ``x`` (with super tokens).
        """
        if self.sampler is None:
            return self.attn(x)
        super_tokens, token_map = self.sampler.reduce(x, grid)
        return self.sampler.restore(self.attn(super_tokens), token_map)


class STViTBlock(BaseModule):
    """X <- CPE(X); X <- X + STA(LN X); X <- X + ConvFFN(BN X) (section 3.1).

    Args:
        dim: channels C.
        num_heads: heads.
        cell: side of a super token's cell in tokens.
        mlp_ratio: hidden channels of the feed-forward network / C.
        drop_path: rate of both branches.
        layer_scale: initial value of a learned scale per channel on both branches; 0: none.
        n_iter: association steps.
        border: border rule of :class:`SuperTokens`.
        norm_cfg: norm before the feed-forward network.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        cell: int | tuple[int, int],
        mlp_ratio: float,
        drop_path: float,
        layer_scale: float,
        n_iter: int,
        border: str,
        norm_cfg: dict,
    ) -> None:
        super().__init__()
        self.pos_embed = ResidualDepthwiseConv(dim)
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = SuperTokenAttention(dim, num_heads, cell, n_iter, border)
        self.ffn = ConvFFN(dim, mlp_ratio, norm_cfg)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        self.gamma1 = nn.Parameter(torch.full((dim,), float(layer_scale))) if layer_scale else None
        self.gamma2 = nn.Parameter(torch.full((dim,), float(layer_scale))) if layer_scale else None

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W), channels_last."""
        grid = (x.shape[2], x.shape[3])
        x = as_tokens(self.pos_embed(x))
        x = self._add(x, self.attn(self.norm1(x), grid), self.gamma1)
        x = self._add(x, self.ffn(x, grid), self.gamma2)
        return as_map(x, grid)

    def _add(self, x: Tensor, branch: Tensor, gamma: Tensor | None) -> Tensor:
        branch = self.drop_path(branch)
        return x + branch if gamma is None else torch.addcmul(x, branch, gamma.to(branch.dtype))


class STViTStage(BaseModule):
    """A 3x3 stride-2 convolution with batch norm (not in the first stage), then blocks.

    Args:
        in_dim: channels of the input, None for the first stage.
        dim: channels C.
        drop_path: rate of every block; its length is the number of blocks.
        with_cp: recompute the blocks' activations in the backward pass.
        norm_cfg: config of the batch norms.
        block: the other arguments of :class:`STViTBlock`.
    """

    def __init__(
        self,
        in_dim: int | None,
        dim: int,
        drop_path: Sequence[float],
        with_cp: bool,
        norm_cfg: dict,
        block: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.with_cp = with_cp
        self.downsample = None
        if in_dim is not None:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_dim, dim, 3, stride=2, padding=1), build_norm_layer(norm_cfg, dim)[1]
            )
        self.blocks = ModuleList(STViTBlock(dim, drop_path=rate, norm_cfg=norm_cfg, **block) for rate in drop_path)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C_in, H, W) -> (B, C, ceil(H / 2), ceil(W / 2)), or (B, C, H, W) in the first stage."""
        if self.downsample is not None:
            x = self.downsample(x)
        for block in self.blocks:
            x = checkpoint_module(block, x) if self.with_cp else block(x)
        return x


class STViTStem(nn.Sequential):
    """Four 3x3 convolutions, strides 2, 1, 2, 1, each followed by GELU and then batch norm; (B, 3, H, W) -> stride 4.

    Args:
        in_channels: channels of the image.
        dim: channels of the first stage; the first two convolutions have half.
        norm_cfg: config of the batch norms.
    """

    def __init__(self, in_channels: int, dim: int, norm_cfg: dict) -> None:
        layers: list[nn.Module] = []
        widths = (in_channels, dim // 2, dim // 2, dim, dim)
        for i, stride in enumerate((2, 1, 2, 1)):
            layers.append(nn.Conv2d(widths[i], widths[i + 1], 3, stride=stride, padding=1))
            layers += [nn.GELU(), build_norm_layer(norm_cfg, widths[i + 1])[1]]
        super().__init__(*layers)


@MODELS.register_module()
class STViT(HierarchicalBackbone):
    """STViT backbone (hhb072's super tokens; CVPR 2023).

    Input (B, 3, H, W) of any H, W >= 1. Returns a tuple with one map (B, C_i, ceil(H / s_i), ceil(W / s_i)) for each
    of ``out_indices``; strides are 4, 8, 16, 32. The maps are in channels_last memory.

    Args:
        arch: ``'small'``, ``'base'``, ``'large'`` as published; ``'tiny'`` (5 M parameters) and ``'mini'`` (1 M) are
            ours, for small machines; or a mapping with the keys dims, depths, heads, cells, layer_scale (one entry for
            each stage; cells are the sides of a super token in tokens, 1 = plain attention).
        in_channels: channels of the image.
        mlp_ratio: hidden channels of the feed-forward networks / channels.
        n_iter: association steps of the super tokens, one number or one for each stage.
        border: ``'published'`` (needed for the authors' weights) or ``'masked'``; see :class:`SuperTokens`.
        drop_path_rate: rate of the last block; it grows linearly from 0. Published: 0.1, 0.4, 0.6 for S, B, L.
        norm_cfg: config of the batch norms.
        out_indices: stages whose maps are returned; None: all.
        frozen_stages: -1: none; k: stem and stages 0 to k have no gradient and stay in eval mode.
        norm_eval: keep batch norms in eval mode (the authors do in 384 px fine-tuning).
        with_cp: recompute activations in the backward pass (non-reentrant).
        init_cfg: mmengine's initialisation config; default: truncated normal of 0.02 for linear layers.

    Raises:
        ValueError: an argument is outside its legal values.

    Examples:
        >>> import torch
        >>> from mmvit_plugins.models import STViT
        >>> model = STViT(arch='mini').eval()
        >>> with torch.no_grad():
        ...     outputs = model(torch.rand(1, 3, 65, 90))
        >>> [tuple(o.shape) for o in outputs]
        [(1, 24, 17, 23), (1, 48, 9, 12), (1, 96, 5, 6), (1, 128, 3, 3)]
        >>> model.out_channels, model.out_strides
        ((24, 48, 96, 128), (4, 8, 16, 32))
    """

    def __init__(
        self,
        arch: str | Mapping[str, Any] = "small",
        in_channels: int = 3,
        mlp_ratio: float = 4.0,
        n_iter: int | Sequence[int] = 1,
        border: str = "published",
        drop_path_rate: float = 0.0,
        norm_cfg: Mapping[str, Any] = dict(type="BN"),  # noqa: B006
        out_indices: int | Sequence[int] | None = None,
        frozen_stages: int = -1,
        norm_eval: bool = False,
        with_cp: bool = False,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        settings = resolve_arch(arch, ARCHS, "STViT")
        num_stages = len(settings["dims"])
        if any(not isinstance(values, Sequence) or len(values) != num_stages for values in settings.values()):
            raise ValueError(f"every entry of arch must have one value for each of {num_stages} stages, got {settings}")
        if out_indices is None:
            out_indices = range(num_stages)
        steps = list(n_iter) if isinstance(n_iter, Sequence) else [n_iter] * num_stages
        if len(steps) != num_stages:
            raise ValueError(f"n_iter must be one number or one for each of {num_stages} stages, got {n_iter}")
        if not 0 <= drop_path_rate < 1:
            raise ValueError(f"drop_path_rate must be in [0, 1), got {drop_path_rate}")
        if init_cfg is None:
            init_cfg = [
                dict(type="TruncNormal", layer="Linear", std=0.02, bias=0.0),
                dict(type="Constant", layer=["LayerNorm", "_BatchNorm"], val=1.0, bias=0.0),
            ]
        super().__init__(num_stages, out_indices, frozen_stages, norm_eval, init_cfg)
        dims, depths = settings["dims"], settings["depths"]
        rates = torch.linspace(0, drop_path_rate, sum(depths)).tolist()
        norm_cfg = dict(norm_cfg)
        self.stem = STViTStem(in_channels, dims[0], norm_cfg)
        self.stages = ModuleList()
        # Stages behind the last output are not built: DDP would wait for their gradients.
        for i in range(self.out_indices[-1] + 1):
            block = dict(num_heads=settings["heads"][i], cell=settings["cells"][i], mlp_ratio=mlp_ratio)
            block.update(layer_scale=settings["layer_scale"][i], n_iter=steps[i], border=border)
            drop_path = rates[sum(depths[:i]) : sum(depths[: i + 1])]
            in_dim = dims[i - 1] if i else None
            self.stages.append(STViTStage(in_dim, dims[i], drop_path, with_cp, norm_cfg, block))
        self.out_channels = tuple(dims[i] for i in self.out_indices)
        self.out_strides = tuple(4 * 2**i for i in self.out_indices)
        self.freeze()

    def frozen_parts(self, upto: int) -> list[nn.Module]:
        """The stem and stages 0 to ``upto``."""
        return [self.stem, *self.stages[: upto + 1]]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """(B, 3, H, W) -> one (B, C_i, ceil(H / s_i), ceil(W / s_i)) for each of ``out_indices``."""
        x = self.stem(x.contiguous(memory_format=torch.channels_last))
        outputs = []
        for i, stage in enumerate(self.stages):
            x = stage(x)
            if i in self.out_indices:
                outputs.append(as_output(x))
        return tuple(outputs)

    @torch.no_grad()
    def token_maps(self, x: Tensor) -> list[tuple[int, TokenMap, tuple[int, int], tuple[int, int]]]:
        """Who belongs to which super token, in the last block of every stage that has super tokens.

        Args:
            x: (B, 3, H, W) images.

        Returns:
            For each such stage: its number, the map, the grid of tokens and the grid of super tokens.
        """
        if self.training:
            raise RuntimeError("token_maps() is for pictures: call eval() first, or batch norms would learn from them")
        maps = []
        x = self.stem(x.contiguous(memory_format=torch.channels_last))
        for i, stage in enumerate(self.stages):
            if stage.downsample is not None:
                x = stage.downsample(x)
            for block in stage.blocks[:-1]:
                x = block(x)
            last, grid = stage.blocks[-1], (x.shape[2], x.shape[3])
            if last.attn.sampler is not None:
                tokens = last.norm1(as_tokens(last.pos_embed(x)))
                token_map = last.attn.sampler.associate(tokens, grid)
                maps.append((i, token_map, grid, token_map.cells))
            x = last(x)
        return maps
