"""The stability-accuracy plane: what a variant gains in stability against what it costs, both with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

import altair as alt

from ablationlab.analysis.wording import gain_intervals, listed
from ablationlab.core.format import difference, fixed, level, number, setting
from ablationlab.records.metrics import metric_name
from ablationlab.report import fonts
from ablationlab.report.charts.theme import (
    BAND,
    QUIET,
    RULE,
    Figure,
    Tables,
    figure,
    readable_text,
    robust_scale,
    tip,
    variant_colour,
)
from ablationlab.report.naming import placed, printed_unit

if TYPE_CHECKING:
    from ablationlab.records.analysis import Analysis, Comparison, StabilityGain
    from ablationlab.records.results import Results
    from ablationlab.records.verdict import VariantVerdict

#: Of more rings than this, names stand in a column.
MOST_LABELS = 5
#: The smallest view of the chart within its padding, and the height of a line, in pixels.
VIEW, LINE = (150.0, 50.0), 15


def both_sides(analysis: Analysis, verdict: VariantVerdict) -> tuple[StabilityGain | None, Comparison | None]:
    """The gain in stability, the last of those that were asked, and the primary comparison."""
    stability = analysis.stability
    vector = () if stability is None else stability.vector(verdict.variant, verdict.reference, verdict.regime)
    asked = [gain for gain in vector if gain.places] or vector
    return asked[-1] if asked else None, analysis.primary_comparison(verdict.regime, verdict.variant)


def plane_rows(results: Results) -> list[dict[str, Any]]:
    """One row per variant and regime whose gain and cost are both known."""
    rows: list[dict[str, Any]] = []
    if (analysis := results.analysis) is None:
        return rows
    for verdict in results.verdict.verdicts if results.verdict is not None else ():
        gain, comparison = both_sides(analysis, verdict)
        if gain is None or gain.estimate is None or comparison is None:
            continue
        cost, cost_low, cost_high = comparison.loss()
        if cost is None:
            continue
        rows.append(
            {
                "variant": verdict.variant,
                "reference": verdict.reference,
                "regime": verdict.regime,
                "place": len(rows),
                "gain": gain.estimate * 100,
                "gain_low": None if gain.low is None else gain.low * 100,
                "gain_high": None if gain.high is None else gain.high * 100,
                "contradicted": gain.contradicted,
                "cost": cost,
                "cost_low": cost_low,
                "cost_high": cost_high,
                "level": 1 - comparison.alpha,
                "margin": comparison.smallest_effect if comparison.margin is None else comparison.margin,
                "metric": comparison.metric,
                "comparison": comparison.id,
                "answer": verdict.answer,
                "label": verdict.variant if len(results.regimes) == 1 else f"{verdict.variant}, {verdict.regime}",
            }
        )
    return rows


def tradeoff(results: Results) -> tuple[Figure, ...]:
    """Gain in stability (x) against cost in the primary metric (y, positive is worse).

    Of many rings in several regimes there is none: tables have them. None where no run was unstable: there is no trade. A
    cost that is a few exploded runs' has no ring, as tables have no number for it.
    """
    stability = results.analysis.stability if results.analysis is not None else None
    arms = stability.arms if stability is not None else ()
    unstable = {(arm.variant, arm.regime) for arm in arms if arm.unstable}
    compared = () if results.analysis is None else results.analysis.comparisons
    dominated = {comparison.id: comparison for comparison in compared if comparison.told_by_medians}
    rows = plane_rows(results)
    data = [row for row in rows if row["comparison"] not in dominated]
    known = [row for row in data if {(row[arm], row["regime"]) for arm in ("variant", "reference")} & unstable]
    if not known:
        return ()
    if len(data) > MOST_LABELS and len(results.regimes) > 1:
        return ()
    return (_plane(results, data, [dominated[row["comparison"]] for row in rows if row["comparison"] in dominated]),)


def _plane(results: Results, data: list[dict[str, Any]], left_out: Sequence[Comparison] = ()) -> Figure:
    """The rings of *data*; not drawn are *left_out*, costs that are a few unstable runs'."""
    kept = Tables()
    metric = str(data[0]["metric"])
    comparison = results.comparison(str(data[0]["comparison"]))
    logged = comparison is not None and comparison.transform == "log"
    unit = (
        "difference of logarithms"
        if logged
        else printed_unit(comparison.unit if comparison is not None else results.unit(metric))
    )
    crowded = len(data) > MOST_LABELS
    colour = variant_colour(results, legend=crowded)
    x = (
        alt.X("gain:Q", title="stability gain over the baseline (percentage points of runs)")
        .scale(domain=[-100, 100])
        .axis(values=[-100, -50, 0, 50, 100])
    )
    for row in data:
        shown = difference(row["cost"], row["cost_low"], row["cost_high"], log=logged)
        ends = {
            f"bar_{end}": row["cost"] if row[f"cost_{end}"] is None else row[f"cost_{end}"] for end in ("low", "high")
        }
        row |= {"shown_cost": shown.text, "shown_range": shown.range, **ends}
    extent = [row[key] for row in data for key in ("cost", "cost_low", "cost_high")]
    scale, ticks, words = robust_scale(extent, padding=34)
    title = f"cost in {metric_name(metric)}" + (f" ({unit})" if unit else "") + f", up is worse{words}"
    y = alt.Y("cost:Q", title=title, scale=scale).axis(**ticks)
    base = alt.Chart(kept(data))
    layers: list[Any] = []
    margins = sorted({row["margin"] for row in data if row["margin"] is not None})
    if margins:
        band = alt.Chart(kept([{"top": margins[0], "bottom": 0.0}])).mark_rect(color=BAND, opacity=0.9)
        layers.append(band.encode(y=alt.Y("bottom:Q"), y2=alt.Y2("top:Q")))
    zero = alt.Chart(kept([{"zero": 0}]))
    layers += [
        zero.mark_rule(color=RULE).encode(x=alt.X("zero:Q")),
        zero.mark_rule(color=RULE).encode(y=alt.Y("zero:Q")),
        _corner(kept, "steadier, at a cost", 90, "right", "top"),
        _corner(kept, "less steady, at a cost", 0, "left", "top"),
        _corner(kept, "steadier, no cost", 90, "right", "bottom"),
        _corner(kept, "less steady, no cost", 0, "left", "bottom"),
        base.mark_rule(opacity=0.3 if crowded else 0.75).encode(
            x=alt.X("gain_low:Q"),
            x2=alt.X2("gain_high:Q"),
            y=alt.Y("cost:Q"),
            color=colour,
            strokeDash=alt.StrokeDashValue([1, 0], condition={"test": "datum.contradicted", "value": [2, 5]}),
            strokeWidth=alt.StrokeWidthValue(1.6, condition={"test": "datum.contradicted", "value": 0.9}),
        ),
        base.mark_rule(strokeWidth=1.6 if crowded else 3, opacity=0.9).encode(
            x=alt.X("gain:Q"), y=alt.Y("bar_low:Q"), y2=alt.Y2("bar_high:Q"), color=colour
        ),
        base.mark_point(strokeWidth=2.4, filled=False).encode(
            x=x,
            y=y,
            color=colour,
            # Points that coincide show as rings within rings.
            size=alt.value(70)
            if crowded
            else alt.Size("place:O", legend=None).scale(range=[90, 90 + 160 * max(1, len(data) - 1)]),
            tooltip=[
                alt.Tooltip("variant:N"),
                alt.Tooltip("regime:N"),
                tip("gain", "points", "stability gain, points"),
                tip("gain_low", "points", "  from"),
                tip("gain_high", "points", "  to"),
                alt.Tooltip("shown_cost:N", title="cost" if logged else f"cost, {unit or metric}"),
                alt.Tooltip("shown_range:N", title="  from"),
                alt.Tooltip("answer:N"),
            ],
        ),
    ]
    if crowded:
        layers += _name_column(results, kept, data)
    for row, (align, dx, dy) in zip(data, () if crowded else label_places(data), strict=not crowded):
        layers += readable_text(
            alt.Chart(kept([row])),
            mark={"align": align, "dx": dx, "dy": dy, "fontWeight": 600},
            x=alt.X("gain:Q"),
            y=alt.Y("cost:Q"),
            text=alt.Text("label:N"),
            color=variant_colour(results, legend=False),
        )
    words = "; ".join(
        f"{row['label']}: gain {fixed(row['gain'], 0, sign=True)} points, cost {number(row['cost'], sign=True)}"
        for row in data
    )
    return figure(
        results,
        kept,
        alt.layer(*layers),
        key="tradeoff",
        title="Stability gain against cost",
        sentences=(
            (
                f"Each ring is one variant in one regime; bars are intervals, of the share of unstable runs and of "
                f"{metric_name(metric)} ({_cost_levels(data)}, one test each, as costs are judged)."
            ),
            _gain_intervals(results),
            (f"Shaded: the margin of {setting(margins[0])}, which a gain may cost." if margins else ""),
            _not_drawn(results),
            (
                f"Not drawn, since unstable runs dominate the cost: {placed(results.regimes, left_out)}."
                if left_out
                else ""
            ),
            ("Rings that coincide are drawn inside one another." if 1 < len(data) <= MOST_LABELS else ""),
        ),
        alt=f"Plane of stability gain against cost. {words}.",
        height=max(380, ROW * len(data) + 130) if crowded else 380,
    )


