"""The files of one run: run.json, metrics.jsonl, result.json, checkpoint.json.

docs/records.md explains the folder; `storage` has what they share and where they lie.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field

from ablationlab.core.errors import RecordError
from ablationlab.records.environment import Drift, Environment
from ablationlab.records.plan import Corpus, Declaration, DrawnText, Execution, Plan, PlannedRun, RunRole, WithRecipe
from ablationlab.records.seal import MEND_RUN, SealedRecord, remember_hash
from ablationlab.records.settings import file_name
from ablationlab.records.storage import (
    SCHEMA_VERSION,
    Record,
    RunFolder,
    StoredValue,
    not_a_link,
    open_regular,
    parse_json,
    timestamp,
)
from ablationlab.stats.results import CurveMeasures

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]


class RunRecord(WithRecipe, Record):
    """run.json: what a run is, written before its first step.

    ``corpus``, ``data_order_hash``, ``initial_weights`` and ``shared_init_hash`` are None for a run of the user's trainer;
    what it reports of them is in its result.
    """

    KIND: ClassVar[str] = "run"
    MEND: ClassVar[str] = MEND_RUN
    role: RunRole
    """`compared`, `sweep`, `gate` or `noise`; only the first are compared as such."""
    study: str
    """The study's name."""
    study_hash: str
    """Hash of the resolved study, without its text."""
    plan_hash: str
    """The plan that it belongs to."""
    variant: str
    """Its variant."""
    baseline: str
    """The variant that the study compares with."""
    declares: Declaration
    """Settings and parameters that its variant may change."""
    regime: str
    """Its regime."""
    corpus: Corpus | None
    """The text it trains on."""
    data_order_hash: str | None
    """The hash that the run must end with: h_k = SHA-256(h_{k-1} ‖ offsets of step k), from the tokens' hash and the
    batch shape."""
    initial_weights: dict[str, str] | None
    """SHA-256 per parameter, of the weights in the stack before the first step."""
    shared_init_hash: str | None
    """Over the parameters that no variant of the study declares."""
    executor: str
    """`local`, `ray` or `torchrun`."""
    execution: Execution
    """Device, threads, width and layout as they were when the run began; they must be the sealed ones."""
    stack: int
    """The stack it trains in."""
    slot: int
    """Its place in the stack."""
    stack_members: tuple[str, ...]
    """Ids of the runs of that stack."""
    environment: Environment
    """Versions and machine at its start."""
    drift: tuple[Drift, ...] = ()
    """What had changed since the plan was sealed; empty unless it was accepted."""
    created: str
    """When it was written."""

    @classmethod
    def begin(cls, plan: Plan, run: PlannedRun, folder: RunFolder, **found: Any) -> None:
        """Write the record of a run that begins, or make sure that the one on disk is of this very plan. *found*: fields that
        no plan knows."""
        for path in (folder.path, *(folder.path.iterdir() if folder.path.is_dir() else ())):
            not_a_link(path)
        if folder.record.exists():
            record = cls.read(folder.record)
            if (record.id, record.plan_hash) != (run.id, plan.plan_hash):
                raise RecordError("belongs to another plan; choose another folder with --out", folder.record)
            return
        if folder.checkpoints.is_dir() or folder.result.exists():
            raise RecordError("has lost its run.json; move the folder away and run again", folder.path)
        cls(
            **dict(run),
            study=plan.study.name,
            study_hash=plan.study_hash,
            plan_hash=plan.plan_hash,
            baseline=plan.study.baseline,
            declares=plan.variants[run.variant].moved(file_name),
            stack_members=plan.stacks[run.stack],
            created=timestamp(),
            **found,
        ).create(folder.record)


class Divergence(StoredValue):
    """Where and how a run ended early."""

    step: int
    """The step whose number was not finite."""
    metric: str | None = None
    """The metric that was not finite."""
    value: Literal["nan", "inf", "-inf"] | None = None
    """What it was."""
    cause: str = ""
    """In the words of a trainer that reported the divergence itself."""

    @classmethod
    def of(cls, step: int, metric: str, value: float) -> Self:
        return cls.model_validate({"step": step, "metric": metric, "value": str(value)})


class Start(StoredValue):
    """One start of training that a run's weights go back to: after which step, and in which environment."""

    step: int
    """After which step training started."""
    versions: dict[str, str]
    """Versions of the libraries."""
    code_hash: str
    """Of the sources that make numbers."""
    processor: str
    """The processor."""
    device_name: str
    """The device."""
    threads: int
    """Threads per process."""
    parallel: Literal["none", "ddp", "fsdp"] = "none"
    """Layout over devices."""
    ranks: int = 1
    """Processes of the run."""
    activation_checkpointing: bool = False
    """Whether blocks were recomputed."""
    drift: tuple[Drift, ...]
    """Drift that was accepted."""

    @classmethod
    def of(cls, step: int, environment: Environment, execution: Execution, drift: tuple[Drift, ...]) -> Self:
        found = {"drift": drift, "step": step, **dict(environment), **dict(execution)}
        return cls(**{name: found[name] for name in cls.model_fields})


class MetricFailure(StoredValue):
    """Why a metric of the study's own code has no value: where it raised, if in that code, and what."""

    place: str | None
    error: str


