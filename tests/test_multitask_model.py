"""The multi-task model: what each task learns from, and that nothing else gets in."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from mmengine.structures import PixelData
from torch import Tensor, nn

from mmvit_plugins.models.losses import BalancedBCELoss, MaskedL1Loss, NormalsLoss, SaliencyLoss
from mmvit_plugins.models.multitask import MultiTaskModel, UncertaintyWeighting
from mmvit_plugins.registry import MODELS as OURS
from mmvit_plugins.structures import TASK_MAPS, MultiTaskSample

WIDTHS = [24, 48, 96, 128]
TASKS = dict(
    semseg=dict(type="mmvit_plugins.SegmentationTask", num_classes=5, loss=dict(type="mmvit_plugins.PlainCE")),
    depth=dict(type="mmvit_plugins.DepthTask"),
    normals=dict(type="mmvit_plugins.NormalsTask"),
    boundary=dict(type="mmvit_plugins.BoundaryTask"),
    saliency=dict(type="mmvit_plugins.SaliencyTask"),
)


@OURS.register_module(force=True)
class PlainHead(BaseModule):
    """The simplest head: a 1 x 1 convolution on the first map. No norm, so that samples are independent."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(WIDTHS[0], num_classes, 1)

    def forward(self, features: tuple[Tensor, ...]) -> Tensor:
        return self.conv(features[0])


@OURS.register_module(force=True)
class PlainCE(BaseModule):
    """Mean over labelled pixels, without a host."""

    def forward(self, pred: Tensor, target: Tensor, ignore_index: int) -> Tensor:
        return F.cross_entropy(pred, target, ignore_index=ignore_index)


def make_model(tasks: dict | None = None, **changes: object) -> MultiTaskModel:
    config = dict(
        type="mmvit_plugins.MultiTaskModel",
        backbone=dict(type="mmvit_plugins.STViT", arch="mini", out_indices=(0,)),
        head=dict(type="mmvit_plugins.PlainHead"),
        tasks=tasks or TASKS,
    )
    return MODELS.build({**config, **copy.deepcopy(changes)})


def make_sample(seed: int, size: tuple[int, int] = (24, 32), tasks: tuple[str, ...] = tuple(TASKS)) -> MultiTaskSample:
    random = np.random.RandomState(seed)
    sample = MultiTaskSample(metainfo=dict(img_shape=size, ori_shape=size, scale_factor=(1.0, 1.0), img_id=seed))
    labels = dict(
        semseg=random.randint(0, 5, (1, *size)),
        parts=random.randint(0, 7, (1, *size)),
        depth=random.rand(1, *size).astype(np.float32) + 0.5,
        normals=random.randn(3, *size).astype(np.float32),
        boundary=random.randint(0, 2, (1, *size)),
        saliency=random.randint(0, 2, (1, *size)),
    )
    labels["normals"] /= np.linalg.norm(labels["normals"], axis=0)
    for task in tasks:
        sample.set_field(PixelData(data=torch.from_numpy(labels[task])), TASK_MAPS[task].truth)
    return sample


def images(count: int, size: tuple[int, int] = (24, 32)) -> Tensor:
    return torch.randn(count, 3, *size, generator=torch.Generator().manual_seed(0))


# --- what a loss depends on -----------------------------------------------------------------------------------------


def test_loss_of_a_partial_batch_is_that_of_the_labelled_samples() -> None:
    """With norms in eval mode: sample 1 lacks depth, sample 2 has depth only; each loss is that of its own samples."""
    model = make_model().eval()
    inputs = images(3)
    samples = [
        make_sample(0),
        make_sample(1, tasks=("semseg", "normals", "boundary", "saliency")),
        make_sample(2, tasks=("depth",)),
    ]
    losses = model.loss(inputs, samples)
    for task in TASKS:
        rows = [i for i, sample in enumerate(samples) if TASK_MAPS[task].truth in sample]
        alone = model.loss(inputs[rows], [samples[i] for i in rows])
        torch.testing.assert_close(losses[f"{task}/loss"], alone[f"{task}/loss"])


def test_tasks_do_not_leak() -> None:
    """Other labels of one task change its own loss, and no other one; gradients of its head come from it alone."""
    model = make_model().eval()
    inputs, samples = images(2), [make_sample(0), make_sample(1)]
    before = model.loss(inputs, samples)
    for task in TASKS:
        changed = [sample.clone() for sample in samples]
        other = make_sample(7)
        changed[0].set_field(other.get(TASK_MAPS[task].truth), TASK_MAPS[task].truth)
        after = model.loss(inputs, changed)
        moved = {name.split("/")[0] for name in before if not torch.equal(before[name], after[name])}
        assert moved == {task}
    before["depth/loss"].backward()
    with_gradient = {
        name.split(".")[1] for name, p in model.named_parameters() if "tasks." in name and p.grad is not None
    }
    assert with_gradient == {"depth"}


