"""Every kernel against its plain twin in ops, forward and backward, under Triton's interpreter."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="no triton (make test-more)")

from ablationlab.model import ops
from ablationlab.model.attention import PackedAttention, plain_attention, prepared, rotation, turns_alone
from ablationlab.model.dropout import Dropout, dropout_keys
from ablationlab.model.gpt import ForwardPass
from ablationlab.model.kernels.activation import Activate
from ablationlab.model.kernels.adamw import update_
from ablationlab.model.kernels.attention import ShortAttention, fits, packed_attention
from ablationlab.model.kernels.cross_entropy import nll_and_gradient_
from ablationlab.model.kernels.dropout import Drop
from ablationlab.model.kernels.gelu import BiasGelu
from ablationlab.model.kernels.norm import AddNorm, Norm
from ablationlab.model.kernels.rotation import Turn
from ablationlab.model.optimizers import AdamW, Columns, FusedMuon, RowLayout, RuleOptimizer, clock, gradient_norm_R
from ablationlab.model.rules import OPTIMIZERS, Matrix
from ablationlab.model.weights import Parameter
from ablationlab.records.settings import ModelConfig, TrainingConfig

pytestmark = pytest.mark.needs("triton")
HALF = torch.bfloat16


def drawn(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(*shape) * scale).to(dtype).requires_grad_()


def rows_of_a_buffer(runs: int, width: int) -> torch.Tensor:
    """A per-run vector as the flat buffer holds it: rows that do not follow each other in memory."""
    return (torch.randn(runs, width + 7)[:, :width]).detach().requires_grad_()


def gradients(outputs, seeds, inputs):
    total = sum((o.float() * s).sum() for o, s in zip(outputs, seeds, strict=True))
    return torch.autograd.grad(total, inputs)


def agree(ours, theirs, *, half: bool = False) -> None:
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if half else {"rtol": 2e-5, "atol": 2e-5}
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one.float(), other.float(), **tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("center", [True, False], ids=["layernorm", "rmsnorm"])
@pytest.mark.parametrize(
    ("rows", "width", "gained", "biases"),
    [(5, 24, True, True), (70, 128, True, True), (3, 100, True, False), (40, 48, False, False)],
)
def test_add_norm(dtype, center, rows, width, gained, biases):
    torch.manual_seed(0)
    x, o = drawn(2, 1, rows, width), drawn(2, 1, rows, width, dtype=dtype)
    given = [rows_of_a_buffer(2, width) if there else None for there in (biases, gained, biases)]
    ours = AddNorm.apply(x, o, *given, 1e-5, dtype, center)
    theirs = ops.add_norm(x, o, *given, 1e-5, dtype, center=center)
    agree(ours, theirs, half=dtype == HALF)
    inputs = [x, o, *(value for value in given if value is not None)]
    seeds = [torch.randn(2, 1, rows, width) for _ in range(2)]
    agree(gradients(ours, seeds, inputs), gradients(theirs, seeds, inputs), half=dtype == HALF)


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("center", [True, False], ids=["layernorm", "rmsnorm"])
def test_norm(dtype, center):
    torch.manual_seed(1)
    x, gain, bias = drawn(3, 1, 33, 40), rows_of_a_buffer(3, 40), rows_of_a_buffer(3, 40)
    ours = Norm.apply(x, gain, bias, 1e-5, dtype, center)
    theirs = ops.norm(x, gain, bias, 1e-5, dtype, center=center)
    agree([ours], [theirs], half=dtype == HALF)
    seeds = [torch.randn(3, 1, 33, 40)]
    agree(gradients([ours], seeds, [x, gain, bias]), gradients([theirs], seeds, [x, gain, bias]), half=dtype == HALF)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # 1 / (1 + inf) is the 0 it should be
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("biased", [True, False])
def test_bias_gelu(dtype, biased):
    torch.manual_seed(2)
    h, b = drawn(2, 1, 70, 200, dtype=dtype, scale=3.0), rows_of_a_buffer(2, 200)
    b = b if biased else None
    ours, theirs = BiasGelu.apply(h, b), ops.bias_gelu(h, b)
    agree([ours], [theirs], half=dtype == HALF)
    inputs, seeds = [h, *([b] if biased else [])], [torch.randn(2, 1, 70, 200)]
    mine, plain = gradients([ours], seeds, inputs), gradients([theirs], seeds, inputs)
    agree(mine[:1], plain[:1], half=dtype == HALF)
    if biased:  # a sum of 70 rounded terms
        torch.testing.assert_close(mine[1], plain[1], rtol=1e-4, atol=0.2 if dtype == HALF else 1e-4)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("name", sorted(ops.ACTIVATIONS))
def test_activations(name, gated, dtype):
    torch.manual_seed(8)
    h = drawn(2, 1, 30, 100, dtype=dtype, scale=3.0)
    up = drawn(2, 1, 30, 100, dtype=dtype) if gated else None
    ours, theirs = Activate.apply(h, up, name), ops.activated(h, name, up)
    agree([ours], [theirs], half=dtype == HALF)
    inputs, seeds = [h, *([up] if gated else [])], [torch.randn(2, 1, 30, 100)]
    agree(gradients([ours], seeds, inputs), gradients([theirs], seeds, inputs), half=dtype == HALF)


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("qk_norm", ["none", "rmsnorm"])
@pytest.mark.parametrize(("time", "heads", "size"), [(16, 2, 16), (11, 3, 24)])
def test_turned_queries_and_keys(qk_norm, time, heads, size, dtype):
    torch.manual_seed(9)
    model = ModelConfig(
        layers=1, width=heads * size, heads=heads, context=16, vocabulary=11, position="rotary", qk_norm=qk_norm,
        norm_gain=False,
    )  # fmt: skip
    forward = ForwardPass({}, model, ())
    assert turns_alone(forward, "blocks.0.attn")
    qkv = drawn(2, 3, time, 3 * heads * size, dtype=dtype)
    cos, sin = rotation(16, size, model.rotary_base, qkv.device)
    ours = Turn.apply(qkv, cos, sin, heads, None if qk_norm == "none" else model.norm_eps)
    theirs = prepared(forward, qkv, "blocks.0.attn")
    agree([ours], [theirs], half=dtype == HALF)
    seeds = [torch.randn(qkv.shape)]
    agree(gradients([ours], seeds, [qkv]), gradients([theirs], seeds, [qkv]), half=dtype == HALF)


@pytest.mark.parametrize(
    ("time", "heads", "size", "biased"),
    [(16, 2, 16, False), (37, 3, 16, True), (128, 1, 32, False), (5, 2, 64, True)],
)
def test_short_attention(time, heads, size, biased):
    """In fp32: the interpreter's products of bf16 are wrong. benchmarks/gpu_check.py compares bf16 on a GPU."""
    torch.manual_seed(3)
    qkv, b = drawn(2, 2, time, 3 * heads * size), rows_of_a_buffer(2, 3 * heads * size)
    b = b if biased else None
    assert fits(time, size)
    ours, theirs = ShortAttention.apply(qkv, b, heads), ops.causal_attention(qkv, b, heads)
    agree([ours], [theirs])
    inputs, seeds = [qkv, *([b] if biased else [])], [torch.randn(2, 2, time, heads * size)]
    mine, plain = gradients([ours], seeds, inputs), gradients([theirs], seeds, inputs)
    torch.testing.assert_close(mine, plain, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("time", "heads", "size", "biased"),
    [(20, 2, 16, False), (75, 3, 16, True), (150, 1, 32, False), (40, 2, 64, True)],
)
def test_attention_over_packed_rows(time, heads, size, biased):
    """Rows with and without a prefix, tails that end inside and at the edge of a block of keys, padding behind."""
    torch.manual_seed(5)
    qkv, b = torch.randn(2, 3, time, 3 * heads * size), rows_of_a_buffer(2, 3 * heads * size).detach()
    segments = torch.full((3, time), -1)
    for row, (prefix, tail) in enumerate([(7, 4), (1, 33), (0, 9)]):
        segments[row, :prefix] = 0
        number, place = 1, prefix
        while place < time - 2:
            segments[row, place : min(place + tail, time - 2)] = number
            number, place = number + 1, place + tail
    ours = packed_attention(qkv, b if biased else None, segments, heads)
    whole = qkv + b[:, None, None] if biased else qkv
    theirs = plain_attention(whole, PackedAttention(segments, 2).added, heads)
    there = segments >= 0
    agree([ours[:, there]], [theirs[:, there]])
    assert bool(ours.isfinite().all())


