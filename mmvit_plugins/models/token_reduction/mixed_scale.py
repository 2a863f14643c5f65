"""Two scales of tokens: a gate decides for each coarse patch whether it is one token or its fine ones.

Source: Havtorn, Royer, Blankevoort, Ehteshami Bejnordi, "MSViT: Dynamic Mixed-Scale Tokenization for Vision
Transformers", ICCV 2023 workshops (arXiv 2307.02321). Only the loss was released; what the paper leaves open is marked
"ours" here and in docs/msvit.md.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from torch import Tensor, nn

from mmvit_plugins.registry import MODELS

from .token_map import TokenMap

__all__ = ["FixedGate", "Gate", "MixedScaleMap", "MixedScales", "PatchGate", "RandomGate", "gumbel_sigmoid"]

# Standard deviation of the pixels of a patch, in normalised images; only a start.
TYPICAL_CONTRAST = 0.4
SCALES = ("fine", "coarse")


def gumbel_sigmoid(logits: Tensor, temperature: float, noise: bool) -> tuple[Tensor, Tensor]:
    """A relaxed Bernoulli sample and its straight-through decision.

    m = sigmoid((logit + log u - log(1 - u)) / temperature) with u uniform in (0, 1); without noise u = 1/2. The
    decision is 1 where m > 0.5 and has the gradient of m.

    Args:
        logits: log odds of a 1.
        temperature: > 0.
        noise: draw u.

    Returns:
        m and the decision, both of the shape of ``logits``.
    """
    if noise:
        tiny = torch.finfo(logits.dtype).eps
        u = torch.rand_like(logits).clamp(tiny, 1 - tiny)
        logits = logits + u.log() - torch.log1p(-u)
    soft = (logits / temperature).sigmoid()
    # Not soft > 0.5, whose rounding would hide the sign of small logits.
    hard = (logits > 0).to(soft.dtype)
    return soft, hard + soft - soft.detach()


class Gate(BaseModule):
    """Decides for each coarse patch whether it stays one token."""

    @abstractmethod
    def forward(self, patches: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Values and decisions of all coarse patches.

        Args:
            patches: (B, M, P) pixels of the coarse patches in raster order.
            grid: (h, w) of the coarse patches, M = h * w.

        Returns:
            (B, M) values in [0, 1] and (B, M) decisions, 1 = coarse, with the gradient of the values.
        """


