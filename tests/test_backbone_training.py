"""What every registered backbone promises about training and precision."""

from __future__ import annotations

import pytest
import torch
from backbone_cases import CHOOSING, BackboneCase, backbone_cases, image
from test_backbone_contract import assert_same, outputs
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

every_backbone = pytest.mark.parametrize("case", backbone_cases(), ids=str)
OUTPUTS = [(0, 1, 2, 3), (1, 2, 3), (3,), (0, 2)]


def loss_of(maps: tuple[Tensor, ...]) -> Tensor:
    """A loss to which every value of every map contributes differently."""
    return sum((y * torch.linspace(0.5, 1.5, y[0].numel()).view_as(y[0])).square().mean() for y in maps)


def gradients(model: nn.Module, x: Tensor) -> dict[str, Tensor | None]:
    model.zero_grad(set_to_none=True)
    loss_of(model(x)).backward()
    return {name: p.grad for name, p in model.named_parameters()}


def statistics(model: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


@every_backbone
@pytest.mark.parametrize("out_indices", OUTPUTS, ids=str)
def test_every_parameter_is_used(case: BackboneCase, out_indices: tuple[int, ...]) -> None:
    model = case.build(out_indices=out_indices).train()
    grads = gradients(model, image(2, 64, 64))
    assert not [name for name, grad in grads.items() if grad is None], "DDP would wait for these"
    assert not [name for name, grad in grads.items() if not grad.isfinite().all()]
    assert not [name for name, grad in grads.items() if not grad.abs().max() > 0], "no part of the result"


def test_the_gradient_check_sees_an_unused_parameter() -> None:
    (case, *_) = backbone_cases()
    model = case.build().train()
    model.unused = nn.Parameter(torch.zeros(1))
    assert gradients(model, image(2, 33, 33))["unused"] is None


@every_backbone
@pytest.mark.parametrize("frozen", [-1, 0, 1, 2, 3])
def test_frozen_stages_stay_as_they_are(case: BackboneCase, frozen: int) -> None:
    model, x = case.build(frozen_stages=frozen), image(2, 64, 64)
    before, state = outputs(model, x), {key: value.clone() for key, value in model.state_dict().items()}
    assert model.train() is model and model.training
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1, momentum=0.9)
    for _ in range(2):
        if frozen < 3:
            gradients(model, x)
            optimizer.step()
        else:
            assert not any(y.requires_grad for y in model(x))
    after = outputs(model, x)
    # Seen from outside: maps of frozen stages do not move, those behind them do.
    for i, (a, b) in enumerate(zip(before, after, strict=True)):
        assert torch.equal(a, b) == (i <= frozen), f"map {i} with frozen_stages={frozen}"
    # Seen from inside: weights and norm statistics of the frozen parts, and of nothing else.
    parts = model.frozen_parts(frozen) if frozen >= 0 else []
    places = {tensor.data_ptr() for part in parts for tensor in part.state_dict().values()}
    inside = {key for key, value in model.state_dict().items() if value.data_ptr() in places}
    moved = {key for key, value in model.state_dict().items() if not torch.equal(value, state[key])}
    assert moved == set(state) - inside
    assert len(inside) == len(places)


@every_backbone
def test_train_returns_the_model_and_switches_everything(case: BackboneCase) -> None:
    model = case.build(frozen_stages=1, norm_eval=True)
    assert model.train() is model and model.training
    assert model.eval() is model and not any(m.training for m in model.modules())
    assert model.train(False) is model and not model.training
    model.train()
    for part in model.frozen_parts(1):
        assert not any(m.training for m in part.modules())
        assert not any(p.requires_grad for p in part.parameters())
    assert any(m.training for m in model.modules() if m is not model)


@every_backbone
def test_norm_eval_keeps_statistics_and_trains_weights(case: BackboneCase) -> None:
    model, x = case.build(norm_eval=True).train(), image(2, 64, 64)
    if not any(isinstance(m, _BatchNorm) for m in model.modules()):
        pytest.skip("has no batch norm")
    before = statistics(model)
    grads = gradients(model, x)
    assert all(torch.equal(value, before[name]) for name, value in statistics(model).items())
    norms = [name for name, m in model.named_modules() if isinstance(m, _BatchNorm)]
    assert norms and all(grads[f"{name}.weight"].abs().max() > 0 for name in norms)
    free = case.build().train()
    before = statistics(free)
    gradients(free, x)
    assert not any(torch.equal(value, before[name]) for name, value in statistics(free).items())


