"""Families of tests: adjusted p-values with the intervals that go with them, and gatekeeping.

Every member of a family gets an adjusted p, the level it was tested at, and an interval that holds 0 exactly when the
member is not rejected, so that no interval contradicts the p beside it.

    Bonferroni, Holm   level 1 - alpha / m; where only a later step of Holm's rejects, the level of that step
    Benjamini-Hochberg level 1 - R alpha / m with R of m rejected (false coverage rate; Benjamini and Yekutieli 2005)
    gatekeeping        a secondary is tested, and its interval drawn, at the level that its primary passed on

**Gatekeeping** is a weighted graph of hypotheses (Bretz, Maurer, Brannath and Posch 2009), which bounds the chance of any
false claim, primary or secondary, under any dependence. Each of m primaries starts with alpha / m. A rejected primary
passes the share *onward* of its level to the other primaries (all of it is Holm) and the rest to its own secondaries, one
after the other in registered order; the last secondary passes what it has to the other primaries. With one primary both
have the full alpha. To pass all of it to both, as "secondaries at full alpha after any primary rejection" would, makes up
to twice alpha of false claims.

A family is as large as it was sealed. Tests that were registered and could not be made (*untested*) count as p = 1: runs that
are deleted or not measured must not make it easier to show something of the others.

No correction here pools the spreads of variants, as Dunnett's does: few seeds cannot show that spreads are alike, and where
the baseline is the noisy arm pooling makes 7 to 32 % false claims (docs/validation.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from ablationlab.core.errors import StatisticsError
from ablationlab.stats._common import FloatArray, canonical, fraction, sample
from ablationlab.stats.intervals import RESAMPLES, paired_t_interval
from ablationlab.stats.results import FamilyMember, Interval, StatisticalResult
from ablationlab.stats.significance import TESTS, adjust

#: Share of a rejected primary's level that goes to the other primaries.
ONWARD: Final = 0.5
#: Halvings of a bracket: beyond rounding.
_HALVINGS: Final = 60


@dataclass(frozen=True)
class FamilyInference(StatisticalResult):
    """What came of each member of a family, in the order given."""

    method: str
    alpha: float
    members: tuple[FamilyMember, ...]


@dataclass(frozen=True)
class Gatekept(StatisticalResult):
    """Primaries, and for each of them its secondaries in registered order."""

    alpha: float
    primaries: tuple[FamilyMember, ...]
    secondaries: tuple[tuple[FamilyMember, ...], ...]


#: A member by its deltas (None: no interval is asked for) and the p of the registered test (None: not tested).
Member = tuple[ArrayLike | None, float | None]


def family_inference(
    members: Sequence[Member],
    *,
    correction: str = "holm",
    alpha: float = 0.05,
    test: str = "paired-t",
    resamples: int = RESAMPLES,
    untested: int = 0,
    rng: np.random.Generator,
) -> FamilyInference:
    """Adjusted p-values and deciding intervals of one family, by a correction of `adjust` or "none"."""
    alpha = fraction("alpha", alpha)
    p_values = [p for _, p in members]
    size = sum(p is not None for p in p_values) + untested
    adjusted = p_values
    if correction != "none":
        adjusted = list(adjust([*p_values, *[1.0] * untested], method=correction).adjusted)[: len(members)]
    local = _levels(p_values, adjusted, correction, alpha, size)
    decided = tuple(
        _member(deltas, p, p_adjusted, level, alpha, test, resamples, rng)
        for (deltas, p), p_adjusted, level in zip(members, adjusted, local, strict=True)
    )
    return FamilyInference(correction, alpha, decided)


def _levels(
    p_values: Sequence[float | None], adjusted: Sequence[float | None], correction: str, alpha: float, tested: int
) -> list[float]:
    """The two-sided level at which each member's interval agrees with its adjusted p."""
    if correction == "none":
        return [alpha] * len(p_values)
    rejected = sum(p is not None and p <= alpha for p in adjusted)
    if correction == "benjamini-hochberg":
        return [alpha * max(rejected, 1) / max(tested, 1)] * len(p_values)
    levels = []
    for p, p_adjusted in zip(p_values, adjusted, strict=True):
        level = alpha / max(tested, 1)
        if p is not None and p_adjusted is not None and p_adjusted <= alpha and p > level:
            smaller = sum(other is not None and other < p for other in p_values)
            level = alpha / (tested - smaller)
        levels.append(level)
    return levels


