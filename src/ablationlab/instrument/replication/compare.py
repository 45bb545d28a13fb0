"""Compare a published table with a results folder: every figure with the interval of the difference, every direction with
our comparison.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ablationlab.analysis import analyze, read_results
from ablationlab.analysis.dataset import Absent, Value, absent
from ablationlab.analysis.stability import EndedRun, ended_run, value_of
from ablationlab.core.errors import RecordError
from ablationlab.instrument.replication.published_table import PublishedTable
from ablationlab.records.analysis import Absence, Analysis, Comparison
from ablationlab.records.metrics import Metric
from ablationlab.records.replication import (
    ChangedSetting,
    DirectionOutcome,
    DirectionReason,
    FigureOutcome,
    PublishedDirection,
    PublishedFigure,
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
    figures = [_figure(figure, variant, regime, own) for figure, regime in _places(table) for variant in figure.values]
    directions = [
        _direction(direction, regime, analysis, plan.metrics.get(direction.metric))
        for direction in table.directions
        for regime in (direction.regime, *(table.beside if direction.regime == DEFAULT_REGIME else ()))
    ]
    return Replication(
        table=table.name,
        title=table.title,
        about=table.about,
        source=table.source,
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


def _value(run: Run, ended: EndedRun | None, figure: PublishedFigure) -> Value:
    """The number of *run* that is compared with a published figure, or why there is none."""
    if figure.take is None or ended is None or ended.result.status == "diverged":
        return value_of(ended, figure.metric)
    curve = run.curves.get(figure.metric, np.empty(0))
    numbers = curve[np.isfinite(curve)]
    if not numbers.size:
        return absent(Absence.NOT_IN_CURVE, metric=figure.metric)
    return float({"minimum": numbers.min(), "maximum": numbers.max(), "last": numbers[-1]}[figure.take])


def _figure(
    figure: PublishedFigure, variant: str, regime: str, runs: Sequence[tuple[Run, EndedRun | None]]
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
    difference = None
    outcome: FigureOutcome = "not-measured"
    if values:
        theirs = figure.values[variant]
        difference = difference_of_means(
            numbers, theirs.mean, n=theirs.n, sd=theirs.sd, rounding=figure.rounding, level=LEVEL
        )
        holds_zero = difference.holds_zero
        outcome = "no-interval" if holds_zero is None else "within" if holds_zero else "outside"
    return ReplicatedFigure(
        published=figure,
        regime=regime,
        variant=variant,
        values=tuple(values),
        missing=tuple(missing),
        mean=float(numbers.mean()) if values else None,
        sd=float(numbers.std(ddof=1)) if numbers.size > 1 else None,
        difference=difference,
        outcome=outcome,
    )


def _direction(
    direction: PublishedDirection, regime: str, analysis: Analysis, metric: Metric | None
) -> ReplicatedDirection:
    comparison = analysis.comparison(direction.metric, regime, direction.variant, direction.reference)
    outcome, reason = _judged(direction, comparison)
    of_stability = metric is not None and metric.family == "stability"
    defined = comparison or metric
    return ReplicatedDirection(
        published=direction,
        regime=regime,
        comparison=comparison,
        transform="identity" if defined is None else defined.transform,
        outcome=outcome,
        reason=reason,
        unstable=tuple(_unstable(direction, regime, analysis)) if of_stability else (),
    )


def _judged(direction: PublishedDirection, comparison: Comparison | None) -> tuple[DirectionOutcome, DirectionReason]:
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


def _unstable(direction: PublishedDirection, regime: str, analysis: Analysis) -> Iterator[UnstableRuns]:
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
