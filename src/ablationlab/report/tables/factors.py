"""Factors: cells, main effects, interactions, simple effects."""

from __future__ import annotations

from collections.abc import Sequence

from ablationlab.analysis import wording
from ablationlab.analysis.interactions import LEVEL
from ablationlab.analysis.wording import difference_of
from ablationlab.core.format import (
    DASH,
    Difference,
    difference,
    level,
    p_value,
)
from ablationlab.records.analysis import Analysis, Interactions
from ablationlab.records.metrics import metric_name
from ablationlab.report.table import Cell, Cells, Column, Table


def factor_table(analysis: Analysis, crossed: Interactions) -> Table:
    """A row per variant, a column per cell of the factorial."""
    places = list(dict.fromkeys(cell.levels for cell in crossed.cells))
    by_cell = {(cell.variant, cell.levels): cell for cell in crossed.cells}
    rows = []
    for variant in dict.fromkeys(cell.variant for cell in crossed.cells):
        cells = {Column("variant", "Variant"): Cell.name(variant)}
        for levels in places:
            cell, name = by_cell[variant, levels], ", ".join(levels)
            compared = analysis.comparison(crossed.metric, cell.regime, variant, analysis.baseline)
            text = DASH if compared is None else _estimate(difference_of(compared))
            cells[Column(name, name, "right", name=True)] = Cell.of(cell.effect, text)
        rows.append(cells)
    keys = " × ".join(factor.key for factor in crossed.factors)
    return Table.of("factors", f"Effect on {metric_name(crossed.metric)} in each cell of {keys}", rows)


def interaction_table(interactions: Interactions) -> Table:
    """Main effects and interactions of the factors."""
    contrasts = interactions.contrasts
    variants = any(contrast.variant for contrast in contrasts)
    labels = any(contrast.label == "registered" for contrast in contrasts)
    odd = any(contrast.status != "ok" for contrast in contrasts)
    fewer = any(contrast.n < contrast.planned for contrast in contrasts)
    rows: list[Cells] = []
    for contrast in contrasts:
        steps = zip(
            (key.rpartition(".")[2] for key in contrast.factors), contrast.references, contrast.levels, strict=True
        )
        what = " × ".join(f"{key} {before} → {after}" for key, before, after in steps)
        low, high = contrast.deciding_low, contrast.deciding_high
        shown = difference(contrast.estimate, low, high)
        rows.append(
            {
                Column("variant", "Variant", printed=variants): Cell.name(contrast.variant or ""),
                Column("kind", "Contrast"): contrast.kind,
                Column("of", "Of"): what,
                Column("label", "Label", printed=labels): contrast.label,
                Column("n", "n", "right"): contrast.n,
                Column("planned", "Planned", "right", printed=fewer): contrast.planned,
                Column("estimate", "Estimate", "right"): Cell.of(contrast.estimate, shown.delta),
                Column("low", "Interval", "right", below=True): Cell.of(low, shown.interval),
                Column("high", printed=False): high,
                Column("p_adjusted", "Adjusted p", "right"): Cell.of(contrast.p_adjusted, p_value),
                Column("status", "Status", printed=odd): contrast.status.replace("-", " "),
            }
        )
    title, about = "Main effects and interactions (differences of differences).", wording.effect_intervals(interactions)
    return Table.of("interactions", title, rows, _alias_note(interactions), about)


def simple_table(analysis: Analysis) -> Table | None:
    """The effect of each crossed setting at each level of the other; nothing where arms are crossed instead of regimes."""
    rows: list[Cells] = []
    for effect in () if analysis.interactions is None else analysis.interactions.simple:
        shown = difference(effect.estimate, effect.low, effect.high)
        rows.append(
            {
                Column("variant", "Variant"): Cell.name(effect.variant),
                Column("at", "At"): f"{_settings_of([effect.other])} {effect.at}",
                Column("of", "Of"): f"{_settings_of([effect.factor])} {effect.reference} → {effect.level}",
                Column("n", "n", "right"): effect.n,
                Column("estimate", "Estimate", "right"): Cell.of(effect.estimate, shown.delta),
                Column("low", "Interval", "right", below=True): Cell.of(effect.low, shown.interval),
                Column("high", printed=False): effect.high,
                Column("p_adjusted", "Adjusted p", "right"): Cell.of(effect.p_adjusted, p_value),
            }
        )
    if not rows or analysis.interactions is None:
        return None
    metric = metric_name(analysis.interactions.metric)
    what = f"variant − {analysis.baseline} in {metric}"
    title = f"Simple effects: how {what} changes with one setting at each level of the other."
    about = f"Exploratory; p and its {level(LEVEL)} interval are adjusted (Holm) over the effects of a setting."
    return Table.of("simple_effects", title, rows, about=about)


def _alias_note(interactions: Interactions) -> str:
    """Which effects the cells cannot tell apart."""
    pairs = [
        f"{_settings_of(alias.factors)} with {', '.join(map(_settings_of, alias.aliases)) or 'the mean'}"
        for alias in interactions.aliases
    ]
    return f"Aliased, so that each estimate is of both effects together: {'; '.join(pairs)}." if pairs else ""


def _settings_of(keys: Sequence[str]) -> str:
    return " × ".join(key.rpartition(".")[2] for key in keys)


def _estimate(shown: Difference) -> str:
    return shown.delta if shown.interval == DASH else f"{shown.delta} {shown.interval}"
