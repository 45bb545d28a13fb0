"""The centre of many curves at each of their points, with its interval: for pictures, not for decisions."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from ablationlab.stats._common import MINIMUM_PAIRS, FloatArray
from ablationlab.stats.intervals import median_interval


def centred(values_SP: ArrayLike, *, level: float, median: bool) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(centre, low, high) over seeds at each point: the mean with its t interval, or the median with order statistics.

    A mean needs every seed. A median leaves out seeds that are NaN, and takes infinite ones. NaN where there is none.
    """
    values = np.asarray(values_SP, dtype=np.float64)
    seeds, points = values.shape
    nothing = np.full(points, np.nan)
    if not median:
        mean = values.mean(axis=0) if seeds else nothing
        if seeds < MINIMUM_PAIRS:
            return mean, nothing, nothing
        half = special.stdtrit(seeds - 1, (1 + level) / 2) * values.std(axis=0, ddof=1) / np.sqrt(seeds)
        return mean, mean - half, mean + half
    made = nothing.copy(), nothing.copy(), nothing.copy()
    for point in range(points):
        there = values[:, point]
        found = median_interval(there[~np.isnan(there)], level=level)
        if found is not None:
            ends = (found.estimate, found.low, found.high)
            for row, end in zip(made, ends, strict=True):
                row[point] = np.nan if end is None else end
    return made
