"""An effect against scale: weighted regression of a few studies' effects on the logarithm of their size.

    y_k = a + b log(size_k / reference) + u_k + e_k,   Var(e_k) = se_k^2,  Var(u_k) = tau^2

e is what the seeds of study k leave open, u what study k has of its own beyond the trend. tau^2 is DerSimonian and
Laird's moment estimate for regressions; weights are 1 / (se_k^2 + tau^2), and the errors of a and b are scaled by the
weighted residual variance where that exceeds 1 (Hartung and Knapp), with t quantiles of K - 2 degrees of freedom. So
three studies give an interval with one degree of freedom, which is as wide as three studies deserve.

Where effects may be off by their *doubts* (fitted best rates), slope and prediction, weighted sums of them, may be off by
the sum of |weight| x doubt: intervals are that much wider, p tests what is left, and the sign holds with the probability of
its worst case.

A prediction at another size adds tau^2. It assumes that the effect stays linear in log size beyond the studies; the
probability that its sign is the one seen at the largest size is that of the t distribution about the prediction (a flat
prior on a and b).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from ablationlab.core.errors import StatisticsError
from ablationlab.stats._common import FloatArray, fraction, positive, sample
from ablationlab.stats.results import Trend, TrendPrediction

FEWEST: int = 3


def trend(
    sizes: ArrayLike,
    effects: ArrayLike,
    errors: ArrayLike,
    *,
    doubts: ArrayLike | None = None,
    at: float | None = None,
    level: float = 0.95,
) -> Trend:
    """Slope per factor of ten in size, its interval and p; with *at*, the effect predicted at that size.

    *doubts*: how far each effect may be off, one way or the other.
    """
    x, y, se = sample("sizes", sizes), sample("effects", effects), sample("errors", errors)
    off = np.zeros_like(y) if doubts is None else sample("doubts", doubts)
    level = fraction("level", level)
    if not x.size == y.size == se.size == off.size:
        counts = f"{x.size}, {y.size}, {se.size} and {off.size}"
        raise StatisticsError(f"sizes, effects, errors and doubts must go together, got {counts}")
    if (x <= 0).any() or (se <= 0).any() or (off < 0).any():
        raise StatisticsError("sizes and errors must be above 0, doubts at least 0")
    if np.unique(x).size < FEWEST:
        raise StatisticsError(f"a trend needs {FEWEST} different sizes or more, got {np.unique(x).size}")
    freedom = x.size - 2
    # Centred and scaled, so that intercept and slope are well conditioned.
    centre = float(np.log10(x).mean())
    design = np.stack([np.ones_like(x), np.log10(x) - centre], axis=1)
    scale = float(np.abs(se).max())
    tau2 = _between(design, y / scale, (se / scale) ** 2) * scale**2
    variance = se**2 + tau2
    coefficients, covariance = _fit(design, y, variance)
    residuals = y - design @ coefficients
    spread = float((residuals**2 / variance).sum()) / freedom
    covariance = covariance * max(spread, 1.0)
    t = float(special.stdtrit(freedom, (1 + level) / 2))
    error = float(np.sqrt(covariance[1, 1]))
    slope = float(coefficients[1])
    weights = _weights(design, variance)
    doubt = float(np.abs(weights[1]) @ off)
    prediction = None
    if at is not None:
        row = np.array([1.0, np.log10(positive("at", at)) - centre])
        hidden = float(np.abs(row @ weights) @ off)
        estimate = float(row @ coefficients)
        spread_there = float(np.sqrt(row @ covariance @ row + tau2))
        sign = np.sign(y[int(x.argmax())])
        holds = float(special.stdtr(freedom, (sign * estimate - hidden) / spread_there))
        low, high = estimate - t * spread_there - hidden, estimate + t * spread_there + hidden
        prediction = TrendPrediction(at, estimate, low, high, holds)
    return Trend(
        studies=int(x.size),
        slope=slope,
        low=slope - t * error - doubt,
        high=slope + t * error + doubt,
        p=float(2 * special.stdtr(freedom, -max(abs(slope) - doubt, 0.0) / error)),
        level=level,
        between_sd=float(np.sqrt(tau2)),
        degrees_of_freedom=freedom,
        prediction=prediction,
    )


def _fit(design: FloatArray, y: FloatArray, variance: FloatArray) -> tuple[FloatArray, FloatArray]:
    weighted = design / variance[:, None]
    covariance = np.linalg.inv(design.T @ weighted)
    return np.asarray(covariance @ weighted.T @ y), np.asarray(covariance)


def _weights(design: FloatArray, variance: FloatArray) -> FloatArray:
    """Of the effects in each coefficient: (X'WX)^-1 X'W."""
    weighted = design / variance[:, None]
    return np.asarray(np.linalg.solve(design.T @ weighted, weighted.T))


def _between(design: FloatArray, y: FloatArray, variance: FloatArray) -> float:
    """(Q - (K - 2)) / (sum w - tr((X'WX)^-1 X'W^2X)), at least 0."""
    coefficients, covariance = _fit(design, y, variance)
    w = 1 / variance
    q = float((w * (y - design @ coefficients) ** 2).sum())
    trace = float(np.trace(covariance @ (design * w[:, None] ** 2).T @ design))
    return max(0.0, (q - (y.size - 2)) / (float(w.sum()) - trace))
