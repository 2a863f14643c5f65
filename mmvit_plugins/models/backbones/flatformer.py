"""FlatFormer for images: equal-size groups of the informative patches.

Groups and layers are those of Liu et al., "FlatFormer: Flattened Window Attention for Efficient Point Cloud
Transformer", CVPR 2023 (arXiv 2301.08739); the score that chooses patches is SparseViT's (Chen et al., CVPR 2023, arXiv
2303.17605). Putting the two together on images is ours, and so are all sizes: neither paper has such a model. On a
full grid groups are windows bent along a serpentine; once patches are dropped they stay of equal size, without
padding, where windows would not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule, ModuleList
from torch import Tensor, nn

from mmvit_plugins.registry import MODELS

from ..layers import as_map, as_output, as_tokens, checkpoint_module
from ..layers.group_attention import GroupTransformerLayer, sine_positions
from ..token_reduction.equal_groups import ORDERS, EqualGroups
from ..token_reduction.informative_tokens import InformativeTokens, check_keep_ratio
from ..token_reduction.token_map import TokenMap
from .base import HierarchicalBackbone, resolve_arch

__all__ = ["ARCHS", "FlatFormer"]

# All ours. Heads are 32 channels wide; layers take the four orders in turn, on through the stages.
ARCHS: dict[str, dict[str, Any]] = {
    "mini": dict(dims=(24, 48, 96, 128), depths=(2, 2, 4, 2), heads=(1, 2, 3, 4)),
    "tiny": dict(dims=(32, 64, 160, 256), depths=(2, 2, 8, 4), heads=(1, 2, 5, 8)),
    "small": dict(dims=(64, 128, 320, 512), depths=(4, 4, 12, 4), heads=(2, 4, 10, 16)),
}


def conv_norm_act(in_dim: int, dim: int, norm_cfg: dict) -> list[nn.Module]:
    """3x3 convolution of stride 2, norm, GELU."""
    conv = nn.Conv2d(in_dim, dim, 3, stride=2, padding=1, bias=False)
    return [conv, build_norm_layer(norm_cfg, dim)[1], nn.GELU()]


class FlatFormerStage(BaseModule):
    """Halve the map, choose patches, run layers on them in groups, put them back.

    Args:
        in_dim: channels of the input, None for the first stage, which does not halve it.
        dim: channels C.
        num_heads: heads.
        first_layer: number of its first layer in the whole network; decides the orders.
        drop_path: rate of every layer; its length is the number of layers.
        keep_ratio: share of the patches that the layers work on.
        window: side, or (x, y), of the windows that the groups follow, in patches.
        group_size: patches in a group.
        mlp_ratio: hidden channels of the feed-forward networks / C.
        norm_cfg: config of the batch norm.
        with_cp: recompute the layers' activations in the backward pass.
    """

    def __init__(
        self,
        in_dim: int | None,
        dim: int,
        num_heads: int,
        first_layer: int,
        drop_path: Sequence[float],
        keep_ratio: float,
        window: int | tuple[int, int],
        group_size: int,
        mlp_ratio: float,
        norm_cfg: dict,
        with_cp: bool,
    ) -> None:
        super().__init__()
        self.with_cp = with_cp
        self.downsample = None
        if in_dim is not None:
            conv, norm, _ = conv_norm_act(in_dim, dim, norm_cfg)
            self.downsample = nn.Sequential(conv, norm)
        self.chooser = InformativeTokens(keep_ratio)
        orders = [ORDERS[i % len(ORDERS)] for i in range(first_layer, first_layer + len(drop_path))]
        used = list(dict.fromkeys(orders))
        self.groupings = ModuleList(EqualGroups(group_size, window, axis, shift) for axis, shift in used)
        self.order_of_layer = tuple(used.index(order) for order in orders)
        self.layers = ModuleList(
            GroupTransformerLayer(dim, num_heads, group_size, mlp_ratio, norm="pre", drop_path=rate)
            for rate in drop_path
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, C_in, H, W) -> (B, C, ceil(H / 2), ceil(W / 2)), or (B, C, H, W) in the first stage."""
        if self.downsample is not None:
            x = self.downsample(x)
        grid = (int(x.shape[2]), int(x.shape[3]))
        x = as_tokens(x)
        if self.chooser.keep_ratio == 1:
            position = torch.arange(x.shape[1], device=x.device).unsqueeze(0)
            return as_map(self._layers(x, position.expand(x.shape[0], -1), grid), grid)
        kept = self.chooser.associate(x)
        y = self._layers(kept.reduce(x), kept.source, grid)
        return as_map(kept.restore(y, base=x), grid)

    def _layers(self, x: Tensor, position: Tensor, grid: tuple[int, int]) -> Tensor:
        """(B, K, C) tokens at places (B, K) of the grid -> (B, K, C)."""
        pos = sine_positions(position % grid[1], position // grid[1], x.shape[2]).to(x.dtype)
        orders = []
        for grouping in self.groupings:
            groups = grouping.associate_kept(position, grid)
            orders.append((groups, groups.reduce(pos)))
        for i, layer in zip(self.order_of_layer, self.layers, strict=True):
            groups, in_order = orders[i]
            x = checkpoint_module(layer, x, in_order, groups) if self.with_cp else layer(x, in_order, groups)
        return x


@MODELS.register_module()
class FlatFormer(HierarchicalBackbone):
    """FlatFormer backbone for images; see the head of this file. For point clouds use :class:`FlatFormerEncoder`.

    Input (B, 3, H, W) of any H, W >= 1. Returns a tuple with one map (B, C_i, ceil(H / s_i), ceil(W / s_i)) for each
    of ``out_indices``; strides are 4, 8, 16, 32. In every stage the layers work on the patches with the largest
    activation at the stage's input; the others pass unchanged, so that all maps are dense.

    Args:
        arch: ``'mini'`` (1 M parameters), ``'tiny'`` (6 M) or ``'small'`` (30 M), all ours; or a mapping with the keys
            dims, depths, heads (one entry for each stage).
        in_channels: channels of the image.
        keep_ratio: share of the patches that the layers of a stage work on, in (0, 1], one number or one for each
            stage; 1.0 keeps all.
        window: side, or (x, y), in patches, of the windows that the groups follow. With a lower ratio, take larger
            windows for groups of about one window: side^2 x ratio patches are left in each.
        group_size: patches in a group.
        mlp_ratio: hidden channels of the feed-forward networks / channels.
        drop_path_rate: rate of the last layer; it grows linearly from 0.
        norm_cfg: config of the batch norms of stem and downsampling.
        out_indices: stages whose maps are returned; None: all.
        frozen_stages: -1: none; k: stem and stages 0 to k have no gradient and stay in eval mode.
        norm_eval: keep batch norms in eval mode.
        with_cp: recompute activations in the backward pass (non-reentrant).
        init_cfg: mmengine's initialisation config; default: truncated normal of 0.02 for linear layers.

    Raises:
        ValueError: an argument is outside its legal values.

    Examples:
        >>> import torch
        >>> from mmvit_plugins.models import FlatFormer
        >>> model = FlatFormer(arch='mini', keep_ratio=0.5).eval()
        >>> with torch.no_grad():
        ...     outputs = model(torch.rand(1, 3, 65, 90))
        >>> [tuple(o.shape) for o in outputs]
        [(1, 24, 17, 23), (1, 48, 9, 12), (1, 96, 5, 6), (1, 128, 3, 3)]
        >>> model.out_channels, model.out_strides
        ((24, 48, 96, 128), (4, 8, 16, 32))
    """

    # A classifier's file has the norm of the last stage only.
    optional_weights = r"norms\.[012]\..+"

    reduced_name = "groups"  # what token_maps() groups into, for titles of pictures

    def __init__(
        self,
        arch: str | Mapping[str, Any] = "tiny",
        in_channels: int = 3,
        keep_ratio: float | Sequence[float] = 1.0,
        window: int | tuple[int, int] = 8,
        group_size: int = 64,
        mlp_ratio: float = 4.0,
        drop_path_rate: float = 0.0,
        norm_cfg: Mapping[str, Any] = dict(type="BN"),  # noqa: B006
        out_indices: int | Sequence[int] | None = None,
        frozen_stages: int = -1,
        norm_eval: bool = False,
        with_cp: bool = False,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        settings = resolve_arch(arch, ARCHS, "FlatFormer")
        dims, depths, heads = settings["dims"], settings["depths"], settings["heads"]
        num_stages = len(dims)
        if any(not isinstance(values, Sequence) or len(values) != num_stages for values in settings.values()):
            raise ValueError(f"every entry of arch must have one value for each of {num_stages} stages, got {settings}")
        ratios = list(keep_ratio) if isinstance(keep_ratio, Sequence) else [keep_ratio] * num_stages
        if len(ratios) != num_stages:
            raise ValueError(f"keep_ratio must be one number or one for each of {num_stages} stages, got {keep_ratio}")
        ratios = [check_keep_ratio(ratio, "FlatFormer") for ratio in ratios]
        if not 0 <= drop_path_rate < 1:
            raise ValueError(f"drop_path_rate must be in [0, 1), got {drop_path_rate}")
        if init_cfg is None:
            init_cfg = [
                dict(type="TruncNormal", layer="Linear", std=0.02, bias=0.0),
                dict(type="Constant", layer=["LayerNorm", "_BatchNorm"], val=1.0, bias=0.0),
            ]
        if out_indices is None:
            out_indices = range(num_stages)
        super().__init__(num_stages, out_indices, frozen_stages, norm_eval, init_cfg)
        rates = torch.linspace(0, drop_path_rate, sum(depths)).tolist()
        norm_cfg = dict(norm_cfg)
        half = max(dims[0] // 2, 1)
        self.stem = nn.Sequential(
            *conv_norm_act(in_channels, half, norm_cfg), *conv_norm_act(half, dims[0], norm_cfg)[:2]
        )
        self.stages, self.norms = ModuleList(), nn.ModuleDict()
        # Stages behind the last output are not built: DDP would wait for their gradients.
        for i in range(self.out_indices[-1] + 1):
            first = sum(depths[:i])
            drop_path, in_dim = rates[first : first + depths[i]], dims[i - 1] if i else None
            shape = (window, group_size, mlp_ratio, norm_cfg, with_cp)
            self.stages.append(FlatFormerStage(in_dim, dims[i], heads[i], first, drop_path, ratios[i], *shape))
            if i in self.out_indices:
                self.norms[str(i)] = nn.LayerNorm(dims[i])
        self.out_channels = tuple(dims[i] for i in self.out_indices)
        self.out_strides = tuple(4 * 2**i for i in self.out_indices)
        self.freeze()

    def frozen_parts(self, upto: int) -> list[nn.Module]:
        """The stem, stages 0 to ``upto`` and their output norms."""
        norms = [norm for i, norm in self.norms.items() if int(i) <= upto]
        return [self.stem, *self.stages[: upto + 1], *norms]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """(B, 3, H, W) -> one (B, C_i, ceil(H / s_i), ceil(W / s_i)) for each of ``out_indices``."""
        x = self.stem(x.contiguous(memory_format=torch.channels_last))
        outputs = []
        for i, stage in enumerate(self.stages):
            x = stage(x)
            if i in self.out_indices:
                y = as_map(self.norms[str(i)](as_tokens(x)), (x.shape[2], x.shape[3]))
                outputs.append(as_output(y))
        return tuple(outputs)

    @torch.no_grad()
    def token_maps(self, x: Tensor) -> list[tuple[int, TokenMap, tuple[int, int], tuple[int, int]]]:
        """Who belongs to which group, in the first layer of every stage, for pictures.

        Args:
            x: (B, 3, H, W) images.

        Returns:
            For each stage: its number, the map of patches to groups (weight 0 for dropped patches), the grid of
            patches, and (number of groups, 1).
        """
        if self.training:
            raise RuntimeError("token_maps() is for pictures: call eval() first, or batch norms would learn from them")
        maps = []
        x = self.stem(x.contiguous(memory_format=torch.channels_last))
        for i, stage in enumerate(self.stages):
            if stage.downsample is not None:
                x = stage.downsample(x)
            grid = (x.shape[2], x.shape[3])
            kept = stage.chooser.associate(as_tokens(x))
            places = kept.then(stage.groupings[stage.order_of_layer[0]].associate_kept(kept.source, grid))
            size = min(stage.groupings[0].group_size, kept.num)
            count = places.num // size
            groups = TokenMap(places.index.div(size, rounding_mode="floor"), places.weight, count)
            maps.append((i, groups, grid, (count, 1)))
            # The rest of the stage without its convolution, which has run.
            y = stage._layers(kept.reduce(as_tokens(x)), kept.source, grid)
            x = as_map(kept.restore(y, base=as_tokens(x)), grid)
        return maps
