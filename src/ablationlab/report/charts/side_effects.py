"""Side effects: everything else that was measured, as one dot plot in units of each metric's own margin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log
from typing import Final

from ablationlab.core.format import setting
from ablationlab.core.grouping import grouped
from ablationlab.records.verdict import FAILURES
from ablationlab.report.charts.chart import Chart
from ablationlab.report.charts.rows import (
    answer_word,
    axis_in_units,
    foot,
    head,
    legend,
    mark,
    row,
    shown_variants,
    standing_word,
)
from ablationlab.report.effects import Effect
from ablationlab.report.forest import estimate_text
from ablationlab.report.interval import Axis, Drawn, interval_svg
from ablationlab.report.slots import Statement
from ablationlab.report.study_report import StudyReport
from ablationlab.report.table import Cell, Table, html_text

#: What is shown although nobody registered it, after what was; the rest is in the table of all comparisons.
SHOWN: Final = (
    "validation_loss",
    "macro_accuracy",
    "next_token_accuracy",
    "token_ece",
    "equal_time",
    "training_speed",
    "inference_speed",
    "training_memory",
    "failures",
)
#: Without a margin an effect is drawn against this share of the baseline's value.
SHARE: Final = 0.05


@dataclass(frozen=True)
class _Row:
    """One metric in one regime, with an effect per variant."""

    name: str
    regime: str
    effects: tuple[Effect, ...]

    @property
    def margin(self) -> float | None:
        return next((effect.smallest or effect.margin for effect in self.effects), None)


def side_effects_chart(report: StudyReport) -> Chart | None:
    variants = shown_variants(report)
    rows = list(_rows(report, variants))
    drawn = {id(effect): _in_margins(effect) for known in rows for effect in known.effects}
    axis = axis_in_units(drawn.values())
    if axis is None or len(rows) < 2:
        return None
    few = len(variants) <= 2
    names = " → ".join(filter(None, (report.baseline, ", ".join(variants if few else ()))))
    inside = (_row(report, known, drawn, axis, few=few) for known in rows)
    body = "".join((head(axis, names), *inside, foot(axis)))
    hollow = any(known.margin is None for known in rows)
    svg = f'<div class="ch">{body}{_legend(report, variants, hollow=hollow)}</div>'
    return Chart(svg, _table(rows))


def _rows(report: StudyReport, variants: Sequence[str]) -> Iterator[_Row]:
    """Registered metrics first, each in the first regime that has an answer; failures in every one."""
    regimes = report.regimes
    home = regimes[0] if regimes else ""
    found = [
        effect
        for effect in (*report.effects, *report.beside)
        if effect.variant in variants and effect.reference == report.baseline and effect.drawn is not None
    ]
    by_row = grouped(
        ((effect.metric, effect.name, effect.regime), effect)
        for effect in found
        if effect.regime == home or (effect.metric == FAILURES and effect.regime in regimes)
    )
    several = len(regimes) > 1
    order = {name: place for place, name in enumerate(SHOWN)}
    wanted = [
        (order.get(metric, -1 if effects[0].role == "primary" else 1), regime, name, effects)
        for (metric, name, regime), effects in by_row.items()
        if effects[0].role in ("primary", "secondary", "guard") or _is_shown(metric, name)
    ]
    for _, regime, name, effects in sorted(wanted, key=lambda row: (row[0], regimes.index(row[1]))):
        ordered = tuple(sorted(effects, key=lambda effect: variants.index(effect.variant)))
        yield _Row(name, regime if several else "", ordered)


def _is_shown(metric: str, name: str) -> bool:
    return metric in SHOWN and ", " not in name


def _in_margins(effect: Effect) -> tuple[float, float | None, float | None] | None:
    """What is drawn, in units of its margin; a metric without one in twentieths of the baseline's value."""
    unit = effect.smallest or effect.margin or _twentieth(effect)
    if effect.drawn is None or not unit:
        return None
    estimate, low, high = effect.drawn
    return estimate / unit, None if low is None else low / unit, None if high is None else high / unit


