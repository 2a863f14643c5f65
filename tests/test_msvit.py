"""The gate of MSViT and the tokens of two scales."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hosts import require_host
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mmvit_plugins.engine import TokenTrimmingHook
from mmvit_plugins.models.backbones.msvit import MSViT
from mmvit_plugins.models.layers.vit_block import weighted_attention
from mmvit_plugins.models.losses.batch_shaping import relaxed_bernoulli_cdf
from mmvit_plugins.models.token_reduction import MixedScales, PatchGate, RandomGate
from mmvit_plugins.models.token_reduction.mixed_scale import gumbel_sigmoid
from mmvit_plugins.registry import MODELS

SMALL = dict(embed_dims=32, depth=4, num_heads=2)
RANDOM = dict(type="mmvit_plugins.RandomGate")


def build(**changes: object) -> MSViT:
    """A small model with weights that are not zero."""
    torch.manual_seed(0)
    model = MSViT(**(dict(arch=SMALL, img_size=32, patch_size=8) | changes))
    model.init_weights()
    for p in model.parameters():
        if p.dim() > 1:
            torch.nn.init.normal_(p, std=0.2)
    return model


# --- attention with weights ---------------------------------------------------------------------------------


def explicit_attention(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """sum_j w_j exp(q k_j) v_j / sum_j w_j exp(q k_j), the matrix in memory."""
    scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).exp() * w[:, None, None, :]
    return scores @ v / scores.sum(dim=-1, keepdim=True)


def test_weighted_attention_is_the_formula_with_its_gradients() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 7, 8, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(3))
    weight = torch.tensor([[1, 0, 1, 1, 0, 1, 0], [0, 1, 0.5, 1, 1, 1, 2]], dtype=torch.float64, requires_grad=True)
    out, wanted = weighted_attention(q, k, v, weight), explicit_attention(q, k, v, weight)
    torch.testing.assert_close(out, wanted)
    probe = torch.randn(out.shape, generator=generator, dtype=torch.float64)
    got = torch.autograd.grad((out * probe).sum(), (q, k, v, weight))
    for a, b in zip(got, torch.autograd.grad((wanted * probe).sum(), (q, k, v, weight)), strict=True):
        torch.testing.assert_close(a, b)
    assert (got[3][0, [1, 4, 6]] != 0).all(), "a masked token's weight has a gradient"


def test_weights_of_zero_and_one_are_a_mask() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (3 * torch.randn(2, 3, 9, 8, generator=generator) for _ in range(3))
    mask = torch.rand(2, 9, generator=generator) > 0.5
    wanted = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
    torch.testing.assert_close(weighted_attention(q, k, v, mask.float()), wanted, rtol=1e-4, atol=1e-5)


# --- the gate -----------------------------------------------------------------------------------------------


def test_gumbel_sigmoid_draws_the_bernoulli_variable() -> None:
    """Decisions are 1 as often as the odds say; values follow the relaxed distribution; the gradient is that of m."""
    torch.manual_seed(0)
    logits = torch.full((20000,), 0.7, requires_grad=True)
    soft, hard = gumbel_sigmoid(logits, 0.5, noise=True)
    assert set(hard.detach().round(decimals=5).unique().tolist()) == {0.0, 1.0}
    assert float(hard.mean()) == pytest.approx(float(torch.tensor(0.7).sigmoid()), abs=0.01)
    values = soft.detach().sort().values
    cdf = relaxed_bernoulli_cdf(values, torch.tensor(0.7).sigmoid(), torch.tensor(0.5))
    inner = (values > 1e-3) & (values < 1 - 1e-3)  # the prior clips what lies outside
    assert 0.8 < float(inner.float().mean()) < 1
    assert float((cdf - torch.linspace(0, 1, 20000))[inner].abs().max()) < 0.02
    (gradient,) = torch.autograd.grad(hard.sum(), logits, retain_graph=True)
    torch.testing.assert_close(gradient, torch.autograd.grad(soft.sum(), logits)[0])
    soft, hard = gumbel_sigmoid(torch.tensor([-1e-3, 0.0, 1e-3]), 0.5, noise=False)
    assert hard.tolist() == [0.0, 0.0, 1.0]


def test_the_gate_is_local_and_sees_no_colour() -> None:
    gate = MODELS.build(dict(type="mmvit_plugins.PatchGate", in_features=3 * 64, channels=3)).eval()
    torch.nn.init.normal_(gate.decide.weight)
    x = torch.randn(1, 4, 192, generator=torch.Generator().manual_seed(0))
    before = gate.logits(x)
    x[0, 2] = x[0, 2].flip(0)
    assert ((gate.logits(x) != before) == torch.tensor([[False, False, True, False]])).all()
    brighter = x.view(1, 4, 3, 64) + torch.tensor([1.0, -2.0, 0.5]).view(3, 1)
    torch.testing.assert_close(gate.logits(brighter.flatten(2)), gate.logits(x), rtol=1e-4, atol=1e-4)


def test_a_new_gate_begins_at_its_share() -> None:
    gate = PatchGate(192, init_share=0.8)
    gate.init_weights()
    patches = torch.randn(2, 50, 192)
    share = gate.logits(0.4 * patches).sigmoid().mean()
    assert float(share) == pytest.approx(0.8, abs=0.05), "at a typical contrast"
    smoother, sharper = (float(gate.logits(scale * patches).sigmoid().mean()) for scale in (0.1, 1.6))
    assert smoother > 0.95 and sharper < 0.4
    constant = PatchGate(192, init_share=0.8, contrast=0.0)
    constant.init_weights()
    assert float(constant.logits(patches).sigmoid().mean()) == pytest.approx(0.8, abs=0.05)
    for wrong in (dict(temperature=0.0), dict(init_share=1.0)):
        with pytest.raises(ValueError, match="temperature must be above 0 and init_share"):
            PatchGate(192, **wrong)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_random_gate_has_its_share_in_every_image(share: float) -> None:
    gate = RandomGate(share=share)
    x = torch.randn(3, 20, 5)
    for mode in (True, False):
        soft, hard = gate.train(mode)(x, (4, 5))
        assert (hard.sum(dim=1) == round(20 * share)).all() and torch.equal(soft, hard)
    assert torch.equal(hard, hard[:1].expand(3, -1)), "the same places in every image"


# --- tokens of two scales -----------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(2, 3), st.integers(0, 2**20))
def test_every_cell_belongs_to_the_one_token_that_covers_it(height: int, width: int, ratio: int, seed: int) -> None:
    rows, cols = -(-height // ratio), -(-width // ratio)
    coarse = (torch.rand(2, rows * cols, generator=torch.Generator().manual_seed(seed)) > 0.5).float()
    scales = MixedScales(coarse, (height, width), ratio)
    used = scales.values(coarse)
    fine = rows * cols * ratio**2
    order = MSViT._order(used, used, "max")
    whole, kept = scales.whole_map(), scales.kept_map(order)
    assert whole.num == fine + rows * cols and kept.num == int(used.sum(dim=1).max())
    for sample in range(2):
        for y in range(height):
            for x in range(width):
                patch = (y // ratio) * cols + x // ratio
                is_coarse = bool(coarse[sample, patch])
                token = fine + patch if is_coarse else y * cols * ratio + x
                assert int(whole.hard()[sample, y * width + x]) == token and used[sample, token] == 1
                assert int(order[sample, kept.index[sample, y * width + x, 0]]) == token
    covered = set(whole.hard()[0].tolist())
    assert covered == set(used[0].nonzero().flatten().tolist()), "tokens of padding are not in use"


@pytest.mark.parametrize("size", [(32, 48), (45, 27)], ids=str)
def test_tokens_are_their_patches_with_positions_in_between(size: tuple[int, int]) -> None:
    """All tokens, patch by patch: fine pixels as they are, coarse ones averaged to half, both by one embedding."""
    model = build(gate=dict(RANDOM, share=0.5)).eval()
    x = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(0))
    grid = (-(-size[0] // 8), -(-size[1] // 8))
    pad = F.pad(x, (0, -size[1] % 16, 0, -size[0] % 16), mode="replicate")
    with torch.no_grad():
        (_, token_map, given_grid, coarse_grid), *_ = model.token_maps(x)
        mixed = model.tokenize(x)
        table = model.positions.table.transpose(1, 2).unflatten(2, (4, 4))
        positions = table if grid == (4, 4) else F.interpolate(table, size=grid, mode="bicubic")
        positions = F.pad(positions, (0, grid[1] % 2, 0, grid[0] % 2), mode="replicate")
        fine = model.patch_embed.projection(pad) + positions
        coarse = model.patch_embed.projection(F.avg_pool2d(pad, 2)) + F.avg_pool2d(positions, 2)
        every = torch.cat([fine.flatten(2), coarse.flatten(2)], dim=2).transpose(1, 2)
    assert given_grid == grid and coarse_grid == (-(-grid[0] // 2), -(-grid[1] // 2))
    wanted = every[0, token_map.hard()[0]]
    got = mixed.token_map.restore(mixed.tokens)[0]
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    assert mixed.tokens.shape[1] < every.shape[1], "tokens were really dropped"


@pytest.mark.parametrize("out_type", ["featmap", "cls_token"])
def test_dropping_equals_masking(out_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of one batch with different numbers of tokens; the masked form computes all of them."""
    model = build(out_type=out_type).eval()
    x = torch.randn(4, 3, 48, 80, generator=torch.Generator().manual_seed(0))
    x[1] = 0.3
    x[2, :, :, :40] = -1
    with torch.no_grad():
        mixed = model.tokenize(x)
        dropped = model(x)
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        masked = model(x)
    counts = mixed.key_mask.sum(dim=1)
    assert counts.max() == mixed.tokens.shape[1] < 6 * 10 + 3 * 5 and len(counts.unique()) > 1
    for a, b in zip(dropped, masked, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_training_and_eval_agree_where_the_decisions_do() -> None:
    """Weighted attention over all tokens in training, dropped ones in eval: the same result without noise."""
    model = build(gate=dict(type="mmvit_plugins.PatchGate", noise=False))
    x = torch.randn(3, 3, 48, 80, generator=torch.Generator().manual_seed(0))
    trained = model.train()(x)
    with torch.no_grad():
        for a, b in zip(trained, model.eval()(x), strict=True):
            torch.testing.assert_close(a.detach(), b, rtol=1e-4, atol=1e-4)


def test_the_gate_learns_from_both_choices() -> None:
    """Each decision has a gradient, whichever way it went, from maps and from class tokens."""
    for out_type in ("featmap", "cls_token"):
        model = build(out_type=out_type, out_indices=(3,)).train()
        kept = []
        hook = model.gate.register_forward_hook(lambda _m, _i, out, k=kept: k.append(out))
        model(torch.randn(2, 3, 32, 32))[0].square().sum().backward(retain_graph=True)
        hook.remove()
        soft, hard = kept[0]
        assert set(hard.detach().round(decimals=5).unique().tolist()) == {0.0, 1.0}
        (gradient,) = torch.autograd.grad(hard, model.gate.decide.bias, torch.ones_like(hard), retain_graph=True)
        assert gradient.abs() > 0 and model.gate.hidden[0][0].weight.grad.abs().sum() > 0
        assert soft.requires_grad


def test_trimming_in_training() -> None:
    model = build(out_type="cls_token", out_indices=(3,)).train()
    x = torch.randn(4, 3, 64, 64)
    x[:2] *= 0.01
    counts = {}
    for trim in (None, "max", "mean"):
        model.set_train_trim(trim)
        torch.manual_seed(1)
        mixed = model.tokenize(x)
        counts[trim] = mixed.tokens.shape[1]
        assert mixed.key_weight.requires_grad and mixed.key_weight.shape == mixed.tokens.shape[:2]
        if trim is None:
            used = (mixed.key_weight > 0.5).sum(dim=1)
            torch.manual_seed(1)
            full = model(x)[0]
        if trim == "max":
            torch.manual_seed(1)
            torch.testing.assert_close(model(x)[0], full, rtol=1e-4, atol=1e-5)
    assert counts == {None: 64 + 16, "max": int(used.max()), "mean": -(-int(used.sum()) // 4)}
    assert counts["mean"] < counts["max"]
    with pytest.raises(ValueError, match="train_trim.*'median'"):
        model.set_train_trim("median")
    with pytest.raises(ValueError, match="train_trim"):
        build(train_trim="mean")


def test_trimming_begins_after_the_burn_in() -> None:
    class Runner:
        iter = 0
        model = torch.nn.Module()

    Runner.model.backbone = build(out_type="cls_token")
    hook = TokenTrimmingHook(begin=5)
    seen = []
    for Runner.iter in range(3, 8):
        hook.before_train_iter(Runner, 0)
        seen.append(Runner.model.backbone.train_trim)
    assert seen == [None, None, "mean", "mean", "mean"]
    with pytest.raises(ValueError, match="begin"):
        TokenTrimmingHook(begin=-1)


def test_weights_of_mmpretrains_vit_load() -> None:
    """All fine, its table of positions at another size: the same features as MMPretrain's model."""
    require_host("mmpretrain")
    from mmpretrain.models import VisionTransformer

    torch.manual_seed(0)
    arch = dict(embed_dims=32, num_layers=4, num_heads=2, feedforward_channels=128)
    theirs = VisionTransformer(arch, img_size=32, patch_size=8, out_type="featmap", norm_cfg=dict(type="LN", eps=1e-6))
    theirs.eval()  # returns None
    torch.nn.init.normal_(theirs.cls_token)
    torch.nn.init.normal_(theirs.pos_embed)
    ours = build(gate=dict(type="mmvit_plugins.FixedGate", scale="fine"), out_indices=(3,)).eval()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(ours(x)[0], theirs(x)[0], rtol=1e-4, atol=1e-4)
    larger = build(gate=dict(type="mmvit_plugins.FixedGate", scale="fine"), img_size=64)
    larger.load_state_dict(theirs.state_dict())
    table = F.interpolate(theirs.pos_embed[:, 1:].transpose(1, 2).unflatten(2, (4, 4)), size=(8, 8), mode="bicubic")
    torch.testing.assert_close(larger.positions.table, table.flatten(2).transpose(1, 2))
