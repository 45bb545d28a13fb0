"""Loss curves read at other places than their ends: at an equal cost, and where they reach a loss. Never beyond their ends.

Two curves are read at an equal cost at the end of the cheaper one. To compare how fast they fall, both are read where they
first reach the higher of their two final losses: each has one, so no seed drops out, and swapping the arms inverts the ratio.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike

from ablationlab.stats._common import FloatArray
from ablationlab.stats.results import ThinnedCurve

#: Half the window of `smoothed`, as a share of the curve.
HALF_WINDOW: Final = 0.02
#: Points of a curve that a result keeps: four in the window of `smoothed`.
POINTS: Final = 100


@dataclass(frozen=True)
class LossCurve:
    """Losses at rising costs (tokens, FLOPs or seconds); *whole* is the cost of the whole run."""

    costs: FloatArray
    losses: FloatArray
    whole: float

    @classmethod
    def of(cls, costs: ArrayLike, losses: ArrayLike, whole: float) -> LossCurve:
        x, y = np.asarray(costs, dtype=np.float64), np.asarray(losses, dtype=np.float64)
        finite = np.isfinite(x) & np.isfinite(y)
        return cls(x[finite], y[finite], whole)

    def at(self, cost: float) -> float | None:
        """The loss at a cost, between the two nearest points; None where the curve does not go."""
        if not self.costs.size or not self.costs[0] <= cost <= self.costs[-1]:
            return None
        return float(np.interp(cost, self.costs, self.losses))

    def reaches(self, loss: float) -> float | None:
        """The cost at which it is first at or below a loss; None if it never is, or was before its first point."""
        below = np.flatnonzero(self.losses <= loss)
        if not below.size or below[0] == 0:
            return None
        after = int(below[0])
        (x0, x1), (y0, y1) = self.costs[after - 1 : after + 1], self.losses[after - 1 : after + 1]
        return float(x0 + (x1 - x0) * (y0 - loss) / (y0 - y1))


def smoothed(losses: ArrayLike) -> FloatArray:
    """The mean of each loss and its neighbours, 2 % of the curve on either side, as many as there are at the ends."""
    values = np.asarray(losses, dtype=np.float64)
    half = int(values.size * HALF_WINDOW)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    places = np.arange(values.size)
    low, high = np.maximum(places - half, 0), np.minimum(places + half + 1, values.size)
    means: FloatArray = (sums[high] - sums[low]) / (high - low)
    return means


def thinned(curves: Mapping[str, FloatArray]) -> ThinnedCurve | None:
    """What a result keeps of its loss curve, first and last point included; None without two finite points."""
    names: tuple[Literal["curve_loss", "loss"], ...] = ("curve_loss", "loss")
    for name in names:
        values = curves.get(name, np.empty(0))
        finite = np.flatnonzero(np.isfinite(values))
        if finite.size >= 2:
            values = smoothed(values[finite]) if name == "loss" else values[finite]
            kept = np.unique(np.linspace(0, finite.size - 1, min(POINTS, finite.size)).round().astype(int))
            # A float32 has seven digits; more would only fill the record.
            losses = tuple(float(f"{loss:.7g}") for loss in values[kept])
            return ThinnedCurve(name, tuple(curves["step"][finite[kept]].astype(int).tolist()), losses)
    return None


def binned(steps: ArrayLike, losses: ArrayLike, length: float, bins: int) -> FloatArray:
    """Mean losses within so many equal parts of a run of *length* steps; NaN where a part has no step or a loss is NaN.

    Of a curve that ends early, the part in which it ends is NaN, too.
    """
    x, y = np.asarray(steps, dtype=np.float64), np.asarray(losses, dtype=np.float64)
    if not x.size:
        return np.full(bins, np.nan)
    place, after = (np.clip(np.ceil(at * bins / length).astype(int) - 1, 0, bins) for at in (x, x[-1] + 1))
    place = np.minimum(place, bins - 1)
    sums, counts = np.bincount(place, weights=y, minlength=bins), np.bincount(place, minlength=bins)
    means: FloatArray = np.divide(sums, counts, out=np.full(bins, np.nan), where=counts > 0)
    means[int(after) :] = np.nan
    return means


@dataclass(frozen=True)
class EqualCost:
    """variant - reference at one cost, and which share of each run that is."""

    delta: float
    variant_share: float
    reference_share: float


def at_equal_cost(variant: LossCurve, reference: LossCurve) -> EqualCost | None:
    """At the largest cost that both curves have; None if one starts after the other has ended."""
    if not variant.costs.size or not reference.costs.size:
        return None
    cost = float(min(variant.costs[-1], reference.costs[-1]))
    ours, theirs = variant.at(cost), reference.at(cost)
    if ours is None or theirs is None:
        return None
    return EqualCost(ours - theirs, cost / variant.whole, cost / reference.whole)


@dataclass(frozen=True)
class EqualLoss:
    """Cost of the variant / cost of the reference, to the higher of their final losses.

    *reached*: the variant reaches the reference's final loss.
    """

    ratio: float
    reached: bool


def at_equal_loss(variant: LossCurve, reference: LossCurve) -> EqualLoss | None:
    """None where a curve is there before its first point."""
    if not variant.costs.size or not reference.costs.size:
        return None
    target = float(max(variant.losses[-1], reference.losses[-1]))
    ours, theirs = variant.reaches(target), reference.reaches(target)
    if ours is None or theirs is None:
        return None
    return EqualLoss(ours / theirs, bool(variant.losses.min() <= reference.losses[-1]))
