"""Tuned arms at the same 40 runs: one stage against two. Half-width, coverage, false positives and power by simulation.

    PYTHONPATH=src python benchmarks/sweeps.py [--studies 1000]

An arm of one stage has five rates a factor of two apart on three selection and five judging seeds. An arm of two has the same
five rates on three seeds, five rates a factor of 1.19 apart about the best on three others, and ten judged runs at the best
of both. Both go through the functions that the analysis calls.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from ablationlab.records.settings import Finer
from ablationlab.stats import paired_t_interval, paired_t_test
from ablationlab.stats.rates import best_rate
from ablationlab.stats.results import FittedMinimum
from ablationlab.stats.tuned import best_of_stages, beyond_doubt, fitted_minimum, widened
from procedures import ALPHA, CURVES, table

RATES = [2.0**k for k in range(-2, 3)]
FINER = Finer(seeds=(1, 2, 3))
#: Seeds of an arm: selection and judging of one stage; first, second and judging of two.
ONE, TWO = (3, 5), (3, 3, 10)
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


def one_stage(rng: np.random.Generator, arms: list[Arm]) -> tuple[list[float], float] | None:
    """Differences and doubt; None where an arm has no fit."""
    levels = LEVEL * rng.normal(size=ONE[1])
    fits = [fitted_minimum(arm.losses(RATES, levels)) for arm in arms]
    if any(fit.status != "ok" for fit in fits):
        return None
    return np.subtract(fits[1].values, fits[0].values).tolist(), fits[0].doubt + fits[1].doubt


def two_stages(rng: np.random.Generator, arms: list[Arm]) -> tuple[list[float], float] | None:
    first, second, judging = (LEVEL * rng.normal(size=seeds) for seeds in TWO)
    fits: list[FittedMinimum] = []
    for arm in arms:
        coarse = arm.losses(RATES, first)
        fits.append(best_of_stages(coarse, arm.losses(list(FINER.about(best_rate(coarse).lr)), second)))
    if any(fit.status != "ok" for fit in fits):
        return None
    judged = [arm.losses([fit.lr or 0.0], judging)[fit.lr or 0.0] for arm, fit in zip(arms, fits, strict=True)]
    return np.subtract(judged[1], judged[0]).tolist(), max(fit.doubt for fit in fits)


def row(
    rng: np.random.Generator, curves: tuple[Curve, Curve], noise: tuple[float, float], studies: int
) -> list[object]:
    """Of both designs: fit possible, doubt, half-width, coverage and false positives where nothing differs, and power."""
    cells: list[object] = []
    # Of kinked curves the lowest value is not that of a rate of the grid.
    lowest = [float(curve(np.linspace(-2, 2, 40_001)).min()) for curve in curves]
    for design in (one_stage, two_stages):
        doubts, halves, covered, false, shown = [], [], 0, 0, 0
        for gap in (0.0, TRUTH):
            for _ in range(studies):
                offset = rng.uniform(-0.5, 0.5)
                bests = (offset, offset + rng.uniform(-0.5, 0.5))
                gaps = (-lowest[0], gap - lowest[1])
                arms = [Arm(rng, *each) for each in zip(curves, bests, gaps, noise, strict=True)]
                seen = design(rng, arms)
                if seen is None:
                    continue
                deltas, doubt = seen
                p = paired_t_test(beyond_doubt(deltas, doubt)).p
                claim = p is not None and p <= ALPHA and abs(float(np.mean(deltas))) > doubt
                if gap:
                    shown += claim
                    continue
                interval = widened(paired_t_interval(deltas, level=1 - ALPHA), doubt)
                assert interval.low is not None
                assert interval.high is not None
                doubts.append(doubt)
                halves.append((interval.high - interval.low) / 2)
                covered += interval.low <= 0 <= interval.high
                false += claim
        n = len(doubts)
        widths = [f"{np.median(doubts):.3f}", f"{np.median(halves):.3f}"]
        cells += [n / studies, *widths, covered / n, false / n, shown / studies]
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--studies", type=int, default=1000)
    studies = parser.parse_args().studies
    rng = np.random.default_rng(41)
    rows: list[list[object]] = []
    for noise in (0.003, 0.01, 0.03):
        for name, curve in CURVES.items():
            rows.append([name, f"{noise:g}", *row(rng, (curve, curve), (noise, noise), studies)])
    for name in ("lopsided", "a kink above", "a cliff above", "a V", "falling to a cliff"):
        other = (CURVES[name], CURVES["parabola"])
        rows.append([f"{name}; the other arm's a parabola", "0.01", *row(rng, other, (0.01, 0.01), studies)])
    for name in ("parabola", "a V"):
        unequal = (CURVES[name], CURVES[name])
        rows.append([f"{name}; the other arm three times as noisy", "0.01", *row(rng, unequal, (0.01, 0.03), studies)])
    each = ["fit possible", "doubt", "half-width", "coverage", "false positives", f"shown if {TRUTH:g}"]
    heads = ["curves", "noise", *(f"{stages}: {head}" for stages in ("one", "two") for head in each)]
    table("Tuned arms at the same 40 runs, one stage and two, %; doubt and half-width in nats (medians)", heads, rows)


if __name__ == "__main__":
    main()
