"""docs/records-of-a-board.md: its table and its forest, from the data in tests/analysis/fixtures/board.

python docs/generate/board.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Final

from ablationlab.core.format import DASH, count, fixed, p_value
from ablationlab.report.interval import Axis, Drawn, interval_svg

sys.path.insert(0, str(Path(__file__).parent))
from board_data import REPOSITORY, Entry, Pair, chain, entries, pairs, readings

PAGE: Final = REPOSITORY / "docs" / "records-of-a-board.md"
FOREST: Final = REPOSITORY / "docs" / "images" / "board.svg"
HEADS: Final = (
    "#",
    "steps",
    "runs",
    "√n (3.28 − mean)",
    "beside",
    "pairwise",
    "known noise, p",
    "compared",
    "difference",
    "p",
    "answer",
    "runs to decide",
)
BEGIN, END = "<!-- python docs/generate/board.py -->", "<!-- end -->"


def table() -> str:
    """The records, as Markdown. *accepted*, *pairwise*: what the board's rules compare with 4, in thousandths."""
    rows = ["| " + " | ".join(HEADS) + " |", "|" + "---|" * len(HEADS)]
    of = {pair.number: pair for pair in pairs()}
    for number in chain():
        entry = entries()[number]
        cells = [f"{number}", count(entry.declared), runs_of(entry), thousandths(entry.statistic)]
        rows.append("| " + " | ".join([*cells, *(_pair_cells(of[number]) if number in of else [DASH] * 8)]) + " |")
    return "\n".join(rows)


def runs_of(entry: Entry) -> str:
    """How many runs of an entry are judged, and where they are not from its logs."""
    sources = {*readings().source[readings().number == entry.number]} - {"log"}
    return ", ".join([f"{len(entry.losses)}", *sorted(sources)])


def _pair_cells(pair: Pair) -> list[str]:
    cells = [f"{pair.before}", thousandths(pair.statistic), p_value(pair.known_adjusted)]
    if pair.p is None:
        return [*cells, pair.reason, DASH, DASH, pair.answer, DASH]
    codes = [
        *(["shape"] if pair.shape else []),
        *(["blended"] if pair.blended else []),
        *(f"#{number}: {runs} unreached" for number, runs in pair.unreached),
    ]
    needed = DASH if pair.answer != "undecided" else "equal schedules" if pair.needed is None else count(pair.needed)
    how = {"step": f"step {count(pair.at)}" if pair.at else "", "target": "steps to 3.28", "declared": "declared steps"}
    return [*cells, "; ".join([how[pair.how], *codes]), effect(pair), p_value(pair.adjusted), pair.answer, needed]


def effect(pair: Pair) -> str:
    """The difference with its 95 % interval: steps, or thousandths of loss."""
    ends = (pair.estimate, pair.low, pair.high)
    texts = [
        DASH if end is None else fixed(end * (1 if pair.at is None else 1000), 0 if pair.at is None else 1, sign=True)
        for end in ends
    ]
    return f"{texts[0]} ({texts[1]} to {texts[2]}){' steps' if pair.at is None else ' · 10⁻³'}"


def thousandths(value: float) -> str:
    return fixed(1000 * value, 1)


_ROW, _LEFT, _WIDTH, _TOP = 22, 298, 396, 70
_AXIS: Final = Axis(2640, 3700)
_CAPTION: Final = (
    "Steps to a validation loss of 3.28 with 95 % intervals, by date. Blue: a record. Tick: declared steps.",
    "Statistic: √n (3.28 − mean), in thousandths; 4 is accepted. Filled: by the runs' own noise. "
    "One or two runs: interval by noise of 0.0013.",
)
_COLOURS: Final = {True: "#0a5fae", False: "#555555"}


def forest() -> str:
    """Steps to 3.28 of every entry, by date, as a picture that stands alone."""
    shown = sorted(entries().values(), key=lambda entry: (entry.date, entry.number))
    height = _TOP + _ROW * len(shown) + 30
    parts = [f'<rect width="860" height="{height}" fill="#ffffff"/>']
    heads = (
        (10, "start", "date"),
        (98, "end", "#"),
        (166, "end", "declared"),
        (222, "end", "runs"),
        (290, "end", "statistic"),
        (852, "end", "steps to 3.28"),
    )
    parts += [_text(x, 56, head, anchor, weight=600) for x, anchor, head in heads]
    for step in range(2700, 3701, 200):
        x = _LEFT + _WIDTH * (2 + 96 * _AXIS.place(step)) / 100
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 8}" y2="{height - 26}" stroke="#000000" opacity="0.08"/>'
        )
        parts.append(_text(x, height - 10, f"{step:,}", "middle"))
    for place, entry in enumerate(shown):
        parts += _forest_row(entry, _TOP + _ROW * place)
    size = f'width="860" height="{height}" viewBox="0 0 860 {height}"'
    style = 'font-family="sans-serif" font-size="12" color="#222222" role="img"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}><title>{escape(_CAPTION[0])}</title>'
    caption = (_text(10, 16 + 15 * place, line, "start", size=11) for place, line in enumerate(_CAPTION))
    return f"{head}{''.join(parts)}{''.join(caption)}</svg>\n"


def _forest_row(entry: Entry, y: float) -> Iterator[str]:
    colour = _COLOURS[entry.record]
    estimate, low, high = entry.steps
    for x, anchor, text in (
        (10, "start", entry.date),
        (98, "end", f"{entry.number}"),
        (166, "end", count(entry.declared)),
        (222, "end", f"{len(entry.losses)}"),
        (290, "end", thousandths(entry.statistic)),
    ):
        yield _text(x, y + 14, text, anchor, colour)
    row = Drawn(estimate, low, high, (float(entry.declared),), colour, hollow=not entry.shown)
    strip = interval_svg(_AXIS, [row], height=26, paper="#ffffff")
    yield f'<svg x="{_LEFT}" y="{y}" width="{_WIDTH}" height="26">{strip}</svg>'
    told = "no curve around it" if estimate is None else f"{count(round(estimate))} ({_end(low)} to {_end(high)})"
    yield _text(852, y + 14, told, "end", colour)


def _end(step: float | None) -> str:
    return DASH if step is None else count(round(step))


def _text(
    x: float, y: float, text: str, anchor: str, colour: str = "#222222", *, weight: int = 400, size: float = 12
) -> str:
    look = f'text-anchor="{anchor}" fill="{colour}" font-weight="{weight}" font-size="{size}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {look}>{escape(text)}</text>'


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")
    FOREST.write_text(forest(), encoding="utf-8")


if __name__ == "__main__":
    main()