#: Pixels between names in a column, and where the column stands, in points of gain.
ROW, COLUMN = 19, 64


def _name_column(results: Results, kept: Tables, data: list[dict[str, Any]]) -> list[Any]:
    """The names of many rings, one below the other beside them, each with a line to its ring; not on narrow screens."""
    side = -1 if fmean(row["gain"] for row in data) > 0 else 1
    ranked = sorted(data, key=lambda row: -row["cost"])
    base = alt.Chart(kept([{**row, "rank": rank, "column": side * COLUMN} for rank, row in enumerate(ranked)]))
    # Down the middle of the plane, whatever its height.
    place = alt.ExprRef(f"height / 2 + (datum.rank - {(len(ranked) - 1) / 2}) * min({ROW}, height / {len(ranked) + 1})")
    colour = variant_colour(results, legend=False)
    lines = base.mark_rule(strokeWidth=0.8, opacity=0.7).encode(
        x=alt.X("gain:Q"), x2=alt.X2("column:Q"), y=alt.Y("cost:Q"), y2=alt.Y2Value(place), color=colour
    )
    names = readable_text(
        base,
        mark={"align": "left" if side > 0 else "right", "dx": 4 * side, "fontSize": 11},
        x=alt.X("column:Q"),
        y=alt.YValue(place),
        text=alt.Text("label:N"),
    )
    return [layer.properties(name=f"corner-name-{number}") for number, layer in enumerate((lines, *names))]


