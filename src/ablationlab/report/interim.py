"""Pairs of runs that are complete while a study still trains, described and not tested: for the page of `watch`.

There is no p-value, no interval and no verdict in here: a test that was registered for all pairs, made whenever one more is
there, finds a difference sooner or later where there is none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from ablationlab.core.format import count, difference, several
from ablationlab.records.metrics import metric_name
from ablationlab.records.results import Results, Run
from ablationlab.records.settings import Criterion

#: Rows that the page shows, in the order in which the criteria are registered.
MOST_ROWS = 200


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
    """For every registered criterion, in its order, the arms of which a pair is complete."""
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
    if not known and not lost:
        return
    metric = results.metric(criterion.metric)
    log = metric is not None and metric.transform == "log" and all(min(pair) > 0 for pair in known)
    if log:
        known = [(math.log(value), math.log(base)) for value, base in known]
    yield InterimPairs(criterion, *contrast, len(both), lost, tuple(value - base for value, base in known), log)


def interim_rows(results: Results) -> list[dict[str, str]]:
    """The same as texts."""
    rows = []
    for pairs in interim_pairs(results)[:MOST_ROWS]:
        name = pairs.criterion.metric
        metric = results.metric(name)
        values = pairs.differences
        shown = difference(fmean(values), min(values), max(values), log=pairs.log) if values else difference(None)
        unit = "%" if shown.unit == "%" else results.unit(name)
        better = "" if metric is None or metric.direction is None else f"{metric.direction} is better"
        rows.append(
            {
                "metric": metric_name(name) + (f", {unit}" if unit not in ("", "1") else ""),
                "role": pairs.criterion.role,
                "better": better,
                "regime": pairs.criterion.regime,
                "arms": f"{pairs.variant} \N{MINUS SIGN} {pairs.reference}",
                "pairs": f"{count(len(values))} of {count(pairs.planned)}",
                "lost": count(pairs.lost) if pairs.lost else "",
                "mean": shown.delta,
                "range": shown.range if len(values) > 1 else "",
            }
        )
    return rows


def look_pending(results: Results) -> bool:
    """Whether a planned look is still to be taken, so that runs may follow those that are planned now."""
    plan = results.plan
    return plan is not None and plan.study.design is not None and not plan.stopped


def interim_note(results: Results) -> str:
    """When the registered test is made, and why it is not made here."""
    plan = results.plan
    why = (
        "So there is no p-value, no interval and no verdict here. Testing again after every pair finds a difference sooner "
        "or later, even where there is none. Do not stop or change the study because of these numbers."
    )
    if plan is None or plan.study.design is None:
        return f"The registered test is made once, when every run has ended. {why}"
    if not look_pending(results):
        return f"The last planned look was taken. {why}"
    looks, asked = plan.study.design.looks, len(plan.study.seeds)
    number, end = next((n, end) for n, end in enumerate(looks, start=1) if end >= asked)
    look, seeds = f"Look {number} of {len(looks)}", several(end, "seed")
    return f"{look} comes when {seeds} of every arm have ended; nothing is tested before. {why}"
