"""The paired result: one difference per seed, its interval, and the band of the smallest effect that matters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ablationlab.report.charts.theme import (
    BAND,
    BY_CONTRAST,
    BY_SEED,
    BY_VARIANT,
    GROUND,
    RULE,
    Figure,
    Tables,
    selectable,
    variant_colour,
    variant_shape,
)
from ablationlab.report.naming import axis, metric_name, printed_unit
from ablationlab.report.tables.comparisons import difference_of

if TYPE_CHECKING:
    from ablationlab.records.analysis import Comparison
    from ablationlab.records.results import Results

MOST_FIGURES = 8


def decisive(material: Results) -> list[list[Comparison]]:
    """The comparisons that were registered, or without any those of the primary metric, by metric, task and regime."""
    if material.analysis is None:
        return []
    found = [c for c in material.analysis.comparisons if c.label == "registered"]
    found = found or [c for c in material.analysis.comparisons if c.metric == material.primary]
    shown = {(c.metric, c.task, c.regime) for c in found}
    groups: dict[tuple[str, str | None, str], list[Comparison]] = {}
    for comparison in material.analysis.comparisons:
        key = (comparison.metric, comparison.task, comparison.regime)
        if key in shown and comparison.n:
            groups.setdefault(key, []).append(comparison)
    ordered = sorted(groups.values(), key=lambda group: group[0].metric != material.primary)
    return ordered[:MOST_FIGURES]


def differences(material: Results) -> tuple[Figure, ...]:
    """Per metric and regime: the deltas of every contrast, seed by seed, with interval and smallest effect."""
    return tuple(_difference(material, group) for group in decisive(material))


def _difference(material: Results, group: list[Comparison]) -> Figure:
    import altair as alt

    kept = Tables()
    first = group[0]
    unit = "difference of logarithms" if first.transform == "log" else printed_unit(first.unit)
    name = metric_name(first.metric) + (f", {first.task}" if first.task else "")
    x = alt.X("delta:Q", title=f"difference in {name}" + (f" ({unit})" if unit else "")).scale(nice=True, zero=True)
    order = [f"{c.variant} − {c.reference}" for c in group]
    y = alt.Y("contrast:N", title=None, sort=order).axis(
        labelFontWeight=600, ticks=False, domain=False, labelPadding=10
    )
    colour = variant_colour(material, legend=False)
    means, points = [], []
    for comparison in group:
        where = {
            "contrast": f"{comparison.variant} − {comparison.reference}",
            "variant": comparison.variant,
            "reference": comparison.reference,
            "id": comparison.id,
        }
        interval = comparison.main_interval
        means.append(
            {
                **where,
                "delta": comparison.delta,
                "low": None if interval is None else interval.low,
                "high": None if interval is None else interval.high,
                "n": comparison.n,
            }
        )
        points += [
            {
                **where,
                "seed": str(pair.seed),
                "delta": pair.delta,
                "value": pair.variant,
                "reference_value": pair.reference,
            }
            for pair in comparison.pairs
        ]
    layers: list[Any] = []
    effect = first.smallest_effect
    if effect:
        band = alt.Chart(kept([{"low": -effect, "high": effect}])).mark_rect(color=BAND[0])
        layers.append(band.encode(x="low:Q", x2="high:Q"))
    layers.append(alt.Chart(kept([{"zero": 0}])).mark_rule(color=RULE[0]).encode(x="zero:Q"))
    summary = alt.Chart(kept(means)).transform_filter(BY_CONTRAST)
    single = alt.Chart(kept(points)).transform_filter(f"{BY_CONTRAST} && {BY_SEED}")
    if any(row["low"] is not None for row in means):
        layers += [
            summary.mark_rule(strokeWidth=3).encode(x="low:Q", x2="high:Q", y=y, color=colour),
            summary.mark_tick(thickness=1.5, size=16).encode(x="low:Q", y=y, color=colour),
            summary.mark_tick(thickness=1.5, size=16).encode(x="high:Q", y=y, color=colour),
        ]
    layers += [
        single.mark_point(size=54, opacity=0.9, strokeWidth=1.6, filled=False, yOffset=-16).encode(
            x=alt.X("delta:Q"),
            y=y,
            color=colour,
            shape=variant_shape(material),
            tooltip=[
                alt.Tooltip("contrast:N"),
                alt.Tooltip("seed:N"),
                alt.Tooltip("delta:Q", title=f"difference{f', {unit}' if unit else ''}", format="+.5g"),
                alt.Tooltip("value:Q", title="variant", format=".5g"),
                alt.Tooltip("reference_value:Q", title="reference", format=".5g"),
            ],
        ),
        summary.mark_point(size=110, filled=True, opacity=1, stroke=GROUND[0], strokeWidth=1.5, shape="diamond").encode(
            x=x,
            y=y,
            color=colour,
            tooltip=[
                alt.Tooltip("contrast:N"),
                alt.Tooltip("delta:Q", title="mean difference", format="+.5g"),
                alt.Tooltip("low:Q", title="interval from", format="+.5g"),
                alt.Tooltip("high:Q", title="to", format="+.5g"),
                alt.Tooltip("n:Q", title="pairs"),
            ],
        ),
    ]
    level = next((c.main_interval.level for c in group if c.main_interval is not None), 0.95)
    better = {"lower": "left is better", "higher": "right is better", None: "neither way is better"}[first.direction]
    sentences = []
    for comparison in group:
        interval = comparison.main_interval
        shown = difference_of(comparison)
        sentences.append(f"{comparison.variant} against {comparison.reference}: {shown.text} ({shown.range})")
    regime = f", regime {first.regime}" if len(material.regimes) > 1 else ""
    alike_in = "" if material.plan is None else ", same data order, same initial weights"
    return Figure(
        key=_key("paired", material, first),
        title=f"Paired differences in {name}{regime}",
        caption=(
            f"Small marks: one pair of runs each, same seed{alike_in}. Diamond and bar: mean and {level * 100:g} % "
            f"interval ({first.interval}) over all seeds; {better}."
            + (f" Shaded: smaller than the smallest effect that matters, ±{effect:g}." if effect else "")
        ),
        chart=selectable(alt.layer(*layers), material),
        data=kept.kept,
        regime=first.regime if len(material.regimes) > 1 else "",
        alt=f"Differences in {name}. " + "; ".join(sentences) + ".",
        height=max(150, 66 * len(group) + 40),
    )


def slopes(material: Results) -> tuple[Figure, ...]:
    """The values behind the primary differences: one line a seed, from arm to arm."""
    import altair as alt

    made = []
    for regime in material.regimes:
        kept = Tables()
        values = _values(material, regime)
        if not values:
            continue
        metric = str(material.primary)
        base = alt.Chart(kept(values)).transform_filter(f"{BY_VARIANT} && {BY_SEED}")
        order = [name for name in material.variants if any(row["variant"] == name for row in values)]
        x = alt.X("variant:N", title=None, sort=order).axis(labelAngle=0, labelFontWeight=600, labelOverlap=True)
        y = alt.Y("value:Q", title=axis(metric, values[0]["unit"])).scale(zero=False, nice=True)
        lines = base.mark_line(color=RULE[0], opacity=0.65, strokeWidth=1.3).encode(x=x, y=y, detail="seed:N")
        points = base.mark_point(filled=True, size=64, opacity=0.95).encode(
            x=x,
            y=y,
            color=variant_colour(material, legend=False),
            shape=variant_shape(material),
            tooltip=["variant:N", "seed:N", alt.Tooltip("value:Q", format=".5g")],
        )
        several = len(material.regimes) > 1
        made.append(
            Figure(
                key="slopes" + (f"-{_slug(regime)}" if several else ""),
                title=f"{metric_name(metric).capitalize()} of every run" + (f", regime {regime}" if several else ""),
                caption="A line joins the runs of one seed. Pairing removes the variation that these runs share.",
                chart=selectable(alt.layer(lines, points), material),
                data=kept.kept,
                regime=regime if len(material.regimes) > 1 else "",
                alt=f"{metric_name(metric)} per variant and seed.",
                height=300,
            )
        )
    return tuple(made)


def _values(material: Results, regime: str) -> list[dict[str, Any]]:
    if material.analysis is None or material.primary is None:
        return []
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for one in material.analysis.comparisons:
        if one.metric != material.primary or one.regime != regime or one.task not in (None, "macro average"):
            continue
        for pair in one.pairs:
            for variant, value in ((one.variant, pair.variant), (one.reference, pair.reference)):
                row = {"variant": variant, "seed": str(pair.seed), "value": value, "unit": one.unit, "regime": regime}
                found[variant, str(pair.seed)] = row
    return list(found.values())


def _key(stem: str, material: Results, one: Comparison) -> str:
    parts = [stem, one.metric, one.task or "", one.regime if len(material.regimes) > 1 else ""]
    return "-".join(_slug(part) for part in parts if part)


def _slug(text: str) -> str:
    from ablationlab.records.storage import slug

    return slug(text)
