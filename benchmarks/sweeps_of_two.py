"""Arms tuned in the learning rate and a second setting, in two stages, against the rate alone: error rates and power.

    PYTHONPATH=src python benchmarks/sweeps_of_two.py [--studies 100]

First stage on three seeds: five rates x three or five values, or so many points at random; second stage on three others: nine
points about the best. Ten judged runs; of 40, claims rest on the doubt. *Rate alone* leaves the second setting where it is,
as in `sweeps.py`. Distances are in steps of the first stage; arms' best points differ by up to half of one in each setting.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import product

import numpy as np

from ablationlab.stats._common import FloatArray
from ablationlab.stats.costs import Costs
from ablationlab.stats.rates import best_rate, best_trial
from ablationlab.stats.results import Doubt, FittedMinimum
from ablationlab.stats.tuned import best_of_stages, best_pair_of_stages
from procedures import ALPHA, table

Surface = Callable[[FloatArray, FloatArray], FloatArray]

SURFACES: dict[str, Surface] = {
    "a bowl": lambda x, y: 0.01 * (x**2 + y**2),
    "a ridge": lambda x, y: 0.02 * (x**2 + y**2 + 1.6 * x * y),
    "a ridge the other way": lambda x, y: 0.02 * (x**2 + y**2 - 1.8 * x * y),
    "flat in the second": lambda x, y: 0.03 * x**2 + 0.002 * y**2,
    "eight times as steep above": lambda x, y: np.where(x < 0, 0.04, 0.3) * x**2 + 0.02 * y**2,
    "a kink above": lambda x, y: 0.04 * (x**2 + y**2 + 0.6 * x * y) + 0.4 * np.maximum(x - 0.2, 0),
    "a cliff across": lambda x, y: np.where(x + 0.3 * y < 0.3, 0.05 * (x**2 + y**2 + 0.8 * x * y), 0.4),
    "a V in both": lambda x, y: np.where(x < 0, -0.15, 0.4) * x + 0.1 * np.abs(y),
    "a V along a ridge": lambda x, y: 0.15 * np.abs(x + y) + 0.05 * np.abs(x - y),
}
#: One finer step, as a share of a step of the first stage, and as a factor.
FINE, FACTOR = 0.25, 2**0.25
SEEDS, TRUTH = 3, 0.05
CLOSER = FINE * np.array(list(product((-1, 0, 1), repeat=2)))


class Arm:
    """One arm: its surface about its own best point, its gap to the baseline, its noise."""

    def __init__(self, rng: np.random.Generator, name: str, best: FloatArray, gap: float, noise: float) -> None:
        self.rng, self.surface, self.best, self.noise = rng, SURFACES[name], best, noise
        self.gap = gap - LOWEST[name]

    def losses(self, points: FloatArray, seeds: int) -> FloatArray:
        """Point x seed: half of the variance is common to the points of a seed."""
        values = self.surface(*(points - self.best).T) + self.gap
        each = self.rng.normal(size=(len(points), seeds)) + self.rng.normal(size=seeds)
        return np.asarray(values[:, None] + np.sqrt(0.5) * self.noise * each)


def _lowest(surface: Surface) -> float:
    x, y = np.meshgrid(np.linspace(-1, 1, 801), np.linspace(-1, 1, 801))
    return float(surface(x, y).min())


LOWEST = {name: _lowest(surface) for name, surface in SURFACES.items()}


def _pair(point: FloatArray) -> tuple[float, float]:
    return float(2.0 ** point[0]), float(2.0 ** point[1])


def tuned_in_two(arm: Arm, points: FloatArray) -> tuple[FloatArray, FittedMinimum]:
    places = {_pair(point): point for point in points}
    first = dict(zip(places, arm.losses(points, SEEDS).tolist(), strict=True))
    centre = places[best_trial(first)]
    closer = centre + CLOSER
    second = dict(zip(map(_pair, closer), arm.losses(closer, SEEDS).tolist(), strict=True))
    places |= {_pair(point): point for point in closer}
    fit = best_pair_of_stages(first, second, (FACTOR, FACTOR))
    return places[fit.lr or 0.0, fit.second or 0.0], fit


def tuned_alone(arm: Arm) -> tuple[FloatArray, FittedMinimum]:
    def stage(rates: FloatArray) -> dict[float, list[float]]:
        points = np.column_stack([rates, np.zeros_like(rates)])
        return dict(zip((2.0**rates).tolist(), arm.losses(points, SEEDS).tolist(), strict=True))

    first = stage(np.arange(-2.0, 3.0))
    centre = np.log2(best_rate(first).lr)
    fit = best_of_stages(first, stage(centre + FINE * np.arange(-2, 3)))
    return np.array([np.log2(fit.lr or 1.0), 0.0]), fit


def grid(rates: int, values: int) -> FloatArray:
    return np.array(list(product(np.arange(rates) - rates // 2, np.arange(values) - values // 2)), dtype=np.float64)


DESIGNS: dict[str, Callable[[np.random.Generator], FloatArray] | None] = {
    "5 x 3": lambda rng: grid(5, 3),
    "5 x 5": lambda rng: grid(5, 5),
    "24 at random": lambda rng: rng.uniform(-2, 2, (24, 2)),
    "rate alone": None,
}
HEADS = ["fit possible", "doubt", "half-width", "coverage", "false better", "false worse", f"better by {TRUTH:g}"]


def row(
    rng: np.random.Generator, names: tuple[str, str], noise: float, design: str, judged: int, studies: int
) -> list[object]:
    doubts, halves, covered, better, worse, shown = [], [], 0, 0, 0, 0
    asked = [0.0] * studies + [-TRUTH] * (studies // 2)
    for gap in asked:
        best = rng.uniform(-0.5, 0.5, 2)
        bests = (best, best + rng.uniform(-0.5, 0.5, 2))
        arms = [Arm(rng, name, place, each, noise) for name, place, each in zip(names, bests, (0.0, gap), strict=True)]
        make = DESIGNS[design]
        points = None if make is None else make(rng)
        found = [tuned_alone(arm) if points is None else tuned_in_two(arm, points) for arm in arms]
        if any(fit.status != "ok" for _, fit in found):
            continue
        losses = [arm.losses(place[None], judged)[0] for arm, (place, _) in zip(arms, found, strict=True)]
        doubt = Doubt(below=found[1][1].doubt, above=found[0][1].doubt)
        costs = Costs(tuple((losses[1] - losses[0]).tolist()), (1.0,) * judged, doubt=doubt)
        if gap:
            shown += costs.p_better() <= ALPHA
            continue
        low, high = costs.bounds(1 - ALPHA)
        assert low is not None
        assert high is not None
        doubts.append(doubt.below)
        halves.append((high - low) / 2)
        covered += low <= 0 <= high
        better += costs.p_better() <= ALPHA
        worse += costs.mirrored.p_better() <= ALPHA
    n = len(doubts)
    if not n:
        return [0.0, *["–"] * 6]
    widths = [f"{np.median(doubts):.3f}", f"{np.median(halves):.3f}"]
    return [n / studies, *widths, covered / n, better / n, worse / n, shown / (studies // 2)]


#: Surface of the baseline and of the variant, noise, design, judged runs.
CELLS = [
    (reference, variant, noise, design, judged)
    for reference, variant, noise in [
        *((name, name, 0.01) for name in SURFACES),
        *((name, "a bowl", 0.01) for name in ("a kink above", "a cliff across", "a V in both", "a V along a ridge")),
        *((name, name, 0.003) for name in ("a ridge", "a V in both", "a V along a ridge")),
        *((name, name, 0.03) for name in ("a bowl", "a ridge", "a V along a ridge")),
    ]
    for design, judged in (("5 x 3", 40), ("24 at random", 40), ("rate alone", 40))
]
CELLS += [(name, name, 0.01, "5 x 3", 10) for name in ("a bowl", "a ridge", "a cliff across", "a V along a ridge")]
CELLS += [(name, name, 0.01, "5 x 5", 10) for name in ("a bowl", "a ridge", "flat in the second", "a cliff across")]


def shown(place: int, studies: int) -> list[object]:
    """One row, which does not depend on the others."""
    reference, variant, noise, design, judged = CELLS[place]
    rng = np.random.default_rng([42, place])
    return [
        reference,
        variant,
        f"{noise:g}",
        design,
        judged,
        *row(rng, (reference, variant), noise, design, judged, studies),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--studies", type=int, default=100)
    studies = parser.parse_args().studies
    title = "Arms tuned in two settings, %; doubt of one side and half-width in nats (medians)"
    table(
        title,
        ["baseline", "variant", "noise", "design", "judged", *HEADS],
        [shown(place, studies) for place in range(len(CELLS))],
    )


if __name__ == "__main__":
    main()
