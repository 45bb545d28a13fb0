"""Trained runs that are evaluated: their weights as a stack that can be scored, and their evaluation on disk.

Weights come from verified checkpoints and are padded to one width. samples.parquet is written first and evaluation.json,
which holds its checksum, after it: a kill in between leaves a pair that does not match, and such a pair is evaluated again.
The run's seal.json announces both before they are written.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from ablationlab.core.errors import DataError, RecordError
from ablationlab.model.attention import PackedAttention
from ablationlab.model.gpt import ForwardPass, Parameters
from ablationlab.model.parameters import parameters, stack_parameters
from ablationlab.model.weights import Parameter
from ablationlab.records.evaluation import (
    EVALUATION,
    SAMPLE_COLUMNS,
    SAMPLES,
    Evaluation,
    Provenance,
    TaskKey,
    TaskResult,
    Weights,
    evaluation_path,
    samples_path,
)
from ablationlab.records.plan import PlannedRun
from ablationlab.records.run import Checkpoint, Result
from ablationlab.records.seal import RunSeal, file_hash, seal_evaluation
from ablationlab.records.settings import FrontEnd, ModelConfig
from ablationlab.records.storage import RunFolder, replace
from ablationlab.training import checkpoints


@dataclass(frozen=True, eq=False)
class RunWeights:
    """One set of weights of one run."""

    run: PlannedRun
    weights: Weights
    model: ModelConfig
    tensors: dict[str, Tensor]
    checkpoint: str
    sha256: str

    @property
    def name(self) -> str:
        """For messages."""
        return self.run.id if self.weights == "final" else f"{self.run.id} at half its steps"


def load_final(run: PlannedRun, folder: RunFolder, result: Result) -> RunWeights:
    """The weights that a run ended with."""
    if result.checkpoint is None:
        raise RecordError(f"{folder.result} names no checkpoint")
    step = checkpoints.step_of(result.checkpoint)
    path = checkpoints.path_of(folder, step)
    record = Checkpoint.read(path / checkpoints.RECORD)
    weights = checkpoints.verified(path / checkpoints.WEIGHTS, record)  # the optimizer's state is not needed here
    sha256 = record.files[checkpoints.WEIGHTS]
    if (record.id, record.step, sha256) != (run.id, step, result.weights_sha256):
        raise RecordError(f"{path} is not the checkpoint that {folder.result} names")
    return _member(run, "final", weights, result.checkpoint, sha256)


def load_half(run: PlannedRun, folder: RunFolder, plan_hash: str) -> RunWeights | None:
    """The weights kept halfway, or None where none were kept."""
    if not checkpoints.halfway_path(folder).exists():
        return None
    record, weights = checkpoints.load_halfway(folder, plan_hash)
    name = f"{checkpoints.HALFWAY} (step {record.step})"
    return _member(run, "half", weights, name, record.files[checkpoints.WEIGHTS])


def _member(run: PlannedRun, which: Weights, tensors: dict[str, Tensor], checkpoint: str, sha256: str) -> RunWeights:
    model = run.model
    expected = {p.name: p.shape for p in parameters(model)}
    if {name: tuple(value.shape) for name, value in tensors.items()} != expected:
        raise RecordError(f"{run.id}: the checkpoint's parameters are not those of its model")
    return RunWeights(run, which, model, tensors, checkpoint, sha256)


@dataclass(frozen=True, eq=False)
class ScoredStack:
    """R sets of weights with one run axis; the rows past ``members`` repeat the last one and count for nothing."""

    members: tuple[RunWeights, ...]
    model: ModelConfig
    fronts: tuple[FrontEnd, ...]
    params: Parameters
    device: torch.device

    @classmethod
    def of(cls, members: Sequence[RunWeights], device: torch.device, width: int | None = None) -> ScoredStack:
        """Stack weights whose models differ in nothing but their front end, padded to *width*."""
        padded = [*members, *[members[-1]] * ((width or len(members)) - len(members))]
        slots = stack_parameters(member.model for member in padded)
        params = {slot.name: torch.stack([_value(member, slot) for member in padded]).to(device) for slot in slots}
        fronts = tuple(member.model.front for member in padded)
        return cls(tuple(members), padded[0].model, fronts, params, device)

    @property
    def forward(self) -> ForwardPass:
        """The forward pass with these weights, in fp32."""
        return ForwardPass(self.params, self.model, self.fronts)

    def alone(self, member: int) -> ScoredStack:
        """One member as a stack of one."""
        params = {name: value[member : member + 1] for name, value in self.params.items()}
        return ScoredStack(self.members[member : member + 1], self.model, (self.fronts[member],), params, self.device)

    @torch.no_grad()
    def packed_hidden(self, tokens_BT: Tensor, positions_BT: Tensor, segments_BT: Tensor) -> Tensor:
        """y_RBTD before the output head, of every run on the same packed rows (see `PackedAttention`).

        A token of a tail has the position it would have had if the tail followed the prefix directly. So the prefix, which
        the choices of an item share, is computed once, and every score is the one that the sequence alone would give, up to
        rounding.
        """
        runs = len(self.fronts)
        forward = changed(self.forward, attend=PackedAttention(segments_BT, runs), positions_BT=positions_BT)
        return forward.hidden(forward.embed(tokens_BT.expand(runs, -1, -1)))

    @torch.no_grad()
    def head(self, y_RND: Tensor) -> Tensor:
        """logits_RNV of chosen vectors."""
        return self.forward.head(y_RND[:, None])[:, 0]


def _value(member: RunWeights, slot: Parameter) -> Tensor:
    """A slot that a member does not own is filled with its start value and never used by its front end."""
    tensor = member.tensors.get(slot.name)
    return torch.full(slot.shape, slot.fill) if tensor is None else tensor


_TYPES = {
    "run": pa.string(),
    "task": pa.string(),
    "template": pa.string(),
    "fewshot": pa.int32(),
    "weights": pa.string(),
    "task_hash": pa.string(),
    "item": pa.int32(),
    "doc_hash": pa.string(),
    "prompt_hash": pa.string(),
    "target_hash": pa.string(),
    "target": pa.int32(),
    "choice_scores": pa.list_(pa.float64()),
    "choice_bytes": pa.list_(pa.int32()),
    "chosen": pa.int32(),
    "correct": pa.bool_(),
    "correct_norm": pa.bool_(),
    "log_probability": pa.float64(),
    "margin": pa.float64(),
    "probability": pa.float64(),
    "truncated": pa.bool_(),
}
SCHEMA = pa.schema([(name, _TYPES[name]) for name in SAMPLE_COLUMNS], metadata={"schema_version": "1"})
_KEY = TaskKey._fields
#: The fields of evaluation.json that evaluators fill.
EvaluationField = Literal["tokens", "length", "tasks", "throughput"]
_HARNESS = "lm_eval"
_LIBRARIES = ("torch", "numpy", "lm_eval", "datasets")


@dataclass(frozen=True, eq=False)
class TaskAnswers:
    """One task answered by one set of weights: its result, and a row per item."""

    result: TaskResult
    rows: pa.Table


@dataclass
class OpenEvaluation:
    """The evaluation of one run while it is made: its weights, its record so far and its rows."""

    folder: RunFolder
    members: dict[Weights, RunWeights]
    record: Evaluation
    rows: pa.Table
    _new_rows: bool = False

    @classmethod
    def open(
        cls, folder: RunFolder, plan_hash: str, provenance: Provenance, final: RunWeights, half: RunWeights | None
    ) -> OpenEvaluation:
        """With what was evaluated before, if it still counts: of these weights, with this provenance, whole on disk."""
        members: dict[Weights, RunWeights] = {"final": final} if half is None else {"final": final, "half": half}
        fresh = Evaluation(
            id=final.run.id,
            plan_hash=plan_hash,
            status="evaluated",
            checkpoint=final.checkpoint,
            weights_sha256=final.sha256,
            half_checkpoint=half.checkpoint if half else None,
            half_weights_sha256=half.sha256 if half else None,
            how=provenance,
        )
        known = _read(folder)
        if known is None or _identity(known) != _identity(fresh):
            return cls(folder, members, fresh, no_rows())
        return cls(folder, members, known, read_rows(folder))

    @property
    def final(self) -> RunWeights:
        return self.members["final"]

    def add(self, field: EvaluationField, value: Any) -> None:
        """Set a field of the record; tasks are added to those that are there."""
        if field == "tasks":
            self._add_tasks(value)
        else:
            self._update(**{field: value})

    def _update(self, **fields: Any) -> None:
        self.record = self.record.model_copy(update=fields)

    def _add_tasks(self, scores: Sequence[TaskAnswers]) -> None:
        """Results of tasks and their rows; those of another version of a task are replaced."""
        new = [score.result for score in scores]
        keys = {result.key for result in new}
        replaced = [task.key for task in self.record.tasks if task.key in keys]
        tasks = [*(task for task in self.record.tasks if task.key not in keys), *new]
        self._update(
            tasks=tuple(sorted(tasks, key=lambda task: (task.weights, task.fewshot, task.task, task.template)))
        )
        self.rows = pa.concat_tables([without(self.rows, replaced), *(score.rows for score in scores)])
        self._new_rows = True

    def save(self, metrics: dict[str, float | None]) -> None:
        """Write evaluation.json, and samples.parquet where rows were added."""
        self._update(metrics=metrics)
        if self._new_rows:
            self.record = write(self.folder, self.record, self.rows)
            self._new_rows = False
        else:
            write_record(self.folder, self.record)


def _identity(record: Evaluation) -> tuple[str, str | None, Provenance | None]:
    return record.weights_sha256, record.half_weights_sha256, record.how


def _read(folder: RunFolder) -> Evaluation | None:
    """The evaluation on disk, if it is as it was sealed and its samples.parquet is the one that it was written with."""
    path, samples = evaluation_path(folder), samples_path(folder)
    if not path.exists():
        return None
    try:
        seal = RunSeal.read(folder.seal)
        record = Evaluation.read(path)
    except RecordError:
        return None
    if any(file_hash(file) not in seal.allowed(file.name) for file in (path, samples)):
        return None
    return record if record.samples_sha256 in (None, file_hash(samples)) else None


def read_rows(folder: RunFolder) -> pa.Table:
    """All rows of a samples.parquet, or none."""
    path = samples_path(folder)
    return pq.read_table(path, schema=SCHEMA) if path.exists() else no_rows()


def no_rows() -> pa.Table:
    """An empty table (made of no batches: of no lists, which would import pandas)."""
    return pa.Table.from_batches([], SCHEMA)


def write(folder: RunFolder, evaluation: Evaluation, rows: pa.Table) -> Evaluation:
    """Write both files, the rows in a fixed order."""
    if not len(rows):
        evaluation = evaluation.model_copy(update={"samples_sha256": None})
        write_record(folder, evaluation)
        return evaluation
    ordered = rows.sort_by([(name, "ascending") for name in (*_KEY, "item")])
    sink = pa.BufferOutputStream()
    pq.write_table(ordered.combine_chunks(), sink, compression="zstd")
    blob = sink.getvalue().to_pybytes()
    evaluation = evaluation.model_copy(update={"samples_sha256": hashlib.sha256(blob).hexdigest()})
    seal_evaluation(folder, {SAMPLES: blob, EVALUATION: evaluation.to_bytes()})
    replace(samples_path(folder), blob)
    evaluation.replace(evaluation_path(folder))
    return evaluation


def write_record(folder: RunFolder, evaluation: Evaluation) -> None:
    """Write evaluation.json alone."""
    seal_evaluation(folder, {EVALUATION: evaluation.to_bytes()})
    evaluation.replace(evaluation_path(folder))


def without(rows: pa.Table, keys: Iterable[TaskKey]) -> pa.Table:
    """Rows of other keys than these."""
    dropped = set(keys)
    if not len(rows) or not dropped:
        return rows
    columns = zip(*(rows.column(name).to_pylist() for name in _KEY), strict=True)
    return rows.filter(pa.array([TaskKey(*key) not in dropped for key in columns], pa.bool_()))


# Provenance. This does not import the harness.


def changed_provenance(folder: RunFolder, now: Provenance) -> dict[str, tuple[str, str]]:
    """What differs, then and now, from how a run was scored before; nothing where it was not."""
    try:
        before = Evaluation.read(evaluation_path(folder)).how
    except RecordError:  # none, or a damaged one
        return {}
    if before is None:
        return {}
    then, today = ({**how.model_dump(exclude={"versions", "harness"}), **how.versions} for how in (before, now))
    pairs = {name: (str(then.get(name, "none")), str(today.get(name, "none"))) for name in {**then, **today}}
    return {name.replace("_", " "): pair for name, pair in pairs.items() if pair[0] != pair[1]}


def provenance(device: str, name: str, width: int) -> Provenance:
    """How scores are made: what every run that is compared must have in common."""
    versions = {library: version(library) for library in _LIBRARIES}
    return Provenance(
        device=device,
        device_name=name,
        precision="fp32",
        stack_width=width,
        harness=f"{_HARNESS} {version(_HARNESS)}",
        harness_sha256=_harness_sha256(),
        versions=versions | {"evaluation code": _code_hash()},
    )


@cache
def _harness_sha256() -> str:
    """Hash of the installed files that make scores: everything but the task definitions, which have hashes of their own."""
    spec = find_spec(_HARNESS)
    if spec is None or spec.origin is None:
        raise DataError(f"{_HARNESS} is not installed; install ablationlab with its dependencies")
    root = Path(spec.origin).parent
    paths = []
    for folder, inner, files in os.walk(root):
        if Path(folder) == root / "tasks":
            inner.clear()  # fourteen thousand files of definitions
        paths += [Path(folder) / name for name in files if name.endswith(".py")]
    return _hash_files(paths, root)


def _code_hash() -> str:
    """Hash of the sources that make scores."""
    package = Path(__file__).parents[1]
    paths = [path for name in ("evaluation", "model", "tasks") for path in (package / name).rglob("*.py")]
    return _hash_files(paths, package)[:16]


def _hash_files(paths: Iterable[Path], root: Path) -> str:
    total = hashlib.sha256()
    for path in sorted(paths):
        total.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()