def _twentieth(effect: Effect) -> float:
    if effect.estimate.scale in ("change", "factor"):
        return log(1 + SHARE)
    base = effect.baseline.value
    return SHARE * abs(base) if isinstance(base, int | float) else 0.0


def _row(
    report: StudyReport,
    known: _Row,
    drawn: dict[int, tuple[float, float | None, float | None] | None],
    axis: Axis,
    *,
    few: bool,
) -> str:
    marks = []
    for effect in known.effects:
        emblem = report.emblems[effect.variant]
        estimate, low, high = drawn[id(effect)] or (None, None, None)
        marks.append(Drawn(estimate, low, high, (), emblem.css, emblem.shape, hollow=known.margin is None))
    height = max(44 if known.regime else 36, 16 * len(marks) + 8)
    strip = interval_svg(axis, marks, height=height, smallest=1.0, grid=[tick for tick in axis.ticks() if tick])
    name = html_text(known.name) + (f"<small>{html_text(known.regime)}</small>" if known.regime else "")
    told = ", ".join(f"{effect.variant} {estimate_text(effect)}" for effect in known.effects)
    return row(name, strip, _values(known, few), _words(report, known), label=f"{known.name}: {told}")


def _values(known: _Row, few: bool) -> str:
    """What the baseline has, and where they are *few* what each variant has; below, the unit and the margin."""
    first = known.effects[0]
    if first.metric == FAILURES and first.failed is not None:
        base, own = first.failed[0].text, [effect.failed[1].text for effect in known.effects if effect.failed]
        below = f"of {first.n}"
    elif first.baseline.at:
        base, own = first.baseline.text, [effect.value.text for effect in known.effects]
        below = "" if first.unit == "%" else first.unit
    else:
        base, own, below = "", list(map(estimate_text, known.effects)), first.unit
    text = " → ".join(filter(None, (base, ", ".join(own if few else []))))
    margin = "" if known.margin is None else f"±{setting(known.margin)}"
    below = " ".join(filter(None, (below, margin)))
    return html_text(text) + (f"<small>{html_text(below)}</small>" if below else "")


def _words(report: StudyReport, known: _Row) -> str:
    """One where all agree, else one per variant."""
    words = [_word(report, effect) for effect in known.effects]
    return words[0] if len(set(words)) == 1 else "<br>".join(words)


def _word(report: StudyReport, effect: Effect) -> str:
    """Of a guard how it stands."""
    name = effect.metric.replace("_", " ")
    for answer in report.answers if effect.answer is None else ():
        if (answer.variant, answer.regime) == (effect.variant, effect.regime):
            for guard in answer.guards:
                if guard.name == name:
                    return standing_word(guard.standing)
    return answer_word(effect)


def _legend(report: StudyReport, variants: Sequence[str], *, hollow: bool) -> str:
    """Every variant's mark, the unit, and what a hollow mark is."""
    items = [mark(report.emblems[name]) + html_text(name) for name in variants]
    items += [html_text(Statement(code).text) for code in ("side.unit", *(["side.hollow"] if hollow else []))]
    return legend(items)


def _table(rows: Sequence[_Row]) -> Table:
    heads = ["metric", "regime", "variant", "baseline", "value", "difference", "interval", "margin", "answer"]
    several = any(known.regime for known in rows)
    lines: list[dict[str, Cell | str]] = [
        {
            "metric": known.name,
            "regime": known.regime,
            "variant": Cell.name(effect.variant),
            "baseline": _slot_cell(effect.baseline.value, effect.baseline.text),
            "value": _slot_cell(effect.value.value, effect.value.text),
            "difference": Cell.of(effect.estimate.value, estimate_text(effect)),
            "interval": effect.interval,
            "margin": Cell.of(known.margin, setting),
            "answer": effect.word.text,
        }
        for known in rows
        for effect in known.effects
    ]
    shown = [head for head in heads if head != "regime" or several]
    right = ["baseline", "value", "difference", "interval", "margin"]
    return Table.simple(
        Statement("side.title").text, shown, [[line[head] for head in shown] for line in lines], right=right
    )


def _slot_cell(value: float | str | None, text: str) -> Cell:
    return Cell.of(value, text)
