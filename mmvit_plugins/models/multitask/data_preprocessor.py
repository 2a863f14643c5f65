"""From packed samples to the input of a multi-task model."""

from __future__ import annotations

from typing import Any

from mmengine.model import ImgDataPreprocessor

from mmvit_plugins.registry import MODELS

__all__ = ["MultiTaskDataPreprocessor"]


@MODELS.register_module()
class MultiTaskDataPreprocessor(ImgDataPreprocessor):
    """Normalise the images and pad them at the right and below to one size.

    Labels stay as they are: the tasks fill up what the padding adds with "no label". Masks of instances are padded in
    training, because MMDetection crops them at the input's size.

    Args:
        mean: of each channel, in the order after ``bgr_to_rgb``.
        std: likewise.
        pad_size_divisor: height and width of the input become multiples of it.
        pad_value: of the normalised image.
        bgr_to_rgb: images come as BGR, the network wants RGB.
        rgb_to_bgr: the other way round.
    """

    def __init__(
        self,
        mean: list[float] | None = None,
        std: list[float] | None = None,
        pad_size_divisor: int = 1,
        pad_value: float = 0,
        bgr_to_rgb: bool = False,
        rgb_to_bgr: bool = False,
    ) -> None:
        super().__init__(
            mean=mean,
            std=std,
            pad_size_divisor=pad_size_divisor,
            pad_value=pad_value,
            bgr_to_rgb=bgr_to_rgb,
            rgb_to_bgr=rgb_to_bgr,
        )

    def forward(self, data: dict[str, Any], training: bool = False) -> dict[str, Any]:
        """``inputs``, a list of (3, h, w) or a tensor (B, 3, h, w), become float (B, 3, H, W); the samples learn the
        padded size."""
        data = super().forward(data, training)
        samples = data.setdefault("data_samples", None)
        size = tuple(data["inputs"].shape[-2:])
        for sample in samples or []:
            sample.set_metainfo(dict(batch_input_shape=size, pad_shape=size))
            for field in ("gt_instances", "ignored_instances"):
                instances = sample.get(field)
                if training and instances is not None and "masks" in instances:
                    instances.masks = instances.masks.pad(size)
        return data
