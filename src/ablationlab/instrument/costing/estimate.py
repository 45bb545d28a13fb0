"""A rough estimate of a plan's time and disk space on this machine, before anything is trained."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ablationlab.core.format import amount, duration, percent
from ablationlab.instrument.costing.disk import study_bytes
from ablationlab.records.plan import Plan, PlannedRun

if TYPE_CHECKING:
    import torch

    from ablationlab.records.settings import Study

# Share of a device's matrix rate that training reaches; used only where a step is too long to be timed.
EFFICIENCY = {"cpu": 0.55, "cuda": 0.30}
# A step predicted to be shorter than this is timed instead of predicted.
LONGEST_TIMED_STEP = 4.0
# A slow machine: FLOP/s of training, and seconds of a step besides, for each layer of the model and for the rest.
_SLOW = {"cpu": (8e9, 6e-3, 2e-3), "cuda": (8e11, 1e-3, 1e-3)}
# A study that takes such a machine less than this is not timed, for that would take torch, which takes seconds to import.
SOON = 60.0
# Seconds of products that are timed to see whether a step can be, which then says all; and where it cannot. Seconds of steps.
_STEP_PREDICTED, _STUDY_PREDICTED, _STEPS_TIMED = 0.02, 0.25, 1.0
START_SECONDS = 4.0
# A training step is three times the arithmetic of a forward pass.
FORWARD = 3


@dataclass(frozen=True)
class Estimate:
    """Seconds to train and to score the whole plan, what they are based on, and bytes on disk at the end and at most."""

    training_seconds: float
    scoring_seconds: float
    basis: str
    disk_bytes: int
    peak_disk_bytes: int

    @property
    def seconds(self) -> float:
        return self.training_seconds + self.scoring_seconds


def seed_seconds(plan: Plan, cost: Estimate) -> float | None:
    """What one more seed of every arm takes, at every rate of a sweep that it judges."""
    own = [run for run in plan.runs if run.role == "compared" or judges(plan.study, run)]
    if not own:
        return None
    trained = [run for run in plan.runs if plan.reused_from(run.id) is None] or plan.runs
    flops, every = (sum(run.budget.matmul_flops for run in runs) for runs in (own, trained))
    return cost.seconds * flops / every / len({run.seed for run in own})


def judges(study: Study, run: PlannedRun) -> bool:
    """Whether a seed more would be one such run more of the sweep."""
    return study.sweep is not None and study.sweep.seeds is None and run.seed in study.seeds


def estimate(plan: Plan, workers: int) -> Estimate:
    """Of a short study on a CPU, by arithmetic. Else time a few real steps if they are short, else a matrix product of the
    model's own shape, and scale."""
    slow = on_slow_machine(plan, workers)
    if plan.execution.device == "cpu" and slow.seconds < SOON:
        return slow
    import torch

    from ablationlab.model.device import prepare

    device = prepare(plan.execution, plan.study.execution.kernels)
    first = plan.runs[0]
    rate = _matmul_rate(plan, device, _STEP_PREDICTED)
    predicted = _step_flops(plan, first) / (rate * EFFICIENCY[device.type])
    if predicted <= LONGEST_TIMED_STEP:
        measured = _step_seconds(plan, device)
        factor = measured / predicted
        basis = f"from a training step timed here: {duration(measured)}"
    else:
        factor, rate = 1.0, _matmul_rate(plan, device, _STUDY_PREDICTED)
        share = EFFICIENCY[device.type]
        speed = amount(rate, "FLOP/s")
        basis = f"from a matrix product timed here: {speed}, of which training reaches about {percent(share)}"
    if device.type == "cuda":
        torch.cuda.empty_cache()  # training may be another process's
    return _scaled(plan, workers, factor / (rate * EFFICIENCY[device.type]), lambda run: 0.0, basis)


def on_slow_machine(plan: Plan, workers: int) -> Estimate:
    """What it takes a slow machine of this kind, by arithmetic alone: here it should take less."""
    flops, per_layer, rest = _SLOW[plan.execution.device]
    return _scaled(
        plan,
        workers,
        1 / flops,
        lambda run: per_layer * run.model.layers + rest,
        "estimated for a slow machine; too short to be timed",
    )


