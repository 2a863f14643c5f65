"""Random numbers that depend on the place in the training, not on the process that happens to draw them.

A training that goes on from a checkpoint must see what the uninterrupted one would have seen. mmengine restores
weights, optimiser and schedules, and (from onedl-mmengine 0.10.9 on without loading anything, before by loading) the
place in the sampler's stream, but no random state: flips, crops, dropout and drop path differ after a resume. Saved
states of the generators would not help, since every process and every data-loading worker has its own. So each draw
of the sampler and each iteration gets a seed of its own, computed from the seed of the run, the rank and a counter.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.registry import DATA_SAMPLERS as MMENGINE_DATA_SAMPLERS
from mmengine.registry import DATASETS as MMENGINE_DATASETS
from mmengine.runner import Runner
from torch.utils.data import Sampler

__all__ = ["Draw", "IterationSeedHook", "SeededDataset", "SeededSampler", "derive_seed", "with_draw_seeds"]

# The last number of a derived seed, so that the seeds of draws and of iterations never coincide.
DRAWS, ITERATIONS = 0, 1


def derive_seed(*numbers: int) -> int:
    """A seed below 2^32 that is well mixed: neighbouring counters give unrelated seeds.

    Args:
        numbers: non-negative whole numbers, such as seed, rank and counter.
    """
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and PyTorch's global generators; transforms and layers draw from all three."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class Draw(int):
    """The number of a sample, with the seed for everything that is random about this one draw of it."""

    seed: int

    def __new__(cls, index: int, seed: int = 0) -> Draw:
        draw = super().__new__(cls, index)
        draw.seed = seed
        return draw


class SeededSampler(Sampler):
    """Another sampler's numbers in its order, each as a :class:`Draw`.

    Args:
        dataset: what is sampled from.
        sampler: config of the sampler.
        seed: seed of the run.
    """

    def __init__(self, dataset: Any, sampler: dict, seed: int | None = None) -> None:
        self.dataset = dataset
        self.sampler = MMENGINE_DATA_SAMPLERS.build(sampler, default_args=dict(dataset=dataset, seed=seed))
        self.seed = int(getattr(self.sampler, "seed", 0) if seed is None else seed)
        self.epoch = 0
        self._skipped = 0
        if hasattr(self.sampler, "skip"):  # mmengine's loop asks by hasattr whether a sampler can skip
            self.skip = self._skip

    def __iter__(self) -> Iterator[Any]:
        for position, index in enumerate(self.sampler, start=self._skipped):
            yield Draw(index, derive_seed(self.seed, get_rank(), self.epoch, position, DRAWS))

    def __len__(self) -> int:
        return len(self.sampler)

    def set_epoch(self, epoch: int) -> None:
        """Called before each epoch; mmengine's samplers shuffle anew."""
        self.epoch = epoch
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def _skip(self, num_samples: int) -> None:
        """Go to an absolute place in an endless stream, before iterating."""
        self.sampler.skip(num_samples)
        self._skipped = num_samples


class SeededDataset:
    """Another dataset whose sample depends on its :class:`Draw` alone, in whatever process it is loaded.

    Everything else is asked of the dataset inside, as in mmengine's own ``_SlicedDataset``.

    Args:
        dataset: config of the dataset.
    """

    def __init__(self, dataset: dict) -> None:
        self.dataset = MMENGINE_DATASETS.build(dataset)

    def __getitem__(self, index: int) -> Any:
        if isinstance(index, Draw):
            seed_everything(index.seed)
            index = int(index)
        return self.dataset[index]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        # Unpickling asks for `dataset` before __init__ has run; a `__getitems__` from inside would pass the seeds by.
        if name == "dataset" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.dataset, name)


def with_draw_seeds(loader: dict) -> dict:
    """A data loader's config in which each draw has its own seed; the config given stays as it is.

    Samplers of videos are left alone: they give pairs of numbers, and their batch samplers ask for their class.
    """
    sampler, dataset = loader.get("sampler"), loader.get("dataset")
    if not isinstance(sampler, dict) or not isinstance(dataset, dict) or "Track" in str(sampler.get("type")):
        return loader
    changed = copy.copy(loader)
    changed["sampler"] = dict(type=SeededSampler, sampler=sampler)
    changed["dataset"] = dict(type=SeededDataset, dataset=dataset)
    return changed


class IterationSeedHook(Hook):
    """Seed what the model draws in an iteration (dropout, drop path, mixing of images) by the iteration's number."""

    priority = "VERY_HIGH"

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: dict | None = None) -> None:
        """Called when the batch is loaded and before the model sees it."""
        seed_everything(derive_seed(runner.seed, runner.rank, runner.iter, ITERATIONS))