def test_attention_sees_no_future():
    torch.manual_seed(4)
    qkv = torch.randn(1, 1, 20, 3 * 16)
    changed = qkv.clone()
    changed[:, :, 11:] += 1
    before, after = (ShortAttention.apply(one, None, 1) for one in (qkv, changed))
    assert torch.equal(before[:, :, :11], after[:, :, :11])
    assert not torch.equal(before[:, :, 11:], after[:, :, 11:])


@pytest.mark.parametrize(("z_loss", "smoothing"), [(0.0, 0.0), (0.01, 0.2)])
@pytest.mark.parametrize(("vocabulary", "padded"), [(65, 72), (9000, 9008), (4096, 4096), (2, 8)])
def test_cross_entropy_and_its_gradient(vocabulary, padded, z_loss, smoothing):
    torch.manual_seed(5)
    rows = 9
    logits = torch.full((rows, padded), 123.0)
    logits[:, :vocabulary] = torch.randn(rows, vocabulary) * 4
    targets = torch.randint(0, vocabulary, (rows,))
    plain = logits[:, :vocabulary].clone().requires_grad_()
    expected = F.cross_entropy(plain, targets, reduction="none")
    objective = F.cross_entropy(plain, targets, reduction="sum", label_smoothing=smoothing)
    objective = objective + z_loss * plain.logsumexp(dim=-1).square().sum()
    (gradient,) = torch.autograd.grad(objective * 0.25, plain)
    nll = nll_and_gradient_(logits, targets, vocabulary, 0.25, z_loss, smoothing)
    torch.testing.assert_close(nll, expected.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits[:, :vocabulary], gradient, rtol=1e-5, atol=1e-6)
    assert not logits[:, vocabulary:].any()


