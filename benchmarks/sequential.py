"""Error rates and expected seeds of sequential designs, against a fixed design with all seeds.

    PYTHONPATH=src python benchmarks/sequential.py                      # the tables of docs/validation-tables.md
    PYTHONPATH=src python benchmarks/sequential.py --simulations 1000   # a quick look

Each simulated study has one baseline and one or three variants on shared seeds, so the deltas of variants correlate (0.5).
It is looked at after 5, 8, 12 and 20 seeds, or after 5, 10 and 18 as in the files of `init`. A look decides on a variant when
Holm over the sequential p-values shows a difference, when the repeated interval of level 1 - 2 alpha lies within the smallest
effect, or when the predictive probability of showing either is below 5 %. The study stops when every variant is decided.
Means and the smallest effect (1) are in SDs of the deltas.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from ablationlab.stats import adjust
from ablationlab.stats.results import Spending
from ablationlab.stats.sequential import Looks, chance_of_showing

PAIRS = (5, 8, 12, 20)
#: Of `init`, for five seeds.
INIT = (5, 10, 18)
ALPHA, MARGIN, FUTILITY = 0.05, 1.0, 0.05
Draws = NDArray[np.float64]


@dataclass
class Counts:
    """Over studies: any false claim of a difference, claims on the first variant, ties on it, coverage, seeds used."""

    studies: int = 0
    false_claims: int = 0
    claims: int = 0
    ties: int = 0
    covered: int = 0
    seeds: int = 0

    def row(self) -> list[str]:
        shares = (self.false_claims, self.claims, self.ties, self.covered)
        return [*(f"{count / self.studies:.1%}" for count in shares), f"{self.seeds / self.studies:.1f}"]


def simulated(looks: Looks, means: tuple[float, ...], simulations: int, rng: np.random.Generator) -> Counts:
    """Studies under one truth; *means* are those of the variants."""
    k, total = len(means), looks.pairs[-1]
    shared = rng.normal(size=(simulations, 1, total))
    deltas = np.array(means)[None, :, None] + np.sqrt(0.5) * (rng.normal(size=(simulations, k, total)) + shared)
    counts = Counts(studies=simulations)
    levels, wide = looks.levels(ALPHA), looks.levels(2 * ALPHA)
    for study in deltas:
        p = np.empty((len(looks.pairs), k))
        for look, n in enumerate(looks.pairs):
            sample = study[:, :n]
            mean, sd = sample.mean(axis=1), sample.std(axis=1, ddof=1)
            error = sd / np.sqrt(n)
            p[look] = 2 * special.stdtr(n - 1, -np.abs(mean / error))
            p_values = [looks.p_value(tuple(p[: look + 1, variant])) for variant in range(k)]
            adjusted = adjust(p_values, method="holm").adjusted
            shown = np.array([value is not None and value <= ALPHA for value in adjusted])
            half = -special.stdtrit(n - 1, np.array([levels[look], wide[look]]) / 2)
            tied = np.abs(mean) + half[1] * error < MARGIN
            last = look == len(looks.pairs) - 1
            if last or all(shown[i] or tied[i] or _futile(looks, look, float(mean[i]), float(sd[i])) for i in range(k)):
                break
        counts.seeds += n
        counts.false_claims += bool(np.any(shown & (np.array(means) == 0)))
        counts.claims += bool(shown[0])
        counts.ties += bool(tied[0])
        counts.covered += bool(abs(mean[0] - means[0]) <= half[0] * error[0])
    return counts


def _futile(looks: Looks, look: int, mean: float, sd: float) -> bool:
    return chance_of_showing(looks, look, mean, sd, alpha=ALPHA, smallest_effect=MARGIN) < FUTILITY


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--simulations", type=int, default=20_000)
    simulations = parser.parse_args().simulations
    designs: list[tuple[str, tuple[int, ...], tuple[Spending, ...]]] = [
        ("fixed, 20 seeds", PAIRS[-1:], ("obrien-fleming",)),
        ("5, 8, 12, 20", PAIRS, ("obrien-fleming", "pocock")),
        ("fixed, 5 seeds", INIT[:1], ("obrien-fleming",)),
        ("5, 10, 18", INIT, ("front-loaded",)),
    ]
    truths = {"no difference": (0.0,), "three variants, no difference": (0.0, 0.0, 0.0)}
    truths |= {
        "one of three differs by 1": (1.0, 0.0, 0.0),
        "differs by 1 (the margin)": (1.0,),
        "differs by 2": (2.0,),
    }
    print("| truth | design | spending | any false claim | difference shown | tie | interval covers | seeds |")
    print("|---|---|---|---|---|---|---|---|")
    for truth, means in truths.items():
        for design, pairs, spendings in designs:
            for spending in spendings:
                rng = np.random.default_rng(17)
                counts = simulated(Looks(pairs, spending), means, simulations, rng)
                name = spending if len(pairs) > 1 else "-"
                print("| " + " | ".join([truth, design, name, *counts.row()]) + " |", flush=True)


if __name__ == "__main__":
    main()
