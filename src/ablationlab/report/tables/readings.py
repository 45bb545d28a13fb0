"""The table of other readings of the curves, and what stands below it."""

from __future__ import annotations

from ablationlab.core.format import DASH, difference, level, number, part, percent
from ablationlab.records.analysis import CurveReading, ReadingGap, Readings
from ablationlab.report.table import Cell, Column, Table

_NAMES = {
    "tokens": "loss at equal tokens",
    "flops": "loss at equal FLOPs",
    "time": "loss at equal training time",
    "efficiency": "tokens to one loss",
}
_GAPS = {
    ReadingGap.NO_PAIR: "no seed has both runs",
    ReadingGap.OTHER_TEXT: "the arms train on other text, so their curves cannot be compared",
    ReadingGap.NOT_REPORTED: "the trainer does not report it",
    ReadingGap.SHARED_STACK: "both arms trained in one stack; ablationlab evaluate times them apart",
    ReadingGap.OTHER_CONDITIONS: "the runs were timed under different conditions",
    ReadingGap.TOO_COARSE: "the curves have too few points",
}


def reading_table(readings: Readings, regimes: int) -> Table:
    """A row per variant, regime and reading."""
    columns = (
        Column("variant", "Variant"),
        Column("regime", "Regime", printed=regimes > 1),
        Column("reading", "Reading"),
        Column("n", "n", "right"),
        Column("estimate", "Estimate", "right"),
        Column("low", "Interval", "right", below=True),
        Column("high", printed=False),
        Column("share", "Read at"),
        Column("reached", "Reaches the baseline's final loss"),
        Column("note", "Note", printed=any(reading.n < reading.planned for reading in readings.readings)),
    )
    return Table(
        "readings",
        "The same curves at another budget (exploratory)",
        columns,
        tuple(_row(reading) for reading in readings.readings if reading.gap is None),
        note=_left_out(readings),
    )


def _row(reading: CurveReading) -> tuple[Cell, ...]:
    if reading.kind == "efficiency":
        estimate = DASH if reading.estimate is None else f"×{number(reading.estimate)}"
        interval = DASH if reading.low is None else f"[{number(reading.low)}, {number(reading.high)}]"
    else:
        shown = difference(reading.estimate, reading.low, reading.high)
        estimate, interval = shown.delta, shown.interval
    share = DASH
    if reading.variant_share is not None:
        share = f"{percent(reading.variant_share)} of its run, {percent(reading.baseline_share)} of the baseline's"
    reached = DASH if reading.reached is None else f"{part(reading.reached, reading.n)} seeds"
    if reading.reached == 0:
        reached = f"not reached ({reached})"
    return (
        Cell.name(reading.variant),
        Cell.name(reading.regime),
        Cell.of(reading.kind, _NAMES[reading.kind]),
        Cell.of(reading.n),
        Cell.of(reading.estimate, estimate),
        Cell.of(reading.low, interval),
        Cell.of(reading.high),
        Cell.of(reading.variant_share, share),
        Cell.of(reading.reached, reached),
        Cell.of(_note(reading)),
    )


def _note(reading: CurveReading) -> str:
    return f"{part(reading.n, reading.planned)} seeds" if reading.n < reading.planned else ""


def _left_out(readings: Readings) -> str:
    """Readings without a number, and why."""
    gaps = {(reading.kind, reading.gap): None for reading in readings.readings if reading.gap is not None}
    some = {reading.kind for reading in readings.readings if reading.gap is None}
    clauses = [f"{_NAMES[kind]}{' of some arms' if kind in some else ''} ({_GAPS[gap]})" for kind, gap in gaps]
    return f"Not known: {'; '.join(clauses)}." if clauses else ""


def reading_text(readings: Readings) -> str:
    """How the table was made."""
    curve = (
        "the validation curve"
        if readings.curve == "curve_loss"
        else "the training loss, smoothed over 4 % of the run (the study has no validation curve: evaluation.curve_every)"
    )
    clock = (
        "Time is that of the evaluation, which times all runs in turn."
        if readings.clock == "evaluation"
        else "Time was measured while the runs trained."
    )
    return (
        f"Read from {curve}, between its points, never beyond its ends; variant − baseline per seed, "
        f"{level(readings.level)} t intervals over seeds. Losses are read where the cheaper run ends. Tokens to one loss: "
        "how many the variant needs / how many the baseline needs, to the higher of their final losses; below 1 the variant "
        "is more data-efficient. A run that is read before its end has not had the end of its schedule, so it looks worse "
        f"than with a budget of that size. {clock}"
    )
