"""From the harness's samples to per-item rows and to the result of a task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ablationlab.errors import DataError
from ablationlab.evaluation.calibration import choice_calibration, softmax
from ablationlab.evaluation.harness import StackLM
from ablationlab.evaluation.tasks import AskedTask, chance_of
from ablationlab.evaluation_records import TaskResult, Weights

Row = dict[str, Any]
#: What counts as right or wrong where a task offers no choices, the first that it reports.
_RIGHT = ("acc", "exact_match")


@dataclass(frozen=True)
class Answers:
    """One task answered by one set of weights."""

    result: TaskResult
    rows: tuple[Row, ...]


def answers_of(asked: AskedTask, outcome: Mapping[str, Any], lm: StackLM, run: str, weights: Weights) -> Answers:
    """Read what the harness found for one task."""
    samples = sorted(outcome["samples"][asked.name], key=lambda sample: sample["doc_id"])
    samples = [sample for sample in samples if sample["filter"] == samples[0]["filter"]]
    rows = [_row(asked, sample, lm) for sample in samples]
    if asked.source == "suite" and any(row["truncated"] for row in rows):
        raise AssertionError(f"{asked.name}: items of the suite must fit the context")
    where = {
        "run": run,
        "task": asked.task,
        "template": asked.template,
        "fewshot": asked.fewshot,
        "weights": weights,
        "task_hash": asked.hash,
    }
    unknown = sum(lm.text.count_unknown(piece) for s in samples for piece in _texts(s))
    figures = {
        name.removesuffix(",none"): float(value)
        for name, value in outcome["results"][asked.name].items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
    result = _result(asked, samples, rows, weights, unknown, figures)
    return Answers(result, tuple({**where, **row} for row in rows))


def _texts(sample: Mapping[str, Any]) -> list[str]:
    first = sample["arguments"][0]
    return [
        first[0],
        *(request[1] for request in sample["arguments"] if len(request) > 1 and isinstance(request[1], str)),
    ]


def _row(asked: AskedTask, sample: Mapping[str, Any], lm: StackLM) -> Row:
    row: Row = {
        "item": int(sample["doc_id"]),
        "doc_hash": sample["doc_hash"],
        "prompt_hash": sample["prompt_hash"],
        "target_hash": sample["target_hash"],
        "target": None,
        "choice_scores": [],
        "choice_bytes": [],
        "chosen": None,
        "correct": None,
        "correct_norm": None,
        "log_probability": None,
        "margin": None,
        "probability": None,
        "truncated": False,
    }
    right = next((sample[name] for name in _RIGHT if isinstance(sample.get(name), int | float)), None)
    row["correct"] = None if right is None else bool(right)
    if asked.loaded.OUTPUT_TYPE not in ("multiple_choice", "loglikelihood"):
        return row
    row["truncated"] = any(lm.was_truncated(asked.name, *arguments[:2]) for arguments in sample["arguments"])
    scores = [float(response[0]) for response in sample["filtered_resps"]]
    if not asked.chooses:
        return row | {"choice_scores": scores[:1], "log_probability": scores[0]}
    return row | _chosen(asked, sample, scores)


def _chosen(asked: AskedTask, sample: Mapping[str, Any], scores: list[float]) -> Row:
    choices, target = choices_of(asked.loaded, sample["doc"])
    scores = scores[: len(choices)]
    chosen = int(np.argmax(scores))
    if "acc" in sample and float(sample["acc"]) != float(chosen == target):
        raise DataError(
            f"{asked.name}, item {sample['doc_id']}: the harness counts {sample['acc']}, its scores say otherwise"
        )
    norm = sample.get("acc_norm")
    return {
        "target": target,
        "choice_scores": scores,
        "choice_bytes": [len(choice.encode()) for choice in choices],
        "chosen": chosen,
        "correct": chosen == target,
        "correct_norm": None if norm is None else bool(norm),
        "log_probability": scores[target],
        "margin": scores[target] - max(s for i, s in enumerate(scores) if i != target) if len(scores) > 1 else None,
        "probability": float(softmax(np.asarray(scores))[target]),
    }


def choices_of(task: Any, doc: Mapping[str, Any]) -> tuple[list[str], int]:
    """The choices of a document and which of them is right, as the harness reads them."""
    choices = [str(choice) for choice in task.doc_to_choice(doc)]
    # Where the choice stands inside the prompt, the harness keeps the right one's number in the place of the text.
    target = task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc)
    if isinstance(target, str):
        target = choices.index(target)
    return choices, int(target)


def _result(
    asked: AskedTask,
    samples: Sequence[Mapping[str, Any]],
    rows: Sequence[Row],
    weights: Weights,
    unknown: int,
    figures: dict[str, float],
) -> TaskResult:
    count, chance = None, None
    calibrated, heat = None, None
    if asked.chooses:
        count, chance = chance_of([_offer(asked, sample) for sample in samples])
        scores, targets = [np.asarray(row["choice_scores"]) for row in rows], [row["target"] for row in rows]
        calibrated, heat = choice_calibration(scores, targets)
    accuracy = _mean(rows, "correct")
    return TaskResult(
        task=asked.task,
        template=asked.template,
        fewshot=asked.fewshot,
        weights=weights,
        version=asked.version,
        task_hash=asked.hash,
        items=len(rows),
        choices=count,
        chance=chance,
        accuracy=accuracy,
        accuracy_se=None if accuracy is None else math.sqrt(accuracy * (1 - accuracy) / max(len(rows) - 1, 1)),
        accuracy_norm=_mean(rows, "correct_norm"),
        log_probability=_mean(rows, "log_probability"),
        margin=_mean(rows, "margin"),
        probability=_mean(rows, "probability"),
        truncated=sum(bool(row["truncated"]) for row in rows),
        unknown_characters=unknown,
        harness=figures,
        calibration=calibrated,
        temperature=heat,
    )


def _offer(asked: AskedTask, sample: Mapping[str, Any]) -> tuple[tuple[str, ...], int]:
    choices, target = choices_of(asked.loaded, sample["doc"])
    return tuple(choices), target


def _mean(rows: Sequence[Row], name: str) -> float | None:
    values = [row[name] for row in rows]
    return None if not values or any(value is None for value in values) else float(np.mean(values))
