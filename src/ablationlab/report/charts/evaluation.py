"""Evaluation: accuracy by task beside chance and n-grams, loss by position; calibration: reliability and temperature."""

from __future__ import annotations

import math
from collections.abc import Iterator
from math import isnan
from statistics import fmean
from typing import TYPE_CHECKING, Any

import altair as alt

from ablationlab.core.grouping import grouped
from ablationlab.report.charts.curves import round_to
from ablationlab.report.charts.theme import (
    INK,
    MARKS_ALONE,
    RULE,
    Figure,
    Tables,
    figure,
    tip,
    variant_colour,
    variant_dash,
    variant_shape,
)
from ablationlab.report.tables.tasks import task_of

if TYPE_CHECKING:
    from ablationlab.records.evaluation import Evaluation
    from ablationlab.records.results import Results, Run


def evaluated(results: Results, regime: str) -> Iterator[tuple[Run, Evaluation]]:
    """The runs of a regime that were evaluated, with their evaluation."""
    for run in results.compared:
        if run.regime == regime and run.evaluation is not None and run.evaluation.status != "not-evaluable":
            yield run, run.evaluation


def task_rows(results: Results, regime: str) -> list[dict[str, Any]]:
    """One row per run and task: the accuracy, averaged over prompt templates."""
    found = []
    for run, evaluation in evaluated(results, regime):
        cells = grouped(
            (task_of(task).label, task.accuracy)
            for task in evaluation.tasks
            if task.weights == "final" and task.accuracy is not None
        )
        found += [
            {
                "run": run.id,
                "variant": run.variant,
                "seed": str(run.seed),
                "task": name,
                "accuracy": fmean(values) * 100,
                "templates": len(values),
            }
            for name, values in cells.items()
        ]
    return found


