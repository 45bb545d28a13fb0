"""The paired result: one difference per seed, its interval, and the band of the smallest effect that matters."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import altair as alt

from ablationlab.analysis.wording import difference_of, margin_of, name_of, pair_difference, undecided
from ablationlab.core.format import difference, level
from ablationlab.core.grouping import grouped
from ablationlab.records.analysis import ComparedTask
from ablationlab.records.metrics import metric_name
from ablationlab.records.storage import slug
from ablationlab.report.charts.theme import (
    BAND,
    FEWEST_MULTIPLES,
    GROUND,
    RULE,
    Figure,
    Tables,
    drawn_values,
    figure,
    robust_scale,
    tip,
    variant_colour,
    variant_shape,
)
from ablationlab.report.naming import placed, printed_unit, shared_inputs

if TYPE_CHECKING:
    from ablationlab.records.analysis import Comparison
    from ablationlab.records.results import Results
    from ablationlab.stats.results import Interval

#: So many rows stand far apart; more of them stand closer.
FEW_ROWS = 8
#: Metrics that are drawn at most, each in every regime.
MOST_METRICS = 4


def decisive(results: Results) -> list[list[Comparison]]:
    """The comparisons that were registered, and those of the primary metric in every regime, by metric, task and regime."""
    comparisons = () if results.analysis is None else results.analysis.comparisons
    decide = [c for c in comparisons if c.label == "registered" or c.metric == results.primary]
    shown = {(comparison.metric, comparison.task, comparison.regime) for comparison in decide}
    groups: dict[tuple[str, ComparedTask | None, str], list[Comparison]] = {}
    for comparison in comparisons:
        key = (comparison.metric, comparison.task, comparison.regime)
        if key in shown and comparison.n:
            groups.setdefault(key, []).append(comparison)
    # Comparisons over a sweep are of none of the study's regimes.
    places = {regime: place for place, regime in enumerate(results.deciding_first)}
    ordered = sorted(groups, key=lambda key: (key[0] != results.primary, places.get(key[2], len(places))))
    drawn = list(dict.fromkeys(key[:2] for key in ordered))[: MOST_METRICS if len(results.regimes) > 1 else 8]
    return [groups[key] for key in ordered if key[:2] in drawn]


def differences(results: Results) -> tuple[Figure, ...]:
    """Per metric and regime: the deltas of every contrast, seed by seed, with interval and smallest effect."""
    groups = decisive(results)
    every = grouped(((c.metric, c.task), c) for group in groups for c in group)
    return tuple(_difference(results, group, every[group[0].metric, group[0].task]) for group in groups)


def _levels(intervals: Iterable[Interval | None]) -> str:
    """``97.5 % or 98.75 %``, of the intervals that are drawn; of three or more levels, the ends."""
    levels = sorted({interval.level for interval in intervals if interval is not None})
    if len(levels) > 2:
        return f"{level(levels[0])} to {level(levels[-1])}"
    return " or ".join(map(level, levels))


def _drawn(comparison: Comparison) -> Interval | None:
    """The interval that decides; None where it has no ends, or where the mean is that of a few unstable runs."""
    interval = comparison.main_interval
    return None if comparison.told_by_medians or interval is None or interval.low is None else interval


def _bounds(comparison: Comparison) -> tuple[float | None, float | None]:
    interval = _drawn(comparison)
    return (None, None) if interval is None else (interval.low, interval.high)


def _difference(results: Results, group: list[Comparison], every: list[Comparison]) -> Figure:
    """One regime's *group* of *every* comparison of the metric; small charts share their words, which hold of all regimes."""
    kept = Tables()
    at = _levels(map(_drawn, every if len(results.regimes) >= FEWEST_MULTIPLES else group))
    first = group[0]
    log = first.transform == "log"
    unit = "" if log else printed_unit(first.unit)
    name = name_of(first)
    short = metric_name(first.metric) if len(first.averaged) > 1 else name  # an axis has no room for many tasks
    extent = [value for c in group for value in (*_bounds(c), *(pair.delta for pair in c.pairs))]
    scale, ticks, words = robust_scale(extent, nice=not log, zero=True, padding=8 if log else 0)
    title = f"difference in {short}" + (f" ({unit})" if unit else "") + words
    if log:
        title, ticks = f"change in {short}, log scale", changes(extent)
    x = alt.X("delta:Q", title=title, scale=scale)
    x = x.axis(**ticks)
    order = [f"{c.variant} − {c.reference}" for c in group]
    y = alt.Y("contrast:N", title=None, sort=order).axis(
        labelFontWeight=600, ticks=False, domain=False, labelPadding=10, labelLimit=300
    )
    colour = variant_colour(results, legend=False)
    means, points, shown_equal = [], [], []
    seeds, left_out = drawn_values({c.id: [(pair.seed, pair.delta) for pair in c.pairs] for c in group})
    for comparison in group:
        where = {
            "contrast": f"{comparison.variant} − {comparison.reference}",
            "variant": comparison.variant,
            "reference": comparison.reference,
            "id": comparison.id,
        }
        if not comparison.told_by_medians:
            low, high = _bounds(comparison)
            shown = {"change": difference_of(comparison).text, "range": difference_of(comparison).range}
            means.append(
                {**where, "delta": comparison.estimate, **shown, "low": low, "high": high, "n": comparison.sample}
            )
        tost = comparison.equivalence
        if tost is not None and tost.equivalent and tost.low is not None:
            bounds = {"low": tost.low, "high": tost.high, "range": difference(None, tost.low, tost.high, log=log).range}
            shown_equal.append({**where, **bounds, "level": level(1 - 2 * tost.alpha)})
        points += [
            {
                **where,
                "seed": str(pair.seed),
                "delta": pair.delta,
                "change": pair_difference(comparison, pair.delta),
                "value": pair.variant,
                "reference_value": pair.reference,
            }
            for pair in comparison.pairs
            if pair.seed in seeds
        ]
    layers: list[Any] = []
    effect = first.smallest_effect
    if effect:
        band = alt.Chart(kept([{"low": -effect, "high": effect}])).mark_rect(color=BAND)
        layers.append(band.encode(x=alt.X("low:Q"), x2=alt.X2("high:Q")))
    layers.append(alt.Chart(kept([{"zero": 0}])).mark_rule(color=RULE).encode(x=alt.X("zero:Q")))
    summary = alt.Chart(kept(means))
    single = alt.Chart(kept(points))
    if any(row["low"] is not None for row in means):
        layers += [
            summary.mark_rule(strokeWidth=2 if shown_equal else 3).encode(
                x=alt.X("low:Q"), x2=alt.X2("high:Q"), y=y, color=colour
            ),
            summary.mark_tick(thickness=1.5, size=16).encode(x=alt.X("low:Q"), y=y, color=colour),
            summary.mark_tick(thickness=1.5, size=16).encode(x=alt.X("high:Q"), y=y, color=colour),
        ]
    if shown_equal:
        equal = alt.Chart(kept(shown_equal))
        layers.append(
            equal.mark_rule(strokeWidth=7, opacity=0.55).encode(
                x=alt.X("low:Q"),
                x2=alt.X2("high:Q"),
                y=y,
                color=colour,
                tooltip=[
                    alt.Tooltip("contrast:N"),
                    alt.Tooltip("level:N", title="equivalence interval"),
                    alt.Tooltip("range:N", title="from"),
                ],
            )
        )
    layers += [
        single.mark_point(size=54, opacity=0.9, strokeWidth=1.6, filled=False, yOffset=-16).encode(
            x=alt.X("delta:Q"),
            y=y,
            color=colour,
            shape=variant_shape(results),
            tooltip=[
                alt.Tooltip("contrast:N"),
                alt.Tooltip("seed:N"),
                alt.Tooltip("change:N", title=f"difference{f', {unit}' if unit else ''}"),
                tip("value", "value", "variant"),
                tip("reference_value", "value", "reference"),
            ],
        ),
        summary.mark_point(size=110, filled=True, opacity=1, stroke=GROUND, strokeWidth=1.5, shape="diamond").encode(
            x=x,
            y=y,
            color=colour,
            tooltip=[
                alt.Tooltip("contrast:N"),
                alt.Tooltip("change:N", title="mean difference"),
                alt.Tooltip("range:N", title="interval"),
                alt.Tooltip("n:N", title="from"),
            ],
        ),
    ]
    better = {"lower": "left is better", "higher": "right is better", None: "neither way is better"}[first.direction]
    sentences = [
        f"{comparison.variant} against {comparison.reference}: {shown.text} ({shown.range})"
        for comparison, shown in zip(group, map(difference_of, group), strict=True)
    ]
    effect_band = (
        f"Shaded: smaller than the smallest effect that matters, ±{margin_of(first, effect)}." if effect else ""
    )
    equal_at = " or ".join(dict.fromkeys(str(row["level"]) for row in shown_equal))
    equal_bar = f"Thick bar, where equivalence is shown: the {equal_at} interval of that test, within the shaded band."
    unpaired = all(comparison.design == "unpaired" for comparison in group)
    mean, its, over = ("difference of the two means", "its ", "") if unpaired else ("mean", "", " over all pairs")
    diamond = f"Diamond and bar: {mean} and {its}{at} interval ({first.interval})" if at else f"Diamond: {mean}"
    unstable = [comparison for comparison in every if comparison.told_by_medians]
    marks = [
        "" if len(unstable) == len(every) else f"{diamond}{over}; {better}.",
        f"No mean is drawn where unstable runs dominate it: {placed(results.regimes, unstable)}." if unstable else "",
    ]
    if unpaired:
        title = f"Differences in {name}, unpaired"
    else:
        alike_in = "".join(f", same {name}" for name in shared_inputs(results))
        title = f"Paired differences in {name}"
        marks = [(f"Small marks: one pair of runs each, same seed{alike_in}."), *marks]
    return figure(
        results,
        kept,
        alt.layer(*layers),
        regime=first.regime,
        key="-".join(slug(part) for part in ("paired", first.metric, first.task_label or "") if part),
        title=title,
        sentences=(*marks, undecided(every), effect_band, equal_bar if shown_equal else "", left_out),
        alt=f"Differences in {name}. " + "; ".join(sentences) + ".",
        height=max(150, (66 if len(group) <= FEW_ROWS else 46) * len(group) + 40),
    )


