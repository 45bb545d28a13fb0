"""Standardized effect sizes of a paired comparison, with intervals.

d_z  = J * mean(delta) / sd(delta): in units of the seed noise that pairing left over; what power is about.
g_av = J * mean(delta) / sqrt((s_a^2 + s_b^2) / 2): in units of run-to-run spread, comparable across designs.

J makes them unbiased (Hedges 1981): without it d_z is 25 % too large on average at five pairs.

Both intervals invert the noncentral t distribution of the paired t statistic: with lambda_lo, lambda_hi such
that P(T >= t | lambda_lo) = P(T <= t | lambda_hi) = alpha / 2, d_z lies in lambda / sqrt(n), exactly for
normal deltas, and delta_av in lambda / sqrt(n) * sd(delta) / s_av, approximately (Algina and Keselman 2003,
who take the ratio of the standard deviations as known). Either excludes 0 just when the paired t-test does.

Equivalence: is the mean delta inside the band of differences too small to matter?

Two one-sided paired t-tests (TOST, Schuirmann 1987): t_low = (mean - low) / se rejects "mean <= low",
t_high = (mean - high) / se rejects "mean >= high"; p is the larger of the two. Equivalence at alpha is the
same statement as "the 1 - 2 alpha paired-t interval lies inside the band".
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from ablationlab.core.errors import StatisticsError
from ablationlab.stats._common import (
    Canonical,
    canonical,
    correlation,
    fraction,
    pair,
    paired_deltas,
    positive,
    standard_deviation,
)
from ablationlab.stats._noncentral import noncentrality
from ablationlab.stats.intervals import paired_t_interval
from ablationlab.stats.results import EffectSize, Equivalence


def cohens_d_z(deltas: ArrayLike, *, level: float = 0.95) -> EffectSize:
    """J(n - 1) mean(delta) / sd(delta), with its exact noncentral-t interval, which J does not shrink."""
    sample, level = canonical(deltas), fraction("level", level)
    if problem := sample.problem():
        return EffectSize("d_z", None, None, None, level, sample.n, problem)
    return _effect("d_z", sample, 1.0, hedges_correction(sample.n - 1), level)


def hedges_g_av(variant: ArrayLike, reference: ArrayLike, *, level: float = 0.95) -> EffectSize:
    """J * mean(delta) / s_av, s_av^2 = (s_a^2 + s_b^2) / 2, with the Algina-Keselman interval.

    J is the small-sample correction at the degrees of freedom of s_av^2 (Satterthwaite),
    (n - 1) (s_a^2 + s_b^2)^2 / (s_a^4 + s_b^4 + 2 r^2 s_a^2 s_b^2), which is 2 (n - 1) / (1 + r^2) for equal
    variances (Cousineau 2020). The interval is for the population value and is not shrunk by J.
    """
    a, b = pair("variant", variant, "reference", reference)
    sample, level = canonical(paired_deltas(a, b)), fraction("level", level)
    if problem := sample.problem():
        return EffectSize("g_av", None, None, None, level, sample.n, problem)
    s_a, s_b = standard_deviation(a), standard_deviation(b)
    assert s_a is not None
    assert s_b is not None
    # The deltas vary, so at least one arm does; scaled, so that fourth powers stay in range.
    scale = max(s_a, s_b)
    x, y = (s_a / scale) ** 2, (s_b / scale) ** 2
    r = correlation(a, b) if s_a and s_b else 0.0
    freedom = (sample.n - 1) * (x + y) ** 2 / (x**2 + y**2 + 2 * r**2 * x * y)
    s_av = scale * np.sqrt((x + y) / 2)
    return _effect("g_av", sample, sample.sd * abs(sample.factor) / s_av, hedges_correction(freedom), level)


def hedges_correction(freedom: float) -> float:
    """J(f) = Gamma(f / 2) / (sqrt(f / 2) Gamma((f - 1) / 2)), which makes d unbiased (Hedges 1981)."""
    half = freedom / 2
    return float(np.exp(special.gammaln(half) - special.gammaln(half - 0.5)) / np.sqrt(half))


@lru_cache(maxsize=1024)  # d_z and g_av of the same pairs have the same bounds, and finding them takes longest
def noncentrality_bounds(t: float, freedom: int, level: float) -> tuple[float, float]:
    """lambda_lo, lambda_hi with P(T >= t | lambda_lo) = P(T <= t | lambda_hi) = (1 - level) / 2."""
    tail = (1 - level) / 2
    return noncentrality(t, freedom, 1 - tail), noncentrality(t, freedom, tail)


def _effect(name: str, sample: Canonical, ratio: float, correction: float, level: float) -> EffectSize:
    root = float(np.sqrt(sample.n))
    d = sample.mean / sample.sd
    orientation = float(np.sign(sample.factor))
    low, high = (bound / root * ratio for bound in noncentrality_bounds(d * root, sample.n - 1, level))
    ends = sorted((low * orientation, high * orientation))
    return EffectSize(name, float(d * ratio * correction * orientation), ends[0], ends[1], level, sample.n)


def equivalence_bounds(smallest_effect: float | tuple[float, float]) -> tuple[float, float]:
    """(-e, e) for a smallest effect e, or two bounds (low, high) as given; low < 0 < high."""
    if isinstance(smallest_effect, tuple | list):
        if len(smallest_effect) != 2 or not np.isfinite(smallest_effect).all():
            raise StatisticsError(f"smallest_effect must be one number or (low, high), got {smallest_effect!r}")
        low, high = (float(bound) for bound in smallest_effect)
        if not low < 0 < high:
            raise StatisticsError(f"smallest_effect must have low < 0 < high, got {smallest_effect!r}")
        return low, high
    size = positive("smallest_effect", smallest_effect)
    return -size, size


def paired_tost(deltas: ArrayLike, *, smallest_effect: float | tuple[float, float], alpha: float = 0.05) -> Equivalence:
    """Test whether the mean delta lies strictly within the smallest effect that matters."""
    bounds = equivalence_bounds(smallest_effect)
    alpha = fraction("alpha", alpha)
    if alpha >= 0.5:
        raise StatisticsError(f"alpha must be below 0.5 so that 1 - 2 alpha is a level, got {alpha!r}")
    sample = canonical(deltas)
    if problem := sample.problem():
        return Equivalence(bounds, alpha, None, None, None, None, None, None, sample.n, problem)
    error = float(sample.sd * abs(sample.factor) / np.sqrt(sample.n))
    p_low, p_high = (
        float(special.stdtr(sample.n - 1, side * (sample.estimate - bound) / error))
        for side, bound in ((-1, bounds[0]), (1, bounds[1]))
    )
    interval = paired_t_interval(deltas, level=1 - 2 * alpha)
    p = max(p_low, p_high)
    return Equivalence(bounds, alpha, p, p_low, p_high, interval.low, interval.high, equivalent=p < alpha, n=sample.n)
