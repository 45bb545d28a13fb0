"""Equivalence: is the mean delta inside the band of differences too small to matter?

Two one-sided paired t-tests (TOST, Schuirmann 1987): t_low = (mean - low) / se rejects "mean <= low",
t_high = (mean - high) / se rejects "mean >= high"; p is the larger of the two. Equivalence at alpha is the
same statement as "the 1 - 2 alpha paired-t interval lies inside the band".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from ablationlab.core.errors import StatisticsError
from ablationlab.stats._common import canonical, fraction, positive
from ablationlab.stats.intervals import paired_t_interval
from ablationlab.stats.results import Equivalence


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
        return Equivalence(bounds, alpha, None, None, None, None, None, None, sample.n, *problem)
    error = float(sample.sd * abs(sample.factor) / np.sqrt(sample.n))
    p_low, p_high = (
        float(special.stdtr(sample.n - 1, side * (sample.estimate - bound) / error))
        for side, bound in ((-1, bounds[0]), (1, bounds[1]))
    )
    interval = paired_t_interval(deltas, level=1 - 2 * alpha)
    p = max(p_low, p_high)
    return Equivalence(bounds, alpha, p, p_low, p_high, interval.low, interval.high, equivalent=p < alpha, n=sample.n)
