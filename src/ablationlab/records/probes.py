"""What probes leave on disk: ``probes.jsonl``, appended while a run trains, and ``probes.parquet``, the same as a table.

One line per probe and step; a row is ``[measure, group, at, value]``. A scalar has no ``at``; a distribution has one row a
point, where ``at`` is a quantile level, a dimension, a head or a rank. ``group`` says of what: a token class, a block, a
group of parameters. docs/probes.md lists what each probe writes. No torch here: reports read these files.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError, model_validator

from ablationlab.core.errors import RecordError
from ablationlab.records.storage import SCHEMA_VERSION, RunFolder, StoredValue, parse_json, read_regular

COLUMNS = ("measure", "group", "at", "value")
HEADER = json.dumps({"schema_version": SCHEMA_VERSION, "kind": "probes", "columns": COLUMNS}) + "\n"
# float32 carries seven digits: more would be noise, and would make the files half as large again.
DIGITS = 7


@dataclass(frozen=True)
class Measure:
    """One series of a probe: its name in the records, its meaning, and what ``group`` and ``at`` stand for."""

    name: str
    meaning: str
    group: str = ""
    at: str = ""


#: At the end of the title of a chart that is not over the steps. Plans seal whole titles.
AT_THE_END = ", at the last step"


@dataclass(frozen=True)
class ProbeChart:
    """A chart of one measure: one ``group`` over the steps, or at the last step over blocks, groups or single values.

    *spread*: the quantiles of a distribution at the last step, by group.
    """

    key: str
    measure: str
    title: str
    axis: str
    caption: str
    over: Literal["steps", "depth", "groups", "values", "spread"] = "steps"
    group: str | None = None
    log: bool = False


@dataclass(frozen=True)
class ProbeDefinition:
    """What a probe means, what it writes and how reports show it. The plan seals it."""

    meaning: str
    measures: tuple[Measure, ...]
    charts: tuple[ProbeChart, ...] = ()


class ProbeReading(NamedTuple):
    """One number of one probe."""

    measure: str
    group: str | None
    at: float | None
    value: float


class ProbeLine(StoredValue):
    """One line of probes.jsonl: what one probe saw after one step, or the error that ended it."""

    step: int
    probe: str
    rows: tuple[ProbeReading, ...] = ()
    error: str | None = None

    @model_validator(mode="after")
    def _rows_or_error(self) -> ProbeLine:
        if self.rows and self.error is not None:
            raise ValueError("a line has rows or an error, not both")
        return self

    def to_line(self) -> str:
        """The line, with its newline; an absent part is left out."""
        body: dict[str, Any] = {"step": self.step, "probe": self.probe}
        if self.error is None:
            body["rows"] = [[row.measure, row.group, _plain(row.at), _plain(row.value)] for row in self.rows]
        else:
            body["error"] = self.error
        return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False) + "\n"


def _plain(value: float | None) -> float | str | None:
    """A number as JSON can hold it: rounded to seven digits, NaN and infinities as strings."""
    if value is None:
        return None
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return float(f"{value:.{DIGITS}g}")


@lru_cache(maxsize=1024)
def row_starts(measure: str, groups: tuple[str | None, ...], at: tuple[float | None, ...]) -> tuple[str, ...]:
    """Rows of one reading as JSON, up to their values: the same at every look, so written once."""
    return tuple(
        json.dumps([measure, group, _plain(place)], ensure_ascii=False, separators=(",", ":"))[:-1] + ","
        for group, place in zip(groups, at, strict=True)
    )


def written_line(step: int, probe: str, starts: Sequence[str], values: Sequence[float]) -> str:
    """What `ProbeLine.to_line` gives, without making its rows first: a look at a stack is many thousand numbers."""
    rows = ",".join([f"{start}{_written(value)}]" for start, value in zip(starts, values, strict=True)])
    return f'{{"step":{step},"probe":{json.dumps(probe, ensure_ascii=False)},"rows":[{rows}]}}\n'


def _written(value: float) -> str:
    # x - x is 0 for numbers alone: NaN and the infinities give NaN.
    return repr(float(f"{value:.{DIGITS}g}")) if value - value == 0 else json.dumps(_plain(value))


def parse(data: bytes, path: Path) -> Iterator[ProbeLine]:
    """The lines of a probes.jsonl; a torn last line (a run in progress) is left out, any other damage is named."""
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            if number == 1:
                head = parse_json(line)
                if not isinstance(head, dict) or (head.get("kind"), head.get("schema_version")) != (
                    "probes",
                    SCHEMA_VERSION,
                ):
                    raise ValueError("no probes header of a version this program reads")
                continue
            yield ProbeLine.model_validate_json(line)
        except (ValueError, ValidationError) as error:
            raise RecordError(f"line {number}: {error}", path, joint=", ") from error


def read_probes(run: RunFolder) -> list[ProbeLine]:
    """Everything the probes of a run have written so far; empty for a run without probes."""
    try:
        data = read_regular(run.probes)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RecordError(f"cannot be read: {error.strerror}", run.probes) from error
    return list(parse(data, run.probes))


class ProbeFailure(NamedTuple):
    """When and why a probe failed; it was not run again."""

    step: int
    error: str


def failures(lines: Iterable[ProbeLine]) -> dict[str, ProbeFailure]:
    return {line.probe: ProbeFailure(line.step, line.error) for line in lines if line.error is not None}


def to_parquet(run_id: str, lines: Sequence[ProbeLine]) -> bytes:
    """The lines as one table: step, probe, measure, group, at, value. Failures stand in the file's metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [(line.step, line.probe, *row) for line in lines for row in line.rows]
    names = pa.dictionary(pa.int32(), pa.string())
    kinds = (
        ("step", pa.int32()),
        ("probe", names),
        ("measure", names),
        ("group", names),
        ("at", pa.float64()),
        ("value", pa.float64()),
    )
    about = {
        "schema_version": str(SCHEMA_VERSION),
        "kind": "probes",
        "run": run_id,
        "failures": json.dumps({name: failure._asdict() for name, failure in failures(lines).items()}),
    }
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(kinds)
    schema = pa.schema([pa.field(name, kind) for name, kind in kinds], metadata=about)
    arrays = [pa.array(list(column), kind) for column, (_, kind) in zip(columns, kinds, strict=True)]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), sink, compression="zstd")
    return sink.getvalue()


