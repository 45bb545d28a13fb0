"""Side effects: everything else that was measured, as one dot plot in units of each metric's own margin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log
from typing import Final

from ablationlab.core.format import DASH, setting
from ablationlab.core.grouping import grouped
from ablationlab.records.verdict import FAILURES, Answer, Standing
from ablationlab.report.charts.chart import Chart
from ablationlab.report.charts.difference import MOST_LINES
from ablationlab.report.colours import Emblem
from ablationlab.report.effects import Effect
from ablationlab.report.interval import Axis, Drawn, axis_svg, interval_svg, mark_svg
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
_OPEN: Final = (Answer.UNDECIDED, Answer.SAME, Answer.NOT_MEASURED)
_SIGNS: Final = {Standing.KEPT: ("✓", "better"), Standing.OPEN: ("○", "quiet"), Standing.BROKEN: ("✗", "worse")}


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
    variants = _variants(report)
    rows = list(_rows(report, variants))
    drawn = {id(effect): _in_margins(effect) for row in rows for effect in row.effects}
    axis = Axis.around((found for found in drawn.values() if found is not None), [1.0])
    if axis is None or len(rows) < 2:
        return None
    few = len(variants) <= 2
    head = _head(report, variants if few else (), axis)
    body = "".join((head, *(_html(report, row, drawn, axis, few=few) for row in rows), _foot(axis)))
    hollow = any(row.margin is None for row in rows)
    svg = f'<div class="ch">{body}{_legend(report, variants, hollow=hollow)}</div>'
    return Chart(svg, _table(rows))


def _variants(report: StudyReport) -> tuple[str, ...]:
    """Those with a decided answer, else those that moved most; no more than a row has room for."""
    rows = [row for row in report.answers if row.reference == report.baseline]
    decided = [row for row in rows if row.answer not in _OPEN] or rows
    decided.sort(key=lambda row: -abs(row.drawn[0]) if row.drawn else 0.0)
    names = list(dict.fromkeys(row.variant for row in decided))[:MOST_LINES]
    return tuple(name for name in report.variants if name in names)


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


def _head(report: StudyReport, variants: Sequence[str], axis: Axis) -> str:
    at = axis.at(0)
    sides = (
        f'<svg class="plot" width="100%" height="20" aria-hidden="true"><svg x="{at}" y="14" overflow="visible">'
        '<text x="-8" text-anchor="end" class="better">◀ better</text><text x="8" class="worse">worse ▶</text></svg></svg>'
    )
    names = " → ".join(filter(None, (report.baseline, ", ".join(variants))))
    head = f'<div class="df">{html_text(names)}</div>'
    return f'<div class="ch-row head"><div class="nm"></div><div class="pl">{sides}</div>{head}<div class="an"></div></div>'


def _html(
    report: StudyReport,
    row: _Row,
    drawn: dict[int, tuple[float, float | None, float | None] | None],
    axis: Axis,
    *,
    few: bool,
) -> str:
    marks = []
    for effect in row.effects:
        emblem = report.emblems[effect.variant]
        estimate, low, high = drawn[id(effect)] or (None, None, None)
        hollow = row.margin is None
        marks.append(Drawn(estimate, low, high, (), emblem.css, emblem.shape, hollow=hollow))
    height = max(34, 16 * len(marks) + 8)
    strip = interval_svg(axis, marks, height=height, smallest=1.0, grid=[tick for tick in axis.ticks() if tick])
    regime = f"<small>{html_text(row.regime)}</small>" if row.regime else ""
    label = html_text(f"{row.name}: " + ", ".join(f"{e.variant} {_estimate(e)}" for e in row.effects))
    name = f'<div class="nm">{html_text(row.name)}{regime}</div>'
    return (
        f'<div class="ch-row" tabindex="0" role="group" aria-label="{label}">{name}'
        f'<div class="pl">{strip}</div><div class="df">{_values(row, few)}</div><div class="an">{_words(report, row)}</div></div>'
    )


def _estimate(effect: Effect) -> str:
    return f"{effect.estimate} {effect.unit}".strip() if effect.unit == "%" else effect.estimate.text


def _values(row: _Row, few: bool) -> str:
    """What the baseline has, and where they are *few* what each variant has; below, the unit and the margin."""
    first = row.effects[0]
    if first.failed is not None:
        text = f"{first.failed[0]} → {', '.join(effect.failed[1].text for effect in row.effects if effect.failed)}"
        below = f"of {first.n}"
    elif first.baseline.at:
        own = [effect.value.text for effect in row.effects] if few else []
        text = " → ".join(filter(None, (first.baseline.text, ", ".join(own))))
        below = "" if first.unit == "%" else first.unit
    else:
        text, below = ", ".join(map(_estimate, row.effects)) if few else "", first.unit
    margin = "" if row.margin is None else f"±{setting(row.margin)}"
    below = " ".join(filter(None, (below, margin)))
    return html_text(text) + (f"<small>{html_text(below)}</small>" if below else "")


def _words(report: StudyReport, row: _Row) -> str:
    """One where all agree, else one per variant."""
    words = [_word(report, effect) for effect in row.effects]
    return "<br>".join(dict.fromkeys(words)) if len(set(words)) == 1 else "<br>".join(words)


def _word(report: StudyReport, effect: Effect) -> str:
    if effect.answer is not None:
        return _said(effect.answer.said)
    guard = effect.metric.replace("_", " ")
    for answer in report.answers:
        if (answer.variant, answer.regime) == (effect.variant, effect.regime):
            for known in answer.guards:
                if known.name == guard:
                    sign, tone = _SIGNS[known.standing]
                    return f'<span class="{tone}">{sign} {html_text(known.standing.value)}</span>'
    word = effect.word.text
    return _said(Answer(word).said if word in set(Answer) else "" if word == DASH else word)


def _said(word: str) -> str:
    tone = "better" if "better" in word else "worse" if "worse" in word else "quiet"
    return f'<span class="{tone}">{html_text(word)}</span>'


def _foot(axis: Axis) -> str:
    below = axis_svg(axis, lambda value: html_text(axis.text(value)) if value else "0")
    return f'<div class="ch-row"><div class="nm"></div><div class="pl">{below}</div></div>'


def _legend(report: StudyReport, variants: Sequence[str], *, hollow: bool) -> str:
    """Every variant's emblem, and what a hollow one is."""
    items = [legend_item(report.emblems[name], name) for name in variants]
    items.append(f"<span>{html_text(Statement('side.unit').text)}</span>")
    if hollow:
        items.append(f"<span>{html_text(Statement('side.hollow').text)}</span>")
    return f'<div class="ch-legend">{"".join(items)}</div>'


