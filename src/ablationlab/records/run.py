"""What is on disk of a plan and its runs: the contract between the half that trains and the half that does statistics.

docs/records.md describes every file field by field; `schema` has what they share, `folders` where they lie.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import field_validator

from ablationlab.core.errors import RecordError
from ablationlab.records.corpus import Corpus, Fed
from ablationlab.records.metrics import METRICS
from ablationlab.records.schema import SCHEMA_VERSION, Part, Record
from ablationlab.records.storage import content_hash, read_json


class Git(Part):
    """State of the checkout that the program ran from; None where there is none."""

    commit: str | None = None
    dirty: bool | None = None


class Environment(Part):
    """What could make the same study give other bits."""

    versions: dict[str, str]
    platform: str
    processor: str
    code_hash: str
    git: Git


class Budget(Part):
    """What a run costs by definition, equal for all arms of a comparison up to what a variant declares."""

    steps: int
    tokens: int
    matmul_flops: int
    parameters: int


class Execution(Part):
    """How the bits are made; sealed before the first step."""

    device: Literal["cpu", "cuda"]
    device_name: str
    precision: Literal["fp32", "tf32", "bf16"]
    stack_width: int
    threads: int
    # Of a run that torchrun spreads over processes, as found when it began; the plan's study says what was asked for.
    parallel: Literal["none", "ddp", "fsdp"] = "none"
    ranks: int = 1
    activation_checkpointing: bool = False

    def layout(self) -> tuple[str, int, bool]:
        """How one run lies on its devices."""
        return self.parallel, self.ranks, self.activation_checkpointing

    def over(self, layout: tuple[str, int, bool]) -> Self:
        """The same, laid out otherwise."""
        names = ("parallel", "ranks", "activation_checkpointing")
        return self.model_copy(update=dict(zip(names, layout, strict=True)))


class PlannedRun(Part):
    """One cell of the study."""

    id: str
    variant: str
    regime: str
    seed: int
    lr: float
    stack: int
    slot: int
    model: dict[str, Any]
    training: dict[str, Any]
    budget: Budget


class Plan(Record):
    """plan.lock: the resolved study and everything that is fixed before the first step."""

    KIND: ClassVar[str] = "plan"
    study: dict[str, Any]
    study_hash: str
    criteria_hash: str
    corpus: Corpus
    execution: Execution
    runs: tuple[PlannedRun, ...]
    stacks: tuple[tuple[str, ...], ...]
    environment: Environment
    created: str
    plan_hash: str

    @staticmethod
    def seal(content: dict[str, Any]) -> str:
        """Hash of a plan's JSON: everything but the clock, the checkout's state and the hash itself.

        Of the file's own content, so that a later version of this program, which may know more fields, finds it whole.
        """
        body = {key: value for key, value in content.items() if key not in ("created", "plan_hash")}
        body["environment"] = {key: value for key, value in content["environment"].items() if key != "git"}
        return content_hash(body)

    def sealed(self) -> Self:
        """The plan with its hash filled in."""
        return self.model_copy(update={"plan_hash": self.seal(json.loads(self.model_dump_json()))})

    @classmethod
    def read(cls, path: Path) -> Self:
        """Load a plan; one whose seal is broken is refused."""
        plan, holds = cls.read_with_seal(path)
        if not holds:
            raise RecordError(f"{path} was changed after it was sealed: its content does not match plan_hash")
        return plan

    @classmethod
    def read_with_seal(cls, path: Path) -> tuple[Self, bool]:
        """Load a plan, and say whether its seal holds."""
        plan = super().read(path)
        holds = cls.seal(read_json(path)) == plan.plan_hash
        data = plan.study.get("data", {})
        if (
            data.get("mixture") and "overlap" not in data
        ):  # sealed before shared text was looked for: all of it was kept
            plan = plan.model_copy(update={"study": {**plan.study, "data": {**data, "overlap": "keep"}}})
        return plan, holds

    def run(self, run_id: str) -> PlannedRun:
        """The planned run of that id."""
        return next(run for run in self.runs if run.id == run_id)

    def execution_of(self, run: PlannedRun) -> Execution:
        """How the bits of one run are made: as for all, in the precision of its regime, which its stack shares."""
        precision = run.training.get("precision", self.execution.precision)
        return self.execution.model_copy(update={"precision": precision})


class Declared(Part):
    """What a variant may change: model settings (by key) and parameters (by name pattern)."""

    settings: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()

    def covers_setting(self, key: str) -> bool:
        """Whether a model setting may differ: it is named, or the table it stands in is."""
        return any(key == setting or key.startswith(f"{setting}.") for setting in self.settings)

    def covers_parameter(self, name: str) -> bool:
        """Whether a parameter may differ in its presence, shape or start."""
        return any(fnmatchcase(name, pattern) for pattern in self.parameters)


class RunRecord(Record):
    """run.json: what a run is, written before its first step."""

    KIND: ClassVar[str] = "run"
    id: str
    study: str
    study_hash: str
    plan_hash: str
    variant: str
    baseline: str
    declares: Declared
    regime: str
    seed: int
    lr: float
    model: dict[str, Any]
    training: dict[str, Any]
    corpus: Corpus
    budget: Budget
    data_order_hash: str
    initial_weights: dict[str, str]
    shared_init_hash: str
    executor: str
    execution: Execution
    stack: int
    slot: int
    stack_members: tuple[str, ...]
    environment: Environment
    drift: tuple[str, ...] = ()
    created: str


class Divergence(Part):
    """Where and how a run ended early."""

    step: int
    cause: str


class Start(Part):
    """One start of training that a run's weights go back to: after which step, and in which environment."""

    step: int
    versions: dict[str, str]
    code_hash: str
    processor: str
    device_name: str
    threads: int
    parallel: Literal["none", "ddp", "fsdp"] = "none"
    ranks: int = 1
    activation_checkpointing: bool | None = None  # None in records that are older than this field
    drift: tuple[str, ...]


