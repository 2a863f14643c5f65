"""DVT: geometry, reuse, early exit, thresholds, weights, export."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hosts import require_host
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from mmvit_plugins.checkpoints import OfficialPretrained, convert_official
from mmvit_plugins.evaluation.exit_rule import (
    NEVER,
    ExitScores,
    exit_shares,
    find_thresholds,
    published_candidates,
    simulate_exits,
)
from mmvit_plugins.models import DVT
from mmvit_plugins.models.backbones.dvt import ARCHS, patch_geometry, sinusoid_positions
from mmvit_plugins.models.layers.cascade_reuse import FeatureReuse, RelationReuse, resize_columns, resize_rows
from mmvit_plugins.models.layers.soft_split import PerformerTokenLayer, SoftSplit, soft_split_geometry
from mmvit_plugins.registry import HOOKS, METRICS, MODELS

HEAD = dict(type="mmpretrain.LinearClsHead", in_channels=64, num_classes=5)


def cascade(**changes: object) -> DVT:
    torch.manual_seed(0)
    return DVT(**(dict(arch="mini", image_size=32, token_grids=(2, 3, 5), reuse_hidden=16, reuse_channels=8) | changes))


def classifier(backbone: dict | None = None, **changes: object) -> nn.Module:
    require_host("mmpretrain")
    torch.manual_seed(0)
    backbone = dict(
        type="mmvit_plugins.DVT", arch="mini", image_size=32, token_grids=(2, 3, 5), reuse_hidden=16, reuse_channels=8
    ) | (backbone or {})
    model = MODELS.build(dict(type="mmvit_plugins.DVTClassifier", backbone=backbone, head=HEAD) | changes)
    for head in model.head.exits:  # confidences that differ
        nn.init.normal_(head.fc.weight, std=0.3)
    return model.eval()


# --- geometry -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tokens", "kernel"), [(7, (32, 0)), (10, (23, 3)), (14, (16, 0))])
def test_published_patches(tokens: int, kernel: tuple[int, int]) -> None:
    assert patch_geometry(224, tokens) == kernel


@pytest.mark.parametrize(("tokens", "kernel"), [(7, (14, 8, 3)), (10, (11, 6, 5)), (14, (7, 4, 2))])
def test_published_soft_splits(tokens: int, kernel: tuple[int, int, int]) -> None:
    assert soft_split_geometry(224, tokens) == kernel


def test_patches_of_224_serve_384() -> None:
    assert [patch_geometry(384, n)[0] for n in (12, 17, 24)] == [32, 23, 16]
    assert [soft_split_geometry(384, n)[:2] for n in (12, 16, 24)] == [(14, 8), (11, 6), (7, 4)]


@settings(deadline=None, max_examples=60)
@given(size=st.integers(8, 400), tokens=st.integers(1, 40))
def test_geometry_gives_the_wanted_grid(size: int, tokens: int) -> None:
    """Or says that it cannot."""
    try:
        kernel, padding = patch_geometry(size, tokens)
        assert (size + 2 * padding - kernel) // kernel + 1 == tokens and padding < kernel
        assert size + 2 * padding >= kernel * tokens, "every pixel is seen"
    except ValueError as error:
        assert "tokens" in str(error) or "patches" in str(error)
    try:
        kernel, stride, padding = soft_split_geometry(size, tokens)
    except ValueError as error:
        assert "tokens" in str(error)
        return
    windows = (size + 2 * padding - kernel) // stride + 1
    for _ in range(2):
        windows = (windows + 2 - 3) // 2 + 1
    assert windows == tokens


@pytest.mark.parametrize("embed", ["patch", "performer", "transformer"])
@pytest.mark.parametrize("size", [(32, 32), (40, 23), (9, 70)])
def test_any_image_size(embed: str, size: tuple[int, int]) -> None:
    model = cascade(arch=ARCHS["mini"] | dict(embed=embed), token_grids=(2, 4)).eval()
    outputs = model(torch.rand(2, 3, *size))
    assert [tuple(o.shape) for o in outputs] == [(2, 64), (2, 64)]
    assert all(torch.isfinite(o).all() for o in outputs)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(arch="huge"), "no arch 'huge'"),
        (dict(token_grids=()), "token_grids lists"),
        (dict(token_grids=(33,)), "1 to 32 tokens"),
        (dict(arch="t2t_mini", image_size=64, token_grids=(11,)), "legal numbers near"),
        (dict(token_grids=((2, 5),)), "proportions"),
    ],
)
def test_wrong_arguments(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cascade(**changes)


# --- reuse --------------------------------------------------------------------------------------------------


def resize_as_published(x: Tensor, source: int, target: int) -> Tensor:
    """(B, C, source, source): nearest to twice the side, then adaptive average."""
    return F.adaptive_avg_pool2d(F.interpolate(x, scale_factor=2, mode="nearest"), (target, target))


@settings(deadline=None, max_examples=25)
@given(source=st.integers(1, 9), target=st.integers(1, 14))
def test_resize(source: int, target: int) -> None:
    x = torch.rand(2, 3, source, source, dtype=torch.float64)
    wanted = resize_as_published(x, source, target).flatten(2)
    grids = ((source, source), (target, target))
    torch.testing.assert_close(resize_columns(x.flatten(2), *grids), wanted)
    torch.testing.assert_close(resize_rows(x.flatten(2).transpose(1, 2), *grids).transpose(1, 2), wanted)


def test_relation_reuse_by_hand() -> None:
    """Keys first, then queries, class row and column apart, against loops over the definition."""
    module = RelationReuse(2, 3).double()
    relation = torch.rand(1, 6, 5, 5, dtype=torch.float64)
    got = torch.cat(module(relation, (2, 2), (3, 3)), dim=1)
    x = module.conv2(F.gelu(module.conv1(relation)))
    keys = torch.zeros(1, 6, 5, 10, dtype=torch.float64)
    for query in range(5):
        cells = x[:, :, query, 1:].reshape(1, 6, 2, 2)
        keys[:, :, query] = torch.cat([x[:, :, query, :1], resize_as_published(cells, 2, 3).flatten(2)], dim=-1)
    wanted = torch.zeros(1, 6, 10, 10, dtype=torch.float64)
    for key in range(10):
        cells = keys[:, :, 1:, key].reshape(1, 6, 2, 2)
        wanted[:, :, :, key] = torch.cat([keys[:, :, :1, key], resize_as_published(cells, 2, 3).flatten(2)], dim=-1)
    torch.testing.assert_close(got, wanted)


def test_feature_reuse_leaves_the_class_token_out() -> None:
    module = FeatureReuse(8, 4, 6)
    features = torch.rand(2, 5, 8)
    context = module(features, (2, 2), (3, 3))
    assert context.shape == (2, 10, 6) and (context[:, 0] == 0).all() and (context[:, 1:] != 0).any()
    other = features.clone()
    other[:, 0] += 1
    assert module(other, (2, 2), (3, 3)).equal(context)


@pytest.mark.parametrize("features", [False, True])
@pytest.mark.parametrize("relations", [False, True])
def test_reuse_can_be_switched_off(features: bool, relations: bool) -> None:
    """What is off is not built; what is on matters; without both, exits are plain models of their own."""
    model = cascade(reuse_features=features, reuse_relations=relations).eval()
    names = {name.split(".", 2)[2] for name, _ in model.named_parameters()}
    assert any("reuse.norm" in name for name in names) == features
    assert any("relation_reuse" in name for name in names) == relations
    x = torch.rand(1, 3, 32, 32)
    before = model(x)
    with torch.no_grad():
        model.exits[0].blocks[-1].fc2.weight += 0.5  # changes the last tokens, no attention score
        model.exits[0].blocks[0].qkv.bias[:64] += 0.5
    after = model(x)
    assert not before[0].equal(after[0])
    assert before[1].equal(after[1]) == (not features and not relations)


def test_gradients_reach_everything_and_checkpointing_changes_nothing() -> None:
    x = torch.rand(2, 3, 32, 32)
    grads = []
    for with_cp in (False, True):
        model = cascade(with_cp=with_cp).train()
        sum(o.square().sum() for o in model(x)).backward()
        grads.append({name: p.grad for name, p in model.named_parameters()})
        assert all(grad is not None for grad in grads[-1].values())
    for name, grad in grads[0].items():
        torch.testing.assert_close(grads[1][name], grad, msg=name)


def test_performer_is_near_softmax_attention() -> None:
    """What the random features estimate: exp(q k) attention, for small inputs."""
    layer = PerformerTokenLayer(12, 16, num_features=2048).eval()
    layer.features.copy_(torch.randn(2048, 16))
    q, k, v = torch.randn(3, 1, 7, 16).mul(0.3).unbind(0)
    phi_q, phi_k = layer._phi(q), layer._phi(k)
    estimate = phi_q @ (phi_k.transpose(1, 2) @ v) / (phi_q @ phi_k.sum(1).unsqueeze(-1))
    torch.testing.assert_close(estimate, (q @ k.transpose(1, 2)).softmax(-1) @ v, atol=0.02, rtol=0.1)


def test_soft_split_tokens_are_linear_in_count() -> None:
    split = SoftSplit("performer", soft_split_geometry(64, 4), 32)
    tokens, grid = split(torch.rand(1, 3, 64, 64))
    assert grid == (4, 4) and tokens.shape == (1, 16, 32)


def test_sinusoid() -> None:
    table = sinusoid_positions(3, 4)[0]
    angles = torch.tensor([[p, p, p / 100, p / 100] for p in range(3)])
    torch.testing.assert_close(table, torch.where(torch.arange(4) % 2 == 0, angles.sin(), angles.cos()))


def test_bfloat16_is_near_float32() -> None:
    for arch in ("mini", "t2t_mini"):
        model = cascade(arch=arch, token_grids=(2, 4)).eval()
        x = torch.rand(1, 3, 32, 32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = model(x)
        for a, b in zip(low, model(x), strict=True):
            assert (a.float() - b).abs().max() < 0.15 * b.std() + 0.05


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


# --- weights and export -------------------------------------------------------------------------------------


def official_names(model: nn.Module) -> dict[str, Tensor]:
    """The state of a classifier under the names of the authors' files."""
    names = ("less_less_token", "less_token", "normal_token")
    tables = (
        (
            ".embed.",
            ".tokens_to_token." if ".attention1.features" in str(model.state_dict().keys()) else ".patch_embed.",
        ),
        (".features", ".w"),
        (".relation_reuse.conv1", ".relation_reuse_conv.0"),
        (".relation_reuse.conv2", ".relation_reuse_conv.2"),
        (".reuse.norm", ".feature_resuse_mlp.0"),
        (".reuse.fc", ".feature_resuse_mlp.1.fc"),
    )
    out = {}
    for key, value in model.state_dict().items():
        if key.startswith("data_preprocessor"):
            continue
        part, _, number, rest = key.split(".", 3)
        name = (
            f"{names[int(number)]}.{rest}".replace("fc.", "head.") if part == "head" else f"{names[int(number)]}.{rest}"
        )
        for ours, theirs in tables:
            name = name.replace(ours, theirs)
        if ".blocks." in name and "resuse" not in name:
            for ours, theirs in ((".qkv", ".attn.qkv"), (".proj.", ".attn.proj."), (".fc", ".mlp.fc")):
                name = name.replace(ours, theirs)
        if ".attention" in name:
            name = name.replace(".fc1", ".mlp.0").replace(".fc2", ".mlp.2")
        out[name] = value.clone()
    return out


