"""Graphs of the models: torch.compile, torch.export and ONNX give what the module gives."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from backbone_cases import BackboneCase, backbone_cases, image
from hosts import require_host
from test_backbone_contract import assert_same, outputs
from torch import Tensor, nn

every_backbone = pytest.mark.parametrize("case", backbone_cases(), ids=str)


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch.compiler.reset()


@every_backbone
def test_compiled_model_gives_the_same(case: BackboneCase) -> None:
    model = case.build().eval()
    graphs: list[torch.fx.GraphModule] = []

    def count(graph: torch.fx.GraphModule, inputs: list) -> object:
        graphs.append(graph)
        return graph.forward

    compiled, x = torch.compile(model, backend=count, dynamic=False), image(1, 33, 47)
    assert_same(outputs(compiled, x), outputs(model, x))
    assert len(graphs) == 1, "the graph breaks"


@every_backbone
def test_compiled_training_step_gives_the_same_gradients(case: BackboneCase) -> None:
    x = image(2, 33, 47)
    plain, model = case.build(with_cp=True).train(), case.build(with_cp=True).train()
    sum(y.square().mean() for y in plain(x)).backward()
    sum(y.square().mean() for y in torch.compile(model, backend="eager")(x)).backward()
    for (name, p), q in zip(plain.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name} {text}")


@every_backbone
def test_exported_program_gives_the_same(case: BackboneCase) -> None:
    model, x = case.build().eval(), image(1, 33, 47)
    with torch.no_grad():
        program = torch.export.export(model, (x,), strict=False)
        assert_same(program.module()(x), outputs(model, x))


def export_onnx(model: nn.Module, x: Tensor, path: Path, exporter: str = "tracing") -> None:
    """At the fixed size of ``x``, by PyTorch's old exporter ('tracing') or its new one ('program')."""
    pytest.importorskip("onnx", reason="needs the extra `export`")
    if exporter == "program":
        pytest.importorskip("onnxscript", reason="needs the extra `export`")
        if "external_data" not in inspect.signature(torch.onnx.export).parameters:
            pytest.skip(f"PyTorch {torch.__version__} has no exporter by program that is complete")
        options = dict(dynamo=True, external_data=False, verbose=False)
    else:
        options = dict(dynamo=False, opset_version=17)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of deprecation, and of every size that the tracer fixes
        torch.onnx.export(model.eval(), (x,), str(path), **options)


def check_onnx(path: Path, x: Tensor, wanted: tuple[Tensor, ...]) -> None:
    """ONNX Runtime gives ``wanted`` within 1e-4, and no Pad takes its amounts from a computation."""
    import onnx

    runtime = pytest.importorskip("onnxruntime", reason="needs the extra `export`")
    graph = onnx.load(str(path)).graph
    known = {one.name for one in graph.initializer} | {n.output[0] for n in graph.node if n.op_type == "Constant"}
    pads = [node for node in graph.node if node.op_type == "Pad"]
    assert not [node.name for node in pads if node.input[1] not in known], "TensorRT refuses computed pads"
    assert not [node.op_type for node in graph.node if node.domain not in ("", "ai.onnx")]
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    got = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert_same(tuple(map(torch.from_numpy, got)), wanted, 1e-4)
    assert all(np.isfinite(y).all() for y in got)


@every_backbone
def test_onnx_at_a_fixed_size(case: BackboneCase, tmp_path: Path) -> None:
    model, x = case.build(), image(2, 65, 90)
    export_onnx(model, x, tmp_path / "model.onnx")
    other = image(2, 65, 90, seed=5)  # nothing of the example's values is baked in
    check_onnx(tmp_path / "model.onnx", other, outputs(model, other))


# The pooling pyramid makes maps of 1, 2, 3 and 6 cells a side; the tracer can divide only what is a multiple of them.
@pytest.mark.parametrize("exporter, size", [("tracing", (192, 192)), ("program", (65, 90))], ids=str)
def test_onnx_of_a_whole_segmenter(exporter: str, size: tuple[int, int], tmp_path: Path) -> None:
    """STViT + UPerNet, from the normalised image to the logits, at a fixed size (R27)."""
    require_host("mmseg")
    from mmengine.registry import DefaultScope
    from mmseg.registry import MODELS

    case = next(case for case in backbone_cases() if case.name == "STViT-published")
    head = dict(
        type="UPerHead",
        in_channels=list(case.build().out_channels),
        in_index=[0, 1, 2, 3],
        channels=8,
        num_classes=4,
        norm_cfg=dict(type="BN"),
        align_corners=False,
        loss_decode=dict(type="CrossEntropyLoss", use_sigmoid=False, loss_weight=1.0),
    )
    backbone = dict(type="mmvit_plugins.STViT", **case.settings)
    with DefaultScope.overwrite_default_scope("mmseg"):
        segmenter = MODELS.build(
            dict(type="EncoderDecoder", backbone=backbone, decode_head=head, test_cfg=dict(mode="whole"))
        ).eval()
    x = image(1, *size)
    with torch.no_grad():
        wanted = segmenter(x, mode="tensor")
    assert tuple(wanted.shape) == (1, 4, -(-size[0] // 4), -(-size[1] // 4))
    export_onnx(segmenter, x, tmp_path / "segmenter.onnx", exporter)
    check_onnx(tmp_path / "segmenter.onnx", x, (wanted,))
