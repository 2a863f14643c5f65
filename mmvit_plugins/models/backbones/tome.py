"""ToMe: token merging around any plain vision transformer, by composition.

Paper: Bolya, Fu, Dai, Zhang, Feichtenhofer, Hoffman, "Token Merging: Your ViT But Faster", ICLR 2023 (arXiv
2210.09461), repository facebookresearch/ToMe. Written from the equations and checked against outputs of the authors'
code (tests/goldens). The authors swap the classes of a built model's parts; here a model that owns the loop takes a
built ViT and runs the halves of its blocks with a merge in between. Dense outputs, windows and the threshold are ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmvit_plugins.registry import MODELS

from ..layers.memory_format import as_output
from ..layers.merging_block import MergedTokens, Merging, run_block
from ..token_reduction import TokenMap, merge_schedule
from ..token_reduction.merge_map import take_rows
from ..token_reduction.super_tokens import from_cells
from ..token_reduction.window_tome import join_windows, split_windows
from .base import FreezableBackbone, resolve_arch, resolve_out_indices
from .plain_vit import ARCHS, OUT_TYPES, build_plain_vit, plain_vit_parts

__all__ = ["ToMe"]


@MODELS.register_module()
class ToMe(FreezableBackbone):
    """Token merging in a plain ViT: MMPretrain's VisionTransformer, DistilledVisionTransformer, DeiT3, MoCoV3ViT, or
    timm's ViTs through TIMMBackbone. Parameters are those of the inner model, below ``model.``.

    Input (B, 3, H, W) of any H, W >= 1 (timm: with ``dynamic_img_size`` and ``dynamic_img_pad``). Returns a tuple, one
    entry for each of ``out_indices``, in the form of ``out_type``. With nothing to merge it is bit-identical to the
    inner model.

    Args:
        arch: name of a plain ViT in ``ARCHS``, or a mapping with the keys embed_dims, num_layers, num_heads,
            feedforward_channels. Default ``'deit_small'``, or what ``model`` says.
        model: config of the inner model instead of ``arch``, for example
            ``dict(type='mmpretrain.DistilledVisionTransformer', arch='deit-small')``.
        r: pairs to merge in each block: a number, a list, or ``(r, inflection)``; see :func:`merge_schedule`. At most
            half of the tokens merge in a block. None: no limit, with ``threshold``.
        threshold: merge only pairs whose keys' cosine similarity exceeds this; ``r`` is then the limit. None: r pairs.
        prop_attn: proportional attention: a token that stands for s tokens counts s times as a key. On for supervised
            models, off for MAE's weights used without training.
        window_size: attention works in windows of so many tokens a side, as in ViTDet; every window merges r tokens.
            Needs a model without class token (``model=dict(..., with_cls_token=False)``). None: global attention.
        global_blocks: numbers of the blocks in which all windows attend together.
        out_type: ``'cls_token'`` (B, C), with a distillation token a pair; ``'featmap'`` (B, C, h, w), merged tokens
            copied back to their places in raster order; ``'avg_featmap'`` (B, C), mean of the patch tokens weighted by
            size, then a norm (MAE's pooling); ``'raw'`` (B, prefix + h * w, C), restored. None: the inner model's.
        out_indices: blocks whose outputs are returned; later blocks are not built. None: the inner model's (the last).
        drop_path_rate: rate of the last block, growing from 0. None: the inner model's.
        frozen_stages: -1: none; k: the embedding and blocks 0 to k have no gradient and stay in eval mode.
        with_cp: recompute activations in the backward pass (non-reentrant).
        init_cfg: mmengine's initialisation config.

    Raises:
        ImportError: MMPretrain is not installed.
        ValueError: an argument is outside its legal values, or the inner model is no plain ViT.

    Examples:
        >>> import torch
        >>> from mmvit_plugins.models import ToMe
        >>> model = ToMe(arch='mini', r=8, out_type='featmap', out_indices=(2, 5)).eval()
        >>> with torch.no_grad():
        ...     outputs = model(torch.rand(1, 3, 65, 90))
        >>> [tuple(o.shape) for o in outputs]
        [(1, 128, 5, 6), (1, 128, 5, 6)]
        >>> model.out_channels, model.out_strides
        ((128, 128), (16, 16))
    """

    reduced_name = "merged tokens"  # what token_maps() groups into, for titles of pictures

    def __init__(
        self,
        arch: str | Mapping[str, Any] | None = None,
        model: Mapping[str, Any] | None = None,
        r: int | Sequence[int] | tuple[int, float] | None = 8,
        threshold: float | None = None,
        prop_attn: bool = True,
        window_size: int | None = None,
        global_blocks: Sequence[int] = (),
        out_type: str | None = None,
        out_indices: int | Sequence[int] | None = None,
        drop_path_rate: float | None = None,
        frozen_stages: int = -1,
        with_cp: bool = False,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        super().__init__(init_cfg=init_cfg)
        config = self._inner_config(arch, model, out_type, drop_path_rate)
        given = config.pop("out_indices", -1) if out_indices is None else out_indices
        config.pop("out_indices", None)
        self.out_type = config.get("out_type", "cls_token")
        if config["type"].split(".")[-1] == "TIMMBackbone":
            self.out_type = config.pop("out_type", "raw")
        self.model = build_plain_vit(config)
        self.parts = plain_vit_parts(self.model)
        self.prefix = self.parts.prefix(self.model)
        self.num_prefix = int(self.prefix["class_token"]) + int(self.prefix["distill_token"])
        self.num_prefix += self.prefix["num_registers"]
        if self.out_type not in OUT_TYPES or (self.out_type == "cls_token" and not self.prefix["class_token"]):
            raise ValueError(
                f"out_type must be one of {OUT_TYPES} (the first with a class token), got {self.out_type!r}"
            )
        blocks = self.parts.blocks(self.model)
        depth = len(blocks)
        self.out_indices = resolve_out_indices(given, depth, "ToMe")
        self.set_frozen_stages(frozen_stages, depth)
        self.with_cp = with_cp
        self.r, self.threshold, self.prop_attn = self._schedule(r, threshold, depth), threshold, prop_attn
        self.window_size, self.global_blocks = self._windows(window_size, global_blocks, depth)
        dim, stride = self.parts.geometry(self.model)
        self.out_channels = (dim,) * len(self.out_indices)
        self.out_strides = (stride,) * len(self.out_indices)
        if self.out_indices[-1] < depth - 1:
            del blocks[self.out_indices[-1] + 1 :]
            self.parts.drop_final_norm(self.model)
        self.freeze()

    @staticmethod
    def _inner_config(
        arch: str | Mapping[str, Any] | None,
        model: Mapping[str, Any] | None,
        out_type: str | None,
        drop_path_rate: float | None,
    ) -> dict[str, Any]:
        """Config of the inner model."""
        if arch is not None and model is not None:
            raise ValueError(f"give ToMe either arch or model, got arch={arch!r} and model={model!r}")
        if drop_path_rate is not None and not 0 <= drop_path_rate < 1:
            raise ValueError(f"drop_path_rate must be in [0, 1), got {drop_path_rate}")
        if model is None:
            config = dict(type="VisionTransformer", arch=resolve_arch(arch or "deit_small", ARCHS, "ToMe"))
        elif isinstance(model, Mapping) and isinstance(model.get("type"), str):
            config = dict(model)
        else:
            raise ValueError(
                f"model must be a config with a type, such as 'mmpretrain.VisionTransformer', got {model!r}"
            )
        changes = dict(out_type=out_type, drop_path_rate=drop_path_rate)
        return config | {key: value for key, value in changes.items() if value is not None}

    @staticmethod
    def _schedule(r: Any, threshold: float | None, depth: int) -> list[int | None]:
        if threshold is not None and not -1 <= threshold <= 1:
            raise ValueError(f"threshold is a cosine similarity from -1 to 1, got {threshold!r}")
        if r is None and threshold is None:
            raise ValueError("r=None (no limit) needs a threshold; r=0 merges nothing")
        return [None] * depth if r is None else list(merge_schedule(r, depth))

    def _windows(
        self, window_size: int | None, global_blocks: Sequence[int], depth: int
    ) -> tuple[int | None, tuple[int, ...]]:
        if any(type(i) is not int or not 0 <= i < depth for i in global_blocks):
            raise ValueError(f"global_blocks must be numbers from 0 to {depth - 1}, got {global_blocks!r}")
        if window_size is None and not global_blocks:
            return None, ()
        if type(window_size) is not int or window_size < 1:
            raise ValueError(f"window_size must be at least 1 (or None without global_blocks), got {window_size!r}")
        if self.num_prefix:
            raise ValueError(
                f"window_size={window_size} needs a model without class, distillation and register tokens, which "
                "belong to no window: set with_cls_token=False and an out_type without it in `model`"
            )
        return window_size, tuple(global_blocks)

    def forward(self, x: Tensor) -> tuple[Any, ...]:
        """(B, 3, H, W) -> one output in the form of ``out_type`` for each of ``out_indices``."""
        trace = self.out_type in ("featmap", "raw")
        batch, last = x.shape[0], len(self.parts.blocks(self.model)) - 1
        outputs, tokens = [], self._embed(x)
        for i in range(last + 1):
            tokens = self._run_block(i, tokens, trace, self.out_type != "cls_token")
            if i in self.out_indices:
                y = self.parts.final_norm(self.model, tokens.x) if i == last and self._has_last_block() else tokens.x
                outputs.append(self._format(y, tokens, batch))
        return tuple(outputs)

    def run_blocks(self, x: Tensor, trace: bool = True, complete: bool = True) -> Iterator[MergedTokens]:
        """(B, 3, H, W) -> the tokens behind every block, without the final norm.

        Args:
            x: images.
            trace: follow where each token went (costs a little).
            complete: all tokens of the last block, not only class and other leading tokens.
        """
        tokens = self._embed(x)
        for i in range(len(self.parts.blocks(self.model))):
            tokens = self._run_block(i, tokens, trace, complete)
            yield tokens

    def _embed(self, x: Tensor) -> MergedTokens:
        """(B, 3, H, W) -> the tokens before the first block."""
        tokens, grid = self.parts.embed(self.model, x)
        if torch.jit.is_tracing():  # an exported graph has one size; traced, -(-a // b) would round towards zero
            grid = (int(grid[0]), int(grid[1]))
        if self.window_size is None:
            return MergedTokens(tokens, None, None, grid)
        tokens, valid = split_windows(tokens, grid, (self.window_size, self.window_size))
        size = None if valid is None else valid.to(torch.promote_types(tokens.dtype, torch.float32))
        return MergedTokens(tokens, size, None, grid)

    def _run_block(self, i: int, tokens: MergedTokens, trace: bool, complete: bool) -> MergedTokens:
        """Block number ``i``; arguments as those of :meth:`run_blocks`."""
        layer = self.parts.blocks(self.model)[i]
        merging = Merging(self.r[i], self.threshold, self.prop_attn, self.prefix)
        joined, gaps = 1, self.threshold is not None
        if self.window_size is not None:
            (height, width), side = tokens.grid, self.window_size
            joined = -(-height // side) * -(-width // side) if i in self.global_blocks else 1
            gaps = gaps or bool(height % side or width % side)
        last = i == len(self.parts.blocks(self.model)) - 1
        wanted = self.num_prefix if last and not complete else None
        run = partial(run_block, self.parts, layer, merging, joined, gaps, trace, wanted)
        saves = self.with_cp and torch.is_grad_enabled()
        arguments = (tokens.x, tokens.size)
        x, size, index, weight = checkpoint(run, *arguments, use_reentrant=False) if saves else run(*arguments)
        token_map = tokens.token_map
        if index is not None:
            step = TokenMap(index, weight, x.shape[1])
            token_map = step if token_map is None else token_map.then(step)
        return MergedTokens(x, size, token_map, tokens.grid)

    def _has_last_block(self) -> bool:
        return len(self.r) == len(self.parts.blocks(self.model))

    def _format(self, x: Tensor, tokens: MergedTokens, batch: int) -> Any:
        """Normed tokens (B * windows, M, C) in the form of ``out_type``."""
        if self.out_type == "cls_token":
            return (x[:, 0], x[:, 1]) if self.prefix["distill_token"] else x[:, 0]
        if self.out_type == "avg_featmap":
            patches = x[:, self.num_prefix :]
            if tokens.size is None:
                mean = (
                    patches.flatten(0, 1).view(batch, -1, x.shape[2]).mean(dim=1)
                    if len(x) != batch
                    else patches.mean(1)
                )
            else:
                size = tokens.size[:, self.num_prefix :].reshape(batch, -1, 1)
                patches = patches.reshape(batch, -1, x.shape[2])
                mean = ((patches * size).sum(dim=1) / size.sum(dim=1)).to(x.dtype)
            return self.parts.pooled_norm(self.model, mean)
        if tokens.token_map is not None:  # every weight is 1, but for padding of windows, which is cut off
            x = take_rows(x, tokens.token_map.index.squeeze(-1))
        if self.window_size is not None:
            window = (self.window_size, self.window_size)
            x = from_cells(x.reshape(batch, -1, window[0] * window[1], x.shape[2]), tokens.grid, window)
        if self.out_type == "raw":
            return x
        return as_output(x[:, self.num_prefix :].reshape(x.shape[0], *tokens.grid, -1).permute(0, 3, 1, 2))

    def token_maps(self, x: Tensor) -> list[tuple[int, TokenMap, tuple[int, int], tuple[int, int]]]:
        """Where every patch went, behind each of ``out_indices`` (the merge sources of the paper's pictures).

        Args:
            x: (B, 3, H, W) images.

        Returns:
            For each such block, if something has merged: its number, the map of the patches, the grid of patches, and
            (1, number of merged tokens).
        """
        if self.training:
            raise RuntimeError("token_maps() is for pictures: call eval() first, or paths would be dropped")
        maps, lead = [], self.num_prefix
        for i, tokens in enumerate(self.run_blocks(x)):
            if i not in self.out_indices or tokens.token_map is None:
                continue
            step = tokens.token_map
            if self.window_size is not None:
                step = join_windows(step, tokens.grid, (self.window_size, self.window_size))
            else:
                step = TokenMap((step.index[:, lead:] - lead).contiguous(), step.weight[:, lead:], step.num - lead)
            maps.append((i, step, tokens.grid, (1, step.num)))
        return maps

    def frozen_parts(self, upto: int) -> list[nn.Module]:
        """Embedding and blocks 0 to ``upto``, as far as they are built; with the last block also the norms behind."""
        blocks = self.parts.blocks(self.model)
        inner = getattr(self.model, "timm_model", self.model)
        other = [part for name, part in inner.named_children() if part is not blocks]
        behind = ("ln1", "ln2", "norm", "fc_norm", "head_drop", "head")
        late = [part for name, part in inner.named_children() if name in behind and upto >= self.out_indices[-1]]
        return [*(p for p in other if p not in [inner._modules.get(n) for n in behind]), *late, *blocks[: upto + 1]]

    def freeze(self) -> None:
        """Apply ``frozen_stages``, to the class token and positions as well."""
        super().freeze()
        if self.frozen_stages >= 0:
            for parameter in getattr(self.model, "timm_model", self.model)._parameters.values():
                if parameter is not None:
                    parameter.requires_grad_(False)

    def get_layer_depth(self, param_name: str, prefix: str = "") -> tuple[int, int]:
        """Depth of a parameter and number of depths, for MMPretrain's layer-wise learning rates: embedding 0, block i
        i + 1, the rest last."""
        number = len(self.r) + 2
        match = re.match(
            re.escape(prefix) + r"model\.(?:timm_model\.)?(?:(?:layers|blocks)\.(\d+)\.|(\w+))", param_name
        )
        if match is None:
            return number - 1, number
        if match.group(1) is not None:
            return int(match.group(1)) + 1, number
        return (number - 1 if match.group(2) in ("ln1", "ln2", "norm", "fc_norm") else 0), number

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        """As the parent, but keys of the plain model (without ``model.``) are taken as well: ``load_from`` and
        ``Pretrained`` read MMPretrain's checkpoints, and timm's for a model of timm. ``state_dict`` is the loader's
        own copy."""
        for name in self.parts.file_names(self.model):
            if f"{prefix}{name}" in state_dict and f"{prefix}model.{name}" not in state_dict:
                state_dict[f"{prefix}model.{name}"] = state_dict.pop(f"{prefix}{name}")
        super()._load_from_state_dict(state_dict, prefix, *args)

    def fit_official_state(self, state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
        """Resize a position table to this model's grid, in float32, and leave out what the model has no token for.

        Args:
            state: state dict of the module that is loaded.
            prefix: of this backbone's keys in it.
        """
        state = dict(state)
        self.parts.adapt_state(self.model, state, f"{prefix}model.")
        return state

    def from_official(self, state: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """A file in timm's names -> MMPretrain layout, for a model of timm; None: :func:`convert_tome` does it."""
        return self.parts.from_official(self.model, state, "backbone.model.")
