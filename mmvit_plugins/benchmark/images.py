"""Images to measure on."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..cli.errors import UserError

__all__ = ["SCENE_SEED", "check_photographs", "load_images"]

#: Seed of the rendered scenes (of the test split): which does not matter, that it is always the same does.
SCENE_SEED = 0


@functools.lru_cache(maxsize=64)
def _scene(index: int, size: tuple[int, int]) -> Tensor:
    """(3, H, W) uint8 RGB of a rendered scene."""
    from mmvit_plugins.datasets.scenes import render_scene

    return _channels_first(render_scene(SCENE_SEED, "test", index, size).rgb)


@functools.lru_cache(maxsize=64)
def _photograph(path: str, size: tuple[int, int]) -> Tensor:
    """(3, H, W) uint8 RGB of a file, resized."""
    from PIL import Image

    with Image.open(path) as image:
        return _channels_first(np.asarray(image.convert("RGB").resize((size[1], size[0]), Image.Resampling.BICUBIC)))


def _channels_first(pixels: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def check_photographs(paths: Sequence[str], used: int) -> None:
    """Look at every file, and decode the first ``used`` ones, which are those that will be measured on.

    Raises:
        UserError: one is no image, or is damaged: which.
    """
    from PIL import Image

    for index, path in enumerate(paths):
        try:
            with Image.open(path) as image:
                if index < used:
                    image.load()
        except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError and its own, by format
            raise UserError(f"--images: cannot read {path}: {type(error).__name__}: {error}") from error


def load_images(paths: Sequence[str], size: tuple[int, int], batch: int, image: int | None = None) -> list[Tensor]:
    """``batch`` images (3, H, W) uint8, the given ones in turn or rendered scenes; with ``image`` only that one."""
    wanted = range(batch) if image is None else [image]
    return [_photograph(paths[i % len(paths)], size) if paths else _scene(i, size) for i in wanted]
