"""Effects as a table: a row per comparison, the same for terminal, Markdown, CSV, JSON and pandas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ablationlab.core.format import DASH
from ablationlab.records.verdict import Answer
from ablationlab.report.effects import Effect
from ablationlab.report.slots import Slot
from ablationlab.report.table import Cell, Column, Table, Tone, Value

#: The tone of an answer or an outcome, for the page.
TONES: Final[dict[Answer, Tone]] = {
    Answer.BETTER: "good",
    Answer.MORE_STABLE: "good",
    Answer.WORSE: "bad",
    Answer.UNSTABLE: "bad",
}


def effects_table(effects: Sequence[Effect], title: str = "Effects; difference = variant − reference.") -> Table:
    """Every effect with its numbers as recorded; what is printed is in the words of the answer."""
    several = len({row.regime for row in effects}) > 1
    return Table.of("effects", title, [_row(row, several) for row in effects])


def _row(row: Effect, several: bool) -> dict[Column, Cell | Value]:
    return {
        Column("id", printed=False): row.id,
        Column("metric", "Metric"): Cell.of(row.metric, row.name, note=row.unit),
        Column("regime", "Regime", printed=several): Cell.name(row.regime),
        Column("variant", "Contrast"): Cell.contrast(row.variant, row.reference),
        Column("reference", printed=False): row.reference,
        Column("unit", printed=False): row.unit,
        Column("role", printed=False): row.role,
        Column("label", printed=False): row.label,
        Column("n", "n", "right", spare=True): _cell(row.n),
        Column("baseline", "Reference", "right", spare=True): _cell(row.baseline),
        Column("estimate", "Difference", "right"): _cell(row.estimate),
        Column("low", "Interval", "right"): Cell.of(row.low.value, row.interval),
        Column("high", printed=False): _cell(row.high),
        Column("level", "Level", "right", spare=True): _cell(row.level),
        Column("p_adjusted", "Adjusted p", "right", spare=True): _cell(row.p),
        Column("smallest_effect", printed=False): row.smallest,
        Column("answer", "Answer"): Cell.of(row.word.value, row.word.text, tone=_tone(row.word.text)),
        Column("advice", printed=False): row.advice.value,
        Column("guards", printed=False): "; ".join(f"{guard.name}: {guard.standing}" for guard in row.guards),
        Column("flags", "Flags", spare="below"): ", ".join(row.flags),
        Column("lacks", printed=False): ", ".join(row.lacks),
        Column("seeds_to_decide", printed=False): row.seeds.value,
    }


def _tone(word: str) -> Tone:
    """That of an outcome of a test too, where it is said in the words of an answer."""
    return next((tone for answer, tone in TONES.items() if answer == word), "")


def _cell(slot: Slot) -> Cell:
    return Cell.of(slot.value, slot.text)


def guard_table(effects: Sequence[Effect]) -> Table:
    """Every guard of every answer; the seeds that would close an open one."""
    several = len({row.regime for row in effects}) > 1
    rows: list[dict[Column, Cell | Value]] = [
        {
            Column("variant", "Variant"): Cell.name(row.variant),
            Column("regime", "Regime", printed=several): Cell.name(row.regime),
            Column("guard", "Guard"): guard.name,
            Column("standing", "Standing"): Cell.of(guard.standing.value),
            Column("seeds", "Seeds to close", "right"): Cell.of(
                guard.seeds.value, "" if guard.seeds.text == DASH else guard.seeds.text
            ),
        }
        for row in effects
        for guard in row.guards
    ]
    return Table.of("guards", "Guards", rows)
