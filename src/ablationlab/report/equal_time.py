"""The loss at equal time, as rows: the curves of the same runs, read where both arms have spent as long."""

from __future__ import annotations

from collections.abc import Iterator

from ablationlab.core.format import count, difference, level
from ablationlab.records.analysis import Analysis, CurveReading
from ablationlab.report.effects import Effect
from ablationlab.report.slots import NOTHING, Slot


def equal_time_effects(analysis: Analysis) -> tuple[Effect, ...]:
    """Of every variant and regime of which the time is known."""
    return tuple(_readings(analysis))


def _readings(analysis: Analysis) -> Iterator[Effect]:
    readings = analysis.readings
    for place, reading in enumerate(() if readings is None else readings.readings):
        if reading.kind == "time" and reading.estimate is not None:
            yield _effect(analysis, reading, place)


def _effect(analysis: Analysis, reading: CurveReading, place: int) -> Effect:
    at = f"analysis.json#/readings/readings/{place}"
    primary = analysis.primary_comparison(reading.regime, reading.variant)
    unit = "" if primary is None or primary.metric != "validation_loss" else primary.unit
    shown = difference(reading.estimate, reading.low, reading.high, unit=unit)
    assert analysis.readings is not None

    def slot(text: str, name: str, value: float | None) -> Slot:
        return NOTHING if value is None else Slot(text, f"{at}/{name}", value)

    return Effect(
        id=f"equal-time/{reading.regime}/{reading.variant}",
        metric="equal_time",
        name="loss at equal time",
        unit=unit,
        variant=reading.variant,
        reference=analysis.baseline,
        regime=reading.regime,
        role="",
        label="exploratory",
        estimate=slot(shown.delta, "estimate", reading.estimate),
        low=slot(shown.low, "low", reading.low),
        high=slot(shown.high, "high", reading.high),
        level=Slot(level(analysis.readings.level), "analysis.json#/readings/level", analysis.readings.level, "percent"),
        n=Slot(count(reading.n), f"{at}/n", reading.n),
        drawn=None if reading.estimate is None else (reading.estimate, reading.low, reading.high),
        smallest=None if not unit or primary is None else primary.smallest_effect,
    )