def depth_of(group: str | None) -> int | None:
    """The depth that a group stands for: 0 for what enters block 1, n after block n; None for any other group."""
    if group == "input":
        return 0
    block = re.fullmatch(r"block-(\d+)", group or "")
    return int(block[1]) if block else None


class ProbeTable(NamedTuple):
    """The rows of a run with their step and probe, and the probes that failed."""

    rows: list[tuple[int, str, ProbeReading]]
    failures: dict[str, ProbeFailure]


def read_table(run: RunFolder) -> ProbeTable:
    """probes.parquet of a run that has ended, probes.jsonl of one in progress; empty for a run without probes."""
    if not run.probe_table.exists():
        lines = read_probes(run)
        return ProbeTable([(line.step, line.probe, row) for line in lines for row in line.rows], failures(lines))
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # pq.read_table imports datasets; a thread that cannot start where memory is short aborts the process.
        table = pq.ParquetFile(run.probe_table).read(["step", "probe", *COLUMNS], use_threads=False)
        about = parse_json(table.schema.metadata[b"failures"])
        failed = {name: ProbeFailure(**failure) for name, failure in about.items()}
    except (OSError, KeyError, TypeError, ValueError, pa.ArrowException) as error:
        raise RecordError(f"cannot be read: {error}", run.probe_table) from error
    columns = (table.column(name).to_pylist() for name in table.column_names)
    return ProbeTable([(step, probe, ProbeReading(*row)) for step, probe, *row in zip(*columns, strict=True)], failed)
