"""One cost per seed, with lost and far-out runs: what can be claimed of a variant, and how surely.

A cost is variant - reference, turned so that positive is worse. **No run counts for more than a lost one.** For the claim
that the variant is *better*:

    seeds that only the reference lost            are left out
    runs that only the variant lost               count at mean + t(m-1; .999) sd sqrt(1 + 1/m) of the m costs that remain
    a finite run                                  counts at its own cost or as lost, whichever is milder: one of the variant
                                                  beyond that cost, one of the reference as far on the other side

At most one run in ten (rounded up) counts otherwise than at its own cost, and at least five must remain; else nothing is
claimed. n includes the lost runs. *Worse* is the mirror image, and *same* takes raw costs. Without lost or far-out runs all
this is the plain paired test.

Variances may be shared: the standard error of a way is then that of the larger of its own SD and that of all arms, with
2 (n - 1) degrees of freedom. Only Bonferroni's correction over the arms makes up for an arm that is noisier than all others,
so what is not corrected, *same*, margins and sizes at looks, rests on `own` costs.

Costs whose range is at most 1e-9 of the compared values are one constant, which the exact sign test judges, lost runs as
signs against. `docs/verdict.md` has a worked example, `benchmarks/decisions.py` the simulated error rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from statistics import median
from typing import Final

from scipy import special

from ablationlab.stats._common import MINIMUM_PAIRS
from ablationlab.stats.results import NO_DOUBT, Doubt

#: Values this much closer than their size are equal.
SLACK: Final = 1e-9
#: The share of further runs that would cost more than a lost one is counted as.
RARE: Final = 0.001
#: One run in so many (rounded up) may count otherwise than at its own cost.
ONE_IN: Final = 10
#: So many others must remain.
REMAINING: Final = 5
#: How often a true effect of exactly the smallest one may be claimed to be as large, over all looks.
AT_SMALLEST: Final = 0.5

#: Arms -> pairs from which their variances may be shared; with more arms three pairs, and one arm never.
SHARING: Final = {2: 6, 3: 4}
#: From so many arms and pairs on the largest variance counts as the second largest: an absurd run would else take all power.
CAPPED: Final = (8, 5)

#: The two-sided p of a sample of costs that lie below 0 as the test sees it; None where it has none, or they do not.
Test = Callable[[Sequence[float]], float | None]


@dataclass(frozen=True)
class Counted:
    """One way of counting: the costs that are tested, and the places of finite runs that count as lost.

    *against*: how many of them are no costs of their own, and signs against the claim where the costs are constant.
    """

    costs: tuple[float, ...]
    against: int = 0
    as_lost: tuple[int, ...] = ()

    @cached_property
    def mean(self) -> float:
        return math.fsum(self.costs) / len(self.costs)

    @cached_property
    def sd(self) -> float:
        return _sd(self.costs, self.mean)


@dataclass(frozen=True)
class Costs:
    """*sizes*: of each pair, the larger of the compared values. *lost*, *lost_by_reference*: further seeds that one arm alone
    lost. *doubt*: how far all costs may be off together, where best rates are not known. *others*: SDs of the other arms'
    costs, where variances are shared."""

    values: tuple[float, ...]
    sizes: tuple[float, ...]
    lost: int = 0
    lost_by_reference: int = 0
    doubt: Doubt = NO_DOUBT
    others: tuple[float, ...] = ()

    @cached_property
    def own(self) -> Costs:
        """Without the other arms' variances."""
        return replace(self, others=()) if self.others else self

    @cached_property
    def ordinary_sd(self) -> float | None:
        """What other arms share: the SD of the costs that are not far out in either direction; None of too few."""
        if len(self.values) < MINIMUM_PAIRS:
            return None
        ways = [side.mildest(0.05) for side in (self.own, self.own.mirrored)]
        outside = [() if way is None else way.as_lost for way in ways]
        kept = [[value for place, value in enumerate(self.values) if place not in out] for out in outside]
        return max(_sd(values, math.fsum(values) / len(values)) for values in kept)

    @cached_property
    def mirrored(self) -> Costs:
        """With the arms swapped."""
        return replace(
            self,
            values=tuple(-value for value in self.values),
            lost=self.lost_by_reference,
            lost_by_reference=self.lost,
            doubt=self.doubt.mirrored,
        )

    @cached_property
    def slack(self) -> float:
        """What two costs may differ by and be equal; of values of which a few may have blown up in both arms."""
        return SLACK * median(self.sizes) if self.sizes else 0.0

    @cached_property
    def ways(self) -> tuple[Counted, ...]:
        """The ways in which they may count for *better*, the mildest of which does; none where nothing can be claimed."""
        return tuple(_ways(self)) if len(self.values) + self.lost >= MINIMUM_PAIRS else ()

    def judged(self, test: Test | None = None) -> list[tuple[float, Counted]]:
        """Each way with its two-sided p of the claim that the variant is better."""
        return [(self._p(way, test), way) for way in self.ways]

    def p_better(self, test: Test | None = None) -> float:
        """The two-sided p of the claim that the variant is better; 1 where they do not speak for it."""
        return min((p for p, _ in self.judged(test)), default=1.0)

    def mildest(self, alpha: float) -> Counted | None:
        """The way with the lowest upper bound at 1 - alpha."""

        def most(way: Counted) -> tuple[float, float]:
            upper = self._upper(way, 1 - alpha)
            return math.inf if upper is None else upper, way.mean

        return min(self.ways, key=most, default=None)

    def deciding(
        self, alpha: float, smallest: float, test: Test | None = None, *, level: float = AT_SMALLEST
    ) -> Counted | None:
        """The way that the estimate is of: the mildest, unless another alone shows a gain of the smallest effect.

        A lost run may change which way is the mildest, and would else speak for its arm.
        """
        mildest, least = self.mildest(alpha), self.slack - smallest
        if mildest is None or self.size(mildest, level) <= least:
            return mildest
        large = [way for p, way in self.judged(test) if p <= alpha and self.size(way, level) <= least]
        return min(large, key=lambda way: self.size(way, level), default=mildest)

    def size(self, way: Counted, level: float = AT_SMALLEST) -> float:
        """What is compared with the smallest effect: the upper bound at this one-sided level, at one half the mean; whatever
        the doubt hides."""
        if level == AT_SMALLEST:
            return way.mean + self.doubt.above
        end = self.own._upper(way, 1 - 2 * level)
        return math.inf if end is None else end

    def most(self, level: float) -> float | None:
        """The upper end of the two-sided interval of the cost; None where there is none."""
        ends = [end for way in self.ways if (end := self._upper(way, level)) is not None]
        return min(ends, default=None)

    def p(self, test: Test | None = None) -> float | None:
        """The p of whichever of *better* and *worse* they speak for; None with fewer than three pairs."""
        if len(self.values) < MINIMUM_PAIRS:
            return None
        return min(self.p_better(test), self.mirrored.p_better(test))

    def bounds(self, level: float) -> tuple[float | None, float | None]:
        """The interval of the cost that agrees with `p`: None where a claim is out of reach."""
        if len(self.values) < MINIMUM_PAIRS:
            return None, None
        least = self.mirrored.most(level)
        return None if least is None else -least, self.most(level)

    def same(self, smallest: float | None, *, alpha: float) -> bool:
        """Whether two one-sided tests show the cost to lie within the smallest effect; runs that one arm lost show nothing.

        Identical arms are the same, whatever the smallest effect.
        """
        if self.others:
            return self.own.same(smallest, alpha=alpha)
        if self.lost or self.lost_by_reference or len(self.values) < MINIMUM_PAIRS:
            return False
        raw = Counted(self.values)
        if self._constant(raw) and abs(raw.mean) <= self.slack and not self.doubt:
            return True
        if smallest is None:
            return False
        farthest, within = max(raw.mean + self.doubt.above, self.doubt.below - raw.mean), smallest + self.slack
        if self._constant(raw):
            return farthest <= within and 0.5 ** len(self.values) <= alpha
        error, freedom = self._error(raw)
        return farthest + _quantile(freedom, 1 - alpha) * error <= within

    def _error(self, way: Counted) -> tuple[float, int]:
        """The standard error of the mean, and its degrees of freedom."""
        n = len(way.costs)
        if not may_share(1 + len(self.others), n):
            return way.sd / math.sqrt(n), n - 1
        return max(way.sd, shared_sd((way.sd, *self.others), n)) / math.sqrt(n), 2 * (n - 1)

    def _constant(self, way: Counted) -> bool:
        return max(way.costs) - min(way.costs) <= self.slack and self._error(way)[0] <= self.slack

    def _p(self, way: Counted, test: Test | None = None) -> float:
        mean, n = way.mean + self.doubt.above, len(way.costs)
        if mean >= 0:
            return 1.0
        if self._constant(way):
            return 1.0 if mean >= -self.slack else _sign_p(n, way.against)
        if test is not None:
            p = test([cost + self.doubt.above for cost in way.costs])
            return 1.0 if p is None else p
        error, freedom = self._error(way)
        return 2 * float(special.stdtr(freedom, mean / error))

    def _upper(self, way: Counted, level: float) -> float | None:
        n = len(way.costs)
        if self._constant(way):
            return way.mean + self.doubt.above if _sign_p(n, way.against) <= 1 - level else None
        error, freedom = self._error(way)
        return way.mean + self.doubt.above + _quantile(freedom, (1 + level) / 2) * error


