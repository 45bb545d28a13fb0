"""Probe records of the compared runs, for charts and tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ablationlab.core.errors import RecordError

if TYPE_CHECKING:
    from ablationlab.records.results import Results, Run


class ProbeValue(NamedTuple):
    """One value of one probe of one run."""

    run: Run
    step: int
    group: str | None
    at: float | None
    value: float


ProbeValues = Mapping[tuple[str, str], list[ProbeValue]]


def read_probes(results: Results, wanted: Iterable[tuple[str, str]]) -> tuple[ProbeValues, dict[str, list[str]]]:
    """(probe, measure) -> values of every compared run that has them; probe -> what went wrong, run by run, files included.

    The gate's runs and a sweep's other rates do not enter: an arm would be measured on other seeds than its partner. Nor does
    a reading that is no finite number, as those of a run that diverges are.
    """
    values: dict[tuple[str, str], list[ProbeValue]] = {key: [] for key in wanted}
    failures: dict[str, list[str]] = {}
    for run in results.compared:
        try:
            table = run.probe_table()
        except RecordError as error:
            failures.setdefault("file", []).append(f"{run.id}: {error}")
            continue
        for probe, failure in table.failures.items():
            failures.setdefault(probe, []).append(f"{run.id}: step {failure.step}: {failure.error}")
        for step, probe, row in table.rows:
            if (probe, row.measure) in values and math.isfinite(row.value):
                values[probe, row.measure].append(ProbeValue(run, step, row.group, row.at, row.value))
    return {key: measured for key, measured in values.items() if measured}, failures


def at_the_end(readings: Iterable[ProbeValue]) -> list[ProbeValue]:
    """Those of each run's last step. Runs that diverged have none: theirs are of another step than the others'."""
    there = [reading for reading in readings if reading.run.state != "diverged"]
    last: dict[str, int] = {}
    for reading in there:
        last[reading.run.id] = max(reading.step, last.get(reading.run.id, 0))
    return [reading for reading in there if reading.step == last[reading.run.id]]
