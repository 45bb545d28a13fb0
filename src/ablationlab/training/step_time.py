"""Seconds of one training step of every arm, for studies whose arms take equal time. Measured before the plan is sealed.

Every round times every arm once, in alternating order, so a busy neighbour or a warming device slows all of them alike. A
stack is built, made to run, timed and dropped: no more memory is taken than training takes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count

import numpy as np
import torch

from ablationlab.core.processes import Pool
from ablationlab.model.device import compute_dtype, prepare
from ablationlab.records.plan import Plan, PlannedRun, StepTime
from ablationlab.records.settings import Study
from ablationlab.training.executors.job import Job, Texts
from ablationlab.training.stack import FEED, Member, Stack

ROUNDS = 7
#: Steps that are made before the clock starts, and the seconds that a timed block takes, about.
WARM_STEPS, BLOCK_SECONDS = 2, 0.25
MOST_STEPS = 2 * FEED
#: Settings of the training that no step's time depends on; arms that differ in nothing else are timed once.
_FREE = {"steps", "tokens", "lr", "warmup", "final_lr"}


def measure_step_times(plan: Plan, job: Job) -> tuple[StepTime, ...]:
    """Of every arm of *plan*, which has equal tokens. In a process of its own, as the runs are trained."""
    with Pool(_Timer, (job,), name="step times") as pool:
        return pool.submit(plan).result()


class _Timer:
    """What the process does."""

    def __init__(self, job: Job) -> None:
        self.texts = Texts(job)

    def __call__(self, plan: Plan) -> tuple[StepTime, ...]:
        arms = {(run.regime, run.variant): run for run in plan.compared}
        costs = {key: _cost_key(plan, run) for key, run in arms.items()}
        timed = {costs[key]: run for key, run in arms.items()}
        seed = _free_seed(plan.study)
        rounds: dict[str, list[float]] = {cost: [] for cost in timed}
        for number in range(ROUNDS):
            order = list(timed) if number % 2 == 0 else list(reversed(timed))
            for cost in order:
                rounds[cost].append(self._seconds(plan, timed[cost], seed))
        return tuple(
            StepTime(regime=regime, variant=variant, seed=seed, rounds=tuple(rounds[costs[regime, variant]]))
            for regime, variant in arms
        )

    def _seconds(self, plan: Plan, run: PlannedRun, seed: int) -> float:
        """The mean time of a step, over one block of them."""
        corpus = self.texts.of(run.stack)
        assert corpus is not None
        execution = plan.execution_of(run)
        asked = plan.study.execution
        device = prepare(execution, asked.kernels, deterministic=asked.deterministic)
        width = plan.execution.stack_width
        members = [Member(f"timed-{slot}", seed, run.lr, run.model) for slot in range(width)]
        stack = Stack(
            members, width, run.training, MOST_STEPS, corpus.train, device, compute_dtype(execution.precision)
        )
        _make(stack, WARM_STEPS)
        once = _clocked(stack, WARM_STEPS) / WARM_STEPS
        steps = min(max(WARM_STEPS, round(BLOCK_SECONDS / once)), MOST_STEPS)
        return _clocked(stack, steps) / steps


def _clocked(stack: Stack, steps: int) -> float:
    _wait(stack.device)
    began = time.perf_counter()
    _make(stack, steps)
    _wait(stack.device)
    return time.perf_counter() - began


def _make(stack: Stack, steps: int) -> None:
    """The first *steps* steps, handed over as training does."""
    for chunk in _chunks(steps, stack.reach):
        stack.feed(chunk.start, np.stack([stack.offsets(step) for step in chunk]))
        for _ in chunk:
            stack.advance()


def _chunks(steps: int, reach: int) -> Iterator[range]:
    for first in range(1, steps + 1, reach):
        yield range(first, min(first + reach, steps + 1))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _cost_key(plan: Plan, run: PlannedRun) -> str:
    return run.model.model_dump_json() + run.training.model_dump_json(exclude=_FREE) + plan.corpus_of(run.variant).name


def _free_seed(study: Study) -> int:
    """The first seed that no run of the study has."""
    taken = {*study.seeds, *study.evaluation.gate_seeds, *study.sweep_seeds()}
    taken |= {seed for triple in (study.noise.cells() if study.noise is not None else ()) for seed in triple}
    return next(seed for seed in count(1) if seed not in taken)
