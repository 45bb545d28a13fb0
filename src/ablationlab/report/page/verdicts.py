"""The answers on the page: their table, where its numbers lead, and the interval behind each as a small picture."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ablationlab.analysis.wording import difference_of
from ablationlab.core.format import setting, with_unit
from ablationlab.report.charts.theme import colours
from ablationlab.report.tables.answers import answer_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ablationlab.records.analysis import Analysis, Comparison
    from ablationlab.records.results import Results
    from ablationlab.records.verdict import VariantVerdict, Verdict
    from ablationlab.report.table import Cell, Column, Table

#: More pictures than this are opened by a click.
MOST_IN_A_ROW = 4


@dataclass(frozen=True)
class Mini:
    """A small picture of an interval, in the units of a 0..1000 wide view."""

    bar: tuple[float, float] | None
    equal: tuple[float, float] | None  # of the equivalence test, where it is what decides
    mean: float
    zero: float
    band: tuple[float, float] | None
    seeds: tuple[float, ...]
    label: str
    zero_label: str
    zero_words: str
    value: str
    apart: bool

    @staticmethod
    def side(place: float) -> str:
        """Which way a label at that place runs, so as to stay within the picture."""
        return "start" if place < 330 else "end" if place > 670 else "middle"


@dataclass(frozen=True)
class IntervalPicture:
    """The picture of the difference that one verdict rests on."""

    variant: str
    reference: str
    regime: str
    colour: str
    mini: Mini


def registered_first(verdict: Verdict) -> list[VariantVerdict]:
    """The verdicts in the order of the page."""
    return sorted(verdict.verdicts, key=lambda judged: judged.label != "registered")


def linked_answers(
    analysis: Analysis, verdict: Verdict, anchors: Mapping[str, str], colours: Mapping[str, str]
) -> Table:
    """The table of answers; names have their colours, and every difference leads to its comparison."""
    every = registered_first(verdict)
    table = answer_table(analysis, verdict, every)

    def on_page(judged: VariantVerdict, column: Column, cell: Cell) -> Cell:
        if column.key == "variant":
            return dataclasses.replace(cell, colour=colours.get(judged.variant, ""))
        anchor = anchors.get(judged.comparison or "") if column.key == "delta" else None
        return dataclasses.replace(cell, link=f"#{anchor}") if anchor else cell

    rows = (
        tuple(on_page(judged, column, cell) for column, cell in zip(table.columns, row, strict=True))
        for judged, row in zip(every, table.rows, strict=True)
    )
    return dataclasses.replace(table, rows=tuple(rows))


def pictures(results: Results) -> list[IntervalPicture]:
    """One for every verdict whose comparison has a difference to draw; none without the analysis that it follows from."""
    if results.analysis is None or results.verdict is None:
        return []
    comparisons = {comparison.id: comparison for comparison in results.analysis.comparisons}
    of = colours(results)
    made = []
    for judged in registered_first(results.verdict):
        comparison = comparisons.get(judged.comparison or "")
        drawn = None if comparison is None else mini(comparison)
        if drawn is not None:
            colour = of.get(judged.variant, "#626b75")
            made.append(IntervalPicture(judged.variant, judged.reference, judged.regime, colour, drawn))
    return made


def mini(comparison: Comparison) -> Mini | None:
    """The interval, the seeds and the band of the smallest effect on one line, zero in view."""
    if comparison.delta is None or comparison.told_by_medians:
        return None
    interval, tost = comparison.main_interval, comparison.equivalence
    bounds = [value for value in (interval.low, interval.high) if value is not None] if interval is not None else []
    shown_equal = tost is not None and bool(tost.equivalent)
    equal = [value for value in (tost.low, tost.high) if value is not None] if tost is not None and shown_equal else []
    effect = comparison.smallest_effect
    estimate = comparison.delta if comparison.estimate is None else comparison.estimate
    points = [0.0, estimate, *bounds, *equal, *(pair.delta for pair in comparison.pairs)]
    points += [effect, -effect] if effect else []
    low, high = min(points), max(points)
    pad = (high - low) * 0.06 or 1.0
    low, high = low - pad, high + pad

    def place(value: float) -> float:
        return round((value - low) / (high - low) * 1000, 2)

    shown = difference_of(comparison)
    value = with_unit(shown.delta, shown.unit)
    return Mini(
        bar=(place(bounds[0]), place(bounds[1])) if len(bounds) == 2 else None,
        equal=(place(equal[0]), place(equal[1])) if len(equal) == 2 else None,
        mean=place(estimate),
        zero=place(0.0),
        band=(place(-effect), place(effect)) if effect else None,
        seeds=tuple(place(pair.delta) for pair in comparison.pairs[:60]),
        label=f"Difference {value}, interval {shown.range}, zero and the smallest effect that matters in view",
        zero_label=f"0 ± {setting(effect)}" if effect else "0",
        zero_words=", the smallest effect that matters" if effect else "",
        value=value,
        apart=_apart(place(0.0), 340.0 if effect else 30.0, place(estimate), 200.0),
    )


def _apart(first: float, its_width: float, second: float, second_width: float) -> bool:
    """Whether two labels leave each other room; a width is about what its text takes of the view at a usual size."""

    def span(place: float, width: float) -> tuple[float, float]:
        shift = {"start": 0.0, "middle": 0.5, "end": 1.0}[Mini.side(place)]
        return place - shift * width, place + (1 - shift) * width

    (a, b), (c, d) = span(first, its_width), span(second, second_width)
    return b < c or d < a
