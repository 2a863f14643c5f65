"""Point clouds to measure on: what a depth camera sees of the rendered scenes."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..models.voxel import PillarBackbone
from .images import SCENE_SEED

if TYPE_CHECKING:
    from mmengine.config import Config

__all__ = ["CloudFrame", "find_cloud_frame"]


@functools.lru_cache(maxsize=64)
def _cloud(index: int, size: tuple[int, int], limits: tuple[float, ...], cells: tuple[int, int]) -> dict[str, Any]:
    """What :class:`LoadSceneBEV` makes of a scene; not to be written into."""
    from mmvit_plugins.datasets import LoadSceneBEV
    from mmvit_plugins.datasets.scenes import render_scene

    return LoadSceneBEV(limits, cells).transform(dict(scene=render_scene(SCENE_SEED, "test", index, size)))


@dataclass(frozen=True)
class CloudFrame:
    """How a model sees the world: which points it takes, and the map that it is to draw.

    Args:
        limits: (x0, y0, z0, x1, y1, z1) metres; points outside are left out.
        cells: (ny, nx) of the map.
        channels: numbers of a point; those beyond x, y and z are 0.
    """

    limits: tuple[float, ...]
    cells: tuple[int, int]
    channels: int

    def clouds(self, size: tuple[int, int], batch: int, image: int | None = None) -> list[Tensor]:
        """``batch`` clouds (P, channels) float32, of depth pictures of ``size``; with ``image`` only that one."""
        wanted = range(batch) if image is None else [image]
        clouds = [torch.from_numpy(_cloud(i, size, self.limits, self.cells)["points"]) for i in wanted]
        return [torch.cat([cloud, cloud.new_zeros(len(cloud), self.channels - 3)], dim=1) for cloud in clouds]

    def samples(self, model: nn.Module, size: tuple[int, int], batch: int, image: int | None = None) -> list[Any]:
        """MMSegmentation's samples with the maps of the same scenes."""
        from mmvit_plugins.datasets import PackPoints

        samples = []
        for i in range(batch) if image is None else [image]:
            sample = PackPoints().transform(dict(_cloud(i, size, self.limits, self.cells), img_id=i, img_path=""))
            label = sample["data_samples"].gt_sem_seg.data
            label[label != 255] %= getattr(model, "num_classes", 255)  # 255: where the camera does not look
            samples.append(sample["data_samples"])
        return samples


def find_cloud_frame(model: nn.Module, cfg: Config) -> CloudFrame | None:
    """The frame of a model that takes point clouds; None for one that takes images.

    Args:
        model: the whole model, or its backbone.
        cfg: its config; the loading step of its test data says how the map is divided, else the pillars do.
    """
    from mmvit_plugins.cli.inference import bird_eye_step

    backbone = getattr(model, "backbone", model)
    if not isinstance(backbone, PillarBackbone):
        return None
    pillars = backbone.pillars
    step = bird_eye_step(cfg) or dict(cells=pillars.grid[::-1])
    return CloudFrame(tuple(pillars.limits), tuple(step["cells"]), pillars.in_channels)
