"""Adjusted p-values over a family of tests, in the order they were given.

With p sorted upward, p_(1) <= ... <= p_(m):
Holm: max over j <= i of (m - j + 1) p_(j).  Bonferroni: m p_(i).
Benjamini-Hochberg: min over j >= i of m p_(j) / j.

Holm and Bonferroni bound the chance of any false claim under any dependence between the tests;
Holm is never weaker. Benjamini-Hochberg bounds the expected share of false claims and needs independent or
positively dependent tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ablationlab.core.errors import StatisticsError
from ablationlab.core.registry import Registry
from ablationlab.stats._common import FloatArray, fraction
from ablationlab.stats.results import Result


@dataclass(frozen=True)
class Adjusted(Result):
    """Adjusted p-values in input order; None where there was no p, which does not count in the family."""

    method: str
    adjusted: tuple[float | None, ...]
    family_size: int

    def rejected(self, alpha: float = 0.05) -> tuple[bool | None, ...]:
        """adjusted <= alpha for each test; None where there was no p."""
        alpha = fraction("alpha", alpha)
        return tuple(None if p is None else p <= alpha for p in self.adjusted)


def adjust(p_values: Sequence[float | None], *, method: str = "holm") -> Adjusted:
    """Adjust by "holm", "bonferroni" or "benjamini-hochberg"; None and NaN mean "not tested"."""
    step = CORRECTIONS[method]
    p = np.array([np.nan if value is None else value for value in p_values], dtype=np.float64)
    if p.ndim != 1:
        raise StatisticsError(f"p_values must be one-dimensional, got shape {p.shape}")
    tested = ~np.isnan(p)
    outside = tested & ~((p >= 0) & (p <= 1))
    if outside.any():
        position = int(np.argmax(outside))
        raise StatisticsError(f"p_values[{position}] is {p[position]}: a p-value lies between 0 and 1")
    order = np.flatnonzero(tested)[np.argsort(p[tested], kind="stable")]
    adjusted = np.full(p.size, np.nan)
    if order.size:
        # p * m / m may round to just below p; an adjusted p is never smaller.
        adjusted[order] = np.clip(step(p[order]), p[order], 1.0)
    return Adjusted(
        method=method,
        adjusted=tuple(None if np.isnan(value) else float(value) for value in adjusted),
        family_size=int(order.size),
    )


def holm(p_values: Sequence[float | None]) -> Adjusted:
    """Holm's step-down correction (Holm 1979)."""
    return adjust(p_values, method="holm")


def bonferroni(p_values: Sequence[float | None]) -> Adjusted:
    """Each p times the size of the family."""
    return adjust(p_values, method="bonferroni")


def benjamini_hochberg(p_values: Sequence[float | None]) -> Adjusted:
    """The false-discovery-rate step-up correction (Benjamini and Hochberg 1995)."""
    return adjust(p_values, method="benjamini-hochberg")


def _holm(sorted_p: FloatArray) -> FloatArray:
    return np.asarray(np.maximum.accumulate(sorted_p * np.arange(sorted_p.size, 0, -1)), dtype=np.float64)


def _bonferroni(sorted_p: FloatArray) -> FloatArray:
    return np.asarray(sorted_p * sorted_p.size, dtype=np.float64)


def _benjamini_hochberg(sorted_p: FloatArray) -> FloatArray:
    scaled = sorted_p * sorted_p.size / np.arange(1, sorted_p.size + 1)
    return np.asarray(np.minimum.accumulate(scaled[::-1])[::-1], dtype=np.float64)


CORRECTIONS: Final[Registry[Callable[[FloatArray], FloatArray]]] = Registry("correction")
CORRECTIONS.add("holm", _holm)
CORRECTIONS.add("bonferroni", _bonferroni)
CORRECTIONS.add("benjamini-hochberg", _benjamini_hochberg)
