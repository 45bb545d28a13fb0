"""What the study could and could not see: the smallest detectable effect as the number of seeds grows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from ablationlab.analysis.wording import listed, power_level
from ablationlab.core.format import setting
from ablationlab.records.metrics import metric_name
from ablationlab.report.charts.theme import (
    BY_CONTRAST,
    GROUND,
    QUIET,
    RULE,
    Figure,
    PageSentence,
    Tables,
    figure,
    readable_text,
    tip,
    variant_colour,
    variant_shape,
)
from ablationlab.report.naming import printed_unit
from ablationlab.stats import detectable_effect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ablationlab.records.analysis import Comparison, Power
    from ablationlab.records.results import Results


def power(results: Results) -> tuple[Figure, ...]:
    """Detectable effect at 80 % power against seeds, from the observed SD of the deltas, beside what was observed."""
    analysis = results.analysis
    if analysis is None or not analysis.power:
        return ()
    known = [(part, comparison) for part in analysis.power if (comparison := results.comparison(part.comparison))]
    known = [(part, comparison) for part, comparison in known if not comparison.told_by_medians]
    if not known:
        return ()
    # The page puts the charts of many regimes under one caption.
    together = _lines_show(known, results.baseline)
    made = []
    for regime in results.deciding_first:
        kept = Tables()
        lines: list[dict[str, Any]] = []
        observed: list[dict[str, Any]] = []
        effects, metric, unit = set(), "", ""
        here = [(part, comparison) for part, comparison in known if comparison.regime == regime]
        for part, comparison in here:
            metric = comparison.metric
            unit = "difference of logarithms" if comparison.transform == "log" else printed_unit(comparison.unit)
            where = {
                "contrast": f"{comparison.variant} − {comparison.reference}",
                "variant": comparison.variant,
                "reference": comparison.reference,
            }
            reach = sorted({3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 25, 30, part.n, 2 * part.n})
            lines += [
                {
                    **where,
                    "seeds": n,
                    "effect": detectable_effect(n, alpha=part.alpha, arms=part.arms) * part.sd
                    + comparison.doubt.larger,
                }
                for n in reach
                if n <= max(30, 2 * part.n)
            ]
            if comparison.delta:
                observed.append({**where, "seeds": part.n, "effect": abs(comparison.delta), "n": part.n})
            if part.smallest_effect:
                effects.add(part.smallest_effect)
        if not lines:
            continue
        y = (
            alt.Y("effect:Q", title=f"size of difference{f' ({unit})' if unit else ''}, log scale")
            .scale(type="log")
            .axis(tickCount=5)
        )
        x = alt.X("seeds:Q", title="seeds (pairs of runs), log scale").scale(
            type="log",
            nice=False,
            domain=[0.95 * min(row["seeds"] for row in lines), 1.05 * max(row["seeds"] for row in lines)],
        )
        few = any(row["n"] < 10 for row in observed)
        drawn = dict.fromkeys(row["variant"] for row in lines)
        colour = variant_colour(results, drawn=drawn)
        detail = alt.Detail("contrast:N")
        layers: list[Any] = []
        notes: list[Any] = []
        for effect in sorted(effects):
            mark = alt.Chart(kept([{"effect": effect, "text": f"smallest effect that matters: {setting(effect)}"}]))
            layers.append(mark.mark_rule(color=RULE[0], strokeDash=[4, 4]).encode(y=alt.Y("effect:Q")))
            notes += readable_text(
                mark,
                mark={"align": "right", "dx": -6, "dy": -7, "color": QUIET[0], "fontSize": 11},
                x=alt.XValue(alt.ExprRef("width")),
                y=alt.Y("effect:Q"),
                text=alt.Text("text:N"),
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
                strokeDash=alt.StrokeDashValue(
                    [2, 3], condition={"test": "datum.reference == shown_baseline", "value": [1, 0]}
                ),
                tooltip=[
                    alt.Tooltip("contrast:N"),
                    alt.Tooltip("seeds:Q"),
                    tip("effect", "score", "detectable at 80 %"),
                ],
            ),
            alt.Chart(kept(observed))
            .transform_filter(BY_CONTRAST)
            .mark_point(filled=True, size=110, stroke=GROUND[0], strokeWidth=1.5, opacity=1)
            .encode(
                x=x,
                y=y,
                color=colour,
                shape=variant_shape(results, legend=True, drawn=drawn),
                tooltip=[
                    alt.Tooltip("contrast:N"),
                    alt.Tooltip("n:Q"),
                    tip("effect", "score", "observed difference"),
                ],
            ),
        ]
        made.append(
            figure(
                results,
                kept,
                alt.layer(*layers, *notes),
                regime=regime,
                key="power",
                title=f"Power at this number of seeds: {metric_name(metric)}",
                sentences=(
                    PageSentence(together, printed=_lines_show(here, results.baseline)),
                    "Marks: the differences observed, at the seeds that were run.",
                    "A mark above its line was within reach; one below could have been missed.",
                    "With fewer than ten pairs, the spread itself is a rough estimate." if few else "",
                ),
                alt="Detectable difference against number of seeds.",
                height=320,
            )
        )
    return tuple(made)


def _lines_show(known: Sequence[tuple[Power, Comparison]], baseline: str) -> str:
    """What the lines of these comparisons are."""
    levels = listed(sorted({power_level(part, comparison) for part, comparison in known}), "or")
    off = ", plus how far fitted best rates may be off" if any(comparison.doubt for _, comparison in known) else ""
    between = any(comparison.reference != baseline for _, comparison in known)
    return (
        f"Lines: the difference that a paired t-test finds with 80 % power, at level {levels}, if the spread of the "
        f"differences stays as observed{off}{' (dotted: contrasts between variants)' if between else ''}."
    )
