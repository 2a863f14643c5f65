"""The multi-task model with parts of the hosts: necks, decode heads, losses, a detector on shared features."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hosts import require_host
from mmengine.structures import InstanceData
from test_multitask_model import TASKS, WIDTHS, images, make_model, make_sample


def test_necks_follow_each_other_and_are_shared() -> None:
    require_host("mmseg")
    neck = dict(type="mmseg.FPN", in_channels=[24, 48], out_channels=24, num_outs=2)
    again = dict(type="mmseg.FPN", in_channels=[24, 24], out_channels=24, num_outs=2)
    model = make_model(
        backbone=dict(type="mmvit_plugins.STViT", arch="mini", out_indices=(0, 1)), neck=[neck, again]
    ).train()
    model.parse_losses(model.loss(images(2), [make_sample(0), make_sample(1)]))[0].backward()
    # Of two necks in a row the second map reaches the first map of the output, too.
    assert all(p.grad is not None for p in model.neck[0].parameters())
    assert sum(name.startswith("neck.") for name, _ in model.named_parameters()) > 0


def test_host_heads_and_losses() -> None:
    """Two decode heads and two losses of MMSegmentation."""
    require_host("mmseg")
    common = dict(norm_cfg=dict(type="BN"), align_corners=False, channels=8, dropout_ratio=0.0)
    tasks = dict(
        semseg=dict(
            type="mmvit_plugins.SegmentationTask",
            num_classes=5,
            head=dict(type="mmseg.FCNHead", in_channels=48, in_index=1, num_convs=1, **common),
        ),
        depth=dict(type="mmvit_plugins.DepthTask", positive=True, loss=dict(type="mmseg.SiLogLoss")),
    )
    head = dict(type="mmseg.SegformerHead", in_channels=[24, 48], in_index=[0, 1], **common)
    model = make_model(tasks, head=head, backbone=dict(type="mmvit_plugins.STViT", arch="mini", out_indices=(0, 1)))
    # The host's loss divides by the pixels of each image: the third one, without depth, must not turn it into nan.
    samples = [make_sample(0), make_sample(1, tasks=("depth",)), make_sample(2, tasks=("semseg",))]
    samples[0].gt_sem_seg.data[0, :9] = 255
    logits = model.train()(images(3))["semseg"]
    losses = model.loss(images(3), samples)
    full = F.interpolate(logits[[0, 2]], (24, 32), mode="bilinear")
    target = torch.cat([samples[i].gt_sem_seg.data for i in (0, 2)])
    torch.testing.assert_close(losses["semseg/loss"], F.cross_entropy(full, target, ignore_index=255))
    total = model.parse_losses(losses)[0]
    total.backward()
    assert torch.isfinite(total) and total > 0
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


# --- instances ------------------------------------------------------------------------------------------------------


def detector() -> dict:
    return dict(
        _scope_="mmdet",
        type="FCOS",
        neck=dict(type="FPN", in_channels=WIDTHS[:2], out_channels=8, num_outs=2),
        bbox_head=dict(
            type="FCOSHead",
            num_classes=3,
            in_channels=8,
            feat_channels=8,
            stacked_convs=1,
            strides=[4, 8],
            regress_ranges=((-1, 16), (16, 1e8)),
            norm_cfg=None,
            loss_cls=dict(type="FocalLoss", use_sigmoid=True, gamma=2.0, alpha=0.25, loss_weight=1.0),
            loss_bbox=dict(type="IoULoss", loss_weight=1.0),
            loss_centerness=dict(type="CrossEntropyLoss", use_sigmoid=True, loss_weight=1.0),
        ),
        test_cfg=dict(
            nms_pre=20, min_bbox_size=0, score_thr=0.0, nms=dict(type="nms", iou_threshold=0.5), max_per_img=5
        ),
    )


def test_detector_on_shared_features() -> None:
    """A detector of MMDetection beside depth: images without instance labels are left out, not taken for empty ones."""
    require_host("mmdet")
    tasks = dict(depth=TASKS["depth"], instances=dict(type="mmvit_plugins.InstanceTask", detector=detector()))
    model = make_model(tasks, backbone=dict(type="mmvit_plugins.STViT", arch="mini", out_indices=(0, 1))).train()
    samples = [make_sample(0, (32, 32)), make_sample(1, (32, 32))]
    samples[1].gt_instances = InstanceData(bboxes=torch.tensor([[4.0, 4.0, 20.0, 28.0]]), labels=torch.tensor([2]))
    model.eval()  # no batch norm that would mix the samples
    inputs = images(2, (32, 32))
    torch.testing.assert_close(
        model.loss(inputs, samples)["instances/loss"], model.loss(inputs[1:], samples[1:])["instances/loss"]
    )
    losses = model.loss(inputs, samples[:1] * 2)
    assert losses["instances/loss"] == 0
    model.parse_losses(losses)[0].backward()
    assert all(p.grad is not None for p in model.parameters())
    assert not any(p.grad.any() for p in model.tasks["instances"].parameters())
    with torch.no_grad():
        found = model.predict(inputs, samples)
    assert found[0].pred_instances.bboxes.shape == (5, 4) and "pred_depth" in found[0]
    assert len([m for m in model.modules() if type(m).__name__ == "STViT"]) == 1
    with pytest.raises(ValueError, match="no backbone of its own"):
        make_model(dict(instances=dict(type="mmvit_plugins.InstanceTask", detector=dict(detector(), backbone={}))))
