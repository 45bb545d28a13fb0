"""What probes cost: training with and without them, interleaved in one process.

    python benchmarks/probes.py [--study studies/embedding-norm.toml] [--rounds 12] [--device auto]

One stack of the study is trained on in short turns: N steps with no probe due, then the same with every probe of the
study looking once, in an order that changes, so that a machine's mood falls on both. On a CPU processor time counts,
which a busy neighbour disturbs less than the clock. On a GPU the clock counts, over turns as long as the shortest
interval: there a look is queued behind the steps before it, as in training, and one that waits for the device is an error.
There the lines of a recorded look must equal those of a look that is computed afresh.
Printed: the time of one look at all probes in units of a step (with --each, of every probe by itself), and the ratio of
training time with and without them that follows for the study's intervals and steps, with its spread over rounds. The
goal is at most 3 % on a CPU and 10 % on a GPU. The first two looks, of which the second is recorded, are timed apart.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from ablationlab.data.corpus import load_corpus
from ablationlab.model.device import compute_dtype, prepare
from ablationlab.study.load import load_study
from ablationlab.study.plan import make_plan
from ablationlab.study.probes import is_due, probe_intervals
from ablationlab.training.probes.stack_probes import StackProbes
from ablationlab.training.stack import FEED, Member, Stack

GOAL = {"cpu": 0.03, "cuda": 0.10}


def timed(work: Callable[[], None], device: torch.device) -> float:
    """Seconds of *work*: of this process on a CPU; by the clock on a GPU, its queue emptied before and after."""
    if device.type == "cpu":
        began = time.process_time()
        work()
        return time.process_time() - began
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", type=Path, default=Path("studies/embedding-norm.toml"))
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument(
        "--turn", type=int, default=None, help="Steps in a turn; the shortest interval on a GPU, else 1."
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--each", action="store_true", help="Time every probe by itself too.")
    options = parser.parse_args()
    device_name: Literal["auto", "cpu", "cuda"] = options.device

    study = load_study(options.study)
    corpus = load_corpus(study.data)
    plan = make_plan(study, corpus, device_name, None)
    planned = [plan.run(run_id) for run_id in plan.stacks[0]]
    training = planned[0].training
    steps = planned[0].budget.steps
    device = prepare(plan.execution)
    stack = Stack(
        [Member(run.id, run.seed, run.lr, run.model) for run in planned],
        plan.execution.stack_width,
        training,
        steps,
        corpus.train,
        device,
        compute_dtype(plan.execution.precision),
    )
    intervals = probe_intervals(study)
    if not intervals:
        raise SystemExit(f"{options.study} switches no probe on")
    probes = StackProbes(intervals, stack, corpus, 0)
    names = tuple(probes.intervals)
    number = 0
    on_gpu = device.type == "cuda"
    # On a GPU a look is made while the device is still at the steps before it, as in the loop, so a turn is an interval.
    length = options.turn or (min(intervals.values()) if on_gpu else 1)
    turns = 6 if on_gpu else 1

    def written(last: int | None) -> None:
        for lines in probes.drain(last):
            "".join(lines)

    def turn(due: tuple[str, ...]) -> None:
        nonlocal number
        for _ in range(turns):
            before = number
            while number < before + length:
                count = min(FEED, before + length - number)
                offsets = np.stack([stack.offsets(number + 1 + i) for i in range(count)])
                stack.feed(number + 1, offsets)
                number += count
                looking = due if number == before + length else ()
                for position in range(count):
                    stack.advance(watch=bool(looking) and position == count - 1)
                    probes.take(offsets[position])
            if due:
                probes.observe(number, due)
                written(before if on_gpu else None)
        written(None)

    first = [timed(lambda due=due: turn(due), device) for due in ((), (), names, names, ())]  # type: ignore[misc]
    print(f"turns of {turns * length} steps: {first[-1]:.3f} s without a look, {first[2]:.3f} s with the first {turns}")
    print(f"looks of this process, {first[3]:.3f} s with the next {turns}")
    if on_gpu:
        anew = StackProbes(intervals, stack, corpus, 0)  # its first look is not recorded
        turn(names)
        assert not anew.observe(number, names)
        assert not probes.observe(number, names)
        there = [{line for line in lines if "data-mixture" not in line and "duplicate-ngrams" not in line}
                 for side in (anew, probes) for lines in side.drain(None)]  # fmt: skip
        half = len(there) // 2
        same = sum(ours == theirs for ours, theirs in zip(there[:half], there[half:], strict=True))
        print(f"recorded and computed afresh: {same} of {half} runs have the same lines")
        torch.cuda.set_sync_debug_mode("error")
        probes.observe(number, names)  # a look that waits for the device raises, and fails
        torch.cuda.set_sync_debug_mode("default")
        assert not probes.failed, f"these wait for the device: {probes.failed}"
        written(None)
    sets = {"all": names, **({name: (name,) for name in names} if options.each else {})}
    costs: dict[str, list[float]] = {label: [] for label in sets}
    for round_ in range(options.rounds):
        for label, due in sets.items():
            seconds = {}
            for on in (True, False) if round_ % 2 else (False, True):
                seconds[on] = timed(lambda due=due, on=on: turn(due if on else ()), device)  # type: ignore[misc]
            costs[label].append((seconds[True] - seconds[False]) / (seconds[False] / length))
    assert not probes.failed, probes.failed

    looks = {name: sum(is_due(step, every, steps) for step in range(1, steps + 1)) for name, every in intervals.items()}
    most = max(looks.values())
    print(f"{options.study}: {len(planned)} runs a stack, {plan.execution.device_name}, {plan.execution.precision},")
    print(f"{plan.execution.threads} thread(s); {len(names)} probes, at most {most} looks in {steps} steps")
    for label, found in costs.items():
        cost = statistics.median(found)
        low, high = (
            (statistics.quantiles(found, n=4)[i] for i in (0, 2)) if len(found) > 3 else (min(found), max(found))
        )
        share = 1 + (most if label == "all" else looks[label]) / steps * cost
        print(f"  {label:18} {cost:7.3f} steps a look (quartiles {low:.3f} to {high:.3f}); on / off = {share:.4f}")
    ratio = [1 + most / steps * cost for cost in costs["all"]]
    spread = statistics.stdev(ratio) if len(ratio) > 1 else 0.0
    goal = GOAL[device.type]
    verdict = "within" if statistics.median(ratio) - 1 <= goal else "OVER"
    print(f"on / off of training: {statistics.median(ratio):.4f} (SD over rounds {spread:.4f}); {verdict} {goal:.0%}")


if __name__ == "__main__":
    main()
