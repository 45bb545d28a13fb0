"""One paired comparison, whole: summary, intervals, p-values, effect sizes, equivalence, caveats."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ablationlab.core.errors import StatisticsError
from ablationlab.stats._common import count, fraction, pair, paired_deltas
from ablationlab.stats.caveats import comparison_caveats
from ablationlab.stats.effects import cohens_d_z, hedges_g_av
from ablationlab.stats.equivalence import paired_tost
from ablationlab.stats.intervals import RESAMPLES, all_intervals
from ablationlab.stats.paired import as_ratio, logarithms, summarize
from ablationlab.stats.results import Interval, PairedComparison, Transform
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
    alpha = fraction("alpha", round(1 - level, 12) if alpha is None else alpha)
    resamples = count("resamples", resamples, minimum=100)
    original = summarize(a, b)
    if transform == "log":
        a, b = logarithms("variant", a), logarithms("reference", b)
    elif transform != "identity":
        raise StatisticsError(f"transform must be 'identity' or 'log', got {transform!r}")
    sample = original if transform == "identity" else summarize(a, b)
    deltas = paired_deltas(a, b)
    intervals = all_intervals(deltas, level=level, resamples=resamples, rng=rng)
    tests = all_tests(deltas, resamples=resamples, rng=rng)
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
