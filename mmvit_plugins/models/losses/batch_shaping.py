"""Batch shaping: match the distribution of gate values to a prior, so that gates neither collapse nor ignore the image.

Source: Ehteshami Bejnordi et al. (ICLR 2020) for the loss of one array, "MSViT" (arXiv 2307.02321) for the generalised
form: a prior of its own, with learned parameters, for each position in the image, and a hyperprior over these. Written
from the equations; the released demo averages over positions and over the values of an array, a formula beside it sums
over positions: ``reduction`` says which.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from mmengine import dist
from mmengine.model import BaseModule
from torch import Tensor, nn

from mmvit_plugins.registry import MODELS

__all__ = ["BatchShapingLoss", "cdf_distance", "normal_cdf", "relaxed_bernoulli_cdf"]

REDUCTIONS = ("mean", "sum")
EDGE = 1e-3


def relaxed_bernoulli_cdf(x: Tensor, mean: Tensor, temperature: Tensor) -> Tensor:
    """sigmoid(temperature * (log x - log(1 - x)) - logit(mean)), x clipped to [1e-3, 1 - 1e-3].

    That of sigmoid((logit(mean) + logistic noise) / temperature), as :func:`gumbel_sigmoid` draws it.

    Args:
        x: values in [0, 1].
        mean: probability of the Bernoulli variable, broadcast.
        temperature: > 0, broadcast.
    """
    return (temperature * x.clamp(EDGE, 1 - EDGE).logit() - mean.logit()).sigmoid()


def normal_cdf(x: Tensor, mean: float, std: float) -> Tensor:
    """(1 + erf((x - mean) / (std sqrt 2))) / 2."""
    return 0.5 * (1 + torch.erf((x - mean) / (std * math.sqrt(2))))


def cdf_distance(values: Tensor, cdf: Tensor) -> Tensor:
    """Mean squared distance of the empirical distribution from a prior, along the first dimension.

    (1 / N) sum_i (i / (N + 1) - F(x_(i)))^2, values sorted in rising order; equal values keep their places i.

    Args:
        values: (N, ...), decide the order.
        cdf: (N, ...), the prior's distribution function at each of them, rising in the value.

    Returns:
        (...).
    """
    count = values.shape[0]
    order = values.detach().argsort(dim=0)
    ranks = torch.arange(1, count + 1, device=values.device, dtype=cdf.dtype) / (count + 1)
    return (ranks.view(-1, *[1] * (values.dim() - 1)) - cdf.gather(0, order)).square().mean(dim=0)


def _of_all_processes(values: Tensor) -> Tensor:
    """Values (N, K) of this process -> those of all processes (world size * N, K), if all have as many; else its own.

    The gradient of its own values is multiplied by the number of processes, since DDP divides the sum of gradients by
    it: a step is that of one process with the whole batch.
    """
    world = dist.get_world_size()
    if world == 1:
        return values
    shapes = dist.all_gather(torch.tensor(values.shape, device=values.device))
    if any(not torch.equal(shape, shapes[0]) for shape in shapes):
        return values
    parts = dist.all_gather(values.detach().contiguous())
    parts[dist.get_rank()] = values * world - values.detach() * (world - 1)
    return torch.cat(parts)


@MODELS.register_module()
class BatchShapingLoss(BaseModule):
    """Generalised batch shaping (GBaS): L = w (L_prior + L_hyper + 0.1 mean tau).

    L_prior: for each position k, the distance of the gate values of the batch from a relaxed Bernoulli prior with
    learned mean mu_k and temperature tau_k. L_hyper: the distance of the mu_k from a normal distribution whose mean is
    the target share and whose standard deviation says how far positions may differ. mu and tau are sigmoids of free
    parameters; a penalty pulls tau down (weight 0.1 in the released demo).

    Ours: mu starts at the target; for grids other than ``grid`` the free parameters are interpolated; the batch is that
    of all processes (``sync``). A batch of few images has too few values for a target far from 0.5: with two images and
    a target of 0.25 the loss alone ends at a share of 0.09, with one image at 0 (docs/msvit.md).

    Args:
        target: share of coarse tokens, in (0, 1).
        grid: (h, w) of the table of positions, as many as there are coarse patches in training.
        hyper_std: standard deviation of the hyperprior.
        temperature_weight: of the penalty on the temperatures.
        reduction: over positions; ``'mean'`` (the released function) or ``'sum'`` (the notebook's formula, larger by
            the number of positions). Over the values of an array it is always the mean.
        loss_weight: w.
        sync: gather the gate values of all processes (if all have batches and grids of one size), as SyncBatchNorm
            does; a step with several processes is then that of one with the whole batch.

    Raises:
        ValueError: an argument is outside its legal values.
    """

    def __init__(
        self,
        target: float = 0.5,
        grid: tuple[int, int] = (7, 7),
        hyper_std: float = 0.1,
        temperature_weight: float = 0.1,
        reduction: str = "mean",
        loss_weight: float = 1.0,
        sync: bool = True,
    ) -> None:
        super().__init__()
        if not 0 < target < 1 or not hyper_std > 0 or not loss_weight >= 0 or not temperature_weight >= 0:
            raise ValueError(
                "target must be in (0, 1), hyper_std above 0, loss_weight and temperature_weight at least 0, got "
                f"{target!r}, {hyper_std!r}, {loss_weight!r}, {temperature_weight!r}"
            )
        if reduction not in REDUCTIONS:
            raise ValueError(f"reduction must be one of {REDUCTIONS}, got {reduction!r}")
        if len(grid) != 2 or min(grid) < 1:
            raise ValueError(f"grid must be a height and a width of at least 1, got {grid!r}")
        self.target, self.hyper_std, self.temperature_weight = target, hyper_std, temperature_weight
        self.reduction, self.loss_weight, self.sync = reduction, loss_weight, sync
        self.mean = nn.Parameter(torch.full(tuple(grid), math.log(target / (1 - target))))
        self.temperature = nn.Parameter(torch.zeros(tuple(grid)))

    def prior(self, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """(h * w) means and temperatures for a grid of coarse patches."""
        tables = [self.mean, self.temperature]
        if tuple(self.mean.shape) != tuple(grid):
            resize = dict(size=tuple(grid), mode="bilinear", align_corners=False)
            tables = [F.interpolate(t[None, None], **resize)[0, 0] for t in tables]
        return tuple(t.flatten().float().sigmoid() for t in tables)

    def forward(self, values: Tensor, grid: tuple[int, int]) -> dict[str, Tensor]:
        """Losses by name.

        Args:
            values: (B, h * w) gate values in [0, 1].
            grid: (h, w) of the coarse patches.
        """
        with torch.autocast(values.device.type, enabled=False):
            values = _of_all_processes(values.float()) if self.sync else values.float()
            mean, temperature = self.prior(grid)
            prior = cdf_distance(values, relaxed_bernoulli_cdf(values, mean, temperature))
            prior = prior.mean() if self.reduction == "mean" else prior.sum()
            hyper = cdf_distance(mean, normal_cdf(mean, self.target, self.hyper_std))
            penalty = self.temperature_weight * temperature.mean()
            named = dict(loss_gate_prior=prior, loss_gate_hyper=hyper, loss_gate_temperature=penalty)
            return {name: self.loss_weight * value for name, value in named.items()}
