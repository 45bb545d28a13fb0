"""The loss at the best learning rate, from a grid: a parabola in log rate through the best rate and its two neighbours.

Comparing arms at their best *grid* rates compares how near each optimum happens to lie to the grid: arms with equal
curves that are shifted by a factor of two are called different in 6 to 25 % of studies, the more often the coarser the
grid and the more the seeds. Here each seed's losses at the three rates about the lowest mean give a parabola (exactly),
and its value at the optimum of the mean parabola is that seed's loss at the best rate. The values of two arms are then
compared pair by pair.

It is not used, and the status says so, where the best rate is at the edge of the grid, the neighbours are more than a
factor of two away (the true curve is no parabola over such a range), or the three means are not convex.
docs/validation.md has the simulated levels of this, of the grid, and of a bootstrap that repeats the choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from ablationlab.core.errors import StatisticsError
from ablationlab.stats.results import FittedMinimum

#: Neighbouring rates may lie this factor apart.
WIDEST_STEP: Final = 2.0


def fitted_minimum(losses: Mapping[float, Sequence[float]]) -> FittedMinimum:
    """The loss of each seed at the fitted best rate; *losses*: rate -> losses of the same seeds in the same order."""
    rates = sorted(losses)
    if not rates or len({len(losses[rate]) for rate in rates}) != 1 or not len(losses[rates[0]]):
        raise StatisticsError("every rate needs the losses of the same seeds, at least one")
    means = [float(np.mean(losses[rate])) for rate in rates]
    at = int(np.argmin(means))
    if at in (0, len(rates) - 1):
        return FittedMinimum("grid-edge", None, (), ())
    window = tuple(rates[at - 1 : at + 2])
    if max(window[1] / window[0], window[2] / window[1]) > WIDEST_STEP * (1 + 1e-9):
        return FittedMinimum("coarse-grid", None, window, ())
    x = np.log(np.array(window) / window[1])
    y_3S = np.array([losses[rate] for rate in window], dtype=np.float64)
    coefficients = np.linalg.solve(np.stack([np.ones(3), x, x**2], axis=1), y_3S)
    _, slope, curvature = coefficients.mean(axis=1)
    # The middle mean is the lowest, so a convex parabola has its minimum within the window.
    if not curvature > 1e-12 * np.abs(y_3S).max():
        return FittedMinimum("not-convex", None, window, ())
    best = -slope / (2 * curvature)
    values = np.array([1.0, best, best**2]) @ coefficients
    return FittedMinimum("ok", float(window[1] * np.exp(best)), window, tuple(values.tolist()))
