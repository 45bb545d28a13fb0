"""Reading and writing a run's evaluation: what is there already, whether it still counts, adding to it.

samples.parquet is written first and evaluation.json, which holds its checksum, after it: a kill in between leaves a pair that
does not match, and such a pair is evaluated anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ablationlab.errors import RecordError
from ablationlab.evaluation_records import (
    SAMPLE_COLUMNS,
    Evaluation,
    HowPart,
    TaskKey,
    evaluation_path,
    samples_path,
)
from ablationlab.records import RunFolder
from ablationlab.storage import replace, sha256_file

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
Row = dict[str, Any]


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


def read_rows(folder: RunFolder) -> list[Row]:
    """All rows of a samples.parquet."""
    path = samples_path(folder)
    if not path.exists():
        return []
    rows: list[Row] = pq.read_table(path).to_pylist()
    return rows


def write(folder: RunFolder, evaluation: Evaluation, rows: Sequence[Row]) -> Evaluation:
    """Write both files, the rows in a fixed order."""
    digest = None
    if rows:
        ordered = sorted(rows, key=lambda r: (r["task"], r["template"], r["fewshot"], r["weights"], r["item"]))
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(ordered, schema=SCHEMA), sink, compression="zstd")
        replace(samples_path(folder), sink.getvalue().to_pybytes())
        digest = sha256_file(samples_path(folder))
    evaluation = evaluation.model_copy(update={"samples_sha256": digest})
    evaluation.replace(evaluation_path(folder))
    return evaluation


def without(rows: Iterable[Row], keys: Iterable[TaskKey]) -> list[Row]:
    """Rows of other keys than these."""
    gone = set(keys)
    return [r for r in rows if TaskKey(r["task"], r["template"], r["fewshot"], r["weights"]) not in gone]
