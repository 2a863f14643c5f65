"""Training at sizes that change from batch to batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor

from ..registry import HOOKS
from .reproducible_draws import derive_seed

__all__ = ["RandomInputSizeHook"]


@HOOKS.register_module()
class RandomInputSizeHook(Hook):
    """Resize each training batch of a classifier to a size drawn from ``sizes``; validation keeps its size.

    The draw depends on the run's seed and the iteration only: all ranks train at the same size, and a resumed run goes
    on with the sizes that the uninterrupted one would have seen. Source: EfficientViT's ImageNet recipe (128, 160, 192,
    224), whose loader crops at the drawn size; here the cropped batch is resized with antialiasing, once for all.

    Args:
        sizes: sides of the square images in pixels.

    Raises:
        ValueError: no sizes, or one that is no positive whole number.
    """

    # Before mixup and cutmix, which are part of the model's data preprocessor.
    priority = "NORMAL"

    def __init__(self, sizes: Sequence[int] = (128, 160, 192, 224)) -> None:
        if not sizes or any(type(size) is not int or size < 1 for size in sizes):
            raise ValueError(f"sizes must be positive whole numbers of pixels, at least one, got {sizes!r}")
        self.sizes = tuple(sizes)

    def size_of(self, seed: int, iteration: int) -> int:
        """The size of an iteration of a run with that seed."""
        return self.sizes[derive_seed(seed, iteration, len(self.sizes)) % len(self.sizes)]

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: dict[str, Any] | None = None) -> None:
        """Replace ``data_batch['inputs']``, a tensor (B, 3, H, W) or a list of (3, H, W), by the resized images."""
        size = self.size_of(runner.seed or 0, runner.iter)
        inputs = data_batch["inputs"]
        if isinstance(inputs, Tensor):
            data_batch["inputs"] = _resized(inputs, size)
        else:
            data_batch["inputs"] = [_resized(image[None], size)[0] for image in inputs]


def _resized(images: Tensor, size: int) -> Tensor:
    """(B, 3, H, W) -> (B, 3, size, size) in the same dtype."""
    if tuple(images.shape[2:]) == (size, size):
        return images
    out = F.interpolate(images.float(), size=(size, size), mode="bicubic", align_corners=False, antialias=True)
    return out if images.is_floating_point() else out.round().clamp(0, 255).to(torch.uint8)
