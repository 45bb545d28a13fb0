"""Every setting of the model against an independent implementation: transformers, published formulas, a plain twin."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ablationlab.core.errors import ExportError, StudyError
from ablationlab.evaluation.scoring import Continuation, StackScorer
from ablationlab.instrument.costing.step import Shape
from ablationlab.model.attention import ObservedAttention
from ablationlab.model.dropout import Dropout, dropout_keys, dropout_sites
from ablationlab.model.gpt import ForwardPass
from ablationlab.model.parameters import matmul_flops_per_token, parameters, read_by_block
from ablationlab.model.parts import POSITIONS
from ablationlab.records.settings import FrontEnd, ModelConfig, TrainingConfig, validated
from ablationlab.study.variants import VARIANTS
from ablationlab.training.formats import config_of, format_of, tensors_of
from ablationlab.training.stack import Member, Stack
from model.test_gpt import Recorded

BASE = ModelConfig(layers=3, width=32, heads=4, context=16, vocabulary=23, init_std=0.2, token_init_std=0.5)
LLAMA = BASE.changed(norm="rmsnorm", position="rotary", mlp="swiglu", mlp_ratio=2.667, biases=False, tied=False)
GEMMA2 = LLAMA.changed(
    mlp="geglu", norm_place="sandwich", attention_softcap=2.0, head_softcap=3.0, tied=True,
    kv_heads=2, front=FrontEnd(scale="sqrt-width"),
)  # fmt: skip
NANOCHAT = LLAMA.changed(
    mlp="relu2", mlp_ratio=4, qk_norm="rmsnorm", norm_gain=False, head_softcap=3.0, norm_eps=1e-6,
    front=FrontEnd(norm="rmsnorm", eps=1e-6),
)  # fmt: skip
NEOX = BASE.changed(position="rotary", rotary_fraction=0.25, tied=False)


def drawn(model: ModelConfig, *seeds: int) -> dict[str, Tensor]:
    """Weights with a run axis; gains, biases and skips away from their start, so that each of them matters."""
    weights = {}
    for parameter in parameters(model):
        values = [torch.from_numpy(parameter.draw(seed)) for seed in seeds]
        if not parameter.is_matrix:
            noise = [
                np.random.default_rng([seed, len(parameter.name)]).normal(0, 0.3, parameter.shape) for seed in seeds
            ]
            values = [value + torch.from_numpy(each).float() for value, each in zip(values, noise, strict=True)]
        weights[parameter.name] = torch.stack(values)
    return weights


def text(model: ModelConfig, runs: int = 1, batch: int = 2) -> Tensor:
    assert model.vocabulary is not None
    return torch.from_numpy(np.random.default_rng(0).integers(0, model.vocabulary, (runs, batch, model.context)))


def logits(weights: dict[str, Tensor], model: ModelConfig, tokens: Tensor, **how: object) -> Tensor:
    return ForwardPass(weights, model, [model.front] * len(tokens), **how).logits(tokens)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("GPT-2", BASE.changed(mlp="relu", tied=False)),
        ("Llama", LLAMA),
        ("Llama", LLAMA.changed(kv_heads=2, biases=True, rotary_base=500.0, tied=True)),
        ("Mistral", LLAMA.changed(kv_heads=2, window=5)),
        ("Qwen3", LLAMA.changed(kv_heads=1, qk_norm="rmsnorm")),
        ("OLMo-2", LLAMA.changed(norm_place="output", qk_norm="rmsnorm", qk_norm_over="width", kv_heads=2)),
        ("Gemma-2", GEMMA2),
        ("Gemma-2", GEMMA2.changed(window=5, attention_softcap=None)),
        ("nanochat", NANOCHAT),
        ("GPT-NeoX", NEOX.changed(parallel=True)),
        ("GPT-NeoX", NEOX.changed(mlp="silu", rotary_fraction=1.0)),
        ("GPT-NeoX", NEOX.changed(width=36, rotary_fraction=0.222222)),
    ],
)
@pytest.mark.needs("transformers")
def test_logits_are_those_of_transformers_on_the_same_weights(name, model, tmp_path):
    import transformers

    assert format_of(model).name == name
    weights, tokens = drawn(model, 1), text(model)
    state = tensors_of({key: value[0] for key, value in weights.items()}, model)
    safetensors.torch.save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(config_of(model)))
    load = transformers.AutoModelForCausalLM.from_pretrained
    theirs, report = load(tmp_path, attn_implementation="eager", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    with torch.no_grad():
        expected = theirs.eval()(tokens[0]).logits
    torch.testing.assert_close(logits(weights, model, tokens)[0], expected, rtol=1e-5, atol=1e-5)


def test_a_model_that_no_architecture_holds_is_refused_with_what_stands_in_the_way():
    with pytest.raises(
        ExportError, match=r"nearest, Llama, has no place for attention_gate = 'head'; embedding_skip = 0\.1"
    ):
        config_of(LLAMA.changed(attention_gate="head", embedding_skip=0.1))
    with pytest.raises(ExportError, match=r"nearest, GPT-2, has no place for position = 'alibi'"):
        config_of(BASE.changed(position="alibi"))
    # What a model has no use for does not stand in the way.
    assert format_of(BASE.changed(rotary_base=1e5, qk_norm_over="width", zero_init=True, kv_heads=4)).name == "GPT-2"


def test_the_presets_are_what_their_names_say():
    llama, nanochat = (ModelConfig(preset=f"{name}-mini", vocabulary=65) for name in ("llama", "nanochat"))
    assert format_of(llama).name == "Llama"
    assert format_of(VARIANTS["rmsnorm-nogain"].apply(nanochat)).name == "nanochat"


#: One model per setting, and several at once.
SETTINGS: dict[str, ModelConfig] = {
    "sinusoidal": BASE.changed(position="sinusoidal"),
    "rotary": BASE.changed(position="rotary", rotary_fraction=0.5),
    "alibi": BASE.changed(position="alibi"),
    "no positions": BASE.changed(position="none"),
    "rmsnorm": BASE.changed(norm="rmsnorm"),
    "no gains": BASE.changed(norm_gain=False),
    "final rmsnorm": BASE.changed(final_norm="rmsnorm"),
    "post": BASE.changed(norm_place="post", final_norm=False),
    "sandwich": BASE.changed(norm_place="sandwich"),
    "output": BASE.changed(norm_place="output"),
    "no norms": BASE.changed(norm_place="none"),
    "grouped queries": BASE.changed(kv_heads=2),
    "qk-norm": BASE.changed(qk_norm="layernorm"),
    "qk-norm over width": BASE.changed(qk_norm="rmsnorm", qk_norm_over="width", kv_heads=2),
    "attention scale": BASE.changed(attention_scale=1.44),
    "attention soft-cap": BASE.changed(attention_softcap=2.0),
    "window": BASE.changed(window=5),
    "gate per head": BASE.changed(attention_gate="head"),
    "gate per element": BASE.changed(attention_gate="element"),
    "relu": BASE.changed(mlp="relu"),
    "relu2": BASE.changed(mlp="relu2"),
    "silu": BASE.changed(mlp="silu"),
    "swiglu": BASE.changed(mlp="swiglu", mlp_ratio=2.667),
    "geglu": BASE.changed(mlp="geglu", mlp_ratio=1),
    "parallel": BASE.changed(parallel=True),
    "parallel sandwich": BASE.changed(parallel=True, norm_place="sandwich"),
    "residual scales": BASE.changed(residual_scale=0.9, branch_scale=0.5),
    "deepnorm": BASE.changed(norm_place="post", residual_scale="deepnorm"),
    "embedding skip": BASE.changed(embedding_skip=0.1),
    "output soft-cap": BASE.changed(head_softcap=3.0),
    "llama": LLAMA,
    "gemma-2": GEMMA2.changed(window=5),
    "nanochat": NANOCHAT,
    "neox": NEOX.changed(parallel=True),
    "alibi, capped, in a window, with a skip": LLAMA.changed(
        position="alibi", attention_softcap=2.0, window=5, embedding_skip=0.2, norm_place="sandwich", kv_heads=2
    ),
}
every_setting = pytest.mark.parametrize("model", SETTINGS.values(), ids=SETTINGS)


def plain_logits(w: dict[str, Tensor], model: ModelConfig, tokens: Tensor) -> Tensor:
    """The same model for one run, straight from the formulas of docs/model.md, in double precision; no code is shared."""
    B, T, D, H = *tokens.shape, model.width, model.heads
    size, kv = D // H, model.kv_heads or H

    def norm(x: Tensor, name: str, kind: str = model.norm) -> Tensor:
        x = x - x.mean(-1, keepdim=True) if kind == "layernorm" else x
        x = x / (x.square().mean(-1, keepdim=True) + (model.front.eps if name == "front" else model.norm_eps)).sqrt()
        return x * w.get(f"{name}.gain", 1.0) + w.get(f"{name}.bias", 0.0)

    def layer(x: Tensor, name: str) -> Tensor:
        return x @ w[f"{name}.weight"] + w.get(f"{name}.bias", 0.0)

    def turn(x: Tensor) -> Tensor:  # complex numbers: pair i is x_i + j x_(i + n/2)
        n = int(size * model.rotary_fraction)
        pairs = torch.complex(x[..., : n // 2].contiguous(), x[..., n // 2 : n].contiguous())
        angle = torch.arange(T)[:, None] * model.rotary_base ** (-torch.arange(0, n, 2, dtype=torch.float64) / n)
        pairs = pairs * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([pairs.real, pairs.imag, x[..., n:]], dim=-1)

    def attention(y: Tensor, name: str) -> Tensor:
        q, k, v = layer(y, f"{name}.qkv").split([D, kv * size, kv * size], dim=-1)
        if model.qk_norm != "none" and model.qk_norm_over == "width":
            q, k = norm(q, f"{name}.q_norm", model.qk_norm), norm(k, f"{name}.k_norm", model.qk_norm)
        q, k, v = (x.view(B, T, -1, size).transpose(1, 2) for x in (q, k, v))
        if model.qk_norm != "none" and model.qk_norm_over == "head":
            q, k = norm(q, f"{name}.q_norm", model.qk_norm), norm(k, f"{name}.k_norm", model.qk_norm)
        if model.position == "rotary":
            q, k = turn(q), turn(k)
        heads = []
        gates = layer(y, f"{name}.gate").sigmoid() if model.attention_gate != "none" else torch.ones(B, T, H)
        gates = gates.view(B, T, H, -1)
        for head in range(H):
            group = head // (H // kv)
            scores = model.attention_scale * q[:, head] @ k[:, group].transpose(1, 2) / math.sqrt(size)
            if model.attention_softcap is not None:
                scores = model.attention_softcap * (scores / model.attention_softcap).tanh()
            i, j = torch.arange(T)[:, None], torch.arange(T)
            if model.position == "alibi":
                scores = scores - 2 ** (-8 * (head + 1) / H) * (i - j)
            hidden = (j > i) | (i - j >= (model.window or T))
            scores = torch.where(hidden, -math.inf, scores)
            heads.append(scores.softmax(-1) @ v[:, group] * gates[:, :, head])
        return layer(torch.cat(heads, dim=-1), f"{name}.out")

    def mlp(y: Tensor, name: str) -> Tensor:
        gelu = lambda h: 0.5 * h * (1 + (math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)).tanh())  # noqa: E731
        silu = lambda h: h / (1 + (-h).exp())  # noqa: E731
        if model.mlp in ("swiglu", "geglu"):
            act = silu if model.mlp == "swiglu" else gelu
            hidden = act(layer(y, f"{name}.gate")) * layer(y, f"{name}.up")
        else:
            act = {"gelu": gelu, "silu": silu, "relu": lambda h: h.clamp(min=0), "relu2": lambda h: h.clamp(min=0) ** 2}
            hidden = act[model.mlp](layer(y, f"{name}.up"))
        return layer(hidden, f"{name}.down")

    x = w["tok.weight"][tokens]
    if model.position == "learned":
        x = x + w["pos.weight"][:T]
    elif model.position == "sinusoidal":
        t, i = torch.arange(T)[:, None], torch.arange(D)
        angle = t / 10_000 ** (2 * (i // 2) / D)
        x = x + math.sqrt(2) * model.position_init_std * torch.where(i % 2 == 0, angle.sin(), angle.cos())
    if model.front.norm != "none":
        x = norm(x, "front", model.front.norm)
    x = x * (math.sqrt(D) if model.front.scale == "sqrt-width" else model.front.scale)
    first = x
    alpha = (2 * model.layers) ** 0.25 if model.residual_scale == "deepnorm" else model.residual_scale
    before, behind = model.norm_place in ("pre", "sandwich"), model.norm_place in ("sandwich", "output")
    for number in range(model.layers):
        name = f"blocks.{number}"
        x = x + w[f"{name}.skip.weight"] * first if model.embedding_skip is not None else x
        entered, added = x, 0.0
        for which, part in (("1", attention), ("2", mlp)):
            y = entered if model.parallel else x
            y = norm(y, f"{name}.norm{which}") if before else y
            o = part(y, f"{name}.{'attn' if which == '1' else 'mlp'}")
            o = norm(o, f"{name}.norm{which}_out") if behind else o
            if model.parallel:
                added = added + o
                continue
            x = alpha * x + model.branch_scale * o
            x = norm(x, f"{name}.norm{which}") if model.norm_place == "post" else x
        x = alpha * entered + model.branch_scale * added if model.parallel else x
    if model.final_norm:
        x = norm(x, "final_norm", model.final_norm if isinstance(model.final_norm, str) else model.norm)
    out = x @ w["tok.weight" if model.tied else "head.weight"].T
    return out if model.head_softcap is None else model.head_softcap * (out / model.head_softcap).tanh()


@every_setting
def test_logits_and_gradients_are_those_of_a_plain_twin(model):
    weights, tokens = drawn(model, 3), text(model)
    targets = tokens.roll(-1, dims=-1)
    leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
    forward = ForwardPass(leaves, model, [model.front])
    ours = torch.autograd.grad(forward.losses_R(tokens, targets)[0].sum(), list(leaves.values()))
    twins = {name: value[0].double().requires_grad_() for name, value in weights.items()}
    expected = plain_logits(twins, model, tokens[0])
    torch.testing.assert_close(logits(weights, model, tokens)[0].double(), expected, rtol=1e-5, atol=1e-5)
    loss = F.cross_entropy(expected.flatten(0, 1), targets.flatten())
    theirs = torch.autograd.grad(loss, list(twins.values()))
    for name, mine, other in zip(leaves, ours, theirs, strict=True):
        torch.testing.assert_close(
            mine[0].double(), other, rtol=1e-4, atol=1e-5, msg=lambda text, at=name: f"{at}: {text}"
        )


@every_setting
def test_runs_alone_in_a_stack_observed_and_with_dropout_give_the_same_logits(model):
    weights, tokens = drawn(model, 1, 2), text(model, 2)
    stacked = logits(weights, model, tokens)
    for run in range(2):
        alone = logits({name: value[run : run + 1] for name, value in weights.items()}, model, tokens[run : run + 1])
        torch.testing.assert_close(stacked[run], alone[0], rtol=1e-5, atol=1e-5)
    seen: dict[str, Tensor] = {}
    kept: dict[str, Tensor] = {}
    observed = ObservedAttention(lambda name, scores, attended: seen.__setitem__(name, attended))
    torch.testing.assert_close(
        logits(weights, model, tokens, attend=observed, keep=kept.__setitem__), stacked, rtol=1e-5, atol=1e-5
    )
    assert set(kept) == {"front", *(f"blocks.{n}.{part}" for n in range(model.layers) for part in ("attn", "mlp"))}
    visible = torch.ones(16, 16).tril().triu(1 - (model.window or 16))
    assert all(((attended > 0) == visible.bool()).all() for attended in seen.values())
    sites = dropout_sites(model)
    nothing = Dropout(1e-9, sites, torch.from_numpy(dropout_keys([1, 2], 1, sites)))
    torch.testing.assert_close(logits(weights, model, tokens, dropout=nothing), stacked, rtol=1e-5, atol=1e-5)


@every_setting
def test_packed_scores_are_those_of_each_sequence_alone(model):
    from evaluation.models import member, stack

    mine = stack(member(1, model=model), member(2, model=model))
    # Longer than the window, so that a tail must not reach back too far through the prefix.
    choices = [Continuation((1, 2, 3, 4, 5, 6), ending) for ending in ((5,), (6, 7, 8), (9, 10))]
    scores = StackScorer(mine).score([choices])
    for number, choice in enumerate(choices):
        whole = torch.tensor([[choice.context + choice.tokens]] * 2)
        logp = mine.forward.logits(whole[..., :-1]).double().log_softmax(-1).gather(-1, whole[..., 1:, None])[..., 0]
        expected = logp[:, 0, len(choice.context) - 1 :].sum(-1)
        assert scores.sum_RN[:, number] == pytest.approx(expected.numpy(), abs=5e-5)


@every_setting
def test_flops_are_torchs_own_count(model):
    sites = dropout_sites(model)
    dropout = Dropout(0.0, sites, torch.from_numpy(dropout_keys([1], 1, sites)))
    with FlopCounterMode(display=False) as counter:
        logits(drawn(model, 1), model, text(model, batch=1), dropout=dropout)
    assert 3 * counter.get_total_flops() == model.context * matmul_flops_per_token(model)


@every_setting
def test_a_block_reads_exactly_what_is_declared_for_it(model):
    params, x = Recorded(drawn(model, 1)), torch.randn(1, 2, model.context, model.width)
    skips = model.embedding_skip is not None
    for number in range(model.layers):
        params.read.clear()
        ForwardPass(params, model, [model.front], x0=x if skips else None).block(number, x, x)
        assert params.read == {parameter.name for parameter in read_by_block(model, number)}


@every_setting
def test_shared_parameters_keep_their_draw_whatever_is_added(model):
    ours, base = ({p.name: p for p in parameters(each)} for each in (model, BASE))
    drawn_alike = [
        name
        for name in ours.keys() & base.keys()
        if ours[name].shape == base[name].shape and ours[name].std == base[name].std
    ]
    assert "tok.weight" in drawn_alike
    for name in drawn_alike:
        if not ours[name].pieces:
            np.testing.assert_array_equal(ours[name].draw(7), base[name].draw(7))


def test_grouped_queries_draw_the_first_columns_of_keys_and_values():
    (all_heads,), (grouped,) = (
        [p.draw(7) for p in parameters(model) if p.name == "blocks.1.attn.qkv.weight"]
        for model in (BASE, BASE.changed(kv_heads=2))
    )
    q, k, v = np.split(all_heads, 3, axis=1)
    np.testing.assert_array_equal(grouped, np.concatenate([q, k[:, :16], v[:, :16]], axis=1))


def test_deepnorm_starts_values_output_and_mlp_smaller():
    plain = BASE.changed(norm_place="post", scaled_residual_init=False)
    before, after = (
        {p.name: p.draw(7) for p in parameters(m)} for m in (plain, plain.changed(residual_scale="deepnorm"))
    )
    beta = (8 * 3) ** -0.25
    for name in ("attn.out", "mlp.up", "mlp.down"):
        np.testing.assert_allclose(
            after[f"blocks.0.{name}.weight"], beta * before[f"blocks.0.{name}.weight"], rtol=1e-6
        )
    ratio = after["blocks.0.attn.qkv.weight"] / before["blocks.0.attn.qkv.weight"]
    np.testing.assert_allclose(ratio, np.repeat([1, 1, beta], 32)[None].repeat(32, 0), rtol=1e-6)


def test_zero_initialized_projections_leave_the_embedding_alone():
    model = LLAMA.changed(zero_init=True)
    weights, tokens = drawn(model, 1), text(model)
    kept: dict[str, Tensor] = {}
    logits(weights, model, tokens, keep=kept.__setitem__)
    assert all(torch.equal(kept["front"], value) for value in kept.values())


def published_slopes(heads: int) -> list[float]:
    """From the authors' repository, attention_with_linear_biases, in its own words."""

    def power_of_2(n: int) -> list[float]:
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(heads).is_integer():
        return power_of_2(heads)
    closest = 2 ** math.floor(math.log2(heads))
    return power_of_2(closest) + published_slopes(2 * closest)[0::2][: heads - closest]


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 16, 20])
def test_alibi_has_its_published_slopes(heads):
    assert POSITIONS["alibi"].slopes(heads) == pytest.approx(published_slopes(heads))