def legend_item(emblem: Emblem, name: str) -> str:
    """A variant's mark with its name."""
    mark = mark_svg(emblem.shape, emblem.css)
    return f'<span><svg class="mk" width="16" height="16" aria-hidden="true">{mark}</svg>{html_text(name)}</span>'


def _table(rows: Sequence[_Row]) -> Table:
    heads = ["metric", "regime", "variant", "baseline", "value", "difference", "interval", "margin", "answer"]
    several = any(row.regime for row in rows)
    lines: list[dict[str, Cell | str]] = [
        {
            "metric": row.name,
            "regime": row.regime,
            "variant": Cell.name(effect.variant),
            "baseline": _slot_cell(effect.baseline.value, effect.baseline.text),
            "value": _slot_cell(effect.value.value, effect.value.text),
            "difference": Cell.of(effect.estimate.value, _estimate(effect)),
            "interval": effect.interval,
            "margin": Cell.of(row.margin, setting),
            "answer": effect.word.text,
        }
        for row in rows
        for effect in row.effects
    ]
    shown = [head for head in heads if head != "regime" or several]
    right = ["baseline", "value", "difference", "interval", "margin"]
    return Table.simple(
        Statement("side.title").text, shown, [[line[head] for head in shown] for line in lines], right=right
    )


def _slot_cell(value: float | str | None, text: str) -> Cell:
    return Cell.of(value, text)
