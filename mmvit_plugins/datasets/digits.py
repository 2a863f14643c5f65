"""scikit-learn's handwritten digits: small real images that need no download."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from mmengine.dataset import BaseDataset

from mmvit_plugins.registry import DATASETS

__all__ = ["DigitsDataset"]

# First and one past the last place of each split in a fixed shuffle.
SPLITS = {"train": (0, 1000), "val": (1000, 1397), "test": (1397, 1797)}


@DATASETS.register_module()
class DigitsDataset(BaseDataset):
    """1797 images of 8 x 8 pixels in 10 classes, for MMPretrain.

    The splits share no image but may share writers, of whom the library does not tell. Pixels are the library's 0 to
    16 times 15, in three equal channels.

    Args:
        split: 'train' (1000 images), 'val' (397) or 'test' (400).
        metainfo: as in mmengine.
        indices: a number n for the first n samples, or the numbers of samples to keep.
        pipeline: transforms; samples come with ``img``, ``img_shape``, ``ori_shape`` and ``gt_label``.
        test_mode: as in mmengine.
        lazy_init: as in mmengine.

    Raises:
        ValueError: an unknown split.
        ModuleNotFoundError: scikit-learn is missing.
    """

    METAINFO = dict(classes=tuple(str(digit) for digit in range(10)))

    def __init__(
        self,
        split: str = "train",
        metainfo: dict | None = None,
        indices: int | Sequence[int] | None = None,
        pipeline: Sequence[dict | Callable] = (),
        test_mode: bool = False,
        lazy_init: bool = False,
    ) -> None:
        if split not in SPLITS:
            raise ValueError(f"split is one of {', '.join(SPLITS)}, got {split!r}")
        self.split = split
        super().__init__(
            metainfo=metainfo, indices=indices, pipeline=list(pipeline), test_mode=test_mode, lazy_init=lazy_init
        )

    def load_data_list(self) -> list[dict]:
        """Images and labels of the split."""
        try:
            from sklearn.datasets import load_digits
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "the digits come with scikit-learn, which is not installed: pip install scikit-learn, or "
                "pip install 'mmvit-plugins[search]'"
            ) from error
        digits = load_digits()
        order = np.random.RandomState(0).permutation(len(digits.target))
        first, last = SPLITS[self.split]
        images = (digits.images * 15).astype(np.uint8)
        return [
            dict(
                img=np.repeat(images[i][..., None], 3, axis=2),
                img_shape=(8, 8),
                ori_shape=(8, 8),
                sample_idx=int(i),
                gt_label=int(digits.target[i]),
            )
            for i in order[first:last]
        ]