def _member(
    deltas: ArrayLike | None,
    p: float | None,
    p_adjusted: float | None,
    level: float,
    alpha: float,
    test: str,
    resamples: int,
    rng: np.random.Generator,
) -> FamilyMember:
    if p is None or p_adjusted is None:
        return FamilyMember(p, None, level, None, None)
    rejected = p_adjusted <= alpha
    interval = None
    if level > 0 and deltas is not None:
        interval = deciding_interval(deltas, test=test, alpha=level, rejected=p <= level, resamples=resamples, rng=rng)
    return FamilyMember(p, p_adjusted, level, rejected, interval)


def deciding_interval(
    deltas: ArrayLike,
    *,
    test: str,
    alpha: float,
    rejected: bool,
    resamples: int = RESAMPLES,
    rng: np.random.Generator,
) -> Interval:
    """All mean deltas that the test does not reject at *alpha*; 0 is outside exactly if *rejected*.

    For paired t that is its interval. The others are inverted by bisection of p(shift); where the test cannot reach *alpha*
    whatever the shift, there is no bound.
    """
    given, level = canonical(deltas), 1 - fraction("alpha", alpha)
    if test == "paired-t":
        return paired_t_interval(deltas, level=level)
    if problem := given.problem():
        return Interval(test, level, given.estimate, None, None, given.n, exact=True, status=problem)
    values = sample("deltas", deltas)
    seed = int(rng.integers(2**63))

    def reject(shift: float, side: float) -> bool:
        made = TESTS[test](values - shift, resamples, np.random.default_rng(seed))
        return made.p is not None and made.p <= alpha and (made.statistic or 0.0) * side < 0

    centre, reach = given.estimate, float(np.abs(values - given.estimate).max())
    ends = []
    for side in (-1.0, 1.0):
        towards_zero = centre * side < 0
        inside, outside = centre, centre + side * reach
        if towards_zero and rejected:
            outside = 0.0
        elif towards_zero:
            inside, outside = 0.0, side * reach
        for _ in range(_HALVINGS):
            if reject(outside, side):
                break
            outside += side * max(abs(outside - centre), reach)
            if abs(outside - centre) > 1e6 * reach:
                return Interval(test, level, centre, None, None, given.n, exact=True, status="unbounded")
        for _ in range(_HALVINGS):
            middle = (inside + outside) / 2
            inside, outside = (inside, middle) if reject(middle, side) else (middle, outside)
        ends.append(outside if towards_zero and rejected else inside)
    low, high = sorted(ends)
    return Interval(test, level, centre, low, high, given.n, exact=given.n <= 16)


# --- gatekeeping ----------------------------------------------------------------------------------------------


def gatekeep(
    primaries: Sequence[Member],
    secondaries: Sequence[Sequence[Member]],
    *,
    alpha: float = 0.05,
    correction: str = "holm",
    untested: int = 0,
    rng: np.random.Generator,
) -> Gatekept:
    """Primaries at full alpha; secondaries[k], in registered order, only after primary k is rejected.

    correction: "holm" (the graph) or "bonferroni" (the graph with onward = 0). Without secondaries "holm" is Holm.
    """
    alpha = fraction("alpha", alpha)
    if len(primaries) != len(secondaries):
        raise StatisticsError(f"secondaries must be one list per primary, got {len(secondaries)} for {len(primaries)}")
    if not any(secondaries):
        family = family_inference(primaries, correction=correction, alpha=alpha, untested=untested, rng=rng)
        return Gatekept(alpha, family.members, tuple(() for _ in primaries))
    share = {"holm": ONWARD, "bonferroni": 0.0}.get(correction)
    if share is None:
        raise StatisticsError(f"correction must be holm or bonferroni with secondaries, got {correction!r}")
    gates = [*primaries, *[(None, 1.0)] * untested]
    members = [*gates, *(member for chain in secondaries for member in chain)]
    chains = [*map(len, secondaries), *[0] * untested]
    weights, passes = gate_graph([p is not None for _, p in gates], chains, share)
    adjusted, levels = graph_test([p for _, p in members], weights, passes, alpha)
    decided = [
        _member(deltas, p, p_adjusted, level * alpha, alpha, "paired-t", RESAMPLES, rng)
        for (deltas, p), p_adjusted, level in zip(members, adjusted, levels, strict=True)
    ]
    return Gatekept(alpha, tuple(decided[: len(primaries)]), _chains(decided[len(gates) :], secondaries))


