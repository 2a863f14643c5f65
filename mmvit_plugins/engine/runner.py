"""mmengine's Runner, with messages that name files and counts. What it does is unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from .checkpoint_report import report_match
from .damaged_files import name_damaged_samples, reading_checkpoint

__all__ = ["ReportingRunner"]


class ReportingRunner(Runner):
    """A Runner that names a damaged image or checkpoint, and says how much of a checkpoint fits the model.

    Any config that mmengine's Runner takes works, with the same results.
    """

    @staticmethod
    def build_dataloader(
        dataloader: DataLoader | dict, seed: int | None = None, diff_rank_seed: bool = False
    ) -> DataLoader:
        """Build the loader as mmengine does; its loading transforms then name the file that they fail on."""
        loader = Runner.build_dataloader(dataloader, seed, diff_rank_seed)
        name_damaged_samples(loader.dataset)
        return loader

    def load_checkpoint(
        self,
        filename: str,
        map_location: str | Callable = "cpu",
        strict: bool = False,
        revise_keys: list | tuple = ((r"^module.", ""),),
    ) -> dict[str, Any]:
        """Load ``filename`` into the model and log "n of m tensors loaded".

        Raises:
            DamagedFileError: the file cannot be read.
            ValueError: not one tensor of the file fits the model.
        """
        with reading_checkpoint(filename):
            checkpoint = super().load_checkpoint(filename, map_location, strict, list(revise_keys))
        model = self.model.module if is_model_wrapper(self.model) else self.model
        message = report_match(model, checkpoint, filename)
        self.logger.info(message)
        return checkpoint