@pytest.mark.parametrize("weighting", [None, dict(type="mmvit_plugins.UncertaintyWeighting")], ids=["fixed", "learned"])
def test_unlabelled_task_gets_zero_gradients_and_takes_part(weighting: dict | None) -> None:
    """DDP waits for every parameter; a task without labels must not move."""
    model = make_model(weighting=weighting).train()
    samples = [make_sample(0, tasks=("depth",)), make_sample(1, tasks=("depth", "normals"))]
    # A label that holds nothing but "unknown" is no label either.
    samples[0].gt_boundary = PixelData(data=torch.full((1, 24, 32), 255))
    losses = model.loss(images(2), samples)
    for task in ("semseg", "boundary", "saliency"):
        assert losses[f"{task}/loss"] == 0
    model.parse_losses(losses)[0].backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        if any(f".{task}" in name for task in ("semseg", "boundary", "saliency")):
            assert not parameter.grad.any(), name
    if weighting is not None:
        assert model.weighting.log_variance["depth"].grad != 0


def test_padding_and_sizes() -> None:
    """A smaller image is padded: the loss is that of its own pixels, the prediction has its own size."""
    model = make_model(
        data_preprocessor=dict(type="mmvit_plugins.MultiTaskDataPreprocessor", pad_size_divisor=8)
    ).eval()
    sizes = [(24, 32), (17, 21)]
    batch = dict(
        inputs=[torch.randint(0, 255, (3, *size), dtype=torch.uint8) for size in sizes],
        data_samples=[make_sample(i, size) for i, size in enumerate(sizes)],
    )
    data = model.data_preprocessor(batch, True)
    assert data["inputs"].shape == (2, 3, 24, 32) and data["data_samples"][1].batch_input_shape == (24, 32)
    target = model.tasks["semseg"].stack_targets(data["data_samples"], (24, 32), torch.device("cpu"))
    assert target.shape == (2, 24, 32) and (target[1, 17:] == 255).all() and (target[1, :, 21:] == 255).all()
    assert (target[1, :17, :21] != 255).all()
    data["data_samples"][1].set_metainfo(dict(ori_shape=(34, 42), depth_scale=0.5))
    with torch.no_grad():
        raw = model(data["inputs"])["depth"]
        found = model(data["inputs"], data["data_samples"], mode="predict")
    assert found[1].pred_sem_seg.data.shape == (1, 34, 42) and found[1].pred_sem_seg.data.dtype == torch.int64
    torch.testing.assert_close(found[1].pred_normals.data.norm(dim=0), torch.ones(34, 42))
    full = F.interpolate(raw[1:], (24, 32), mode="bilinear")[..., :17, :21]
    expected = F.interpolate(full, (34, 42), mode="bilinear")[0] * 0.5
    torch.testing.assert_close(found[1].pred_depth.data, expected)
    assert found[0].tasks == tuple(TASKS)
    wrong = make_sample(5, (48, 64))
    wrong.set_metainfo(dict(img_shape=(24, 32)))
    with pytest.raises(ValueError, match="48 x 64"):
        model.loss(images(1), [wrong])


def test_labels_beyond_the_classes_are_named() -> None:
    sample = make_sample(0)
    sample.gt_sem_seg.data[0, 0, 0] = 9
    with pytest.raises(ValueError, match=r"holds \[9\]; legal are 0 to 4 and 255"):
        make_model().loss(images(1), [sample])


# --- weights --------------------------------------------------------------------------------------------------------


def test_weights() -> None:
    """Fixed: a factor. Learned: exp(-s) L + s / 2, with its minimum where exp(s) = 2 L."""
    tasks = copy.deepcopy(TASKS)
    tasks["depth"]["loss_weight"] = 4.0
    model = make_model(tasks).eval()
    losses = model.loss(images(1), [make_sample(0)])
    assert losses["depth/loss"] == 4 * losses["depth/unweighted"]
    assert "semseg/unweighted" not in losses
    total, logged = model.parse_losses(losses)
    torch.testing.assert_close(total, sum(v for name, v in losses.items() if name.endswith("/loss")))
    assert "depth/unweighted" in logged

    weighting = UncertaintyWeighting(init_log_variance=math.log(2))
    weighting.set_tasks(["a", "b"])
    found = weighting(dict(a=torch.tensor(3.0), b=torch.tensor(0.0)), dict(a=True, b=False))
    assert found["a"].item() == pytest.approx(1.5 + math.log(2) / 2)
    assert found["b"] == 0
    optimizer = torch.optim.SGD(weighting.parameters(), lr=0.5)
    for _ in range(100):
        optimizer.zero_grad()
        weighting(dict(a=torch.tensor(3.0), b=torch.tensor(0.0)), dict(a=True, b=False))["a"].backward()
        optimizer.step()
    assert weighting.log_variance["a"].exp().item() == pytest.approx(6, rel=1e-3)
    assert weighting.log_variance["b"].item() == pytest.approx(math.log(2))