def _not_drawn(results: Results) -> str:
    """The arms with a gain in stability and no cost: no pair of runs has a value."""
    if (analysis := results.analysis) is None or results.verdict is None:
        return ""
    left_out = []
    for verdict in results.verdict.verdicts:
        gain, comparison = both_sides(analysis, verdict)
        if gain is not None and gain.estimate is not None and (comparison is None or comparison.loss()[0] is None):
            left_out.append(f"{verdict.variant} in {verdict.regime}" if len(results.regimes) > 1 else verdict.variant)
    return f"Not drawn, since its cost is not known: {listed(left_out)}." if left_out else ""


def _gain_intervals(results: Results) -> str:
    stability = results.analysis.stability if results.analysis is not None else None
    if stability is None:
        return ""
    every = (*stability.gains, *stability.parts)
    return gain_intervals([gain for gain in every if gain.places] or every, mark="A thin, dashed bar")


def _cost_levels(rows: list[dict[str, Any]]) -> str:
    return " or ".join(dict.fromkeys(level(row["level"]) for row in rows))


def label_places(rows: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    """(align, dx, dy) of every label: beside its ring, on the first free line above or below it.

    Boxes are estimated in a view as small as the paper's, so that labels stay apart wherever the chart is drawn.
    """
    ends = [value for row in rows for value in (row["cost_low"], row["cost_high"], row["cost"]) if value is not None]
    bottom, top = min([*ends, 0.0]), max([*ends, 0.0])
    places: dict[int, tuple[str, int, int]] = {}
    boxes: list[tuple[float, float, float]] = []  # left, right, middle
    # From the top down: of two rings that are close, the upper one has its label above, so that no larger view swaps them.
    for place, row in sorted(enumerate(rows), key=lambda item: -item[1]["cost"]):
        x = (row["gain"] + 100) / 200 * VIEW[0]
        y = (top - row["cost"]) / ((top - bottom) or 1.0) * VIEW[1]
        width = fonts.width(row["label"], 12, "Semibold")
        left_of_ring = row["gain"] > 5
        start = x - 16 - width if left_of_ring else x + 16
        for line in range(len(rows) + 1):
            dy = -14 - LINE * (line // 2) if line % 2 == 0 else 18 + LINE * (line // 2)
            if all(
                start > right or start + width < left or abs(y + dy - middle) >= LINE for left, right, middle in boxes
            ):
                break
        boxes.append((start, start + width, y + dy))
        places[place] = ("right", -16, dy) if left_of_ring else ("left", 16, dy)
    return [places[place] for place in range(len(rows))]


def _corner(kept: Tables, text: str, x: int, align: Any, baseline: Any) -> Any:
    """Words in a corner of the plane, placed in pixels of the view."""
    at_x = alt.XValue(alt.ExprRef("width - 8") if x else 8)
    at_y = alt.YValue(8 if baseline == "top" else alt.ExprRef("height - 8"))
    mark = alt.Chart(kept([{"text": text}])).mark_text(
        align=align, baseline=baseline, color=QUIET, fontStyle="italic", fontSize=11
    )
    return mark.encode(x=at_x, y=at_y, text=alt.Text("text:N")).properties(name=f"corner{len(kept.rows)}")