def may_share(arms: int, pairs: int) -> bool:
    """Whether arms may share their variances: one that is noisier than all others is then claimed in 5 % at most."""
    return arms > 1 and pairs >= pairs_to_share(arms)


def pairs_to_share(arms: int) -> int:
    return SHARING.get(arms, MINIMUM_PAIRS)


def shared_sd(sds: Sequence[float], pairs: int) -> float:
    """The root of the mean variance."""
    ordered = sorted(sds)
    if len(sds) >= CAPPED[0] and pairs >= CAPPED[1]:
        ordered[-1] = ordered[-2]
    largest = ordered[-1]
    return largest and largest * math.sqrt(math.fsum((sd / largest) ** 2 for sd in ordered) / len(ordered))


def _ways(known: Costs) -> Iterator[Counted]:
    """At their own costs; and with so many of the highest and of the lowest as lost, or left out, as far as these may be."""
    values, lost = known.values, known.lost
    n = len(values) + lost
    slots = min(math.ceil(n / ONE_IN), n - REMAINING)
    if not lost:
        yield Counted(values)
    if lost > max(slots, 0):
        return
    order = sorted(range(len(values)), key=lambda place: values[place])
    for low in range(slots - lost + 1):
        for high in range(slots - lost - low + 1):
            if not (lost or low or high):
                continue
            below, within, above = order[:low], order[low : len(order) - high], order[len(order) - high :]
            rest = tuple(values[place] for place in within)
            mean = math.fsum(rest) / len(rest)
            reach = _quantile(len(rest) - 1, 1 - RARE) * _sd(rest, mean) * math.sqrt(1 + 1 / len(rest))
            # A cost within that of a lost run stays as it is, though the others are judged without it, as if it were lost.
            counted = [min(values[place], mean + reach) for place in above]
            as_lost = [place for place in above if values[place] > mean + reach]
            # One of the reference far below is left out; any other may count as lost beside lost runs, which it spreads.
            near = [place for place in below if values[place] >= mean - reach]
            yield Counted(
                (*rest, *counted, *[mean + reach] * (lost + len(near))),
                lost + len(near) + len(as_lost),
                tuple(sorted([*below, *as_lost])),
            )


def _sd(costs: Sequence[float], mean: float) -> float:
    """Scaled, for the square of a large finite cost is none."""
    if len(costs) < 2:
        return 0.0
    largest = max(abs(cost - mean) for cost in costs)
    if not largest:
        return 0.0
    squares = math.fsum(((cost - mean) / largest) ** 2 for cost in costs)
    return largest * math.sqrt(squares / (len(costs) - 1))


@lru_cache(maxsize=4096)
def _quantile(freedom: int, probability: float) -> float:
    return float(special.stdtrit(freedom, probability))


@lru_cache(maxsize=4096)
def _sign_p(n: int, against: int) -> float:
    """The exact two-sided sign test of n signs, so many of them against."""
    return min(1.0, 2 * float(special.bdtr(against, n, 0.5)))
