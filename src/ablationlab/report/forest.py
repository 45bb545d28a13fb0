"""The forest: one row per effect on a shared axis, as HTML that needs no script, style sheet or font of its own.

Better is left, whichever way the metric points. x is in percent and y in pixels, so that it fits any width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ablationlab.core.format import DASH
from ablationlab.records.verdict import Answer
from ablationlab.report.effects import Effect
from ablationlab.report.study_report import StudyReport
from ablationlab.report.table import html_text

#: Answers have two hues; signs tell them apart without.
COLOURS: Final = {
    Answer.BETTER: "#0a5fae",
    Answer.MORE_STABLE: "#0a5fae",
    Answer.WORSE: "#bd3a14",
    Answer.UNSTABLE: "#bd3a14",
}
_HEIGHT: Final = 26
_NUMBER: Final = "text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap;padding:0 10px"


@dataclass(frozen=True)
class Axis:
    """From *low* to *high*, as shares of the width. An interval that leaves it ends in an arrow."""

    low: float
    high: float

    @classmethod
    def of(cls, effects: Sequence[Effect]) -> Axis | None:
        """Zero, the smallest effects and every interval; an absurd interval does not flatten all others."""
        drawn = [row.drawn for row in effects if row.drawn is not None]
        ends = sorted((end for row in drawn for end in row if end is not None and math.isfinite(end)), key=abs)
        if not ends:
            return None
        most = 3 * max(abs(ends[len(ends) // 2]), *(abs(estimate) for estimate, _, _ in drawn))
        reach = [0.0, *(min(max(end, -most), most) for end in ends)]
        reach += [side * row.smallest for row in effects if row.smallest for side in (-1, 1)]
        return cls(min(reach), max(reach)) if max(reach) > min(reach) else None

    def place(self, value: float) -> float:
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)


def interval_svg(row: Effect, axis: Axis, colour: str = "currentColor") -> str:
    """Band of the smallest effect, zero, the interval, its estimate, and a tick per seed below."""

    def at(value: float) -> str:
        return f"{2 + 96 * axis.place(value):.2f}%"

    parts = []
    if row.smallest:
        width = 96 * (axis.place(row.smallest) - axis.place(-row.smallest))
        band = f'x="{at(-row.smallest)}" y="0" width="{width:.2f}%" height="{_HEIGHT}"'
        parts.append(f'<rect {band} fill="currentColor" opacity="0.09"/>')
    parts.append(f'<line x1="{at(0)}" x2="{at(0)}" y1="0" y2="{_HEIGHT}" stroke="currentColor" opacity="0.4"/>')
    if row.drawn is not None:
        estimate, low, high = row.drawn
        ends = (axis.low if low is None else low, axis.high if high is None else high)
        if low is not None or high is not None:
            line = f'x1="{at(ends[0])}" x2="{at(ends[1])}" y1="10" y2="10"'
            parts.append(f'<line {line} stroke="{colour}" stroke-width="3"/>')
        for end, inside, sign in ((low, axis.low, "◂"), (high, axis.high, "▸")):
            if (low is not None or high is not None) and (
                end is None or (end - inside) * (1 if sign == "◂" else -1) < 0
            ):
                anchor = "start" if sign == "◂" else "end"
                parts.append(f'<text x="{at(inside)}" y="15" fill="{colour}" text-anchor="{anchor}">{sign}</text>')
        fill = colour if row.smallest is not None else "none"
        if axis.low <= estimate <= axis.high:
            parts.append(
                f'<circle cx="{at(estimate)}" cy="10" r="5.6" fill="{fill}" stroke="{colour}" stroke-width="2"/>'
            )
    seeds = [tick for tick in row.ticks if axis.low <= tick <= axis.high]
    rug = 'y1="19" y2="25" opacity="0.7"'
    parts += [f'<line x1="{at(tick)}" x2="{at(tick)}" {rug} stroke="{colour}"/>' for tick in seeds]
    return f'<svg width="100%" height="{_HEIGHT}" style="display:block" aria-hidden="true">{"".join(parts)}</svg>'


def forest_html(report: StudyReport) -> str:
    """The answers of a study: a table whose middle column is the picture."""
    return "".join(_forest(report))


def _forest(report: StudyReport) -> Iterator[str]:
    shown = [row for _, _, rows in report.blocks for row in rows]
    axis = Axis.of(shown)
    several = len(report.regimes) > 1
    yield '<table style="width:100%;max-width:900px;border-collapse:collapse;font:14px/1.3 sans-serif">'
    heads = ("", "◀ better │ worse ▶", "difference", "interval", "answer")
    yield f"<thead><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr></thead><tbody>"
    for regime, reference, rows in report.blocks:
        value = next((row.baseline.text for row in rows if row.baseline.at), DASH)
        head = html_text(f"{reference}, {regime}" if several else reference)
        yield f'<tr><th scope="row" style="text-align:left">{head}</th><td></td><td style="{_NUMBER}">{value}</td></tr>'
        for row in rows:
            yield _row(row, axis)
    yield "</tbody></table>"


def _row(row: Effect, axis: Axis | None) -> str:
    colour = COLOURS.get(row.answer, "currentColor") if row.answer is not None else "currentColor"
    picture = "" if axis is None else interval_svg(row, axis, colour)
    unit = f" {row.unit}" if row.unit == "%" and row.estimate.at else ""
    word = row.answer.said if row.answer is not None else row.word.text
    flags = f"<br><small>{html_text(', '.join(row.flags))}</small>" if row.flags else ""
    return (
        f'<tr><th scope="row" style="text-align:left;font-weight:normal">{html_text(row.variant)}</th>'
        f'<td style="width:42%">{picture}</td><td style="{_NUMBER}">{html_text(row.estimate.text + unit)}</td>'
        f'<td style="{_NUMBER}">{html_text(row.interval)}</td>'
        f'<td style="white-space:nowrap;color:{colour};font-weight:600">{html_text(word)}{flags}</td></tr>'
    )
