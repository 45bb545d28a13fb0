"""Energy that a study's commands measured: energy/<n>.json, one per command that trained or scored something."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator

from ablationlab.core.energy import EnergySource
from ablationlab.core.errors import RecordError
from ablationlab.records.storage import Record, StoredValue

ENERGY = "energy"


def _timed(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("has no time zone")
    return text


class EnergyReading(StoredValue):
    """What one source reported, of the whole device, whatever else ran on it."""

    source: EnergySource
    joules: float  # over the command's whole time


class Energy(Record):
    """energy/<number>.json. ``readings`` is empty where no device reports its energy."""

    KIND: ClassVar[str] = "energy"
    plan_hash: str
    began: Annotated[str, AfterValidator(_timed)]  # when the command began to measure, in UTC
    seconds: float  # for which it measured
    readings: tuple[EnergyReading, ...]

    @property
    def joules(self) -> float | None:
        """Of all sources; None where nothing was reported."""
        return sum(reading.joules for reading in self.readings) if self.readings else None


def read_energy(folder: Path) -> tuple[Energy, ...]:
    """The records of a results folder, in their order; damaged ones are left out, for nothing follows from them."""
    records = []
    for path in sorted((folder / ENERGY).glob("[0-9]*.json")):
        try:
            records.append(Energy.read(path))
        except (RecordError, OSError):
            continue
    return tuple(records)


def overlap(records: Sequence[Energy]) -> bool:
    """Whether two commands measured at the same time, so that a sum would count the devices twice."""
    spans = sorted((datetime.fromisoformat(record.began).timestamp(), record.seconds) for record in records)
    return any(began + seconds > later + 1 for (began, seconds), (later, _) in pairwise(spans))
