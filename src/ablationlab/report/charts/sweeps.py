"""A sweep over learning rates: loss against rate, sensitivity, and the map of where runs were unstable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from ablationlab.analysis.wording import instability
from ablationlab.core.format import level, setting
from ablationlab.records.metrics import metric_name
from ablationlab.report.charts.theme import (
    BAD,
    CALM,
    GROUND,
    INK,
    WARN,
    Figure,
    Tables,
    figure,
    tip,
    variant_colour,
    variant_dash,
    variant_rows,
)
from ablationlab.report.naming import axis

if TYPE_CHECKING:
    from ablationlab.records.analysis import SweepAnalysis
    from ablationlab.records.results import Results
    from ablationlab.records.storage import StoredValue


def _sweep(results: Results) -> SweepAnalysis | None:
    return None if results.analysis is None else results.analysis.sweep


def _row(part: StoredValue) -> dict[str, Any]:
    return part.model_dump(mode="json")


def sweep_curves(results: Results) -> tuple[Figure, ...]:
    """Final loss against learning rate, with the interval over seeds and the seeds themselves."""
    kept = Tables()
    analysis, sweep = results.analysis, _sweep(results)
    data = [] if sweep is None else [_row(curve) for curve in sweep.curves if curve.mean is not None]
    if analysis is None or sweep is None or not data:
        return ()
    seeds = [
        {
            "run": point.run,
            "variant": point.variant,
            "lr": point.lr,
            "rate": setting(point.lr),
            "seed": str(point.seed),
            "counted": point.counted,
            "end": "diverged" if point.state == "diverged" else "finished",
            "why": instability(analysis, point),
        }
        for point in sweep.points
        if point.counted is not None
    ]
    metric = sweep.metric
    drawn = [point for point in sweep.points if point.counted is not None]
    diverged = any(point.state == "diverged" for point in drawn)
    above = any(point.clipped and point.state != "diverged" for point in drawn)
    crosses = ", crosses where they diverged" if diverged else ""
    how = " or ".join(["diverged"] * diverged + ["ended above where it started"] * above)
    ended = [f"A run that {how} counts with its initial loss."] if how else []
    band = "".join({f"{level(summary.level)} " for summary in sweep.summaries})  # all have one level
    colour = variant_colour(results)
    rates = sorted({point.lr for point in sweep.points})
    x = alt.X("lr:Q", title="peak learning rate, log scale").scale(type="log", nice=False, padding=14)
    x = x.axis(values=rates, format="~g", labelOverlap="greedy")
    title = axis(metric, results.unit(metric))
    scale = alt.Scale(zero=False)
    base = alt.Chart(kept(data))
    single = alt.Chart(kept(seeds))
    chart = alt.layer(
        base.mark_area(fillOpacity=0.16, opacity=1).encode(
            x=x, y=alt.Y("low:Q", title=title, scale=scale), y2=alt.Y2("high:Q"), color=colour
        ),
        single.mark_point(size=34, filled=False, opacity=0.75).encode(
            x=x,
            y=alt.Y("counted:Q", title=title, scale=scale),
            color=colour,
            shape=alt.Shape(
                "end:N", scale=alt.Scale(domain=["finished", "diverged"], range=["circle", "cross"]), legend=None
            ),
            tooltip=[
                alt.Tooltip("run:N"),
                alt.Tooltip("variant:N"),
                alt.Tooltip("rate:N", title="learning rate"),
                alt.Tooltip("seed:N"),
                tip("counted", "value", metric_name(metric)),
                alt.Tooltip("why:N", title="reading"),
            ],
        ),
        base.mark_line(strokeWidth=2.2, point=False).encode(
            x=x, y=alt.Y("mean:Q", title=title, scale=scale), color=colour, strokeDash=variant_dash(results)
        ),
    )
    return (
        figure(
            results,
            kept,
            chart,
            key="sweep-curves",
            title=f"Final {metric_name(metric)} against learning rate",
            sentences=(
                f"Line: mean over seeds; band: its {band}t interval; marks: single runs{crosses}.",
                *ended,
            ),
            alt=f"{metric_name(metric)} against learning rate, by variant.",
            height=340,
        ),
    )


def divergence_map(results: Results) -> tuple[Figure, ...]:
    """Variant by learning rate: how many of the seeds' runs were unstable."""
    kept = Tables()
    cells: dict[tuple[str, float], dict[str, Any]] = {}
    sweep = _sweep(results)
    for point in () if sweep is None else sweep.points:
        if point.state == "missing":
            continue
        place = (point.variant, point.lr)
        cell = cells.setdefault(place, {"variant": place[0], "lr": place[1], "n": 0, "unstable": 0, "diverged": 0})
        cell["n"] += 1
        cell["unstable"] += bool(point.unstable)
        cell["diverged"] += point.state == "diverged"
    if not any(cell["unstable"] for cell in cells.values()):
        return ()
    for cell in cells.values():
        cell["share"] = cell["unstable"] / cell["n"]
        cell["text"] = f"{cell['unstable']}/{cell['n']}"
        cell["rate"] = setting(cell["lr"])
    off = results.plan is None or results.plan.study.stability.worse_than_start == "off"
    rates = [setting(lr) for lr in sorted({lr for _, lr in cells})]
    base = alt.Chart(kept(cells.values()))
    x = alt.X("rate:N", title="peak learning rate", sort=rates)
    x = x.axis(labelAngle=0, labelFlush=False, ticks=False, domain=False)
    y = variant_rows(results)
    chart = alt.layer(
        base.mark_rect(stroke=GROUND, strokeWidth=3, cornerRadius=4).encode(
            x=x,
            y=y,
            color=alt.Color(
                "share:Q",
                scale=alt.Scale(domain=[0, 0.5, 1], range=[CALM, WARN, BAD]),
                legend=alt.Legend(title="share of runs unstable", format=".0%", orient="top", values=[0, 0.5, 1]),
            ),
            tooltip=[
                alt.Tooltip("variant:N"),
                alt.Tooltip("rate:N", title="learning rate"),
                alt.Tooltip("n:Q", title="runs"),
                alt.Tooltip("unstable:Q"),
                alt.Tooltip("diverged:Q"),
            ],
        ),
        base.mark_text(fontSize=12, fontWeight=600).encode(
            x=x,
            y=y,
            text=alt.Text("text:N"),
            color=alt.ColorValue(INK, condition={"test": "datum.share > 0.25", "value": GROUND}),
        ),
    )
    return (
        figure(
            results,
            kept,
            chart,
            key="sweep-divergence-map",
            title="Where runs were unstable",
            sentences=(
                "Unstable runs of all runs at each learning rate: diverged, spiked beyond the registered threshold"
                f"{'' if off else ', or ended worse than it began'}.",
            ),
            alt="Share of unstable runs by variant and learning rate.",
            height=max(140, 44 * len({variant for variant, _ in cells}) + 80),
        ),
    )
