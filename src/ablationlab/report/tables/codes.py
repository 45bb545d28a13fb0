"""What is known of an analysis as codes: deviations, notes, caveats, with the values that they mention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ablationlab.core.format import count, plain, setting
from ablationlab.core.grouping import grouped
from ablationlab.records.analysis import Analysis, Comparison, EvaluationNote
from ablationlab.report.table import Cells, Column, Table
from ablationlab.stats.results import Caveat

#: Names that a cell holds; more are counted.
MOST_NAMES = 3


def deviation_table(analysis: Analysis) -> Table:
    """In what the records are not as registered."""
    rows: list[Cells] = [
        {
            Column("deviation", "Deviation"): _code(known.code),
            Column("about", "Of", printed=any(other.about for other in analysis.deviations)): known.about,
            Column("values", "Values"): _values(known.details),
        }
        for known in analysis.deviations
    ]
    return Table.of("deviations", "Deviations", rows)


def note_table(notes: Sequence[EvaluationNote]) -> Table:
    """What to know about the scores of tasks."""
    rows = [
        {Column("note", "Note"): _code(note.code), Column("values", "Values"): _values(note.details)} for note in notes
    ]
    return Table.of("notes", "Scores of tasks", rows)


def caveat_table(comparisons: Sequence[Comparison]) -> Table:
    """What to know before believing a number: of how many comparisons, and in which values they agree."""
    return _caveats([caveat for comparison in comparisons for caveat in comparison.caveats], "comparisons")


def item_caveat_table(caveats: Sequence[Caveat]) -> Table:
    """The same of a comparison item by item."""
    return _caveats(caveats, "times")


def _caveats(caveats: Sequence[Caveat], what: str) -> Table:
    kinds = grouped(((caveat.code, caveat.about), caveat) for caveat in caveats)
    rows: list[Cells] = [
        {
            Column("caveat", "Caveat"): _code(code),
            Column("about", "Of"): about,
            Column("n", what.capitalize(), "right"): len(each),
            Column("values", "Values"): _values(_shared([caveat.details for caveat in each])),
        }
        for (code, about), each in kinds.items()
    ]
    return Table.of("caveats", "Caveats", rows)


def _shared(details: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The values that all have in common."""
    known = Counter((key, repr(value)) for each in details for key, value in each.items())
    return {key: value for key, value in details[0].items() if known[key, repr(value)] == len(details)}


def _code(code: str) -> str:
    return str(code).replace("-", " ")


def _values(details: Mapping[str, Any]) -> str:
    """``n 5, alpha 0.05``"""
    return ", ".join(
        f"{key.replace('_', ' ')} {value_of(value)}" for key, value in details.items() if value not in (None, "")
    )


def value_of(value: Any) -> str:
    """A number in the one style; a few names, else how many."""
    if isinstance(value, bool | str):
        return plain(str(value))
    if isinstance(value, int):
        return count(value)
    if isinstance(value, float):
        return setting(float(f"{value:.3g}"))
    if isinstance(value, Mapping):
        return f"({_values(value)})"
    names = [value_of(each) for each in value]
    return ", ".join(names) if len(names) <= MOST_NAMES else count(len(names))