@MODELS.register_module()
class PatchGate(Gate):
    """The learned gate: a small MLP on the pixels of each coarse patch.

    The paper's: local to the patch, an MLP of 4 layers, Gumbel noise and straight-through in training, no noise and a
    threshold of 0.5 at test. Ours: the width, GELU, the patch's mean subtracted from its pixels (a smooth patch is the
    same whatever its colour), the temperature, the start at a share, and that the values (for the loss) are without the
    noise of the decisions: else a constant gate would have the distribution of the prior by its noise alone. Ours too:
    the logit begins as -contrast * log(standard deviation of the patch), a learned term beside the MLP. The loss
    spreads the values over images, but does not say in which direction; from a random start that direction is random.

    Args:
        in_features: pixels of a coarse patch times channels; set by the backbone.
        channels: channels of the image; set by the backbone.
        hidden: width of the three hidden layers.
        temperature: of the relaxation.
        noise: draw Gumbel noise in training.
        init_share: probability of "coarse" with which an untrained gate begins, for a patch of typical contrast.
        contrast: start of the weight of the contrast; smooth patches begin as coarse. 0: by the MLP alone.

    Raises:
        ValueError: an argument is outside its legal values.
    """

    def __init__(
        self,
        in_features: int,
        channels: int = 3,
        hidden: int = 64,
        temperature: float = 0.5,
        noise: bool = True,
        init_share: float = 0.5,
        contrast: float = 2.0,
    ) -> None:
        super().__init__()
        if not temperature > 0 or not 0 < init_share < 1:
            raise ValueError(
                f"temperature must be above 0 and init_share in (0, 1), got {temperature!r} and {init_share!r}"
            )
        self.channels, self.temperature, self.noise, self.init_share = channels, temperature, noise, init_share
        widths = (in_features, hidden, hidden, hidden)
        self.hidden = nn.Sequential(
            *(nn.Sequential(nn.Linear(a, b), nn.GELU()) for a, b in zip(widths, widths[1:], strict=False))
        )
        self.decide = nn.Linear(hidden, 1)
        self.contrast = nn.Parameter(torch.tensor([-float(contrast)])) if contrast else None

    def init_weights(self) -> None:
        """Hidden layers keep their scale (He); the last begins at the share, with small weights."""
        for layer in self.hidden:
            nn.init.kaiming_normal_(layer[0].weight, nonlinearity="relu")
            nn.init.zeros_(layer[0].bias)
        nn.init.normal_(self.decide.weight, std=0.02)
        nn.init.constant_(self.decide.bias, torch.logit(torch.tensor(self.init_share)).item())

    def logits(self, patches: Tensor) -> Tensor:
        """(B, M, P) -> (B, M) log odds of "coarse", in at least float32 outside autocast."""
        # Also where the weights are in half precision: near 0 its rounding would turn decisions over.
        dtype = torch.promote_types(self.decide.weight.dtype, torch.float32)
        x = patches.to(dtype).unflatten(2, (self.channels, -1))
        x = x - x.mean(dim=-1, keepdim=True)
        contrast = 0.5 * (x.square().mean(dim=(2, 3)) + 1e-6).log() - math.log(TYPICAL_CONTRAST)
        x = x.flatten(2)
        with torch.autocast(x.device.type, enabled=False):
            for linear, activation in self.hidden:
                x = activation(F.linear(x, linear.weight.to(dtype), linear.bias.to(dtype)))
            logits = F.linear(x, self.decide.weight.to(dtype), self.decide.bias.to(dtype)).squeeze(-1)
        return logits if self.contrast is None else logits + self.contrast.to(dtype) * contrast

    def forward(self, patches: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """See the base class."""
        logits = self.logits(patches)
        _, decision = gumbel_sigmoid(logits, self.temperature, self.noise and self.training)
        return (logits / self.temperature).sigmoid(), decision


@MODELS.register_module()
class RandomGate(Gate):
    """The control of the learned gate: a fixed share of the coarse patches, at random places.

    In training places come from PyTorch's global generator; in eval mode they are the same for every image and call.

    Args:
        in_features: ignored, for the place of a :class:`PatchGate`.
        channels: likewise.
        share: of the coarse patches that stay coarse.
        seed: of the places in eval mode.
    """

    def __init__(self, in_features: int = 0, channels: int = 3, share: float = 0.5, seed: int = 0) -> None:
        super().__init__()
        if not 0 <= share <= 1:
            raise ValueError(f"share must be in [0, 1], got {share!r}")
        self.share, self.seed = share, seed

    def forward(self, patches: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """See the base class."""
        batch, count = int(patches.shape[0]), grid[0] * grid[1]
        if self.training:
            order = torch.rand(batch, count, device=patches.device).argsort(dim=1)
        else:
            generator = torch.Generator().manual_seed(self.seed)
            order = torch.randperm(count, generator=generator).to(patches.device).expand(batch, -1)
        coarse = (order < round(self.share * count)).to(torch.promote_types(patches.dtype, torch.float32))
        return coarse, coarse


@MODELS.register_module()
class FixedGate(Gate):
    """All patches fine (a plain ViT) or all coarse.

    Args:
        in_features: ignored, for the place of a :class:`PatchGate`.
        channels: likewise.
        scale: ``'fine'`` or ``'coarse'``.
    """

    def __init__(self, in_features: int = 0, channels: int = 3, scale: str = "fine") -> None:
        super().__init__()
        if scale not in SCALES:
            raise ValueError(f"scale must be one of {SCALES}, got {scale!r}")
        self.scale = scale

    def forward(self, patches: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """See the base class."""
        dtype = torch.promote_types(patches.dtype, torch.float32)
        coarse = patches.new_full(patches.shape[:2], float(self.scale == "coarse"), dtype=dtype)
        return coarse, coarse


class MixedScaleMap(TokenMap):
    """Each cell belongs to its fine and to its coarse token, with the weights 1 - m and m of the gate's decision.

    While training the decision has a gradient, which :meth:`restore` passes on for both choices.
    """

    def restore(self, y: Tensor, base: Tensor | None = None) -> Tensor:
        """(B, M, C) -> (B, N, C), as in the base class."""
        if base is not None or not self.weight.requires_grad:
            return super().restore(y, base)
        self._check(y, self.num, "restore")
        parts = [y.gather(1, self.index[:, :, k, None].expand(-1, -1, y.shape[2])) for k in (0, 1)]
        return sum(p * self.weight[:, :, k, None].to(y.dtype) for k, p in enumerate(parts))


@dataclass(frozen=True, eq=False)
class MixedScales:
    """Which of the tokens of both scales are in use: the fine ones of the padded grid, then the coarse ones.

    Args:
        coarse: (B, h * w / ratio^2) decisions of the coarse patches, 1 = coarse.
        grid: (h, w) of the fine cells, as the image has them.
        ratio: fine cells on the side of a coarse patch.
    """

    coarse: Tensor
    grid: tuple[int, int]
    ratio: int

    @property
    def coarse_grid(self) -> tuple[int, int]:
        """(h, w) of the coarse patches."""
        return -(-self.grid[0] // self.ratio), -(-self.grid[1] // self.ratio)

    @property
    def padded_grid(self) -> tuple[int, int]:
        """(h, w) of the fine cells, in whole coarse patches."""
        rows, cols = self.coarse_grid
        return rows * self.ratio, cols * self.ratio

    def cells(self) -> tuple[Tensor, Tensor]:
        """(h * w) long: of each cell of the image its fine token and its coarse patch."""
        (height, width), (_, padded), device = self.grid, self.padded_grid, self.coarse.device
        y, x = torch.arange(height, device=device).view(-1, 1), torch.arange(width, device=device)
        patch = (y // self.ratio) * self.coarse_grid[1] + x // self.ratio
        return (y * padded + x).flatten(), patch.flatten()

    def values(self, coarse: Tensor) -> Tensor:
        """(B, M) values -> (B, fine + coarse): 1 - value for fine tokens (0 in padding), then the values."""
        rows, cols = self.coarse_grid
        height, width = self.padded_grid
        fine = (1 - coarse).view(-1, rows, 1, cols, 1).expand(-1, -1, self.ratio, -1, self.ratio)
        fine = fine.reshape(-1, height, width)
        if self.padded_grid != self.grid:
            y, x = torch.arange(height, device=fine.device), torch.arange(width, device=fine.device)
            fine = fine * ((y < self.grid[0]).view(-1, 1) & (x < self.grid[1])).to(fine.dtype)
        return torch.cat([fine.flatten(1), coarse], dim=1)

    def whole_map(self) -> MixedScaleMap:
        """Cells -> tokens of both scales."""
        token, patch = self.cells()
        fine = self.padded_grid[0] * self.padded_grid[1]
        batch = self.coarse.shape[0]
        index = torch.stack([token, fine + patch], dim=-1).expand(batch, -1, -1)
        share = self.coarse[:, patch]
        return MixedScaleMap(index, torch.stack([1 - share, share], dim=-1), fine + self.coarse.shape[1])

    def kept_map(self, order: Tensor) -> TokenMap:
        """Cells -> places of the kept tokens; cells whose token was not kept have weight 0.

        Args:
            order: (B, L) long, tokens of both scales that are kept.
        """
        token, patch = self.cells()
        count = self.padded_grid[0] * self.padded_grid[1]
        chosen = torch.where(self.coarse[:, patch] > 0.5, count + patch, token)
        batch, kept = order.shape
        place = torch.full((batch, count + self.coarse.shape[1]), kept, device=order.device)
        place = place.scatter(1, order, torch.arange(kept, device=order.device).expand_as(order)).gather(1, chosen)
        weight = (place < kept).to(self.coarse.dtype)
        return TokenMap(place.clamp_max(kept - 1).unsqueeze(-1), weight.unsqueeze(-1), kept)
