"""Diagnostics: the charts that the probes of the study declare."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ablationlab.report.charts.curves import round_to
from ablationlab.report.charts.theme import (
    BY_SEED,
    BY_VARIANT,
    Figure,
    Tables,
    selectable,
    thinned,
    variant_colour,
    variant_dash,
    variant_shape,
)
from ablationlab.report.probes import ProbeValue, read_probes
from ablationlab.study.probes import PROBES, ProbeChart

if TYPE_CHECKING:
    from ablationlab.records.results import Results

MOST_POINTS = 12_000


def diagnostics(material: Results) -> tuple[tuple[Figure, ...], dict[str, list[str]]]:
    """The charts that the probes declare and the records allow, and what failed while probing."""
    declared = [(probe.name, chart) for _, probe in PROBES.items() for chart in probe.charts]
    readings, failures = read_probes(material, {(probe, chart.measure) for probe, chart in declared})
    made = [
        figure
        for probe, chart in declared
        for figure in _figures(material, chart, readings.get((probe, chart.measure), []))
    ]
    return tuple(made), failures


def _figures(material: Results, view: ProbeChart, readings: list[ProbeValue]) -> list[Figure]:
    found = []
    for regime in material.regimes:
        data = _rows(view, readings, regime)
        if not data:
            continue
        several = len(material.regimes) > 1
        kept = Tables()
        draw = _steps if view.over == "steps" else _snapshot
        chart = draw(material, kept, view, data)
        found.append(
            Figure(
                key=f"probe-{view.key}" + (f"-{regime}" if several else ""),
                title=view.title + (f", regime {regime}" if several else ""),
                caption=f"{view.caption} {_HOW[view.over]}",
                chart=selectable(chart, material),
                data=kept.kept,
                regime=regime if len(material.regimes) > 1 else "",
                alt=f"{view.title}, by variant.",
                height=260,
            )
        )
    return found


_HOW = {
    "steps": "Line: mean over the selected seeds; band: their range.",
    "depth": "Line: mean over the selected seeds; marks: seeds.",
    "groups": "Marks: seeds.",
    "values": "Each column of marks: one seed.",
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
        last: dict[str, int] = {}
        for reading in there:
            last[reading.run.id] = max(reading.step, last.get(reading.run.id, 0))
        there = [reading for reading in there if reading.step == last[reading.run.id]]
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
            "place": _depth(reading.group),
            "at": reading.at,
            "y": round_to(reading.value),
        }
        for reading in there
        if view.over != "depth" or _depth(reading.group) is not None
    ]


def _depth(group: str | None) -> int | None:
    if group == "input":
        return 0
    found = re.fullmatch(r"block-(\d+)", group or "")
    return int(found[1]) if found else None


def _steps(material: Results, kept: Tables, view: ProbeChart, data: list[dict[str, Any]]) -> Any:
    import altair as alt

    scale = alt.Scale(type="log") if view.log else alt.Scale(zero=False)
    x = alt.X("step:Q", title="training step").scale(nice=False)
    base = alt.Chart(kept(data)).transform_filter(f"{BY_VARIANT} && {BY_SEED}")
    grouped = base.transform_aggregate(mean="mean(y)", low="min(y)", high="max(y)", groupby=["variant", "step"])
    colour = variant_colour(material)
    return alt.layer(
        grouped.mark_area(fillOpacity=0.16, opacity=1).encode(
            x=x, y=alt.Y("low:Q", title=view.axis, scale=scale), y2="high:Q", color=colour
        ),
        grouped.mark_line(strokeWidth=2.2).encode(
            x=x, y=alt.Y("mean:Q", title=view.axis, scale=scale), color=colour, strokeDash=variant_dash(material)
        ),
    )


def _snapshot(material: Results, kept: Tables, view: ProbeChart, data: list[dict[str, Any]]) -> Any:
    import altair as alt

    scale = alt.Scale(type="log") if view.log else alt.Scale(zero=False)
    y = alt.Y("y:Q", title=view.axis, scale=scale)
    base = alt.Chart(kept(data)).transform_filter(f"{BY_VARIANT} && {BY_SEED}")
    colour, shape = variant_colour(material), variant_shape(material, legend=True)
    names = list(material.variants)
    if view.over == "depth":
        whole = any(row["place"] == 0 for row in data)
        title = "after block (0: what enters block 1)" if whole else "block"
        places = sorted({row["place"] for row in data})
        x = alt.X("place:Q", title=title).scale(padding=10)
        x = x.axis(values=places) if len(places) <= 12 else x.axis(tickMinStep=1)
        grouped = base.transform_aggregate(mean="mean(y)", groupby=["variant", "place"])
        return alt.layer(
            grouped.mark_line(strokeWidth=2).encode(
                x=x, y=alt.Y("mean:Q", title=view.axis, scale=scale), color=colour, strokeDash=variant_dash(material)
            ),
            base.mark_point(size=30, filled=False, opacity=0.8).encode(
                x=x, y=y, color=colour, shape=shape, tooltip=["run:N", "group:N", alt.Tooltip("y:Q", format=".4g")]
            ),
        )
    if view.over == "groups":
        x_name = alt.X("group:N", title=None, sort=None).axis(labelAngle=0, labelOverlap=True)
        return base.mark_point(size=42, filled=False, opacity=0.85, strokeWidth=1.5).encode(
            x=x_name,
            xOffset=alt.XOffset("variant:N", sort=names),
            y=y,
            color=colour,
            shape=shape,
            tooltip=["run:N", "group:N", alt.Tooltip("y:Q", format=".4g")],
        )
    return base.mark_tick(thickness=1.2, opacity=0.35, size=24, orient="horizontal").encode(
        x=alt.X("variant:N", title=None, sort=names).axis(labelAngle=0),
        xOffset=alt.XOffset("seed:N"),
        y=y,
        color=variant_colour(material, legend=False),
        tooltip=["run:N", alt.Tooltip("at:Q", title="values"), alt.Tooltip("y:Q", format=".4g")],
    )
