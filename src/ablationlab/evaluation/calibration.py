"""Calibration: how far a stated probability can be trusted. Pure numpy.

A prediction states a probability for its most probable label (confidence c) and that label is right or not (y). With bins b
of equal width or of equal mass, and w_b the share of predictions in b:

    ECE         = sum_b w_b |ȳ_b - c̄_b|
    brier_top   = mean (c - y)² = reliability - resolution + uncertainty + within_bin
    reliability = sum_b w_b (c̄_b - ȳ_b)²;  resolution = sum_b w_b (ȳ_b - ȳ)²;  uncertainty = ȳ (1 - ȳ)

(Murphy 1973; within_bin, the spread of c inside bins less twice its covariance with y, makes the sum exact: Stephenson et al.
2008.) The plain ECE is biased upwards, for |ȳ_b - c̄_b| is never negative. Debiased, each bin's d = |ȳ_b - c̄_b| becomes
2 d - E|N(d, s²)| with s² = ȳ_b (1 - ȳ_b) / n_b: the bias that sampling would add again is taken off (Kumar, Liang & Ma 2019,
who simulate that expectation; it has a closed form).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

from ablationlab.records.evaluation import Beyond, CalibrationScores, TemperatureCurve

Floats = NDArray[np.float64]
BINS = 15
#: Temperatures of the curve: from 1/2 to 2, evenly spaced in their logarithm; the middle one is 1.
TEMPERATURES = tuple(float(2.0 ** ((step - 6) / 6)) for step in range(13))
#: Among choices, of which all scores are kept, the best temperature is searched between these.
CHOICE_TEMPERATURES = (0.01, 100.0)


def calibration(confidence_N: Floats, right_N: Floats, brier: float) -> CalibrationScores:
    """Everything about N predictions; *brier* is the mean Brier score over all labels."""
    mass, width = _equal_mass(confidence_N), _equal_width(confidence_N)
    by_mass, by_width = _binned(confidence_N, right_N, mass), _binned(confidence_N, right_N, width)
    count, confidence, right = by_mass
    share = count / count.sum()
    rate = float(right_N.mean())
    reliability = float(share @ (confidence - right) ** 2)
    resolution = float(share @ (right - rate) ** 2)
    top = float(np.mean((confidence_N - right_N) ** 2))
    return CalibrationScores(
        count=len(confidence_N),
        ece_equal_width=ece(*by_width),
        ece_equal_mass=ece(*by_mass),
        ece_equal_width_debiased=debiased_ece(*by_width),
        ece_equal_mass_debiased=debiased_ece(*by_mass),
        brier=brier,
        brier_top=top,
        reliability=reliability,
        resolution=resolution,
        uncertainty=rate * (1 - rate),
        within_bin=top - (reliability - resolution + rate * (1 - rate)),
        curve_confidence=tuple(map(float, confidence)),
        curve_accuracy=tuple(map(float, right)),
        curve_count=tuple(map(int, count)),
    )


def _equal_width(confidence_N: Floats) -> NDArray[np.int64]:
    return np.minimum((confidence_N * BINS).astype(np.int64), BINS - 1)


def _equal_mass(confidence_N: Floats) -> NDArray[np.int64]:
    """Bins by rank; equal confidences may part, since the order given decides among them."""
    rank = np.empty(len(confidence_N), dtype=np.int64)
    rank[np.argsort(confidence_N, kind="stable")] = np.arange(len(confidence_N))
    return rank * BINS // len(confidence_N)


def _binned(confidence_N: Floats, right_N: Floats, bin_N: NDArray[np.int64]) -> tuple[Floats, Floats, Floats]:
    """(count, mean confidence, share right) of the bins that are not empty."""
    count = np.bincount(bin_N, minlength=BINS).astype(np.float64)
    there = count > 0
    confidence = np.bincount(bin_N, weights=confidence_N, minlength=BINS)[there] / count[there]
    right = np.bincount(bin_N, weights=right_N, minlength=BINS)[there] / count[there]
    return count[there], confidence, right


def ece(count: Floats, confidence: Floats, right: Floats) -> float:
    """Mean gap between confidence and share right, weighted by the bins' counts."""
    return float(count @ np.abs(right - confidence) / count.sum())


def debiased_ece(count: Floats, confidence: Floats, right: Floats) -> float:
    """The same without the part that sampling adds; not below 0."""
    gap = np.abs(right - confidence)
    sd = np.sqrt(right * (1 - right) / count)
    safe = np.where(sd > 0, sd, 1.0)
    folded = safe * math.sqrt(2 / math.pi) * np.exp(-((gap / safe) ** 2) / 2) + gap * erf(gap / safe / math.sqrt(2))
    corrected = np.where(sd > 0, 2 * gap - folded, gap)
    return max(0.0, float(count @ corrected / count.sum()))


