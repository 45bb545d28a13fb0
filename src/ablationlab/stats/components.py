"""Where the variance of a value comes from: components of a balanced crossed layout, with intervals.

    y = mean + a_i + b_j (+ c_k) + rest,   all random, one value per combination

With the mean squares MS_f of each source (f degrees of freedom) and MS_rest of all that is left, interactions included,

    variance of a source = (MS_f - MS_rest) / (N / levels),   variance of the rest = MS_rest

which for balanced layouts is REML where no estimate is negative; a negative one counts as 0. Intervals: each sum of squares
over its expectation is chi-squared, so (SS_f / X_f - SS_rest / X_rest) / (N / levels) with drawn X is a generalized pivotal
quantity (Weerahandi 1993); its quantiles, not below 0, are the bounds. They hold their level within about a point
(docs/validation.md), and with three levels a source they are wide: that is what three levels tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from ablationlab.core.errors import StatisticsError
from ablationlab.stats._common import finite, fraction, power_of_two
from ablationlab.stats.results import VarianceComponent

#: Draws of the pivotal quantities; the third digit of a bound moves.
DRAWS: Final = 20_000
REST: Final = "rest"


def variance_components(
    table: ArrayLike, sources: Sequence[str], *, level: float = 0.95, rng: np.random.Generator
) -> tuple[VarianceComponent, ...]:
    """One component per axis of *table*, named by *sources*, then the rest."""
    y = finite("table", table)
    level = fraction("level", level)
    if y.ndim != len(sources) or y.ndim < 2 or min(y.shape) < 2:
        raise StatisticsError(f"table must have an axis of two levels or more for each of {sources}, got {y.shape}")
    scale = power_of_two(y)  # so that no square underflows
    y = y / scale - (y / scale).mean()
    axes = range(y.ndim)
    freedoms = [size - 1 for size in y.shape]
    repeats = [y.size // size for size in y.shape]
    means = [y.mean(axis=tuple(other for other in axes if other != axis)) for axis in axes]
    squares = [repeat * float((mean**2).sum()) for repeat, mean in zip(repeats, means, strict=True)]
    fitted = sum(
        mean.reshape([-1 if other == axis else 1 for other in axes]) for axis, mean in zip(axes, means, strict=True)
    )
    rest_square, rest_freedom = float(((y - fitted) ** 2).sum()), y.size - 1 - sum(freedoms)
    rest = rest_square / rest_freedom
    variances = [
        max(square / freedom - rest, 0.0) / repeat
        for square, freedom, repeat in zip(squares, freedoms, repeats, strict=True)
    ]
    total = sum(variances) + rest
    rest_draws = rest_square / rng.chisquare(rest_freedom, DRAWS)
    draws = [
        (square / rng.chisquare(freedom, DRAWS) - rest_draws) / repeat
        for square, freedom, repeat in zip(squares, freedoms, repeats, strict=True)
    ]
    ends = ((1 - level) / 2, (1 + level) / 2)
    found = []
    for source, levels, variance, drawn in zip(
        (*sources, REST), (*y.shape, y.size), (*variances, rest), (*draws, rest_draws), strict=True
    ):
        low, high = (float(np.sqrt(max(bound, 0.0))) * scale for bound in np.quantile(drawn, ends))
        share = variance / total if total > 0 else None
        found.append(VarianceComponent(source, levels, float(np.sqrt(variance)) * scale, low, high, share))
    return tuple(found)
