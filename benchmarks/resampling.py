"""Crossed seeds × items bootstrap, beside two loops over scipy.stats.bootstrap.

    PYTHONPATH=src python benchmarks/resampling.py

All three resample seeds jointly and items within each task, keep the pairs whole, and end in the macro
average over tasks. The plain loop calls scipy once per resample and task; the grouped loop, which a careful
user would write, once per distinct draw of seeds and task. The loops run on fewer resamples or on one task
and their times are scaled up (they are linear in both). All are timed in turn: a busy machine slows all.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
import warnings

import numpy as np
from scipy import stats

from ablationlab.stats import ItemPairs, crossed_bootstrap, item_pairs
from ablationlab.stats._common import FloatArray


def make_tasks(tasks: int, seeds: int, items: int, rng: np.random.Generator) -> dict[str, ItemPairs]:
    """Right/wrong scores of two arms that agree on four items out of five."""
    made = {}
    for number in range(tasks):
        reference = rng.random((seeds, items)) < 0.4
        flipped = rng.random((seeds, items)) < 0.2
        made[f"task-{number}"] = item_pairs(reference ^ flipped, reference)
    return made


def resampled_means(values: FloatArray, resamples: int, rng: np.random.Generator) -> FloatArray:
    """Means of resamples of *values*, by scipy."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the standard error of one resample is not asked for
        result = stats.bootstrap(
            (values,),
            np.mean,
            n_resamples=resamples,
            method="percentile",
            batch=100,
            vectorized=True,
            rng=rng,
        )
    return np.asarray(result.bootstrap_distribution, dtype=np.float64)


def plain_loop(tasks: dict[str, ItemPairs], resamples: int, rng: np.random.Generator) -> FloatArray:
    """Macro deltas of the resamples, one call of scipy for each resample and task."""
    deltas = [pairs.deltas for pairs in tasks.values()]
    seeds = len(deltas[0])
    macro = np.empty(resamples)
    for resample in range(resamples):
        chosen = rng.integers(0, seeds, size=seeds)
        means = [resampled_means(delta[chosen].mean(axis=0), 1, rng)[0] for delta in deltas]
        macro[resample] = np.mean(means)
    return macro


def grouped_loop(tasks: dict[str, ItemPairs], resamples: int, rng: np.random.Generator) -> FloatArray:
    """The same, one call of scipy for each distinct draw of seeds and task."""
    deltas = [pairs.deltas for pairs in tasks.values()]
    seeds = len(deltas[0])
    drawn = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=resamples)
    weights, sizes = np.unique(drawn, axis=0, return_counts=True)
    groups = [
        np.mean([resampled_means(weight @ delta / seeds, int(size), rng) for delta in deltas], axis=0)
        for weight, size in zip(weights, sizes, strict=True)
    ]
    return np.concatenate(groups)


def main() -> None:
    """Time both in turn and print the ratio with its spread."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=27)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--resamples", type=int, default=10_000)
    parser.add_argument("--loop-resamples", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()

    rng = np.random.default_rng(0)
    tasks = make_tasks(arguments.tasks, arguments.seeds, arguments.items, rng)
    one_task = dict(list(tasks.items())[:1])
    scale = arguments.resamples / arguments.loop_resamples
    crossed_bootstrap(tasks, resamples=100, rng=rng)  # warm all three up
    plain_loop(one_task, 2, rng)
    grouped_loop(one_task, 100, rng)
    ours, plain, grouped = [], [], []
    for _ in range(arguments.rounds):
        times = [time.perf_counter()]
        result = crossed_bootstrap(tasks, resamples=arguments.resamples, rng=rng)
        times.append(time.perf_counter())
        macro = plain_loop(tasks, arguments.loop_resamples, rng)
        times.append(time.perf_counter())
        single = grouped_loop(one_task, arguments.resamples, rng)
        times.append(time.perf_counter())
        spent = np.diff(times)
        ours.append(float(spent[0]))
        plain.append(float(spent[1]) * scale)
        grouped.append(float(spent[2]) * len(tasks))

    print(
        f"{arguments.tasks} tasks x {arguments.seeds} seeds x {arguments.items} items, "
        f"{arguments.resamples} crossed resamples, median of {arguments.rounds} rounds (range)"
    )
    print(f"ablationlab         {_spread(ours)} s")
    print(f"scipy, plain loop   {_spread(plain)} s, scaled from {arguments.loop_resamples} resamples")
    print(f"scipy, grouped loop {_spread(grouped)} s, scaled from 1 task")
    print(f"ratio, plain loop   {_spread(_ratio(plain, ours))}")
    print(f"ratio, grouped loop {_spread(_ratio(grouped, ours))}")
    _show("macro of all tasks", "ablationlab", result.macro.low, result.macro.high)
    _show("macro of all tasks", f"plain loop, {arguments.loop_resamples} resamples", *_ends(macro))
    first = result.tasks[next(iter(tasks))]
    _show("first task", "ablationlab", first.low, first.high)
    _show("first task", "grouped loop", *_ends(single))
    for resamples in (arguments.resamples // 10, arguments.resamples):
        print(f"peak memory beyond the scores at {resamples} resamples: {_peak(tasks, resamples):.0f} MB")


def _peak(tasks: dict[str, ItemPairs], resamples: int) -> float:
    tracemalloc.start()
    crossed_bootstrap(tasks, resamples=resamples, rng=np.random.default_rng(1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6


def _ends(means: FloatArray) -> tuple[float, float]:
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def _ratio(slow: list[float], fast: list[float]) -> list[float]:
    return [a / b for a, b in zip(slow, fast, strict=True)]


def _show(what: str, who: str, low: float | None, high: float | None) -> None:
    print(f"{what}: {low:.5f} to {high:.5f} ({who})")


def _spread(values: list[float]) -> str:
    return f"{np.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


if __name__ == "__main__":
    main()
