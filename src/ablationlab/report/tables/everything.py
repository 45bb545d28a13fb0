"""Every table of a study beyond its effects: what terminal and page open behind the answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from ablationlab.analysis import wording
from ablationlab.core.format import number, plain
from ablationlab.core.grouping import grouped
from ablationlab.records.metrics import metric_name
from ablationlab.records.results import Results
from ablationlab.report.table import Table
from ablationlab.report.tables.answers import hypothesis_table
from ablationlab.report.tables.comparisons import text_table
from ablationlab.report.tables.readings import reading_table
from ablationlab.report.tables.study import (
    factor_table,
    interaction_table,
    noise_table,
    rate_table,
    simple_table,
    stability_table,
    sweep_table,
)
from ablationlab.report.tables.tasks import arm_name, task_table


def every_table(results: Results) -> list[Table]:
    """What the analysis has, where it has it."""
    analysis, verdict = results.analysis, results.verdict
    assert analysis is not None
    assert verdict is not None
    crossed, scores = analysis.interactions, analysis.evaluation
    found = [
        hypothesis_table(verdict),
        stability_table(analysis),
        text_table(analysis),
        None
        if analysis.readings is None
        else reading_table(analysis.readings, len(analysis.regimes), analysis.comparisons),
        factor_table(analysis, crossed) if crossed is not None and crossed.cells else None,
        None if crossed is None else interaction_table(crossed),
        simple_table(analysis),
        noise_table(analysis.noise, analysis.primary),
        clause_table("Deviations from the registration", [wording.deviation(known) for known in analysis.deviations]),
        clause_table("Scores of tasks", map(wording.evaluation_note, () if scores is None else scores.notes)),
        clause_table("Mind", dict.fromkeys(wording.caveat(c) for it in analysis.comparisons for c in it.caveats)),
    ]
    return [table for table in found if table is not None and table.rows]


def rate_tables(results: Results) -> list[Table]:
    """The sweep: every rate of every arm, and the best ones."""
    sweep = None if results.analysis is None else results.analysis.sweep
    if sweep is None or results.analysis is None:
        return []
    notes = clause_table("Learning rates", wording.sweep_notes(sweep))
    found = [sweep_table(sweep, results.analysis.variants), rate_table(sweep), notes]
    return [table for table in found if table is not None and table.rows]


def task_tables(results: Results) -> list[Table]:
    """Every task, and every metric that an evaluation measured."""
    tasks = task_table(results).without("sensitive", "meaning", "templates", "spread", "hash")
    return [table for table in (tasks, score_table(results)) if table.rows]


def clause_table(title: str, clauses: Iterable[str]) -> Table | None:
    """Clauses, one per row."""
    rows = [(plain(clause),) for clause in clauses]
    return Table.simple(title, [""], rows) if rows else None


def score_table(results: Results) -> Table:
    """Every run-level metric that an evaluation measured, as means over seeds."""
    arms = grouped((arm_name(run), run.evaluation) for run in results.runs if run.evaluation is not None)
    metrics = dict.fromkeys(name for members in arms.values() for evaluation in members for name in evaluation.metrics)
    rows = []
    for metric in metrics:
        means = [_mean([evaluation.metrics.get(metric) for evaluation in members]) for members in arms.values()]
        if any(mean is not None for mean in means):
            rows.append((metric_name(metric), *(number(mean, 4) for mean in means)))
    return Table.simple("Means over seeds", ["metric", *arms], rows, arms)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def probe_table(results: Results) -> Table:
    """Scalars of every arm when they were last measured, as means over seeds."""
    values: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    runs = [(run, run.probe_table().rows) for run in results.compared if run.done]
    for run, rows in runs:
        last = {(probe, row.measure, row.group or ""): row.value for _, probe, row in rows if row.at is None}
        for name, value in last.items():
            values.setdefault(name, {}).setdefault(arm_name(run), []).append(value)
    arms = dict.fromkeys(arm_name(run) for run, rows in runs if rows)
    cells = [(*name, *(number(_mean(by_arm.get(arm, [])), 4) for arm in arms)) for name, by_arm in values.items()]
    return Table.simple("Probes, last measured; means over seeds", ["probe", "measure", "of", *arms], cells, arms)
