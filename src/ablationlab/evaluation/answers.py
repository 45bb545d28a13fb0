"""From the harness's marks to per-item rows and to the result of a task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ablationlab.core.errors import DataError
from ablationlab.evaluation.calibration import choice_calibration, softmax
from ablationlab.evaluation.files import SCHEMA
from ablationlab.evaluation.posed import Answers
from ablationlab.evaluation.sheets import Marked, Sheet
from ablationlab.records.evaluation import TaskResult, Weights

#: What counts as right or wrong where a task offers no choices, the first that it reports.
_RIGHT = ("acc", "exact_match")
Columns = dict[str, Any]


def answers_of(sheet: Sheet, marked: Marked, run: str, weights: Weights) -> Answers:
    """Read what the harness found for one task."""
    asked, count = sheet.asked, len(sheet.items)
    if asked.source == "suite" and any(sheet.truncated):
        raise AssertionError(f"{asked.name}: items of the suite must fit the context")
    columns: Columns = {
        "run": [run] * count,
        "task": [asked.task] * count,
        "template": [asked.template] * count,
        "fewshot": [asked.fewshot] * count,
        "weights": [weights] * count,
        "task_hash": [asked.hash] * count,
        "item": [item.number for item in sheet.items],
        "doc_hash": [item.doc_hash for item in sheet.items],
        "prompt_hash": [item.prompt_hash for item in sheet.items],
        "target_hash": [item.target_hash for item in sheet.items],
        "truncated": sheet.truncated,
    }
    right = _right(marked)
    if sheet.offers is not None and right is not None:
        columns |= _chosen(sheet, sheet.offers, marked, right)
    else:
        columns |= _plain(sheet, marked, right)
    table = pa.table({name: pa.array(columns[name], SCHEMA.field(name).type) for name in SCHEMA.names}, schema=SCHEMA)
    return Answers(_result(sheet, marked, columns, weights), table)


def _right(marked: Marked) -> list[bool] | None:
    """What the harness counts as right; None where no metric of the task is a matter of right or wrong."""
    for name in _RIGHT:
        values = [one.get(name) for one in marked.metrics]
        if all(isinstance(value, int | float) and value in (0, 1) for value in values):
            return [bool(value) for value in values]
    return None


def _plain(sheet: Sheet, marked: Marked, right: list[bool] | None) -> Columns:
    """Where nothing is chosen: whether it is right, and the log-probability where there is one."""
    count = len(sheet.items)
    scores: list[list[float]] = [[]] * count
    if sheet.packed is not None:
        scores = [[float(mine[0][0])] for mine in marked.responses]
    nothing = [None] * count
    return {
        "target": nothing,
        "choice_scores": scores,
        "choice_bytes": [[]] * count,
        "chosen": nothing,
        "correct": right or nothing,
        "correct_norm": nothing,
        "log_probability": [one[0] for one in scores] if sheet.packed is not None else nothing,
        "margin": nothing,
        "probability": nothing,
    }


def _chosen(
    sheet: Sheet, offers: Sequence[tuple[tuple[str, ...], int]], marked: Marked, right: Sequence[bool]
) -> Columns:
    scores = [
        [float(response[0]) for response in mine[: len(choices)]]
        for mine, (choices, _) in zip(marked.responses, offers, strict=True)
    ]
    target = np.asarray([place for _, place in offers])
    scores_NC = padded(scores)
    every = np.arange(len(scores))
    chosen = scores_NC.argmax(axis=1)
    odd = np.flatnonzero((chosen == target) != np.asarray(right))
    if len(odd):
        number = int(odd[0])
        raise DataError(
            f"{sheet.asked.name}, item {sheet.items[number].number}: the harness counts {right[number]}, its scores say "
            "otherwise"
        )
    own = scores_NC[every, target]
    others = scores_NC.copy()
    others[every, target] = -np.inf
    margin = own - others.max(axis=1)
    norm = [one.get("acc_norm") for one in marked.metrics]
    return {
        "target": target,
        "choice_scores": scores,
        "choice_bytes": [[len(choice.encode()) for choice in choices] for choices, _ in offers],
        "chosen": chosen,
        "correct": chosen == target,
        "correct_norm": [None if value is None else bool(value) for value in norm],
        "log_probability": own,
        "margin": [float(m) if np.isfinite(m) else None for m in margin],
        "probability": softmax(scores_NC)[every, target],
    }


def padded(scores: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """scores_NC, filled up with minus infinity where an item has fewer choices."""
    filled = np.full((len(scores), max(map(len, scores))), -np.inf)
    for number, row in enumerate(scores):
        filled[number, : len(row)] = row
    return filled


def _result(sheet: Sheet, marked: Marked, columns: Columns, weights: Weights) -> TaskResult:
    asked, count = sheet.asked, len(sheet.items)
    choices, chance = sheet.chance
    calibrated, heat = None, None
    if columns["target"][0] is not None:
        calibrated, heat = choice_calibration(padded(columns["choice_scores"]), columns["target"])
    accuracy = _mean(columns["correct"])
    return TaskResult(
        task=asked.task,
        template=asked.template,
        fewshot=asked.fewshot,
        weights=weights,
        version=asked.version,
        task_hash=asked.hash,
        items=count,
        whole=sheet.limit is None or count < sheet.limit,
        choices=choices,
        chance=chance,
        accuracy=accuracy,
        accuracy_se=None if accuracy is None else math.sqrt(accuracy * (1 - accuracy) / max(count - 1, 1)),
        accuracy_norm=_mean(columns["correct_norm"]),
        log_probability=_mean(columns["log_probability"]),
        margin=_mean(columns["margin"]),
        probability=_mean(columns["probability"]),
        truncated=sum(sheet.truncated),
        unknown_characters=sheet.unknown_characters,
        harness=marked.figures,
        calibration=calibrated,
        temperature=heat,
    )


def _mean(values: Sequence[Any]) -> float | None:
    return None if len(values) == 0 or any(value is None for value in values) else float(np.mean(values))