class Timing(Part):
    """Wall-clock figures; they describe the machine's day, not the run, and are no part of any hash."""

    train_seconds: float
    tokens_per_second: float
    starts: int


class Result(Record):
    """result.json: how a run ended. Metric names are those of the registry."""

    KIND: ClassVar[str] = "result"
    id: str
    status: Literal["finished", "diverged"]
    steps: int
    tokens: int
    matmul_flops: int
    data_order_hash: str
    divergence: Divergence | None
    metrics: dict[str, float | None]
    checkpoint: str
    weights_sha256: str
    history: tuple[Start, ...] = ()
    fed: tuple[Fed, ...] = ()
    timing: Timing
    finished: str

    @field_validator("metrics")
    @classmethod
    def _known_metrics(cls, metrics: dict[str, float | None]) -> dict[str, float | None]:
        for name in metrics:
            if name not in METRICS or METRICS[name].level != "run":
                raise ValueError(f"{name!r} is no run-level metric of the registry")
        return metrics


class Checkpoint(Record):
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
    seal: str = ""

    def sealed(self) -> Self:
        """The record with its own checksum filled in."""
        return self.model_copy(update={"seal": self._hash(json.loads(self.model_dump_json()))})

    @classmethod
    def read(cls, path: Path) -> Self:
        """Load a checkpoint record and check its own checksum."""
        record = super().read(path)
        if record.seal != cls._hash(read_json(path)):
            raise RecordError(f"{path} is damaged: its checksum does not match")
        return record

    @staticmethod
    def _hash(content: dict[str, Any]) -> str:
        return content_hash({key: value for key, value in content.items() if key != "seal"})


class StepLine(Part):
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


def read_metrics(path: Path) -> Iterator[StepLine]:
    """The lines of a metrics.jsonl; a torn last line (a run in progress) is left out, any other damage is named."""
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            if number == 1:
                head = json.loads(line)
                if (
                    not isinstance(head, dict)
                    or head.get("kind") != "metrics"
                    or head.get("schema_version") != SCHEMA_VERSION
                ):
                    raise ValueError("no metrics header of a version this program reads")
                continue
            yield StepLine.model_validate_json(line)
        except ValueError as error:
            raise RecordError(f"{path}, line {number}: {error}") from error


METRICS_HEADER = json.dumps({"schema_version": SCHEMA_VERSION, "kind": "metrics"}) + "\n"