def _scaled(plan: Plan, workers: int, per_flop: float, per_step: Callable[[PlannedRun], float], basis: str) -> Estimate:
    """All of it, where a FLOP takes *per_flop* seconds and a step *per_step* besides."""
    on_cpu = plan.execution.device == "cpu"
    seconds = 0.0
    stacks = _trained(plan)
    for stack in stacks:
        run = plan.run(stack[0])
        steps = run.budget.steps + _validation_steps(plan, run)
        seconds += steps * _step_flops(plan, run) * per_flop + run.budget.steps * per_step(run)
    parallel = max(1, min(workers, len(stacks))) if on_cpu else 1
    scoring = per_flop * sum(_scored_tokens(plan, run) * _token_flops(run) for run in plan.runs) / FORWARD
    disk = study_bytes(plan.study, plan.runs, parallel * plan.execution.stack_width)
    return Estimate(
        START_SECONDS + seconds / parallel,
        START_SECONDS + scoring / (min(workers, len(plan.runs)) if on_cpu else 1) if scoring else 0.0,
        basis,
        disk.end,
        disk.most,
    )


def _trained(plan: Plan) -> list[tuple[str, ...]]:
    """The stacks that are trained here: those of looks that are not asked for yet have no runs."""
    return [stack for stack in plan.stacks if stack and plan.reused_from(stack[0]) is None]


def _step_flops(plan: Plan, run: PlannedRun) -> float:
    return run.budget.matmul_flops / run.budget.steps * plan.execution.stack_width


def _token_flops(run: PlannedRun) -> float:
    return run.budget.matmul_flops / run.budget.tokens


def _scored_tokens(plan: Plan, run: PlannedRun) -> float:
    """Tokens that scoring a run reads: the validation text, and every item of every task as a full context, of a run of the
    gate with its weights at half of the steps, too."""
    asked = plan.study.evaluation
    if not asked.tasks or not run.is_scored:
        return 0.0
    prompts = sum(len(task.templates) for task in plan.tasks) * len(asked.fewshot)
    items = prompts * (asked.items or 0) * run.model.context
    return 2.0 * items if run.role == "gate" else float(plan.corpus.validation_tokens + items)


def _validation_steps(plan: Plan, run: PlannedRun) -> float:
    """Validation passes in units of training steps."""
    per_step = run.budget.tokens / run.budget.steps
    curve = plan.study.evaluation.curve_every
    tokens = float(plan.corpus.validation_tokens)
    if curve:
        windows = plan.study.evaluation.curve_windows * run.model.context
        tokens += run.budget.steps / curve * min(windows, plan.corpus.validation_tokens)
    return tokens / per_step / FORWARD


def _step_seconds(plan: Plan, device: torch.device) -> float:
    """Best of up to three steps of the first stack, on random tokens."""
    import numpy as np

    from ablationlab.model.device import compute_dtype
    from ablationlab.training.stack import Member, Stack

    runs = [plan.run(run_id) for run_id in (*_trained(plan), *plan.stacks)[0]]
    tokens = np.random.default_rng(0).integers(0, plan.corpus.vocabulary, 10 * runs[0].model.context + 1000)
    stack = Stack(
        [Member(run.id, run.seed, run.lr, run.model) for run in runs],
        plan.execution.stack_width,
        runs[0].training,
        runs[0].budget.steps,
        tokens,
        device,
        compute_dtype(plan.execution_of(runs[0]).precision),
    )
    stack.train_step(1, stack.offsets(1))
    seconds: list[float] = []
    while len(seconds) < 3 and sum(seconds) < _STEPS_TIMED:
        seconds.append(_timed(lambda: stack.train_step(1, stack.offsets(1)), device))
    return min(seconds)


def _matmul_rate(plan: Plan, device: torch.device, seconds: float) -> float:
    """FLOP/s of one process at the sealed thread count, on the largest matrix of the model, best of two and more."""
    import torch

    from ablationlab.model.device import compute_dtype
    from ablationlab.model.parameters import parameters

    run, width = plan.runs[0], plan.execution.stack_width
    rows = min(run.training.batch * run.model.context, 8192)
    matrices = [parameter for parameter in parameters(run.model) if parameter.is_matrix]
    largest = max([matrix for matrix in matrices if matrix.in_products] or matrices, key=lambda matrix: matrix.size)
    inputs, outputs = largest.shape
    x = torch.ones(width, rows, inputs, device=device, dtype=compute_dtype(plan.execution.precision))
    w = torch.ones(width, inputs, outputs, device=device, dtype=x.dtype)
    began = time.perf_counter()
    products = [_timed(lambda: torch.bmm(x, w), device) for _ in range(2)]  # the first starts the device
    while time.perf_counter() - began < seconds:
        products.append(_timed(lambda: torch.bmm(x, w), device))
    return 2 * width * rows * inputs * outputs / min(products)


def _timed(work: Callable[[], object], device: torch.device) -> float:
    import torch

    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began
