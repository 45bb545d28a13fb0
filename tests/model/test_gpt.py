"""The model against transformers, against plain torch, and against itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from ablationlab.model.gpt import ONE_HOT_VOCABULARY, ForwardPass, front_end, look_up
from ablationlab.model.ops import loss_R
from ablationlab.model.parameters import matmul_flops_per_token, parameters, read_by_block
from ablationlab.records.settings import FrontEnd, ModelConfig
from ablationlab.study.variants import VARIANTS
from ablationlab.training.formats import config_of, tensors_of

SMALL = ModelConfig(layers=3, width=32, heads=4, context=16, vocabulary=23, init_std=0.1, token_init_std=0.5)


def weights_of(model: ModelConfig, *seeds: int) -> dict[str, torch.Tensor]:
    return {p.name: torch.stack([torch.from_numpy(p.draw(seed)) for seed in seeds]) for p in parameters(model)}


def tokens_for(model: ModelConfig, runs: int, batch: int = 3, seed: int = 0) -> torch.Tensor:
    generator = np.random.default_rng(seed)
    return torch.from_numpy(generator.integers(0, model.vocabulary, (runs, batch, model.context)))


def forward(weights, tokens, model, fronts, **how):
    return ForwardPass(weights, model, fronts, **how).logits(tokens)


def embed(weights, tokens, model, fronts):
    return ForwardPass(weights, model, fronts).embed(tokens)


@pytest.mark.needs("transformers")
def test_the_baseline_gives_the_logits_of_transformers_gpt2():
    import transformers

    config = transformers.GPT2Config(**config_of(SMALL), attn_implementation="eager")
    theirs = transformers.GPT2LMHeadModel(config).eval()
    weights = weights_of(SMALL, 1)
    # biases and gains away from their start values, so that each of them matters
    for name in weights:
        if not name.endswith(".weight"):
            weights[name] += torch.from_numpy(
                np.random.default_rng(len(name)).normal(0, 0.3, weights[name].shape)
            ).float()
    state = tensors_of({name: value[0] for name, value in weights.items()}, SMALL)
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    assert not unexpected
    assert missing == ["lm_head.weight"]
    tokens = tokens_for(SMALL, 1)
    ours = forward(weights, tokens, SMALL, [SMALL.front])[0]
    with torch.no_grad():
        expected = theirs(tokens[0]).logits
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


def test_a_run_alone_and_in_a_stack_agree_to_float32_rounding():
    # A batched product may sum in another order than a single one, so bits are promised only at equal stack width.
    seeds, fronts = (1, 2, 3), [SMALL.front] * 3
    weights, tokens = weights_of(SMALL, *seeds), tokens_for(SMALL, 3)
    stacked = forward(weights, tokens, SMALL, fronts)
    for run in range(3):
        alone = forward({n: w[run : run + 1] for n, w in weights.items()}, tokens[run : run + 1], SMALL, fronts[:1])
        torch.testing.assert_close(stacked[run], alone[0], rtol=1e-5, atol=1e-5)


def test_the_future_never_reaches_the_past():
    weights, tokens = weights_of(SMALL, 1), tokens_for(SMALL, 1)
    changed = tokens.clone()
    changed[:, :, 9:] = (changed[:, :, 9:] + 1) % SMALL.vocabulary
    before, after = (forward(weights, t, SMALL, [SMALL.front]) for t in (tokens, changed))
    torch.testing.assert_close(before[:, :, :9], after[:, :, :9], rtol=0, atol=1e-6)
    assert (before[:, :, 9:] - after[:, :, 9:]).abs().max() > 1e-2


def test_no_run_of_a_stack_sees_another():
    weights, tokens = weights_of(SMALL, 1, 2), tokens_for(SMALL, 2)
    before = forward(weights, tokens, SMALL, [SMALL.front] * 2)
    poisoned = {name: value.clone() for name, value in weights.items()}
    for value in poisoned.values():
        value[1] = float("nan")
    after = forward(poisoned, tokens, SMALL, [SMALL.front] * 2)
    assert torch.equal(before[0], after[0])
    assert after[1].isnan().all()


def test_loss_is_the_mean_negative_log_likelihood_of_each_run():
    logits, targets = torch.randn(2, 3, 4, 5), tokens_for(SMALL.changed(vocabulary=5, context=4), 2)
    for run in range(2):
        expected = F.cross_entropy(logits[run].reshape(-1, 5), targets[run].reshape(-1))
        torch.testing.assert_close(loss_R(logits, targets)[run], expected)


@pytest.mark.parametrize("vocabulary", [23, ONE_HOT_VOCABULARY + 1])
def test_look_up_and_its_gradient_equal_torchs_embedding(vocabulary):
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(2, vocabulary, 8, generator=generator, requires_grad=True)
    tokens = torch.randint(0, vocabulary, (2, 3, 40), generator=generator)
    pull = torch.randn(2, 3, 40, 8, generator=generator)
    rows = look_up(table, tokens)
    (gradient,) = torch.autograd.grad((rows * pull).sum(), table)
    for run in range(2):
        single = table[run].detach().requires_grad_()
        expected = F.embedding(tokens[run], single)
        assert torch.equal(rows[run], expected)
        (one,) = torch.autograd.grad((expected * pull[run]).sum(), single)
        torch.testing.assert_close(gradient[run], one, rtol=1e-5, atol=1e-5)


TOK, POS = torch.randn(2, 3, 5, 8), torch.randn(2, 1, 5, 8)
GAIN, BIAS = torch.randn(2, 8), torch.randn(2, 8)


def _applied(name: str) -> torch.Tensor:
    front = VARIANTS[name].apply(SMALL).front
    return front_end(TOK, POS, front, GAIN if front.gain else None, BIAS if front.bias else None)


def _layer_norm(x: torch.Tensor, gain: bool = True, bias: bool = True) -> torch.Tensor:
    rows = []
    for run in range(2):
        norm = torch.nn.LayerNorm(8, eps=1e-5)
        norm.weight.data = GAIN[run] if gain else torch.ones(8)
        norm.bias.data = BIAS[run] if bias else torch.zeros(8)
        rows.append(norm(x[run]))
    return torch.stack(rows).detach()


def _rms_norm(x: torch.Tensor, gain: bool = True) -> torch.Tensor:
    scale = GAIN[:, None, None] if gain else 1.0
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * scale


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("none", TOK + POS),
        ("layernorm", _layer_norm(TOK + POS)),
        ("rmsnorm", _rms_norm(TOK + POS)),
        ("layernorm-token", _layer_norm(TOK) + POS),
        ("rmsnorm-token", _rms_norm(TOK) + POS),
        ("rmsnorm-nogain", _rms_norm(TOK + POS, gain=False)),
        ("layernorm-nobias", _layer_norm(TOK + POS, bias=False)),
        ("center-only", (TOK + POS) - (TOK + POS).mean(-1, keepdim=True)),
        ("sqrt-d", math.sqrt(8) * TOK + POS),
        ("sqrt-d-scale", math.sqrt(8) * (TOK + POS)),
        ("gradient-shrink", TOK + POS),
        ("token-init-1", TOK + POS),
        ("untied", TOK + POS),
    ],
)
def test_every_variant_computes_its_formula(name, expected):
    torch.testing.assert_close(_applied(name), expected, rtol=1e-5, atol=1e-6)


def test_the_table_of_formulas_covers_every_variant():
    marks = test_every_variant_computes_its_formula.pytestmark[0].args[1]
    assert [name for name, _ in marks] == list(VARIANTS)


def test_gradient_shrink_keeps_the_values_bit_for_bit_and_a_tenth_of_the_gradient():
    tok = TOK.clone().requires_grad_()
    shrunk = front_end(tok, POS, FrontEnd(gradient=0.1), None, None)
    assert torch.equal(shrunk, TOK + POS)
    (gradient,) = torch.autograd.grad(shrunk.sum(), tok)
    torch.testing.assert_close(gradient, torch.full_like(TOK, 0.1))


def test_runs_with_different_front_ends_share_a_stack():
    fronts = [VARIANTS[name].apply(SMALL).front for name in ("none", "layernorm", "layernorm", "rmsnorm", "sqrt-d")]
    full = VARIANTS["layernorm"].apply(SMALL)
    weights, tokens = weights_of(full, 1, 2, 3, 4, 5), tokens_for(SMALL, 5)
    stacked = embed(weights, tokens, SMALL, fronts)
    for run, front in enumerate(fronts):
        alone = embed({n: w[run : run + 1] for n, w in weights.items()}, tokens[run : run + 1], SMALL, [front])
        assert torch.equal(stacked[run], alone[0])


def test_a_model_without_blocks_is_embedding_norm_and_head():
    bare = SMALL.changed(layers=0, final_norm=False, head_bias=True, tied=False)
    weights, tokens = weights_of(bare, 1), tokens_for(bare, 1)
    weights["head.bias"] += 0.5
    x = weights["tok.weight"][0][tokens[0]] + weights["pos.weight"][0]
    expected = x @ weights["head.weight"][0].T + 0.5
    torch.testing.assert_close(forward(weights, tokens, bare, [bare.front])[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layers", [0, 3])
def test_counted_flops_equal_torchs_own_count_of_the_plain_products(layers):
    # Dropout takes the plain attention path, whose products torch's counter sees; backward is twice the forward, except
    # that nothing is propagated into the first layer's input when there are no blocks.
    model = SMALL.changed(layers=layers)
    weights = weights_of(model, 1)
    from ablationlab.model.dropout import Dropout, dropout_keys, dropout_sites

    sites = dropout_sites(model)
    dropout = Dropout(0.0, sites, torch.from_numpy(dropout_keys([1], 1, sites)))
    with FlopCounterMode(display=False) as counter:
        forward(weights, tokens_for(model, 1), model, [model.front], dropout=dropout)
    assert 3 * counter.get_total_flops() == 3 * model.context * matmul_flops_per_token(model)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # processors without bf16 units say so
def test_bf16_products_stay_close_to_float32():
    weights, tokens = weights_of(SMALL, 1), tokens_for(SMALL, 1)
    exact = forward(weights, tokens, SMALL, [SMALL.front])
    rough = forward(weights, tokens, SMALL, [SMALL.front], dtype=torch.bfloat16)
    assert rough.dtype == torch.float32
    assert ((rough - exact).norm() / exact.norm()) < 0.02
    assert not torch.equal(rough, exact)


def test_the_plain_forms_that_only_some_processors_use_agree_with_torchs():
    """GELU that keeps its factor, and attention as products: against torch's, forward and backward, in float64."""
    from ablationlab.model.ops import _Gelu, _Products

    torch.manual_seed(0)
    z = torch.randn(3, 50, dtype=torch.float64, requires_grad=True)
    seed = torch.randn(3, 50, dtype=torch.float64)
    ours, theirs = _Gelu.apply(z), torch.nn.functional.gelu(z, approximate="tanh")
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(torch.autograd.grad(ours, z, seed), torch.autograd.grad(theirs, z, seed))
    qkv = [torch.randn(2, 3, 11, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    seed = torch.randn(2, 3, 11, 8, dtype=torch.float64)
    ours, theirs = _Products.apply(*qkv), torch.nn.functional.scaled_dot_product_attention(*qkv, is_causal=True)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(torch.autograd.grad(ours, qkv, seed), torch.autograd.grad(theirs, qkv, seed))


class Recorded(dict):
    """Parameters that remember who was read."""

    def __init__(self, values):
        super().__init__(values)
        self.read = set()

    def __getitem__(self, name):
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name, default=None):
        if name in self:
            self.read.add(name)
        return super().get(name, default)


@pytest.mark.parametrize("changes", [{}, {"biases": False, "final_norm": False}])
def test_a_block_reads_exactly_the_parameters_that_are_declared_for_it(changes):
    model = SMALL.changed(**changes)
    params, x = Recorded(weights_of(model, 1)), torch.randn(1, 2, model.context, model.width)
    for number in range(model.layers):
        params.read.clear()
        ForwardPass(params, model, [model.front]).block(number, x, x)
        assert params.read == {parameter.name for parameter in read_by_block(model, number)}


def test_hooks_see_the_stream_and_run_the_blocks_without_changing_a_bit():
    weights, tokens, kept, ran = weights_of(SMALL, 1, 2), tokens_for(SMALL, 2), {}, []

    def run_block(forward, number, x, y):
        ran.append(number)
        return forward.block(number, x, y)

    plain = ForwardPass(weights, SMALL, [SMALL.front] * 2)
    hooked = ForwardPass(weights, SMALL, [SMALL.front] * 2, run_block=run_block, keep=kept.__setitem__)
    assert torch.equal(hooked.logits(tokens), plain.logits(tokens))
    assert ran == [0, 1, 2]
    assert list(kept) == ["front", *(f"blocks.{number}.{part}" for number in range(3) for part in ("attn", "mlp"))]
    assert torch.equal(kept["front"], plain.embed(tokens))
