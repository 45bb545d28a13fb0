"""An effect against scale: weighted regression of a few studies' effects on the logarithm of their size.

    y_k = a + b log(size_k / reference) + u_k + e_k,   Var(e_k) = se_k^2,  Var(u_k) = tau^2

e is what the seeds of study k leave open, u what study k has of its own beyond the trend. tau^2 is DerSimonian and
Laird's moment estimate for regressions; weights are 1 / (se_k^2 + tau^2), and the errors of a and b are scaled by the
weighted residual variance where that exceeds 1 (Hartung and Knapp), with t quantiles of K - 2 degrees of freedom. So
three studies give an interval with one degree of freedom, which is as wide as three studies deserve.

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
    sizes: ArrayLike, effects: ArrayLike, errors: ArrayLike, *, at: float | None = None, level: float = 0.95
) -> Trend:
    """Slope per factor of ten in size, its interval and p; with *at*, the effect predicted at that size."""
    x, y, se = sample("sizes", sizes), sample("effects", effects), sample("errors", errors)
    level = fraction("level", level)
    if not x.size == y.size == se.size:
        raise StatisticsError(f"sizes, effects and errors must go together, got {x.size}, {y.size} and {se.size}")
    if (x <= 0).any() or (se <= 0).any():
        raise StatisticsError("sizes and errors must be above 0")
    if np.unique(x).size < FEWEST:
        raise StatisticsError(f"a trend needs {FEWEST} different sizes or more, got {np.unique(x).size}")
    freedom = x.size - 2
    largest = int(x.argmax())
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
    prediction = None
    if at is not None:
        row = np.array([1.0, np.log10(positive("at", at)) - centre])
        prediction = _prediction(at, row, coefficients, covariance, tau2, freedom, t, float(y[largest]))
    return Trend(
        studies=int(x.size),
        slope=slope,
        low=slope - t * error,
        high=slope + t * error,
        p=float(2 * special.stdtr(freedom, -abs(slope) / error)),
        level=level,
        between_sd=float(np.sqrt(tau2)),
        degrees_of_freedom=freedom,
        prediction=prediction,
    )


def _fit(design: FloatArray, y: FloatArray, variance: FloatArray) -> tuple[FloatArray, FloatArray]:
    weighted = design / variance[:, None]
    covariance = np.linalg.inv(design.T @ weighted)
    return np.asarray(covariance @ weighted.T @ y), np.asarray(covariance)


def _between(design: FloatArray, y: FloatArray, variance: FloatArray) -> float:
    """(Q - (K - 2)) / (sum w - tr((X'WX)^-1 X'W^2X)), at least 0."""
    coefficients, covariance = _fit(design, y, variance)
    w = 1 / variance
    q = float((w * (y - design @ coefficients) ** 2).sum())
    trace = float(np.trace(covariance @ (design * w[:, None] ** 2).T @ design))
    return max(0.0, (q - (y.size - 2)) / (float(w.sum()) - trace))


def _prediction(
    size: float,
    row: FloatArray,
    coefficients: FloatArray,
    covariance: FloatArray,
    tau2: float,
    freedom: int,
    t: float,
    seen: float,
) -> TrendPrediction:
    estimate = float(row @ coefficients)
    error = float(np.sqrt(row @ covariance @ row + tau2))
    holds = float(special.stdtr(freedom, np.sign(seen) * estimate / error))
    return TrendPrediction(size, estimate, estimate - t * error, estimate + t * error, holds)
