"""Metrics and units in words: one spelling for terminal, page, figures, tables and paper; and which metrics come first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ablationlab.records.analysis import Comparison
from ablationlab.records.plan import Plan
from ablationlab.records.results import Run

#: Metrics of a run that are shown at a glance.
MOST_METRICS = 6
#: Words of metric names that are not in small letters.
_NAMES = {"ece": "ECE", "brier": "Brier"}
#: Where a reader needs more than the name.
_WHOLE = {
    "lr": "learning rate",
    "curve_loss": "validation loss (curve)",
    "ece": "calibration error (ECE)",
}


def metric_name(name: str, task: str | None = None) -> str:
    """A metric in words, with its task where it has one."""
    words = _WHOLE.get(name) or " ".join(_NAMES.get(word, word) for word in name.split("_"))
    return words if task is None else f"{words}, {task}"


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


def in_sentence(text: str, metrics: Iterable[str]) -> str:
    """A sentence with *metrics* in words; a name of one word is left, since it may be just a word."""
    names = sorted((name for name in metrics if "_" in name), key=len, reverse=True)
    if not names:
        return text
    pattern = rf"\b(?:{'|'.join(map(re.escape, names))})\b"
    return re.sub(pattern, lambda match: metric_name(match[0]), text)  # all at once: nothing is replaced twice
