"""Batch shaping of MSViT's gate, and how its loss reaches the host's models."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from hosts import require_host
from test_msvit import SMALL, build

from mmvit_plugins.models.losses import BatchShapingLoss, collect_losses, is_collecting, report_losses
from mmvit_plugins.models.losses.batch_shaping import cdf_distance, normal_cdf, relaxed_bernoulli_cdf
from mmvit_plugins.models.token_reduction import PatchGate
from mmvit_plugins.registry import MODELS

# --- batch shaping ------------------------------------------------------------------------------------------


def test_distances_are_the_formula() -> None:
    values = np.array([0.9, 0.1, 0.4])
    cdf = np.array([0.8, 0.2, 0.3])
    wanted = ((1 / 4 - 0.2) ** 2 + (2 / 4 - 0.3) ** 2 + (3 / 4 - 0.8) ** 2) / 3
    got = cdf_distance(torch.tensor(values)[:, None].expand(-1, 2), torch.tensor(cdf)[:, None].expand(-1, 2))
    np.testing.assert_allclose(got.numpy(), [wanted, wanted])
    from scipy.stats import norm

    x = np.linspace(-1, 2, 9)
    np.testing.assert_allclose(normal_cdf(torch.tensor(x), 0.4, 0.3).numpy(), norm.cdf(x, 0.4, 0.3), atol=1e-12)
    p, t, v = 0.3, 0.6, 0.25
    by_hand = 1 / (1 + np.exp(-(t * np.log(v / (1 - v)) - np.log(p / (1 - p)))))
    got = relaxed_bernoulli_cdf(torch.tensor(v, dtype=torch.float64), torch.tensor(p), torch.tensor(t))
    assert float(got) == pytest.approx(by_hand, rel=1e-6)
    edges = relaxed_bernoulli_cdf(torch.tensor([0.0, 1.0]), torch.tensor(0.5), torch.tensor(0.5))
    assert edges.isfinite().all()


def test_the_loss_adds_what_it_says() -> None:
    values = torch.rand(16, 6, generator=torch.Generator().manual_seed(0))
    mean, total = (BatchShapingLoss(0.3, (2, 3), reduction=r, loss_weight=2.0) for r in ("mean", "sum"))
    a, b = mean(values, (2, 3)), total(values, (2, 3))
    assert set(a) == {"loss_gate_prior", "loss_gate_hyper", "loss_gate_temperature"}
    torch.testing.assert_close(6 * a["loss_gate_prior"], b["loss_gate_prior"])
    assert float(a["loss_gate_temperature"]) == pytest.approx(2 * 0.1 * 0.5)
    prior = [cdf_distance(v, relaxed_bernoulli_cdf(v, torch.tensor(0.3), torch.tensor(0.5))) for v in values.T]
    torch.testing.assert_close(a["loss_gate_prior"], 2 * torch.stack(prior).mean())
    other = mean(torch.rand(4, 35), (5, 7))
    assert all(v.isfinite() for v in other.values()), "another grid"
    for wrong in (dict(target=0.0), dict(hyper_std=0.0), dict(reduction="max"), dict(grid=(0, 3))):
        with pytest.raises(ValueError):
            BatchShapingLoss(**wrong)


def test_gates_reach_the_target_without_becoming_a_constant() -> None:
    """A gate that begins at a constant far from the target: its values spread, its decisions reach the share."""
    torch.manual_seed(0)
    gate = PatchGate(192, init_share=0.95)
    gate.init_weights()
    loss = BatchShapingLoss(target=0.4, grid=(2, 2), loss_weight=20.0)
    optimizer = torch.optim.Adam([*gate.parameters(), *loss.parameters()], lr=0.01)
    for _ in range(150):
        patches = torch.randn(64, 4, 192)
        soft, _ = gate(patches, (2, 2))
        optimizer.zero_grad()
        sum(loss(soft, (2, 2)).values()).backward()
        optimizer.step()
    gate.eval()
    values, decisions = gate(torch.randn(256, 4, 192), (2, 2))
    assert (decisions.mean(dim=0) - 0.4).abs().max() < 0.2, "at each position"
    assert values.std(dim=0).min() > 0.25, "the gate is a constant"


# --- the way to the host ------------------------------------------------------------------------------------


def test_losses_are_collected_by_the_block_around() -> None:
    report_losses(dict(loss_a=torch.tensor(1.0)))  # nobody waits
    with collect_losses() as outer:
        report_losses(dict(loss_a=torch.tensor(1.0)))
        with collect_losses() as inner:
            report_losses(dict(loss_b=torch.tensor(2.0)))
        report_losses(dict(loss_a=torch.tensor(3.0)))
        elsewhere = []
        thread = threading.Thread(target=lambda: elsewhere.append(is_collecting()))
        thread.start()
        thread.join()
    assert {k: float(v) for k, v in outer.items()} == dict(loss_a=4.0)
    assert {k: float(v) for k, v in inner.items()} == dict(loss_b=2.0)
    assert elsewhere == [False] and not is_collecting()


def test_training_without_a_collector_is_refused() -> None:
    model = build(gate_loss=dict(type="mmvit_plugins.BatchShapingLoss", grid=(2, 2))).train()
    x = torch.randn(2, 3, 32, 32)
    with pytest.raises(RuntimeError, match="BackboneLossClassifier.*BackboneLossEncoderDecoder"):
        model(x)
    with torch.no_grad():
        model(x)
    with collect_losses() as losses:
        model(x)
    assert {k for k in losses if k.startswith("loss")} == {f"loss_gate_{k}" for k in ("prior", "hyper", "temperature")}
    assert 0 <= float(losses["coarse_share"]) <= 1
    model.eval()(x)


def gated(**changes: object) -> dict:
    loss = dict(type="mmvit_plugins.BatchShapingLoss", grid=(2, 2))
    return dict(type="mmvit_plugins.MSViT", arch=SMALL, img_size=32, patch_size=8, gate_loss=loss, **changes)


def check_host(model: torch.nn.Module, samples: list, plain: set[str]) -> None:
    """The host's own losses, the gate's, and a gradient for every parameter."""
    model.init_weights()
    losses = model(torch.randn(2, 3, 32, 32), samples, mode="loss")
    gate = {"loss_gate_prior", "loss_gate_hyper", "loss_gate_temperature", "coarse_share"}
    assert gate <= set(losses) and plain <= set(losses)
    total, logged = model.parse_losses(losses)
    torch.testing.assert_close(total, sum(v.mean() for k, v in losses.items() if "loss" in k))
    assert "coarse_share" in logged
    total.backward()
    assert not [n for n, p in model.named_parameters() if p.grad is None]
    model.eval()
    with torch.no_grad():
        model(torch.randn(2, 3, 32, 32), samples, mode="predict")
    assert not is_collecting()


def test_mmpretrains_classifier_gets_the_loss() -> None:
    require_host("mmpretrain")
    from mmengine.registry import DefaultScope
    from mmpretrain.structures import DataSample

    with DefaultScope.overwrite_default_scope("mmpretrain"):
        head = dict(type="LinearClsHead", in_channels=32, num_classes=4)
        backbone = gated(out_type="cls_token", out_indices=(3,))
        model = MODELS.build(dict(type="mmvit_plugins.BackboneLossClassifier", backbone=backbone, head=head))
    check_host(model, [DataSample().set_gt_label(i) for i in range(2)], {"loss"})


def test_mmsegmentations_segmentor_gets_the_loss() -> None:
    require_host("mmseg")
    from mmengine.config import ConfigDict
    from mmengine.registry import DefaultScope
    from mmengine.structures import PixelData
    from mmseg.structures import SegDataSample

    head = dict(type="FCNHead", in_channels=32, channels=8, num_classes=3, num_convs=1, align_corners=False)
    with DefaultScope.overwrite_default_scope("mmseg"):
        config = dict(type="mmvit_plugins.BackboneLossEncoderDecoder", backbone=gated(out_indices=(3,)))
        model = MODELS.build(dict(config, decode_head=dict(head, in_index=0), test_cfg=ConfigDict(mode="whole")))
    samples = []
    for i in range(2):
        meta = dict(img_shape=(32, 32), ori_shape=(32, 32), pad_shape=(32, 32))
        label = PixelData(data=torch.full((1, 32, 32), i))
        samples.append(SegDataSample(metainfo=meta, gt_sem_seg=label))
    check_host(model, samples, {"decode.loss_ce"})
