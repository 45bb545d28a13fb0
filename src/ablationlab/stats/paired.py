"""Two arms paired by seed: means, spread, correlation, and what the pairing bought."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ablationlab.core.errors import StatisticsError
from ablationlab.stats._common import FloatArray, canonical, pair, paired_deltas, power_of_two, standard_deviation
from ablationlab.stats.results import GeometricRatio, PairedSample


def summarize(variant: ArrayLike, reference: ArrayLike) -> PairedSample:
    """Describe the pairs (variant[i], reference[i]); pair i belongs to seed i."""
    a, b = pair("variant", variant, "reference", reference)
    deltas = paired_deltas(a, b)
    variant_sd, reference_sd = standard_deviation(a), standard_deviation(b)
    delta_sd = standard_deviation(deltas)
    return PairedSample(
        n=a.size,
        variant_mean=_mean(a),
        reference_mean=_mean(b),
        variant_sd=variant_sd,
        reference_sd=reference_sd,
        deltas=tuple(deltas.tolist()),
        delta=canonical(deltas).estimate,
        delta_sd=delta_sd,
        correlation=correlation(a, b) if variant_sd and reference_sd else None,
        variance_reduction=_variance_reduction(delta_sd, variant_sd, reference_sd),
    )


def logarithms(name: str, values: ArrayLike) -> FloatArray:
    """Natural logarithms; every value must be above zero."""
    array = np.asarray(values, dtype=np.float64)
    if (array <= 0).any():
        position = int(np.argmax(array <= 0))
        raise StatisticsError(f"{name}[{position}] is {array[position]}: a logarithm needs values above 0")
    return np.asarray(np.log(array), dtype=np.float64)


def ratio_of_geometric_means(variant: ArrayLike, reference: ArrayLike) -> GeometricRatio:
    """exp(mean(log variant - log reference)): a perplexity is tested on logs and shown as a ratio."""
    a, b = pair("variant", variant, "reference", reference)
    deltas = paired_deltas(logarithms("variant", a), logarithms("reference", b))
    return as_ratio(canonical(deltas).estimate)


def as_ratio(log_delta: float, low: float | None = None, high: float | None = None) -> GeometricRatio:
    """A difference of logs, and its interval, as a ratio."""
    with np.errstate(over="raise"):
        try:
            ends = [None if end is None else float(np.exp(end)) for end in (low, high)]
            return GeometricRatio(ratio=float(np.exp(log_delta)), low=ends[0], high=ends[1])
        except FloatingPointError:
            raise StatisticsError(f"exp overflows for log_delta={log_delta!r}, low={low!r}, high={high!r}") from None


def _mean(values: FloatArray) -> float:
    # Sorted, so that the order of the pairs cannot change the last bit.
    return float(np.sort(values).mean())


def correlation(a: FloatArray, b: FloatArray) -> float:
    """Pearson's correlation of two samples that both vary."""
    x, y = (np.asarray(values / power_of_two(values)) for values in (a, b))
    x, y = x - x.mean(), y - y.mean()
    return float(np.clip((x @ y) / np.sqrt((x @ x) * (y @ y)), -1.0, 1.0))


def _variance_reduction(delta: float | None, variant: float | None, reference: float | None) -> float | None:
    if delta is None or variant is None or reference is None or (variant == 0 and reference == 0):
        return None
    scale = max(variant, reference)
    return 1.0 - (delta / scale) ** 2 / ((variant / scale) ** 2 + (reference / scale) ** 2)
