"""What the study could and could not see: the smallest detectable effect as the number of seeds grows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ablationlab.records.storage import slug
from ablationlab.report.charts.theme import (
    BY_CONTRAST,
    GROUND,
    QUIET,
    RULE,
    Figure,
    Tables,
    selectable,
    variant_colour,
    variant_shape,
)
from ablationlab.report.naming import metric_name, printed_unit
from ablationlab.stats import detectable_effect

if TYPE_CHECKING:
    from ablationlab.records.results import Results


def power(material: Results) -> tuple[Figure, ...]:
    """Detectable effect at 80 % power against seeds, from the observed SD of the deltas, beside what was observed."""
    import altair as alt

    analysis = material.analysis
    if analysis is None or not analysis.power:
        return ()
    made = []
    for regime in material.regimes:
        kept = Tables()
        lines: list[dict[str, Any]] = []
        observed: list[dict[str, Any]] = []
        effects, metric, unit = set(), "", ""
        for part in analysis.power:
            one = material.comparison(part.comparison)
            if one is None or one.regime != regime:
                continue
            metric = one.metric
            unit = "difference of logarithms" if one.transform == "log" else printed_unit(one.unit)
            where = {
                "contrast": f"{one.variant} − {one.reference}",
                "variant": one.variant,
                "reference": one.reference,
            }
            reach = sorted({3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 25, 30, part.n, 2 * part.n})
            lines += [
                {
                    **where,
                    "seeds": n,
                    "effect": detectable_effect(n, power=0.8, alpha=part.alpha) * part.delta_sd,
                }
                for n in reach
                if n <= max(30, 2 * part.n)
            ]
            if one.delta:
                observed.append({**where, "seeds": part.n, "effect": abs(one.delta), "n": part.n})
            if part.smallest_effect:
                effects.add(part.smallest_effect)
        if not lines:
            continue
        y = (
            alt.Y("effect:Q", title=f"size of difference{f' ({unit})' if unit else ''}, log scale")
            .scale(type="log")
            .axis(tickCount=5)
        )
        x = alt.X("seeds:Q", title="seeds (pairs of runs), log scale").scale(type="log", nice=False)
        colour = variant_colour(material)
        detail = alt.Detail("contrast:N")
        layers: list[Any] = []
        for effect in sorted(effects):
            mark = alt.Chart(kept([{"effect": effect, "text": f"smallest effect that matters: {effect:g}"}]))
            layers.append(mark.mark_rule(color=RULE[0], strokeDash=[4, 4]).encode(y="effect:Q"))
            layers.append(
                mark.mark_text(align="right", dx=-6, dy=-7, color=QUIET[0], fontSize=11).encode(
                    x=alt.value(alt.ExprRef("width")), y="effect:Q", text="text:N"
                )
            )
        layers += [
            alt.Chart(kept(lines))
            .transform_filter(BY_CONTRAST)
            .mark_line(strokeWidth=2.2)
            .encode(
                x=x,
                y=y,
                color=colour,
                detail=detail,
                strokeDash=alt.condition("datum.reference == shown_baseline", alt.value([1, 0]), alt.value([2, 3])),
                tooltip=["contrast:N", "seeds:Q", alt.Tooltip("effect:Q", title="detectable at 80 %", format=".4g")],
            ),
            alt.Chart(kept(observed))
            .transform_filter(BY_CONTRAST)
            .mark_point(filled=True, size=110, stroke=GROUND[0], strokeWidth=1.5, opacity=1)
            .encode(
                x=x,
                y=y,
                color=colour,
                shape=variant_shape(material, legend=True),
                tooltip=["contrast:N", "n:Q", alt.Tooltip("effect:Q", title="observed difference", format=".4g")],
            ),
        ]
        several = len(material.regimes) > 1
        made.append(
            Figure(
                key="power" + (f"-{slug(regime)}" if several else ""),
                title=f"Power at this number of seeds: {metric_name(metric)}"
                + (f", regime {regime}" if several else ""),
                caption=(
                    "Lines: the difference that a paired t-test finds with 80 % power, at the corrected level, if the "
                    "spread of the differences stays as observed (dotted: contrasts between variants). Marks: the "
                    "differences observed, at the seeds that were run. A mark above its line was within reach; one "
                    "below could have been missed. "
                    "With fewer than ten pairs, the spread itself is a rough estimate."
                ),
                chart=selectable(alt.layer(*layers), material),
                data=kept.kept,
                regime=regime if len(material.regimes) > 1 else "",
                alt="Detectable difference against number of seeds.",
                height=320,
            )
        )
    return tuple(made)
