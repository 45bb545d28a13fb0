"""Confidence intervals for the mean delta of a few pairs.

Paired t is the default: it is the one that covers what it says at five seeds. The bootstrap intervals
are reported beside it, and :mod:`ablationlab.stats.caveats` says by how much each one undercovers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from ablationlab.core.registry import Registry
from ablationlab.stats import _bootstrap
from ablationlab.stats._common import Canonical, FloatArray, canonical, count, fraction
from ablationlab.stats.results import Interval, Status

RESAMPLES: Final = 10_000


def paired_t_interval(deltas: ArrayLike, *, level: float = 0.95) -> Interval:
    """mean +- t_(n-1, 1-alpha/2) s / sqrt(n); exact for normal deltas."""
    sample, level = canonical(deltas), fraction("level", level)
    if problem := sample.problem():
        return _none("paired-t", sample, level, *problem)
    half = special.stdtrit(sample.n - 1, (1 + level) / 2) * sample.sd / np.sqrt(sample.n)
    return _interval("paired-t", sample, level, sample.mean - half, sample.mean + half, exact=True)


def percentile_interval(
    deltas: ArrayLike, *, level: float = 0.95, resamples: int = RESAMPLES, rng: np.random.Generator
) -> Interval:
    """Quantiles of the bootstrap distribution of the mean; too short at small n."""
    return bootstrap_interval("percentile", deltas, level=level, resamples=resamples, rng=rng)


def bca_interval(
    deltas: ArrayLike, *, level: float = 0.95, resamples: int = RESAMPLES, rng: np.random.Generator
) -> Interval:
    """Bias-corrected and accelerated bootstrap (Efron 1987); too short at small n as well."""
    return bootstrap_interval("bca", deltas, level=level, resamples=resamples, rng=rng)


def bootstrap_t_interval(
    deltas: ArrayLike, *, level: float = 0.95, resamples: int = RESAMPLES, rng: np.random.Generator
) -> Interval:
    """Studentized bootstrap: covers well, often very wide, unbounded at n = 3."""
    return bootstrap_interval("bootstrap-t", deltas, level=level, resamples=resamples, rng=rng)


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
        return _none(method, sample, level, *problem)
    drawn = _bootstrap.draw(sample.n, resamples, rng)
    low, high = (float(end[0]) for end in bounds(sample.values[None, :], drawn, level))
    if not (np.isfinite(low) and np.isfinite(high)):
        note = "too many resamples hold one value only, so the studentized bootstrap has no finite bound"
        return _none(method, sample, level, "unbounded", note)
    return _interval(method, sample, level, low, high, exact=drawn.exact)


def all_intervals(
    deltas: ArrayLike, *, level: float = 0.95, resamples: int = RESAMPLES, rng: np.random.Generator
) -> dict[str, Interval]:
    """Every interval by its name: paired-t, percentile, bca, bootstrap-t."""
    intervals = {"paired-t": paired_t_interval(deltas, level=level)}
    for method in BOOTSTRAPS:
        intervals[method] = bootstrap_interval(method, deltas, level=level, resamples=resamples, rng=rng)
    return intervals


def _interval(method: str, sample: Canonical, level: float, low: float, high: float, *, exact: bool) -> Interval:
    ends = sample.interval(low, high)
    return Interval(method, level, sample.estimate, *ends, n=sample.n, exact=exact)


def _none(method: str, sample: Canonical, level: float, status: Status, note: str) -> Interval:
    return Interval(method, level, sample.estimate, None, None, sample.n, exact=True, status=status, note=note)
