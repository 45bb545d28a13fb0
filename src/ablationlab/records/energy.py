"""Energy that a study's commands measured: energy/<n>.json, one per command that trained or scored something."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from typing import Annotated, ClassVar, Self

from pydantic import AfterValidator, Field, model_validator

from ablationlab.core.energy import EnergySource
from ablationlab.core.format import amount, duration, plain
from ablationlab.records.seal import SealedRecord
from ablationlab.records.storage import StoredValue

ENERGY = "energy"
#: No machine draws more than this, in watts, and no command takes longer, in seconds (ten years).
MOST_WATTS, MOST_SECONDS = 1e6, 3.2e8


def _timed(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("has no time zone")
    return text


class EnergyReading(StoredValue):
    """What one source reported, of the whole device, whatever else ran on it."""

    source: EnergySource
    joules: Annotated[float, Field(ge=0, allow_inf_nan=False)]  # over the command's whole time


class Energy(SealedRecord):
    """energy/<number>.json. ``readings`` is empty where no device reports its energy."""

    KIND: ClassVar[str] = "energy"
    MEND: ClassVar[str] = "Restore it, or move it away: no decision rests on it"
    plan_hash: str
    began: Annotated[str, AfterValidator(_timed)]  # when the command began to measure, in UTC
    seconds: Annotated[float, Field(ge=0, le=MOST_SECONDS, allow_inf_nan=False)]  # for which it measured
    readings: tuple[EnergyReading, ...]

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if (self.joules or 0.0) > MOST_WATTS * (self.seconds + 1):
            raise ValueError(
                plain(f"{amount(self.joules, 'J')} in {duration(self.seconds)} is more than any machine draws")
            )
        return self

    @property
    def joules(self) -> float | None:
        """Of all sources; None where nothing was reported."""
        return sum(reading.joules for reading in self.readings) if self.readings else None


def overlap(records: Sequence[Energy]) -> bool:
    """Whether two commands measured at the same time, so that a sum would count the devices twice."""
    spans = sorted((datetime.fromisoformat(record.began).timestamp(), record.seconds) for record in records)
    return any(began + seconds > later + 1 for (began, seconds), (later, _) in pairwise(spans))