def reference_rows(results: Results, regime: str) -> list[dict[str, Any]]:
    """Chance and n-gram accuracies of the tasks that were run."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for asked in results.suite.tasks if results.suite is not None else ():
        name = task_of(asked).label
        levels = {"chance": asked.chance, **asked.ngrams}
        for level, value in levels.items():
            if value is not None:
                rows[name, level] = {"task": name, "level": level, "accuracy": value * 100}
    if not rows:
        for _, evaluation in evaluated(results, regime):
            for task in evaluation.tasks:
                if task.chance is not None:
                    name = task_of(task).label
                    rows[name, "chance"] = {"task": name, "level": "chance", "accuracy": task.chance * 100}
    return list(rows.values())


def tasks(results: Results) -> tuple[Figure, ...]:
    """Accuracy of every run by task."""
    made = []
    for regime in results.regimes:
        data = task_rows(results, regime)
        if not data:
            continue
        kept = Tables()
        names = list(dict.fromkeys(row["task"] for row in data))
        several = any(row["templates"] > 1 for row in data)
        levels = [row for row in reference_rows(results, regime) if row["task"] in names]
        y = alt.Y("task:N", title=None, sort=names).axis(ticks=False, domain=False, labelPadding=10, labelLimit=190)
        known = [row["accuracy"] for row in (*data, *levels)]
        ends = [max(0, 5 * math.floor(min(known) / 5 - 0.2)), min(100, 5 * math.ceil(max(known) / 5 + 0.2))]
        x = alt.X("accuracy:Q", title="accuracy (%)").scale(domain=ends, nice=False, zero=False)
        runs = alt.Chart(kept(data))
        layers: list[Any] = []
        if levels:
            other = alt.Chart(kept(levels))
            layers += [
                other.transform_filter("datum.level == 'chance'")
                .mark_tick(thickness=2, size=26, color=INK)
                .encode(
                    x=x,
                    y=y,
                    tooltip=[alt.Tooltip("task:N"), alt.Tooltip("level:N"), tip("accuracy", "percentage")],
                ),
                other.transform_filter("datum.level != 'chance'")
                .mark_tick(thickness=1.4, size=18, color=RULE, strokeDash=[2, 2])
                .encode(
                    x=x,
                    y=y,
                    tooltip=[alt.Tooltip("task:N"), alt.Tooltip("level:N"), tip("accuracy", "percentage")],
                ),
            ]
        layers.append(
            runs.mark_point(size=40, filled=False, strokeWidth=1.5, opacity=0.85).encode(
                x=x,
                y=y,
                yOffset=alt.YOffset("variant:N", sort=list(results.variants)),
                color=variant_colour(results),
                shape=variant_shape(results, legend=True),
                tooltip=[
                    alt.Tooltip("run:N"),
                    alt.Tooltip("task:N"),
                    tip("accuracy", "percentage", "accuracy, %"),
                    *([alt.Tooltip("templates:Q", title="templates averaged")] if several else []),
                ],
            )
        )
        made.append(
            figure(
                results,
                kept,
                alt.layer(*layers),
                regime=regime,
                key="tasks",
                title="Accuracy by task",
                sentences=(
                    f"One mark is one run{', averaged over prompt templates' if several else ''}.",
                    *_ticks(levels),
                    "A task that no arm lifts off its chance level says nothing about a variant.",
                ),
                alt="Accuracy by task and variant.",
                height=max(180, (14 * len(results.variants) + 16) * len(names) + 50),
            )
        )
    return tuple(made)


def _ticks(levels: list[dict[str, Any]]) -> tuple[str, str]:
    names = dict.fromkeys(row["level"] for row in levels)
    models = ", ".join(name for name in names if name != "chance")
    chance = "Long tick: chance." if "chance" in names else ""
    return chance, f"Short ticks: models of n-grams ({models})." if models else ""


def reliability(results: Results) -> tuple[Figure, ...]:
    """Reliability diagram of the next-token predictions: accuracy against confidence."""
    made = []
    for regime in results.regimes:
        data: list[dict[str, Any]] = []
        for run, evaluation in evaluated(results, regime):
            if evaluation.tokens is None:
                continue
            found = evaluation.tokens.calibration
            data += [
                {
                    "run": run.id,
                    "variant": run.variant,
                    "seed": str(run.seed),
                    "confidence": round_to(confidence),
                    "accuracy": round_to(accuracy),
                    "count": tokens,
                }
                for confidence, accuracy, tokens in zip(
                    found.curve_confidence, found.curve_accuracy, found.curve_count, strict=False
                )
                if not (isnan(confidence) or isnan(accuracy))
            ]
        if not data:
            continue
        kept = Tables()
        top = max(1e-9, *(max(row["confidence"], row["accuracy"]) for row in data))
        line = alt.Chart(kept([{"x": 0, "y": 0}, {"x": top, "y": top}]))
        base = alt.Chart(kept(data))
        x = alt.X("confidence:Q", title="confidence of the top prediction")
        y = alt.Y("accuracy:Q", title="accuracy")
        colour = variant_colour(results)
        chart = alt.layer(
            line.mark_line(color=RULE, strokeDash=[4, 4]).encode(x=alt.X("x:Q"), y=alt.Y("y:Q")),
            base.mark_line(strokeWidth=1.3, opacity=0.7).encode(
                x=x,
                y=y,
                color=variant_colour(results, legend=False),
                detail=alt.Detail("run:N"),
                strokeDash=variant_dash(results, legend=False),
            ),
            base.mark_point(size=34, filled=False, strokeWidth=1.4).encode(
                x=x,
                y=y,
                color=colour,
                shape=variant_shape(results, legend=True),
                tooltip=[
                    alt.Tooltip("run:N"),
                    tip("confidence", "score"),
                    tip("accuracy", "score"),
                    tip("count", "count", "tokens"),
                ],
            ),
        ).resolve_legend(**MARKS_ALONE)
        made.append(
            figure(
                results,
                kept,
                chart,
                regime=regime,
                key="reliability",
                title="Reliability of the next-token predictions",
                sentences=(
                    "Bins of equal numbers of tokens, one line per run.",
                    "On the dashed diagonal, a prediction of 30 % confidence is right 30 % of the time; below it the model "
                    "is overconfident.",
                ),
                alt="Accuracy against confidence, by variant.",
                height=320,
            )
        )
    return tuple(made)
