"""One paired comparison, whole: summary, intervals, p-values, effect sizes, equivalence, caveats.

Two arms paired by seed: means, spread, correlation, and what the pairing bought.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ablationlab.core.errors import StatisticsError
from ablationlab.stats._common import (
    FloatArray,
    canonical,
    complement,
    correlation,
    count,
    fraction,
    pair,
    paired_deltas,
    standard_deviation,
)
from ablationlab.stats.caveats import comparison_caveats
from ablationlab.stats.effects import cohens_d_z, hedges_g_av, paired_tost
from ablationlab.stats.intervals import RESAMPLES, all_intervals
from ablationlab.stats.results import GeometricRatio, Interval, PairedComparison, PairedSample, Transform
from ablationlab.stats.significance import all_tests

_LARGEST_LOG = float(np.log(np.finfo(np.float64).max))


def compare(
    variant: ArrayLike,
    reference: ArrayLike,
    *,
    rng: np.random.Generator,
    level: float = 0.95,
    alpha: float | None = None,
    resamples: int = RESAMPLES,
    smallest_effect: float | tuple[float, float] | None = None,
    transform: Transform = "identity",
    planned_pairs: int | None = None,
) -> PairedComparison:
    """Compare two arms whose i-th values share a seed.

    alpha defaults to 1 - level and serves TOST and the caveats. With transform "log" (perplexity) everything
    is computed on natural logs; smallest_effect is then a difference of logs (0.01 is about 1 %).
    planned_pairs is how many pairs the plan promised, so that fewer are said aloud.
    """
    a, b = pair("variant", variant, "reference", reference)
    level = fraction("level", level)
    alpha = fraction("alpha", complement(level) if alpha is None else alpha)
    resamples = count("resamples", resamples, minimum=100)
    original = summarize(a, b)
    if transform == "log":
        a, b = logarithms("variant", a), logarithms("reference", b)
    elif transform != "identity":
        raise StatisticsError(f"transform must be 'identity' or 'log', got {transform!r}")
    sample = original if transform == "identity" else summarize(a, b)
    deltas = paired_deltas(a, b)
    seed = int(rng.integers(2**63))  # one set of resamples for the intervals and the tests
    intervals = all_intervals(deltas, level=level, resamples=resamples, rng=np.random.default_rng(seed))
    tests = all_tests(deltas, resamples=resamples, rng=np.random.default_rng(seed))
    tost = None
    if smallest_effect is not None:
        tost = paired_tost(deltas, smallest_effect=smallest_effect, alpha=alpha)
    ratios = {}
    if transform == "log":
        ratios = {name: as_ratio(i.estimate, i.low, i.high) for name, i in intervals.items() if _fits(i)}
    return PairedComparison(
        n=sample.n,
        transform=transform,
        level=level,
        alpha=alpha,
        sample=sample,
        original=original,
        intervals=intervals,
        tests=tests,
        effects={"d_z": cohens_d_z(deltas, level=level), "g_av": hedges_g_av(a, b, level=level)},
        equivalence=tost,
        ratios=ratios,
        caveats=comparison_caveats(sample, intervals, tests, alpha=alpha, planned_pairs=planned_pairs),
    )


def _fits(interval: Interval) -> bool:
    """Whether it can be said as a ratio: between arms that blew up, the exponential may be beyond any number."""
    return all(end is None or end < _LARGEST_LOG for end in (interval.estimate, interval.low, interval.high))


def summarize(variant: ArrayLike, reference: ArrayLike) -> PairedSample:
    """Describe the pairs (variant[i], reference[i]); pair i belongs to seed i."""
    a, b = pair("variant", variant, "reference", reference)
    deltas = paired_deltas(a, b)
    variant_sd, reference_sd = standard_deviation(a), standard_deviation(b)
    delta_sd = standard_deviation(deltas)
    return PairedSample(
        n=a.size,
        variant_mean=_mean(a),
        reference_mean=_mean(b),
        variant_sd=variant_sd,
        reference_sd=reference_sd,
        deltas=tuple(deltas.tolist()),
        delta=canonical(deltas).estimate,
        delta_sd=delta_sd,
        correlation=correlation(a, b) if variant_sd and reference_sd else None,
        variance_reduction=_variance_reduction(delta_sd, variant_sd, reference_sd),
    )


def logarithms(name: str, values: ArrayLike) -> FloatArray:
    """Natural logarithms; every value must be above zero."""
    array = np.asarray(values, dtype=np.float64)
    if (array <= 0).any():
        position = int(np.argmax(array <= 0))
        raise StatisticsError(f"{name}[{position}] is {array[position]}: a logarithm needs values above 0")
    return np.asarray(np.log(array), dtype=np.float64)


def as_ratio(log_delta: float, low: float | None = None, high: float | None = None) -> GeometricRatio:
    """A difference of logs, and its interval, as a ratio."""
    with np.errstate(over="raise"):
        try:
            ends = [None if end is None else float(np.exp(end)) for end in (low, high)]
            return GeometricRatio(ratio=float(np.exp(log_delta)), low=ends[0], high=ends[1])
        except FloatingPointError:
            raise StatisticsError(f"exp overflows for log_delta={log_delta!r}, low={low!r}, high={high!r}") from None


def _mean(values: FloatArray) -> float:
    # Sorted, so that the order of the pairs cannot change the last bit.
    return float(np.sort(values).mean())


def _variance_reduction(delta: float | None, variant: float | None, reference: float | None) -> float | None:
    if delta is None or variant is None or reference is None or (variant == 0 and reference == 0):
        return None
    scale = max(variant, reference)
    return 1.0 - (delta / scale) ** 2 / ((variant / scale) ** 2 + (reference / scale) ** 2)
