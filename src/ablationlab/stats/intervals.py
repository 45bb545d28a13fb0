"""Confidence intervals: for the mean delta of a few pairs, and for the difference of two independent means.

Paired t is the default: it is the one that covers what it says at five seeds. The bootstrap intervals
are reported beside it, and :mod:`ablationlab.stats.caveats` says by how much each one undercovers.

`difference_of_means` is for small, independent samples, of which one may be known by its summary alone.

A published table gives a mean, perhaps a standard deviation, and how many runs stand behind them; nothing pairs its runs
with ours. Two cases, for d = mean(ours) - published mean:

    both spreads known      d +- t_(nu) sqrt(s1²/n1 + s2²/n2),  nu = (s1²/n1 + s2²/n2)² / (s1⁴/(n1²(n1-1)) + s2⁴/(n2²(n2-1)))
                            Welch 1947, with Satterthwaite's degrees of freedom: no equal spreads are assumed
    ours alone known        d +- t_(n1-1) s1 sqrt(1/n1 + 1/n2): the prediction interval for the mean of n2 further runs like
                            ours, shifted to the difference; it assumes that the published runs vary as ours do

Zero lies within the interval exactly where the published mean lies within what our runs predict for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from ablationlab.core.errors import StatisticsError
from ablationlab.core.registry import Registry
from ablationlab.stats import _bootstrap, _common
from ablationlab.stats._common import MINIMUM_PAIRS, Canonical, FloatArray, canonical, count, fraction, number
from ablationlab.stats.results import DifferenceOfMeans, Interval, Status

RESAMPLES: Final = 10_000


def paired_t_interval(deltas: ArrayLike, *, level: float = 0.95) -> Interval:
    """mean +- t_(n-1, 1-alpha/2) s / sqrt(n); exact for normal deltas."""
    sample, level = canonical(deltas), fraction("level", level)
    if problem := sample.problem():
        return _none("paired-t", sample, level, problem)
    half = special.stdtrit(sample.n - 1, (1 + level) / 2) * sample.sd / np.sqrt(sample.n)
    return _interval("paired-t", sample, level, sample.mean - half, sample.mean + half, exact=True)


def median_ranks(n: int, level: float) -> int:
    """The largest k for which the k-th smallest and the k-th largest of n values hold their median at *level*; 0: none.

    They miss it with probability 2 P(B < k), B binomial (n, 1/2), whatever the continuous law of the values.
    """
    misses = 2 * special.bdtr(np.arange(n), n, 0.5)
    return int(np.count_nonzero(misses <= 1 - level + 1e-12))


def median_interval(deltas: ArrayLike, *, level: float = 0.95) -> Interval | None:
    """The median with the order statistics that hold it at *level* or above; None where the median is not finite.

    A value may be infinite: a run that has no end is on that side of all others. An end that is, is null.
    """
    values, level = np.sort(np.asarray(deltas, dtype=np.float64)), fraction("level", level)
    n = int(values.size)
    middle = values[[(n - 1) // 2, n // 2]] if n else np.full(2, np.nan)
    if not np.isfinite(middle).all():
        return None
    k = median_ranks(n, level)
    ends = [float(end) if np.isfinite(end) else None for end in (values[k - 1], values[n - k])] if k else [None, None]
    status: Status = "too-few-pairs" if not k else "unbounded" if None in ends else "ok"
    estimate = float(middle.mean())
    return Interval("order-statistics", level, estimate, ends[0], ends[1], n, exact=True, status=status)


Bounds = Callable[[FloatArray, _bootstrap.Resamples, float], tuple[FloatArray, FloatArray]]
BOOTSTRAPS: Final[Registry[Bounds]] = Registry("bootstrap interval")
BOOTSTRAPS.add("percentile", _bootstrap.percentile_bounds)
BOOTSTRAPS.add("bca", _bootstrap.bca_bounds)
BOOTSTRAPS.add("bootstrap-t", _bootstrap.studentized_bounds)


def bootstrap_interval(
    method: str,
    deltas: ArrayLike,
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    rng: np.random.Generator,
) -> Interval:
    """The bootstrap interval of that name; enumerated exactly (rng unused) up to n = 8."""
    bounds = BOOTSTRAPS[method]
    sample, level = canonical(deltas), fraction("level", level)
    resamples = count("resamples", resamples, minimum=100)
    if problem := sample.problem():
        return _none(method, sample, level, problem)
    drawn = _bootstrap.draw(sample.n, resamples, rng)
    low, high = (float(end[0]) for end in bounds(sample.values[None, :], drawn, level))
    if not (np.isfinite(low) and np.isfinite(high)):
        return _none(method, sample, level, "unbounded")
    return _interval(method, sample, level, low, high, exact=drawn.exact)


def all_intervals(
    deltas: ArrayLike, *, level: float = 0.95, resamples: int = RESAMPLES, rng: np.random.Generator
) -> dict[str, Interval]:
    """Every interval by its name: paired-t, percentile, bca, bootstrap-t; the bootstraps share their resamples."""
    seed = int(rng.integers(2**63))
    intervals = {"paired-t": paired_t_interval(deltas, level=level)}
    for method in BOOTSTRAPS:
        own = np.random.default_rng(seed)
        intervals[method] = bootstrap_interval(method, deltas, level=level, resamples=resamples, rng=own)
    return intervals


def _interval(method: str, sample: Canonical, level: float, low: float, high: float, *, exact: bool) -> Interval:
    ends = sample.interval(low, high)
    return Interval(method, level, sample.estimate, *ends, n=sample.n, exact=exact)


def _none(method: str, sample: Canonical, level: float, status: Status) -> Interval:
    return Interval(method, level, sample.estimate, None, None, sample.n, exact=True, status=status)


def difference_of_means(
    ours: ArrayLike,
    mean: float,
    *,
    n: int,
    sd: float | None = None,
    rounding: float = 0.0,
    level: float = 0.95,
) -> DifferenceOfMeans:
    """mean(ours) - *mean*, where *mean* is of *n* runs of standard deviation *sd* (None: not published).

    *rounding* is half a unit of the last published digit: the interval is that much wider on both sides, since the true
    published mean may lie anywhere within it.
    """
    values, mean, n = _common.sample("ours", ours), number("mean", mean), count("n", n)
    level, rounding = fraction("level", level), number("rounding", rounding)
    if rounding < 0:
        raise StatisticsError(f"rounding must be at least 0, got {rounding!r}")
    if sd is not None and number("sd", sd) < 0:
        raise StatisticsError(f"sd must be at least 0, got {sd!r}")
    if sd is not None and n < 2:
        raise StatisticsError(f"sd = {sd!r} of one run: a standard deviation needs two or more")
    method: Literal["welch", "prediction"] = "prediction" if sd is None else "welch"
    own, estimate, size = _common.standard_deviation(values), float(values.mean()) - mean, int(values.size)
    if own is None or size < MINIMUM_PAIRS:
        return DifferenceOfMeans(method, level, estimate, None, None, size, n, None, "too-few-pairs")
    if own == 0.0 and not sd:
        return DifferenceOfMeans(method, level, estimate, None, None, size, n, None, "degenerate")
    if sd is None:
        error, freedom = own * float(np.sqrt(1 / size + 1 / n)), float(size - 1)
    else:
        scale = max(own, sd)  # so that no square underflows
        a, b = (own / scale) ** 2 / size, (sd / scale) ** 2 / n
        error, freedom = scale * float(np.sqrt(a + b)), (a + b) ** 2 / (a**2 / (size - 1) + b**2 / (n - 1))
    half = float(special.stdtrit(freedom, (1 + level) / 2)) * error + rounding
    return DifferenceOfMeans(method, level, estimate, estimate - half, estimate + half, size, n, freedom)
