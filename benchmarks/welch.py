"""Error rates for unpaired arms: python benchmarks/welch.py [--studies 20000]. Welch's test and interval of their means, then
Fisher's test and Newcombe's bound of their failed runs, then Welch's test of steps to a target that some runs do not reach.

Coverage of the 95 % interval, false positives at 0.05, and false equivalence at 0.05 with the true difference on the bound,
by runs per arm, ratio of the spreads and distribution. Of failures: false differences at 0.05, and how often a variant that
fails 20 points more often is shown to fail within 20 points (nominal 2.5 %), exact, mean and largest over the baseline's
rate. Of steps to a target: how often a variant that equals the baseline is called better (nominal 2.5 %), and one that gains
two SDs, where it alone, or both arms, stop when so many runs are not there. Fixed seeds; the tables are in
docs/validation-tables.md.
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from ablationlab.core.seeding import stream
from ablationlab.stats.gains import fisher_p, newcombe_interval
from ablationlab.stats.unpaired import with_unreached

FloatArray = NDArray[np.float64]
SIZES = ((3, 3), (5, 5), (10, 10), (3, 10))
RATIOS = (1.0, 3.0)


def samples(kind: str, rng: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
    """Independent draws of mean 0 and standard deviation 1."""
    if kind == "normal":
        return rng.standard_normal(shape)
    return rng.exponential(size=shape) - 1.0


def welch(a: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(difference, standard error, degrees of freedom) of every study, as `stats.unpaired` has them."""
    n, m = a.shape[1], b.shape[1]
    x, y = a.var(axis=1, ddof=1) / n, b.var(axis=1, ddof=1) / m
    return a.mean(axis=1) - b.mean(axis=1), np.sqrt(x + y), (x + y) ** 2 / (x**2 / (n - 1) + y**2 / (m - 1))


def rates(kind: str, n: int, m: int, ratio: float, studies: int) -> tuple[float, float]:
    """(share of true nulls rejected at 0.05, share called equivalent when the difference is on the bound)"""
    rng = stream(0, "analysis", "welch", kind, n, m, str(ratio))
    a, b = samples(kind, rng, (studies, n)) * ratio, samples(kind, rng, (studies, m))
    d, error, freedom = welch(a, b)
    p = 2 * special.stdtr(freedom, -np.abs(d) / error)
    # A bound of 4 standard errors of the true difference: wide enough that equivalence can be shown at all.
    bound = 4 * np.sqrt(ratio**2 / n + 1 / m)
    low, high = special.stdtr(freedom, -(d + 2 * bound) / error), special.stdtr(freedom, d / error)
    return float((p <= 0.05).mean()), float((np.maximum(low, high) < 0.05).mean())


def failures(n: int, margin: float = 0.2) -> tuple[FloatArray, FloatArray]:
    """By the baseline's rate: (share of equal arms that Fisher's test calls different, share of false non-inferiority)."""
    counts = range(n + 1)
    upper = np.array([[newcombe_interval(a, b, n, n, level=0.95)[1] for b in counts] for a in counts])
    p = np.array([[fisher_p(a, b, n, n) for b in counts] for a in counts])
    false, inferior = [], []
    for rate in np.linspace(0, 1 - margin, 41):
        base = stats.binom.pmf(counts, n, rate)
        false.append(np.outer(base, base)[p <= 0.05].sum())
        inferior.append(np.outer(stats.binom.pmf(counts, n, rate + margin), base)[upper <= margin].sum())
    return np.array(false), np.array(inferior)


def unreached(n: int, m: int, share: float, gain: float, both: bool, studies: int) -> tuple[float, float]:
    """(share of studies with the claim within reach, share called better) where this share of runs is not there in time."""
    rng = stream(0, "analysis", "unreached", n, m, str(share), str(gain), both)
    last = float(special.ndtri(1 - share))
    within = better = 0
    for a, b in zip(rng.standard_normal((studies, n)), rng.standard_normal((studies, m)), strict=True):
        counted = with_unreached(a[a <= last], [last] * int((a > last).sum())) if share else a
        # The baseline's unreached runs speak for the variant, and are left out.
        reference = b[b <= last] if both else b
        if counted is None or reference.size < 3:
            continue
        within += 1
        d, error, freedom = (float(part[0]) for part in welch((counted - gain)[None], reference[None]))
        better += d < 0 and 2 * special.stdtr(freedom, d / error) <= 0.05
    return within / studies, better / studies


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--studies", type=int, default=20_000)
    studies = parser.parse_args().studies
    print(
        "| distribution | runs | spread | false positives | coverage | false equivalence |\n|---|---|---|---|---|---|"
    )
    for kind in ("normal", "skewed"):
        for n, m in SIZES:
            for ratio in RATIOS:
                false, equivalent = rates(kind, n, m, ratio, studies)
                print(f"| {kind} | {n} and {m} | {ratio:g} : 1 | {false:.3f} | {1 - false:.3f} | {equivalent:.3f} |")
    print("\n| runs per arm | false differences | largest | false non-inferiority | largest |\n|---|---|---|---|---|")
    for n in (5, 10, 20, 40):
        shares = [share for by_rate in failures(n) for share in (by_rate.mean(), by_rate.max())]
        print(f"| {n} | {' | '.join(f'{100 * share:.1f}' for share in shares)} |")
    print(
        "\n| runs | not at the target | stops | within reach | false better | better at two SDs |\n|---|---|---|---|---|---|"
    )
    for n, m in ((6, 6), (10, 10), (20, 20), (10, 30)):
        for left_out in (0.0, 0.02, 0.05, 0.1, 0.2):
            for both in (False, True) if left_out else (False,):
                within, false = unreached(n, m, left_out, 0.0, both, studies)
                gained = unreached(n, m, left_out, 2.0, both, studies)[1]
                cells = " | ".join(f"{100 * rate:.1f}" for rate in (within, false, gained))
                print(f"| {n} and {m} | {left_out:.0%} | {'both' if both else 'variant'} | {cells} |")


if __name__ == "__main__":
    main()
