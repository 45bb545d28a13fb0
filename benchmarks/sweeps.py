"""Tuned arms at the same 40 runs: one stage against two. Half-width, coverage, false positives and power by simulation.

    PYTHONPATH=src python benchmarks/sweeps.py [--studies 1000]

An arm of one stage has five rates a factor of two apart on three selection and five judging seeds. An arm of two has the same
five rates on three seeds, five rates a factor of 1.19 apart about the best on three others, and ten judged runs at the best
of both; of 40 judged runs, claims rest on the doubt. All go through the functions that the analysis calls.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import product

import numpy as np

from ablationlab.records.settings import Finer
from ablationlab.stats.costs import Costs
from ablationlab.stats.rates import best_rate
from ablationlab.stats.results import Doubt, FittedMinimum
from ablationlab.stats.tuned import best_of_stages, fitted_minimum
from procedures import ALPHA, CURVES, table

RATES = [2.0**k for k in range(-2, 3)]
FINER = Finer(seeds=(1, 2, 3))
#: Seeds of the first and of the second stage.
STAGES = (3, 3)
#: SD of a seed's level, shared by all its runs.
LEVEL = 0.02
TRUTH = 0.05

Curve = Callable[[np.ndarray], np.ndarray]


class Arm:
    """One arm: its curve about its own best rate, its gap to the baseline, its noise."""

    def __init__(self, rng: np.random.Generator, curve: Curve, best: float, gap: float, noise: float) -> None:
        self.rng, self.curve, self.best, self.gap, self.noise = rng, curve, best, gap, noise

    def losses(self, rates: list[float], levels: np.ndarray) -> dict[float, list[float]]:
        """Rate -> a loss of every seed: its level, shared with the other arm, the arm's own, and the run's."""
        own = np.sqrt(0.5) * self.noise * self.rng.normal(size=len(levels))
        return {
            rate: (
                self.gap
                + float(self.curve(np.array([np.log2(rate) - self.best]))[0])
                + levels
                + own
                + np.sqrt(0.5) * self.noise * self.rng.normal(size=len(levels))
            ).tolist()
            for rate in rates
        }


def one_stage(rng: np.random.Generator, arms: list[Arm], judged: int) -> tuple[list[float], Doubt] | None:
    """Differences and doubt; None where an arm has no fit."""
    levels = LEVEL * rng.normal(size=judged)
    fits = [fitted_minimum(arm.losses(RATES, levels)) for arm in arms]
    if any(fit.status != "ok" for fit in fits):
        return None
    both = fits[0].doubt + fits[1].doubt
    return np.subtract(fits[1].values, fits[0].values).tolist(), Doubt(both, both)


def two_stages(rng: np.random.Generator, arms: list[Arm], judged: int) -> tuple[list[float], Doubt] | None:
    first, second, judging = (LEVEL * rng.normal(size=seeds) for seeds in (*STAGES, judged))
    fits: list[FittedMinimum] = []
    for arm in arms:
        coarse = arm.losses(RATES, first)
        fits.append(best_of_stages(coarse, arm.losses(list(FINER.about(best_rate(coarse).lr)), second)))
    if any(fit.status != "ok" for fit in fits):
        return None
    losses = [arm.losses([fit.lr or 0.0], judging)[fit.lr or 0.0] for arm, fit in zip(arms, fits, strict=True)]
    return np.subtract(losses[1], losses[0]).tolist(), Doubt(below=fits[1].doubt, above=fits[0].doubt)


#: Judging seeds of each design.
DESIGNS = {"one": (one_stage, 5), "two": (two_stages, 10), "two, 40 judged": (two_stages, 40)}
HEADS = ["fit possible", "doubt", "half-width", "coverage", "false better", "false worse"]
HEADS += [f"better by {TRUTH:g}", f"worse by {TRUTH:g}"]


def row(
    rng: np.random.Generator, curves: tuple[Curve, Curve], noise: tuple[float, float], design: str, studies: int
) -> list[object]:
    """Fit possible; doubt, half-width, coverage, false claims where nothing differs; power of both claims."""
    make, judged = DESIGNS[design]
    doubts, halves, covered, claims = [], [], 0, dict.fromkeys(product((0.0, -TRUTH, TRUTH), ("better", "worse")), 0)
    # Of kinked curves the lowest value is not that of a rate of the grid.
    lowest = [float(curve(np.linspace(-2, 2, 40_001)).min()) for curve in curves]
    for gap in (0.0, -TRUTH, TRUTH):
        for _ in range(studies):
            offset = rng.uniform(-0.5, 0.5)
            bests = (offset, offset + rng.uniform(-0.5, 0.5))
            gaps = (-lowest[0], gap - lowest[1])
            seen = make(rng, [Arm(rng, *each) for each in zip(curves, bests, gaps, noise, strict=True)], judged)
            if seen is None:
                continue
            deltas, doubt = seen
            costs = Costs(tuple(deltas), (1.0,) * len(deltas), doubt=doubt)
            claims[gap, "better"] += costs.p_better() <= ALPHA
            claims[gap, "worse"] += costs.mirrored.p_better() <= ALPHA
            if gap:
                continue
            low, high = costs.bounds(1 - ALPHA)
            assert low is not None
            assert high is not None
            doubts.append(doubt.below)
            halves.append((high - low) / 2)
            covered += low <= 0 <= high
    n = len(doubts)
    if not n:
        return [0.0, *["–"] * 7]
    widths = [f"{np.median(doubts):.3f}", f"{np.median(halves):.3f}"]
    false = [claims[0.0, claim] / n for claim in ("better", "worse")]
    return [
        n / studies,
        *widths,
        covered / n,
        *false,
        claims[-TRUTH, "better"] / studies,
        claims[TRUTH, "worse"] / studies,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--studies", type=int, default=1000)
    studies = parser.parse_args().studies
    rng = np.random.default_rng(41)
    pairs = [
        (name, noise, (curve, curve), (noise, noise)) for noise in (0.003, 0.01, 0.03) for name, curve in CURVES.items()
    ]
    for name in ("lopsided", "a kink above", "a cliff above", "a V", "falling to a cliff"):
        other = (CURVES[name], CURVES["parabola"])
        pairs.append((f"{name}; the variant's a parabola", 0.01, other, (0.01, 0.01)))
    for name in ("parabola", "a V"):
        pairs.append((f"{name}; the variant three times as noisy", 0.01, (CURVES[name], CURVES[name]), (0.01, 0.03)))
    rows = [
        [name, f"{noise:g}", design, *row(rng, curves, noises, design, studies)]
        for name, noise, curves, noises in pairs
        for design in DESIGNS
    ]
    title = "Tuned arms, %; doubt of one side and half-width in nats (medians)"
    table(title, ["curves", "noise", "stages", *HEADS], rows)


if __name__ == "__main__":
    main()
