"""The forest: one row per effect on a shared axis. For a notebook as HTML without a style sheet, and as an SVG of its own.

Better is left, whichever way the metric points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ablationlab.core.format import DASH, difference
from ablationlab.records.verdict import Answer
from ablationlab.report import fonts
from ablationlab.report.colours import BASELINE, BETTER, HUE_OF, INK, PAPER, QUIET, WORSE, Emblem
from ablationlab.report.effects import Effect, smallest_text
from ablationlab.report.interval import Axis, Drawn, axis_svg, interval_svg, mark_svg
from ablationlab.report.study_report import StudyReport
from ablationlab.report.table import html_text

_NUMBER: Final = "text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap;padding:0 10px"
#: More seeds than this do not widen an axis.
MOST_TICKS: Final = 16
#: The exported picture: its width, where its columns are, and the height of a row.
_WIDTH, _PLOT, _PLOT_WIDTH, _DIFFERENCE, _INTERVAL, _ANSWER, _ROW = 960, 190, 350, 612, 762, 790, 44


def axis_of(effects: Sequence[Effect], *, ticks: bool = True) -> Axis | None:
    """Zero, the smallest effects, every interval, and the seeds where *ticks* are drawn and few."""
    return Axis.around(
        (row.drawn for row in effects),
        (row.smallest for row in effects),
        (
            tick
            for row in effects
            if ticks and row.drawn is not None and len(row.ticks) <= MOST_TICKS
            for tick in row.ticks
        ),
    )


def drawn_of(row: Effect, colour: str = "currentColor", shape: str = "circle", *, ticks: bool = True) -> Drawn:
    """What its row draws; hollow without a smallest effect."""
    estimate, low, high = row.drawn or (None, None, None)
    return Drawn(estimate, low, high, row.ticks if ticks else (), colour, shape, hollow=row.smallest is None)


def axis_text(report: StudyReport, axis: Axis) -> Callable[[float], str]:
    """What stands at a value of the axis: a difference of the metric."""
    log = any(row.estimate.scale in ("change", "factor") for row in report.answers)
    sign = -1.0 if report.higher else 1.0
    if log:
        return lambda value: difference(sign * value, log=True).text if value else "0"
    return lambda value: axis.text(sign * value) if value else "0"


def said(row: Effect) -> str:
    """The answer with its sign; of what has none, the outcome."""
    return Answer(row.word.text).said if row.word.text in set(Answer) else row.word.text


def name_of(row: Effect, baseline: str) -> str:
    """The variant, and its reference where that is not the baseline."""
    return row.variant if row.reference == baseline else f"{row.variant} − {row.reference}"


def estimate_text(row: Effect) -> str:
    return f"{row.estimate} {row.unit}" if row.unit == "%" and row.estimate.at else row.estimate.text


def level_text(rows: Sequence[Effect]) -> str:
    """``97.5 % interval``, where all have one level."""
    levels = {row.level.text for row in rows if row.level.at}
    return f"{levels.pop()} interval" if len(levels) == 1 else "interval"


# --- notebook -------------------------------------------------------------------------------------------------


def forest_html(report: StudyReport) -> str:
    """The answers of a study: a table whose middle column is the picture."""
    return "".join(_forest(report))


def _forest(report: StudyReport) -> Iterator[str]:
    axis = axis_of([row for _, _, rows in report.blocks for row in rows])
    several = len(report.regimes) > 1
    yield '<table style="width:100%;max-width:900px;border-collapse:collapse;font:14px/1.3 sans-serif">'
    heads = ("", "◀ better │ worse ▶", "difference", "interval", "answer")
    yield f"<thead><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr></thead><tbody>"
    for regime, reference, rows in report.blocks:
        value = next((row.baseline.text for row in rows if row.baseline.at), DASH)
        head = html_text(f"{reference}, {regime}" if several else reference)
        yield f'<tr><th scope="row" style="text-align:left">{head}</th><td></td><td style="{_NUMBER}">{value}</td></tr>'
        for row in rows:
            yield _row(row, axis, report.emblems.get(row.variant))
    yield "</tbody></table>"


def _row(row: Effect, axis: Axis | None, emblem: Emblem | None) -> str:
    drawn = drawn_of(row) if emblem is None else drawn_of(row, emblem.colour(), emblem.shape)
    picture = "" if axis is None else interval_svg(axis, [drawn], smallest=row.smallest)
    flags = f"<br><small>{html_text(', '.join(row.flags))}</small>" if row.flags else ""
    return (
        f'<tr><th scope="row" style="text-align:left;font-weight:normal">{html_text(row.variant)}</th>'
        f'<td style="width:42%">{picture}</td><td style="{_NUMBER}">{html_text(estimate_text(row))}</td>'
        f'<td style="{_NUMBER}">{html_text(row.interval)}</td>'
        f'<td style="white-space:nowrap;color:{_hue(row)};font-weight:600">{html_text(said(row))}{flags}</td></tr>'
    )


def _hue(row: Effect, *, dark: bool = False) -> str:
    return HUE_OF[row.answer][dark] if row.answer is not None and row.answer in HUE_OF else "currentColor"


# --- a picture of its own -------------------------------------------------------------------------------------


def forest_svg(report: StudyReport, *, dark: bool = False) -> str:
    """The answers as one picture that needs nothing else: fixed size, own colours. Its font is named, and not inside."""
    picture = _Picture(report, dark=dark)
    body = "".join(picture.parts())
    size = f'width="{_WIDTH}" height="{picture.y}" viewBox="0 0 {_WIDTH} {picture.y}"'
    style = f'font-family="{fonts.FAMILY}, sans-serif" color="{INK[dark]}" fill="{INK[dark]}"'
    ground = f'<rect width="{_WIDTH}" height="{picture.y}" fill="{PAPER[dark]}"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}><title>{_svg(report.name)}</title>{ground}{body}</svg>'
    )


class _Picture:
    """Rows from top to bottom."""

    def __init__(self, report: StudyReport, *, dark: bool) -> None:
        self.report, self.dark, self.y = report, dark, 0
        self.axis = axis_of([row for _, _, rows in report.blocks for row in rows])

    def parts(self) -> Iterator[str]:
        report = self.report
        several = len(report.regimes) > 1
        for line in _lines(report.question or report.name, 22, _WIDTH - 48):
            self.y += 32
            yield self._text(24, self.y, line, 22, weight=600)
        unit = f", {report.unit}" if report.unit else ""
        self.y += 28
        yield self._text(
            24, self.y, f"difference in {report.metric}{unit}; {level_text(report.answers)}", 14, quiet=True
        )
        yield from self._sides()
        for regime, reference, rows in report.blocks:
            if reference == report.baseline:
                yield self._baseline(f"{reference}, {regime}" if several else reference, rows)
            for row in rows:
                yield self._row(row)
        yield from self._foot()

    def _sides(self) -> Iterator[str]:
        self.y += 30
        if self.axis is None:
            return
        zero = _PLOT + _PLOT_WIDTH * (2 + 96 * self.axis.place(0)) / 100
        for x, text, anchor, hue in ((zero - 10, "◀ better", "end", BETTER), (zero + 10, "worse ▶", "start", WORSE)):
            yield self._text(x, self.y, text, 14, anchor=anchor, weight=600, fill=hue[self.dark])
        self.y += 8

    def _baseline(self, head: str, rows: Sequence[Effect]) -> str:
        value = next((row.baseline.text for row in rows if row.baseline.at), DASH)
        text = self._text(48, self.y + 22, head, 15) + self._text(_DIFFERENCE, self.y + 22, value, 15, anchor="end")
        colour = BASELINE.colour(dark=self.dark)
        drawn = Drawn(0.0, colour=colour, shape=BASELINE.shape)
        text += self._svg_mark(BASELINE.shape, colour, self.y + 17)
        return self._strip([drawn], next((row.smallest for row in rows), None), 34) + text

    def _row(self, row: Effect) -> str:
        emblem = self.report.emblems.get(row.variant)
        colour = "currentColor" if emblem is None else emblem.colour(dark=self.dark)
        shape = "circle" if emblem is None else emblem.shape
        y = self.y + 23
        hue = _hue(row, dark=self.dark)
        text = self._svg_mark(shape, colour, y - 5) + self._text(
            48, y, name_of(row, self.report.baseline), 16, weight=600
        )
        text += self._text(_DIFFERENCE, y, estimate_text(row), 16, anchor="end", weight=600)
        text += self._text(_INTERVAL, y, row.interval, 14, anchor="end", quiet=True)
        text += self._text(_ANSWER, y, said(row).upper(), 14, weight=600, fill=hue)
        return self._strip([drawn_of(row, colour, shape)], row.smallest, _ROW) + text

    def _svg_mark(self, shape: str, colour: str, y: float) -> str:
        inside = mark_svg(shape, colour, paper=PAPER[self.dark])
        return f'<svg x="24" y="{y - 8:g}" width="16" height="16" overflow="visible">{inside}</svg>'

    def _strip(self, rows: Sequence[Drawn], smallest: float | None, height: int) -> str:
        inside = (
            ""
            if self.axis is None
            else interval_svg(self.axis, rows, height=height, smallest=smallest, paper=PAPER[self.dark])
        )
        strip = (
            f'<svg x="{_PLOT}" y="{self.y}" width="{_PLOT_WIDTH}" height="{height}" overflow="visible">{inside}</svg>'
        )
        self.y += height
        return strip

    def _foot(self) -> Iterator[str]:
        if self.axis is not None:
            text = axis_text(self.report, self.axis)
            inside = axis_svg(self.axis, lambda value: _svg(text(value)))
            yield f'<svg x="{_PLOT}" y="{self.y}" width="{_PLOT_WIDTH}" height="22" color="{QUIET[self.dark]}">{inside}</svg>'
            self.y += 22
        self.y += 24
        seal = "" if self.report.seal is None else f" · sealed {self.report.seal.text}"
        shaded = f"shaded: smallest effect, {smallest}" if (smallest := smallest_text(self.report.answers)) else ""
        yield self._text(24, self.y, f"{self.report.name}{seal}", 13, quiet=True)
        yield self._text(_WIDTH - 24, self.y, shaded, 13, anchor="end", quiet=True)
        self.y += 20

    def _text(
        self,
        x: float,
        y: float,
        text: str,
        size: int,
        *,
        anchor: str = "start",
        weight: int = 400,
        quiet: bool = False,
        fill: str = "",
    ) -> str:
        colour = fill or (QUIET[self.dark] if quiet else "currentColor")
        style = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="{colour}"'
        return f'<text x="{x:g}" y="{y:g}" {style}>{_svg(text)}</text>'


def _svg(text: str) -> str:
    """Text in signs that the font has, escaped."""
    return html_text(fonts.legible(text))


def _lines(text: str, size: float, room: float) -> list[str]:
    """Words in lines that are no wider than there is room."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and fonts.width(longer, size, "Semibold") > room:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines
