"""Evaluations made of records alone: any task, any number of items, answers from a seeded generator."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from ablationlab.evaluation import metrics_of
from ablationlab.evaluation.calibration import choice_calibration
from ablationlab.evaluation.runs import SCHEMA, write
from ablationlab.records.evaluation import (
    Evaluation,
    Provenance,
    Source,
    Suite,
    SuiteTask,
    TaskResult,
    Weights,
    packed_answers,
    suite_path,
)
from ablationlab.records.plan import Plan, PlannedRun
from ablationlab.records.seal import close_evaluation
from ablationlab.records.storage import ResultsFolder

HOW = Provenance(
    device="cpu",
    device_name="test",
    precision="fp32",
    stack_width=1,
    harness="0",
    harness_sha256="4" * 64,
    versions={},
)


@dataclass(frozen=True)
class Put:
    """A task as it is put to a run. *whole*: no cap left any item out."""

    task: str
    template: str = "plain"
    fewshot: int = 0
    items: int = 40
    source: Source = "suite"
    choices: int = 2
    whole: bool = True
    version: str = "1"

    @property
    def hash(self) -> str:
        identity = f"{self.source} {self.task} {self.template} {self.fewshot} {self.items} {self.version}"
        return hashlib.sha256(identity.encode()).hexdigest()

    def answered(self, run: PlannedRun, weights: Weights) -> tuple[TaskResult, pa.Table]:
        """Right more often on longer training; two runs and two templates differ in their items' answers."""
        place = hashlib.sha256(f"{run.variant} {run.seed} {self.task} {self.template} {self.fewshot}".encode()).digest()
        rng = np.random.default_rng([*place[:8], weights == "half"])
        scores = rng.normal(size=(self.items, self.choices))
        scores[:, 0] += 0.2 if weights == "half" else 1.2
        others = scores[:, 1:].max(axis=1)
        right = scores[:, 0] > others
        calibration, temperature = choice_calibration(scores, np.zeros(self.items, dtype=np.int64))
        probability = np.exp(scores[:, 0]) / np.exp(scores).sum(axis=1)
        result = TaskResult(
            task=self.task,
            source=self.source,
            template=self.template,
            fewshot=self.fewshot,
            weights=weights,
            version=self.version,
            task_hash=self.hash,
            items=self.items,
            whole=self.whole,
            choices=float(self.choices),
            chance=1 / self.choices,
            accuracy=float(right.mean()),
            accuracy_se=0.01,
            accuracy_norm=None,
            log_probability=float(scores[:, 0].mean()),
            margin=float((scores[:, 0] - others).mean()),
            probability=float(probability.mean()),
            truncated=0,
            unknown_characters=0,
            answers=packed_answers(right),
            calibration=calibration,
            temperature=temperature,
        )
        count = self.items
        columns = {
            "run": [run.id] * count,
            "task": [self.task] * count,
            "template": [self.template] * count,
            "fewshot": [self.fewshot] * count,
            "weights": [weights] * count,
            "task_hash": [self.hash] * count,
            "item": list(range(count)),
            "doc_hash": [f"{self.task} {i}" for i in range(count)],
            "prompt_hash": [f"{self.template} {self.items} {i}" for i in range(count)],
            "target_hash": ["0"] * count,
            "target": [0] * count,
            "choice_scores": scores.tolist(),
            "choice_bytes": [[1] * self.choices] * count,
            "chosen": scores.argmax(axis=1),
            "correct": right,
            "correct_norm": [None] * count,
            "log_probability": scores[:, 0],
            "margin": scores[:, 0] - others,
            "probability": probability,
            "truncated": [False] * count,
        }
        return result, pa.table({name: pa.array(columns[name], SCHEMA.field(name).type) for name in SCHEMA.names})


def evaluate(folder: Path, plan: Plan, put: Callable[[PlannedRun], Sequence[Put]]) -> None:
    """evaluation.json and samples.parquet of every run, and suite.json over all that was put to any of them."""
    results = ResultsFolder(folder)
    listed: dict[str, Put] = {}
    for run in plan.runs:
        tasks = list(put(run))
        listed |= {one.hash: one for one in tasks}
        every: list[Weights] = ["final", "half"] if run.role == "gate" else ["final"]
        found = [one.answered(run, weights) for weights in every for one in tasks]
        record = Evaluation(
            id=run.id,
            plan_hash=plan.plan_hash,
            status="evaluated",
            checkpoint="step-1",
            weights_sha256="3" * 64,
            how=HOW,
            tasks=tuple(result for result, _ in found),
        )
        record = record.model_copy(update={"metrics": metrics_of(record)})
        write(results.run(run.id), record, pa.concat_tables([rows for _, rows in found]))
        close_evaluation(results.run(run.id))
    suite_path(results).parent.mkdir(parents=True, exist_ok=True)
    described = [
        SuiteTask(
            task=one.task,
            template=one.template,
            fewshot=one.fewshot,
            version=one.version,
            task_hash=one.hash,
            source=one.source,
            meaning="",
            items=one.items,
            choices=float(one.choices),
            chance=1 / one.choices,
        )
        for one in listed.values()
    ]
    Suite(plan_hash=plan.plan_hash, tasks=tuple(described)).replace(suite_path(results))
