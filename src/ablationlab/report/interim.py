"""Pairs of runs that are complete while a study still trains, described and not tested: for the page of `watch`.

There is no p-value, no interval and no answer in here: a test that was registered for all pairs, made whenever one more is
there, finds a difference sooner or later where there is none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from ablationlab.core.format import count, difference
from ablationlab.records.metrics import metric_name
from ablationlab.records.results import Results, Run
from ablationlab.records.settings import Criterion
from ablationlab.report.effects import LOST, Effect
from ablationlab.report.slots import NOTHING, Scale, Slot


@dataclass(frozen=True)
class InterimPairs:
    """The complete pairs of two arms on the metric of a criterion; differences are the variant's value less the reference's,
    or of their logarithms where the metric is compared so. *lost*: pairs of which a run diverged."""

    criterion: Criterion
    variant: str
    reference: str
    planned: int
    lost: int
    differences: tuple[float, ...]
    log: bool


def interim_pairs(results: Results) -> list[InterimPairs]:
    """For every registered criterion, in its order, the arms that are paired."""
    plan = results.plan
    if plan is None:
        return []
    arms: dict[tuple[str, str], dict[object, Run]] = {}
    for run in results.compared:
        arms.setdefault((run.regime, run.variant), {})[plan.study.pair_of(run.planned)] = run
    against = [(variant, results.baseline) for variant in results.variants if variant != results.baseline]
    return [
        pairs
        for criterion in plan.study.criteria
        for variant, reference in ([criterion.contrast] if criterion.contrast is not None else against)
        for pairs in _pairs(results, criterion, (variant, reference), arms)
    ]


def _pairs(
    results: Results, criterion: Criterion, contrast: tuple[str, str], arms: dict[tuple[str, str], dict[object, Run]]
) -> Iterator[InterimPairs]:
    ours, theirs = (arms.get((criterion.regime, name), {}) for name in contrast)
    both = [(run, theirs[key]) for key, run in ours.items() if key in theirs]
    ended = [(run, other) for run, other in both if run.done and other.done]
    values = [(run.metric(criterion.metric), other.metric(criterion.metric)) for run, other in ended]
    known = [(value, base) for value, base in values if value is not None and base is not None]
    lost = sum("diverged" in (run.state, other.state) for run, other in ended)
    if not both:
        return
    metric = results.metric(criterion.metric)
    log = metric is not None and metric.transform == "log" and all(min(pair) > 0 for pair in known)
    if log:
        known = [(math.log(value), math.log(base)) for value, base in known]
    yield InterimPairs(criterion, *contrast, len(both), lost, tuple(value - base for value, base in known), log)


def interim_effects(results: Results) -> tuple[Effect, ...]:
    """A row for each, without interval, p and answer: the mean so far, and a tick per pair."""
    return tuple(_effect(results, pairs) for pairs in interim_pairs(results))


def _effect(results: Results, pairs: InterimPairs) -> Effect:
    name, values = pairs.criterion.metric, pairs.differences
    metric = results.metric(name)
    turn = -1.0 if metric is not None and metric.direction == "higher" else 1.0
    mean = fmean(values) if values else None
    unit = results.unit(name)
    shown = difference(mean, min(values), max(values), log=pairs.log, unit=unit) if values else None
    scale: Scale = "change" if shown is not None and shown.unit == "%" else "as it is"
    return Effect(
        id="",
        metric=name,
        name=metric_name(name),
        unit="%" if scale == "change" else "" if unit == "1" else unit,
        variant=pairs.variant,
        reference=pairs.reference,
        regime=pairs.criterion.regime,
        role=pairs.criterion.role,
        label="registered",
        estimate=NOTHING if shown is None else Slot(shown.delta, "", mean, scale),
        n=Slot(f"{count(len(values))} of {count(pairs.planned)}", "", len(values)),
        flags=(LOST,) if pairs.lost else (),
        drawn=None if mean is None else (turn * mean, None, None),
        ticks=tuple(turn * value for value in values),
        smallest=pairs.criterion.smallest_effect,
    )


def look_pending(results: Results) -> bool:
    """Whether a planned look is still to be taken, so that runs may follow those that are planned now."""
    plan = results.plan
    return plan is not None and plan.study.design is not None and not plan.stopped
