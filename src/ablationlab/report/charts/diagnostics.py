"""Diagnostics over the steps and over the depth: the charts that the sealed plan declares for its probes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from ablationlab.records.probes import ProbeChart, depth_of
from ablationlab.report.charts.curves import round_to
from ablationlab.report.charts.theme import (
    MARKS_ALONE,
    RANGE_OF_SEEDS,
    Figure,
    Tables,
    figure,
    mean_and_range,
    thinned,
    variant_colour,
    variant_dash,
    variant_shape,
)
from ablationlab.report.probes import ProbeValue, at_the_end, read_probes

if TYPE_CHECKING:
    from ablationlab.records.results import Results

MOST_POINTS = 12_000


def diagnostics(results: Results) -> tuple[Figure, ...]:
    """Those that the records allow."""
    probes = {} if results.plan is None else results.plan.probes
    declared = [
        (name, chart) for name, probe in probes.items() for chart in probe.charts if chart.over in ("steps", "depth")
    ]
    readings, _ = read_probes(results, {(probe, chart.measure) for probe, chart in declared})
    return tuple(
        figure
        for probe, chart in declared
        for figure in _figures(results, chart, readings.get((probe, chart.measure), []))
    )


def _figures(results: Results, view: ProbeChart, readings: list[ProbeValue]) -> list[Figure]:
    found = []
    for regime in results.regimes:
        data = _rows(view, readings, regime)
        if not data:
            continue
        kept = Tables()
        draw, how = (
            (_steps, RANGE_OF_SEEDS) if view.over == "steps" else (_depth, "Line: mean over seeds; marks: seeds.")
        )
        found.append(
            figure(
                results,
                kept,
                draw(results, kept, view, data),
                regime=regime,
                key=f"probe-{view.key}",
                title=view.title,
                sentences=(view.caption, how),
                alt=f"{view.title}, by variant.",
                height=260,
            )
        )
    return found


def _rows(view: ProbeChart, readings: list[ProbeValue], regime: str) -> list[dict[str, Any]]:
    there = [reading for reading in readings if reading.run.regime == regime and (reading.value > 0 or not view.log)]
    if view.over == "steps":
        there = [reading for reading in there if reading.group == view.group]
        runs = len({reading.run.id for reading in there})
        steps = set(thinned(sorted({reading.step for reading in there}), max(10, MOST_POINTS // max(1, runs))))
        there = [reading for reading in there if reading.step in steps]
    else:
        there = [reading for reading in at_the_end(there) if depth_of(reading.group) is not None]
    return [
        {
            "run": reading.run.id,
            "variant": reading.run.variant,
            "seed": str(reading.run.seed),
            "step": reading.step,
            "place": depth_of(reading.group),
            "y": round_to(reading.value),
        }
        for reading in there
    ]


def _steps(results: Results, kept: Tables, view: ProbeChart, data: list[dict[str, Any]]) -> Any:
    scale = alt.Scale(type="log") if view.log else alt.Scale(zero=False)
    x = alt.X("step:Q", title="training step").scale(nice=False)
    return alt.layer(*mean_and_range(results, alt.Chart(kept(data)), x, view.axis, scale))


def _depth(results: Results, kept: Tables, view: ProbeChart, data: list[dict[str, Any]]) -> Any:
    scale = alt.Scale(type="log") if view.log else alt.Scale(zero=False)
    base = alt.Chart(kept(data))
    places = sorted({row["place"] for row in data})
    x = alt.X("place:Q", title="after block (0: what enters block 1)" if 0 in places else "block").scale(padding=10)
    x = x.axis(values=places, format="d") if len(places) <= 12 else x.axis(tickMinStep=1, format="d")
    return alt.layer(
        base.transform_aggregate(mean="mean(y)", groupby=["variant", "place"])
        .mark_line(strokeWidth=2)
        .encode(
            x=x,
            y=alt.Y("mean:Q", title=view.axis, scale=scale),
            color=variant_colour(results, legend=False),
            strokeDash=variant_dash(results, legend=False),
        ),
        base.mark_point(size=30, filled=False, opacity=0.8).encode(
            x=x,
            y=alt.Y("y:Q", title=view.axis, scale=scale),
            color=variant_colour(results),
            shape=variant_shape(results, legend=True),
        ),
    ).resolve_legend(**MARKS_ALONE)