def _chains(flat: Sequence[FamilyMember], chains: Sequence[Sequence[Member]]) -> tuple[tuple[FamilyMember, ...], ...]:
    members = iter(flat)
    return tuple(tuple(next(members) for _ in chain) for chain in chains)


def gate_graph(tested: Sequence[bool], chains: Sequence[int], onward: float) -> tuple[FloatArray, FloatArray]:
    """Weights and transitions of m primaries (those *tested*) with a chain of so many secondaries each."""
    m = len(tested)
    size, live = m + sum(chains), [k for k in range(m) if tested[k]]
    weights, passes = np.zeros(size), np.zeros((size, size))
    first = m + np.concatenate([[0], np.cumsum(chains)])[:-1]
    for k in live:
        weights[k] = 1 / len(live)
        others = [other for other in live if other != k]
        chain = range(int(first[k]), int(first[k]) + chains[k])
        to_others = 1.0 if not chains[k] else (onward if others else 0.0)
        for other in others:
            passes[k, other] = to_others / len(others)
        if chain:
            passes[k, chain[0]] = 1 - to_others
            for place in chain[:-1]:
                passes[place, place + 1] = 1.0
            for other in others:
                passes[chain[-1], other] = 1 / len(others)
    return weights, passes


def graph_test(
    p_values: Sequence[float | None], weights: FloatArray, passes: FloatArray, alpha: float
) -> tuple[list[float | None], list[float]]:
    """Adjusted p-values of a graph (Bretz et al. 2009, algorithm 2), and the weight each hypothesis was tested or left with.

    The weight is the first one where that rejects already, else that of the step which rejects.
    """
    w, g = weights.copy(), passes.copy()
    p = np.array([np.nan if value is None else value for value in p_values])
    open_ = ~np.isnan(p)
    adjusted, levels, reached = np.full(p.size, np.nan), weights.copy(), 0.0
    while open_.any():
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(open_ & (w > 0), p / w, np.inf)
        at = int(ratio.argmin())
        if not np.isfinite(ratio[at]):
            adjusted[open_] = 1.0  # never reached
            break
        reached = max(reached, float(ratio[at]))
        adjusted[at] = min(reached, 1.0)
        open_[at] = False
        if reached <= alpha:
            levels[at] = weights[at] if p[at] <= weights[at] * alpha else w[at]
        w, g = _without(at, w, g)
        if reached <= alpha:
            waiting = open_ & (weights == 0)
            levels[waiting] = w[waiting]
    return [None if np.isnan(value) else float(value) for value in adjusted], levels.tolist()


def _without(at: int, w: FloatArray, g: FloatArray) -> tuple[FloatArray, FloatArray]:
    w = w + w[at] * g[at]
    w[at] = 0.0
    loop = g[:, at] * g[at, :]
    through = np.outer(g[:, at], g[at, :])
    scale = np.where(loop < 1, 1 - loop, 1.0)[:, None]
    new = (g + through) / scale
    np.fill_diagonal(new, 0.0)
    new[at, :] = new[:, at] = 0.0
    return w, new


def planned_levels(chains: Sequence[int], *, correction: str, alpha: float) -> tuple[list[float], list[list[float]]]:
    """The p that each primary, and each secondary behind it, must reach if nothing else in the family is true.

    *chains*: how many secondaries stand behind each primary. A secondary's primary, and those before it, count as shown.
    """
    m, alpha = len(chains), fraction("alpha", alpha)
    level = alpha if correction == "none" else alpha / m
    weights, passes = gate_graph([True] * m, chains, 0.0 if correction == "bonferroni" else ONWARD)
    passed = [float(alpha * weights[k] * passes[k, m:].sum()) for k in range(m)]
    return [level] * m, [[share] * size for share, size in zip(passed, chains, strict=True)]