@pytest.mark.parametrize("arch", ["mini", "t2t_mini"])
def test_official_names(arch: str, tmp_path: Path) -> None:
    """DeiT's and T2T's files load whole, by the path that users call."""
    settings_ = dict(arch=arch, image_size=32, token_grids=(2, 4, 8))
    source = classifier(settings_)
    state = official_names(source)
    converted, family = convert_official({f"module.{key}": value for key, value in state.items()})
    assert family == "dvt" and all(
        converted[key].equal(value) for key, value in source.state_dict().items() if key in converted
    )
    torch.save({"model": state}, tmp_path / "official.pth")
    torch.manual_seed(9)
    target = classifier(settings_)
    for p in target.parameters():
        nn.init.normal_(p)
    OfficialPretrained(str(tmp_path / "official.pth"))(target)
    x = torch.rand(2, 3, 32, 32)
    assert all(a.equal(b) for a, b in zip(source(x), target(x), strict=True))
    with pytest.raises(ValueError, match="not keys of an official DVT"):
        convert_official(state | {"less_token.extra": torch.zeros(1)})


def test_weights_of_another_image_size() -> None:
    """Same patches, other grids: everything loads, positions are resized."""
    small, large = cascade(image_size=32, token_grids=(2, 4)), cascade(image_size=64, token_grids=(4, 8))
    with torch.no_grad():
        for part in small.exits:
            part.pos_embed.copy_(
                torch.arange(part.pos_embed.shape[1], dtype=torch.float)[None, :, None].expand_as(part.pos_embed)
            )
    large.load_state_dict(small.state_dict())
    table = large.exits[0].pos_embed[0, :, 0].detach()
    assert table[0] == 0 and len(table) == 17
    assert table[1:].mean() == pytest.approx(2.5, abs=0.05) and table[1] < table[4] < table[16]


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