def temperature_curve(even: Sequence[float], odd: Sequence[float], share_even: float) -> TemperatureCurve:
    """From the loss curves of two halves (means at `TEMPERATURES`): fitted on the even half, judged on the odd one.

    Between the temperatures of the curve the loss is a parabola in ln T through the three nearest points. Where the vertex
    lies off the curve, nothing is known of the loss there, and there is no best temperature to tell.
    """
    a, b = np.asarray(even, dtype=np.float64), np.asarray(odd, dtype=np.float64)
    logs, lowest = np.log(TEMPERATURES), int(np.argmin(a))
    place = int(np.clip(lowest, 1, len(logs) - 2))
    curvature = float(a[place - 1] - 2 * a[place] + a[place + 1])
    shift = float((a[place - 1] - a[place + 1]) / (2 * curvature)) if curvature > 0 else math.inf
    bounds = (TEMPERATURES[0], TEMPERATURES[-1])
    if not np.ptp(a) > 0:
        return _heat(a, b, share_even, bounds, None, "flat", None)
    if abs(shift) > 1:
        return _heat(a, b, share_even, bounds, None, "below" if lowest < place else "above", None)
    judged = (
        b[place]
        + shift * (b[place + 1] - b[place - 1]) / 2
        + shift**2 * (b[place - 1] - 2 * b[place] + b[place + 1]) / 2
    )
    best = float(np.exp(logs[place] + shift * (logs[1] - logs[0])))
    return _heat(a, b, share_even, bounds, best, None, float(judged))


def _heat(
    a: Floats,
    b: Floats,
    share: float,
    bounds: tuple[float, float],
    best: float | None,
    beyond: Beyond | None,
    judged: float | None,
) -> TemperatureCurve:
    """The part, from the curves of the two halves and what was found of the best temperature."""
    whole = share * a + (1 - share) * b
    middle, step = len(TEMPERATURES) // 2, math.log(TEMPERATURES[1] / TEMPERATURES[0])
    return TemperatureCurve(
        temperatures=TEMPERATURES,
        losses=tuple(map(float, whole)),
        searched=bounds,
        best=best,
        beyond=beyond,
        held_out_loss_at_1=float(b[middle]),
        held_out_loss_at_best=judged,
        sensitivity=float((whole[middle - 1] - 2 * whole[middle] + whole[middle + 1]) / step**2),
    )


def choice_calibration(
    scores_NC: Floats, targets: NDArray[np.int64] | Sequence[int]
) -> tuple[CalibrationScores, TemperatureCurve]:
    """Of multiple-choice items: probabilities are the softmax of the choices' log-probabilities; -inf is no choice."""
    targets_N, every = np.asarray(targets), np.arange(len(scores_NC))
    probability = softmax(scores_NC)
    truth = np.zeros_like(probability)
    truth[every, targets_N] = 1.0
    right = (probability.argmax(axis=1) == targets_N).astype(np.float64)
    brier = ((probability - truth) ** 2).sum(axis=1)
    losses = np.asarray([choice_losses(scores_NC, targets_N, temperature) for temperature in TEMPERATURES])
    # A single item is its own judge.
    odd = slice(1, None, 2) if len(scores_NC) > 1 else slice(None)
    best, beyond = best_temperature(scores_NC[::2], targets_N[::2])
    judged = None if best is None else float(choice_losses(scores_NC[odd], targets_N[odd], best).mean())
    share = (len(scores_NC) + 1) // 2 / len(scores_NC)
    halves = losses[:, ::2].mean(axis=1), losses[:, odd].mean(axis=1)
    heat = _heat(*halves, share, CHOICE_TEMPERATURES, best, beyond, judged)
    return calibration(probability.max(axis=1), right, float(brier.mean())), heat


def choice_losses(scores_NC: Floats, targets_N: NDArray[np.int64], temperature: float) -> Floats:
    """-ln of the right choice's probability at that temperature, for each item."""
    right = softmax(scores_NC / temperature)[np.arange(len(scores_NC)), targets_N]
    return np.asarray(-np.log(np.maximum(right, 1e-300)), dtype=np.float64)


def best_temperature(scores_NC: Floats, targets_N: NDArray[np.int64]) -> tuple[float | None, Beyond | None]:
    """T that minimizes L, the mean of -ln p(target), over all of `CHOICE_TEMPERATURES`, or else where L still falls.

    By b = 1 / T, with s the scores: dL/db = mean(E_p s - s_target) and d2L/db2 = mean Var_p s >= 0, so L is convex in b and
    has one minimum at most: the root of dL/db.
    """
    from scipy.optimize import brentq

    finite = np.where(np.isfinite(scores_NC), scores_NC, 0.0)  # where it is not, p is 0
    own = finite[np.arange(len(finite)), targets_N]

    def slope(log_t: float) -> float:
        p = softmax(scores_NC * math.exp(-log_t))
        return float(((p * finite).sum(axis=1) - own).mean())

    low, high = map(math.log, CHOICE_TEMPERATURES)
    coldest, hottest = slope(low), slope(high)
    if not coldest > 0:  # also where it is not a number
        return None, "below" if hottest < 0 else "flat"
    if hottest >= 0:
        return None, "above"
    return math.exp(float(brentq(slope, low, high, xtol=1e-10))), None


def softmax(scores: Floats) -> Floats:
    """Probabilities among choices, along the last axis."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True), dtype=np.float64)
