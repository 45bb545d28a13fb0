"""Two-sided p-values for a mean delta of zero.

Paired t is the default. The exact sign-flip test assumes only that the deltas are symmetric about zero
under the null, and pays with a coarse scale: with n pairs it cannot go below 2 / 2^n.

Adjusted p-values over a family of tests, in the order they were given.

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
from numpy.typing import ArrayLike
from scipy import special

from ablationlab.core.errors import StatisticsError
from ablationlab.core.registry import Registry
from ablationlab.stats import _bootstrap
from ablationlab.stats._common import Canonical, FloatArray, average_ranks, canonical, count, fraction
from ablationlab.stats.intervals import RESAMPLES
from ablationlab.stats.results import PValue, StatisticalResult, Status

#: All 2^n sign patterns are enumerated up to this many pairs.
ENUMERATE_UP_TO: Final = 16
#: Sums closer than this fraction of sum(|delta|) are tied; ties count as extreme, which is the safe side.
_TIE: Final = 1e-10


def paired_t_test(deltas: ArrayLike) -> PValue:
    """t = mean / (s / sqrt(n)) against Student's t with n - 1 degrees of freedom."""
    sample = canonical(deltas)
    if problem := sample.problem():
        return _none("paired-t", sample, problem)
    t = sample.mean / (sample.sd / np.sqrt(sample.n))
    p = 2 * special.stdtr(sample.n - 1, -abs(t))
    return PValue("paired-t", float(p), _signed(t, sample), sample.n, exact=True)


def sign_flip_test(deltas: ArrayLike, *, resamples: int = RESAMPLES, rng: np.random.Generator) -> PValue:
    """P(|sum(s_i delta_i)| >= |sum(delta_i)|) over signs s_i = +-1.

    All 2^n patterns for n <= 16 (rng unused), else *resamples* random ones with p = (1 + c) / (1 + B)
    (Phipson and Smyth 2010).
    """
    sample, resamples = canonical(deltas), count("resamples", resamples, minimum=100)
    p, floor, exact = _sign_flip(sample.values, resamples, rng)
    return PValue("sign-flip", p, sample.estimate, sample.n, exact=exact, minimum_p=floor)


def bootstrap_test(deltas: ArrayLike, *, resamples: int = RESAMPLES, rng: np.random.Generator) -> PValue:
    """P(|mean*| >= |mean|) among resamples of the deltas shifted to mean zero; too small at few seeds.

    Enumerated for n <= 8 (rng unused). With B resamples p = (1 + c) / (1 + B), so that it is never 0.
    """
    sample, resamples = canonical(deltas), count("resamples", resamples, minimum=100)
    if problem := sample.problem():
        return _none("bootstrap", sample, problem)
    drawn = _bootstrap.draw(sample.n, resamples, rng)
    p = float(_bootstrap.shifted_p(sample.values[None, :], drawn)[0])
    floor = 1.0 / (1.0 + drawn.total)
    return PValue("bootstrap", p, sample.estimate, sample.n, exact=drawn.exact, minimum_p=floor)


def wilcoxon_test(deltas: ArrayLike) -> PValue:
    """Wilcoxon's signed-rank test; zeros are dropped, ties share their mean rank.

    Exact over all sign patterns up to 16 nonzero deltas, ties included; beyond that as scipy does
    (exact up to 50 without ties, else the normal approximation). The statistic is the sum of positive
    ranks minus the sum of negative ranks.
    """
    sample = canonical(deltas)
    # Deltas equal but for rounding must share a rank: compare ten significant digits of each.
    values = sample.values[sample.values != 0]
    digit = 10.0 ** (np.floor(np.log10(np.abs(values))) - 9)
    values = np.round(values / digit) * digit
    if values.size == 0:
        return PValue("wilcoxon", 1.0, 0.0, sample.n, exact=True, minimum_p=1.0)
    ranks = average_ranks(np.abs(values)) * np.sign(values)
    statistic = _signed(float(ranks.sum()), sample)
    if values.size <= ENUMERATE_UP_TO:
        p, floor = _enumerate_signs(ranks)
        return PValue("wilcoxon", p, statistic, sample.n, exact=True, minimum_p=floor)
    exact = values.size <= 50 and np.unique(np.abs(values)).size == values.size
    from scipy import stats  # it takes a second to import, and few studies have so many pairs

    p = float(stats.wilcoxon(values, method="exact" if exact else "asymptotic").pvalue)
    smallest = 2.0 ** (1 - values.size) if exact else None
    return PValue("wilcoxon", p, statistic, sample.n, exact=exact, minimum_p=smallest)


def all_tests(deltas: ArrayLike, *, resamples: int = RESAMPLES, rng: np.random.Generator) -> dict[str, PValue]:
    """Every test by its name: paired-t, sign-flip, bootstrap, wilcoxon; their random draws start from one seed."""
    seed = int(rng.integers(2**63))
    return {name: test(deltas, resamples, np.random.default_rng(seed)) for name, test in TESTS.items()}


Test = Callable[[ArrayLike, int, np.random.Generator], PValue]
TESTS: Final[Registry[Test]] = Registry("test")
TESTS.add("paired-t", lambda deltas, _resamples, _rng: paired_t_test(deltas))
TESTS.add("sign-flip", lambda deltas, resamples, rng: sign_flip_test(deltas, resamples=resamples, rng=rng))
TESTS.add("bootstrap", lambda deltas, resamples, rng: bootstrap_test(deltas, resamples=resamples, rng=rng))
TESTS.add("wilcoxon", lambda deltas, _resamples, _rng: wilcoxon_test(deltas))


def _sign_flip(values: FloatArray, resamples: int, rng: np.random.Generator) -> tuple[float, float, bool]:
    if values.size <= ENUMERATE_UP_TO:
        return *_enumerate_signs(values), True
    sizes = np.sort(np.abs(values))  # the same draws whatever the order of the pairs and arms
    observed = abs(float(values.sum())) - _TIE * float(sizes.sum())
    extreme, done = 0, 0
    while done < resamples:  # in chunks, so that memory does not grow with the number of resamples
        rows = min(resamples - done, max(1, 1_000_000 // sizes.size))
        signs = rng.integers(0, 2, size=(rows, sizes.size), dtype=np.int8) * 2 - 1
        extreme += int(np.count_nonzero(np.abs(signs @ sizes) >= observed))
        done += rows
    return (1 + extreme) / (1 + resamples), 1 / (1 + resamples), False


def _enumerate_signs(values: FloatArray) -> tuple[float, float]:
    """The exact p, and the p that these magnitudes would have if their signs all agreed."""
    # The statistic is symmetric, so the first sign may stay fixed; the sums double with each further value.
    sums = np.abs(values[:1])
    for size in np.abs(values[1:]):
        sums = np.concatenate([sums + size, sums - size])
    tie = _TIE * np.abs(values).sum()
    extreme = np.count_nonzero(np.abs(sums) >= abs(values.sum()) - tie)
    furthest = np.count_nonzero(np.abs(sums) >= np.abs(values).sum() - tie)
    return extreme / sums.size, furthest / sums.size


def _signed(statistic: float, sample: Canonical) -> float:
    return float(statistic * np.sign(sample.factor))


def _none(test: str, sample: Canonical, status: Status) -> PValue:
    return PValue(test, None, None, sample.n, exact=True, status=status)


@dataclass(frozen=True)
class Adjusted(StatisticalResult):
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
