"""Tests of a study's own code against the plain model, on a tiny one: gradients, stacking, repetition, resume, FLOPs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ablationlab.core.code import find, load, place_of, using
from ablationlab.core.errors import CodeError
from ablationlab.model.flop_count import counted_flops_per_token
from ablationlab.model.gpt import ForwardPass
from ablationlab.model.optimizers import lr_factor
from ablationlab.model.parameters import matmul_flops_per_token, parameters
from ablationlab.model.parts import PARTS
from ablationlab.model.rules import OPTIMIZERS, SCHEDULES, schedule_refusal
from ablationlab.records.settings import ModelConfig, TrainingConfig
from ablationlab.study.plan import FLOPS_TOLERANCE
from ablationlab.training.stack import Member, Stack

MODEL = ModelConfig(layers=2, width=24, heads=2, context=8, vocabulary=13)
TRAINING = TrainingConfig(steps=4, batch=3, lr=1e-2, warmup=1, precision="fp32")
#: Largest relative error of the derivative along a parameter's gradient, in single precision; the change of the loss that it
#: is taken over, the smallest norm of a gradient that it is taken of, and what drawn weights are multiplied by before.
DERIVATIVE, CHANGE, SMALL, LARGER = 0.03, 3e-3, 0.02, 10.0
#: Largest difference of logits between a run alone and the same run in a stack.
STACKED = 1e-4
#: Largest difference between weights that were trained alone and in a stack, as a share of how far they moved: rounding turns
#: the signs of the smallest gradients, which is 0.06 for a rule that takes signs.
NEIGHBOURS = 0.15


class CodeTest(StrEnum):
    """What is tested of a registered thing."""

    COMPUTED = "can be computed"
    FACTORS = "factors"
    USED = "every parameter is used"
    GRADIENTS = "gradients against differences"
    STACKED = "alone and in a stack"
    FLOPS = "FLOPs of a token"
    TWICE = "same bits twice"
    RESUMED = "resumed after 2 of 4 steps"
    TRAINED = "trained alone and in a stack"
    FINITE = "weights stay finite"


@dataclass(frozen=True)
class CodeCheck:
    """One test of one registered thing: what was *found*, or the *error* that kept it from being made."""

    thing: str
    test: CodeTest
    passed: bool
    found: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""


def check_code(*paths: Path) -> list[CodeCheck]:
    """Every test of everything in these files, which may import each other, that can be tested so."""
    code = [find(str(path), Path.cwd()) for path in paths]
    things = load(code)
    checks: list[CodeCheck] = []
    torch.set_num_threads(1)
    with using(code):
        for setting, registry in PARTS.items():
            for name in things.get(registry.kind, {}):
                value = {"loss_terms": (name,)} if setting == "loss" else {setting: name}
                model = MODEL.changed(**value)
                checks += _tried(f"{setting} {name}", partial(_part_checks, model=model))
                checks += _tried(f"{setting} {name}", partial(_run_checks, model=model, training=TRAINING))
        for name in things.get(OPTIMIZERS.kind, {}):
            training = TRAINING.changed(optimizer=name)
            checks += _tried(f"optimizer {name}", partial(_run_checks, model=MODEL, training=training))
        for name in things.get(SCHEDULES.kind, {}):
            checks += _tried(f"schedule {name}", partial(_schedule_checks, training=TRAINING.changed(schedule=name)))
    return checks


def _tried(thing: str, tests: Callable[[str], Iterator[CodeCheck]]) -> Iterator[CodeCheck]:
    """These tests, up to the first that cannot be made."""
    try:
        yield from tests(thing)
    except CodeError as error:
        yield CodeCheck(thing, CodeTest.COMPUTED, False, error=str(error))
    except Exception as error:
        place = place_of(error) or "what it returns cannot be used"
        yield CodeCheck(thing, CodeTest.COMPUTED, False, error=f"{place}: {type(error).__name__}: {error}")


def _schedule_checks(thing: str, training: TrainingConfig) -> Iterator[CodeCheck]:
    refusal = schedule_refusal(training, 100)
    if refusal is not None:
        yield CodeCheck(thing, CodeTest.FACTORS, False, error=refusal)
        return
    factors = [lr_factor(training, step, 100) for step in range(1, 101)]
    yield CodeCheck(thing, CodeTest.FACTORS, True, {"least": min(factors), "most": max(factors)})


def _part_checks(thing: str, model: ModelConfig) -> Iterator[CodeCheck]:
    # Larger than they start, so that every part has a say in the loss.
    weights = {
        p.name: torch.stack([torch.from_numpy(p.draw(seed)) for seed in (1, 2, 3)]) * (1.0 if p.std is None else LARGER)
        for p in parameters(model)
    }
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, 13, (3, 2, 9)))
    inputs, targets = tokens[..., :-1], tokens[..., 1:]
    fronts = [model.front] * 3

    def total(params: dict[str, torch.Tensor]) -> torch.Tensor:
        return ForwardPass(params, model, fronts).losses_R(inputs, targets)[1].sum()

    leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
    gradients = torch.autograd.grad(total(leaves), list(leaves.values()), allow_unused=True)
    unused = [name for name, gradient in zip(leaves, gradients, strict=True) if gradient is None]
    yield CodeCheck(thing, CodeTest.USED, not unused, {"unused": unused or ["none"]})
    worst, where = 0.0, ""
    for name, gradient in zip(leaves, gradients, strict=True):
        norm = 0.0 if gradient is None else float(gradient.norm())
        if gradient is None or norm < SMALL:
            continue  # too small for differences in single precision
        step = CHANGE / norm * gradient / norm
        up, down = (float(total({**weights, name: weights[name] + sign * step})) for sign in (1, -1))
        error = abs((up - down) / (2 * CHANGE) - 1)
        worst, where = max((worst, where), (error, name))
    yield CodeCheck(thing, CodeTest.GRADIENTS, worst < DERIVATIVE, {"error": worst, "parameter": where})

    together = ForwardPass(weights, model, fronts).logits(inputs)
    alone = torch.cat(
        [
            ForwardPass({n: v[r : r + 1] for n, v in weights.items()}, model, fronts[:1]).logits(inputs[r : r + 1])
            for r in range(3)
        ]
    )
    apart = float((together - alone).abs().max())
    yield CodeCheck(thing, CodeTest.STACKED, apart < STACKED, {"apart": apart})

    declared = matmul_flops_per_token(model)
    try:
        counted = counted_flops_per_token(model)
    except Exception as error:
        text = f"cannot be counted: {place_of(error) or ''} {type(error).__name__}: {error}"
        yield CodeCheck(thing, CodeTest.FLOPS, False, error=text)
    else:
        agrees = abs(counted - declared) <= FLOPS_TOLERANCE * declared
        yield CodeCheck(thing, CodeTest.FLOPS, agrees, {"declared": declared, "counted": counted})


def _run_checks(thing: str, model: ModelConfig, training: TrainingConfig) -> Iterator[CodeCheck]:
    first = _trained(model, training, 4)
    again = _trained(model, training, 4)
    yield CodeCheck(thing, CodeTest.TWICE, _equal(first, again))
    half = _trained(model, training, 2)
    resumed = _stack(model, training)
    for slot in range(2):
        resumed.restore(slot, half.state(slot), alive=True)
    for step in (3, 4):
        resumed.train_step(step, resumed.offsets(step))
    yield CodeCheck(thing, CodeTest.RESUMED, _equal(first, resumed))
    alone, start = _trained(model, training, 4, seeds=(1,)), _stack(model, training)
    weights, others, begun = (stack.weights_RP.detach()[0] for stack in (first, alone, start))
    moved = float((weights - begun).norm())
    apart = float((weights - others).norm()) / moved if moved else 0.0
    yield CodeCheck(thing, CodeTest.TRAINED, apart < NEIGHBOURS, {"apart": apart})
    finite = bool(first.weights_RP.isfinite().all())
    yield CodeCheck(thing, CodeTest.FINITE, finite)


def _stack(model: ModelConfig, training: TrainingConfig, seeds: tuple[int, ...] = (1, 2)) -> Stack:
    text = np.random.default_rng(1).integers(0, 13, 500)
    members = [Member(f"s{seed}", seed, training.lr, model) for seed in seeds]
    return Stack(members, len(seeds), training, 4, text, torch.device("cpu"), torch.float32)


def _trained(model: ModelConfig, training: TrainingConfig, steps: int, seeds: tuple[int, ...] = (1, 2)) -> Stack:
    stack = _stack(model, training, seeds)
    for step in range(1, steps + 1):
        stack.train_step(step, stack.offsets(step))
    return stack


def _equal(a: Stack, b: Stack) -> bool:
    return all(
        torch.equal(value, b.state(slot)[part][name])
        for slot in range(2)
        for part, values in a.state(slot).items()
        for name, value in values.items()
    )
