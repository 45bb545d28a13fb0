"""Metrics and units in words: one spelling for terminal, page, figures, tables and paper; and which metrics come first."""

from __future__ import annotations

from collections.abc import Sequence

from ablationlab.records.analysis import Comparison
from ablationlab.records.metrics import metric_name
from ablationlab.records.plan import Plan
from ablationlab.records.results import Run

#: Metrics of a run that are shown at a glance.
MOST_METRICS = 6


def metric_of(comparison: Comparison) -> str:
    """The metric of a comparison in words. A macro average names its tasks; one of a single task goes by that task's name."""
    if len(comparison.averaged) == 1:
        return metric_name("task_accuracy" if comparison.task is None else comparison.metric, comparison.averaged[0])
    name = metric_name(comparison.metric, comparison.task)
    return f"{name} ({', '.join(comparison.averaged)})" if comparison.averaged else name


def main_metrics(runs: Sequence[Run], plan: Plan) -> list[str]:
    """The metrics of runs that are shown first: those of the criteria, then others that are not a function of one."""
    recorded = dict.fromkeys(name for run in runs if run.result is not None for name in run.result.metrics)
    criteria = sorted(plan.study.criteria, key=lambda criterion: criterion.role != "primary")
    asked = [criterion.metric for criterion in criteria]
    own = [name for name in recorded if name in plan.metrics and plan.metrics[name].derived_from is None]
    return [name for name in dict.fromkeys((*asked, *own)) if name in recorded][:MOST_METRICS]


def printed_unit(unit: str) -> str:
    """The unit as it is printed; empty for a pure number."""
    return "" if unit == "1" else unit


def axis(metric: str, unit: str) -> str:
    """An axis title: the metric in words, with its unit."""
    shown = printed_unit(unit)
    return f"{metric_name(metric)} ({shown})" if shown else metric_name(metric)
