"""The loss at the best learning rate, from a grid: a cubic in log rate through the four rates about the lowest mean losses.

Comparing arms at their best *grid* rates compares how near each optimum happens to lie to the grid: arms with equal
curves that are shifted by a factor of two are called different in 6 to 25 % of studies, the more often the coarser the
grid and the more the seeds. Here each seed's losses at four rates, two on each side of the optimum, give a cubic
(exactly), and its value at the lowest point of the mean cubic is that seed's loss at the best rate. The values of two arms
are then compared pair by pair.

No curve through a few points is the true one: above the best rate losses often rise as at a cliff, and then every fit is off
by more than the noise. What is known of a convex curve is that it lies above the lines through neighbouring points. So its
minimum lies between the lowest mean and the lowest place above these lines, and the *doubt* is how far the fit is from the
farther of the two. A difference of two arms counts only beyond the doubts of both (`beyond_doubt`, `widened`).
Where the grid ends after one rate on one side, a parabola through three rates takes the cubic's place.

**Two stages.** A second stage has closer rates about the best of the first, on seeds of its own; each arm is then judged
at its best rate of both, on other seeds again. Both stages make one curve: a loss is its seed's level plus what its rate
adds, and the stages share the best rate of the first. The doubt (`best_of_stages`) is how far the lowest mean lies above
the lowest that a convex curve can be, and two standard errors of a mean, since no judged run shares the noise of the means.
An arm can only be *worse* at its rate than at its best. So a variant may be better than it looks by its own doubt, and worse
by the reference's: *better* counts beyond the reference's doubt alone, *worse* beyond the variant's.

There is no fit, and the status says so, where the best rate is at the edge of the grid, the grid is too narrow, or
neighbours are more than a factor of two apart. docs/validation.md has the simulated levels of this, of the grid, of
parabolas alone, and of a bootstrap that repeats the choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, TypeVar

import numpy as np
from numpy.polynomial.polynomial import polyval

from ablationlab.core.errors import StatisticsError
from ablationlab.stats._common import FloatArray
from ablationlab.stats.convex import least_of_two
from ablationlab.stats.rates import best_trial
from ablationlab.stats.results import Doubt, FittedMinimum, Interval, PValue

#: Neighbouring rates may lie this factor apart.
WIDEST_STEP: Final = 2.0
#: Rates whose logarithms differ by no more are one.
SAME_RATE: Final = 0.02
#: The highest rate is at least this many times the lowest. On a grid of rates that are almost one, noise puts the lowest
#: mean inside, wherever the optimum is.
LEAST_SPAN: Final = 2.0
#: Standard errors of a mean in the doubt of a pair.
_ERRORS_OF_PAIRS: Final = 3.0
#: Pairs that are no farther apart, in steps of the second stage, bound nothing.
_NEAREST: Final = 0.8
T = TypeVar("T")
#: Means this much closer than their size are equal.
_ROUNDING: Final = 1e-12


def fitted_minimum(losses: Mapping[float, Sequence[float]]) -> FittedMinimum:
    """The loss of each seed at the fitted best rate; *losses*: rate -> losses of the same seeds in the same order."""
    rates = sorted(losses)
    if not rates or len({len(losses[rate]) for rate in rates}) != 1 or not len(losses[rates[0]]):
        raise StatisticsError("every rate needs the losses of the same seeds, at least one")
    means = [float(np.mean(losses[rate])) for rate in rates]
    at = int(np.argmin(means))
    if at in (0, len(rates) - 1) or rates[-1] / rates[0] < LEAST_SPAN * (1 - 1e-9):
        return FittedMinimum("grid-edge", None, (), ())
    left = at if means[at + 1] < means[at - 1] else at - 1  # the optimum lies between this rate and the next
    first, last = max(left - 1, 0), min(left + 3, len(rates))
    window = tuple(rates[first:last])
    if max(high / low for low, high in pairwise(window)) > WIDEST_STEP * (1 + 1e-9):
        return FittedMinimum("coarse-grid", None, window, ())
    x = np.log(np.array(window) / rates[left])
    y_WS = np.array([losses[rate] for rate in window], dtype=np.float64)
    best = _lowest(_coefficients(x, y_WS).mean(axis=1), float(x[left - first + 1]))
    values = _through(x, y_WS, best)
    low = _least(np.log(np.array(rates)), np.array(means), at)
    # The polynomial may leave the range of convex curves; all seeds are moved into it together.
    values += min(max(values.mean(), low), means[at]) - values.mean()
    doubt = max(float(values.mean()) - low, means[at] - float(values.mean()))
    return FittedMinimum("ok", float(rates[left] * np.exp(best)), window, tuple(values.tolist()), doubt)


def best_of_stages(first: Mapping[float, Sequence[float]], second: Mapping[float, Sequence[float]]) -> FittedMinimum:
    """The rate of both stages at which an arm is to be judged, and how far it may be from its best there.

    Each stage: rate -> losses of its own seeds in the same order; they share a rate. Rates within 2 % are one, for a line
    through two such means could have any slope.
    """
    second = {_as_in(first, rate): losses for rate, losses in second.items()}
    shared, stages = sorted(first.keys() & second.keys()), (first, second)
    if not shared or any(len({len(losses) for losses in stage.values()}) != 1 for stage in stages):
        raise StatisticsError("both stages need a common rate, and every rate the losses of the same seeds")
    apart = float(np.mean([np.mean(second[rate]) - np.mean(first[rate]) for rate in shared]))
    levelled = (first, {rate: np.asarray(losses) - apart for rate, losses in second.items()})
    rates = sorted(first.keys() | second.keys())
    y = np.array([np.mean(np.concatenate([stage[rate] for stage in levelled if rate in stage])) for rate in rates])
    at = int(np.argmin(y))
    if at in (0, len(rates) - 1) or rates[-1] / rates[0] < LEAST_SPAN * (1 - 1e-9):
        return FittedMinimum("grid-edge", rates[at], (), ())
    window = tuple(rates[max(at - 2, 0) : at + 3])
    if max(high / low for low, high in pairwise(rates[at - 1 : at + 2])) > WIDEST_STEP * (1 + 1e-9):
        return FittedMinimum("coarse-grid", rates[at], window, ())
    doubt = float(y[at]) - _least(np.log(np.array(rates)), y, at) + 2 * _error(stages, window)
    return FittedMinimum("ok", rates[at], window, (), doubt)


#: A rate and the value of a second setting.
Pair = tuple[float, float]


def best_pair_of_stages(
    first: Mapping[Pair, Sequence[float]], second: Mapping[Pair, Sequence[float]], factors: Pair
) -> FittedMinimum:
    """`best_of_stages` of a rate and a second setting: pair -> losses. *factors*: from one value of the second stage to the
    next.

    Losses are convex in the logarithms of both together, so the lowest that they can be is that of `least_of_two`. It rests
    on more means than that of a line, and the doubt has three standard errors.
    """
    shared, stages = sorted(first.keys() & second.keys()), (first, second)
    if not shared or any(len({len(losses) for losses in stage.values()}) != 1 for stage in stages):
        raise StatisticsError("both stages need a common point, and every point the losses of the same seeds")
    apart = float(np.mean([np.mean(second[pair]) - np.mean(first[pair]) for pair in shared]))
    levelled = (first, {pair: np.asarray(losses) - apart for pair, losses in second.items()})
    pairs = sorted(first.keys() | second.keys())
    y = np.array([np.mean(np.concatenate([stage[pair] for stage in levelled if pair in stage])) for pair in pairs])
    at, error = int(np.argmin(y)), _error(stages, pairs)
    points = np.log(np.array(pairs)) / np.log(np.array(factors))
    least = least_of_two(points, y, at, slack=_ERRORS_OF_PAIRS * error, nearest=_NEAREST)
    lr, other = pairs[at]
    if least is None:
        return FittedMinimum("grid-edge", lr, (), (), second=other)
    doubt = float(y[at]) - least + _ERRORS_OF_PAIRS * error
    return FittedMinimum("ok", lr, (), (), doubt, second=other)


def _as_in(rates: Iterable[float], rate: float) -> float:
    nearest = min(rates, key=lambda known: abs(math.log(known / rate)))
    return nearest if abs(math.log(nearest / rate)) <= SAME_RATE else rate


def _error(stages: Sequence[Mapping[T, Sequence[float]]], window: Sequence[T]) -> float:
    """The standard error of a stage's mean at one rate beside those of its other rates: a seed's own level is in all."""
    squares, freedom, fewest = 0.0, 0, math.inf
    for stage in stages:
        losses = np.array([stage[rate] for rate in window if rate in stage])
        if not losses.size:
            continue
        left = losses - losses.mean(axis=0) - losses.mean(axis=1, keepdims=True) + losses.mean()
        squares += float((left**2).sum())
        freedom += (losses.shape[0] - 1) * (losses.shape[1] - 1)
        fewest = min(fewest, losses.shape[1])
    return math.sqrt(squares / freedom / fewest) if freedom else 0.0


def expected_doubt(
    rates: Sequence[float],
    seeds: int,
    cost: float,
    finer: tuple[Callable[[float], Sequence[float]], int] | None = None,
    draws: int = 100,
) -> float:
    """The median doubt of one side of a difference before anything is trained, in SDs of what is left of a run's loss when
    its seed's level is taken away; infinite where most arms have no fit.

    Losses are parabolas in log rate that lie anywhere about the middle of the grid; a factor of two from the best rate costs
    *cost*. *finer*: the second stage's rates about a centre, and its seeds. Simulated, with fixed draws.
    """
    rng = np.random.default_rng(0)
    grid = sorted(rates)
    middle = len(grid) // 2
    step = grid[middle] / grid[middle - 1]

    def stage(at: Sequence[float], best: float, n: int) -> dict[float, list[float]]:
        return {rate: (cost * math.log2(rate / best) ** 2 + rng.normal(size=n)).tolist() for rate in at}

    doubts = []
    for _ in range(draws):
        fits = []
        for _ in range(2 if finer is None else 1):
            best = grid[middle] * step ** rng.uniform(-0.5, 0.5)
            first = stage(grid, best, seeds)
            if finer is None:
                fits.append(fitted_minimum(first))
            else:
                about, more = finer
                means = {rate: float(np.mean(losses)) for rate, losses in first.items()}
                centre = min(means, key=means.__getitem__)
                fits.append(best_of_stages(first, stage(about(centre), best, more)))
        known = all(fit.status == "ok" for fit in fits)
        doubts.append(sum(fit.doubt for fit in fits) if known else math.inf)
    return float(np.median(doubts))


def expected_doubt_of_pairs(
    pairs: Sequence[Pair],
    seeds: int,
    cost: float,
    finer: tuple[Callable[[Pair], Sequence[Pair]], int],
    factors: Pair,
    draws: int = 30,
) -> float:
    """`expected_doubt` of a rate and a second setting; four steps of the second stage from the best cost *cost* in each."""
    rng, (about, more) = np.random.default_rng(0), finer
    step = 4 * np.log(np.array(factors))
    middle = np.log(np.array(pairs)).min(axis=0) / 2 + np.log(np.array(pairs)).max(axis=0) / 2

    def stage(at: Sequence[Pair], best: FloatArray, n: int) -> dict[Pair, list[float]]:
        away = ((np.log(np.array(at)) - best) / step) ** 2
        return dict(zip(at, (cost * away.sum(axis=1)[:, None] + rng.normal(size=(len(at), n))).tolist(), strict=True))

    doubts = []
    for _ in range(draws):
        best = middle + step * rng.uniform(-0.5, 0.5, 2)
        first = stage(pairs, best, seeds)
        fit = best_pair_of_stages(first, stage(about(best_trial(first)), best, more), factors)
        doubts.append(fit.doubt if fit.status == "ok" else math.inf)
    return float(np.median(doubts))


def beyond_doubt(deltas: Sequence[float], doubt: Doubt) -> list[float]:
    """The deltas, less the part of their mean that *doubt* may explain: what is left is to be tested."""
    mean = math.fsum(deltas) / len(deltas) if deltas else 0.0
    return [delta - min(max(mean, -doubt.above), doubt.below) for delta in deltas]


def sure_p(test: PValue, deltas: Sequence[float], doubt: Doubt) -> PValue:
    """The test of what is `beyond_doubt`: nothing is shown where the mean lies within the doubt, p is 1 but for rounding."""
    within = test.p is not None and -doubt.above * len(deltas) <= math.fsum(deltas) <= doubt.below * len(deltas)
    return replace(test, p=1.0) if within else test


def widened(interval: Interval, doubt: Doubt, estimate: float | None = None) -> Interval:
    """The interval about *estimate*, or about its own, with *doubt* on each side."""
    if not doubt:
        return interval
    moved = 0.0 if estimate is None else estimate - interval.estimate
    low, high = interval.low, interval.high
    return replace(
        interval,
        estimate=interval.estimate + moved,
        low=None if low is None else low + moved - doubt.below,
        high=None if high is None else high + moved + doubt.above,
    )


def _coefficients(x: FloatArray, y_WS: FloatArray) -> FloatArray:
    """Of the polynomials through all points, the constant first."""
    return np.asarray(np.linalg.solve(np.vander(x, increasing=True), y_WS))


def _through(x: FloatArray, y_WS: FloatArray, at: float) -> FloatArray:
    """Each seed's polynomial through all points, *at* one place."""
    return np.asarray(polyval(at, _coefficients(x, y_WS)))


