"""The evaluation of one stack of runs: only what is missing, written after every part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ablationlab.data.corpus import TokenizedCorpus
from ablationlab.evaluation import files
from ablationlab.evaluation.answers import Answers, answers_of
from ablationlab.evaluation.harness import StackLM, ask
from ablationlab.evaluation.length import length_parts
from ablationlab.evaluation.members import Member, ScoredStack
from ablationlab.evaluation.scoring import StackScorer
from ablationlab.evaluation.summary import metrics_of
from ablationlab.evaluation.tasks import Asked, AskedTask, Question, resolve
from ablationlab.evaluation.text import ScoringTokens, token_classes
from ablationlab.evaluation.tokens import token_parts
from ablationlab.evaluation_records import Evaluation, HowPart, LengthPart, TaskKey, TaskResult
from ablationlab.records import PlannedRun, ResultsFolder


@dataclass
class Workshop:
    """What every unit of an evaluation shares: the text, its classes, the tasks by context, the device."""

    results: ResultsFolder
    plan_hash: str
    corpus: TokenizedCorpus
    question: Question
    how: HowPart
    device: torch.device
    width: int
    _asked: dict[int, Asked] = field(default_factory=dict)

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
        return self.results.path / "evaluation" / "tasks"

    def asked(self, context: int) -> Asked:
        """The tasks, for models of that context."""
        if context not in self._asked:
            self._asked[context] = resolve(self.question, self.corpus, context, self.root)
        return self._asked[context]


@dataclass
class _Open:
    """One run in evaluation: its record so far and its rows."""

    run: PlannedRun
    final: Member
    half: Member | None
    record: Evaluation
    rows: list[files.Row]

    def lacks(self, asked: AskedTask, member: Member) -> bool:
        """Whether this task was not put to these weights yet; another version of it does not count."""
        found = self.record.find(TaskKey(asked.task, asked.template, asked.fewshot, member.weights))
        return found is None or found.task_hash != asked.hash


def evaluate_unit(
    shop: Workshop, finals: Sequence[Member], halves: Sequence[Member | None], report: Callable[[str], None]
) -> None:
    """Everything but throughput for the runs of one stack; the halves are put to the tasks alone."""
    opened = [_opened(shop, final, half) for final, half in zip(finals, halves, strict=True)]
    waiting = [one for one in opened if one.record.tokens is None]
    if waiting:
        report("next tokens")
        stack = ScoredStack.of([one.final for one in waiting], shop.device, shop.width)
        tokens = token_parts(stack, shop.corpus.validation, shop.classes, shop.corpus.record.validation_bytes)
        lengths: Sequence[LengthPart | None] = length_parts(stack, shop.corpus.validation) or [None] * len(waiting)
        for one, part, length in zip(waiting, tokens, lengths, strict=True):
            one.record = one.record.model_copy(update={"tokens": part, "length": length})
            _save(shop, one)
    asked = shop.asked(finals[0].model.context) if shop.question.tasks else None
    if asked is None:
        return
    _put(shop, opened, [one.final for one in opened], asked, report)
    kept = [one for one in opened if one.half is not None]
    if kept:
        _put(shop, kept, [one.half for one in kept if one.half is not None], asked, report)


def _opened(shop: Workshop, final: Member, half: Member | None) -> _Open:
    folder = shop.results.run(final.run.id)
    found = files.existing(folder, final.sha256, half.sha256 if half else None, shop.how)
    if found is not None:
        return _Open(final.run, final, half, found, files.read_rows(folder))
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
    return _Open(final.run, final, half, fresh, [])


def _put(
    shop: Workshop, opened: Sequence[_Open], members: Sequence[Member], asked: Asked, report: Callable[[str], None]
) -> None:
    """Put the tasks that are missing to a stack, one number of examples at a time."""
    for fewshot in sorted({task.fewshot for task in asked.tasks}):
        todo = [
            task
            for task in asked.tasks
            if task.fewshot == fewshot and any(o.lacks(task, m) for o, m in zip(opened, members, strict=True))
        ]
        if not todo:
            continue
        which = "" if members[0].weights == "final" else ", at half the steps"
        report(f"{len(todo)} tasks, {fewshot} examples{which}")
        stack = ScoredStack.of(members, shop.device, shop.width)
        lm = StackLM(StackScorer(stack), shop.text, stack.model.context)
        for number, (one, member) in enumerate(zip(opened, members, strict=True)):
            lm.current = number
            mine = [task for task in todo if one.lacks(task, member)]
            if not mine:
                continue
            outcome = ask(lm, [task.loaded for task in mine], asked.manager, limit=shop.question.items)
            _add(one, [answers_of(task, outcome, lm, one.run.id, member.weights) for task in mine])
            _save(shop, one)


def _add(one: _Open, answers: Sequence[Answers]) -> None:
    new: list[TaskResult] = [answer.result for answer in answers]
    keys = [result.key for result in new]
    kept = [task for task in one.record.tasks if task.key not in keys]
    ordered = sorted([*kept, *new], key=lambda task: (task.weights, task.fewshot, task.task, task.template))
    one.record = one.record.model_copy(update={"tasks": tuple(ordered)})
    one.rows = files.without(one.rows, keys) + [row for answer in answers for row in answer.rows]


def _save(shop: Workshop, one: _Open) -> None:
    one.record = one.record.model_copy(update={"metrics": metrics_of(one.record)})
    one.record = files.write(shop.results.run(one.run.id), one.record, one.rows)
