"""Stacks with every optimizer, with rates per group, averaged weights, z-loss, label smoothing and µP."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ablationlab.model.gpt import ForwardPass
from ablationlab.model.parameters import parameters
from ablationlab.model.rules import OPTIMIZERS, rate_and_decay
from ablationlab.records.settings import ModelConfig, TrainingConfig
from ablationlab.training.stack import Member, Stack

MODEL = ModelConfig(layers=2, width=16, heads=2, context=16, vocabulary=13)
TRAINING = TrainingConfig(steps=6, batch=4, lr=1e-2, warmup=2, precision="fp32")
TOKENS = np.random.default_rng(0).integers(0, 13, 2000)
RECIPES = {
    "adam": {"optimizer": "adam"},
    "lion": {"optimizer": "lion", "betas": (0.9, 0.99)},
    "sgd": {"optimizer": "sgd", "momentum": 0.9},
    "muon": {"optimizer": "muon"},
    "groups": {"lr_scale": {"embedding": 0.3, "matrices": 2.0, "rest": 0.0}},
    "averaged muon": {"optimizer": "muon", "ema": 0.8, "schedule": "warmup-stable-decay"},
    "objective": {"z_loss": 1e-2, "label_smoothing": 0.1, "ema": 0.5},
}


def stack_of(members: list[Member], training: TrainingConfig, width: int | None = None) -> Stack:
    torch.set_num_threads(1)
    cpu = torch.device("cpu")
    return Stack(members, width or len(members), training, 6, TOKENS, cpu, torch.float32)


def runs(*seeds: int, model: ModelConfig = MODEL, lr: float = 1e-2) -> list[Member]:
    return [Member(f"s{seed}", seed, lr, model) for seed in seeds]


def advanced(stack: Stack, first: int = 1, last: int = 6) -> list[list[float]]:
    """Per step: loss, gradient norm, mean and maximum of the second moment, of the first run."""
    rows = []
    for step in range(first, last + 1):
        rows.append([float(values[0]) for values in stack.train_step(step, stack.offsets(step))])
    return rows


def same(a: dict[str, dict[str, torch.Tensor]], b: dict[str, dict[str, torch.Tensor]]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[part][name], b[part][name]) for part in a for name in a[part])


@pytest.mark.parametrize("name", RECIPES)
def test_a_resumed_stack_has_the_bits_of_one_that_never_stopped(name):
    training = TRAINING.changed(**RECIPES[name])
    whole, half, resumed = (stack_of(runs(1, 2), training, width=3) for _ in range(3))
    advanced(whole)
    advanced(half, last=3)
    for slot in range(2):
        resumed.restore(slot, half.state(slot), alive=True)
    advanced(resumed, first=4)
    assert all(same(whole.state(slot), resumed.state(slot)) for slot in range(2))
    text = torch.from_numpy(TOKENS[:200])
    assert torch.equal(whole.validate(text).nll_R[:2], resumed.validate(text).nll_R[:2])


@pytest.mark.parametrize("name", RECIPES)
def test_neighbours_change_no_bit_and_a_broken_one_is_frozen(name):
    training = TRAINING.changed(**RECIPES[name])
    calm, other = stack_of(runs(1, 2, 3), training), stack_of([*runs(1), *runs(7, lr=0.5), *runs(3)], training)
    advanced(calm)
    advanced(other, last=3)
    other.layout.views(other.weights_RP.detach())["blocks.0.mlp.up.weight"][1, 0, 0] = math.inf
    before = copy.deepcopy(other.state(1))  # on a CPU a state is views of the live buffers
    advanced(other, first=4)
    assert other.alive_R.tolist() == [True, False, True]
    assert same(other.state(1), before)
    assert same(other.state(0), calm.state(0))
    assert same(other.state(2), calm.state(2))


def test_every_optimizer_learns():
    text = np.tile(np.arange(13), 160)
    for name in OPTIMIZERS:
        lr = {"sgd": 0.1, "lion": 3e-3}.get(name, 1e-2)
        training = TRAINING.changed(optimizer=name, steps=30, batch=2, warmup=3)
        members = runs(1, lr=lr, model=MODEL.changed(layers=1))
        stack = Stack(members, 1, training, 30, text, torch.device("cpu"), torch.float32)
        first, *_, last = advanced(stack, last=30)
        assert last[0] < 0.8 * first[0], name


def test_only_optimizers_with_a_second_moment_report_one():
    for name in OPTIMIZERS:
        stack = stack_of(runs(1), TRAINING.changed(optimizer=name))
        stack.train_step(1, stack.offsets(1), watch=True)
        assert stack.watched is not None
        *_, mean, highest = (float(values[0]) for values in stack.measured())
        has = name in ("adamw", "adam")
        assert (stack.watched.v_RP is not None) == has
        assert math.isfinite(mean) == math.isfinite(highest) == has


def test_the_recorded_loss_is_cross_entropy_whatever_is_minimized():
    plain, other = (stack_of(runs(1), TRAINING.changed(**words)) for words in ({}, RECIPES["objective"]))
    first = [advanced(stack, last=1)[0] for stack in (plain, other)]
    assert first[0][0] == pytest.approx(first[1][0], rel=1e-6)
    assert first[0][1] != pytest.approx(first[1][1], rel=1e-3)
    text = torch.from_numpy(TOKENS[:100])
    params = {name: value[None] for name, value in other.weights(0).items()}
    logits = ForwardPass(params, MODEL, [MODEL.front]).logits(text[None, None, :17][..., :-1])
    totals = other.validate(text, [(0, 16)])
    expected = F.cross_entropy(logits[0, 0], text[1:17], reduction="sum")
    assert float(totals.nll_R[0]) == pytest.approx(float(expected), rel=1e-5)


def test_validation_and_the_last_checkpoint_have_the_average():
    stack = stack_of(runs(1), TRAINING.changed(ema=0.7))
    path = []
    for step in range(1, 5):
        stack.train_step(step, stack.offsets(step))
        path.append(copy.deepcopy(stack.state(0)["weights"]))
    shares = [0.7 ** (4 - step) for step in range(1, 5)]
    for name, value in stack.weights(0).items():
        mean = sum(share * weights[name] for share, weights in zip(shares, path, strict=True)) / sum(shares)
        torch.testing.assert_close(value, mean)
    plain = stack_of(runs(1), TRAINING)
    plain.restore(0, {"weights": stack.weights(0)}, alive=True)
    text = torch.from_numpy(TOKENS[:200])
    assert torch.equal(stack.validate(text).nll_R, plain.validate(text).nll_R)
    ended = stack_of(runs(1), TRAINING.changed(ema=0.7))  # only its results are missing
    ended.restore(0, {"weights": stack.weights(0)}, alive=True)
    assert torch.equal(stack.validate(text).nll_R, ended.validate(text).nll_R)


def logit_changes(widths: tuple[int, ...], **words: object) -> list[float]:
    """RMS of how far four steps move the logits of a batch, for models of several widths and heads of one size."""
    moved = []
    for width in widths:
        model = MODEL.changed(width=width, heads=width // 8, token_init_std=0.5, **words.get("model", {}))
        training = TRAINING.changed(warmup=0, schedule="constant", weight_decay=0.0, **words.get("training", {}))
        stack = stack_of(runs(1, model=model, lr=5e-3), training)
        tokens = torch.from_numpy(TOKENS[:64].reshape(1, 4, 16))
        before = ForwardPass(stack.layout.views(stack.weights_RP.detach().clone()), model, [model.front]).logits(tokens)
        advanced(stack, last=4)
        after = ForwardPass(stack.layout.views(stack.weights_RP.detach()), model, [model.front]).logits(tokens)
        moved.append(float((after - before).square().mean().sqrt()))
    return moved


@pytest.mark.parametrize(("optimizer", "tied"), [("adamw", True), ("adamw", False), ("muon", True)])
def test_with_mup_a_step_moves_the_logits_as_far_at_every_width(optimizer, tied):
    """The coordinate check of Yang et al. 2022: without µP, logits move farther the wider the model."""
    widths, training = (16, 32, 128), {"optimizer": optimizer}
    plain = logit_changes(widths, model={"tied": tied}, training=training)
    scaled = logit_changes(widths, model={"tied": tied, "mup_base": 16}, training=training)
    assert scaled[0] == pytest.approx(plain[0], rel=1e-5)  # at the base width nothing differs
    assert plain[-1] > 3 * plain[0]
    assert max(scaled) < 1.7 * min(scaled)


def test_mup_scales_starts_and_rates_by_the_ratio_of_widths():
    base = {p.name: p for p in parameters(MODEL.changed(tied=False))}
    wide = {p.name: p for p in parameters(MODEL.changed(tied=False, width=64, heads=8, mup_base=16))}
    up, head, tok = "blocks.0.mlp.up.weight", "head.weight", "tok.weight"
    assert wide[up].std == pytest.approx(base[up].std / 2)
    assert wide[head].std == pytest.approx(base[head].std / 4)
    assert wide[tok].std == base[tok].std
    assert [wide[name].rate for name in (up, head, tok, "blocks.0.norm1.gain")] == [0.25, 0.25, 1.0, 1.0]
    tied = {p.name: p for p in parameters(MODEL.changed(width=64, heads=8, mup_base=16))}
    assert (tied["final_norm.gain"].fill, tied["final_norm.gain"].rate) == (0.25, 0.25)


def test_mup_takes_its_factor_out_of_a_decay_that_the_rate_multiplies_and_of_no_other():
    matrix = next(
        each for each in parameters(MODEL.changed(mup_base=4)) if each.in_products
    )  # four times the base width
    found = {
        name: rate_and_decay(matrix, TRAINING.changed(optimizer=name)) for name in ("adamw", "lion", "muon", "adam")
    }
    assert found == {"adamw": (0.25, 0.4), "lion": (0.25, 0.4), "muon": (0.5, 0.2), "adam": (0.25, 0.1)}
