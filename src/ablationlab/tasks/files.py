"""The suite's tasks as files that the harness reads: a YAML definition, its items and its examples in JSON Lines.

They stand in ``evaluation/tasks/`` of a results folder, under the hash of their content, and any model that the harness knows
can be put to them: ``lm_eval --include_path results/<study>/evaluation/tasks --tasks <name>``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ablationlab.records.storage import new_folder, replace, write_bytes
from ablationlab.tasks.suite import VERSION, BuiltTask


def harness_name(task: BuiltTask) -> str:
    """The task's name inside the harness."""
    return f"ablationlab_{task.kind.name}_{task.template.name}_{task.fewshot}shot"


def folder_of(task: BuiltTask, root: Path) -> Path:
    """Where it stands: the name says what, the hash which."""
    return root / f"{task.kind.name}-{task.template.name}-{task.fewshot}shot-{task.hash[:12]}"


def write_task(task: BuiltTask, root: Path) -> Path:
    """Write the files, or find them there; the path of the YAML file."""
    target = folder_of(task, root)
    definition = target / "task.yaml"
    if definition.exists():
        if definition.read_text() != _yaml(task, target):  # the results folder was moved: its paths are others now
            replace(definition, _yaml(task, target).encode())
        return definition
    root.mkdir(parents=True, exist_ok=True)
    try:
        with new_folder(target) as folder:
            write_bytes(folder / "items.jsonl", _lines(task.rows(task.items)))
            write_bytes(folder / "examples.jsonl", _lines(task.rows(task.examples or task.items[:1])))
            write_bytes(folder / "task.yaml", _yaml(task, target).encode())
    except OSError:
        if not definition.exists():  # another process may have written it meanwhile
            raise
    return definition


def _lines(rows: Sequence[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def _yaml(task: BuiltTask, folder: Path) -> str:
    """Plain column names, which the harness reads without its template engine."""
    where = folder.resolve()
    text = {
        "task": harness_name(task),
        "dataset_path": "json",
        "dataset_kwargs": {
            "data_files": {"test": str(where / "items.jsonl"), "train": str(where / "examples.jsonl")},
        },
        "output_type": "multiple_choice",
        "test_split": "test",
        "training_split": "train",
        "fewshot_split": "train",
        "num_fewshot": task.fewshot,
        "doc_to_text": "text",
        "doc_to_choice": "choices",
        "doc_to_target": "target",
        "target_delimiter": task.template.delimiter,
        "fewshot_delimiter": "\n",
        "metric_list": [
            {"metric": "acc", "aggregation": "mean", "higher_is_better": True},
            {"metric": "acc_norm", "aggregation": "mean", "higher_is_better": True},
        ],
        "metadata": {"version": VERSION},
    }
    return json.dumps(text, indent=1, ensure_ascii=False) + "\n"  # JSON is YAML
