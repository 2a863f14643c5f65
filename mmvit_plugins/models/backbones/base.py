"""What every backbone of this package promises, in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmengine.model import BaseModule
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["FreezableBackbone", "HierarchicalBackbone", "resolve_arch", "resolve_out_indices"]


def resolve_arch(arch: str | Mapping[str, Any], table: Mapping[str, Mapping[str, Any]], who: str) -> dict[str, Any]:
    """The settings of an architecture given by name or as a mapping with the same keys as those of ``table``.

    Raises:
        ValueError: unknown name, or a mapping with missing or unknown keys.
    """
    if isinstance(arch, str):
        if arch not in table:
            raise ValueError(f"{who} has no arch {arch!r}. Legal names: {', '.join(table)}; or give a mapping.")
        return dict(table[arch])
    wanted = set(next(iter(table.values())))
    if not isinstance(arch, Mapping) or set(arch) != wanted:
        got = sorted(arch) if isinstance(arch, Mapping) else arch
        raise ValueError(f"arch of {who} is a name or a mapping with the keys {sorted(wanted)}, got {got!r}")
    return dict(arch)


def resolve_out_indices(out_indices: int | Sequence[int], num_stages: int, who: str) -> tuple[int, ...]:
    """``out_indices`` as a strictly increasing tuple of stage numbers; negative ones count from the last stage.

    Raises:
        ValueError: empty, out of range, repeated or not in increasing order.
    """
    given = tuple(out_indices) if isinstance(out_indices, Sequence) else (out_indices,)
    legal = all(isinstance(i, int) and -num_stages <= i < num_stages for i in given)
    resolved = tuple(i % num_stages for i in given) if legal else ()
    if not resolved or any(a >= b for a, b in zip(resolved, resolved[1:], strict=False)):
        raise ValueError(
            f"out_indices of {who} must be stage numbers from 0 to {num_stages - 1} (or negative, -1 being the last), "
            f"each once and in increasing order, got {out_indices!r}"
        )
    return resolved


class FreezableBackbone(BaseModule):
    """Base of all backbones: the first stages can be frozen. A subclass sets ``frozen_stages`` and calls
    :meth:`freeze` at the end of its ``__init__``."""

    frozen_stages = -1

    def set_frozen_stages(self, frozen_stages: int, num_stages: int) -> None:
        """Store ``frozen_stages``; :meth:`freeze` applies it once everything is built.

        Raises:
            ValueError: not from -1 (nothing) to ``num_stages`` - 1.
        """
        if type(frozen_stages) is not int or not -1 <= frozen_stages < num_stages:
            raise ValueError(
                f"frozen_stages of {type(self).__name__} must be from -1 (nothing) to {num_stages - 1}, "
                f"got {frozen_stages!r}"
            )
        self.frozen_stages = frozen_stages

    def frozen_parts(self, upto: int) -> list[nn.Module]:
        """The stem and stages 0 to ``upto``, as far as they are built."""
        raise NotImplementedError

    def freeze(self) -> None:
        """Apply ``frozen_stages``."""
        if self.frozen_stages >= 0:
            for part in self.frozen_parts(self.frozen_stages):
                part.requires_grad_(False)

    def train(self, mode: bool = True) -> FreezableBackbone:
        """As ``nn.Module.train``, but frozen parts stay in eval mode."""
        super().train(mode)
        if mode and self.frozen_stages >= 0:
            for part in self.frozen_parts(self.frozen_stages):
                part.eval()
        return self


class HierarchicalBackbone(FreezableBackbone):
    """Base of backbones with stages: outputs, freezing and train mode.

    A subclass sets ``self.out_channels`` and ``self.out_strides`` (one entry for each of ``out_indices``), builds
    stages up to ``max(out_indices)`` only, so that no parameter is unused under DDP, and implements
    :meth:`frozen_parts`.

    Args:
        num_stages: stages of the whole architecture.
        out_indices: stages whose maps are returned.
        frozen_stages: -1: nothing is frozen; k: the stem and stages 0 to k have no gradient and stay in eval mode.
        norm_eval: keep every batch norm in eval mode.
        init_cfg: mmengine's initialisation config.

    Raises:
        ValueError: ``out_indices`` or ``frozen_stages`` is outside its legal values.
    """

    out_channels: tuple[int, ...]
    out_strides: tuple[int, ...]

    def __init__(
        self,
        num_stages: int,
        out_indices: int | Sequence[int],
        frozen_stages: int = -1,
        norm_eval: bool = False,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        super().__init__(init_cfg=init_cfg)
        self.out_indices = resolve_out_indices(out_indices, num_stages, type(self).__name__)
        self.set_frozen_stages(frozen_stages, num_stages)
        self.norm_eval = norm_eval

    def train(self, mode: bool = True) -> HierarchicalBackbone:
        """As ``nn.Module.train``, but frozen parts (and all batch norms with ``norm_eval``) stay in eval mode."""
        super().train(mode)
        if mode and self.norm_eval:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self
