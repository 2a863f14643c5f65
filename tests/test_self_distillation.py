"""MESA's loss and hook, and batch norm statistics that are computed again."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.runner import Runner
from torch import nn

pytest.importorskip("mmpretrain", reason="the classifier is MMPretrain's")

from mmvit_plugins.engine import BatchNormReestimationHook, SelfDistillationHook  # noqa: E402
from mmvit_plugins.models.classifiers.self_distillation_classifier import distillation_loss  # noqa: E402

ROOT = Path(__file__).parents[1]
BATCH, SCENES = 4, 16


def make_runner(folder: Path, hooks: list[dict], epochs: int = 2, name: str = "", **model: object) -> Runner:
    cfg = Config.fromfile(ROOT / "configs/efficientvit/cls_scenes.py")
    cfg.merge_from_dict(
        dict(
            work_dir=str(folder),
            experiment_name=f"{folder.name}{name}",
            train_cfg=dict(max_epochs=epochs, val_interval=epochs),
            train_dataloader=dict(batch_size=BATCH, dataset=dict(num_scenes=SCENES, size=(32, 32))),
            val_dataloader=dict(batch_size=BATCH, dataset=dict(num_scenes=BATCH, size=(32, 32))),
            custom_hooks=[dict(type="EMAHook", momentum=0.1, update_buffers=True, priority="ABOVE_NORMAL"), *hooks],
            model=dict(type="mmvit_plugins.SelfDistillationClassifier", **model),
            param_scheduler=[dict(type="ConstantLR", factor=1.0)],
        )
    )
    return Runner.from_cfg(cfg)


def test_distance_by_hand() -> None:
    """Two classes; the teacher is (ln 3, 0): 3/4 and 1/4 by softmax, 3/4 and 1/2 by sigmoid."""
    scores, teacher = torch.zeros(1, 2), torch.tensor([[math.log(3), 0.0]])
    expected = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert distillation_loss(scores, teacher, use_sigmoid=False).item() == pytest.approx(expected, abs=1e-6)
    assert distillation_loss(scores, teacher, use_sigmoid=True).item() == pytest.approx(2 * math.log(2), abs=1e-6)
    half = distillation_loss(scores, 2 * teacher, use_sigmoid=False, temperature=2.0).item()
    assert half == pytest.approx(expected, abs=1e-6), "both are divided by the temperature"


@pytest.mark.parametrize("use_sigmoid", [False, True])
def test_gradient_leads_to_the_teacher_and_stops_there(use_sigmoid: bool) -> None:
    teacher = torch.tensor([[2.0, -1.0, 0.5]], requires_grad=True)
    scores = torch.zeros(1, 3, requires_grad=True)
    distillation_loss(scores, teacher, use_sigmoid).backward()
    value = (lambda x: x.sigmoid()) if use_sigmoid else (lambda x: x.softmax(1))
    torch.testing.assert_close(scores.grad, (value(scores) - value(teacher)).detach())
    assert teacher.grad is None


def test_teacher_comes_at_its_time_and_is_the_average(tmp_path: Path) -> None:
    """8 iterations, begin 0.5: the loss is there in the last 4, and nothing of the teacher is saved."""
    runner = make_runner(tmp_path, [dict(type="mmvit_plugins.SelfDistillationHook", begin=0.5)])
    model, seen = runner.model, []
    inner = type(model).loss

    def loss(inputs: torch.Tensor, data_samples: list) -> dict:
        losses = inner(model, inputs, data_samples)
        if model._teacher:
            teacher = model._teacher[0]
            assert teacher is next(h for h in runner.hooks if type(h).__name__ == "EMAHook").ema_model.module
            assert teacher.training, "its mode is given back"
        seen.append(losses.get("loss_distillation"))
        return losses

    model.loss = loss
    runner.train()
    assert [value is not None for value in seen] == [False] * 4 + [True] * 4
    assert all(value.requires_grad and value.item() >= 0 for value in seen[4:])
    assert model._teacher == ()
    plain = make_runner(tmp_path / "plain", [], name="plain").model
    assert set(model.state_dict()) == set(plain.state_dict())


def test_without_the_hook_it_is_the_plain_classifier(tmp_path: Path) -> None:
    runner = make_runner(tmp_path, [], distillation=dict(ratio=2.0))
    batch = runner.model.data_preprocessor(next(iter(runner.train_dataloader)), True)
    assert set(runner.model(**batch, mode="loss")) == {"loss"}


def test_ratio_scales_and_norms_see_a_batch_once(tmp_path: Path) -> None:
    runner = make_runner(tmp_path, [], distillation=dict(ratio=3.0))
    model = runner.model.train()
    batch = model.data_preprocessor(next(iter(runner.train_dataloader)), True)
    counts = [m.num_batches_tracked.item() for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    teacher = make_runner(tmp_path / "t", [], name="t").model
    model.set_teacher(teacher)
    losses = [model(**batch, mode="loss")["loss_distillation"].item()]
    assert [m.num_batches_tracked.item() - 1 for m in model.modules() if isinstance(m, nn.BatchNorm2d)] == counts
    model.ratio = 1.5
    losses.append(model(**batch, mode="loss")["loss_distillation"].item())
    assert losses[0] == pytest.approx(2 * losses[1], rel=1e-4)


def test_statistics_are_those_of_the_saved_weights(tmp_path: Path) -> None:
    """After training, the average's first batch norm has the moments of its input over the whole training set."""
    hook = dict(type="mmvit_plugins.BatchNormReestimationHook", num_samples=1000)
    runner = make_runner(tmp_path, [hook], epochs=1)
    runner.train()
    saved = torch.load(tmp_path / "epoch_1.pth", weights_only=False)["state_dict"]
    model = runner.model
    model.load_state_dict(saved)
    name, norm = next((n, m) for n, m in model.named_modules() if isinstance(m, nn.BatchNorm2d))
    maps: list[torch.Tensor] = []
    norm.register_forward_hook(lambda module, args, output: maps.append(args[0].detach()))
    model.train()
    loader = runner.train_dataloader
    for batch in loader:
        model(model.data_preprocessor(batch, False)["inputs"])
    means = torch.stack([x.mean(dim=(0, 2, 3)) for x in maps]).mean(0)
    variances = torch.stack([x.var(dim=(0, 2, 3)) for x in maps]).mean(0)
    assert len(maps) == SCENES // BATCH
    # Flips are drawn anew, and a convolution at the border sees them.
    torch.testing.assert_close(saved[f"{name}.running_mean"], means, atol=2e-3, rtol=2e-2)
    torch.testing.assert_close(saved[f"{name}.running_var"], variances, atol=2e-3, rtol=2e-2)


def test_messages() -> None:
    with pytest.raises(ValueError, match="begin"):
        SelfDistillationHook(begin=1.0)
    with pytest.raises(ValueError, match="num_samples"):
        BatchNormReestimationHook(num_samples=0)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    runner = make_runner(tmp_path, [dict(type="mmvit_plugins.SelfDistillationHook")])
    runner._hooks = [hook for hook in runner.hooks if type(hook).__name__ != "EMAHook"]
    with pytest.raises(RuntimeError, match="EMAHook"):
        runner.train()
