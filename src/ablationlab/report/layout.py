"""How a table fits a terminal: names and numbers never break. Prose wraps, spare columns go, then rows are stacked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rich.cells import cell_len
from rich.text import Text

from ablationlab.core.format import DASH

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_GAP = 2
#: Where a line may break: a number keeps its unit, as in 5 % and 3 min, and its name, as in p = 0.03.
_SPACE = re.compile(
    r"(?<! [=<]) (?![=<] )(?!%)(?!(?<=\d )(?:s|ms|µs|min|h|d|B|kB|MB|GB|TB|Gb/s|k|M|G|T|[GT]FLOP|x|SD|nats|nats/token)\b)"
)
#: A column of sentences may be made as narrow as this.
_PROSE = 30


@dataclass(frozen=True)
class TerminalColumn:
    """A column as printed. *prose*: sentences, which may wrap; *spare*: goes first where there is no room, or "below".

    Its *note* stands below the table, unless it has gone.
    """

    title: str
    align: Literal["left", "right", "center"]
    cells: tuple[Text, ...]
    prose: bool = False
    spare: bool | Literal["below"] = False
    note: str = ""

    @property
    def natural(self) -> int:
        """Width at which nothing wraps."""
        return max([cell_len(self.title), *(_width(cell) for cell in self.cells)])

    @property
    def least(self) -> int:
        """Width below which a name or a number would break; a title wraps between words."""
        if self.prose:
            return min(self.natural, _PROSE)
        words = [cell_len(word) for word in self.title.split()]
        return max([0, *words, *(_width(cell) for cell in self.cells)])

    @property
    def readable(self) -> int:
        """Width at which the title takes two lines at most."""
        words = self.title.split()
        halves = [(" ".join(words[:place]), " ".join(words[place:])) for place in range(1, len(words) + 1)]
        return max([self.least, min((max(map(cell_len, each)) for each in halves), default=0)])


@dataclass(frozen=True)
class TerminalTable:
    """A table for rich that looks at the width it is given when it is printed."""

    title: str
    note: str
    columns: tuple[TerminalColumn, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        if self.title:
            yield from wrapped(Text(self.title, style="bold"), width)
        columns, spared = _without_spare(self.columns, width)
        under = [column for column in spared if column.spare == "below"]
        gone = [column for column in spared if column not in under]
        below = [column for column in columns if column.prose]
        flat = [column for column in columns if not column.prose]
        if _least(columns) <= width:
            yield from _grid(columns, width, (), under)
        elif below and flat and flat[0].align == "left" and _least(flat) <= width:  # a name leads each row
            yield from _grid(flat, width, below, under)
        else:
            yield from _blocks([column for column in self.columns if column not in gone], width)
        if gone:
            left_out = Text(f"Not shown at this width: {', '.join(column.title for column in gone)}.", style="dim")
            yield from wrapped(left_out, width)
        notes = [self.note, *(column.note for column in self.columns if column not in gone)]
        if any(notes):
            yield from wrapped(Text(" ".join(filter(None, notes))), width)


def _width(text: Text) -> int:
    return max((cell_len(line) for line in text.plain.split("\n")), default=0)


def _least(columns: Sequence[TerminalColumn]) -> int:
    return sum(column.least for column in columns) + _GAP * (len(columns) - 1)


def _without_spare(columns: Sequence[TerminalColumn], width: int) -> tuple[list[TerminalColumn], list[TerminalColumn]]:
    """The columns less as many spare ones, from the right, as it takes to fit; and those. All that go below go together."""
    kept = list(columns)
    while _least(kept) > width and (spare := [column for column in kept if column.spare]):
        last = spare[-1]
        kept = [column for column in kept if column is not last and not column.spare == last.spare == "below"]
    return kept, [column for column in columns if column not in kept]


def _grid(
    columns: Sequence[TerminalColumn],
    width: int,
    below: Sequence[TerminalColumn],
    under: Sequence[TerminalColumn],
) -> Iterator[Text]:
    """Rows of columns; the sentences of *below*, and titles and values of *under*, stand under each row."""
    widths = [column.least for column in columns]
    room = width - _least(columns)
    names, prose = ([column.prose is kind for column in columns] for kind in (False, True))
    readable, natural = [column.readable for column in columns], [column.natural for column in columns]
    for chosen, wanted in (
        (names, readable),
        (names, natural),
        (prose, natural),
    ):  # so that titles wrap where they must
        for place in range(len(columns)):
            if chosen[place]:
                more = max(0, min(room, wanted[place] - widths[place]))
                widths[place] += more
                room -= more
    if any(column.title for column in columns):
        yield from _row([Text(column.title, style="bold") for column in columns], columns, widths)
    for number in range(len(columns[0].cells) if columns else 0):
        yield from _row([column.cells[number] for column in columns], columns, widths)
        yield from _sentences(below, number, width)
        yield from _pairs(under, number, width)


def _row(cells: Sequence[Text], columns: Sequence[TerminalColumn], widths: Sequence[int]) -> Iterator[Text]:
    """One row, as many lines as its tallest cell."""
    wrapped = [_wrapped(cell, width) for cell, width in zip(cells, widths, strict=True)]
    for number in range(max(map(len, wrapped))):
        line = Text(no_wrap=True)
        for place, (column, lines, width) in enumerate(zip(columns, wrapped, widths, strict=True)):
            piece = lines[number] if number < len(lines) else Text()
            space = width - cell_len(piece.plain)
            left = {"left": 0, "right": space, "center": space // 2}[column.align]
            line.append(" " * (left + (_GAP if place else 0)))
            line.append_text(piece)
            line.append(" " * (space - left))
        line.rstrip()
        yield line


def _wrapped(cell: Text, width: int) -> list[Text]:
    """A cell broken between words, and nowhere else."""
    lines: list[Text] = []
    for whole in cell.split("\n", allow_blank=True):
        here = Text(style=cell.style)
        for word in _SPACE.split(whole.plain):
            if here.plain and cell_len(here.plain) + 1 + cell_len(word) > width:
                lines.append(here)
                here = Text(style=cell.style)
            here.append(f" {word}" if here.plain else word)
        lines.append(here)
    return lines


def wrapped(text: Text, width: int) -> Iterator[Text]:
    """A text of one style in lines that break between words alone; a line keeps its indentation in what follows it, and
    what follows an item of a list stands behind its mark."""
    for line in text.split("\n", allow_blank=True):
        lead = line.plain[: len(line.plain) - len(line.plain.lstrip(" "))]
        lead += "- " if line.plain[len(lead) :].startswith("- ") else ""
        for piece in _wrapped(Text(line.plain[len(lead) :], style=text.style), max(10, width - len(lead))):
            yield Text(lead, style=text.style, no_wrap=True).append_text(piece)
            lead = " " * len(lead)


def _sentences(columns: Sequence[TerminalColumn], number: int, width: int) -> Iterator[Text]:
    """The sentences of one row of the table, below it; of several columns, behind their titles."""
    for column in columns:
        cell = column.cells[number]
        if cell.plain.strip() in ("", DASH):
            continue
        lead = f"{column.title}: " if len(columns) > 1 and column.title else ""
        for line in _wrapped(Text(lead, style=cell.style).append_text(cell), max(10, width - 4)):
            yield Text("    ").append_text(line)


def _blocks(columns: Sequence[TerminalColumn], width: int) -> Iterator[Text]:
    """A row as a block: its names, then title and value of the other columns, as many in a line as fit."""
    names = 1
    while names < len(columns) and columns[names].align == "left" and not columns[names].prose:
        names += 1
    while names > 1 and _least(columns[:names]) > width:
        names -= 1
    head, others = columns[:names], columns[names:]
    for number in range(len(columns[0].cells)):
        shown = [column.cells[number] for column in head if column.cells[number].plain.strip()]
        yield from _wrapped(Text("  ").join(shown), width)
        yield from _pairs([column for column in others if not column.prose], number, width)
        yield from _sentences([column for column in others if column.prose], number, width)


def _pairs(columns: Sequence[TerminalColumn], number: int, width: int) -> Iterator[Text]:
    """Title and value of every column in one row of the table, as many in a line as fit."""
    line = ""
    for column in columns:
        text = column.cells[number].plain.strip()
        if not text:
            continue
        pair = f"{column.title} {text}".strip()
        if line and cell_len(line) + 3 + cell_len(pair) > width:
            yield Text(line)
            line = ""
        line += f"   {pair}" if line else f"    {pair}"
    if line:
        yield Text(line)
