"""The files of one run: run.json, metrics.jsonl, result.json, checkpoint.json.

docs/records.md describes every file field by field; `storage` has what they share and where they lie.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ablationlab.core.errors import RecordError
from ablationlab.records.environment import Environment
from ablationlab.records.plan import Corpus, Declaration, Execution, Fed, RunRole, WithRecipe
from ablationlab.records.seal import SealedRecord
from ablationlab.records.storage import SCHEMA_VERSION, Record, StoredValue, open_regular

FloatArray = NDArray[np.float64]


class RunRecord(WithRecipe, Record):
    """run.json: what a run is, written before its first step.

    ``corpus``, ``data_order_hash``, ``initial_weights`` and ``shared_init_hash`` are None for a run of the user's trainer;
    what it reports of them is in its result.
    """

    KIND: ClassVar[str] = "run"
    role: RunRole
    study: str
    study_hash: str
    plan_hash: str
    variant: str
    baseline: str
    declares: Declaration
    regime: str
    corpus: Corpus | None
    data_order_hash: str | None
    initial_weights: dict[str, str] | None
    shared_init_hash: str | None
    executor: str
    execution: Execution
    stack: int
    slot: int
    stack_members: tuple[str, ...]
    environment: Environment
    drift: tuple[str, ...] = ()
    created: str


class Divergence(StoredValue):
    """Where and how a run ended early."""

    step: int
    cause: str


class Start(StoredValue):
    """One start of training that a run's weights go back to: after which step, and in which environment."""

    step: int
    versions: dict[str, str]
    code_hash: str
    processor: str
    device_name: str
    threads: int
    parallel: Literal["none", "ddp", "fsdp"] = "none"
    ranks: int = 1
    activation_checkpointing: bool = False
    drift: tuple[str, ...]


class MetricFailure(StoredValue):
    """Why a metric of the study's own code has no value: where it raised, if in that code, and what."""

    place: str | None
    error: str


class Timing(StoredValue):
    """Wall-clock figures; they describe the machine's day, not the run, and are no part of any hash."""

    train_seconds: float
    tokens_per_second: float | None
    starts: int


class Result(Record):
    """result.json: how a run ended. The plan defines its metrics; ``unmeasured`` are those that raised.

    ``tokens``, ``matmul_flops``, ``data_order_hash`` and the last weights are None where the user's own trainer did not
    report them; ``initial_weights`` are hashes that it reported.
    """

    KIND: ClassVar[str] = "result"
    id: str
    status: Literal["finished", "diverged"]
    steps: int
    tokens: int | None
    matmul_flops: int | None
    data_order_hash: str | None
    divergence: Divergence | None
    metrics: dict[str, float | None]
    unmeasured: dict[str, MetricFailure] = Field(default_factory=dict)
    checkpoint: str | None
    weights_sha256: str | None
    initial_weights: dict[str, str] | None = None
    history: tuple[Start, ...] = ()
    fed: tuple[Fed, ...] = ()
    timing: Timing
    finished: str


class TrainerFailure(Record):
    """failure.json: why the user's own trainer did not end a run well the last time; gone when it starts again."""

    KIND: ClassVar[str] = "failure"
    id: str
    error: str
    created: str


class Checkpoint(SealedRecord):
    """checkpoint.json: where a run stands, and the checksums of the files beside it.

    ``metrics_bytes`` and ``metrics_sha256`` pin the part of metrics.jsonl that belongs to this checkpoint, and
    ``probes_...`` that of probes.jsonl; ``seal`` covers this record itself.
    """

    KIND: ClassVar[str] = "checkpoint"
    id: str
    plan_hash: str
    step: int
    files: dict[str, str]
    metrics_bytes: int
    metrics_sha256: str
    probes_bytes: int | None = None  # None in a study without probes
    probes_sha256: str | None = None
    data_order_hash: str
    divergence: Divergence | None
    last_gradient_norm: float | None
    train_seconds: float
    history: tuple[Start, ...]


