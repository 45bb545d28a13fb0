"""Two independent samples: Welch's t-test, its interval and two one-sided tests. For runs that share no seed.

With d = mean(a) - mean(b) and se² = s1²/n1 + s2²/n2, d / se is compared with Student's t with Satterthwaite's degrees of
freedom (Welch 1947). Equal spreads are not assumed. What a shared seed would have cancelled stays in the noise.

A run that stopped before it reached a target needs more steps than it made, and nobody knows how many. Against the claim for
its arm it counts like a lost run of a pair (`stats.costs`). `benchmarks/welch.py` has the error rates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from ablationlab.core.errors import StatisticsError
from ablationlab.stats._common import MINIMUM_PAIRS, FloatArray, complement, fraction, sample, standard_deviation
from ablationlab.stats._noncentral import noncentral_t_cdf
from ablationlab.stats.comparison import as_ratio, logarithms
from ablationlab.stats.costs import ONE_IN, RARE, REMAINING
from ablationlab.stats.effects import equivalence_bounds
from ablationlab.stats.intervals import difference_of_means
from ablationlab.stats.results import (
    Equivalence,
    GeometricRatio,
    Interval,
    PValue,
    Status,
    Transform,
    UnpairedComparison,
)

WELCH: Final = "welch"
#: The method of an interval whose noise was known before.
KNOWN: Final = "known-noise"
#: Runs per arm beyond which a difference is out of reach.
MOST_RUNS: Final = 10_000


def compare_unpaired(
    variant: ArrayLike,
    reference: ArrayLike,
    *,
    level: float = 0.95,
    alpha: float | None = None,
    smallest_effect: float | None = None,
    transform: Transform = "identity",
) -> UnpairedComparison:
    """Compare two arms whose runs have nothing in common; no interval and no p below 3 runs in either arm."""
    a, b = sample("variant", variant), sample("reference", reference)
    level = fraction("level", level)
    alpha = fraction("alpha", complement(level) if alpha is None else alpha)
    original = [(float(np.sort(arm).mean()), standard_deviation(arm)) for arm in (a, b)]
    if transform == "log":
        a, b = logarithms("variant", a), logarithms("reference", b)
    elif transform != "identity":
        raise StatisticsError(f"transform must be 'identity' or 'log', got {transform!r}")
    interval = _interval(a, b, level)
    return UnpairedComparison(
        n_variant=a.size,
        n_reference=b.size,
        transform=transform,
        variant_mean=original[0][0],
        variant_sd=original[0][1],
        reference_mean=original[1][0],
        reference_sd=original[1][1],
        delta=interval.estimate,
        difference_sd=_difference_sd(a, b),
        interval=interval,
        test=_test(a, b),
        equivalence=None if smallest_effect is None else _equivalence(a, b, smallest_effect, alpha),
        ratio=_ratio(interval) if transform == "log" else None,
    )


def known_noise(variant: ArrayLike, reference: ArrayLike, *, sd: float, level: float = 0.95) -> tuple[Interval, PValue]:
    """The z interval and test of two means whose runs have a standard deviation that was known before; one run is enough.

    As wrong as *sd* is: where the runs' own is r times as large, 2 Φ(-z / r) of true nulls are rejected.
    """
    a, b = sample("variant", variant), sample("reference", reference)
    level = fraction("level", level)
    if not 0 < sd < np.inf:
        raise StatisticsError(f"sd {sd}: must be above 0")
    estimate, n = float(np.sort(a).mean() - np.sort(b).mean()), min(a.size, b.size)
    error = sd * float(np.sqrt(1 / a.size + 1 / b.size))
    half = float(special.ndtri((1 + level) / 2)) * error
    z = estimate / error
    interval = Interval(KNOWN, level, estimate, estimate - half, estimate + half, n, exact=True)
    return interval, PValue(KNOWN, float(2 * special.ndtr(-abs(z))), z, n, exact=True)


def with_unreached(reached: ArrayLike, least: Sequence[float]) -> FloatArray | None:
    """The steps of an arm, with one number for each run that needs more than so many: what one further run in a thousand
    would exceed, or what it made if that is more. None where more than one in ten (rounded up) are so, or too few others.
    """
    values = np.asarray(reached, dtype=np.float64)
    n = values.size + len(least)
    if not least:
        return values
    if len(least) > min(math.ceil(n / ONE_IN), n - REMAINING):
        return None
    freedom = values.size - 1
    reach = float(special.stdtrit(freedom, 1 - RARE)) * (standard_deviation(values) or 0.0)
    far = float(np.sort(values).mean()) + reach * float(np.sqrt(1 + 1 / values.size))
    return np.concatenate([values, np.maximum(np.sort(np.asarray(least, dtype=np.float64)), far)])


def runs_to_decide(
    effect: float, variant_sd: float, reference_sd: float, *, alpha: float = 0.05, power: float = 0.8
) -> int | None:
    """Runs in each arm with which Welch's test shows a true difference of *effect* with that power; None beyond all reach.

    By the noncentral t with Satterthwaite's degrees of freedom.
    """
    alpha, power = fraction("alpha", alpha), fraction("power", power)
    for name, value, least in (
        ("effect", effect, -np.inf),
        ("variant_sd", variant_sd, 0),
        ("reference_sd", reference_sd, 0),
    ):
        if not (math.isfinite(value) and value >= least):
            raise StatisticsError(f"{name} {value}: must be a finite number{'' if least else ', not below 0'}")
    scale = max(variant_sd, reference_sd)
    if not effect or not scale:
        return None
    effect = effect / scale
    variances = (variant_sd / scale) ** 2, (reference_sd / scale) ** 2
    balance = sum(variances) ** 2 / sum(variance**2 for variance in variances)

    def shown(n: int) -> bool:
        freedom, shift = balance * (n - 1), abs(effect) / math.sqrt(sum(variances) / n)
        critical = float(special.stdtrit(freedom, 1 - alpha / 2))
        return 1 - noncentral_t_cdf(critical, freedom, shift) >= power

    low, high = MINIMUM_PAIRS - 1, MOST_RUNS
    if not shown(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if shown(middle) else (middle, high)
    return high


def _test(a: FloatArray, b: FloatArray) -> PValue:
    n = min(a.size, b.size)
    if problem := _problem(a, b):
        return PValue(WELCH, None, None, n, exact=True, status=problem)
    estimate, error, freedom = _parts(a, b)
    t = estimate / error
    return PValue(WELCH, float(2 * special.stdtr(freedom, -abs(t))), t, n, exact=True)


def _interval(a: FloatArray, b: FloatArray, level: float) -> Interval:
    n = min(a.size, b.size)
    if problem := _problem(a, b):
        estimate = float(np.sort(a).mean() - np.sort(b).mean())
        return Interval(WELCH, level, estimate, None, None, n, exact=True, status=problem)
    estimate, error, freedom = _parts(a, b)
    half = float(special.stdtrit(freedom, (1 + level) / 2)) * error
    return Interval(WELCH, level, estimate, estimate - half, estimate + half, n, exact=True)


def _equivalence(a: FloatArray, b: FloatArray, smallest_effect: float, alpha: float) -> Equivalence:
    bounds = equivalence_bounds(smallest_effect)
    n = min(a.size, b.size)
    if problem := _problem(a, b):
        return Equivalence(bounds, alpha, None, None, None, None, None, None, n, problem)
    estimate, error, freedom = _parts(a, b)
    p_low = float(special.stdtr(freedom, -(estimate - bounds[0]) / error))
    p_high = float(special.stdtr(freedom, (estimate - bounds[1]) / error))
    inner = _interval(a, b, 1 - 2 * alpha)
    p = max(p_low, p_high)
    return Equivalence(bounds, alpha, p, p_low, p_high, inner.low, inner.high, equivalent=p < alpha, n=n)


def _parts(a: FloatArray, b: FloatArray) -> tuple[float, float, float]:
    """(difference of the means, its standard error, Satterthwaite's degrees of freedom)"""
    low = difference_of_means(np.sort(a), float(np.sort(b).mean()), n=b.size, sd=standard_deviation(b) or 0.0)
    assert low.high is not None
    assert low.degrees_of_freedom is not None
    half = low.high - low.estimate
    return low.estimate, half / float(special.stdtrit(low.degrees_of_freedom, 0.975)), low.degrees_of_freedom


def _problem(a: FloatArray, b: FloatArray) -> Status | None:
    if min(a.size, b.size) < MINIMUM_PAIRS:
        return "too-few-pairs"
    if not standard_deviation(a) and not standard_deviation(b):
        return "degenerate"
    return None


def _difference_sd(a: FloatArray, b: FloatArray) -> float | None:
    spreads = [standard_deviation(arm) for arm in (a, b)]
    return None if None in spreads else float(np.hypot(spreads[0] or 0.0, spreads[1] or 0.0))


def _ratio(interval: Interval) -> GeometricRatio | None:
    try:
        return as_ratio(interval.estimate, interval.low, interval.high)
    except StatisticsError:
        return None  # between arms that blew up, the exponential may be beyond any number
