"""Rates with their binomial intervals, and what a list of analysed studies adds up to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from scipy import stats

from ablationlab.core.format import fixed, percent, plain
from ablationlab.core.seeding import stream
from ablationlab.instrument.validation.records import (
    ComparisonRates,
    Compatibility,
    DeltaSummary,
    GainRates,
    MethodRate,
    Rate,
)
from ablationlab.records.analysis import Comparison, StabilityGain
from ablationlab.records.verdict import Answer, Verdict
from ablationlab.stats import expected_coverage, expected_false_positives, paired_t_interval, tost_power
from ablationlab.stats._common import FloatArray, complement
from ablationlab.stats.simulation import simulate, t_bounds

LEVEL: Final = 0.95
#: The alpha that benchmarks/coverage.py simulated.
SIMULATED_ALPHA: Final = 0.05
DISTRIBUTIONS: Final = ("normal", "skewed", "heavy-tailed")
#: The simulation whose differences have the shape of the very ones that were judged.
OWN: Final = "as these"
SIMULATIONS: Final = 10_000
SIGNIFICANT: Final = ("better", "worse", "different")


def rate(hits: int, n: int, *, level: float = LEVEL) -> Rate:
    """hits / n with the exact interval of Clopper and Pearson (1934): both tails of the binomial at most (1 - level) / 2."""
    if n == 0:
        return Rate(hits=0, n=0, rate=None, low=None, high=None)
    tail = (1 - level) / 2
    low = 0.0 if hits == 0 else float(stats.beta.ppf(tail, hits, n - hits + 1))
    high = 1.0 if hits == n else float(stats.beta.ppf(1 - tail, hits + 1, n - hits))
    return Rate(hits=hits, n=n, rate=hits / n, low=low, high=high)


def counted(flags: Iterable[bool]) -> Rate:
    known = list(flags)
    return rate(sum(known), len(known))


def holds(rate: Rate, value: float) -> bool:
    return rate.low is not None and rate.high is not None and rate.low <= value <= rate.high


def method_rates(comparisons: Sequence[Comparison], pairs: int, *, null: bool = True) -> tuple[MethodRate, ...]:
    """Every shipped test at alpha and every shipped interval at 1 - alpha, over the studies of one comparison.

    Under a *null* that is true, each beside the rates to expect.
    """
    alpha = comparisons[0].alpha
    own = as_these(comparisons, pairs) if null and np.isclose(alpha, SIMULATED_ALPHA) else {}
    tests = list(dict.fromkeys(name for comparison in comparisons for name in comparison.tests))
    intervals = list(dict.fromkeys(name for comparison in comparisons for name in comparison.intervals))
    parts = []
    for name in tests:
        p_values = [comparison.tests[name].p if name in comparison.tests else None for comparison in comparisons]
        parts.append(
            MethodRate(
                kind="test",
                method=name,
                rate=counted(p is not None and p <= alpha for p in p_values),
                unavailable=sum(p is None for p in p_values),
                simulated=_simulated("test", name, pairs, alpha) | own.get(("test", name), {}) if null else {},
            )
        )
    for name in intervals:
        bounds = [comparison.intervals.get(name) for comparison in comparisons]
        given = [(bound.low, bound.high) for bound in bounds if bound is not None]
        known = [(low, high) for low, high in given if low is not None and high is not None]
        parts.append(
            MethodRate(
                kind="interval",
                method=name,
                rate=rate(sum(low > 0 or high < 0 for low, high in known), len(comparisons)),
                unavailable=len(comparisons) - len(known),
                simulated=_simulated("interval", name, pairs, alpha) | own.get(("interval", name), {}) if null else {},
            )
        )
    return tuple(parts)


def _simulated(kind: str, method: str, pairs: int, alpha: float) -> dict[str, float | None]:
    """The rate under a true null that benchmarks/coverage.py found."""
    if not np.isclose(alpha, SIMULATED_ALPHA):
        return {}
    simulated: dict[str, float | None] = {}
    for name in DISTRIBUTIONS:
        if kind == "test":
            simulated[name] = expected_false_positives(method, pairs, distribution=name)
        else:
            covers = expected_coverage(method, pairs, distribution=name)
            simulated[name] = None if covers is None else complement(covers)
    return simulated


def as_these(comparisons: Sequence[Comparison], pairs: int) -> dict[tuple[str, str], dict[str, float | None]]:
    """The rates to expect for differences of this very shape, by kind and method.

    Exchangeable arms have differences that are symmetric about zero: |delta| of a pair drawn from all of them, with a tossed
    sign, is a draw from their distribution under the null.
    """
    sizes = np.abs([pair.delta for comparison in comparisons for pair in comparison.pairs])
    if sizes.size < 10 * pairs or not sizes.any():
        return {}

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
        return np.asarray(rng.choice(sizes, size=shape) * rng.choice([-1.0, 1.0], size=shape))

    intervals, tests = simulate(draw, pairs, SIMULATIONS, stream(0, "analysis", "validation", comparisons[0].id))
    rates: dict[tuple[str, str], dict[str, float | None]] = {}
    for name, cell in tests.items():
        rates["test", name] = {OWN: cell.rate}
    for name, cell in intervals.items():
        rates["interval", name] = {OWN: None if cell.rate is None else complement(cell.rate)}
    return rates


def found_in(deltas: FloatArray, pairs: int, alpha: float, name: str) -> float:
    """Share of studies that a paired t-test finds significant, if their differences are drawn from *deltas*."""
    rng = stream(0, "analysis", "validation", name)
    drawn = rng.choice(deltas, size=(SIMULATIONS, pairs))
    low, high = t_bounds(drawn, 1 - alpha)
    return float(((low > 0) | (high < 0)).mean())


def deltas_of(comparisons: Sequence[Comparison]) -> DeltaSummary:
    """The paired differences of all studies of one comparison, on the tested scale."""
    pairs = [pair for comparison in comparisons for pair in comparison.pairs]
    deltas = np.array([pair.delta for pair in pairs])
    if deltas.size < 3 or not deltas.std():
        return DeltaSummary(
            n=deltas.size,
            mean=float(deltas.mean()) if deltas.size else None,
            low=None,
            high=None,
            sd=None,
            skewness=None,
            excess_kurtosis=None,
            correlation=None,
        )
    interval = paired_t_interval(deltas, level=LEVEL)
    arms = np.array([(pair.variant, pair.reference) for pair in pairs]).T
    return DeltaSummary(
        n=deltas.size,
        mean=float(deltas.mean()),
        low=interval.low,
        high=interval.high,
        sd=float(deltas.std(ddof=1)),
        skewness=float(stats.skew(deltas)),
        excess_kurtosis=float(stats.kurtosis(deltas)),
        correlation=float(np.corrcoef(arms)[0, 1]) if arms.std(axis=1).all() else None,
    )


def comparison_rates(comparisons: Sequence[Comparison], pairs: int) -> ComparisonRates:
    """One registered comparison over all studies."""
    first, deltas = comparisons[0], deltas_of(comparisons)
    bound, equivalent, planned = first.smallest_effect, None, None
    if bound is not None:
        equivalent = counted(comparison.cost is not None and comparison.cost.same for comparison in comparisons)
        if deltas.sd:
            planned = tost_power(bound / deltas.sd, pairs, alpha=first.alpha)
    return ComparisonRates(
        id=first.id,
        metric=first.metric,
        variant=first.variant,
        reference=first.reference,
        role=first.role,
        test=first.test,
        alpha=first.alpha,
        deltas=deltas,
        significant=counted(comparison.outcome in SIGNIFICANT for comparison in comparisons),
        methods=method_rates(comparisons, pairs),
        smallest_effect=bound,
        equivalent=equivalent,
        equivalent_planned=planned,
    )


def compatibility(rates: ComparisonRates) -> Compatibility:
    """Whether the registered test of a comparison keeps its alpha under a null that is true by construction."""
    rate = next(m.rate for m in rates.methods if (m.kind, m.method) == ("test", rates.test))
    p = float(stats.binomtest(rate.hits, rate.n, rates.alpha).pvalue)
    fits = holds(rate, rates.alpha)
    expected = next(m.simulated for m in rates.methods if (m.kind, m.method) == ("test", rates.test)).get(OWN)
    as_expected = None if expected is None else holds(rate, expected)
    return Compatibility(
        comparison=rates.id,
        test=rates.test,
        alpha=rates.alpha,
        rate=rate,
        p=p,
        compatible=fits,
        expected=expected,
        as_expected=as_expected,
    )


def in_words(rate: Rate) -> str:
    """7.0 % (4.7 to 10.0 %), 28 of 400."""
    if rate.rate is None or rate.low is None or rate.high is None:
        return "no study"
    bounds = f"{fixed(100 * rate.low, 1)} to {percent(rate.high, 1)}"
    return plain(f"{percent(rate.rate, 1)} ({bounds}; {rate.hits} of {rate.n})")


def answer_counts(verdicts: Sequence[Verdict], variant: str) -> dict[str, Rate]:
    """Every answer there is, with how often it was given; those never given have a rate of 0."""
    given = [judged.answer for verdict in verdicts for judged in verdict.verdicts if judged.variant == variant]
    return {answer.value: rate(given.count(answer), len(given)) for answer in Answer}


def gain_rates(gains: Sequence[StabilityGain]) -> GainRates:
    """One contrast's stability gain over all studies."""
    return GainRates(
        variant=gains[0].variant,
        reference=gains[0].reference,
        excludes_zero=counted(
            gain.low is not None and gain.high is not None and (gain.low > 0 or gain.high < 0) for gain in gains
        ),
        unstable_runs=sum(gain.variant_unstable + gain.reference_unstable for gain in gains),
        runs=2 * sum(gain.n for gain in gains),
    )
