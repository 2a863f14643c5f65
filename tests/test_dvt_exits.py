"""DVT's early exit: what runs and what comes out, thresholds, metric, export."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from test_dvt import classifier
from torch import Tensor, nn

from mmvit_plugins.evaluation.exit_rule import (
    NEVER,
    ExitScores,
    exit_shares,
    find_thresholds,
    published_candidates,
    simulate_exits,
)
from mmvit_plugins.registry import HOOKS, METRICS

# --- early exit ---------------------------------------------------------------------------------------------


def middle_thresholds(model: nn.Module, images: Tensor) -> tuple[float, ...]:
    """At which about a third leaves at each exit."""
    with torch.no_grad():
        probs = torch.stack([logits.softmax(-1) for logits in model(images)])
    # A bit below the confidences themselves, which another batch may round differently.
    return tuple(t - 1e-4 for t in find_thresholds(probs.amax(-1), exit_shares(20, 3))[:2])


def test_batch_equals_one_by_one_and_later_exits_see_the_rest() -> None:
    model, images = classifier(), torch.rand(12, 3, 32, 32)
    limits = middle_thresholds(model, images)
    seen: list[int] = []
    hooks = [part.register_forward_hook(lambda _, args, __: seen.append(len(args[0]))) for part in model.backbone.exits]
    with torch.no_grad():
        batched = model.run_exits(images, limits)
        for hook in hooks:
            hook.remove()
        alone = [model.run_exits(image[None], limits) for image in images]
        every = torch.stack([logits.softmax(-1) for logits in model(images)], dim=1)
    counts = torch.bincount(batched.index, minlength=3).tolist()
    assert min(counts) > 0
    assert seen == [12, 12 - counts[0], counts[2]]
    assert batched.index.tolist() == [int(one.index) for one in alone]
    torch.testing.assert_close(batched.scores, torch.cat([one.scores for one in alone]))
    torch.testing.assert_close(batched.scores, every[torch.arange(12), batched.index])
    torch.testing.assert_close(batched.confidence, batched.scores.amax(-1))
    expected = (every.amax(-1)[:, :2] >= torch.tensor(limits)).int()
    expected = torch.cat([expected, torch.ones(12, 1, dtype=torch.int)], dim=1).argmax(1)
    assert batched.index.equal(expected)
    with torch.no_grad():
        full = model.run_exits(images, limits, all_exits=True)
    assert full.index.equal(batched.index)
    torch.testing.assert_close(full.all_scores, every)
    torch.testing.assert_close(full.scores, batched.scores)


def test_extreme_thresholds() -> None:
    """0: all leave at the first exit and the others never run; above 1: all at the last."""
    model, images = classifier(), torch.rand(4, 3, 32, 32)
    ran: list[int] = []
    for number, part in enumerate(model.backbone.exits):
        part.register_forward_hook(lambda _, __, ___, n=number: ran.append(n))
    with torch.no_grad():
        assert model.run_exits(images, (0.0, 0.0)).index.tolist() == [0] * 4 and ran == [0]
        assert model.run_exits(images, (1.1, 1.1)).index.tolist() == [2] * 4
        assert model.run_exits(images, (NEVER, 0.0)).index.tolist() == [1] * 4


@pytest.mark.parametrize("grids", [(3,), (2, 4), (1, 2, 3, 4)])
def test_any_number_of_exits(grids: tuple[int, ...]) -> None:
    model = classifier(dict(token_grids=grids), exit_thresholds=[0.3] * (len(grids) - 1)).eval()
    samples = model(torch.rand(3, 3, 32, 32), mode="predict")
    assert all(0 <= sample.exit_index < len(grids) for sample in samples)


def test_predictions_and_losses() -> None:
    from mmpretrain.structures import DataSample

    model, images = classifier(), torch.rand(3, 3, 32, 32)
    given_ = [DataSample().set_gt_label(label) for label in (0, 3, 4)]
    with torch.no_grad():
        samples = model(images, given_, mode="predict")
    assert all(a is b for a, b in zip(samples, given_, strict=True)), "in order"
    for sample in samples:
        assert sample.exit_index == 2 and sample.exit_scores.shape == (3, 5)
        assert sample.pred_score.sum() == pytest.approx(1, abs=1e-5)
        assert sample.exit_confidence == pytest.approx(float(sample.pred_score.max()))
        assert int(sample.pred_label) == int(sample.pred_score.argmax())
    losses = model(images, given_, mode="loss")
    labels = torch.tensor([0, 3, 4])
    for number, logits in enumerate(model(images)):
        torch.testing.assert_close(losses[f"loss_exit{number + 1}"], F.cross_entropy(logits, labels))
    weighted = classifier(loss_weights=(1, 2, 0.5))(images, given_, mode="loss")
    torch.testing.assert_close(weighted["loss_exit2"], 2 * losses["loss_exit2"])


@pytest.mark.parametrize("bad", [dict(exit_thresholds=[0.5]), dict(loss_weights=[1.0])])
def test_wrong_counts(bad: dict) -> None:
    with pytest.raises(ValueError, match="3 exits"):
        classifier(**bad)


def test_meta_of_a_checkpoint() -> None:
    """Thresholds of the meta are used; those of the config win; a training forgets them."""
    stored = dict(early_exit=dict(thresholds=[0.4, 0.5, -NEVER], costs=[1, 2, 3]))
    model = classifier()
    assert model.exit_thresholds is None
    assert model.load_meta(stored) and model.exit_thresholds == (0.4, 0.5)
    sample = model(torch.rand(1, 3, 32, 32), mode="predict")[0]
    assert sample.exit_costs == (1.0, 2.0, 3.0)
    assert not model.load_meta({}) and model.exit_thresholds is None
    fixed = classifier(exit_thresholds=(0.9, 0.8))
    assert fixed.load_meta(stored) and fixed.exit_thresholds == (0.9, 0.8)

    class Runner:
        def __init__(self) -> None:
            self.model, self.logger = model, self

        def info(self, text: str) -> None:
            self.said = text

    runner, hook = Runner(), HOOKS.build(dict(type="mmvit_plugins.EarlyExitHook"))
    hook.after_load_checkpoint(runner, dict(meta=stored))
    assert model.exit_thresholds == (0.4, 0.5) and "0.4" in runner.said
    hook.before_train(runner)
    assert model.exit_thresholds is None


# --- the published rule and the metric ----------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(count=st.integers(1, 60), exits=st.integers(1, 4), p=st.integers(1, 59), seed=st.integers(0, 99))
def test_rule_meets_its_shares(count: int, exits: int, p: int, seed: int) -> None:
    """With distinct confidences exactly floor(N q_k) samples leave at exit k, or nobody does."""
    generator = torch.Generator().manual_seed(seed)
    confidence = torch.rand(exits, count, generator=generator, dtype=torch.float64)
    shares = exit_shares(p, exits)
    assert float(shares.sum()) == pytest.approx(1, abs=1e-5)
    thresholds = find_thresholds(confidence, shares)
    scores = ExitScores(confidence, torch.rand(exits, count, generator=generator) < 0.5, tuple(range(1, exits + 1)))
    outcome = simulate_exits(scores, thresholds)
    left = count
    for number in range(exits - 1):
        wanted = int(torch.floor(count * shares[number]))
        wanted = wanted if 1 <= wanted <= left else 0
        assert outcome.shares[number] * count == pytest.approx(wanted)
        left -= wanted
    assert outcome.cost == pytest.approx(sum((k + 1) * s for k, s in enumerate(outcome.shares)))


def test_larger_p_costs_more() -> None:
    scores = ExitScores(torch.rand(3, 500), torch.rand(3, 500) < 0.7, (1.0, 3.0, 9.0))
    costs = [outcome.cost for outcome in published_candidates(scores)]
    assert costs == sorted(costs) and costs[0] < 1.5 and costs[-1] > 6


def test_exit_accuracy_metric() -> None:
    """By hand: three samples, two exits."""
    scores = torch.tensor([[[0.9, 0.1], [0.2, 0.8]], [[0.6, 0.4], [0.7, 0.3]], [[0.4, 0.6], [0.1, 0.9]]])
    index, labels = (0, 1, 1), (0, 0, 0)
    samples = [
        dict(
            pred_score=scores[i, index[i]],
            exit_scores=scores[i],
            exit_index=index[i],
            gt_label=torch.tensor([labels[i]]),
            exit_costs=(1.0, 4.0),
        )
        for i in range(3)
    ]
    metric = METRICS.build(dict(type="mmvit_plugins.ExitAccuracy", topk=(1, 2)))
    metric.process({}, samples)
    result = metric.evaluate(3)
    third = 100 / 3
    assert result["accuracy/top1"] == pytest.approx(2 * third) and result["accuracy/top2"] == 100
    assert result["accuracy/exit1_top1"] == pytest.approx(2 * third)
    assert result["accuracy/exit2_top1"] == pytest.approx(third)
    assert result["accuracy/exit1_share"] == pytest.approx(third)
    assert result["accuracy/mean_cost"] == pytest.approx(3.0) and result["accuracy/exit2_cost"] == 4
    with pytest.raises(ValueError, match="topk"):
        METRICS.build(dict(type="mmvit_plugins.ExitAccuracy", topk=(0,)))


# --- export -----------------------------------------------------------------------------------------------


def test_onnx_for_each_exit(tmp_path: Path) -> None:
    """Chained in ONNX Runtime, with samples leaving in between: the same answers as the model's own early exit."""
    runtime = pytest.importorskip("onnxruntime", reason="needs the extra `export`")
    pytest.importorskip("onnx", reason="needs the extra `export`")
    from mmvit_plugins.models.classifiers.dvt_export import export_exits

    model, images = classifier(), torch.rand(6, 3, 32, 32)
    limits = middle_thresholds(model, images)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        paths = export_exits(model, 32, tmp_path)
    with torch.no_grad():
        wanted = model.run_exits(images, limits)
    rows, fed = np.arange(6), [images.numpy()]
    scores, index = np.zeros((6, 5), np.float32), np.full(6, 2)
    for number, path in enumerate(paths):
        session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        probs, *state = session.run(None, dict(zip([i.name for i in session.get_inputs()], fed, strict=True)))
        leaves = probs.max(1) >= (*limits, -1)[number]
        scores[rows[leaves]], index[rows[leaves]] = probs[leaves], number
        rows = rows[~leaves]
        fed = [fed[0][~leaves], *(part[~leaves] for part in state)]
    assert index.tolist() == wanted.index.tolist() and len(set(index)) == 3
    np.testing.assert_allclose(scores, wanted.scores.numpy(), atol=1e-5)