def test_the_sinusoidal_table_has_the_size_that_a_learned_one_starts_from():
    model = BASE.changed(position="sinusoidal", position_init_std=0.3)
    weights = drawn(model, 1)
    _, table = ForwardPass(weights, model, [model.front]).look_up(text(model))
    assert float(table.square().mean().sqrt()) == pytest.approx(0.3, rel=1e-6)


def resumed(model: ModelConfig, steps: int, first: Stack | None = None) -> Stack:
    training = TrainingConfig(steps=4, batch=2, lr=1e-2, warmup=1, precision="fp32")
    members = [Member(f"s{seed}", seed, 1e-2, model) for seed in (1, 2)]
    tokens = np.random.default_rng(1).integers(0, 23, 300)
    stack = Stack(members, 2, training, 4, tokens, torch.device("cpu"), torch.float32)
    if first is not None:
        for slot in range(2):
            stack.restore(slot, first.state(slot), alive=True)
    for step in range(1 if first is None else 3, steps + 1):
        stack.train_step(step, stack.offsets(step))
    return stack


@pytest.mark.parametrize("name", ["gemma-2", "nanochat", "neox", "alibi, capped, in a window, with a skip", "deepnorm"])
def test_a_stack_resumes_with_the_same_bits(name):
    model = SETTINGS[name].changed(dropout=0.1)
    assert torch.equal(resumed(model, 4).weights_RP, resumed(model, 4, resumed(model, 2)).weights_RP)


