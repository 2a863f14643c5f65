"""Detectors read our maps right: mmcv's RoIAlign takes a map's memory for (B, C, H, W) whatever its strides say."""

from __future__ import annotations

import pytest
import torch
import torchvision
from hosts import require_host
from torch import nn

from mmvit_plugins.registry import MODELS

BACKBONES = {
    "STViT": dict(arch="mini"),
    "EfficientViT": dict(arch="b0"),
    "SparseViT": dict(arch="mini", window_size=4),
    "FlatFormer": dict(arch="mini"),
    "ContextCluster": dict(arch="mini"),
}
ROIS = torch.tensor([[0, 3.0, 5.0, 40.0, 60.0], [1, 10.0, 10.0, 63.0, 50.0]])


def check(maps: tuple[torch.Tensor, ...], strides: tuple[int, ...]) -> None:
    from mmcv.ops import RoIAlign

    for x, stride in zip(maps, strides, strict=True):
        wanted = torchvision.ops.roi_align(x, ROIS, 7, 1 / stride, 0, aligned=True)
        torch.testing.assert_close(RoIAlign(7, 1 / stride)(x, ROIS), wanted)


@pytest.mark.parametrize("name", BACKBONES)
def test_rois_of_backbone_and_pyramid(name: str) -> None:
    """Of the maps themselves, and of MMDetection's FPN on them."""
    require_host("mmdet")
    from mmdet.models.necks import FPN

    torch.manual_seed(0)
    backbone: nn.Module = MODELS.build(dict(type=f"mmvit_plugins.{name}", **BACKBONES[name])).eval()
    neck = FPN(list(backbone.out_channels), 16, num_outs=4)
    with torch.no_grad():
        maps = backbone(torch.rand(2, 3, 64, 64))
        check(maps, backbone.out_strides)
        check(neck(maps), backbone.out_strides)


def test_rois_of_our_necks() -> None:
    """Of maps in channels_last too, such as another backbone may give."""
    require_host("mmdet")
    torch.manual_seed(0)
    maps = tuple(torch.rand(2, 8, 16 // s, 16 // s).to(memory_format=torch.channels_last) for s in (1, 2))
    neck = MODELS.build(
        dict(
            type="mmvit_plugins.TokenReductionNeck",
            in_channels=[8, 8],
            embed_dims=8,
            num_heads=2,
            reducer=dict(type="mmvit_plugins.SuperTokens", cell=2),
        )
    )
    pyramid = MODELS.build(dict(type="mmvit_plugins.SimpleFeaturePyramid", in_channels=8, out_channels=8, num_outs=4))
    with torch.no_grad():
        check(neck(maps), (4, 8))
        check(pyramid(maps)[:4], (1, 2, 4, 8))
