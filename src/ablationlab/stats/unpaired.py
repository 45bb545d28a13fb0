"""Two independent samples: Welch's t-test, its interval and two one-sided tests. For runs that share no seed.

With d = mean(a) - mean(b) and se² = s1²/n1 + s2²/n2, d / se is compared with Student's t with Satterthwaite's degrees of
freedom (Welch 1947). Equal spreads are not assumed. What a shared seed would have cancelled stays in the noise.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from ablationlab.core.errors import StatisticsError
from ablationlab.stats._common import MINIMUM_PAIRS, FloatArray, complement, fraction, sample, standard_deviation
from ablationlab.stats.comparison import as_ratio, logarithms
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
