"""The table of other readings of the curves, and what stands below it."""

from __future__ import annotations

from collections.abc import Iterable

from ablationlab.analysis.wording import listed
from ablationlab.core.format import DASH, count, difference, number, percent
from ablationlab.core.grouping import grouped
from ablationlab.records.analysis import Comparison, CurveReading, ReadingGap, Readings
from ablationlab.report.table import Cell, Cells, Column, Table

LOSS = "validation_loss"
_NAMES = {
    "tokens": "loss at equal tokens",
    "flops": "loss at equal FLOPs",
    "time": "loss at equal training time",
    "efficiency": "tokens to the same loss",
}
_GAPS = {
    ReadingGap.NO_PAIR: "on no seed did both runs finish",
    ReadingGap.OTHER_TEXT: "the arms train on other text, so their curves cannot be compared",
    ReadingGap.NOT_REPORTED: "the trainer does not report it",
    ReadingGap.SHARED_STACK: "both arms trained in one stack; ablationlab evaluate times them apart",
    ReadingGap.OTHER_CONDITIONS: "the runs were timed under different conditions",
    ReadingGap.TOO_COARSE: "the curves have too few points",
}


def reading_table(readings: Readings, regimes: int, compared: Iterable[Comparison]) -> Table:
    """A row per variant, regime and reading. *compared*: of those whose difference unstable runs make, no loss is told."""
    unstable = {(each.variant, each.regime) for each in compared if each.told_by_medians and each.metric == LOSS}
    fewer = any(reading.n < reading.planned for reading in readings.readings)
    rows = []
    for reading in readings.readings:
        if reading.gap is not None:
            continue
        estimate, interval = _estimate(reading)
        exploded = reading.kind != "efficiency" and (reading.variant, reading.regime) in unstable
        if exploded:
            estimate = interval = DASH
        reached = DASH if reading.reached is None else f"{count(reading.reached)} of {count(reading.n)}"
        row: Cells = {
            Column("variant", "Variant"): Cell.name(reading.variant),
            Column("regime", "Regime", printed=regimes > 1): Cell.name(reading.regime),
            Column("reading", "Reading"): Cell.of(reading.kind, _NAMES[reading.kind]),
            Column("n", "n", "right"): reading.n,
            Column("estimate", "Estimate", "right"): Cell.of(reading.estimate, estimate),
            Column("low", "Interval", "right", below=True): Cell.of(reading.low, interval),
            Column("high", printed=False): reading.high,
            Column("share", "Read at", "right"): Cell.of(reading.variant_share, percent),
            Column("baseline_share", "Baseline at", "right"): Cell.of(reading.baseline_share, percent),
            Column("reached", "Seeds that reach", "right"): Cell.of(reading.reached, reached),
            Column("planned", "Planned", "right", printed=fewer): reading.planned,
        }
        rows.append(row)
    return Table.of("readings", "The same curves at another budget (exploratory)", rows, _left_out(readings, regimes))


def _estimate(reading: CurveReading) -> tuple[str, str]:
    """The estimate and its interval: a difference of losses, or a factor of tokens."""
    if reading.kind == "efficiency":
        estimate = DASH if reading.estimate is None else f"×{number(reading.estimate)}"
        return estimate, DASH if reading.low is None else f"[{number(reading.low)}, {number(reading.high)}]"
    shown = difference(reading.estimate, reading.low, reading.high)
    return shown.delta, shown.interval


def _left_out(readings: Readings, regimes: int) -> str:
    """Readings without a number, of which arms if not of all, and why."""
    arms = grouped(
        ((reading.kind, reading.gap), reading.variant + (f" in {reading.regime}" if regimes > 1 else ""))
        for reading in readings.readings
        if reading.gap is not None
    )
    some = {reading.kind for reading in readings.readings if reading.gap is None}
    kinds = grouped(((gap, tuple(names) if kind in some else ()), _NAMES[kind]) for (kind, gap), names in arms.items())
    clauses = [
        f"{listed(found)}{f' for {listed(names)}' if names else ''} ({_GAPS[gap]})"
        for (gap, names), found in kinds.items()
    ]
    return f"Not known: {'; '.join(clauses)}." if clauses else ""
