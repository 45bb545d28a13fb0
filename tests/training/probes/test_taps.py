"""The tapped pass is the model's own pass, with its inside kept; what is read from it against theory."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from probes.conftest import MODEL, TRAINING, snapshot_of

from ablationlab.model.gpt import ForwardPass
from ablationlab.model.ops import add, loss_R, norm
from ablationlab.model.parts import MLPS
from ablationlab.training.probes.activations import attention, output, residual
from ablationlab.training.probes.embedding import LEVELS
from ablationlab.training.probes.gradient_bound import gradient_bound, mlp_jacobian, spectral_norm
from ablationlab.training.probes.snapshot import tapped


def values(readings, measure, group):
    """(R,) of one measure of one group."""
    for reading in readings:
        if reading.measure == measure and group in reading.groups:
            return reading.values.reshape(reading.values.shape[0], -1)[:, list(reading.groups).index(group)]
    raise KeyError((measure, group))


def changed(snapshot, **arrays):
    """The snapshot with parameters set; names with __ for the dot."""
    flat = snapshot.weights_RP.clone()
    views = snapshot.layout.views(flat)
    for name, value in arrays.items():
        views[name.replace("__", ".")].copy_(torch.as_tensor(value))
    return replace(snapshot, weights_RP=flat)


@pytest.mark.parametrize("variant", ["none", "layernorm", "rmsnorm-token", "untied", "sqrt-d"])
@pytest.mark.parametrize("gradient", [False, True])
def test_the_tapped_pass_gives_the_models_logits(variant, gradient):
    snapshot = snapshot_of(variant, steps=2)
    taps = tapped(
        snapshot.weights, snapshot.windows_RBT, snapshot.model, snapshot.fronts, torch.float32, gradient=gradient
    )
    with torch.no_grad():
        plain = ForwardPass(snapshot.weights, snapshot.model, snapshot.fronts)
        entering = plain.embed(snapshot.windows_RBT[..., :-1])
        logits = plain.decode(entering)
    assert torch.allclose(taps.logits_RBTV, logits, atol=1e-5)
    assert torch.equal(taps.stream[0], entering)
    assert len(taps.stream) == MODEL.layers + 1
    assert not taps.logits_RBTV.requires_grad


def test_a_model_without_blocks_biases_or_final_norm_is_tapped_too():
    model = MODEL.changed(layers=0, final_norm=False, head_bias=True, biases=False, tied=False)
    snapshot = replace(snapshot_of("none", model=model), backward=False)
    logits = ForwardPass(snapshot.weights, snapshot.model, snapshot.fronts).logits(snapshot.sample_RBT[..., :-1])
    assert torch.allclose(snapshot.taps.logits_RBTV, logits, atol=1e-6)
    assert next(list(r.groups) for r in residual(snapshot)) == ["input"]


def test_gradients_of_the_stream_are_those_of_the_loss(snapshot):
    """Against central differences along a random direction at block 1's input."""
    taps = snapshot.taps
    weights = {name: value.double() for name, value in snapshot.weights.items()}
    direction = torch.randn(taps.stream[0].shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    forward = ForwardPass(weights, snapshot.model, snapshot.fronts, torch.float64)

    def loss(shift: float) -> torch.Tensor:
        x = taps.stream[0].double() + shift * direction
        return loss_R(forward.decode(x), snapshot.sample_RBT[..., 1:])

    slope = (loss(1e-3) - loss(-1e-3)) / 2e-3
    wanted = (taps.gradients[0].double() * direction).flatten(1).sum(dim=1)
    # The loss is in fp32, so a difference of two over 2e-3 is known to 1.2e-4 at best.
    assert wanted.tolist() == pytest.approx(slope.tolist(), rel=1e-2, abs=5e-4)


def test_residual_norms_and_variances_are_those_of_the_stream(snapshot):
    readings = residual(snapshot)
    for place, group in enumerate(("input", "block-1", "block-2")):
        x = snapshot.taps.stream[place]
        assert torch.allclose(values(readings, "norm", group), x.norm(dim=-1).mean(dim=(1, 2)))
        assert torch.allclose(values(readings, "variance", group), x.var(dim=-1, correction=0).mean(dim=(1, 2)))
    # LayerNorm and RMSNorm with a gain near 1 leave vectors of length sqrt(width).
    assert values(readings, "norm", "input")[1:].tolist() == pytest.approx([4.0, 4.0], rel=0.1)


def test_attention_that_sees_nothing_is_uniform_and_its_entropy_log_t(snapshot):
    blind = changed(snapshot, blocks__0__attn__qkv__weight=0.0, blocks__0__attn__qkv__bias=0.0)
    readings = attention(blind)
    wanted = sum(math.log(t) for t in range(1, MODEL.context + 1)) / MODEL.context
    assert values(readings, "entropy", "block-1").tolist() == pytest.approx([wanted] * 3, rel=1e-5)
    assert values(readings, "entropy_share", "block-1").tolist() == pytest.approx([1.0] * 3, rel=1e-5)
    assert values(readings, "logit_max", "block-1").tolist() == [0.0] * 3
    # Every query t spreads 1/t over the keys before it: the first key receives the harmonic sum.
    harmonic = sum(1 / t for t in range(1, MODEL.context + 1))
    assert blind.taps.attention[0].column_max_R.tolist() == pytest.approx([harmonic] * 3, rel=1e-5)


def test_attention_that_sees_one_key_alone_has_no_entropy(snapshot):
    width, heads = MODEL.width, MODEL.heads
    first = snapshot.windows_RBT.clone()
    first[..., 0], first[..., 1:] = 1, 2  # the first token differs from all that follow
    weight = torch.zeros(width, 3 * width)
    bias = torch.zeros(3 * width)
    bias[:width] = 1.0  # every query is constant; a key is large where the normed vector points to token 1
    table = torch.zeros_like(snapshot.weights["tok.weight"])
    table[:, 1], table[:, 2] = torch.tensor([1.0, -1.0] * 8), torch.tensor([-1.0, 1.0] * 8)
    weight[:, width : 2 * width] = 100 * torch.tensor([1.0, -1.0] * 8)[:, None]
    sharp = changed(
        replace(snapshot, windows_RBT=first),
        tok__weight=table,
        pos__weight=0.0,
        blocks__0__norm1__gain=1.0,
        blocks__0__norm1__bias=0.0,
        blocks__0__attn__qkv__weight=weight,
        blocks__0__attn__qkv__bias=bias,
    )
    readings = attention(sharp)
    assert values(readings, "entropy", "block-1").tolist() == [0.0] * 3
    # q·k / sqrt(d_head) = 8 · 100 · 16 / sqrt(8), with the normed vector at ±1
    assert values(readings, "logit_max", "block-1")[0].item() == pytest.approx(
        width // heads * 100 * width / math.sqrt(width // heads), rel=1e-3
    )


def test_the_distribution_of_logits_is_that_of_numpy_without_each_tokens_mean(snapshot):
    logits = snapshot.taps.logits_RBTV.flatten(1, 2).double().numpy()
    centred = (logits - logits.mean(axis=-1, keepdims=True)).reshape(len(logits), -1)
    (reading,) = [reading for reading in output(snapshot) if reading.measure == "quantile"]
    np.testing.assert_allclose(reading.values.numpy(), np.quantile(centred, LEVELS, axis=1).T, rtol=1e-4, atol=1e-5)


def test_equal_logits_have_a_log_partition_of_log_v_plus_the_logit(snapshot):
    flat = changed(snapshot, final_norm__gain=0.0, final_norm__bias=1.0, tok__weight=0.25)
    readings = {reading.measure: reading.values for reading in output(flat)}
    logit = 0.25 * MODEL.width
    assert readings["logit_std"].tolist() == pytest.approx([0.0] * 3, abs=1e-6)
    assert readings["logit_max"].tolist() == pytest.approx([logit] * 3)
    assert readings["log_partition"].tolist() == pytest.approx([logit + math.log(MODEL.vocabulary)] * 3, rel=1e-6)
    assert readings["log_partition_std"].tolist() == pytest.approx([0.0] * 3, abs=1e-5)


def test_the_mlps_jacobian_is_autograds(snapshot):
    found = mlp_jacobian(snapshot)
    tokens = snapshot.taps.middle[0].flatten(1, 2)
    chosen = torch.linspace(0, tokens.shape[1] - 1, found.shape[1]).long()
    for run in range(3):
        mine = {name: value[run : run + 1] for name, value in snapshot.weights.items()}

        def sublayer(x, mine=mine):
            x = x.view(1, 1, 1, -1)
            y = norm(x, mine["blocks.0.norm2.gain"], mine["blocks.0.norm2.bias"], MODEL.norm_eps, torch.float32)
            return add(x, *MLPS["gelu"](ForwardPass(mine, MODEL, ()), y, "blocks.0.mlp")).flatten()

        for place, token in enumerate(chosen):
            wanted = torch.autograd.functional.jacobian(sublayer, tokens[run, token])
            assert torch.allclose(found[run, place], wanted.T, atol=1e-4)


def test_power_iteration_comes_near_the_largest_singular_value_from_below():
    generator = torch.Generator().manual_seed(0)
    matrices = torch.eye(48) + 0.3 * torch.randn(6, 2, 48, 48, generator=generator) / 7
    exact = torch.linalg.matrix_norm(matrices, ord=2)
    found = spectral_norm(matrices)
    assert (found <= exact * (1 + 1e-5)).all()
    assert (found >= 0.999 * exact).all()
    assert spectral_norm(torch.eye(5) * 3).item() == pytest.approx(3)


def test_the_bound_is_the_written_formula_and_holds_what_random_weights_do(snapshot):
    fresh = snapshot_of("none", "layernorm", training=snapshot.training.changed(lr=1e-9, warmup=0, schedule="constant"))
    readings = gradient_bound(fresh)
    width, hidden = MODEL.width, 4 * MODEL.width
    up, down = fresh.weights["blocks.1.mlp.up.weight"][1], fresh.weights["blocks.1.mlp.down.weight"][1]
    scale = fresh.taps.middle[1][1].std(dim=-1, correction=0).mean()
    wanted = 1 + up.std(correction=0) * down.std(correction=0) * (math.sqrt(width) + math.sqrt(hidden)) ** 2 / scale
    assert values(readings, "predicted", "block-2.mlp")[1].item() == pytest.approx(wanted.item(), rel=1e-5)
    # A layer's bound is the product of its factors, the model's that of its layers.
    product = values(readings, "predicted", "block-1.attention") * values(readings, "predicted", "block-1.mlp")
    assert torch.allclose(values(readings, "bound", "block-1"), product)
    both = values(readings, "bound", "block-1") * values(readings, "bound", "block-2")
    assert torch.allclose(values(readings, "bound", "all"), both)
    # At the start the weights are random, as the bound assumes: the growth and the Jacobian stay below it.
    for group in ("block-1", "block-2", "all"):
        assert (values(readings, "growth", group) <= values(readings, "bound", group)).all()
    assert (values(readings, "jacobian", "block-1.mlp") <= values(readings, "predicted", "block-1.mlp")).all()
    # What the paper is about: small embeddings loosen the first block's bound, a norm tightens it.
    none, norm = values(readings, "bound", "block-1").tolist()
    assert none > 1.5 * norm > 1.5
    gradient = values(readings, "gradient", "input") / values(readings, "gradient", "block-2")
    assert torch.allclose(values(readings, "growth", "all"), gradient)


@pytest.mark.parametrize(
    "changes",
    [
        {"position": "rotary", "qk_norm": "rmsnorm", "mlp": "relu", "final_norm": "rmsnorm"},
        {"position": "alibi", "attention_softcap": 2.0, "window": 4, "mlp": "silu", "final_norm": False},
    ],
)
def test_the_bound_holds_for_other_scores_activations_and_last_norms(changes):
    training = TRAINING.changed(lr=1e-9, warmup=0, schedule="constant")
    readings = gradient_bound(snapshot_of("none", "layernorm", model=MODEL.changed(**changes), training=training))
    for group in ("block-1", "block-2", "all"):
        assert (values(readings, "growth", group) <= values(readings, "bound", group)).all()
    assert (values(readings, "jacobian", "block-1.mlp") <= values(readings, "predicted", "block-1.mlp")).all()
