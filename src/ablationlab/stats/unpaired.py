"""The difference of two means of small, independent samples, of which one may be known by its summary alone.

A published table gives a mean, perhaps a standard deviation, and how many runs stand behind them; nothing pairs its runs
with ours. Two cases, for d = mean(ours) - published mean:

    both spreads known      d +- t_(nu) sqrt(s1²/n1 + s2²/n2),  nu = (s1²/n1 + s2²/n2)² / (s1⁴/(n1²(n1-1)) + s2⁴/(n2²(n2-1)))
                            Welch 1947, with Satterthwaite's degrees of freedom: no equal spreads are assumed
    ours alone known        d +- t_(n1-1) s1 sqrt(1/n1 + 1/n2): the prediction interval for the mean of n2 further runs like
                            ours, shifted to the difference; it assumes that the published runs vary as ours do

Zero lies within the interval exactly where the published mean lies within what our runs predict for it.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from ablationlab.core.errors import StatisticsError
from ablationlab.stats._common import MINIMUM_PAIRS, count, fraction, number, sample, standard_deviation
from ablationlab.stats.results import DifferenceOfMeans


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
    values, mean, n = sample("ours", ours), number("mean", mean), count("n", n)
    level, rounding = fraction("level", level), number("rounding", rounding)
    if rounding < 0:
        raise StatisticsError(f"rounding must be at least 0, got {rounding!r}")
    if sd is not None and number("sd", sd) < 0:
        raise StatisticsError(f"sd must be at least 0, got {sd!r}")
    if sd is not None and n < 2:
        raise StatisticsError(f"sd = {sd!r} of one run: a standard deviation needs two or more")
    method: Literal["welch", "prediction"] = "prediction" if sd is None else "welch"
    own, estimate, size = standard_deviation(values), float(values.mean()) - mean, int(values.size)
    if own is None or size < MINIMUM_PAIRS:
        note = f"fewer than {MINIMUM_PAIRS} runs of ours: {size} given, no inference is made"
        return DifferenceOfMeans(method, level, estimate, None, None, size, n, None, "too-few-pairs", note)
    if own == 0.0 and not sd:
        note = f"all {size} of our runs gave {float(values[0]):.6g}: their spread, hence any inference, is undefined"
        return DifferenceOfMeans(method, level, estimate, None, None, size, n, None, "degenerate", note)
    if sd is None:
        error, freedom = own * float(np.sqrt(1 / size + 1 / n)), float(size - 1)
    else:
        scale = max(own, sd)  # so that no square underflows
        a, b = (own / scale) ** 2 / size, (sd / scale) ** 2 / n
        error, freedom = scale * float(np.sqrt(a + b)), (a + b) ** 2 / (a**2 / (size - 1) + b**2 / (n - 1))
    half = float(special.stdtrit(freedom, (1 + level) / 2)) * error + rounding
    return DifferenceOfMeans(method, level, estimate, estimate - half, estimate + half, size, n, freedom)
