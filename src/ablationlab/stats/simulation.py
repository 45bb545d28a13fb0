"""Simulated studies whose true mean difference is zero: how often each interval holds zero and each test rejects.

Many samples at once, by the same formulas as the intervals and tests of this package (tests/stats holds them against each
other); benchmarks/coverage.py draws its tables with it, and `ablationlab validate` the rates to expect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final

import numpy as np
from scipy import special

from ablationlab.stats import _bootstrap
from ablationlab.stats._common import MINIMUM_PAIRS, FloatArray, complement
from ablationlab.stats.effects import equivalence_bounds, paired_tost
from ablationlab.stats.intervals import bootstrap_interval, paired_t_interval
from ablationlab.stats.results import Equivalence, Interval, PValue
from ablationlab.stats.significance import TESTS, paired_t_test

LEVEL: Final = 0.95
ALPHA: Final = 0.05
#: Random resamples beyond n = 8; more would not move the second digit of a coverage.
RESAMPLES: Final = 2_000
CHUNK: Final = 250

#: Differences of many studies: (generator, (studies, pairs)) -> one row a study.
Draw = Callable[[np.random.Generator, tuple[int, int]], FloatArray]


@dataclass
class SimulationCell:
    """Share of simulated studies, and the median width where it is an interval."""

    hits: int = 0
    total: int = 0
    unbounded: int = 0
    widths: list[FloatArray] = field(default_factory=list)

    @property
    def rate(self) -> float | None:
        """hits / total, or None where most studies gave no finite answer."""
        return None if self.unbounded > self.total else self.hits / self.total

    @property
    def error(self) -> float:
        """Monte-Carlo standard error of the rate."""
        rate = self.hits / max(self.total, 1)
        return float(np.sqrt(rate * (1 - rate) / max(self.total, 1)))

    def __str__(self) -> str:
        return "—" if self.rate is None else f"{100 * self.rate:.1f} ({100 * self.error:.1f})"


def t_bounds(x_Sn: FloatArray, level: float) -> tuple[FloatArray, FloatArray]:
    """The paired-t interval of many samples at once."""
    n = x_Sn.shape[1]
    mean, half = x_Sn.mean(axis=1), x_Sn.std(axis=1, ddof=1) / np.sqrt(n)
    half = half * special.stdtrit(n - 1, (1 + level) / 2)
    return mean - half, mean + half


def sign_patterns(n: int, rng: np.random.Generator) -> tuple[FloatArray, bool]:
    """All signs with the first one fixed, up to n = 16; else random ones."""
    if n <= 16:
        bits = np.arange(2 ** (n - 1))[:, None] >> np.arange(n) & 1
        return np.asarray(1.0 - 2.0 * bits, dtype=np.float64), True
    return np.asarray(rng.choice([-1.0, 1.0], size=(RESAMPLES, n)), dtype=np.float64), False


def flip_p(x_Sn: FloatArray, signs_Kn: FloatArray, exact: bool) -> FloatArray:
    """Sign-flip p-values of many samples at once."""
    observed = np.abs(x_Sn.sum(axis=1, keepdims=True)) - 1e-10 * np.abs(x_Sn).sum(axis=1, keepdims=True)
    extreme = np.count_nonzero(np.abs(x_Sn @ signs_Kn.T) >= observed, axis=1)
    return np.asarray(extreme / len(signs_Kn) if exact else (1 + extreme) / (1 + len(signs_Kn)))


def wilcoxon_p(x_Sn: FloatArray) -> FloatArray:
    """Exact signed-rank p-values of many samples without ties: the null distribution by convolution."""
    n = x_Sn.shape[1]
    ways = np.ones(1)
    for rank in range(1, n + 1):
        ways = np.convolve(ways, np.r_[1.0, np.zeros(rank - 1), 1.0])
    cumulative = np.cumsum(ways / 2.0**n)
    ranks = np.argsort(np.argsort(np.abs(x_Sn), axis=1), axis=1) + 1
    positive = (ranks * (x_Sn > 0)).sum(axis=1)
    smaller = np.minimum(positive, n * (n + 1) / 2 - positive).astype(np.int64)
    return np.asarray(np.minimum(1.0, 2 * cumulative[smaller]), dtype=np.float64)


def simulate(
    draw: Draw, n: int, simulations: int, rng: np.random.Generator
) -> tuple[dict[str, SimulationCell], dict[str, SimulationCell]]:
    """Coverage of the intervals and rejections of the tests, over simulated studies with true mean zero."""
    intervals = {name: SimulationCell() for name in ("paired-t", "percentile", "bca", "bootstrap-t")}
    tests = {name: SimulationCell() for name in ("paired-t", "sign-flip", "bootstrap", "wilcoxon")}
    for start in range(0, simulations, CHUNK):
        x = draw(rng, (min(CHUNK, simulations - start), n))
        resamples = _bootstrap.draw(n, RESAMPLES, rng)
        signs, exact = sign_patterns(n, rng)
        bounds = {
            "paired-t": t_bounds(x, LEVEL),
            "percentile": _bootstrap.percentile_bounds(x, resamples, LEVEL),
            "bca": _bootstrap.bca_bounds(x, resamples, LEVEL),
            "bootstrap-t": _bootstrap.studentized_bounds(x, resamples, LEVEL),
        }
        for name, (low, high) in bounds.items():
            bounded = np.isfinite(low) & np.isfinite(high)
            cell = intervals[name]
            cell.hits += int(((low <= 0) & (high >= 0) & bounded).sum())
            cell.total += int(bounded.sum())
            cell.unbounded += int((~bounded).sum())
            cell.widths.append((high - low)[bounded])
        p_values = {
            "paired-t": 2 * special.stdtr(n - 1, -np.abs(x.mean(axis=1)) * np.sqrt(n) / x.std(axis=1, ddof=1)),
            "sign-flip": flip_p(x, signs, exact),
            "bootstrap": _bootstrap.shifted_p(x, resamples),
            "wilcoxon": wilcoxon_p(x),
        }
        for name, p in p_values.items():
            tests[name].hits += int((p <= ALPHA).sum())
            tests[name].total += p.size
    return intervals, tests


@dataclass(frozen=True)
class BriefInference:
    """What a registered criterion asks of one sample of deltas."""

    interval: Interval
    test: PValue
    equivalence: Equivalence | None


#: Draws of a bootstrap in a simulated study; p moves by half a point at 0.05.
BRIEF_RESAMPLES: Final = 2_000


def brief_inference(
    deltas: Sequence[float],
    *,
    interval: str,
    test: str,
    alpha: float,
    smallest_effect: float | tuple[float, float] | None,
) -> BriefInference:
    """The numbers of `compare` for one interval and one test, without its caveats and checks: for many simulated studies.

    Paired t takes plain arithmetic; every other method is the one that `compare` calls.
    """
    n, level = len(deltas), complement(alpha)
    mean = math.fsum(deltas) / n
    error = math.sqrt(math.fsum((delta - mean) ** 2 for delta in deltas) / max(n - 1, 1) / n)
    if n < MINIMUM_PAIRS or error == 0:
        tost = None if smallest_effect is None else paired_tost(deltas, smallest_effect=smallest_effect, alpha=alpha)
        return BriefInference(paired_t_interval(deltas, level=level), paired_t_test(deltas), tost)
    half = _t_quantile(n - 1, (1 + level) / 2) * error
    decides = Interval("paired-t", level, mean, mean - half, mean + half, n, exact=True)
    t = mean / error
    p = PValue("paired-t", 2 * float(special.stdtr(n - 1, -abs(t))), t, n, exact=True)
    rng = np.random.default_rng(n)
    if interval != "paired-t":
        decides = bootstrap_interval(interval, deltas, level=level, resamples=BRIEF_RESAMPLES, rng=rng)
    if test != "paired-t":
        p = TESTS[test](deltas, BRIEF_RESAMPLES, rng)
    equivalence = None
    if smallest_effect is not None:
        low, high = equivalence_bounds(smallest_effect)
        sides = ((low - mean) / error, (mean - high) / error)
        lower, upper = (float(special.stdtr(n - 1, side)) for side in sides)
        reach = _t_quantile(n - 1, 1 - alpha) * error
        worst = max(lower, upper)
        equivalence = Equivalence(
            (low, high),
            alpha,
            worst,
            lower,
            upper,
            mean - reach,
            mean + reach,
            worst < alpha,
            n,
        )
    return BriefInference(decides, p, equivalence)


@cache
def _t_quantile(freedom: int, probability: float) -> float:
    return float(special.stdtrit(freedom, probability))
