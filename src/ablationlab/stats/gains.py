"""Is an arm more stable than another? Differences of shares of unstable runs, paired by seed or not.

**Stability gain** of a variant = share of unstable reference runs - share of unstable variant runs, paired by seed, with
Tango's score interval (1998).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ablationlab.core.errors import StatisticsError
from ablationlab.stats._common import fraction
from ablationlab.stats.results import Gain


def stability_gain(variant: Sequence[bool], reference: Sequence[bool], *, level: float = 0.95) -> Gain:
    """The gain from whether each run was unstable; position i of both belongs to one seed."""
    if len(variant) != len(reference):
        raise StatisticsError(f"variant and reference must pair by seed, got {len(variant)} and {len(reference)} runs")
    n = len(variant)
    rescued = sum(r and not v for v, r in zip(variant, reference, strict=True))
    broken = sum(v and not r for v, r in zip(variant, reference, strict=True))
    low, high = tango_interval(rescued, broken, n, level=level) if n >= 2 else (None, None)
    estimate = (rescued - broken) / n if n else None
    return Gain(n, n, n, sum(reference), sum(variant), rescued, broken, estimate, low, high, level)


def independent_gain(variant: Sequence[bool], reference: Sequence[bool], *, level: float = 0.95) -> Gain:
    """The gain of arms whose runs do not pair, with Newcombe's interval (1998, method 10)."""
    runs, unstable = (len(reference), len(variant)), (sum(reference), sum(variant))
    n = min(runs)
    estimate = low = high = None
    if n:
        estimate = unstable[0] / runs[0] - unstable[1] / runs[1]
        low, high = newcombe_interval(*unstable, *runs, level=level)
    return Gain(n, *runs, *unstable, None, None, estimate, low, high, level)


def newcombe_interval(a: int, b: int, m: int, n: int, *, level: float = 0.95) -> tuple[float, float]:
    """Interval of p - q from a of m and b of n: Wilson's of both, combined as root mean squares."""
    z = _normal_quantile((1 + fraction("level", level)) / 2)
    (p, p_low, p_high), (q, q_low, q_high) = _wilson(a, m, z), _wilson(b, n, z)
    return p - q - float(np.hypot(p - p_low, q_high - q)), p - q + float(np.hypot(p_high - p, q - q_low))


def _wilson(k: int, n: int, z: float) -> tuple[float, float, float]:
    """The share, and Wilson's bounds of it."""
    centre, half = k + z * z / 2, z * float(np.sqrt(k * (n - k) / n + z * z / 4))
    return k / n, max(0.0, (centre - half) / (n + z * z)), min(1.0, (centre + half) / (n + z * z))


def fisher_p(
    variant_failed: int, reference_failed: int, variant_runs: int, reference_runs: int, *, more: bool = False
) -> float:
    """Fisher's exact p that runs of independent arms fail alike; *more*: against the variant's failing more often alone."""
    table = [[variant_failed, variant_runs - variant_failed], [reference_failed, reference_runs - reference_failed]]
    from scipy import stats  # only here: every process that trains imports this module, and scipy takes a second

    return float(stats.fisher_exact(table, alternative="greater" if more else "two-sided").pvalue)


@lru_cache(maxsize=4096)
def tango_interval(gained: int, lost: int, n: int, *, level: float = 0.95) -> tuple[float, float]:
    """Score interval for (gained - lost) / n, a difference of paired proportions (Tango 1998, eq. 5-8).

    The bounds are the D with |gained - lost - n D| = z sqrt(n (2 q(D) + D (1 - D))), where q(D) is the probability
    of a lost pair that is most likely under the difference D. At 5 pairs the widest split, 5 to 0, gives a lower bound
    of 0.13; 3 pairs can never exclude 0. Coverage at n = 3, 5, 10 is enumerated in tests/test_stability.py.
    """
    if n < 1 or gained < 0 or lost < 0 or gained + lost > n:
        raise StatisticsError(f"gained = {gained} and lost = {lost} must be counts among n = {n} pairs")
    if not 0 < level < 1:
        raise StatisticsError(f"level must lie strictly between 0 and 1, got {level!r}")
    z = _normal_quantile((1 + level) / 2)
    estimate = (gained - lost) / n
    low = -1.0 if estimate == -1 else _root(gained, lost, n, z, -1.0, estimate)
    high = 1.0 if estimate == 1 else _root(gained, lost, n, -z, estimate, 1.0)
    return low, high


def _root(gained: int, lost: int, n: int, target: float, low: float, high: float) -> float:
    # The score falls as D grows; 80 halvings of a length of 2 leave nothing above rounding.
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _score(gained, lost, n, middle) > target else (low, middle)
    return (low + high) / 2


def _score(gained: int, lost: int, n: int, difference: float) -> float:
    a, c = 2 * n, -lost * difference * (1 - difference)
    b = -gained - lost + (2 * n - gained + lost) * difference
    lost_share = (math.sqrt(max(b * b - 4 * a * c, 0.0)) - b) / (2 * a)
    variance = n * (2 * lost_share + difference * (1 - difference))
    distance = gained - lost - n * difference
    return math.copysign(math.inf, distance) if variance <= 0 else distance / math.sqrt(variance)


def _normal_quantile(probability: float) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf(probability)