@pytest.mark.parametrize("objective", [ops.PLAIN, ops.Objective(0.01, 0.0), ops.Objective(0.02, 0.3)])
def test_the_head_in_pieces_equals_the_head_in_one(monkeypatch, objective):
    torch.manual_seed(6)
    y, head = drawn(2, 11, 16), drawn(2, 21, 16)
    targets = torch.randint(0, 21, (2, 11))
    loss, plain = ops.head_losses_R(y, head, targets, objective)
    weights = torch.tensor([1.0, 3.0])
    expected = torch.autograd.grad((plain * weights).sum(), [y, head])
    for piece in (1 << 30, 2 * 24 * 4):
        monkeypatch.setattr(ops, "LOGITS_PER_PIECE", piece)
        ours = ops._HeadLoss.apply(y, head, targets, objective)
        torch.testing.assert_close(ours, loss)
        torch.testing.assert_close(torch.autograd.grad((ours * weights).sum(), [y, head]), expected)


@pytest.mark.parametrize(
    ("clip", "groups"),
    [
        (None, (Columns(5000, 1.0, 0.1), Columns(4000, 1.0, 0.0))),
        (1.0, (Columns(5000, 1.0, 0.1), Columns(4000, 1.0, 0.0))),
        (1.0, (Columns(1000, 0.5, 0.2), Columns(4000, 1.0, 0.1), Columns(3000, 3.0, 0.0), Columns(1000, 0.0, 0.1))),
    ],
)
def test_adamw(clip, groups):
    torch.manual_seed(7)
    training = TrainingConfig(steps=9, betas=(0.9, 0.999), weight_decay=0.1, clip="off" if clip is None else clip)
    runs, columns = 3, 9000
    start = torch.randn(runs, columns)
    plain, ours = start.clone(), start.clone()
    optimizer = AdamW.start(training, plain, groups)
    assert (optimizer.scales_2P is None) == (len(groups) == 2)
    m, v = torch.zeros_like(ours), torch.zeros_like(ours)
    alive = torch.tensor([True, True, False])
    lr = torch.tensor([1e-2, 1e-3, 1e-2])
    for step in range(1, 6):
        gradient = torch.randn(runs, columns) * 10.0 ** (step - 3)
        gradient[2] = math.nan
        norm, now = gradient_norm_R(gradient), torch.tensor(clock(training, step))
        expected = optimizer.update(plain, gradient, norm, lr, now, alive)
        found = update_(
            ours, gradient, m, v, 5000, norm, lr, now, alive, betas=training.betas, eps=training.eps,
            weight_decay=training.weight_decay, clip=clip, scales_2P=optimizer.scales_2P,
        )  # fmt: skip
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-9)
    torch.testing.assert_close(ours, plain, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(m, optimizer.m_RP, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(v, optimizer.v_RP, rtol=1e-5, atol=1e-9)
    assert torch.equal(ours[2], start[2])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("clip", [1.0, "off"])
def test_muon(clip, precision):
    """Two layers of matrices, one of them three side by side, with a rate of their own, behind padding; then the rest."""
    torch.manual_seed(9)
    training = TrainingConfig(steps=9, optimizer="muon", weight_decay=0.1, clip=clip, precision=precision)
    qkv, down = Parameter("qkv", (8, 24), sections=(8, 8, 8)), Parameter("down", (24, 8))
    starts = (0, 192, 384 + 64, 640)  # 64 columns of padding in front of the third
    matrices = [
        matrix
        for place, parameter in zip(starts, (qkv, down, qkv, down), strict=True)
        for matrix in Matrix.all_of(parameter, place)
    ]
    columns = Columns(832, 0.5, 0.2), Columns(100, 2.0, 0.1), Columns(30, 1.0, 0.0)
    row = RowLayout(columns, lambda flat: {}, tuple(matrices), 832)
    start = torch.randn(3, 962)
    start[:, 384:448] = 0.0
    plain, ours = start.clone(), start.clone()
    rule = OPTIMIZERS["muon"]
    assert rule is not None
    twin, optimizer = RuleOptimizer(training, rule, plain, row), FusedMuon(training, rule, ours, row)
    lr, alive = torch.tensor([1e-2, 1e-3, 1e-2]), torch.tensor([True, True, True])
    for step in range(1, 5):
        gradient = torch.randn(3, 962) * 10.0 ** (step - 3)
        gradient[:, 384:448] = 0.0
        if step == 3:
            gradient[2], alive[2] = math.nan, False
            before = [values[2].clone() for values in (ours, *optimizer.state.values())]
        norm, now = gradient_norm_R(gradient), torch.tensor(clock(training, step))
        for weights, side in ((plain, twin), (ours, optimizer)):
            assert all(value.isnan().all() for value in side.update(weights, gradient, norm, lr, now, alive))
    assert all(map(torch.equal, before, (values[2] for values in (ours, *optimizer.state.values()))))
    for name, value in twin.state.items():
        torch.testing.assert_close(optimizer.state[name], value, rtol=1e-5, atol=1e-6)
    # Both make the same products; in bf16 what enters them may be rounded the other way.
    torch.testing.assert_close(ours, plain, rtol=0, atol=1e-6 if precision == "fp32" else 5e-4)
    assert float((plain - start)[:, :832].abs().amax()) > 0.01


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize(("rate", "shape"), [(0.2, (2, 3, 4, 9, 9)), (0.9, (3, 2, 70, 64))])
def test_dropout_drops_exactly_the_named_units(dtype, rate, shape):
    torch.manual_seed(7)
    keys = torch.from_numpy(dropout_keys([5, 6, 7][: shape[0]], 11, ["front", "blocks.0.attn"]))
    plain = Dropout(rate, ("front", "blocks.0.attn"), keys, first_sample=2)
    x = drawn(*shape, dtype=dtype)
    ours, theirs = Drop.apply(x, keys[1], 2, rate), plain(x, "blocks.0.attn")
    assert torch.equal(ours == 0, ~plain.mask("blocks.0.attn", shape))
    agree([ours], [theirs], half=dtype == HALF)
    seeds = [torch.randn(*shape)]
    mine, others = gradients([ours], seeds, [x]), gradients([theirs], seeds, [x])
    assert torch.equal(mine[0] == 0, others[0] == 0)
    agree(mine, others, half=dtype == HALF)
