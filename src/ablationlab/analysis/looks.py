"""A study that is looked at while its seeds come in: what its registered comparisons show at a planned look.

Everything here follows from the records and the sealed design, so a study that was killed between two looks, or analyzed
again later, comes to the same decision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from ablationlab.analysis.costs import costs_of, interval_at, sharing, with_claims
from ablationlab.analysis.dataset import Dataset
from ablationlab.records.analysis import Comparison
from ablationlab.records.plan import Finding, LookFinding, LookResult
from ablationlab.records.settings import Design
from ablationlab.stats import Interval, PValue, as_ratio, paired_t_interval, paired_t_test, paired_tost
from ablationlab.stats._common import complement
from ablationlab.stats.costs import Costs
from ablationlab.stats.sequential import Looks, chance_of_showing

#: The names of the test and the interval of a planned look.
TEST, INTERVAL = "sequential-t", "repeated-t"

_LARGEST_LOG: Final = 700.0
#: By id, what a comparison shared with others at each look so far.
Shared = Mapping[str, Sequence[tuple[float, ...]]]


def shared_at_looks(dataset: Dataset, comparisons: Sequence[Comparison]) -> Shared:
    """What each comparison with a shared variance had to share, look by look."""
    asked = [comparison for comparison in comparisons if comparison.variance == "shared"]
    if dataset.design is None or dataset.look is None or not asked:
        return {}
    at = [sharing([_so_far(dataset, n, c) for c in asked]) for n in _looks(dataset.design).pairs[: dataset.look]]
    return {own[0].id: [c.shared_with for c in own] for own in zip(*at, strict=True)}


def at_look(dataset: Dataset, comparison: Comparison, shared: Shared) -> Comparison:
    """A registered comparison with the p-value, interval and equivalence test that hold at a planned look.

    Others, and those of a study without looks, stay as they are.
    """
    if dataset.design is None or dataset.look is None or comparison.role is None or comparison.label != "registered":
        return comparison
    looks, here, alpha = _looks(dataset.design), dataset.look - 1, comparison.alpha
    deltas = [pair.delta for pair in comparison.pairs]
    if not deltas:
        return comparison
    last = paired_t_test(deltas)
    test = PValue(
        TEST,
        looks.p_value(_p_values(dataset, looks, comparison, shared)),
        last.statistic,
        last.n,
        exact=True,
        status=last.status,
    )
    ordinary = paired_t_interval(deltas, level=1 - float(looks.levels(alpha)[here]))
    interval = Interval(
        INTERVAL,
        complement(alpha),
        ordinary.estimate,
        ordinary.low,
        ordinary.high,
        ordinary.n,
        exact=True,
        status=ordinary.status,
    )
    equivalence = comparison.equivalence
    # Two one-sided tests at alpha each: the levels of a two-sided design at 2 alpha, halved.
    one_sided = [float(level) / 2 for level in looks.levels(2 * alpha)]
    if equivalence is not None:
        equivalence = paired_tost(deltas, smallest_effect=equivalence.bounds, alpha=one_sided[here])
    ratios = dict(comparison.ratios)
    # Early levels are so small that the interval of a log difference may leave the range of exp; it has no ratio then.
    if comparison.transform == "log" and all(abs(end or 0.0) < _LARGEST_LOG for end in (interval.low, interval.high)):
        ratios[INTERVAL] = as_ratio(interval.estimate, interval.low, interval.high)
    comparison = with_claims(comparison.model_copy(update={"test": TEST}), equivalence=one_sided[here])
    if comparison.cost is not None:  # a guard is looked at as often; what an earlier look showed stays shown
        so_far = [costs_of(before) for before in _by_look(dataset, looks, comparison, shared)]
        bounds = [costs.own.bounds(1 - float(level)) for costs, level in zip(so_far, looks.levels(alpha), strict=False)]
        low, high = (
            end if here_too is not None else None for end, here_too in zip(_in_all(bounds), bounds[-1], strict=True)
        )
        same = not comparison.cost.lost and not comparison.cost.lost_by_reference
        same &= any(
            costs.same(comparison.smallest_effect, alpha=level) for costs, level in zip(so_far, one_sided, strict=False)
        )
        claim = _claim(so_far, looks) or comparison.cost.claim
        changed = {"low": low, "high": high, "same": same, "claim": claim} | _sizes(comparison, so_far, looks)
        comparison = comparison.model_copy(update={"cost": comparison.cost.model_copy(update=changed)})
    return comparison.model_copy(
        update={
            "interval": INTERVAL,
            "p": test.p,
            "tests": comparison.tests | {TEST: test},
            "intervals": comparison.intervals | {INTERVAL: interval},
            "equivalence": equivalence,
            "ratios": ratios,
        }
    )


def deciding_at_look(dataset: Dataset, comparison: Comparison, shared: Shared) -> Comparison:
    """The comparison with the repeated interval that agrees with its adjusted sequential p.

    Its level is the one that the correction over all variants leaves it. The repeated intervals of all looks hold at once,
    so what lies in all of them so far is kept: a difference that an earlier look showed stays shown.
    """
    if dataset.design is None or dataset.look is None or comparison.deciding is None or not comparison.pairs:
        return comparison
    looks, level = _looks(dataset.design), comparison.deciding.level
    levels = looks.levels(complement(level))
    last = interval_at(comparison, float(levels[dataset.look - 1]))
    found = [
        interval_at(so_far, float(spent)) if so_far.pairs else last
        for so_far, spent in zip(_by_look(dataset, looks, comparison, shared), levels, strict=False)
    ]
    low, high = _in_all([(interval.low, interval.high) for interval in found])
    interval = Interval(INTERVAL, level, last.estimate, low, high, last.n, exact=True, status=last.status)
    return comparison.model_copy(update={"deciding": interval})


def _claim(so_far: Sequence[Costs], looks: Looks) -> Literal["better", "worse"] | None:
    """That of the look which the sequential p-value is of: a difference keeps the direction in which it was shown."""
    shown: list[tuple[float, Literal["better", "worse"]]] = []
    for number, costs in enumerate(so_far):
        better, worse = costs.p_better(), costs.mirrored.p_better()
        if better != worse:
            alone = looks.p_value((*(None,) * number, min(better, worse)))
            shown += [] if alone is None else [(alone, "better" if better < worse else "worse")]
    return min(shown)[1] if shown else None


def _sizes(comparison: Comparison, so_far: Sequence[Costs], looks: Looks) -> dict[str, float | None]:
    """A size that an earlier look claimed stays claimed, unless the claim is out of reach by now."""
    found: dict[str, float | None] = {}
    for claim, sign in (("better", 1.0), ("worse", -1.0)):
        sizes = []
        for costs, level in zip(so_far, looks.size_levels().tolist(), strict=False):
            side = costs if claim == "better" else costs.mirrored
            way = side.deciding(comparison.alpha, comparison.smallest_effect or 0.0, level=level)
            sizes.append(None if way is None else side.size(way, level))
        known = [size for size in sizes if size is not None and math.isfinite(size)]
        found[f"size_{claim}"] = None if sizes[-1] is None or not known else sign * min(known)
    return found


def _in_all(intervals: Sequence[tuple[float | None, float | None]]) -> tuple[float | None, float | None]:
    """What lies in the intervals of all looks; where nothing does, the last one."""
    lows, highs = ([end for end in ends if end is not None] for ends in zip(*intervals, strict=True))
    low, high = max(lows, default=None), min(highs, default=None)
    return intervals[-1] if low is not None and high is not None and low > high else (low, high)


def look_result(dataset: Dataset, comparisons: Sequence[Comparison]) -> LookResult | None:
    """What a planned look finds, from the corrected comparisons; None where this is no planned look."""
    if dataset.design is None or dataset.look is None:
        return None
    findings = [
        _finding(dataset, dataset.design, comparison) for comparison in comparisons if comparison.role == "primary"
    ]
    looks = dataset.design.looks
    seeds = looks[dataset.look - 1]
    return LookResult(
        number=dataset.look,
        of=len(looks),
        seeds=seeds,
        later=looks[dataset.look :],
        stop=seeds >= (dataset.own or looks[-1])
        or (bool(findings) and all(finding.finding != "undecided" for finding in findings)),
        findings=tuple(findings),
    )


def _finding(dataset: Dataset, design: Design, comparison: Comparison) -> LookFinding:
    looks, number = _looks(design), dataset.look or 1
    chance = None
    if number < len(design.looks) and comparison.delta is not None and comparison.delta_sd:
        effect = comparison.smallest_effect
        chance = chance_of_showing(
            looks, number - 1, comparison.delta, comparison.delta_sd, alpha=comparison.alpha, smallest_effect=effect
        )
    finding: Finding = "undecided"
    if comparison.outcome in ("better", "worse", "different"):
        finding = "difference"
    elif comparison.equivalence is not None and comparison.equivalence.equivalent:
        finding = "equivalent"
    elif chance is not None and chance < design.futility:
        finding = "futile"
    return LookFinding(
        comparison=comparison.id,
        finding=finding,
        p=_p(comparison),
        level=float(looks.levels(comparison.alpha)[number - 1]),
        p_sequential=comparison.p,
        chance=chance,
    )


def _looks(design: Design) -> Looks:
    return Looks(design.looks, design.spending)


def _p_values(dataset: Dataset, looks: Looks, comparison: Comparison, shared: Shared) -> tuple[float | None, ...]:
    """The paired t-test at each look so far, on the pairs that it had."""
    return tuple(_p(so_far) for so_far in _by_look(dataset, looks, comparison, shared))


def _p(comparison: Comparison) -> float | None:
    if comparison.direction is not None:
        return costs_of(comparison).p()
    return paired_t_test([pair.delta for pair in comparison.pairs]).p if comparison.pairs else None


def _by_look(dataset: Dataset, looks: Looks, comparison: Comparison, shared: Shared) -> list[Comparison]:
    """The comparison as it was at each look so far."""
    made = [_so_far(dataset, seeds, comparison) for seeds in looks.pairs[: dataset.look]]
    known = shared.get(comparison.id, [()] * len(made))
    return [c.model_copy(update={"shared_with": others}) for c, others in zip(made, known, strict=True)]


def _so_far(dataset: Dataset, seeds: int, comparison: Comparison) -> Comparison:
    """The comparison with the first *seeds* of the study alone."""
    counted = set(dataset.seeds[:seeds])
    return comparison.model_copy(
        update={
            "pairs": tuple(pair for pair in comparison.pairs if pair.seed in counted),
            "missing": tuple(lost for lost in comparison.missing if lost.seed in counted),
        }
    )
