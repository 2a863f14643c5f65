"""Short lines about a running training, for a person at a terminal or a log file."""

from __future__ import annotations

import math
import time

from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmvit_plugins.registry import HOOKS

__all__ = ["ConsoleProgressHook"]


@HOOKS.register_module()
class ConsoleProgressHook(Hook):
    """Print iteration, loss and remaining time every few seconds, and the metric after each validation.

    Made for runs whose host log goes to a file only; it prints whole lines, so it reads well in a pipe, too.

    Args:
        seconds: least time between two lines.
        metric: the validation metric to print.
    """

    priority = "LOW"

    def __init__(self, seconds: float = 5.0, metric: str = "mIoU") -> None:
        self.seconds = seconds
        self.metric = metric
        self._start = self._printed = 0.0
        self._first_iter = 0

    def before_train(self, runner: Runner) -> None:
        """Start the clock; a resumed run starts at its own iteration."""
        self._start, self._first_iter = time.monotonic(), runner.iter
        self._printed = -math.inf

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: dict | None = None, outputs: dict | None = None
    ) -> None:
        """Print a line if the last one is old enough, and for the last iteration."""
        now, done = time.monotonic(), runner.iter + 1
        if not is_main_process() or (now - self._printed < self.seconds and done < runner.max_iters):
            return
        self._printed = now
        per_iter = (now - self._start) / (done - self._first_iter)
        left = (runner.max_iters - done) * per_iter
        loss = f"  loss {float(outputs['loss'].detach()):.3f}" if outputs and "loss" in outputs else ""
        width = len(str(runner.max_iters))
        print(
            f"  {done:>{width}}/{runner.max_iters}{loss}  {per_iter:.2f} s/iteration  "
            f"about {int(left // 60)}:{int(left % 60):02d} left",
            flush=True,
        )

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Print the metric."""
        if is_main_process() and metrics and self.metric in metrics:
            print(f"  validation: {self.metric} {float(metrics[self.metric]):.1f}", flush=True)
