"""Reading and writing a run's evaluation: what is there already, whether it still counts, adding to it.

samples.parquet is written first and evaluation.json, which holds its checksum, after it: a kill in between leaves a pair that
does not match, and such a pair is evaluated anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq

from ablationlab.core.errors import RecordError
from ablationlab.records.evaluation import (
    SAMPLE_COLUMNS,
    Evaluation,
    HowPart,
    TaskKey,
    evaluation_path,
    samples_path,
)
from ablationlab.records.folders import RunFolder
from ablationlab.records.storage import replace, sha256_file

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


def existing(folder: RunFolder, weights_sha256: str, half_sha256: str | None, how: HowPart) -> Evaluation | None:
    """What was evaluated before and still counts: of these weights, made in this way, whole on disk."""
    path = evaluation_path(folder)
    if not path.exists():
        return None
    try:
        found = Evaluation.read(path)
    except RecordError:
        return None
    same = (found.weights_sha256, found.half_weights_sha256, found.how) == (weights_sha256, half_sha256, how)
    return found if same and samples_match(folder, found) else None


def samples_match(folder: RunFolder, found: Evaluation) -> bool:
    """Whether samples.parquet is the one that evaluation.json was written with."""
    path = samples_path(folder)
    if found.samples_sha256 is None:
        return True
    return path.exists() and sha256_file(path) == found.samples_sha256


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
    return write_record(folder, evaluation.model_copy(update={"samples_sha256": digest}))


def write_record(folder: RunFolder, evaluation: Evaluation) -> Evaluation:
    """Write evaluation.json alone: the rows are as they were."""
    evaluation.replace(evaluation_path(folder))
    return evaluation


def without(rows: pa.Table, keys: Iterable[TaskKey]) -> pa.Table:
    """Rows of other keys than these."""
    gone = set(keys)
    if not len(rows) or not gone:
        return rows
    columns = zip(*(rows.column(name).to_pylist() for name in _KEY), strict=True)
    return rows.filter(pa.array([TaskKey(*key) not in gone for key in columns], pa.bool_()))
