"""What the scoring of runs shares: the text, the desks, the device; and a run's record while it grows."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from ablationlab.data.corpus import TokenizedCorpus
from ablationlab.evaluation import files
from ablationlab.evaluation.members import Member
from ablationlab.evaluation.posed import Marker, Posed
from ablationlab.evaluation.text import ScoringTokens, token_classes
from ablationlab.records.evaluation import Evaluation, HowPart
from ablationlab.records.folders import ResultsFolder
from ablationlab.tasks import TaskRequest
from ablationlab.tasks.scores import OF_CALIBRATED, TASK_MEANS, over_tasks


@dataclass
class Workshop:
    """What every unit of an evaluation shares: the text, its classes, the desks by context, the device."""

    results: ResultsFolder
    plan_hash: str
    corpus: TokenizedCorpus
    question: TaskRequest
    how: HowPart
    device: torch.device
    width: int
    desks: dict[int, Marker] = field(default_factory=dict)

    @cached_property
    def text(self) -> ScoringTokens:
        """The tokenizer, for scoring."""
        return ScoringTokens(self.corpus.tokenizer)

    @cached_property
    def classes(self) -> NDArray[np.int64]:
        """The class of every token."""
        return token_classes(self.corpus.tokenizer)

    @property
    def root(self) -> Path:
        """Where task files are kept."""
        return task_root(self.results)

    def desk(self, context: int) -> Marker:
        """The tasks, for models of that context."""
        if context not in self.desks:
            from ablationlab.evaluation.desk import Desk

            self.desks[context] = Desk(self.question, self.corpus, context, self.root)
        return self.desks[context]


def task_root(results: ResultsFolder) -> Path:
    """Where task files are kept."""
    return results.path / "evaluation" / "tasks"


@dataclass
class OpenRun:
    """One run in evaluation: its record so far and its rows."""

    final: Member
    half: Member | None
    record: Evaluation
    rows: pa.Table

    def lacks(self, posed: Posed, member: Member) -> bool:
        """Whether this task was not put to these weights yet; another version of it does not count."""
        found = self.record.find(posed.key(member.weights))
        return found is None or found.task_hash != posed.hash


def opened(shop: Workshop, final: Member, half: Member | None) -> OpenRun:
    """A run with what was scored of it before and still counts."""
    folder = shop.results.run(final.run.id)
    found = files.existing(folder, final.sha256, half.sha256 if half else None, shop.how)
    if found is not None:
        return OpenRun(final, half, found, files.read_rows(folder))
    fresh = Evaluation(
        id=final.run.id,
        plan_hash=shop.plan_hash,
        status="evaluated",
        checkpoint=final.checkpoint,
        weights_sha256=final.sha256,
        half_checkpoint=half.checkpoint if half else None,
        half_weights_sha256=half.sha256 if half else None,
        how=shop.how,
    )
    return OpenRun(final, half, fresh, files.no_rows())


def save(shop: Workshop, one: OpenRun) -> None:
    """Write it as it stands."""
    one.record = _summed(one.record)
    one.record = files.write(shop.results.run(one.record.id), one.record, one.rows)


def save_record(shop: Workshop, one: OpenRun) -> None:
    """The same where its rows are as they were written last."""
    one.record = _summed(one.record)
    files.write_record(shop.results.run(one.record.id), one.record)


def _summed(record: Evaluation) -> Evaluation:
    return record.model_copy(update={"metrics": metrics_of(record)})


def metrics_of(found: Evaluation) -> dict[str, float | None]:
    """Every metric that the parts give; a part that is missing gives none."""
    metrics: dict[str, float | None] = {}
    final = [task for task in found.tasks if task.weights == "final" and task.chance is not None]
    zero = [task for task in final if task.fewshot == 0]
    most = max((task.fewshot for task in final), default=0)
    few = [task for task in final if task.fewshot == most] if most else []
    for name, value in TASK_MEANS.items():
        tasks = few if name.endswith("_fewshot") else zero
        if tasks:
            metrics[name] = over_tasks([t for t in tasks if t.calibration or name not in OF_CALIBRATED], value)
    if found.tokens is not None:
        metrics["token_ece"] = found.tokens.calibration.ece_equal_mass_debiased
        metrics["token_brier"] = found.tokens.calibration.brier
        metrics["best_temperature"] = found.tokens.temperature.best
        metrics["temperature_sensitivity"] = found.tokens.temperature.sensitivity
        metrics["logit_scale"] = found.tokens.logit_scale
    if found.length is not None:
        metrics["loss_near_end"] = found.length.near_end
        metrics["loss_past_end"] = found.length.past_end
        if found.length.near:  # else an older record, where the two are of different tokens
            metrics["sliding_cost"] = found.length.past_end - found.length.near_end
    if found.throughput is not None:
        metrics["inference_speed"] = found.throughput.inference_tokens_per_second
        metrics["training_speed"] = found.throughput.training_tokens_per_second
        metrics["inference_memory"] = float(found.throughput.inference_bytes)
        metrics["training_memory"] = float(found.throughput.training_bytes)
    return metrics
