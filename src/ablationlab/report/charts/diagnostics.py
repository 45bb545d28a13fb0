"""Diagnostics: the charts that the sealed plan declares for its probes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from ablationlab.core.format import setting
from ablationlab.records.probes import ProbeChart, depth_of
from ablationlab.report.charts.curves import round_to
from ablationlab.report.charts.theme import (
    BY_SEED,
    BY_VARIANT,
    MARKS_ALONE,
    RANGE_OF_SEEDS,
    Figure,
    PageSentence,
    Tables,
    figure,
    mean_and_range,
    thinned,
    tip,
    variant_colour,
    variant_dash,
    variant_shape,
)
from ablationlab.report.probes import ProbeValue, at_the_end, read_probes

if TYPE_CHECKING:
    from ablationlab.records.results import Results

MOST_POINTS = 12_000


def diagnostics(results: Results) -> tuple[tuple[Figure, ...], dict[str, list[str]]]:
    """The charts that the probes declare and the records allow, and what failed while probing."""
    probes = {} if results.plan is None else results.plan.probes
    declared = [(name, chart) for name, probe in probes.items() for chart in probe.charts]
    readings, failures = read_probes(results, {(probe, chart.measure) for probe, chart in declared})
    made = [
        figure
        for probe, chart in declared
        for figure in _figures(results, chart, readings.get((probe, chart.measure), []))
    ]
    return tuple(made), failures


def _figures(results: Results, view: ProbeChart, readings: list[ProbeValue]) -> list[Figure]:
    found = []
    for regime in results.regimes:
        data = _rows(view, readings, regime)
        if not data:
            continue
        kept = Tables()
        draw = {"steps": _steps, "spread": _spread}.get(view.over, _snapshot)
        chart = draw(results, kept, view, data)
        found.append(
            figure(
                results,
                kept,
                chart,
                regime=regime,
                key=f"probe-{view.key}",
                title=view.title,
                sentences=(view.caption, _HOW[view.over]),
                alt=f"{view.title}, by variant.",
                height=260,
            )
        )
    return found


_HOW = {
    "steps": RANGE_OF_SEEDS,
    "depth": PageSentence(
        "Line: mean over the seeds shown; marks: seeds.", printed="Line: mean over seeds; marks: seeds.", once=True
    ),
    "groups": "Marks: seeds.",
    "values": "Each column of marks: one seed.",
    "spread": "Thin line: lowest to highest quantile on record; thick: the middle half; tick: the median. Means over seeds.",
}


def _rows(view: ProbeChart, readings: list[ProbeValue], regime: str) -> list[dict[str, Any]]:
    there = [reading for reading in readings if reading.run.regime == regime]
    if view.over in ("steps", "values"):
        there = [reading for reading in there if reading.group == view.group]
    if view.log:
        there = [reading for reading in there if reading.value > 0]
    if view.over == "steps":
        runs = len({reading.run.id for reading in there})
        steps = set(thinned(sorted({reading.step for reading in there}), max(10, MOST_POINTS // max(1, runs))))
        there = [reading for reading in there if reading.step in steps]
    else:
        there = at_the_end(there)
        if view.over == "values" and len(there) > MOST_POINTS:
            chosen = sorted({reading.run.id for reading in there})[: max(1, MOST_POINTS // 128)]
            there = [reading for reading in there if reading.run.id in chosen]
    return [
        {
            "run": reading.run.id,
            "variant": reading.run.variant,
            "seed": str(reading.run.seed),
            "step": reading.step,
            "group": reading.group or "",
            "place": depth_of(reading.group),
            "at": reading.at,
            "y": round_to(reading.value),
        }
        for reading in there
        if view.over != "depth" or depth_of(reading.group) is not None
    ]


def _steps(results: Results, kept: Tables, view: ProbeChart, data: list[dict[str, Any]]) -> Any:
    scale = alt.Scale(type="log") if view.log else alt.Scale(zero=False)
    x = alt.X("step:Q", title="training step").scale(nice=False)
    base = alt.Chart(kept(data)).transform_filter(f"{BY_VARIANT} && {BY_SEED}")
    return alt.layer(*mean_and_range(results, base, x, view.axis, scale))


def _spread(results: Results, kept: Tables, view: ProbeChart, data: list[dict[str, Any]]) -> Any:
    """Per group and variant: the range of a distribution, its middle half and its median, each a mean over seeds."""
    levels = sorted({row["at"] for row in data if row["at"] is not None})
    named = {"low": levels[0], "high": levels[-1]}
    named |= {name: min(levels, key=lambda known: abs(known - at)) for name, at in _MIDDLE.items()}
    scale = alt.Scale(type="log") if view.log else alt.Scale(zero=False)
    order = sorted({(depth_of(row["group"]) or 0, row["group"]) for row in data})
    x = alt.X("group:N", title=None, sort=[group for _, group in order]).axis(labelAngle=0, labelOverlap=True)
    base = alt.Chart(kept(data)).transform_filter(f"{BY_VARIANT} && {BY_SEED}")
    fields = {name: f"datum.at == {at} ? datum.y : null" for name, at in named.items()}
    for name, formula in fields.items():
        base = base.transform_calculate(**{f"at_{name}": formula})
    means = [alt.AggregatedFieldDef(op="mean", field=f"at_{name}", **{"as": name}) for name in named]
    base = base.transform_aggregate(means, groupby=["variant", "group"])
    offset = alt.XOffset("variant:N", sort=list(results.variants))
    colour = variant_colour(results)

    def rule(low: str, high: str, width: float) -> Any:
        y = alt.Y(f"{low}:Q", title=view.axis, scale=scale)
        mark = base.mark_rule(strokeWidth=width)
        return mark.encode(x=x, xOffset=offset, y=y, y2=alt.Y2(f"{high}:Q"), color=colour)

    quantiles = [tip(name, "reading", f"quantile {setting(at)}") for name, at in named.items()]
    tips = [alt.Tooltip("variant:N"), alt.Tooltip("group:N"), *quantiles]
    median = base.mark_tick(thickness=2.5, size=11, orient="horizontal").encode(
        x=x, xOffset=offset, y=alt.Y("median:Q", title=view.axis, scale=scale), color=colour, tooltip=tips
    )
    return alt.layer(rule("low", "high", 1.4), rule("lower", "upper", 5), median)


def _group_labels(data: list[dict[str, Any]]) -> dict[str, Any]:
    """Names of groups without their kind (``class:numeric``), slanted where they would not all fit side by side."""
    shown = [name.rpartition(":")[2] for name in {row["group"] for row in data}]
    crowded = sum(map(len, shown)) > 48
    name = "slice(datum.label, lastindexof(datum.label, ':') + 1)"
    return {"labelExpr": name, "labelAngle": -35 if crowded else 0, "labelOverlap": not crowded}


#: Quantiles that are drawn beside the lowest and the highest on record; the nearest level is taken.
_MIDDLE = {"lower": 0.25, "median": 0.5, "upper": 0.75}


def _snapshot(results: Results, kept: Tables, view: ProbeChart, data: list[dict[str, Any]]) -> Any:
    scale = alt.Scale(type="log") if view.log else alt.Scale(zero=False)
    y = alt.Y("y:Q", title=view.axis, scale=scale)
    base = alt.Chart(kept(data)).transform_filter(f"{BY_VARIANT} && {BY_SEED}")
    colour, shape = variant_colour(results), variant_shape(results, legend=True)
    names = list(results.variants)
    if view.over == "depth":
        whole = any(row["place"] == 0 for row in data)
        title = "after block (0: what enters block 1)" if whole else "block"
        places = sorted({row["place"] for row in data})
        x = alt.X("place:Q", title=title).scale(padding=10)
        x = x.axis(values=places, format="d") if len(places) <= 12 else x.axis(tickMinStep=1, format="d")
        grouped = base.transform_aggregate(mean="mean(y)", groupby=["variant", "place"])
        return alt.layer(
            grouped.mark_line(strokeWidth=2).encode(
                x=x,
                y=alt.Y("mean:Q", title=view.axis, scale=scale),
                color=variant_colour(results, legend=False),
                strokeDash=variant_dash(results, legend=False),
            ),
            base.mark_point(size=30, filled=False, opacity=0.8).encode(
                x=x,
                y=y,
                color=colour,
                shape=shape,
                tooltip=[alt.Tooltip("run:N"), alt.Tooltip("group:N"), tip("y", "reading")],
            ),
        ).resolve_legend(**MARKS_ALONE)
    if view.over == "groups":
        x_name = alt.X("group:N", title=None, sort=None).axis(**_group_labels(data))
        return base.mark_point(size=42, filled=False, opacity=0.85, strokeWidth=1.5).encode(
            x=x_name,
            xOffset=alt.XOffset("variant:N", sort=names),
            y=y,
            color=colour,
            shape=shape,
            tooltip=[alt.Tooltip("run:N"), alt.Tooltip("group:N"), tip("y", "reading")],
        )
    return base.mark_tick(thickness=1.2, opacity=0.35, size=24, orient="horizontal").encode(
        x=alt.X("variant:N", title=None, sort=names).axis(labelAngle=0),
        xOffset=alt.XOffset("seed:N"),
        y=y,
        color=variant_colour(results, legend=False),
        tooltip=[alt.Tooltip("run:N"), alt.Tooltip("at:Q", title="values"), tip("y", "reading")],
    )
