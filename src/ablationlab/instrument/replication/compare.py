"""Compare a published table with a results folder: every figure with the interval of the difference, every direction with
our comparison.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ablationlab.analysis import analyze, read_results
from ablationlab.analysis.dataset import Absent, absent
from ablationlab.analysis.dataset import Value as AnalysisValue
from ablationlab.analysis.stability import EndedRun, ended_run, value_of
from ablationlab.core.errors import RecordError
from ablationlab.instrument.replication.published_table import Direction, PublishedFigure, PublishedTable, Value
from ablationlab.records.analysis import Absence, Analysis, Comparison
from ablationlab.records.metrics import Metric
from ablationlab.records.replication import (
    ChangedSetting,
    DirectionOutcome,
    DirectionReason,
    FigureOutcome,
    ReplicatedDirection,
    ReplicatedFigure,
    Replication,
    RunValue,
    RunWithoutValue,
    UnstableRuns,
)
from ablationlab.records.results import Results, Run
from ablationlab.records.settings import DEFAULT_REGIME, Study, flattened
from ablationlab.records.storage import content_hash
from ablationlab.stats import difference_of_means

LEVEL = 0.95


def replicate(
    table: PublishedTable, folder: Path, *, study: Study | None = None, analysis: Analysis | None = None
) -> Replication:
    """Compare *table* with the results in *folder*; nothing is trained or written.

    *study* is the table's own, to list settings in which the runs in the folder differ from it; *analysis* is the folder's,
    computed unless given.
    """
    results = Results.open(folder, strict=True)
    if results.plan is None:
        raise RecordError(f"{folder} is not a results folder: it has no plan.lock")
    plan = results.plan
    sealed = plan.study
    analysis = analysis if analysis is not None else analyze(read_results(folder, None))
    own = [(run, ended_run(run)) for run in results.compared]
    figures = [
        _figure(figure, variant, value, regime, own)
        for figure, regime in _places(table)
        for variant, value in figure.values.items()
    ]
    directions = [
        _direction(direction, regime, analysis, plan.metrics.get(direction.metric))
        for direction in table.directions
        for regime in (direction.regime, *(table.beside if direction.regime == DEFAULT_REGIME else ()))
    ]
    return Replication(
        table=table.name,
        title=table.title,
        about=table.about,
        citation=table.source.citation,
        date=table.source.date,
        url=table.source.url,
        table_hash=content_hash(table.model_dump(mode="json")),
        study=sealed.name,
        source_hash=plan.plan_hash,
        runs_ended=results.ended,
        runs_planned=len(plan.runs),
        changed=() if study is None else tuple(_changed(study, sealed, table.beside, own=True)),
        changed_beside=() if study is None else tuple(_changed(study, sealed, table.beside, own=False)),
        level=LEVEL,
        figures=tuple(figures),
        directions=tuple(directions),
    )


def _places(table: PublishedTable) -> list[tuple[PublishedFigure, str]]:
    """Every figure in its own regime, then, for contrast, those of the default regime in the regimes beside it."""
    own = [(figure, figure.regime) for figure in table.figures]
    return own + [(figure, regime) for regime in table.beside for figure, where in own if where == DEFAULT_REGIME]


def _value(run: Run, ended: EndedRun | None, figure: PublishedFigure) -> AnalysisValue:
    """The number of *run* that is compared with a published figure, or why there is none."""
    if figure.take is None or ended is None or ended.result.status == "diverged":
        return value_of(ended, figure.metric)
    curve = run.curves.get(figure.metric, np.empty(0))
    numbers = curve[np.isfinite(curve)]
    if not numbers.size:
        return absent(Absence.NOT_IN_CURVE, metric=figure.metric)
    return float({"minimum": numbers.min(), "maximum": numbers.max(), "last": numbers[-1]}[figure.take])


def _figure(
    figure: PublishedFigure, variant: str, published: Value, regime: str, runs: Sequence[tuple[Run, EndedRun | None]]
) -> ReplicatedFigure:
    values: list[RunValue] = []
    missing: list[RunWithoutValue] = []
    for run, ended in runs:
        if (run.regime, run.variant) != (regime, variant):
            continue
        value = _value(run, ended, figure)
        if isinstance(value, Absent):
            missing.append(RunWithoutValue(run=run.id, reason=value.reason, details=dict(value.details)))
        else:
            values.append(RunValue(run=run.id, seed=run.seed, value=value))
    numbers = np.array([seen.value for seen in values])
    mean = sd = difference = low = high = None
    outcome: FigureOutcome = "not-measured"
    method = status = None
    if values:
        made = difference_of_means(
            numbers, published.mean, n=published.n, sd=published.sd, rounding=figure.rounding, level=LEVEL
        )
        mean, difference = float(numbers.mean()), made.estimate
        sd = float(numbers.std(ddof=1)) if numbers.size > 1 else None
        low, high, method, status = made.low, made.high, made.method, made.status
        outcome = "no-interval" if made.holds_zero is None else "within" if made.holds_zero else "outside"
    return ReplicatedFigure(
        metric=figure.metric,
        take=figure.take,
        published_as=figure.published_as,
        definition=figure.definition,
        same_definition=figure.same_definition,
        note=figure.note,
        regime=regime,
        beside=regime != figure.regime,
        variant=variant,
        published=published.mean,
        published_sd=published.sd,
        published_n=published.n,
        digits=figure.digits,
        values=tuple(values),
        missing=tuple(missing),
        mean=mean,
        sd=sd,
        difference=difference,
        low=low,
        high=high,
        level=LEVEL,
        method=method,
        status=status,
        outcome=outcome,
    )


def _direction(direction: Direction, regime: str, analysis: Analysis, metric: Metric | None) -> ReplicatedDirection:
    comparison = analysis.comparison(direction.metric, regime, direction.variant, direction.reference)
    outcome, reason = _judged(direction, comparison)
    interval = None if comparison is None else comparison.main_interval
    of_stability = metric is not None and metric.family == "stability"
    defined = comparison or metric
    return ReplicatedDirection(
        metric=direction.metric,
        published_as=direction.published_as,
        note=direction.note,
        regime=regime,
        beside=regime != direction.regime,
        variant=direction.variant,
        reference=direction.reference,
        sign=direction.sign,
        pairs=len(direction.pairs),
        contrary=direction.contrary,
        comparison=None if comparison is None else comparison.id,
        label=None if comparison is None else comparison.label,
        n=0 if comparison is None else comparison.n,
        delta=None if comparison is None else comparison.delta,
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        transform="identity" if defined is None else defined.transform,
        unit="" if defined is None else defined.unit,
        p_adjusted=None if comparison is None else comparison.p_adjusted,
        outcome=outcome,
        reason=reason,
        smallest_effect=None if comparison is None else comparison.smallest_effect,
        survivors_only=comparison is not None and any(c.code == "survivors-only" for c in comparison.caveats),
        sensitivity=None if comparison is None else comparison.sensitivity,
        unstable=tuple(_unstable(direction, regime, analysis)) if of_stability else (),
    )


def _judged(direction: Direction, comparison: Comparison | None) -> tuple[DirectionOutcome, DirectionReason]:
    """By the corrected test of the analysis; an effect shown to be smaller than the smallest that matters is absent."""
    if comparison is None or comparison.delta is None:
        return "not-measured", "no-comparison"
    if comparison.sensitivity is not None and not comparison.sensitivity.sensitive:
        return "undecided", "not-sensitive"
    if comparison.outcome in ("better", "worse", "different"):
        same = (comparison.delta < 0) == (direction.sign == "lower")
        return ("transfers" if same else "reversed"), "difference-shown"
    if comparison.equivalence is not None and comparison.equivalence.equivalent:
        return "absent", "equivalent"
    return "undecided", "no-difference-shown"


def _unstable(direction: Direction, regime: str, analysis: Analysis) -> Iterator[UnstableRuns]:
    for name in (direction.reference, direction.variant):
        arm = None if analysis.stability is None else analysis.stability.arm(name, regime)
        if arm is not None:
            yield UnstableRuns(variant=arm.variant, unstable=arm.unstable_runs, runs=arm.runs)


def _changed(wanted: Study, sealed: Study, beside: Sequence[str], *, own: bool) -> Iterator[ChangedSetting]:
    """Settings of the runs that are not those of the table's study. Which seeds and variants were run, how bits are made and
    what is judged do not count: they make no other model of the one that was published.
    """
    keep = ("model", "training", "data", "regimes", "sweep", "evaluation")
    a, b = (flattened({key: study.model_dump(mode="json")[key] for key in keep}) for study in (wanted, sealed))
    for key in dict.fromkeys([*a, *b]):
        is_beside = any(key.startswith(f"regimes.{name}.") for name in beside)
        if a.get(key) != b.get(key) and is_beside != own and not key.endswith(".meaning"):
            yield ChangedSetting(key=key, ours=b.get(key), asked=a.get(key))
