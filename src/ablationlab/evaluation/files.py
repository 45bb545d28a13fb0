"""A run's evaluation on disk: what is there already, whether it still counts, adding to it.

samples.parquet is written first and evaluation.json, which holds its checksum, after it: a kill in between leaves a pair that
does not match, and such a pair is evaluated again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

import ablationlab
from ablationlab.core.errors import DataError, RecordError
from ablationlab.evaluation.members import RunWeights
from ablationlab.records.evaluation import (
    SAMPLE_COLUMNS,
    Evaluation,
    Provenance,
    TaskKey,
    TaskResult,
    Weights,
    evaluation_path,
    samples_path,
)
from ablationlab.records.storage import RunFolder, replace, sha256_file

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
class TaskScores:
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
        cls, folder: RunFolder, plan_hash: str, how: Provenance, final: RunWeights, half: RunWeights | None
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
            how=how,
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

    def _add_tasks(self, scores: Sequence[TaskScores]) -> None:
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
            self.record.replace(evaluation_path(self.folder))


def _identity(record: Evaluation) -> tuple[str, str | None, Provenance | None]:
    return record.weights_sha256, record.half_weights_sha256, record.how


def _read(folder: RunFolder) -> Evaluation | None:
    """The evaluation on disk, if its samples.parquet is the one that it was written with."""
    path, samples = evaluation_path(folder), samples_path(folder)
    if not path.exists():
        return None
    try:
        record = Evaluation.read(path)
    except RecordError:
        return None
    digest = record.samples_sha256
    return record if digest is None or (samples.exists() and sha256_file(samples) == digest) else None


def read_rows(folder: RunFolder) -> pa.Table:
    """All rows of a samples.parquet, or none."""
    path = samples_path(folder)
    return pq.read_table(path, schema=SCHEMA) if path.exists() else no_rows()


def no_rows() -> pa.Table:
    """An empty table (made of no batches: of no lists, which would import pandas)."""
    return pa.Table.from_batches([], SCHEMA)


def write(folder: RunFolder, evaluation: Evaluation, rows: pa.Table) -> Evaluation:
    """Write both files, the rows in a fixed order."""
    digest = None
    if len(rows):
        ordered = rows.sort_by([(name, "ascending") for name in (*_KEY, "item")])
        sink = pa.BufferOutputStream()
        pq.write_table(ordered.combine_chunks(), sink, compression="zstd")
        blob = sink.getvalue().to_pybytes()
        replace(samples_path(folder), blob)
        digest = hashlib.sha256(blob).hexdigest()
    evaluation = evaluation.model_copy(update={"samples_sha256": digest})
    evaluation.replace(evaluation_path(folder))
    return evaluation


def without(rows: pa.Table, keys: Iterable[TaskKey]) -> pa.Table:
    """Rows of other keys than these."""
    dropped = set(keys)
    if not len(rows) or not dropped:
        return rows
    columns = zip(*(rows.column(name).to_pylist() for name in _KEY), strict=True)
    return rows.filter(pa.array([TaskKey(*key) not in dropped for key in columns], pa.bool_()))


# Provenance. This imports neither the harness nor torch.


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
    package = Path(ablationlab.__file__).parent
    paths = [path for name in ("evaluation", "model", "tasks") for path in (package / name).rglob("*.py")]
    return _hash_files(paths, package)[:16]


def _hash_files(paths: Iterable[Path], root: Path) -> str:
    total = hashlib.sha256()
    for path in sorted(paths):
        total.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()
