"""What a plan will roughly cost in time and disk, before anything is trained."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ablationlab.records import Plan

# Share of a device's matrix rate that training reaches; measured on the default study (LOG.md), a rough figure by nature.
EFFICIENCY = {"cpu": 0.55, "cuda": 0.30}
BYTES_PER_PARAMETER = 4
BYTES_PER_METRICS_LINE = 125


@dataclass(frozen=True)
class Estimate:
    """Seconds for the whole plan with that many workers, and bytes at the end and at the fullest moment."""

    seconds: float
    matmul_gflops: float
    disk_bytes: int
    peak_disk_bytes: int


def estimate(plan: Plan, workers: int) -> Estimate:
    """Time a matrix product of the model's own shape, and scale. Forward passes of validation are counted in."""
    rate = _matmul_rate(plan)
    flops = 0.0
    for run in plan.runs:
        per_token = run.budget.matmul_flops / run.budget.tokens
        flops += run.budget.matmul_flops + plan.corpus.validation_tokens * per_token / 3
    parallel = min(workers, len(plan.stacks)) if plan.execution.device == "cpu" else 1
    seconds = flops / (rate * EFFICIENCY[plan.execution.device] * parallel)
    weights = [run.budget.parameters * BYTES_PER_PARAMETER for run in plan.runs]
    lines = sum(run.budget.steps for run in plan.runs) * BYTES_PER_METRICS_LINE
    busy = sorted(weights, reverse=True)[: parallel * plan.execution.stack_width]
    return Estimate(seconds, rate / 1e9, sum(weights) + lines, sum(weights) + lines + 2 * 3 * sum(busy))


def _matmul_rate(plan: Plan) -> float:
    """FLOP/s of one process at the sealed thread count, on the widest product of the model, best of several."""
    import torch

    from ablationlab.training.device import compute_dtype, prepare

    device = prepare(plan.execution)
    run = plan.runs[0]
    rows = min(int(run.training["batch"]) * int(run.model["context"]), 8192)
    width = int(run.model["width"])
    inner = width * int(run.model["mlp_ratio"])
    x = torch.ones(
        plan.execution.stack_width, rows, width, device=device, dtype=compute_dtype(plan.execution.precision)
    )
    w = torch.ones(plan.execution.stack_width, width, inner, device=device, dtype=x.dtype)
    best = float("inf")
    began = time.perf_counter()
    while time.perf_counter() - began < 0.25:
        start = time.perf_counter()
        torch.bmm(x, w)
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return 2 * plan.execution.stack_width * rows * width * inner / best