#: Changes in percent that an axis may mark, below and above 0; beyond them, factors of ten.
_FALLS = (-99, -98, -95, -90, -80, -60, -40, -20, -10, -5, -2, -1)
_RISES = (1, 2, 5, 10, 20, 50, 100, 200, 500)


def changes(logs: Iterable[float | None]) -> dict[str, Any]:
    """An axis of logarithms that is read as the text is: a change in percent, a factor from ×10 and ×0.1 on."""
    known = [value for value in logs if value is not None and math.isfinite(value)]
    low, high = min([0.0, *known]), max([0.0, *known])
    room = (high - low) / 6
    decades = [sign * power * math.log(10) for power in range(1, 30) for sign in (-1, 1)]
    wide = max(-low, high) >= math.log(10)
    marks = decades if wide else [math.log1p(percent / 100) for percent in (*_FALLS, *_RISES)]
    kept = [0.0]
    for mark in sorted(marks, key=lambda mark: -abs(mark)):
        if low <= mark <= high and all(abs(mark - other) >= room for other in kept):
            kept.append(mark)
    words = (
        f"'×' + format(exp(datum.value), abs(datum.value) < {math.log(2e5):.4} ? ',.1~r' : '.1~e')"
        if wide
        else "datum.value == 0 ? '0 %' : format(100 * (exp(datum.value) - 1), '+,.2~r') + ' %'"
    )
    return {"values": sorted(kept), "labelExpr": words}