@pytest.mark.parametrize(
    ("changes", "key", "reason"),
    [
        ({"position": "rotary", "width": 36}, "rotary_fraction", "1 of a head's width of 9 is 9"),
        ({"position": "rotary", "rotary_fraction": 0.4}, "rotary_fraction", "0.4 of a head's width of 8 is 3"),
        ({"kv_heads": 3}, "kv_heads", "3 does not divide heads = 4; allowed: 1, 2, 4"),
        ({"window": 0}, "window", "at least 1"),
        ({"attention_softcap": 0.0}, "attention_softcap", "above 0"),
        ({"mlp_ratio": 0}, "mlp_ratio", "at least 1"),
        ({"norm_place": "post", "parallel": True}, "parallel", "allowed: pre, sandwich, output, none"),
        ({"residual_scale": "deepnorm"}, "residual_scale", "needs norm_place = 'post', not 'pre'"),
        ({"head_init_std": 0.1}, "head_init_std", "tied to the token embedding"),
        ({"norm_place": "sandwhich"}, "norm_place", "did you mean 'sandwich'"),
    ],
)
def test_impossible_combinations_are_refused_with_key_value_and_reason(changes, key, reason):
    with pytest.raises(StudyError) as error:
        BASE.changed(**changes)
    assert f"- {key}: " in str(error.value)
    assert reason in str(error.value)
    # Also where the setting at fault is one that is not written.
    with pytest.raises(ValidationError):
        validated(ModelConfig, {**BASE.model_dump(include={"layers", "width", "heads", "context"}), **changes})


