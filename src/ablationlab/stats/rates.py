"""Learning-rate sensitivity and the choice of a rate, from the final losses of a sweep. Pure numpy.

Wortsman et al. 2024 (arXiv 2309.14322): with l(η) the final validation loss after training at rate η, l₀ the loss at
initialization and l* = min over η of l(η), the learning-rate sensitivity over a range of rates [a, b] is

    E over η in [a, b] of  min(l(η), l₀) - l*

A run that diverged counts l₀, and so does one that ended worse than it began: how much worse says nothing. Here η is
log-uniform over the sweep, from its lowest to its highest rate, and the clipped loss c(η) is taken as linear in log η between
neighbouring rates, so that unevenly spaced rates get the weight that they stand for:

    sensitivity = 1 / log(b / a) · Σ over neighbours (c(η_i) + c(η_(i+1))) / 2 · log(η_(i+1) / η_i)  -  min_i c(η_i)

It is 0 if and only if the rate does not matter, and never negative.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ablationlab.core.errors import StatisticsError


def counted_loss(final: float | None, initial: float) -> float:
    """min(final, initial); the initial loss where there is no final one, for the run diverged."""
    if not math.isfinite(initial):
        raise StatisticsError(f"the loss at initialization must be finite, got {initial!r}")
    return initial if final is None or not final < initial else final


def lr_sensitivity(rates: Sequence[float], counted: Sequence[float]) -> float:
    """The sensitivity from rates in any order and the clipped losses at them."""
    if len(rates) != len(counted) or len(set(rates)) < 2 or len(set(rates)) != len(rates):
        raise StatisticsError(f"a sensitivity needs a loss at each of two or more different rates, got {rates!r}")
    if not all(rate > 0 for rate in rates):
        raise StatisticsError(f"rates must be above 0, got {rates!r}")
    order = np.argsort(rates)
    x, c = np.log(np.asarray(rates, dtype=np.float64)[order]), np.asarray(counted, dtype=np.float64)[order]
    # Taken from the best before averaging: equal losses give exactly 0.
    excess = c - c.min()
    return float(((excess[1:] + excess[:-1]) / 2 * np.diff(x)).sum() / (x[-1] - x[0]))


T = TypeVar("T", bound=float | tuple[float, float])


def best_trial(counted: Mapping[T, Sequence[float]]) -> T:
    """That with the lowest mean clipped loss; on a tie the lower rate. *counted*: trial -> losses of the same seeds."""
    if not counted or len({len(losses) for losses in counted.values()}) != 1 or not all(counted.values()):
        raise StatisticsError("every rate needs the losses of the same seeds, at least one")
    return min(sorted(counted), key=lambda trial: math.fsum(counted[trial]))


@dataclass(frozen=True)
class BestRate:
    """The chosen rate, the mean loss it was chosen by, and whether it is the lowest or the highest of the sweep."""

    lr: float
    mean_loss: float
    edge: bool


def best_rate(counted: Mapping[float, Sequence[float]]) -> BestRate:
    """The rate with the lowest mean clipped loss; on a tie the lower rate. *counted*: rate -> losses of the same seeds."""
    lr = best_trial(counted)
    means = {rate: math.fsum(losses) / len(losses) for rate, losses in counted.items()}
    return BestRate(lr, means[lr], lr in (min(means), max(means)) and len(means) > 1)
