"""The evaluation of runs that may share a stack: only what is missing, written as it comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ablationlab.evaluation.course import Course, Seat
from ablationlab.evaluation.length import begin_length_parts
from ablationlab.evaluation.members import Member, ScoredStack
from ablationlab.evaluation.scoring import StackScorer
from ablationlab.evaluation.tokens import begin_token_parts
from ablationlab.evaluation.workshop import OpenRun, Workshop, save
from ablationlab.records.evaluation import LengthPart, TokensPart

Report = Callable[[str], None]


def evaluate_unit(course: Course, finals: Sequence[Member], halves: Sequence[Member | None], report: Report) -> None:
    """Everything but throughput, in stacks of the workshop's width; the halves are put to the tasks alone."""
    runs = [course.admit(final, half) for final, half in zip(finals, halves, strict=True)]
    _next_tokens(course, [one for one in runs if one.record.tokens is None], report)
    if course.shop.question.tasks:
        _tasks(course, runs, finals[0].model.context, report)
    course.settle()


def _next_tokens(course: Course, waiting: Sequence[OpenRun], report: Report) -> None:
    shop = course.shop
    for start in range(0, len(waiting), shop.width):
        mine = waiting[start : start + shop.width]
        report(f"next tokens, {', '.join(one.final.name for one in mine)}")
        stack = ScoredStack.of([one.final for one in mine], shop.device, shop.width)
        text, size = shop.corpus.validation, shop.corpus.record.validation_bytes
        tokens, length = begin_token_parts(stack, text, shop.classes, size), begin_length_parts(stack, text)
        for number, one in enumerate(mine):
            course.later(one, partial(_note, shop, one, number, tokens, length))


def _note(
    shop: Workshop,
    one: OpenRun,
    number: int,
    tokens: Callable[[int], TokensPart],
    length: Callable[[int], LengthPart] | None,
) -> None:
    found = {"tokens": tokens(number), "length": None if length is None else length(number)}
    one.record = one.record.model_copy(update=found)
    save(shop, one)


def _tasks(course: Course, runs: Sequence[OpenRun], context: int, report: Report) -> None:
    shop, desk = course.shop, course.shop.desk(context)
    posed = desk.posed()
    seats: list[Seat] = [(one, one.final) for one in runs]
    seats += [(one, one.half) for one in runs if one.half is not None]
    seats = [seat for seat in seats if any(seat[0].lacks(task, seat[1]) for task in posed)]
    for start in range(0, len(seats), shop.width):
        stack = seats[start : start + shop.width]
        report(f"tasks, {', '.join(member.name for _, member in stack)}")
        scorer = StackScorer(ScoredStack.of([member for _, member in stack], shop.device, shop.width))
        for fewshot in sorted({task.fewshot for task in posed}):
            for task in posed:
                if task.fewshot == fewshot:
                    course.put(desk, scorer, stack, task)
            course.save_marked()
