"""The files of one run: run.json, metrics.jsonl, result.json, checkpoint.json.

docs/records.md describes every file field by field; `storage` has what they share and where they lie.
"""

from __future__ import annotations

import json
import math
from array import array
from pathlib import Path
from typing import ClassVar, Literal

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


class Failure(Record):
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
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                break
            try:
                row = _parsed(line, header=number == 1)
            except (ValueError, RecursionError) as error:
                if ended or number == 1:
                    raise RecordError(f"{path}, line {number}: {error}") from error
                break
            for name, value in row.items():
                if name not in columns:
                    columns[name] = array("d", [math.nan]) * rows
                columns[name].append(value if type(value) is float else as_number(value))
            rows += number > 1
            if len(row) != len(columns):
                for column in columns.values():
                    column.extend([math.nan] * (rows - len(column)))
    return {name: np.array(column, dtype=np.float64) for name, column in columns.items()}


def read_progress(path: Path) -> dict[str, FloatArray]:
    """The curves of a run that has not ended."""
    return read_curves(path, ended=False)


def _parsed(line: bytes, *, header: bool) -> dict[str, object]:
    """The numbers of a line; none of the first, which names the format."""
    row = json.loads(line)
    if header:
        if not isinstance(row, dict) or (row.get("kind"), row.get("schema_version")) != ("metrics", SCHEMA_VERSION):
            raise ValueError("no metrics header of a version this program reads")
        return {}
    if not isinstance(row, dict) or not isinstance(row.get("step"), int):
        raise ValueError("no step in it")
    return row


def as_number(value: object) -> float:
    """A JSON number, or one of the words that stand for what JSON lacks; NaN for anything else."""
    if isinstance(value, bool) or value is None:
        return math.nan
    if isinstance(value, int | float):
        return float(value)
    return {"Infinity": math.inf, "-Infinity": -math.inf}.get(value, math.nan) if isinstance(value, str) else math.nan


METRICS_HEADER = json.dumps({"schema_version": SCHEMA_VERSION, "kind": "metrics"}) + "\n"
