"""How often a chain of records has a false step: python benchmarks/board.py [--chains 20000].

The records of docs/records-of-a-board.md with their declared steps and numbers of runs, where in truth no record gains
anything on the one before it. *passes as a record*: the earliest step at which the board's rule accepts the new runs lies
before that of the old ones. *pairwise rule*: the board's. *ours*: Welch's tests of the pairs that the logs can compare, Holm
over all. Both under the same truths: what 100 steps are worth, and how many steps a schedule that is one step shorter
brings 3.28 forward; sparse logs do so as much as is allowed for. *without allowance*: the comparisons by steps to 3.28
alone, with nothing subtracted. Fixed seeds; the table is in
docs/validation-tables.md.
"""

from __future__ import annotations

import argparse
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import special

from ablationlab.core.seeding import stream
from ablationlab.stats.significance import adjust

sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "generate"))
import board_data as board  # type: ignore[import-not-found]

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
#: What the noise of a run is as the board knows it, and pooled over the logs.
NOISES = (0.0013, 0.0011)
#: What 100 steps are worth in truth, where the board says 0.0045, and steps gained per step of a shorter schedule (None: as
#: much as is allowed for).
TRUTHS: tuple[tuple[float, float | None], ...] = (
    (0.0045, None),
    (0.0030, None),
    (0.0060, None),
    (0.0045, 0.6),
    (0.0030, 0.6),
)
#: The slope of the records' curves near 3.28, per step.
SLOPE = 0.0060 / 100


def drawn(noise: float, chains: int, each: int | None = None) -> list[FloatArray]:
    """The noise of every run of every record, a row per chain; with *each* runs, or as many as it has."""
    rng = stream(0, "analysis", "board", str(noise))
    return [noise * rng.standard_normal((chains, each or board.stated(number)[2])) for number in board.chain()]


def passes(runs: list[FloatArray]) -> BoolArray:
    """Whether each step of the chain passes as a record, a row per chain; the earlier step wins, ties do not."""
    steps = []
    for losses in runs:
        exact = (losses.mean(axis=1) + board.ASKED / np.sqrt(losses.shape[1])) / SLOPE
        steps.append(np.ceil(exact / 5))
    return np.array([new < old for old, new in pairwise(steps)]).T


def told_apart(runs: list[FloatArray], worth: float) -> BoolArray:
    """Whether the board's rule tells each record from the one before."""
    found = []
    numbers = board.chain()
    for place, (old, new) in enumerate(pairwise(numbers)):
        steps = board.stated(old)[1] - board.stated(new)[1]
        n, m = runs[place + 1].shape[1], runs[place].shape[1]
        gained = runs[place].mean(axis=1) - runs[place + 1].mean(axis=1) + steps * (board.STEP - worth / 100)
        found.append(gained / np.sqrt(1 / n + 1 / m) >= board.ASKED)
    return np.array(found).T


def beyond(pair: board.Pair, worth: float, forward: float | None) -> float:
    """Loss by which the new record seems better in truth after the allowance, though it gains nothing."""
    if pair.how == "declared":
        steps = board.stated(pair.before)[1] - board.stated(pair.number)[1]
        return float(steps * (board.STEP - worth / 100) - board.STEP * pair.allowance)
    if pair.how != "target" or forward is None:
        return 0.0
    shorter = max(board.planned(pair.before)) - min(board.planned(pair.number))
    return float(SLOPE * (forward - board.allowance_per_step()) * max(0, shorter))


def welch(
    runs: list[FloatArray], worth: float = 0.0045, forward: float | None = None, *, allowed: bool = True
) -> BoolArray:
    """Whether Welch's test with Holm over the chain says better; without allowance, of steps to 3.28 alone."""
    numbers = board.chain()
    p = np.ones((len(numbers) - 1, runs[0].shape[0]))
    for place, pair in enumerate(board.pairs()):
        if pair.p is None or (not allowed and pair.how != "target"):
            continue
        shift = beyond(pair, worth, forward) if allowed else SLOPE * pair.allowance
        a, b = runs[place + 1] - shift, runs[place]
        n, m = a.shape[1], b.shape[1]
        x, y = a.var(axis=1, ddof=1) / n, b.var(axis=1, ddof=1) / m
        freedom = (x + y) ** 2 / (x**2 / (n - 1) + y**2 / (m - 1))
        d = a.mean(axis=1) - b.mean(axis=1)
        p[place] = np.where(d < 0, 2 * special.stdtr(freedom, d / np.sqrt(x + y)), 1.0)
    adjusted = np.array([adjust(list(column), method="holm").adjusted for column in p.T])
    return np.asarray(adjusted <= board.ALPHA, dtype=np.bool_)


def rates(chains: int) -> list[tuple[str, float, float, float]]:
    """(rule, noise, mean number of false steps, share of chains with one)"""
    rows = []
    for noise in NOISES:
        runs = drawn(noise, chains)
        made = [("passes as a record", passes(runs))]
        made.append(("passes as a record, 10 runs each", passes(drawn(noise, chains, 10))))
        for worth, forward in TRUTHS:
            truth = f"100 steps worth {worth:.4f}, {'as allowed' if forward is None else forward} per shorter step"
            made += [
                (f"pairwise rule; {truth}", told_apart(runs, worth)),
                (f"ours; {truth}", welch(runs, worth, forward)),
            ]
        made.append(("ours, without allowance", welch(runs, allowed=False)))
        rows += [
            (rule, noise, float(found.sum(axis=1).mean()), float(found.any(axis=1).mean())) for rule, found in made
        ]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--chains", type=int, default=20_000)
    print("| rule | SD of a run | false steps of 19 | chains with one, % |\n|---|---|---|---|")
    for rule, noise, steps, any_step in rates(parser.parse_args().chains):
        print(f"| {rule} | {noise:.4f} | {steps:.2f} | {100 * any_step:.1f} |")


if __name__ == "__main__":
    main()
