"""Balance the losses of several tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from mmengine.model import BaseModule
from torch import Tensor, nn

from mmvit_plugins.registry import MODELS

__all__ = ["UncertaintyWeighting"]


@MODELS.register_module()
class UncertaintyWeighting(BaseModule):
    """Learn how much each task counts: ``exp(-s) L + s / 2`` with ``s = log sigma^2`` of the task.

    Source: Kendall, Gal and Cipolla, Multi-Task Learning Using Uncertainty to Weigh Losses (CVPR 2018), equation 10 in
    the form for likelihoods, for every loss alike. Fixed weights need no module: they are the ``loss_weight`` of the
    tasks, and they multiply ``L`` before this does.

    A task whose batch holds no label contributes nothing, not even to ``s``: the term ``s / 2`` alone would let it fall
    without end.

    Args:
        init_log_variance: ``s`` of every task at the start; 0 is a weight of 1.
    """

    def __init__(self, init_log_variance: float = 0.0) -> None:
        super().__init__()
        self.init_log_variance = init_log_variance
        self.log_variance = nn.ParameterDict()

    def set_tasks(self, names: Sequence[str]) -> None:
        """Make one ``s`` for each task; the model calls this once when it is built."""
        for name in names:
            self.log_variance[name] = nn.Parameter(torch.full((), float(self.init_log_variance)))

    def forward(self, losses: Mapping[str, Tensor], labelled: Mapping[str, bool]) -> dict[str, Tensor]:
        """Weigh the scalar loss of each task.

        Args:
            losses: one scalar for each task.
            labelled: whether the batch holds a label of the task.

        Returns:
            One scalar for each task.
        """
        weighted = {}
        for name, loss in losses.items():
            log_variance = self.log_variance[name]
            if labelled[name]:
                weighted[name] = torch.exp(-log_variance) * loss + 0.5 * log_variance
            else:
                weighted[name] = loss + 0.0 * log_variance  # in the graph, for DDP
        return weighted