def test_a_fraction_named_in_a_refusal_is_taken_and_transformers_rotates_as_many():
    for size in (3, 9, 14, 24, 100):
        for count in range(1, size + 1):
            fraction = count / size
            try:
                model = BASE.changed(width=size, heads=1, position="rotary", rotary_fraction=fraction)
            except StudyError as error:
                assert count % 2
                for named in re.findall(r"0\.\d+|\b1\b", str(error).partition("even number: ")[2]):
                    again = BASE.changed(width=size, heads=1, position="rotary", rotary_fraction=float(named))
                    assert abs(again.rotated - count) == 1
                    factor = config_of(again)["rope_parameters"]["partial_rotary_factor"]
                    assert int(size * factor) == again.rotated  # as GPT-NeoX there computes it
            else:
                assert model.rotated == int(size * fraction) or model.rotated == count  # what was taken before stays
    assert BASE.changed(width=400, position="rotary", rotary_fraction=0.58).rotated == 58


@every_setting
def test_estimates_of_a_step_count_the_same_flops_and_more_memory_for_what_is_added(model):
    shape, plain = (Shape(each, samples=4, runs=3) for each in (model, BASE))
    assert shape.linear_flops + shape.attention_flops == shape.tokens * matmul_flops_per_token(model)
    assert shape.counts[0] == sum(parameter.size for parameter in parameters(model))
    if (
        model.norm_place == "sandwich"
        or model.attention_softcap
        or model.qk_norm != "none"
        or model.position == "alibi"
    ):
        assert shape.layer_activations > plain.layer_activations
    if model.head_softcap:
        assert shape.head_workspace > plain.head_workspace


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # processors without bf16 units say so
@pytest.mark.parametrize("name", ["llama", "nanochat", "neox", "gemma-2", "alibi, capped, in a window, with a skip"])
def test_products_in_bf16_stay_close_to_float32(name):
    model = SETTINGS[name]
    weights, tokens = drawn(model, 1, 2), text(model, 2)
    exact = logits(weights, model, tokens)
    rough = logits(weights, model, tokens, dtype=torch.bfloat16)
    assert rough.dtype == torch.float32
    assert (rough - exact).norm() / exact.norm() < 0.03
    assert not torch.equal(rough, exact)