def _lowest(curve: FloatArray, end: float) -> float:
    """Where the polynomial with these coefficients, a parabola or a cubic, is lowest between 0 and *end*."""
    _, slope, bend, twist = [*curve.tolist(), 0.0][:4]
    inner = bend**2 - 3 * slope * twist
    below = bend + math.sqrt(inner) if inner >= 0 else 0.0
    turn = (
        -slope / below if below > 0 else 0.0
    )  # the root of slope + 2 bend x + 3 twist x^2 at which the curve is convex
    return min((0.0, min(max(turn, 0.0), end), end), key=lambda place: float(polyval(place, curve)))


def _least(x: FloatArray, means: FloatArray, at: int) -> float:
    """The lowest that a convex curve through the means can be beside the lowest one."""

    def line(i: int, j: int, place: float) -> float:
        return float(means[i] + (means[j] - means[i]) * (place - x[i]) / (x[j] - x[i]))

    least = float(means[at])
    for side in (-1, 1):
        end, beyond = at + side, at + 2 * side
        inner = (at - side, at)  # from the other side, over the lowest mean
        low = line(*inner, float(x[end]))
        # A line from beyond that passes above the lowest mean says that the curve is not convex there, and bounds nothing.
        if 0 <= beyond < len(x) and line(beyond, end, float(x[at])) <= means[at] + _ROUNDING * abs(means[at]):
            slopes = [(means[j] - means[i]) / (x[j] - x[i]) for i, j in (inner, (beyond, end))]
            meet = (means[at] - means[end] - slopes[0] * x[at] + slopes[1] * x[end]) / (slopes[1] - slopes[0])
            low = line(*inner, float(meet))
        least = min(least, low)
    return least
