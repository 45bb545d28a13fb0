"""A task as those who ask it need it: its key, its requests as packed tokens, the marked answers. No harness, no text."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from ablationlab.evaluation.scoring import Packed
from ablationlab.records.evaluation import SuiteTask, TaskKey, TaskResult, Weights


@dataclass(frozen=True, eq=False)
class Answers:
    """One task answered by one set of weights. Here, so that those who only receive it do not load the harness."""

    result: TaskResult
    rows: pa.Table


@dataclass(frozen=True, eq=False)
class Posed:
    """One task under one wording and number of examples; ``packed`` is None where it asks for more than log-probabilities."""

    task: str
    template: str
    fewshot: int
    hash: str
    name: str
    packed: Packed | None

    def key(self, weights: Weights) -> TaskKey:
        """What an answer to it by these weights is a score of."""
        return TaskKey(self.task, self.template, self.fewshot, weights)


class Marker(Protocol):
    """A desk, wherever it stands."""

    def posed(self) -> list[Posed]:
        """Every task that is asked."""
        ...

    def mark(self, name: str, run: str, weights: Weights, answers: Any) -> Future[Answers]:
        """One run's answers to one task, in the order of its requests, marked."""
        ...

    def respond(self, name: str, lm: Any) -> Any:
        """Answers of the current member to a task that asks for more than log-probabilities."""
        ...

    def describe(self, names: Collection[str]) -> list[SuiteTask]:
        """What can be said of tasks before any run is scored."""
        ...