@every_backbone
def test_checkpointing_changes_neither_gradients_nor_statistics(case: BackboneCase) -> None:
    x = image(3, 37, 53)
    plain, saving = case.build(drop_path_rate=0.3).train(), case.build(drop_path_rate=0.3, with_cp=True).train()
    for step in range(2):
        torch.manual_seed(step)
        wanted = gradients(plain, x)
        torch.manual_seed(step)
        got = gradients(saving, x)
        for name, grad in wanted.items():
            torch.testing.assert_close(
                got[name], grad, rtol=1e-5, atol=1e-7, msg=lambda text, name=name: f"{name} {text}"
            )
    counts = statistics(saving)
    for name, value in statistics(plain).items():
        torch.testing.assert_close(counts[name], value, msg=lambda text, name=name: f"{name} {text}")
        if name.endswith("num_batches_tracked"):
            assert int(value) == 2


@every_backbone
def test_checkpointing_saves_memory(case: BackboneCase) -> None:
    def saved_bytes(model: nn.Module) -> int:
        total = 0

        def pack(tensor: Tensor) -> Tensor:
            nonlocal total
            total += tensor.numel() * tensor.element_size()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss_of(model.train()(image(2, 64, 64)))
        return total

    assert saved_bytes(case.build(with_cp=True)) < 0.7 * saved_bytes(case.build())


@every_backbone
def test_paths_are_dropped_in_training_only(case: BackboneCase) -> None:
    x = image(4, 33, 47)
    dropping, plain = case.build(drop_path_rate=0.5), case.build()
    assert_same(outputs(dropping, x), outputs(plain, x), 1e-6)
    dropping.train()
    first, second = dropping(x), dropping(x)
    assert not torch.equal(first[-1], second[-1])
    plain.train()
    assert all(torch.equal(a, b) for a, b in zip(plain(x), plain(x), strict=True))


@every_backbone
def test_bfloat16_autocast_is_close_to_float32(case: BackboneCase) -> None:
    model, x = case.build().eval(), image(2, 128, 256)
    wanted = outputs(model, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = outputs(model, x)
    assert not any(torch.equal(a, b) for a, b in zip(got, wanted, strict=True)), "autocast changed nothing"
    for a, b in zip(got, wanted, strict=True):
        assert a.isfinite().all()
        error = (a.float() - b).norm() / b.norm()
        assert error < (0.5 if case.name in CHOOSING else 0.03), f"relative error {error:.3f}"


@every_backbone
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e3])
def test_half_precision_stays_finite(case: BackboneCase, dtype: torch.dtype, scale: float) -> None:
    """Mixed precision in training: results and gradients, for zeros and for images that nobody has normalised."""
    model, x = case.build().train(), image(2, 64, 64) * scale
    with torch.autocast("cpu", dtype=dtype):
        maps = model(x)
    loss_of(tuple(y.float() for y in maps)).backward()
    assert all(y.isfinite().all() for y in maps)
    assert all(p.grad.isfinite().all() for p in model.parameters())


@every_backbone
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e3])
def test_a_model_in_bfloat16_stays_finite(case: BackboneCase, scale: float) -> None:
    model = case.build().eval()
    wanted = outputs(model, image(1, 64, 64) * scale)
    model = model.to(torch.bfloat16)
    for a, b in zip(outputs(model, (image(1, 64, 64) * scale).bfloat16()), wanted, strict=True):
        assert a.dtype == torch.bfloat16 and a.isfinite().all()
        assert scale != 1 or (a.float() - b).norm() / b.norm() < 0.1


@every_backbone
def test_double_precision_works_throughout(case: BackboneCase) -> None:
    model, x = case.build(), image(1, 33, 47)
    single = outputs(model, x)
    double = outputs(model.double(), x.double())
    assert all(y.dtype == torch.float64 for y in double)
    assert_same(tuple(y.double() for y in single), double, 1e-4)
