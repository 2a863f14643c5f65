"""Context Cluster (CoC): an image as a set of points, mixed by clustering alone.

Paper: Ma, Zhou, Wang, Qin, Sun, Liu, Fu, "Image as Set of Points", ICLR 2023 (arXiv 2303.01494), repository
ma-xu/Context-Cluster. Written from the equations and checked against outputs of the authors' code (tests/goldens).
Same result in another order: a cluster sums its points before the value projection and a centre's answer is projected
before it is dispatched (both are linear), so values exist for centres only and no tensor has points x centres x
channels entries. Any image size works; the published code asserts that regions divide the maps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from mmcv.cnn.bricks import DropPath
from mmengine.model import BaseModule, ModuleDict, ModuleList
from torch import Tensor, nn

from mmvit_plugins.registry import MODELS

from ..layers import as_map, as_output, as_tokens, checkpoint_module
from ..layers.cluster_mixing import ClusterMixing
from ..token_reduction import Regions, TokenMap
from ..token_reduction.super_tokens import pad_grid
from .base import HierarchicalBackbone, resolve_arch

__all__ = ["ARCHS", "ContextCluster", "ContextClusterBlock"]


def _arch(
    dims: tuple[int, ...],
    depths: tuple[int, ...],
    heads: tuple[int, ...],
    head_dim: int,
    regions: tuple[int, ...] = (8, 4, 2, 1),
    centres: tuple[int, ...] = (2, 2, 2, 2),
) -> dict[str, Any]:
    """An entry of ``ARCHS``; all published models share the MLP ratios."""
    settings = dict(dims=dims, depths=depths, heads=heads, head_dims=(head_dim,) * 4, mlp_ratios=(8, 8, 4, 4))
    return settings | dict(regions=regions, centres=centres)


_TINY = dict(dims=(32, 64, 196, 320), depths=(3, 4, 5, 2), heads=(4, 4, 8, 8), head_dim=24)
_SMALL = dict(dims=(64, 128, 320, 512), depths=(2, 2, 6, 2), heads=(4, 4, 8, 8), head_dim=32)
_MEDIUM = dict(dims=(64, 128, 320, 512), depths=(4, 4, 12, 4), heads=(6, 6, 12, 12), head_dim=32)
# Regions and centres are numbers per side. From the paper's and the README's tables; the two bases are in neither of
# them and are from memory (a checkpoint of another shape is refused). `mini` is ours, for small machines. `_featN` are
# the authors' dense variants: N centres per side in every stage.
ARCHS: dict[str, dict[str, Any]] = {
    "mini": _arch((24, 48, 96, 128), (1, 1, 3, 1), (2, 2, 4, 4), 16),
    "tiny": _arch(**_TINY),
    "tiny2": _arch(**_TINY, regions=(7, 7, 1, 1), centres=(4, 2, 7, 4)),
    "tiny_plain": _arch(**_TINY, regions=(1, 1, 1, 1), centres=(4, 4, 2, 2)),
    "small": _arch(**_SMALL),
    "medium": _arch(**_MEDIUM),
    "base_dim64": _arch((64, 128, 320, 512), (6, 6, 24, 6), (8, 8, 16, 16), 32),
    "base_dim96": _arch((96, 192, 384, 768), (6, 6, 24, 6), (8, 8, 16, 16), 32),
}
ARCHS |= {
    f"{name}_feat{side}": dict(ARCHS[name], centres=(side,) * 4)
    for name in ("tiny", "small", "medium", "base_dim64", "base_dim96")
    for side in (2, 5, 7)
}


class ContextClusterBlock(BaseModule):
    """x <- x + g1 Clusters(GN x); x <- x + g2 MLP(GN x), norms over all points and channels (section 3.1).

    Args:
        dim: channels C.
        mlp_ratio: hidden channels of the MLP / C.
        drop_path: rate of both branches.
        layer_scale: initial value of a learned scale per channel on both branches; 0: none.
        mixing: the other arguments of :class:`ClusterMixing`.
    """

    def __init__(
        self, dim: int, mlp_ratio: float, drop_path: float, layer_scale: float, mixing: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(1, dim)
        self.mixing = ClusterMixing(dim, **mixing)
        self.norm2 = nn.GroupNorm(1, dim)
        self.fc1 = nn.Linear(dim, int(dim * mlp_ratio))
        self.fc2 = nn.Linear(int(dim * mlp_ratio), dim)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        self.gamma1 = nn.Parameter(torch.full((dim,), float(layer_scale))) if layer_scale else None
        self.gamma2 = nn.Parameter(torch.full((dim,), float(layer_scale))) if layer_scale else None

    def forward(self, x: Tensor, regions: Regions) -> Tensor:
        """(B, N, C) -> (B, N, C), points region by region if all regions have the same size, else in raster order."""
        points = (x.shape[1], 1)
        normed = as_tokens(self.norm1(as_map(x, points)))
        x = self._by_regions(x, normed, regions)
        normed = as_tokens(self.norm2(as_map(x, points)))
        rows = self._rows(x)
        if rows >= x.shape[1]:
            return self._add(x, self.fc2(F.gelu(self.fc1(normed))), self.gamma2)
        parts = zip(x.split(rows, dim=1), normed.split(rows, dim=1), strict=True)
        return torch.cat([self._add(a, self.fc2(F.gelu(self.fc1(b))), self.gamma2) for a, b in parts], dim=1)

    def token_map(self, x: Tensor, regions: Regions, head: int) -> TokenMap:
        """(B, N, C) points as in :meth:`forward` -> the clusters of one head, points in raster order, K = 1."""
        normed = as_tokens(self.norm1(as_map(x, (x.shape[1], 1))))
        if regions.places is None:
            points = normed.unflatten(1, (regions.num, -1))
        else:
            points = regions.split(normed)
        kept, answer = self.mixing(points, regions)
        count = answer.shape[2] // self.mixing.num_heads
        weight, index = kept.unflatten(-1, (-1, count))[..., head, :].max(dim=-1, keepdim=True)
        index = index + torch.arange(regions.num, device=x.device).view(1, -1, 1, 1) * count
        return TokenMap(regions.join(index), regions.join(weight), regions.num * count)

    def _by_regions(self, x: Tensor, normed: Tensor, regions: Regions) -> Tensor:
        """The first branch, added."""
        if regions.places is None:
            points = normed.view(x.shape[0], regions.num, -1, x.shape[2])
        else:
            points = regions.split(normed)
        kept, answer = self.mixing(points, regions)
        branch = torch.matmul(kept, answer)
        branch = branch.flatten(1, 2) if regions.places is None else regions.join(branch)
        return self._add(x, branch.to(x.dtype) + self.mixing.proj.bias, self.gamma1)

    def _rows(self, x: Tensor) -> int:
        """Points that go through the MLP at a time: all, but in inference on a CPU as many as stay in the cache."""
        if torch.is_grad_enabled() or self.training or x.device.type != "cpu":
            return x.shape[1]
        if torch.compiler.is_compiling() or torch.jit.is_tracing():
            return x.shape[1]
        return max(64, 2**20 // (x.shape[0] * self.fc1.out_features))

    def _add(self, x: Tensor, branch: Tensor, gamma: Tensor | None) -> Tensor:
        branch = self.drop_path(branch)
        return x + branch if gamma is None else torch.addcmul(x, branch, gamma.to(branch.dtype))


class ContextClusterStage(BaseModule):
    """A 3x3 stride-2 convolution (not in the first stage), then blocks.

    Args:
        in_dim: channels of the input, None for the first stage.
        dim: channels C.
        drop_path: rate of every block; its length is the number of blocks.
        with_cp: recompute the blocks' activations in the backward pass.
        block: the other arguments of :class:`ContextClusterBlock`.
    """

    def __init__(
        self, in_dim: int | None, dim: int, drop_path: Sequence[float], with_cp: bool, block: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.with_cp = with_cp
        self.downsample = None if in_dim is None else nn.Conv2d(in_dim, dim, 3, stride=2, padding=1)
        self.blocks = ModuleList(ContextClusterBlock(dim, drop_path=rate, **block) for rate in drop_path)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C_in, H, W) -> (B, C, ceil(H / 2), ceil(W / 2)), or (B, C, H, W) in the first stage."""
        x, regions = self.enter(x)
        for block in self.blocks:
            x = checkpoint_module(block, x, regions) if self.with_cp else block(x, regions)
        return self.leave(x, regions)

    def enter(self, x: Tensor) -> tuple[Tensor, Regions]:
        """(B, C_in, H, W) -> points (B, N, C), in the order that the blocks take, and the regions of the stage."""
        if self.downsample is not None:
            if (
                x.device.type == "cpu"
            ):  # oneDNN sums up to six times less exactly in channels_last; points may change sides
                x = x.contiguous()
            x = self.downsample(x)
        regions = self.blocks[0].mixing.clusters.cut((x.shape[2], x.shape[3]), x)
        x = as_tokens(x)
        return (x if regions.places is not None else regions.split(x).flatten(1, 2)), regions

    def leave(self, x: Tensor, regions: Regions) -> Tensor:
        """Points (B, N, C) -> (B, C, H, W), channels_last."""
        if regions.places is None:
            x = regions.join(x.unflatten(1, (regions.num, -1)))
        return as_map(x, regions.grid)