class StepLine(StoredValue):
    """One line of metrics.jsonl: the step's own numbers, nothing from the clock."""

    step: int
    loss: float
    lr: float
    gradient_norm: float
    second_moment_mean: float | None = None
    second_moment_max: float | None = None
    tokens: int
    curve_loss: float | None = None

    def to_line(self) -> str:
        """The line, with its newline; an absent value is left out."""
        return self.model_dump_json(exclude_none=True) + "\n"


def read_curves(path: Path, *, ended: bool = True) -> dict[str, FloatArray]:
    """The numbers of a metrics.jsonl by column, NaN where a line lacks one; columns that are not known are read too.

    A torn last line is left out, any other damage is named. Of a run that has not *ended*, what follows a damaged line is
    left out: a resumed run cuts it off, and checks the rest against its checkpoint.
    """
    columns: dict[str, array[float]] = {}
    rows = 0
    with open_regular(path) as file:
        header = file.readline()
        if header.endswith(b"\n"):
            _check_header(path, header)
        while chunk := list(islice(file, _LINES)):
            if not chunk[-1].endswith(b"\n"):
                chunk.pop()
            parsed, damage = _parsed(chunk)
            if damage is not None and ended:
                raise RecordError(f"{path}, line {rows + len(parsed) + 2}: {damage}") from damage
            _append(columns, parsed, rows)
            rows += len(parsed)
            if damage is not None:
                break
    return {name: np.array(column, dtype=np.float64) for name, column in columns.items()}


def _check_header(path: Path, line: bytes) -> None:
    try:
        header = json.loads(line)
        if not isinstance(header, dict) or (header.get("kind"), header.get("schema_version")) != _FORMAT:
            raise ValueError("no metrics header of a version this program reads")
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}, line 1: {error}") from error


def _parsed(lines: list[bytes]) -> tuple[list[dict[str, object]], Exception | None]:
    """The lines as objects, up to the first that is damaged, and what is wrong with it."""
    rows: list[dict[str, object]]
    if all(line.startswith(b"{") and line.endswith(b"}\n") for line in lines):
        # All lines at once: objects that begin and end where the lines do, and as many of them.
        with suppress(ValueError, RecursionError, AttributeError):
            rows = json.loads(b"[" + b",".join(lines) + b"]")
            if len(rows) == len(lines) and all(type(row.get("step")) is int for row in rows):
                return rows, None
    rows = []
    for line in lines:
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or not isinstance(row.get("step"), int):
                raise ValueError("no step in it")
        except (ValueError, RecursionError) as error:
            return rows, error
        rows.append(row)
    return rows, None


def _append(columns: dict[str, array[float]], parsed: Sequence[Mapping[str, object]], rows: int) -> None:
    """Add parsed lines to *columns*, which have *rows* values each so far; NaN where a line lacks one."""
    for name in dict.fromkeys(chain(columns, *parsed)):
        column = columns.setdefault(name, array("d", [math.nan]) * rows)
        values: list[Any] = [row.get(name) for row in parsed]
        plain = {int, float}.issuperset(map(type, values))
        try:
            column.extend(values if plain else map(as_number, values))
        except OverflowError:  # an integer that no float holds
            del column[rows:]
            column.extend(map(as_number, values))


def read_progress(path: Path) -> dict[str, FloatArray]:
    """The curves of a run that has not ended."""
    return read_curves(path, ended=False)


def as_number(value: object) -> float:
    """A JSON number, or one of the words that stand for what JSON lacks; NaN for anything else."""
    if isinstance(value, bool) or value is None:
        return math.nan
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return math.nan
    return {"Infinity": math.inf, "-Infinity": -math.inf}.get(value, math.nan) if isinstance(value, str) else math.nan


_FORMAT = ("metrics", SCHEMA_VERSION)
#: Lines of metrics.jsonl that are parsed at once.
_LINES = 4096
METRICS_HEADER = json.dumps({"schema_version": SCHEMA_VERSION, "kind": "metrics"}) + "\n"
