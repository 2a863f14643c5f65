"""mmengine's Runner, with messages that name files and counts, and a resume that repeats what would have come."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mmengine.dist import master_only
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from mmengine.runner.base_loop import BaseLoop
from torch import nn
from torch.utils.data import DataLoader

from .checkpoint_report import report_match
from .damaged_files import name_damaged_samples, reading_checkpoint
from .reproducible_draws import IterationSeedHook, with_draw_seeds
from .resume_point import UNFINISHED, find_resume_point, publish_whole_file, read_training_state
from .shared_statistics_hook import SharedStatisticsHook

__all__ = ["ReportingRunner"]


class ReportingRunner(Runner):
    """A Runner that can be killed at any time, and names what is damaged.

    Any config that mmengine's Runner takes works. What is more than mmengine's:

    * A damaged image or checkpoint is named, and of a checkpoint is said how much fits the model.
    * Checkpoints appear under their name when they are complete, and a damaged one is passed over in an automatic
      resume.
    * A resumed training draws the same samples, augmentations and dropout as an uninterrupted one, in every process
      and with any number of workers; see :mod:`.reproducible_draws`. Without a seed in the config, the one of the
      interrupted training is used.
    * Several processes validate, and save, the same batch-norm statistics.
    """

    _only_tests = False

    def test(self) -> dict[str, float]:
        """As mmengine's, but a checkpoint that lacks a whole part of the model is refused.

        Raises:
            ValueError: the checkpoint has no tensor of a head, a neck or a backbone.
        """
        self._only_tests = True
        return super().test()

    def train(self) -> nn.Module:
        """As mmengine's, from the newest whole checkpoint if the config says ``resume`` and names none.

        Raises:
            DamagedFileError: the checkpoint to resume from cannot be read.
        """
        if self._resume and not self._has_loaded:
            self._choose_resume_point()
        return super().train()

    def _choose_resume_point(self) -> None:
        if self._load_from is None:
            self._load_from = find_resume_point(self.work_dir, self.logger.warning)
        if self._load_from is None:
            self.logger.warning(f"nothing to resume: {self.work_dir} holds no checkpoint. Starting from the beginning.")
            self._resume = False
            return
        # mmengine takes over the seed as well, but only after it has built the sampler with another one.
        seed = read_training_state(self._load_from)["meta"].get("seed")
        if seed is not None and self._randomness_cfg.get("seed") is None:
            self._randomness_cfg = {**self._randomness_cfg, "seed": seed}
            self.set_randomness(**self._randomness_cfg)

    def build_train_loop(self, loop: BaseLoop | dict) -> BaseLoop:
        """As mmengine's, on a data loader in which each draw of a sample has a seed of its own."""
        if isinstance(self._train_dataloader, dict):
            self._train_dataloader = with_draw_seeds(self._train_dataloader)
        return super().build_train_loop(loop)

    def register_hooks(
        self,
        default_hooks: dict[str, Hook | dict] | None = None,
        custom_hooks: list[Hook | dict] | None = None,
    ) -> None:
        """As mmengine's, one that seeds each iteration, and one that keeps the processes' models equal."""
        super().register_hooks(default_hooks, custom_hooks)
        self.register_hook(IterationSeedHook())
        if self.distributed:
            self.register_hook(SharedStatisticsHook())

    @master_only
    def save_checkpoint(self, out_dir: str, filename: str, *args: Any, **kwargs: Any) -> None:
        """As mmengine's; on a local disk the file gets its name when it is complete."""
        if "://" in out_dir or any(kwargs.get(key) for key in ("backend_args", "file_client_args")) or any(args[:1]):
            super().save_checkpoint(out_dir, filename, *args, **kwargs)
            return
        super().save_checkpoint(out_dir, filename + UNFINISHED, *args, **kwargs)
        publish_whole_file(Path(out_dir, filename + UNFINISHED), Path(out_dir, filename))

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
            ValueError: not one tensor of the file fits the model, or it is to be tested and a part of it is missing.
        """
        with reading_checkpoint(filename):
            checkpoint = super().load_checkpoint(filename, map_location, strict, list(revise_keys))
        model = self.model.module if is_model_wrapper(self.model) else self.model
        message = report_match(model, checkpoint, filename, whole=self._only_tests)
        self.logger.info(message)
        return checkpoint