class Timing(StoredValue):
    """Wall-clock figures; they describe the machine's day, not the run, and are not part of any hash."""

    train_seconds: float
    """Seconds of training."""
    tokens_per_second: float | None
    """Of the whole stack."""
    starts: int
    """How often training was started."""


class Result(Record):
    """result.json: how a run ended. The plan defines its metrics; ``unmeasured`` are those that raised.

    ``tokens``, ``matmul_flops``, ``data_order_hash`` and the last weights are None where the user's own trainer did not
    report them; ``initial_weights`` are hashes that it reported.
    """

    KIND: ClassVar[str] = "result"
    MEND: ClassVar[str] = MEND_RUN
    VERSION: ClassVar[int] = 5
    id: str
    """The run."""
    status: Literal["finished", "diverged"]
    """`diverged` if the loss or the gradient norm was not finite, else `finished`."""
    steps: int
    """Steps made."""
    tokens: int | None
    """Tokens spent; a finished run has spent exactly its budget."""
    matmul_flops: int | None
    """FLOPs of matrix products, forward and backward."""
    data_order_hash: str | None
    """Of what was really fed; equals that of run.json for a finished run."""
    divergence: Divergence | None
    """Where and why it diverged, if it did."""
    metrics: dict[str, float | None]
    """Values by name of the metric; null for a diverged run."""
    unmeasured: dict[str, MetricFailure] = Field(default_factory=dict)
    """Metrics of the study's own code that raised; `run` tries them again."""
    course: CurveMeasures
    """Spikes, means and the thinned curve, from metrics.jsonl when the run ended."""
    checkpoint: str | None
    """Folder of the final weights."""
    weights_sha256: str | None
    """Of the final weights."""
    initial_weights: dict[str, str] | None = None
    """Hashes that the user's own trainer reported."""
    history: tuple[Start, ...] = ()
    """Every start of training that the final weights go back to; one for a run that was never interrupted."""
    fed: tuple[DrawnText, ...] = ()
    """What the run was fed, per component of a prepared corpus; empty for a text tokenized in memory."""
    timing: Timing
    """Wall-clock figures; part of no hash."""
    finished: str
    """When it ended."""


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
    MEND: ClassVar[str] = MEND_RUN
    id: str
    """The run."""
    plan_hash: str
    """The plan that it belongs to."""
    step: int
    """Steps made so far."""
    files: dict[str, str]
    """SHA-256 of each file beside it."""
    metrics_bytes: int
    """Length of the part of metrics.jsonl that belongs to it."""
    metrics_sha256: str
    """Hash of that part."""
    probes_bytes: int | None = None
    """The same for probes.jsonl; null in a study without probes."""
    probes_sha256: str | None = None
    """Hash of that part."""
    data_order_hash: str
    """Of what was fed so far."""
    divergence: Divergence | None
    """Where the run diverged, if it did."""
    last_gradient_norm: float | None
    """Gradient norm of the last step."""
    train_seconds: float
    """Seconds of training so far."""
    history: tuple[Start, ...]
    """Starts of training so far."""


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
    left out: a resumed run cuts it off, and checks the rest against its checkpoint. The file is hashed on the way.
    """
    import numpy as np

    columns: dict[str, array[float]] = {}
    rows = 0
    with open_regular(path) as file:
        found = os.fstat(file.fileno())
        header = file.readline()
        sha256 = hashlib.sha256(header)
        if header.endswith(b"\n"):
            _check_header(path, header)
        while chunk := list(islice(file, _LINES)):
            sha256.update(b"".join(chunk))
            if not chunk[-1].endswith(b"\n"):
                chunk.pop()
            parsed, damage = _parsed(chunk)
            if damage is not None and ended:
                raise RecordError(f"line {rows + len(parsed) + 2}: {damage}", path, MEND_RUN, joint=", ") from damage
            _append(columns, parsed, rows)
            rows += len(parsed)
            if damage is not None:
                break
        else:
            remember_hash(path, found, sha256.hexdigest())
    return {name: np.array(column, dtype=np.float64) for name, column in columns.items()}


def _check_header(path: Path, line: bytes) -> None:
    try:
        header = parse_json(line)
        if not isinstance(header, dict) or (header.get("kind"), header.get("schema_version")) != _FORMAT:
            raise ValueError("no metrics header of a version this program reads")
    except ValueError as error:
        raise RecordError(f"line 1: {error}", path, MEND_RUN, joint=", ") from error


def _parsed(lines: list[bytes]) -> tuple[list[dict[str, object]], Exception | None]:
    """The lines as objects, up to the first that is damaged, and what is wrong with it."""
    rows: list[dict[str, object]]
    if all(line.startswith(b"{") and line.endswith(b"}\n") for line in lines):
        # All lines at once: objects that begin and end where the lines do, and as many of them.
        with suppress(ValueError, AttributeError):
            rows = parse_json(b"[" + b",".join(lines) + b"]")
            if len(rows) == len(lines) and all(type(row.get("step")) is int for row in rows):
                return rows, None
    rows = []
    for line in lines:
        try:
            row = parse_json(line)
            if not isinstance(row, dict) or not isinstance(row.get("step"), int):
                raise ValueError("no step in it")
        except ValueError as error:
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
