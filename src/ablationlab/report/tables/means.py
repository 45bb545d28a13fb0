"""Means over seeds of what was recorded of every run: description, not inference."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from ablationlab.core.format import number
from ablationlab.core.grouping import grouped
from ablationlab.records.metrics import metric_name
from ablationlab.records.results import Results
from ablationlab.report.table import Table
from ablationlab.report.tables.tasks import arm_name


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


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
