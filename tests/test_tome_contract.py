"""The promises of every backbone, for ToMe. All its maps have one stride and its norms no statistics, so it is no
HierarchicalBackbone; the tests of those that fit are called here by name."""

from __future__ import annotations

import doctest
from pathlib import Path
from typing import Any

import pytest
import test_backbone_contract as contract
import test_backbone_training as training
import test_export as export
import torch
from backbone_cases import BackboneCase, image
from hosts import require_host

from mmvit_plugins.models import ToMe

require_host("mmpretrain")

_ARCH = dict(embed_dims=32, num_layers=4, num_heads=2, feedforward_channels=64)
_VIT = dict(type="mmpretrain.VisionTransformer", arch=_ARCH, patch_size=8, img_size=64, out_type="featmap")


def _settings(r: Any, model: dict[str, Any], **others: Any) -> dict[str, Any]:
    return dict(model=_VIT | model, r=r, out_indices=(0, 1, 2, 3)) | others


SETTINGS = {
    "class": _settings(3, dict(layer_scale_init_value=0.5)),
    "distilled": _settings((2, -1), dict(type="mmpretrain.DistilledVisionTransformer")),
    "windows": _settings(2, dict(with_cls_token=False), window_size=3, global_blocks=(1, 3)),
    "threshold": _settings(None, {}, threshold=0.2),
    "off": _settings(0, {}),
}
CASES = [BackboneCase(f"ToMe-{name}", ToMe, settings) for name, settings in SETTINGS.items()]
STATIC = [case for case in CASES if "threshold" not in case.name]  # how many merge depends on the picture
every_case = pytest.mark.parametrize("case", CASES, ids=str)
PLAIN = [
    contract.test_maps_depend_on_the_whole_input,
    contract.test_a_sample_does_not_depend_on_its_batch_mates,
    contract.test_the_size_is_free_at_run_time,
    contract.test_inputs_stay_as_they_are_in_any_memory_layout,
    contract.test_with_and_without_gradients_agree,
    contract.test_copies_and_pickles_are_the_same_model,
    contract.test_the_state_holds_weights_and_norm_statistics_only,
    contract.test_two_threads_at_once,
    contract.test_evaluation_draws_no_random_numbers,
    contract.test_nothing_is_scripted,
    training.test_checkpointing_changes_neither_gradients_nor_statistics,
    training.test_checkpointing_saves_memory,
    training.test_paths_are_dropped_in_training_only,
    training.test_double_precision_works_throughout,
]


@every_case
@pytest.mark.parametrize("promise", PLAIN, ids=lambda f: f.__name__.removeprefix("test_"))
def test_promise(case: BackboneCase, promise: Any) -> None:
    promise(case)