@MODELS.register_module()
class ContextCluster(HierarchicalBackbone):
    """Context Cluster backbone (ICLR 2023).

    Input (B, 3, H, W) of any H, W >= 1, zero-padded right and bottom to whole 4 x 4 points. Two more channels tell each
    pixel's place, from -0.5 to 0.5 over the current input. Returns a tuple with one map
    (B, C_i, ceil(H / s_i), ceil(W / s_i)) for each of ``out_indices``, behind a norm of its own; strides are 4, 8, 16,
    32. For classification: ``out_indices=(3,)``, MMPretrain's GlobalAveragePooling and LinearClsHead.

    Args:
        arch: ``'tiny'``, ``'tiny2'``, ``'tiny_plain'``, ``'small'``, ``'medium'``, ``'base_dim64'``, ``'base_dim96'``
            as published, the dense variants ``'small_feat2'`` (``_feat5``, ``_feat7``; medium and the others likewise)
            with 2, 5 or 7 centres per side; ``'mini'`` (0.7 M parameters) is ours; or a mapping with the keys dims,
            depths, heads, head_dims, mlp_ratios, regions, centres (one entry for each stage; regions and centres are
            numbers per side, or (down, across)).
        in_channels: channels of the image, without the two of the position.
        layer_scale: initial value of the learned scale of both branches; 0: none.
        drop_path_rate: rate of the last block; it grows linearly from 0. Published: 0.1 for tiny.
        out_indices: stages whose maps are returned; None: all.
        frozen_stages: -1: none; k: stem and stages 0 to k, with their norms, have no gradient and stay in eval mode.
        norm_eval: keep batch norms in eval mode; there are none in this model.
        with_cp: recompute activations in the backward pass (non-reentrant).
        init_cfg: mmengine's initialisation config; default: truncated normal of 0.02 for linear layers.

    Raises:
        ValueError: an argument is outside its legal values.

    Examples:
        >>> import torch
        >>> from mmvit_plugins.models import ContextCluster
        >>> model = ContextCluster(arch='mini').eval()
        >>> with torch.no_grad():
        ...     outputs = model(torch.rand(1, 3, 65, 90))
        >>> [tuple(o.shape) for o in outputs]
        [(1, 24, 17, 23), (1, 48, 9, 12), (1, 96, 5, 6), (1, 128, 3, 3)]
        >>> model.out_channels, model.out_strides
        ((24, 48, 96, 128), (4, 8, 16, 32))
    """

    #: What tools/visualize_tokens.py calls the groups.
    reduced_name = "clusters"
    #: Weights that a classifier's checkpoint need not have: it has no norms behind stages 0 to 2.
    optional_weights = r"norms\.[012]\..+"

    def __init__(
        self,
        arch: str | Mapping[str, Any] = "small",
        in_channels: int = 3,
        layer_scale: float = 1e-5,
        drop_path_rate: float = 0.0,
        out_indices: int | Sequence[int] | None = None,
        frozen_stages: int = -1,
        norm_eval: bool = False,
        with_cp: bool = False,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        settings = resolve_arch(arch, ARCHS, "ContextCluster")
        num_stages = len(settings["dims"])
        if any(not isinstance(values, Sequence) or len(values) != num_stages for values in settings.values()):
            raise ValueError(f"every entry of arch must have one value for each of {num_stages} stages, got {settings}")
        if not 0 <= drop_path_rate < 1:
            raise ValueError(f"drop_path_rate must be in [0, 1), got {drop_path_rate}")
        if init_cfg is None:
            init_cfg = [
                dict(type="TruncNormal", layer="Linear", std=0.02, bias=0.0),
                dict(type="Constant", layer="GroupNorm", val=1.0, bias=0.0),
            ]
        out_indices = range(num_stages) if out_indices is None else out_indices
        super().__init__(num_stages, out_indices, frozen_stages, norm_eval, init_cfg)
        dims, depths = settings["dims"], settings["depths"]
        rates = torch.linspace(0, drop_path_rate, sum(depths)).tolist()
        self.stem = nn.Conv2d(in_channels + 2, dims[0], 4, stride=4)
        self.stages = ModuleList()
        # Stages behind the last output are not built: DDP would wait for their gradients.
        for i in range(self.out_indices[-1] + 1):
            mixing = dict(num_heads=settings["heads"][i], head_dim=settings["head_dims"][i])
            mixing.update(regions=settings["regions"][i], centres=settings["centres"][i])
            block = dict(mlp_ratio=settings["mlp_ratios"][i], layer_scale=layer_scale, mixing=mixing)
            drop_path = rates[sum(depths[:i]) : sum(depths[: i + 1])]
            self.stages.append(ContextClusterStage(dims[i - 1] if i else None, dims[i], drop_path, with_cp, block))
        self.norms = ModuleDict({str(i): nn.GroupNorm(1, dims[i]) for i in self.out_indices})
        self.out_channels = tuple(dims[i] for i in self.out_indices)
        self.out_strides = tuple(4 * 2**i for i in self.out_indices)
        self.freeze()

    def frozen_parts(self, upto: int) -> list[nn.Module]:
        """The stem, stages 0 to ``upto`` and the norms of their outputs."""
        norms = [norm for i, norm in self.norms.items() if int(i) <= upto]
        return [self.stem, *self.stages[: upto + 1], *norms]

    def embed(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) -> points (B, C, ceil(H / 4), ceil(W / 4)): position channels and a 4x4 convolution."""
        height, width = x.shape[2:]
        down, across = (torch.arange(n, device=x.device) / max(n - 1, 1) - 0.5 for n in (height, width))
        down = down.to(x.dtype).view(1, 1, -1, 1).expand(x.shape[0], 1, height, width)
        across = across.to(x.dtype).view(1, 1, 1, -1).expand(x.shape[0], 1, height, width)
        x = torch.cat([x, down, across], dim=1).contiguous(memory_format=torch.channels_last)
        if height % 4 or width % 4:
            x = pad_grid(x.permute(0, 2, 3, 1), 0, -width % 4, 0, -height % 4).permute(0, 3, 1, 2)
        return self.stem(x)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """(B, 3, H, W) -> one (B, C_i, ceil(H / s_i), ceil(W / s_i)) for each of ``out_indices``."""
        x = self.embed(x)
        outputs = []
        for i, stage in enumerate(self.stages):
            x = stage(x)
            if i in self.out_indices:
                outputs.append(as_output(self.norms[str(i)](x)))
        return tuple(outputs)

    @torch.no_grad()
    def token_maps(self, x: Tensor, head: int = 0) -> list[tuple[int, TokenMap, tuple[int, int], tuple[int, int]]]:
        """Who belongs to which cluster, in the last block of every stage.

        Args:
            x: (B, 3, H, W) images.
            head: whose clusters; every head has its own.

        Returns:
            For each stage: its number, the map, the grid of points and the grid of centres.
        """
        maps = []
        x = self.embed(x)
        for i, stage in enumerate(self.stages):
            x, regions = stage.enter(x)
            for block in stage.blocks[:-1]:
                x = block(x, regions)
            last = stage.blocks[-1]
            grid = tuple(n * side for n, side in zip(regions.counts, last.mixing.clusters.centres, strict=True))
            maps.append((i, last.token_map(x, regions, head), regions.grid, grid))
            x = stage.leave(last(x, regions), regions)
        return maps