def test_only_and_shared_head() -> None:
    model = make_model(only=["depth"])
    assert list(model.tasks) == ["depth"] and model.tasks["depth"].head.conv.out_channels == 1
    assert make_model(only="normals").tasks["normals"].head.conv.out_channels == 3
    two = dict(saliency=dict(type="mmvit_plugins.SaliencyTask", channels=2))
    model = make_model(two).eval()
    found = model.predict(images(1))[0].pred_saliency.data
    assert found.shape == (1, 24, 32) and 0 <= found.min() and found.max() <= 1
    for wrong in (["depht"], [], ["depth", "depth"]):
        with pytest.raises(ValueError, match="must name different ones out of semseg, depth"):
            make_model(only=wrong)
    with pytest.raises(ValueError, match="has no head"):
        make_model(head=None)
    with pytest.raises(ValueError, match="leave the task out"):
        make_model(dict(depth=dict(type="mmvit_plugins.DepthTask", loss_weight=0)))
    with pytest.raises(ValueError, match="there is no dense task 'edges'"):
        make_model(dict(edges=dict(type="mmvit_plugins.BoundaryTask")))
    with pytest.raises(ValueError, match="'loss', 'predict' or 'tensor'"):
        make_model(only="depth")(images(1), mode="features")


def test_samples_are_independent_in_eval() -> None:
    model = make_model().eval()
    inputs = images(3)
    with torch.no_grad():
        together, alone = model(inputs), model(inputs[1:2])
    for task in TASKS:
        torch.testing.assert_close(together[task][1:2], alone[task], atol=1e-5, rtol=1e-4)


# --- losses by hand -------------------------------------------------------------------------------------------------


def test_losses_by_hand() -> None:
    depth = MaskedL1Loss()(torch.tensor([[[[1.0, 5.0, 9.0]]]]), torch.tensor([[[[2.0, 0.0, float("nan")]]]]))
    assert depth == 1.0
    pred = torch.tensor([3.0, 0, 0, 9, 9, 9]).view(1, 2, 3).permute(0, 2, 1)[..., None]  # (1, 3, 2, 1)
    truth = torch.tensor([0.0, 1, 0, 0, 0, 0]).view(1, 2, 3).permute(0, 2, 1)[..., None]
    assert NormalsLoss("pixel")(pred, truth).item() == pytest.approx(2.0)
    assert NormalsLoss("element")(pred, truth).item() == pytest.approx(2.0 / 3)
    logits, labels = torch.tensor([[[[0.0, 0.0, 5.0]]]]), torch.tensor([[[[1, 0, 255]]]])
    assert BalancedBCELoss(0.95)(logits, labels).item() == pytest.approx((0.95 + 0.05) * math.log(2) / 2)
    # w = share of negatives: 3/4 on the one positive, 1/4 on three negatives.
    labels = torch.tensor([[[[1, 0, 0, 0]]]])
    single = SaliencyLoss()(torch.tensor([[[[1.0, 0.0, 0.0, 0.0]]]]), labels)
    assert single.item() == pytest.approx((0.75 * math.log1p(math.exp(-1)) + 0.75 * math.log(2)) / 4)
    double = torch.randn(2, 2, 3, 3)
    labels = torch.randint(0, 2, (2, 1, 3, 3))
    labels[0, 0, 0] = 255
    share = (labels == 1).sum() / (labels != 255).sum()
    weight = torch.stack([share, 1 - share])
    expected = F.cross_entropy(double, labels[:, 0], weight, ignore_index=255)
    torch.testing.assert_close(SaliencyLoss()(double, labels), expected)


@pytest.mark.parametrize(
    ("loss", "channels", "label"),
    [
        (MaskedL1Loss(), 1, torch.zeros(2, 1, 4, 4)),
        (NormalsLoss(), 3, torch.zeros(2, 3, 4, 4)),
        (BalancedBCELoss(), 1, torch.full((2, 1, 4, 4), 255)),
        (SaliencyLoss(), 1, torch.full((2, 1, 4, 4), 255)),
        (SaliencyLoss(), 2, torch.full((2, 1, 4, 4), 255)),
        (SaliencyLoss(), 2, torch.ones(2, 1, 4, 4, dtype=torch.long)),
    ],
)
def test_losses_without_labels_are_zero_with_zero_gradients(loss: nn.Module, channels: int, label: Tensor) -> None:
    pred = torch.randn(2, channels, 4, 4, requires_grad=True)
    value = loss(pred, label)
    value.backward()
    assert value == 0 and not pred.grad.any()
