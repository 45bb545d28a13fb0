"""One baseline for several studies: how often they err, how often together, and what choosing a baseline after it was seen does.

    PYTHONPATH=src python benchmarks/reuse.py [--labs 20000]

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


def chosen(rng: np.random.Generator, seeds: int, gain: float, labs: int) -> list[list[object]]:
    """False claims of the next study, by what the lab saw of the baseline before it reused it; the variant that it saw was
    better by *gain*."""
    rows = {name: [0, 0, 0] for name in ("always", "after a better mean", "after *better*", "unless *worse*", "worst of 5")}
    for _ in range(50):
        old = NOISE * rng.normal(size=(labs, 5, seeds))
        first, again = old[:, 0], NOISE * rng.normal(size=(labs, seeds))
        t = t_of(NOISE * rng.normal(size=(labs, seeds)) - gain, first)
        unluckiest = np.take_along_axis(old, old.mean(2).argmax(1)[:, None, None], 1)[:, 0]
        better, worse = claims(t, seeds)
        kept = {"always": t < np.inf, "after a better mean": t < 0, "after *better*": better, "unless *worse*": ~worse}
        for name, (tries, *_) in rows.items():
            baseline = unluckiest if name == "worst of 5" else first
            use = kept.get(name, kept["always"])
            next_better, next_worse = claims(t_of(again, baseline)[use], seeds)
            found = (len(next_better), next_better.sum(), next_worse.sum())
            rows[name] = [before + int(more) for before, more in zip((tries, *_), found, strict=True)]
    return [[seeds, f"{gain:g}", name, b / n, w / n] for name, (n, b, w) in rows.items()]


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
    heads = ["seeds", "studies", "baseline", "false better", "false worse", "SD of false claims", "any", "three or more"]
    table("Several studies of one lab, nothing differs, %", heads, rows)
    rows = [row for seeds in (5, 20) for gain in (0.0, 1.0) for row in chosen(rng, seeds, gain, labs)]
    table(
        "The next study on a baseline that was seen, nothing differs, %",
        ["seeds", "gain seen, SDs", "reused", "false better", "false worse"],
        rows,
    )


if __name__ == "__main__":
    main()
