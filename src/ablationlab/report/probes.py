"""Reading probe records for charts: probes.parquet of a finished run, probes.jsonl of one in progress."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ablationlab.records.run import as_number

if TYPE_CHECKING:
    from ablationlab.records.results import Results, Run


class Reading(NamedTuple):
    """One value of one probe of one run."""

    run: Run
    step: int
    group: str | None
    at: float | None
    value: float


Readings = Mapping[tuple[str, str], list[Reading]]


def read_probes(results: Results, wanted: Iterable[tuple[str, str]]) -> tuple[Readings, dict[str, list[str]]]:
    """(probe, measure) -> readings of every run that has them; probe -> what went wrong, run by run, files included."""
    found: dict[tuple[str, str], list[Reading]] = {key: [] for key in wanted}
    failures: dict[str, list[str]] = {}
    for run in results.runs:
        whole, log = run.folder.probe_table, run.folder.probes
        if not whole.exists() and not log.exists():
            continue
        try:
            rows = _from_parquet(whole, failures, run.id) if whole.exists() else _from_log(log, failures, run.id)
        except (OSError, ValueError, KeyError, TypeError) as error:
            failures.setdefault("file", []).append(f"{run.id}: {error}")
            continue
        for step, probe, measure, group, at, value in rows:
            if (probe, measure) in found and value == value:
                found[probe, measure].append(Reading(run, step, group, at, value))
    return {key: readings for key, readings in found.items() if readings}, failures


Row = tuple[int, str, str, str | None, float | None, float]


def _from_parquet(path: Path, failures: dict[str, list[str]], run: str) -> list[Row]:
    import pyarrow.parquet as pq

    table = pq.read_table(path, columns=["step", "probe", "measure", "group", "at", "value"])
    noted = (table.schema.metadata or {}).get(b"failures")
    for probe, text in (json.loads(noted) if noted else {}).items():
        words = f"step {text[0]}: {text[1]}" if isinstance(text, list) and len(text) == 2 else str(text)
        failures.setdefault(str(probe), []).append(f"{run}: {words}")
    columns = [table.column(name).to_pylist() for name in ("step", "probe", "measure", "group", "at", "value")]
    return [
        (int(step), str(probe), str(measure), group, at, as_number(value))
        for step, probe, measure, group, at, value in zip(*columns, strict=True)
    ]


def _from_log(path: Path, failures: dict[str, list[str]], run: str) -> list[Row]:
    rows: list[Row] = []
    for line in path.read_bytes().split(b"\n")[1:-1]:
        entry = json.loads(line)
        if entry.get("error"):
            failures.setdefault(str(entry["probe"]), []).append(f"{run}: step {entry['step']}: {entry['error']}")
        for measure, group, at, value in entry.get("rows") or ():
            rows.append((int(entry["step"]), str(entry["probe"]), str(measure), group, at, as_number(value)))
    return rows
