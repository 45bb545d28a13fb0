"""Rows of a chart: a name, a strip on the shared axis, numbers, a word. They can be reached by keyboard."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ablationlab.core.format import DASH
from ablationlab.records.verdict import Answer, Standing
from ablationlab.report.colours import Emblem
from ablationlab.report.effects import Effect
from ablationlab.report.interval import Axis, axis_svg, mark_svg
from ablationlab.report.study_report import StudyReport
from ablationlab.report.table import html_text

_SIGNS: Final = {Standing.KEPT: ("✓", "better"), Standing.OPEN: ("○", "quiet"), Standing.BROKEN: ("✗", "worse")}
#: An estimate at so many times what a band holds leaves the axis, and an interval at so many times the widest estimate.
FAR, WIDE = 50.0, 1.3


#: So many variants have a line or a mark, the decided ones first.
MOST: Final = 5
OPEN: Final = (Answer.UNDECIDED, Answer.SAME, Answer.NOT_MEASURED)


def shown_variants(report: StudyReport) -> tuple[str, ...]:
    """Those with a decided answer, else those that moved most; no more than a row has room for."""
    rows = [row for row in report.answers if row.reference == report.baseline]
    decided = [row for row in rows if row.answer not in OPEN] or rows
    decided.sort(key=lambda row: -abs(row.drawn[0]) if row.drawn else 0.0)
    names = list(dict.fromkeys(row.variant for row in decided))[:MOST]
    return tuple(name for name in report.variants if name in names)


def row(name: str, strip: str, numbers: str = "", word: str = "", *, label: str = "", kind: str = "") -> str:
    """All parts are HTML; *label*: what a screen reader says of a row that can be focused."""
    focus = f' tabindex="0" role="group" aria-label="{html_text(label)}"' if label else ""
    cells = f'<div class="nm">{name}</div><div class="pl">{strip}</div><div class="df">{numbers}</div>'
    return f'<div class="ch-row{f" {kind}" if kind else ""}"{focus}>{cells}<div class="an">{word}</div></div>'


def head(axis: Axis, numbers: str = "", left: str = "") -> str:
    """Which side is better, and what stands *left* of it."""
    sides = (
        f'<svg class="plot" width="100%" height="20" aria-hidden="true"><svg x="{axis.at(0)}" y="14" overflow="visible">'
        '<text x="-8" text-anchor="end" class="better">◀ better</text><text x="8" class="worse">worse ▶</text></svg></svg>'
    )
    beside = f'<div class="ch-left">{html_text(left)}</div>' if left else ""
    return row("", beside + sides, html_text(numbers), kind="head")


def foot(axis: Axis) -> str:
    """The numbers of the axis."""
    return row("", axis_svg(axis, lambda value: html_text(axis.text(value)) if value else "0"), kind="foot")


def axis_in_units(drawn: Iterable[tuple[float, float | None, float | None] | None]) -> Axis | None:
    """Of effects in units of their margin: all estimates but the absurd, and as much of the intervals as flattens none."""
    known = [found for found in drawn if found is not None]
    if not known:
        return None
    most = WIDE * max(1.0, *(min(abs(estimate), FAR) for estimate, _, _ in known))
    reach = [min(max(end, -most), most) for found in known for end in found if end is not None]
    return Axis(min(-1.5, *reach), max(1.5, *reach))


def mark(emblem: Emblem) -> str:
    """The mark of a variant beside its name."""
    return f'<svg class="mk" width="16" height="16" aria-hidden="true">{mark_svg(emblem.shape, emblem.css)}</svg>'


def legend(items: Iterable[str]) -> str:
    """Items are HTML."""
    return f'<div class="ch-legend">{"".join(f"<span>{item}</span>" for item in items)}</div>'


def answer_word(effect: Effect) -> str:
    """The answer, or the outcome of the test, with its sign."""
    if effect.answer is not None:
        return _toned(effect.answer.said)
    word = effect.word.text
    return _toned(Answer(word).said if word in set(Answer) else "" if word == DASH else word)


def standing_word(standing: Standing) -> str:
    sign, tone = _SIGNS[standing]
    return f'<span class="{tone}">{sign} {html_text(standing.value)}</span>'


def _toned(word: str) -> str:
    tone = "better" if Answer.BETTER in word or Answer.MORE_STABLE in word else "quiet"
    tone = "worse" if Answer.WORSE in word or Answer.UNSTABLE in word else tone
    return f'<span class="{tone}">{html_text(word)}</span>'