@every_case
@pytest.mark.parametrize("size", contract.SIZES, ids=str)
def test_any_size_gives_the_promised_shapes(case: BackboneCase, size: tuple[int, int]) -> None:
    model = case.build()
    assert model.out_channels == (32,) * 4 and model.out_strides == (8,) * 4
    for y in contract.outputs(model, image(2, *size)):
        assert tuple(y.shape) == (2, 32, -(-size[0] // 8), -(-size[1] // 8)) and y.isfinite().all()


@every_case
@pytest.mark.parametrize("given", [0, 2, -1, [1, 3], (-4, -1), (1, 2, 3)], ids=str)
def test_out_indices_in_every_form(case: BackboneCase, given: Any) -> None:
    contract.test_out_indices_in_every_form(case, given)


@pytest.mark.parametrize("given", [(4,), (-9,), (0, 0), (2, 1), (), (0.0,), ("0",)], ids=str)
def test_illegal_out_indices_are_refused(given: tuple) -> None:
    contract.test_illegal_out_indices_are_refused(CASES[0], given)


@pytest.mark.parametrize(
    "name, value, said",
    [
        ("arch", "nonesuch", "nonesuch"),
        ("arch", {"nonesuch": 1}, "nonesuch"),
        ("frozen_stages", 4, "4"),
        ("frozen_stages", -2, "-2"),
        ("drop_path_rate", 1.0, "1.0"),
        ("out_type", "map", "map"),
        ("threshold", 1.5, "1.5"),
        ("window_size", 0, "0"),
        ("global_blocks", (4,), "4"),
        ("r", -1, "-1"),
        ("r", None, "None"),
    ],
    ids=str,
)
def test_illegal_arguments_are_refused_by_name(name: str, value: object, said: str) -> None:
    contract.test_illegal_arguments_are_refused_by_name(CASES[0], name, value, said)


@every_case
@pytest.mark.parametrize("out_indices", [(0, 1, 2, 3), (3,), (0, 2)], ids=str)
def test_every_parameter_is_used(case: BackboneCase, out_indices: tuple[int, ...]) -> None:
    training.test_every_parameter_is_used(case, out_indices)


@pytest.mark.parametrize("out_type", ["cls_token", "avg_featmap", "raw"])
def test_every_parameter_is_used_by_every_output(out_type: str) -> None:
    model = CASES[0].build(out_type=out_type, out_indices=-1).train()
    sum(y.square().sum() for y in model(image(2, 64, 64))).backward()
    assert not [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]


@every_case
@pytest.mark.parametrize("frozen", [-1, 0, 1, 3])
def test_frozen_stages_stay_as_they_are(case: BackboneCase, frozen: int) -> None:
    model, x = case.build(frozen_stages=frozen, drop_path_rate=0.1), image(2, 64, 64)
    before = {name: p.clone() for name, p in model.named_parameters()}
    assert model.train() is model and model.training
    if frozen < 3:
        training.gradients(model, x)
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    else:
        assert not any(y.requires_grad for y in model(x))
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    late = {f"model.layers.{i}." for i in range(frozen + 1, 4)} | ({"model.ln1."} if frozen < 3 else set())
    early = () if frozen >= 0 else ("model.cls", "model.dist", "model.pos", "model.patch_embed", "model.layers.0.")
    assert moved == {name for name in before if name.startswith((*late, *early))}
    assert not any(m.training for part in model.frozen_parts(frozen) for m in part.modules()) or frozen < 0


@every_case
@pytest.mark.parametrize(
    "dtype, scale",
    # Not float16 at 1e3: MMPretrain's plain ViT itself overflows there.
    [(torch.bfloat16, 0.0), (torch.bfloat16, 1.0), (torch.bfloat16, 1e3), (torch.float16, 0.0), (torch.float16, 1.0)],
    ids=str,
)
def test_half_precision_stays_finite(case: BackboneCase, dtype: torch.dtype, scale: float) -> None:
    training.test_half_precision_stays_finite(case, dtype, scale)


@every_case
@pytest.mark.parametrize("scale", [0.0, 1e3])
def test_a_model_in_bfloat16_stays_finite(case: BackboneCase, scale: float) -> None:
    training.test_a_model_in_bfloat16_stays_finite(case, scale)


def test_bfloat16_autocast_is_close_where_no_pair_changes() -> None:
    """Merging is a choice: rounding may pair other tokens, and then results differ by more than rounding."""
    training.test_bfloat16_autocast_is_close_to_float32(CASES[-1])
    model, x = CASES[0].build(r=1).eval(), image(2, 64, 64)
    wanted = contract.outputs(model, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = contract.outputs(model, x)
    assert all((a.float() - b).norm() / b.norm() < 0.2 for a, b in zip(got, wanted, strict=True))


def test_the_docstring_example_runs() -> None:
    (example,) = [test for test in doctest.DocTestFinder(recurse=False).find(ToMe, "ToMe") if test.examples]
    result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example)
    assert result.attempted >= 3 and result.failed == 0


@pytest.fixture
def fresh_compiler() -> None:
    torch.compiler.reset()


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("case", STATIC, ids=str)
@pytest.mark.parametrize(
    "promise",
    [
        export.test_compiled_model_gives_the_same,
        export.test_compiled_training_step_gives_the_same_gradients,
        export.test_exported_program_gives_the_same,
    ],
    ids=lambda f: f.__name__.removeprefix("test_"),
)
def test_graphs(case: BackboneCase, promise: Any) -> None:
    promise(case)


PADDED = BackboneCase("ToMe-padded windows", ToMe, SETTINGS["windows"] | dict(window_size=4))  # some windows are cut


@pytest.mark.parametrize("case", [*STATIC, PADDED], ids=str)
def test_onnx_at_a_fixed_size(case: BackboneCase, tmp_path: Path) -> None:
    """As the other backbones, but for the computed Pad of mmcv's patch embedding, which is the plain model's."""
    runtime = pytest.importorskip("onnxruntime", reason="needs the extra `export`")
    model, x = case.build(), image(2, 65, 90)
    export.export_onnx(model, x, tmp_path / "model.onnx")
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    other = image(2, 65, 90, seed=5)
    got = session.run(None, {session.get_inputs()[0].name: other.numpy()})
    contract.assert_same(tuple(map(torch.from_numpy, got)), contract.outputs(model, other), 1e-4)
