"""One set of batch-norm statistics for all processes, whenever somebody looks at them."""

from __future__ import annotations

from mmengine.dist import all_reduce_params
from mmengine.hooks import CheckpointHook, Hook
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmvit_plugins.registry import HOOKS

__all__ = ["SharedStatisticsHook", "share_statistics"]


def share_statistics(model: nn.Module) -> None:
    """Replace the running mean and variance of every batch norm by their averages over all processes."""
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]
    if norms:
        all_reduce_params([buffer for m in norms for buffer in (m.running_mean, m.running_var)], op="mean")


@HOOKS.register_module()
class SharedStatisticsHook(Hook):
    """Average batch-norm statistics over the processes before each validation and each checkpoint.

    Plain batch norm keeps its statistics in each process, and mmengine synchronises no buffers. Each process then
    validates another model, the checkpoint holds that of the first, and a resumed training goes on with it everywhere.
    mmengine's SyncBuffersHook acts at the end of an epoch only, which trainings by iteration never reach.
    """

    priority = "LOW"  # before CheckpointHook, which has VERY_LOW

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: dict | None = None, outputs: dict | None = None
    ) -> None:
        """Before what follows this iteration in a training by iterations."""
        intervals = [hook.interval for hook in runner.hooks if isinstance(hook, CheckpointHook) and not hook.by_epoch]
        if not isinstance(runner.train_loop, EpochBasedTrainLoop):  # which counts val_interval in epochs
            intervals.append(runner.train_loop.val_interval)
        due = any(self.every_n_train_iters(runner, interval) for interval in intervals if interval > 0)
        if due or self.is_last_train_iter(runner):
            share_statistics(runner.model)

    def after_train_epoch(self, runner: Runner) -> None:
        """Before what follows an epoch."""
        share_statistics(runner.model)
