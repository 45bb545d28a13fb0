"""Settings that a study crosses: how the difference to the baseline changes with both of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from ablationlab.analysis.wording import difference_of, undecided
from ablationlab.records.metrics import metric_name
from ablationlab.report.charts.theme import (
    RULE,
    SHAPES,
    Figure,
    Tables,
    figure,
    level_or_turned,
    robust_scale,
    variant_colour,
)
from ablationlab.report.colours import HUES
from ablationlab.report.naming import as_title, printed_unit

if TYPE_CHECKING:
    from ablationlab.records.analysis import Analysis, Comparison, Interactions
    from ablationlab.records.results import Results

#: Lines that a chart of crossed arms may have.
MOST_LINES = 6


def interaction(results: Results) -> tuple[Figure, ...]:
    """Two settings that the regimes or the arms cross; where lines are parallel, they do not interact."""
    analysis = results.analysis
    crossed = None if analysis is None else analysis.interactions
    if analysis is None or crossed is None or len(crossed.factors) != 2:
        return ()
    return _of_regimes(results, analysis, crossed) if crossed.cells else _of_arms(results, crossed)


def _short(key: str) -> str:
    return key.rpartition(".")[2]


def _parallel(compressed: str) -> str:
    """How to see an interaction; on a compressed axis lines that are parallel say nothing."""
    return "" if compressed else "Where lines are parallel, the two settings do not interact."


def _title(results: Results, crossed: Interactions) -> str:
    metric = results.metric(crossed.metric)
    if crossed.transform == "log":
        return "difference of logarithms"
    unit = "" if metric is None else printed_unit(metric.unit)
    return f"difference ({unit})" if unit else "difference"


def _of_regimes(results: Results, analysis: Analysis, crossed: Interactions) -> tuple[Figure, ...]:
    """A variant's effect in every cell: its group of marks runs over the first setting, its lines are the second's levels."""
    across, lines = crossed.factors
    rows: list[dict[str, Any]] = []
    drawn: list[Comparison] = []
    for cell in crossed.cells:
        comparison = analysis.comparison(crossed.metric, cell.regime, cell.variant, analysis.baseline)
        if comparison is None or comparison.delta is None or comparison.told_by_medians:
            continue
        interval, shown = comparison.main_interval, difference_of(comparison)
        drawn.append(comparison)
        rows.append(
            {
                "variant": cell.variant,
                "across": cell.levels[0],
                "line": f"{_short(lines.key)} {cell.levels[1]}",
                "delta": comparison.estimate,
                "low": None if interval is None else interval.low,
                "high": None if interval is None else interval.high,
                "change": shown.text,
                "range": shown.range,
            }
        )
    if not rows:
        return ()
    kept = Tables()
    base = alt.Chart(kept(rows))
    order = [name for name in results.variants if any(row["variant"] == name for row in rows)]
    scale, ticks, words = robust_scale((value for row in rows for value in (row["low"], row["high"])), nice=True)
    names = [f"{_short(lines.key)} {name}" for name in lines.levels]
    channels: dict[str, Any] = {
        "x": alt.X("variant:N", title=None, sort=order).axis(
            labelFontWeight=600, labelLimit=120, **level_or_turned(order)
        ),
        "xOffset": alt.XOffset("across:N", sort=list(across.levels)),
        "color": variant_colour(results, legend=False),
    }
    y = alt.Y("delta:Q", title=_title(results, crossed) + words, scale=scale).axis(**ticks)
    legend = alt.Legend(title=None, orient="top", symbolFillColor=RULE, symbolStrokeColor=RULE)
    tooltip = [
        alt.Tooltip("variant:N"),
        alt.Tooltip("across:N", title=_short(across.key)),
        alt.Tooltip("line:N", title=_short(lines.key)),
        alt.Tooltip("change:N", title="difference"),
        alt.Tooltip("range:N", title="interval"),
    ]
    chart = alt.layer(
        alt.Chart(kept([{"zero": 0}])).mark_rule(color=RULE).encode(y=alt.Y("zero:Q")),
        base.mark_line(strokeWidth=1.6).encode(
            **channels, y=y, strokeDash=alt.StrokeDash("line:N", sort=names, legend=None)
        ),
        base.mark_rule(strokeWidth=2).encode(**channels, y=alt.Y("low:Q"), y2=alt.Y2("high:Q")),
        base.mark_point(size=70, filled=True, opacity=1).encode(
            **channels,
            y=y,
            shape=alt.Shape("line:N", scale=alt.Scale(domain=names, range=list(SHAPES[: len(names)])), legend=legend),
            tooltip=tooltip,
        ),
    )
    return (
        figure(
            results,
            kept,
            chart,
            key="interaction",
            title=f"Effect on {metric_name(crossed.metric)} by {_short(across.key)} and {_short(lines.key)}",
            sentences=(
                f"Variant − {results.baseline} with the interval that decides.",
                undecided(drawn),
                f"Each variant from left to right: {_short(across.key)} {', '.join(across.levels)}.",
                _parallel(words),
            ),
            alt=f"Effects of {', '.join(order)} in every combination of {_short(across.key)} and {_short(lines.key)}.",
            height=300,
        ),
    )


def _of_arms(results: Results, crossed: Interactions) -> tuple[Figure, ...]:
    """The arms' differences to the baseline arm over the levels of one setting, a line for each level of the other."""
    analysis, plan = results.analysis, results.plan
    factors = None if plan is None else plan.study.factors
    if analysis is None or factors is None:
        return ()
    few, many = sorted(range(2), key=lambda position: len(crossed.factors[position].levels))
    lines, across = crossed.factors[few], crossed.factors[many]
    regimes = [c.regime for c in analysis.comparisons if c.metric == crossed.metric and c.role == "primary"]
    if len(lines.levels) > MOST_LINES or not regimes:
        return ()
    rows: list[dict[str, Any]] = []
    for arm, cell in factors.cells().items():
        levels = [str(value) for value in cell.values()]
        comparison = analysis.comparison(crossed.metric, regimes[0], arm, analysis.baseline)
        interval = None if comparison is None else comparison.main_interval
        if arm != analysis.baseline and (comparison is None or comparison.delta is None):
            continue
        delta = 0.0 if comparison is None else comparison.delta
        rows.append(
            {
                "variant": arm,
                "line": levels[few],
                "across": levels[many],
                "delta": delta,
                "low": delta if interval is None or interval.low is None else interval.low,
                "high": delta if interval is None or interval.high is None else interval.high,
                "change": "0" if comparison is None else difference_of(comparison).text,
                "range": "" if comparison is None else difference_of(comparison).range,
            }
        )
    if len(rows) < 3:
        return ()
    kept = Tables()
    base = alt.Chart(kept(rows))
    scale, ticks, words = robust_scale((value for row in rows for value in (row["low"], row["high"])), nice=True)
    names = list(lines.levels)
    legend = alt.Legend(title=None, orient="top")
    domain = alt.Scale(domain=names, range=[hue for hue, _ in HUES[1 : len(names) + 1]])
    channels: dict[str, Any] = {
        "x": alt.X("across:N", title=_short(across.key), sort=list(across.levels)).axis(
            labelLimit=120, **level_or_turned(list(across.levels))
        ),
        "color": alt.Color("line:N", scale=domain, legend=legend),
    }
    y = alt.Y("delta:Q", title=_title(results, crossed) + words, scale=scale).axis(**ticks)
    chart = alt.layer(
        alt.Chart(kept([{"zero": 0}])).mark_rule(color=RULE).encode(y=alt.Y("zero:Q")),
        base.mark_line(strokeWidth=1.6).encode(**channels, y=y),
        base.mark_rule(strokeWidth=2).encode(**channels, y=alt.Y("low:Q"), y2=alt.Y2("high:Q")),
        base.mark_point(size=70, filled=True, opacity=1).encode(
            **channels,
            y=y,
            shape=alt.Shape("line:N", scale=alt.Scale(domain=names, range=list(SHAPES[: len(names)])), legend=legend),
            tooltip=[
                alt.Tooltip("variant:N"),
                alt.Tooltip("change:N", title="difference"),
                alt.Tooltip("range:N", title="interval"),
            ],
        ),
    )
    return (
        figure(
            results,
            kept,
            chart,
            key="interaction",
            title=f"{as_title(metric_name(crossed.metric))} by {_short(across.key)} and {_short(lines.key)}",
            sentences=(
                f"Arm − {results.baseline}, which is at 0, with the interval that decides.",
                f"A line for each {_short(lines.key)}.",
                _parallel(words),
            ),
            alt=f"Differences of {len(rows)} arms to {results.baseline}.",
            height=300,
        ),
    )
