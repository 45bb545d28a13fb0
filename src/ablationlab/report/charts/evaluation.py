"""Evaluation: accuracy by task beside chance and n-grams, loss by position; calibration: reliability and temperature."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from math import isnan
from statistics import fmean
from typing import TYPE_CHECKING, Any

import altair as alt

from ablationlab.core.format import count
from ablationlab.core.grouping import grouped
from ablationlab.report.charts.curves import round_to
from ablationlab.report.charts.theme import (
    BY_SEED,
    BY_VARIANT,
    INK,
    MARKS_ALONE,
    QUIET,
    RANGE_OF_SEEDS,
    RULE,
    Figure,
    Tables,
    figure,
    mean_and_range,
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
        runs = alt.Chart(kept(data)).transform_filter(f"{BY_VARIANT} && {BY_SEED}")
        layers: list[Any] = []
        if levels:
            other = alt.Chart(kept(levels))
            layers += [
                other.transform_filter("datum.level == 'chance'")
                .mark_tick(thickness=2, size=26, color=INK[0])
                .encode(
                    x=x,
                    y=y,
                    tooltip=[alt.Tooltip("task:N"), alt.Tooltip("level:N"), tip("accuracy", "percentage")],
                ),
                other.transform_filter("datum.level != 'chance'")
                .mark_tick(thickness=1.4, size=18, color=RULE[0], strokeDash=[2, 2])
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


def positions(results: Results) -> tuple[Figure, ...]:
    """Loss by position in the context, and by distance from the document's start past the context."""
    made = []
    for regime in results.regimes:
        inside, beyond = [], []
        context = 0
        for run, evaluation in evaluated(results, regime):
            tokens, length = evaluation.tokens, evaluation.length
            if tokens is not None:
                inside += _bins(run, tokens.position_edges, tokens.loss_by_position)
            if length is not None:
                beyond += _bins(run, length.edges, length.losses)
                context = length.context
        if inside:
            made.append(
                _binned(
                    results, regime, "position", "Loss by position in the context", "position (token)", inside, None
                )
            )
        if beyond:
            made.append(
                _binned(
                    results,
                    regime,
                    "length",
                    "Loss near and past the trained length",
                    "distance from the document's start (tokens)",
                    beyond,
                    context or None,
                )
            )
    return tuple(made)


def _bins(run: Run, edges: Sequence[int], values: Sequence[float]) -> list[dict[str, Any]]:
    return [
        {
            "run": run.id,
            "variant": run.variant,
            "seed": str(run.seed),
            "x": (low + high) / 2,
            "y": round_to(value),
        }
        for low, high, value in zip(edges[:-1], edges[1:], values, strict=False)
        if not isnan(value)
    ]


def _binned(
    results: Results,
    regime: str,
    key: str,
    title: str,
    x_title: str,
    data: list[dict[str, Any]],
    limit: int | None,
) -> Figure:
    kept = Tables()
    base = alt.Chart(kept(data)).transform_filter(f"{BY_VARIANT} && {BY_SEED}")
    x = alt.X("x:Q", title=x_title).scale(nice=False)
    layers = mean_and_range(results, base, x, "loss (nats/token)", alt.Scale(zero=False))
    if limit is not None:
        mark = alt.Chart(kept([{"x": limit, "text": f"trained context: {count(limit)}"}]))
        layers += [
            mark.mark_rule(color=RULE[0], strokeDash=[4, 4]).encode(x=alt.X("x:Q")),
            mark.mark_text(align="right", dx=-6, baseline="top", color=QUIET[0], fontSize=11).encode(
                x=alt.X("x:Q"), y=alt.YValue(2), text=alt.Text("text:N")
            ),
        ]
    return figure(
        results,
        kept,
        alt.layer(*layers),
        regime=regime,
        key=f"loss-{key}",
        title=title,
        sentences=(RANGE_OF_SEEDS,),
        alt=f"{title}, by variant.",
        height=260,
    )


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
        base = alt.Chart(kept(data)).transform_filter(f"{BY_VARIANT} && {BY_SEED}")
        x = alt.X("confidence:Q", title="confidence of the top prediction")
        y = alt.Y("accuracy:Q", title="accuracy")
        colour = variant_colour(results)
        chart = alt.layer(
            line.mark_line(color=RULE[0], strokeDash=[4, 4]).encode(x=alt.X("x:Q"), y=alt.Y("y:Q")),
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


def temperature(results: Results) -> tuple[Figure, ...]:
    """Loss against softmax temperature."""
    made = []
    for regime in results.regimes:
        data, best = [], []
        for run, evaluation in evaluated(results, regime):
            if evaluation.tokens is None:
                continue
            measured = evaluation.tokens.temperature
            who = {"run": run.id, "variant": run.variant, "seed": str(run.seed)}
            data += [
                {**who, "t": t, "y": round_to(loss, 6)}
                for t, loss in zip(measured.temperatures, measured.losses, strict=False)
                if not isnan(loss)
            ]
            if measured.best is not None:
                best.append({**who, "t": measured.best})
        if not data:
            continue
        kept = Tables()
        base = alt.Chart(kept(data)).transform_filter(f"{BY_VARIANT} && {BY_SEED}")
        colour = variant_colour(results, lines=True)
        x = alt.X("t:Q", title="softmax temperature, log scale").scale(type="log", nice=False)
        y = alt.Y("y:Q", title="validation loss (nats/token)").scale(zero=False)
        layers: list[Any] = [
            alt.Chart(kept([{"t": 1}])).mark_rule(color=RULE[0], strokeDash=[4, 4]).encode(x=alt.X("t:Q")),
            base.mark_line(strokeWidth=1.4, opacity=0.8).encode(
                x=x, y=y, color=colour, detail=alt.Detail("run:N"), strokeDash=variant_dash(results)
            ),
        ]
        if best:
            layers.append(
                alt.Chart(kept(best))
                .transform_filter(f"{BY_VARIANT} && {BY_SEED}")
                .mark_tick(orient="vertical", thickness=2, size=12)
                .encode(
                    x=x,
                    y=alt.YValue(alt.ExprRef("height - 8")),
                    color=colour,
                    tooltip=[alt.Tooltip("run:N"), tip("t", "score", "best temperature")],
                )
            )
        made.append(
            figure(
                results,
                kept,
                alt.layer(*layers),
                regime=regime,
                key="temperature",
                title="Loss against temperature",
                sentences=(
                    "One line per run.",
                    "Ticks below: each run's best temperature, if it lies on the curve.",
                    "At 1 (dashed) the model is as trained.",
                ),
                alt="Validation loss against softmax temperature, by variant.",
                height=280,
            )
        )
    return tuple(made)
