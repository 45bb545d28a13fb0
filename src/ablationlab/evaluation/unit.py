"""The evaluation of runs that may share a stack: only what is missing, written as it comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from ablationlab.data.corpus import TokenizedCorpus
from ablationlab.evaluation import files
from ablationlab.evaluation.length import length_parts
from ablationlab.evaluation.members import Member, ScoredStack
from ablationlab.evaluation.names import Question
from ablationlab.evaluation.posed import Answers, Marker, Posed
from ablationlab.evaluation.scoring import StackScorer
from ablationlab.evaluation.summary import metrics_of
from ablationlab.evaluation.text import ScoringTokens, token_classes
from ablationlab.evaluation.tokens import token_parts
from ablationlab.evaluation_records import Evaluation, HowPart, LengthPart
from ablationlab.records import ResultsFolder

Report = Callable[[str], None]


@dataclass
class Workshop:
    """What every unit of an evaluation shares: the text, its classes, the desks by context, the device."""

    results: ResultsFolder
    plan_hash: str
    corpus: TokenizedCorpus
    question: Question
    how: HowPart
    device: torch.device
    width: int
    desks: dict[int, Marker] = field(default_factory=dict)
    finals: dict[str, Member] = field(default_factory=dict)  # weights that were loaded, by run

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
class _Open:
    """One run in evaluation: its record so far and its rows."""

    final: Member
    half: Member | None
    record: Evaluation
    rows: pa.Table

    def lacks(self, posed: Posed, member: Member) -> bool:
        """Whether this task was not put to these weights yet; another version of it does not count."""
        found = self.record.find(posed.key(member.weights))
        return found is None or found.task_hash != posed.hash


Seat = tuple[_Open, Member]
Waiting = list[tuple[_Open, Future[Answers]]]


def evaluate_unit(shop: Workshop, finals: Sequence[Member], halves: Sequence[Member | None], report: Report) -> None:
    """Everything but throughput, in stacks of the workshop's width; the halves are put to the tasks alone."""
    opened = [_opened(shop, final, half) for final, half in zip(finals, halves, strict=True)]
    _next_tokens(shop, [one for one in opened if one.record.tokens is None], report)
    if not shop.question.tasks:
        return
    desk = shop.desk(finals[0].model.context)
    posed = desk.posed()
    seats: list[Seat] = [(one, one.final) for one in opened]
    seats += [(one, one.half) for one in opened if one.half is not None]
    seats = [seat for seat in seats if any(seat[0].lacks(task, seat[1]) for task in posed)]
    course = _Course(shop, desk)
    for start in range(0, len(seats), shop.width):
        stack = seats[start : start + shop.width]
        report(f"tasks, {', '.join(member.name for _, member in stack)}")
        scorer = StackScorer(ScoredStack.of([member for _, member in stack], shop.device, shop.width))
        for fewshot in sorted({task.fewshot for task in posed}):
            for task in posed:
                if task.fewshot == fewshot:
                    course.put(scorer, stack, task)
            course.save_marked()
    course.end()


def _next_tokens(shop: Workshop, waiting: Sequence[_Open], report: Report) -> None:
    for start in range(0, len(waiting), shop.width):
        mine = waiting[start : start + shop.width]
        report(f"next tokens, {', '.join(one.final.name for one in mine)}")
        stack = ScoredStack.of([one.final for one in mine], shop.device, shop.width)
        tokens = token_parts(stack, shop.corpus.validation, shop.classes, shop.corpus.record.validation_bytes)
        lengths: Sequence[LengthPart | None] = length_parts(stack, shop.corpus.validation) or [None] * len(mine)
        for one, part, length in zip(mine, tokens, lengths, strict=True):
            one.record = one.record.model_copy(update={"tokens": part, "length": length})
            _save(shop, one)


def _opened(shop: Workshop, final: Member, half: Member | None) -> _Open:
    folder = shop.results.run(final.run.id)
    found = files.existing(folder, final.sha256, half.sha256 if half else None, shop.how)
    if found is not None:
        return _Open(final, half, found, files.read_rows(folder))
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
    return _Open(final, half, fresh, files.no_rows())


class _Course:
    """Tasks on their way: one on the device, those before it with the markers, those before these on disk.

    So neither the device nor the markers wait for the other: while a task is being scored the answers to the one before it
    are handed over, and what was marked is written while the next group of tasks is scored.
    """

    def __init__(self, shop: Workshop, desk: Marker) -> None:
        self.shop, self.desk = shop, desk
        self._asked: Callable[[], Waiting] = list
        self._marking: Waiting = []
        self._before: Waiting = []

    def put(self, scorer: StackScorer, seats: Sequence[Seat], task: Posed) -> None:
        """Put a task to those of a stack who lack it: scored together, each run's answers marked by themselves."""
        lacking = [(number, *seat) for number, seat in enumerate(seats) if seat[0].lacks(task, seat[1])]
        if not lacking:
            return
        scoring = scorer.begin(task.packed) if task.packed is not None else None

        def hand_over() -> Waiting:
            scores = scoring() if scoring is not None else None
            waiting: Waiting = []
            for number, one, member in lacking:
                answers = (
                    _answers(self.shop, self.desk, scorer, task, number) if scores is None else scores.answers(number)
                )
                waiting.append((one, self.desk.mark(task.name, member.run.id, member.weights, answers)))
            return waiting

        self._marking += self._asked()
        self._asked = hand_over

    def save_marked(self) -> None:
        """At the end of a group of tasks: write the group before it."""
        _collect(self.shop, self._before)
        self._before, self._marking = self._marking, []

    def end(self) -> None:
        """Everything to disk."""
        last = self._before + self._marking + self._asked()
        self._asked, self._before, self._marking = list, [], []
        _collect(self.shop, last)


def _answers(shop: Workshop, desk: Marker, scorer: StackScorer, task: Posed, member: int) -> Any:
    """Of a task that asks for more than log-probabilities: through the harness's own interface."""
    from ablationlab.evaluation.harness import StackLM

    lm = StackLM(scorer, shop.text, scorer.stack.model.context)
    lm.current = member
    return desk.respond(task.name, lm)


def _collect(shop: Workshop, waiting: Waiting) -> None:
    """Take in what was marked, run by run."""
    by_run: dict[str, tuple[_Open, list[Answers]]] = {}
    for one, future in waiting:
        by_run.setdefault(one.record.id, (one, []))[1].append(future.result())
    for one, answers in by_run.values():
        new = [answer.result for answer in answers]
        keys = [result.key for result in new]
        kept = [task for task in one.record.tasks if task.key not in keys]
        ordered = sorted([*kept, *new], key=lambda task: (task.weights, task.fewshot, task.task, task.template))
        one.record = one.record.model_copy(update={"tasks": tuple(ordered)})
        one.rows = pa.concat_tables([files.without(one.rows, keys), *(answer.rows for answer in answers)])
        _save(shop, one)


def _save(shop: Workshop, one: _Open) -> None:
    one.record = one.record.model_copy(update={"metrics": metrics_of(one.record)})
    one.record = files.write(shop.results.run(one.record.id), one.record, one.rows)
