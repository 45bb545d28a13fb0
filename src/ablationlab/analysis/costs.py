"""What a comparison shows, from its pairs and what is missing: its p, the interval at any level, what may be claimed.

`stats.costs` has the rules. Independent arms have no pairs: a run that one of them lost takes the claim for it away, but for
one that stopped before it reached a target (`stats.unpaired`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Literal

import numpy as np

from ablationlab.core.grouping import grouped
from ablationlab.core.seeding import stream
from ablationlab.records.analysis import Absence, Comparison, CostRecord, Missing
from ablationlab.stats import Interval, compare_unpaired, paired_t_interval
from ablationlab.stats._common import MINIMUM_PAIRS, complement
from ablationlab.stats.costs import SLACK, Costs, Test
from ablationlab.stats.families import deciding_interval
from ablationlab.stats.intervals import RESAMPLES
from ablationlab.stats.results import UnpairedComparison
from ablationlab.stats.significance import TESTS
from ablationlab.stats.unpaired import with_unreached

#: Tests whose interval is that of Student's t; at a planned look `looks.deciding_at_look` turns it into the repeated one.
T_TESTS = ("paired-t", "sequential-t")


def lost_alone(comparison: Comparison, arm: str) -> list[Missing]:
    """The runs that *arm* alone lost; of independent arms, which share no seed, all that it lost."""
    others = {lost.seed for lost in comparison.missing if lost.arm != arm} if comparison.design == "paired" else set()
    return [lost for lost in comparison.missing if lost.arm == arm and lost.seed not in others]


def costs_of(comparison: Comparison) -> Costs:
    """One cost per seed of a paired comparison with a direction."""
    sign = -1.0 if comparison.direction == "higher" else 1.0
    lost, lost_by_reference = (len(lost_alone(comparison, arm)) for arm in (comparison.variant, comparison.reference))
    logarithms = comparison.transform == "log"
    return Costs(
        tuple(sign * pair.delta for pair in comparison.pairs),
        tuple(1.0 if logarithms else max(abs(pair.variant), abs(pair.reference)) for pair in comparison.pairs),
        lost,
        lost_by_reference,
        comparison.doubt_of_cost,
        comparison.shared_with,
    )


def sharing(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Each with the SDs of the other arms' costs, where a shared variance is registered."""
    asked = [c for c in comparisons if c.variance == "shared" and c.direction is not None and c.design == "paired"]
    others: dict[str, tuple[float, ...]] = {}
    for group in grouped(((c.metric, c.task, c.regime, c.reference, c.transform), c) for c in asked).values():
        sds = {c.id: sd for c in group if (sd := costs_of(c).ordinary_sd) is not None}
        others |= {c.id: tuple(sd for id, sd in sds.items() if id != c.id) for c in group}
    return [c.model_copy(update={"shared_with": others[c.id]}) if c.id in others else c for c in comparisons]


def with_claims(comparison: Comparison, *, resamples: int = RESAMPLES, equivalence: float | None = None) -> Comparison:
    """The comparison with its p and its cost, from its pairs; *equivalence*: the level of each one-sided test, else alpha."""
    if comparison.direction is None or comparison.delta is None:
        return comparison
    if comparison.design == "unpaired":
        return _unpaired(comparison)
    costs = costs_of(comparison)
    test = None if comparison.test in T_TESTS else _registered(comparison, resamples)
    p_better, p_worse = (side.p_better(test) for side in (costs, costs.mirrored))
    p = None if costs.p() is None else min(p_better, p_worse)
    claim: Literal["better", "worse"] | None = None
    if p is not None and p_better != p_worse:
        claim = "better" if p_better < p_worse else "worse"
    low, high = costs.own.bounds(complement(comparison.alpha))
    better, worse = (
        side.deciding(comparison.alpha, comparison.smallest_effect or 0.0, test) for side in (costs, costs.mirrored)
    )
    told = {"better": [better], "worse": [worse]}.get(claim or "", [better, worse])
    far_out = sorted({place for way in told if way is not None for place in way.as_lost})
    alone = [
        tuple(missing.seed for missing in lost_alone(comparison, arm))
        for arm in (comparison.variant, comparison.reference)
    ]
    record = CostRecord.model_construct(
        claim=claim,
        better=None if better is None else better.mean,
        worse=None if worse is None else -worse.mean,
        size_better=None if better is None else costs.size(better),
        size_worse=None if worse is None else -costs.mirrored.size(worse),
        low=low,
        high=high,
        same=costs.same(comparison.smallest_effect, alpha=comparison.alpha if equivalence is None else equivalence),
        lost=alone[0],
        lost_by_reference=alone[1],
        far_out=tuple(comparison.pairs[place].seed for place in far_out),
        slack=costs.slack,
    )
    made = comparison.model_copy(update={"p": p, "cost": record})
    assert made.estimate is not None
    low, high = _holding(low, high, made.estimate if comparison.direction == "lower" else -made.estimate)
    return made.model_copy(update={"cost": record.model_copy(update={"low": low, "high": high})})


