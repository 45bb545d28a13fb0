"""What all evaluators share: their protocol, the study's text and device, and the queue that keeps a GPU busy."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import torch

from ablationlab.core.grouping import grouped
from ablationlab.data.corpus import TokenizedCorpus
from ablationlab.evaluation.runs import EvaluationField, OpenEvaluation, RunWeights, ScoredStack
from ablationlab.model.device import Mark
from ablationlab.records.evaluation import Evaluation, Provenance, Weights
from ablationlab.records.plan import Plan, PlannedRun
from ablationlab.records.storage import ResultsFolder
from ablationlab.tasks import TaskRequest

if TYPE_CHECKING:
    from ablationlab.evaluation.tasks import TaskBuilder

#: Runs whose files are written at once, at the end.
WRITERS = 8


class ScoredMember(NamedTuple):
    """A set of weights that is to be measured, and the evaluation of its run."""

    run: OpenEvaluation
    member: RunWeights


class Measurement(NamedTuple):
    """A result that is under way, for one field of a run's record. *value* waits for it, unless it is *ready*."""

    run: OpenEvaluation
    field: EvaluationField
    value: Callable[[], Any]
    ready: Callable[[], bool] = lambda: True


class Evaluator(Protocol):
    """One thing that is measured on trained weights."""

    #: For messages.
    title: str
    #: What is measured in one call of `run`: a stack of weights, or all runs of the study, after everything else.
    scope: Literal["stack", "study"]
    #: Whether runs of the gate are measured too; they only answer tasks.
    gate: bool

    def __init__(self, context: EvaluationContext) -> None: ...

    def missing(self, run: PlannedRun, record: Evaluation) -> Sequence[Weights]:
        """The weights of a run on which it has not been measured yet."""
        ...

    def run(self, members: Sequence[ScoredMember]) -> Iterator[Measurement]:
        """Queue the work on the device, and yield what comes of it."""
        ...

    @staticmethod
    def metrics(record: Evaluation) -> dict[str, float | None]:
        """The run-level metrics that follow from what was measured; none where nothing was."""
        ...


class ScoringQueue:
    """The order of work on a GPU: it scores a task while the harness has the one before, and the disk those before that.

    Without a GPU everything is done at once, in the order in which it comes.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._scoring: tuple[Mark | None, Callable[[], None]] | None = None
        self._measured: deque[tuple[Measurement, Callable[[], None]]] = deque()

    @property
    def overlaps(self) -> bool:
        """Whether there is a device that works while this process does something else."""
        return self._device.type == "cuda"

    def scoring(self, mark: Mark | None, hand_over: Callable[[], None]) -> None:
        """Work that the device was given until *mark*. *hand_over* takes its scores on, once the device has the next work."""
        previous, self._scoring = self._scoring, (mark, hand_over)
        self._finish(previous)
        if not self.overlaps:
            self.settle()

    def later(self, measurement: Measurement, save: Callable[[], None]) -> None:
        """Finish and save a measurement while the device is busy, or at the end; those of one run in their order."""
        self._measured.append((measurement, save))
        if not self.overlaps:
            self._next()

    def settle(self) -> None:
        """Hand over the scores of the last work."""
        previous, self._scoring = self._scoring, None
        self._finish(previous)

    def end(self) -> None:
        """Finish and save everything."""
        self.settle()
        by_run = grouped((work[0].run.record.id, work) for work in self._measured)
        self._measured.clear()
        # Most of it is sorting, packing and hashing, outside of the interpreter.
        with ThreadPoolExecutor(WRITERS) as writers:
            for done in [writers.submit(_finish_all, works) for works in by_run.values()]:
                done.result()

    def _finish(self, previous: tuple[Mark | None, Callable[[], None]] | None) -> None:
        if previous is None:
            return
        mark, hand_over = previous
        while self._measured and mark is not None and not mark.reached and self._measured[0][0].ready():
            self._next()
        hand_over()

    def _next(self) -> None:
        _finish_all([self._measured.popleft()])


def _finish_all(works: Sequence[tuple[Measurement, Callable[[], None]]]) -> None:
    for measurement, save in works:
        measurement.run.add(measurement.field, measurement.value())
        save()


@dataclass
class EvaluationContext:
    """The study's plan and text, what is asked, the tasks by length of context, and the device."""

    results: ResultsFolder
    plan: Plan
    corpus: TokenizedCorpus
    request: TaskRequest
    provenance: Provenance
    device: torch.device
    width: int
    #: Of the final weights of all runs that are evaluated.
    weights_sha256: tuple[str, ...] = ()
    builders: dict[int, TaskBuilder] = field(default_factory=dict)
    _stacked: tuple[tuple[RunWeights, ...], ScoredStack] | None = None

    @cached_property
    def queue(self) -> ScoringQueue:
        return ScoringQueue(self.device)

    def builder(self, context: int) -> TaskBuilder:
        """The tasks, for models of that context."""
        if context not in self.builders:
            from ablationlab.evaluation.harness import LocalTaskBuilder

            self.builders[context] = LocalTaskBuilder(self.request, self.corpus, context, task_folder(self.results))
        return self.builders[context]

    def open(self, final: RunWeights, half: RunWeights | None) -> OpenEvaluation:
        """A run with what was scored of it before and still counts."""
        folder = self.results.run(final.run.id)
        return OpenEvaluation.open(folder, self.plan.plan_hash, self.provenance, final, half)

    def stack(self, members: Sequence[ScoredMember]) -> ScoredStack:
        """Weights as one stack, padded to the context's width; the last one is kept for the next evaluator."""
        wanted = tuple(scored.member for scored in members)
        if self._stacked is None or self._stacked[0] != wanted:
            self._stacked = None  # its memory, before the next one takes more
            self._stacked = wanted, ScoredStack.of(wanted, self.device, self.width)
        return self._stacked[1]


def task_folder(results: ResultsFolder) -> Path:
    """Where task files are kept."""
    return results.path / "evaluation" / "tasks"
