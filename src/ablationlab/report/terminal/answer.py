"""What a terminal shows of a study: its answers as a forest, then a line each on guards, doubts and fairness."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len
from rich.text import Text

from ablationlab.core.format import DASH, count, plain
from ablationlab.records.verdict import Answer
from ablationlab.report.effects import Effect, smallest_text
from ablationlab.report.forest import axis_of
from ablationlab.report.interval import Axis
from ablationlab.report.layout import wrapped
from ablationlab.report.slots import Statement
from ablationlab.report.study_report import StudyReport

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

#: From so many rows on, undecided variants are one row.
FOLD_FROM: Final = 9
#: More answers in several regimes than this are counted.
MOST_NAMED: Final = 4
#: Of variants that are all undecided, so many have a row.
MOST_ROWS: Final = 12
#: A picture narrower than this is left out, and none is wider.
NARROWEST, WIDEST = 17, 48
STYLES: Final = {
    Answer.BETTER: "bold blue",
    Answer.MORE_STABLE: "bold blue",
    Answer.WORSE: "bold red",
    Answer.UNSTABLE: "bold red",
}
#: The name of a line of clauses takes so much.
_LEAD: Final = 10


@dataclass(frozen=True)
class _Row:
    """A line of the picture; a fold has the estimates of its variants, and none of its own."""

    name: str
    difference: str
    interval: str
    word: str
    failed: str = ""
    style: str = ""
    drawn: tuple[float, float | None, float | None] | None = None
    others: tuple[float, ...] = ()


@dataclass(frozen=True)
class AnswerView:
    """The whole answer, at the width that it is given. *command*: what shows more."""

    report: StudyReport
    command: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self.lines(options.max_width)

    def lines(self, width: int) -> Iterator[Text]:
        report = self.report
        yield from wrapped(self._head(), width)
        if report.question:
            yield from wrapped(Text(plain(report.question)), width)
        if report.interim is not None:
            yield from wrapped(Text(report.interim.text, style="bold"), width)
        if report.answers:
            yield Text()
            yield from self._forests(width)
            yield Text()
            yield from self._answers(width)
        said = list(self._clauses(width))
        if said:
            yield Text()
            yield from said

    def _head(self) -> Text:
        report = self.report
        sealed = f"sealed {report.sealed} · " if report.sealed else ""
        metric = f" · {report.metric}{f', {report.unit}' if report.unit else ''}" if report.metric else ""
        head = Text(f"{report.name}  ", style="bold")
        return head.append(f"{sealed}{report.arms} variants x {report.seeds} seeds{metric}", style="")

    # --- the forest ---------------------------------------------------------------------------------------------

    def _forests(self, width: int) -> Iterator[Text]:
        """All regimes and references on one axis; of several columns, those that hold something."""
        report = self.report
        several = len(report.regimes) > 1
        blocks = [(effects, self._rows(effects)) for _, _, effects in report.blocks]
        every = [row for _, rows in blocks for row in rows]
        levels = {row.level.text for row in report.answers if row.level.at}
        interval = f"{plain(next(iter(levels)))} interval" if len(levels) == 1 else "interval"
        titles = ("", "difference", interval, self._failed(), "answer")
        heads = [regime if several else reference for regime, reference, _ in report.blocks]
        cells = (
            [row.name for row in every] + heads,
            [row.difference for row in every],
            [row.interval for row in every],
            [row.failed for row in every],
            [row.word for row in every],
        )
        widths = [max(map(cell_len, (title, *texts))) for title, texts in zip(titles, cells, strict=True)]
        for column in (3, 2):  # failures, then intervals, where there is no room
            if sum(widths) + 2 * len(list(filter(None, widths))) > width:
                widths[column] = 0
        room = min(WIDEST, width - sum(widths) - 2 * (len(list(filter(None, widths))) + 1))
        shown = [row for _, _, effects in report.blocks for row in effects]
        picture = _Picture(axis_of(shown, ticks=False) if room >= NARROWEST else None, self._smallest(), room)
        yield _line(titles, widths, picture.head)
        for head, (effects, rows) in zip(heads, blocks, strict=True):
            value = next((row.baseline.text for row in effects if row.baseline.at), DASH)
            what = "baseline" if any(row.answer is not None for row in effects) else "reference"
            yield _line((head, value, what, "", ""), widths, "")
            for row in rows:
                texts = (row.name, row.difference, row.interval, row.failed, row.word)
                yield _line(texts, widths, picture.draw(row), row.style)
        if picture.shaded and (text := smallest_text(report.answers)):
            end = sum(widths) + 2 * len(list(filter(None, widths))) + picture.width + 2
            yield Text(f"{f'shaded: smallest effect, {plain(text)}':>{end}}", style="dim")

    def _smallest(self) -> float | None:
        known = {row.smallest for row in self.report.answers}
        return known.pop() if len(known) == 1 else None

    def _failed(self) -> str:
        """The head of the column of failures: of how many runs, where all have as many."""
        runs = {row.pairs.text for row in self.report.answers if row.failed is not None}
        return "" if not runs else f"failed/{runs.pop()}" if len(runs) == 1 else "failed"

    @staticmethod
    def _rows(effects: Sequence[Effect]) -> list[_Row]:
        folded = [row for row in effects if row.answer == Answer.UNDECIDED] if len(effects) >= FOLD_FROM else []
        folded = folded if 1 < len(folded) < len(effects) else folded[MOST_ROWS:]
        rows = [_row(row) for row in effects if row not in folded]
        return [*rows, _fold(folded)] if folded else rows

    # --- words --------------------------------------------------------------------------------------------------

    def _answers(self, width: int) -> Iterator[Text]:
        """``▶ worse: layernorm, rmsnorm → keep the baseline``"""
        several = len(self.report.regimes) > 1
        for group in self.report.groups:
            names = [f"{variant} in {regime}" if several else variant for variant, regime in group.places]
            listed = ", ".join(names) if len(names) <= MOST_NAMED or not several else count(len(names))
            text = Text("  ")
            text.append(group.answer.said, style=STYLES.get(group.answer, "bold"))
            text.append(f": {listed} → {group.advice}")
            yield from _fitted(text, width)

    def _clauses(self, width: int) -> Iterator[Text]:
        report = self.report
        for name, statements in (
            ("guards", report.guards),
            ("sure", report.sure),
            ("flags", report.flags),
            ("fair", report.fair),
            ("asked", report.hypotheses),
            ("deviates", report.deviations),
        ):
            yield from clause_line(name, statements, width)
        if report.next_look is not None:
            command = "" if report.folder is None else f": ablationlab extend {report.folder}"
            yield from _led("next", f"look at {report.next_look} seeds{command}", width)
        if report.unshown:
            yield from _led("also", f"{count(report.unshown)} exploratory answers: --all", width)
        if report.folder is not None and (report.folder / "report.html").exists():
            yield from _led("page", str(report.folder / "report.html"), width)
        if self.command:
            yield from _led("more", self.command, width)


def clause_line(name: str, statements: Sequence[Statement], width: int) -> Iterator[Text]:
    """Clauses behind the name of their line; nothing where there are none."""
    if statements:
        yield from _led(name, " · ".join(plain(statement.text) for statement in statements), width)


def _led(name: str, text: str, width: int) -> Iterator[Text]:
    lead = f"  {name:<{_LEAD - 2}} "
    pieces = list(wrapped(Text(text), max(20, width - len(lead))))
    for place, piece in enumerate(pieces):
        yield Text(lead if place == 0 else " " * len(lead), style="dim").append_text(Text(piece.plain, style="default"))


def _fitted(text: Text, width: int) -> Iterator[Text]:
    """A text with styles; one that does not fit loses them with its line."""
    if cell_len(text.plain) <= width:
        yield text
    else:
        yield from wrapped(Text(text.plain), width)


def _row(row: Effect) -> _Row:
    difference = row.estimate.text + (f" {row.unit}" if row.unit == "%" and row.estimate.text != DASH else "")
    word = Answer(row.word.text).said if row.word.text in set(Answer) else row.word.text
    style = STYLES.get(row.answer, "") if row.answer is not None else ""
    failed = "" if row.failed is None else f"{row.failed[0]} → {row.failed[1]}"
    return _Row(row.variant, plain(difference), row.interval, word, failed, style, row.drawn)


def _fold(rows: Sequence[Effect]) -> _Row:
    """The undecided ones as one row, with a dot for each."""
    others = tuple(row.drawn[0] for row in rows if row.drawn is not None)
    return _Row(f"{count(len(rows))} others", "", "", Answer.UNDECIDED.said, others=others)


def _line(cells: Sequence[str], widths: Sequence[int], picture: str, style: str = "") -> Text:
    """Name, difference, interval and failures, the picture, the word."""
    text = Text("  ", no_wrap=True)
    text.append(cells[0] + " " * (widths[0] - cell_len(cells[0])))
    for cell, width in zip(cells[1:-1], widths[1:-1], strict=True):
        if width:
            text.append("  " + " " * (width - cell_len(cell)) + cell)
    text.append(f"  {picture}" if picture else "")
    text.append("  " + cells[-1], style=style)
    text.rstrip()
    return text


@dataclass(frozen=True)
class _Picture:
    """Intervals on one axis, in so many cells; none where there is no room or nothing to draw."""

    axis: Axis | None
    smallest: float | None
    width: int

    @property
    def head(self) -> str:
        """Which side is which."""
        return "" if self.axis is None else f"◀ better{'worse ▶':>{self.width - 8}}"

    @property
    def shaded(self) -> bool:
        """Whether the band of the smallest effect is wider than the line at zero."""
        known = self.axis is not None and self.smallest is not None
        return known and self._place(self.smallest or 0.0) > self._place(-(self.smallest or 0.0))

    def draw(self, row: _Row) -> str:
        if self.axis is None:
            return ""
        cells = [" "] * self.width
        if self.smallest is not None:
            first, last = self._place(-self.smallest), self._place(self.smallest)
            cells[first : last + 1] = "░" * (last + 1 - first)
        cells[self._place(0.0)] = "│"
        for other in row.others:
            cells[self._place(other)] = "•"
        if row.drawn is None:
            return "".join(cells)
        estimate, low, high = row.drawn
        if low is not None or high is not None:
            first = 0 if low is None else self._place(low)
            last = self.width - 1 if high is None else self._place(high)
            cells[first : last + 1] = "─" * (last + 1 - first)
            cells[first] = "◁" if low is None or low < self.axis.low else "├"
            cells[last] = "▷" if high is None or high > self.axis.high else "┤"
        cells[self._place(estimate)] = "●"
        return "".join(cells)

    def _place(self, value: float) -> int:
        assert self.axis is not None
        return round(self.axis.place(value) * (self.width - 1))