def _holding(low: float | None, high: float | None, estimate: float) -> tuple[float | None, float | None]:
    """The interval, or one that also holds the estimate, which may be of another way of counting where runs are far out."""
    return None if low is None else min(low, estimate), None if high is None else max(high, estimate)


def _registered(comparison: Comparison, resamples: int) -> Test:
    def registered(sample: Sequence[float]) -> float | None:
        test = TESTS[comparison.test](np.array(sample), resamples, stream(0, "analysis", comparison.id, "claim"))
        # By ranks a sample may lie above 0 whose mean is below it.
        return test.p if (test.statistic or 0.0) < 0 else None

    return registered


def _unpaired(comparison: Comparison) -> Comparison:
    assert comparison.delta is not None
    sign = -1.0 if comparison.direction == "higher" else 1.0
    estimate = sign * comparison.delta
    interval = comparison.intervals.get(comparison.interval)
    bounds = [None, None] if interval is None else [interval.low, interval.high]
    ends = sorted(sign * end for end in bounds if end is not None)
    low, high = ends if len(ends) == 2 else (None, None)
    lost, by_reference = (
        tuple(missing.seed for missing in lost_alone(comparison, arm))
        for arm in (comparison.variant, comparison.reference)
    )
    logarithms = comparison.transform == "log"
    samples = [[math.log(value) if logarithms else value for value in sample] for sample in _samples(comparison)]
    slack = SLACK * (1.0 if logarithms else median(abs(value) for sample in samples for value in sample))
    p, tost = comparison.tests[comparison.test].p if comparison.tests else None, comparison.equivalence
    constant = comparison.n >= MINIMUM_PAIRS and all(max(sample) - min(sample) <= slack for sample in samples)
    identical = constant and abs(estimate) <= slack
    if constant:  # which of all values went to which arm is as unlikely as it can be
        p = 1.0 if identical else 2 / math.comb(sum(map(len, samples)), len(samples[0]))
    better: float | None = estimate
    worse: float | None = estimate
    speaks_for = "better" if estimate < 0 else "worse"
    out_of_reach = False
    if lost:
        made = _counted(comparison, comparison.variant)
        better, high = (None, None) if made is None else (made.delta, made.interval.high)
        if speaks_for == "better":
            p, out_of_reach = (p, True) if made is None else (made.test.p, made.delta >= 0)
    if by_reference:
        made = _counted(comparison, comparison.reference)
        worse, low = (None, None) if made is None else (made.delta, made.interval.low)
        if speaks_for == "worse":
            p, out_of_reach = (p, True) if made is None else (made.test.p, made.delta <= 0)
    record = CostRecord(
        claim=None if p is None or not estimate else "better" if estimate < 0 else "worse",
        better=better,
        worse=worse,
        size_better=better,
        size_worse=worse,
        low=low,
        high=high,
        same=not lost and not by_reference and (identical or (tost is not None and bool(tost.equivalent))),
        lost=lost,
        lost_by_reference=by_reference,
        slack=slack,
    )
    return comparison.model_copy(update={"p": 1.0 if p is not None and out_of_reach else p, "cost": record})


def _counted(comparison: Comparison, arm: str, level: float | None = None) -> UnpairedComparison | None:
    """The comparison with the runs that *arm* lost counted against the claim for it; None where that is out of reach."""
    lost, samples = lost_alone(comparison, arm), _samples(comparison)
    if any(missing.reason != Absence.NOT_REACHED for missing in lost):
        return None
    place = (comparison.variant, comparison.reference).index(arm)
    counted = with_unreached(samples[place], [float(str(missing.details["step"])) for missing in lost])
    if counted is None:
        return None
    samples[place] = counted.tolist()
    made = compare_unpaired(*samples, level=complement(comparison.alpha) if level is None else level)
    return None if made.test.p is None else made


def _samples(comparison: Comparison) -> list[list[float]]:
    return [
        [run.value for run in comparison.runs if run.arm == arm] for arm in (comparison.variant, comparison.reference)
    ]


def interval_at(comparison: Comparison, alpha: float) -> Interval:
    """The deltas that the registered test does not reject at *alpha*, lost and far-out runs counted as it counts them."""
    level = complement(max(alpha, 1e-12))  # a first look may spend next to nothing
    if comparison.design == "unpaired":
        made = compare_unpaired(*_samples(comparison), level=level, transform=comparison.transform).interval
        cost = comparison.cost
        if cost is None or not (cost.lost or cost.lost_by_reference):
            return made
        low, high = (made.low, made.high) if comparison.direction == "lower" else (made.high, made.low)
        if cost.lost:
            counted = _counted(comparison, comparison.variant, level)
            high = None if counted is None else counted.interval.high
        if cost.lost_by_reference:
            counted = _counted(comparison, comparison.reference, level)
            low = None if counted is None else counted.interval.low
        low, high = (low, high) if comparison.direction == "lower" else (high, low)
        if comparison.estimate is not None:
            low, high = _holding(low, high, comparison.estimate)
            made = replace(made, estimate=comparison.estimate)
        gone = (low is None or high is None) and made.status == "ok"
        return replace(made, low=low, high=high, status="unbounded" if gone else made.status)
    deltas = [pair.delta for pair in comparison.pairs]
    ordinary = paired_t_interval(deltas, level=level)
    if comparison.direction is None:
        if comparison.test in T_TESTS:
            return ordinary
        rejected = comparison.p is not None and comparison.p <= alpha
        rng = stream(0, "analysis", comparison.id, "deciding")
        return deciding_interval(deltas, test=comparison.test, alpha=alpha, rejected=rejected, rng=rng)
    costs = costs_of(comparison)
    if comparison.test in T_TESTS:
        low, high = costs.bounds(level)
    else:
        ends = [_inverted(side, comparison, alpha) for side in (costs.mirrored, costs)]
        low, high = None if ends[0] is None else -ends[0], ends[1]
    if comparison.direction == "higher":
        low, high = None if high is None else -high, None if low is None else -low
    if comparison.estimate is not None:
        low, high = _holding(low, high, comparison.estimate)
    status = "ok" if low is not None and high is not None else ordinary.status
    return Interval(
        comparison.test,
        level,
        comparison.estimate if comparison.estimate is not None else ordinary.estimate,
        low,
        high,
        ordinary.n,
        exact=True,
        status="unbounded" if (low is None or high is None) and status == "ok" else status,
    )


def _inverted(costs: Costs, comparison: Comparison, alpha: float) -> float | None:
    """The upper end of the interval that the registered test gives, by the mildest way of counting."""
    way = costs.mildest(alpha)
    if way is None:
        return None
    rng, p = stream(0, "analysis", comparison.id, "deciding"), _registered(comparison, RESAMPLES)(way.costs)
    rejected = p is not None and p <= alpha and way.mean < 0
    made = deciding_interval(way.costs, test=comparison.test, alpha=alpha, rejected=rejected, rng=rng)
    return None if made.high is None else made.high + costs.doubt.above
