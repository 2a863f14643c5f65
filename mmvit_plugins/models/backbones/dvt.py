"""DVT, a cascade of vision transformers with more and more tokens.

Wang, Huang, Song, Huang, Huang, *Not All Images are Worth 16x16 Words*, NeurIPS 2021, arXiv 2105.15075. Written from
the paper's equations; what the published weights need beyond the paper is marked "published".

Each exit is a ViT of its own (DeiT or T2T-ViT). A later one takes over from the one before it its last tokens (feature
reuse, sec. 3.2) and its attention scores (relation reuse). The classifier ``mmvit_plugins.DVTClassifier`` stops after
the first exit that is sure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from mmcv.cnn.bricks import DropPath
from mmengine.model import BaseModule
from torch import Tensor, nn

from mmvit_plugins.models.layers.cascade_reuse import FeatureReuse, Grid, RelationReuse
from mmvit_plugins.models.layers.checkpointing import checkpoint_module
from mmvit_plugins.models.layers.soft_split import SoftSplit, pad_to_kernel, soft_split_geometry
from mmvit_plugins.registry import MODELS

from .base import resolve_arch

__all__ = ["ARCHS", "DVT", "ExitState", "ExitTransformer", "patch_geometry"]

# embed: how pixels become tokens, 'patch' (DeiT) or a soft split with 'performer' or 'transformer' layers (T2T-ViT).
ARCHS: dict[str, dict[str, Any]] = {
    "deit_small": dict(embed="patch", dim=384, depth=12, num_heads=6, mlp_ratio=4.0, qkv_bias=True, eps=1e-6),
    "t2t_vit_12": dict(embed="performer", dim=256, depth=12, num_heads=4, mlp_ratio=2.0, qkv_bias=False, eps=1e-5),
    "t2t_vit_14": dict(embed="performer", dim=384, depth=14, num_heads=6, mlp_ratio=3.0, qkv_bias=False, eps=1e-5),
    # Ours, for small pictures.
    "mini": dict(embed="patch", dim=64, depth=3, num_heads=2, mlp_ratio=2.0, qkv_bias=True, eps=1e-6),
    "t2t_mini": dict(embed="performer", dim=64, depth=3, num_heads=2, mlp_ratio=2.0, qkv_bias=False, eps=1e-5),
}


class ExitState(NamedTuple):
    """What one exit leaves to the next; a part that nobody reuses is None.

    ``features`` (B, 1 + h w, C): last tokens before the norm. ``relation`` (B, L H, 1 + h w, 1 + h w): attention scores
    before the softmax, of all blocks, including what was added to them. ``grid``: (h, w).
    """

    features: Tensor | None
    relation: Tensor | None
    grid: Grid

    def select(self, index: Tensor) -> ExitState:
        """The same for some samples of the batch."""
        parts = (None if part is None else part[index] for part in (self.features, self.relation))
        return ExitState(*parts, self.grid)


def patch_geometry(size: int, tokens: int) -> tuple[int, int]:
    """Kernel (= stride) and padding of a patch embedding, so that ``size`` pixels become ``tokens`` tokens.

    ceil(size / tokens), and the padding that centres the patches. At 224 this gives the published 32/0, 23/3 and 16/0
    for 7, 10 and 14 tokens.

    Raises:
        ValueError: ``tokens`` is not from 1 to ``size``, or patches would lie in the padding only.
    """
    if not 1 <= tokens <= size:
        raise ValueError(f"a side of {size} pixels has 1 to {size} tokens, got {tokens}")
    kernel = -(-size // tokens)
    padding = -(-(kernel * tokens - size) // 2)
    if padding >= kernel:
        near = -(-size // kernel)
        raise ValueError(f"{tokens} patches of {kernel} pixels do not fit a side of {size}; {near} do")
    return kernel, padding


class PatchEmbedding(BaseModule):
    """Convolution with kernel = stride.

    Args:
        kernel: kernel and padding.
        dim: channels.
    """

    def __init__(self, kernel: tuple[int, int], dim: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, dim, kernel[0], stride=kernel[0], padding=kernel[1])

    def forward(self, x: Tensor) -> tuple[Tensor, Grid]:
        """(B, 3, H, W) -> tokens (B, h * w, C) and their grid."""
        x = self.proj(pad_to_kernel(x, self.proj.kernel_size[0], self.proj.padding[0]))
        # Not traced: an exported graph has a fixed size, and ONNX's integer division rounds towards zero.
        return x.flatten(2).transpose(1, 2), (int(x.shape[2]), int(x.shape[3]))


class CascadeBlock(BaseModule):
    """Transformer block whose scores and MLP input may take in what a smaller model left.

    x <- x + proj(softmax(q k / sqrt(d) + R) v);  x <- x + MLP(LN([x, E])), the residual without E.

    Args:
        arch: as in ``ARCHS``.
        drop_path: probability.
        reuse: hidden width and channels of the feature reuse, or None.
    """

    def __init__(self, arch: Mapping[str, Any], drop_path: float, reuse: tuple[int, int] | None) -> None:
        super().__init__()
        dim, eps, hidden = arch["dim"], arch["eps"], int(arch["dim"] * arch["mlp_ratio"])
        width = dim + (reuse[1] if reuse else 0)
        self.num_heads = arch["num_heads"]
        self.norm1 = nn.LayerNorm(dim, eps=eps)
        self.qkv = nn.Linear(dim, 3 * dim, bias=arch["qkv_bias"])
        self.proj = nn.Linear(dim, dim)
        self.reuse = FeatureReuse(dim, *reuse, eps=eps) if reuse else None
        self.norm2 = nn.LayerNorm(width, eps=eps)
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, dim)
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(
        self, x: Tensor, grid: Grid, upstream: ExitState | None, relation: Tensor | None, want_scores: bool
    ) -> tuple[Tensor, Tensor | None]:
        """(B, N, C), relation (B, H, N, N) or None -> (B, N, C), scores (B, H, N, N) if wanted."""
        batch, count, dim = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, count, 3, self.num_heads, dim // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        scores = None
        if want_scores:
            scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
            scores = scores if relation is None else scores + relation
            y = scores.softmax(dim=-1) @ v
        else:  # nobody asks for the scores: the fused kernel does not hold them
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=None if relation is None else relation.to(q.dtype))
        x = x + self.drop_path(self.proj(y.transpose(1, 2).reshape(batch, count, dim)))
        y = x
        if self.reuse is not None:
            y = torch.cat([x, self.reuse(upstream.features, upstream.grid, grid).to(x.dtype)], dim=-1)
        return x + self.drop_path(self.fc2(F.gelu(self.fc1(self.norm2(y))))), scores


def sinusoid_positions(count: int, dim: int) -> Tensor:
    """(1, count, dim) fixed positions of T2T-ViT: sin and cos in turn of pos / 10000^(2 floor(j / 2) / dim)."""
    j = torch.arange(dim, dtype=torch.float64)
    angle = torch.arange(count, dtype=torch.float64)[:, None] / 10000 ** (2 * (j // 2) / dim)
    return torch.where(j.long() % 2 == 0, angle.sin(), angle.cos()).float()[None]


class ExitTransformer(BaseModule):
    """One model of the cascade, without its head.

    Args:
        arch: as in ``ARCHS``.
        image_size: (height, width) in pixels for which ``grid`` holds; other sizes give other grids.
        grid: tokens (h, w).
        drop_path_rate: of the last block; rises linearly from 0.
        reuse_features: hidden width and channels of the feature reuse, or None.
        reuse_relation: take the upstream's attention scores in.
        with_cp: recompute activations in the backward pass.
    """

    def __init__(
        self,
        arch: Mapping[str, Any],
        image_size: tuple[int, int],
        grid: Grid,
        drop_path_rate: float = 0.0,
        reuse_features: tuple[int, int] | None = None,
        reuse_relation: bool = False,
        with_cp: bool = False,
    ) -> None:
        super().__init__()
        dim, depth = arch["dim"], arch["depth"]
        self.grid, self.with_cp = tuple(grid), with_cp
        geometry = patch_geometry if arch["embed"] == "patch" else soft_split_geometry
        kernels = {geometry(side, tokens) for side, tokens in zip(image_size, grid, strict=True)}
        if len(kernels) > 1:
            raise ValueError(
                f"a grid of {grid[0]} x {grid[1]} tokens needs other patches along the height than along the width of "
                f"{image_size[0]} x {image_size[1]} pixels: choose a grid of the image's proportions"
            )
        kernel = kernels.pop()
        self.embed = PatchEmbedding(kernel, dim) if arch["embed"] == "patch" else SoftSplit(arch["embed"], kernel, dim)
        self.cls_token = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, 1, dim), std=0.02))
        count = 1 + grid[0] * grid[1]
        if arch["embed"] == "patch":
            self.pos_embed = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, count, dim), std=0.02))
        else:
            self.register_buffer("pos_embed", sinusoid_positions(count, dim))
        rates = [drop_path_rate * i / max(depth - 1, 1) for i in range(depth)]
        self.blocks = nn.ModuleList(CascadeBlock(arch, rate, reuse_features) for rate in rates)
        self.norm = nn.LayerNorm(dim, eps=arch["eps"])
        self.relation_reuse = RelationReuse(depth, arch["num_heads"]) if reuse_relation else None

    def _positions(self, table: Tensor, grid: Grid) -> Tensor:
        """(1, 1 + n, C) table of any square (or this model's) grid, bicubic to ``grid``, in float32."""
        count = table.shape[1] - 1
        side = math.isqrt(count)
        source = self.grid if count == self.grid[0] * self.grid[1] else (side, side)
        if source == tuple(grid):
            return table
        if source[0] * source[1] != count:
            raise ValueError(f"a position table of {count} tokens is no square: it cannot be resized to {tuple(grid)}")
        cells = table[:, 1:].float().reshape(1, *source, -1).permute(0, 3, 1, 2)
        cells = F.interpolate(cells, size=tuple(grid), mode="bicubic", align_corners=False)
        return torch.cat([table[:, :1].float(), cells.flatten(2).transpose(1, 2)], dim=1).to(table.dtype)

    def forward(
        self, x: Tensor, upstream: ExitState | None = None, keep_features: bool = False, keep_relation: bool = False
    ) -> tuple[Tensor, ExitState]:
        """Images (B, 3, H, W) and the smaller model's state -> class token (B, C) after the norm, own state."""
        x, grid = self.embed(x)
        tokens = torch.cat([self.cls_token.expand(x.shape[0], -1, -1).to(x.dtype), x], dim=1)
        tokens = tokens + self._positions(self.pos_embed, grid).to(x.dtype)
        relations: Sequence[Tensor | None] = [None] * len(self.blocks)
        if self.relation_reuse is not None:
            relations = self.relation_reuse(upstream.relation, upstream.grid, grid)
        kept = []
        for block, relation in zip(self.blocks, relations, strict=True):
            args = (tokens, grid, upstream, relation, keep_relation)
            tokens, scores = checkpoint_module(block, *args) if self.with_cp and self.training else block(*args)
            kept.append(scores)
        state = ExitState(tokens if keep_features else None, torch.cat(kept, 1) if keep_relation else None, grid)
        return self.norm(tokens[:, 0]), state

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        """Resize a position table of another grid, so that weights of another image size load."""
        key = f"{prefix}pos_embed"
        table = state_dict.get(key)
        if (
            table is not None
            and table.shape[1:] != self.pos_embed.shape[1:]
            and table.shape[2] == self.cls_token.shape[2]
        ):
            state_dict[key] = self._positions(table, self.grid)
        super()._load_from_state_dict(state_dict, prefix, *args)


@MODELS.register_module()
class DVT(BaseModule):
    """The cascade: transformers with growing token grids.

    Any image size runs: at sizes other than ``image_size`` grids follow the patches and positions are interpolated;
    an image smaller than a patch is filled up with zeros.

    Args:
        arch: name in ``ARCHS`` or a mapping with the same keys.
        image_size: pixels, one number or (height, width), for which the grids hold.
        token_grids: tokens of each exit, one number for a square or (h, w); any number of exits.
        reuse_features: later models see the earlier one's last tokens.
        reuse_relations: later models add the earlier one's attention scores to their own.
        reuse_hidden: hidden width of the feature reuse.
        reuse_channels: context channels of the feature reuse.
        drop_path_rate: of the last block of each model.
        with_cp: recompute activations in the backward pass.
        init_cfg: mmengine's initialisation config.

    Raises:
        ValueError: unknown arch, no exit, or a grid that the image size cannot give.

    Examples:
        >>> model = DVT('mini', image_size=32, token_grids=(2, 3, 4)).eval()
        >>> [tuple(f.shape) for f in model(torch.rand(1, 3, 32, 32))]
        [(1, 64), (1, 64), (1, 64)]
    """

    def __init__(
        self,
        arch: str | Mapping[str, Any] = "deit_small",
        image_size: int | tuple[int, int] = 224,
        token_grids: Sequence[int | tuple[int, int]] = (7, 10, 14),
        reuse_features: bool = True,
        reuse_relations: bool = True,
        reuse_hidden: int = 128,
        reuse_channels: int = 48,
        drop_path_rate: float = 0.0,
        with_cp: bool = False,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        if init_cfg is None:
            init_cfg = [
                dict(type="TruncNormal", layer="Linear", std=0.02, bias=0.0),
                dict(type="Constant", layer="LayerNorm", val=1.0, bias=0.0),
            ]
        super().__init__(init_cfg=init_cfg)
        if not isinstance(token_grids, Sequence) or not token_grids:
            raise ValueError(f"token_grids lists the tokens of each exit, such as (7, 10, 14), got {token_grids!r}")
        settings = resolve_arch(arch, ARCHS, type(self).__name__)
        self.image_size = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
        self.token_grids = tuple((g, g) if isinstance(g, int) else tuple(g) for g in token_grids)
        self.reuse_features, self.reuse_relations = reuse_features, reuse_relations
        self.out_channels = (settings["dim"],) * len(self.token_grids)
        self.exits = nn.ModuleList(
            ExitTransformer(
                settings,
                self.image_size,
                grid,
                drop_path_rate,
                reuse_features=(reuse_hidden, reuse_channels) if reuse_features and number else None,
                reuse_relation=reuse_relations and number > 0,
                with_cp=with_cp,
            )
            for number, grid in enumerate(self.token_grids)
        )

    @property
    def num_exits(self) -> int:
        """Models of the cascade."""
        return len(self.exits)

    def run_exit(self, number: int, x: Tensor, upstream: ExitState | None = None) -> tuple[Tensor, ExitState]:
        """One model: images (B, 3, H, W) and the state of exit ``number - 1`` -> class token (B, C), own state."""
        last = number == self.num_exits - 1
        return self.exits[number](x, upstream, self.reuse_features and not last, self.reuse_relations and not last)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """(B, 3, H, W) -> the class tokens of all exits, each (B, C)."""
        outputs, state = [], None
        for number in range(self.num_exits):
            token, state = self.run_exit(number, x, state)
            outputs.append(token)
        return tuple(outputs)
