"""One baseline for several studies: how often they err, how often together, and what it does to choose it by what was seen.

    PYTHONPATH=src python benchmarks/reused_baselines.py [--labs 20000]

A lab has a baseline and plans K studies of one variant each, none of which differs from it; a claim is a paired t-test at
5 % two-sided, as the rules judge clean costs without a smallest effect. A run is the level of its seed, which pairing
removes, and its own noise, equal for both arms. *Own*: every study trains its baseline again on seeds of its own. *Reused*:
all have the runs of the first.
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from procedures import ALPHA, table

Array = NDArray[np.float64]
#: SD of the own noise of a run, so that a paired difference has SD 1.
NOISE = 0.5**0.5


def t_of(variant: Array, baseline: Array) -> Array:
    """Of variant minus baseline, over the last axis; positive is worse."""
    costs = variant - baseline
    return np.asarray(costs.mean(-1) / (costs.std(-1, ddof=1) / costs.shape[-1] ** 0.5))


def claims(t: Array, seeds: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Better and worse."""
    bound = float(stats.t.ppf(1 - ALPHA / 2, seeds - 1))
    return t <= -bound, t >= bound


def together(rng: np.random.Generator, studies: int, seeds: int, labs: int, *, reused: bool) -> list[object]:
    """False claims per study, and over the K studies of a lab: mean, SD, any, and any three."""
    baseline = NOISE * rng.normal(size=(labs, 1 if reused else studies, seeds))
    better, worse = claims(t_of(NOISE * rng.normal(size=(labs, studies, seeds)), baseline), seeds)
    false = (better | worse).sum(1)
    rates = [better.mean(), worse.mean()]
    return [*map(float, rates), f"{false.std():.2f}", float((false > 0).mean()), float((false > 2).mean())]


#: What a lab may do with a baseline that it saw beside a variant; the last two the program refuses or cannot see.
CHOICES = ("always", "unless *worse*", "after a better mean", "after *better*", "worst of 5", "half of the seeds")


def chosen(rng: np.random.Generator, seeds: int, gain: float, labs: int) -> list[list[object]]:
    """False claims of the next study, by what the lab saw of the baseline before it reused it; the variant that it saw was
    better by *gain*. *Half of the seeds*: those of twice as many on which that variant looked best."""
    found = {name: np.zeros(3, dtype=int) for name in CHOICES}
    for _ in range(50):
        old = NOISE * rng.normal(size=(labs, 5, seeds))
        first, again = old[:, 0], NOISE * rng.normal(size=(labs, seeds))
        t = t_of(NOISE * rng.normal(size=(labs, seeds)) - gain, first)
        better, worse = claims(t, seeds)
        wide = NOISE * rng.normal(size=(labs, 2 * seeds))
        costs = NOISE * rng.normal(size=wide.shape) - gain - wide
        everyone = np.ones(labs, dtype=bool)
        reused = {
            "always": (everyone, first),
            "unless *worse*": (~worse, first),
            "after a better mean": (t < 0, first),
            "after *better*": (better, first),
            "worst of 5": (everyone, np.take_along_axis(old, old.mean(2).argmax(1)[:, None, None], 1)[:, 0]),
            "half of the seeds": (everyone, np.take_along_axis(wide, costs.argsort(1)[:, :seeds], 1)),
        }
        for name, (use, baseline) in reused.items():
            claimed = claims(t_of(again[use], baseline[use]), seeds)
            found[name] += [use.sum(), *(each.sum() for each in claimed)]
    return [[seeds, f"{gain:g}", name, float(b / n), float(w / n)] for name, (n, b, w) in found.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--labs", type=int, default=20_000)
    labs = parser.parse_args().labs
    rng = np.random.default_rng(42)
    rows: list[list[object]] = []
    for seeds in (5, 20):
        for studies in (1, 5, 20):
            for reused in (False, True):
                made = together(rng, studies, seeds, labs, reused=reused)
                rows.append([seeds, studies, "reused" if reused else "own", *made])
    heads = [
        "seeds",
        "studies",
        "baseline",
        "false better",
        "false worse",
        "SD of false claims",
        "any",
        "three or more",
    ]
    table("Several studies of one lab, nothing differs, %", heads, rows)
    rows = [row for seeds in (5, 20) for gain in (0.0, 1.0) for row in chosen(rng, seeds, gain, labs)]
    table(
        "The next study on a baseline that was seen, nothing differs, %",
        ["seeds", "gain seen, SDs", "reused", "false better", "false worse"],
        rows,
    )


if __name__ == "__main__":
    main()
