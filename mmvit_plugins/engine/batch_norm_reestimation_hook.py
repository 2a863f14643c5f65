"""Statistics of batch norms for the weights that are validated and saved."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from mmengine.dist import all_reduce_params, get_world_size
from mmengine.hooks import EMAHook, Hook
from mmengine.model import is_model_wrapper
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import update_bn

from mmvit_plugins.registry import HOOKS

__all__ = ["BatchNormReestimationHook"]


@HOOKS.register_module()
class BatchNormReestimationHook(Hook):
    """Compute the running means and variances of all batch norms again, with fixed weights, before each validation.

    With an ``EMAHook`` they are those of its averaged weights, which are what is validated and saved: averaging the
    statistics of other weights, seen at other sizes, is not the same. MMPretrain's ``PreciseBNHook`` does it for the
    weights in training. Images come from the training loader at its own size, unmixed; the mean is over batches of all
    processes. Source: EfficientViT's ImageNet recipe; their number of images is not known to us.

    Args:
        num_samples: images to look at, of all processes together; a short training set is looked at once.
        interval: epochs between two estimates; the last epoch always has one.

    Raises:
        ValueError: a number below 1.
        RuntimeError: the training counts iterations instead of epochs (its loader is in the middle of a pass then).
    """

    # After an epoch's last update, before the checkpoint is written (CheckpointHook is VERY_LOW).
    priority = "NORMAL"

    def __init__(self, num_samples: int = 8192, interval: int = 1) -> None:
        if num_samples < 1 or interval < 1:
            raise ValueError(f"num_samples and interval must be at least 1, got {num_samples} and {interval}")
        self.num_samples = num_samples
        self.interval = interval

    def before_train(self, runner: Runner) -> None:
        """Refuse a loop whose loader cannot be read in between."""
        if not isinstance(runner.train_loop, EpochBasedTrainLoop):
            raise RuntimeError("BatchNormReestimationHook needs a training by epochs (train_cfg.by_epoch=True)")

    def after_train_epoch(self, runner: Runner) -> None:
        """The estimate."""
        if not (self.every_n_epochs(runner, self.interval) or self.is_last_train_epoch(runner)):
            return
        averages = next((hook for hook in runner.hooks if isinstance(hook, EMAHook)), None)
        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        model = model if averages is None else averages.ema_model.module
        norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
        if not norms:
            return
        training = model.training
        update_bn(self._batches(runner, model), model)
        model.train(training)
        # Every process has seen its share of the images.
        all_reduce_params([buffer for norm in norms for buffer in (norm.running_mean, norm.running_var)], op="mean")
        runner.logger.info(f"statistics of {len(norms)} batch norms computed again")

    def _batches(self, runner: Runner, model: nn.Module) -> Iterator[Tensor]:
        """Normalised images of the training loader, (B, 3, H, W)."""
        loader = runner.train_dataloader
        batches = -(-self.num_samples // (loader.batch_size * get_world_size()))
        for batch in itertools.islice(loader, batches):
            yield model.data_preprocessor(batch, False)["inputs"]
