"""Write a picture of every tested image: the same drawing, under unique names, for all three tasks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mmcv
from mmengine.dist import is_main_process
from mmengine.fileio import get
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmvit_plugins.registry import HOOKS

__all__ = ["PredictionPicturesHook"]


@HOOKS.register_module()
class PredictionPicturesHook(Hook):
    """Draw predictions during a test run. ``tools/test.py --show-dir`` adds it.

    The hosts' own hooks name the picture after the image alone, so that images of the same name in two folders
    overwrite each other. In a distributed test the first process writes the pictures of its share.

    Args:
        out_dir: folder for the PNG files.
        score_threshold: boxes below it are not drawn.
    """

    def __init__(self, out_dir: str, score_threshold: float = 0.3) -> None:
        self.out_dir = Path(out_dir)
        self.score_threshold = score_threshold
        self._used: set[str] = set()

    def after_test_iter(
        self, runner: Runner, batch_idx: int, data_batch: dict | None = None, outputs: Sequence[Any] | None = None
    ) -> None:
        """Draw the samples of one batch."""
        if not is_main_process():
            return
        from mmvit_plugins.visualization import draw_prediction

        meta = getattr(runner.test_dataloader.dataset, "metainfo", None)
        for sample in outputs or []:
            path = sample.get("img_path")
            if path is None:
                raise ValueError(
                    "the predictions do not say which image they belong to; add 'img_path' to meta_keys of the packing "
                    "transform (Pack...Inputs) of the test pipeline"
                )
            image = mmcv.imfrombytes(get(path), channel_order="rgb")
            picture = draw_prediction(image, sample, meta, self.score_threshold)
            mmcv.imwrite(picture[..., ::-1], str(self.out_dir / f"{self._unique_name(str(path))}.png"))

    def _unique_name(self, path: str) -> str:
        """The image's name, with as many of its folders before it as make it unique."""
        parts = [part for part in path.replace("\\", "/").split("://")[-1].split("/") if part]
        parts[-1] = parts[-1].rpartition(".")[0] or parts[-1]
        for count in range(1, len(parts) + 1):
            name = "_".join(parts[-count:])
            if name not in self._used:
                break
        else:
            name = f"{name}_{len(self._used)}"
        self._used.add(name)
        return name
