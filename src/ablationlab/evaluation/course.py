"""Tasks on their way through an evaluation: scored by the device, marked by the harness, written."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pyarrow as pa

from ablationlab.evaluation import files
from ablationlab.evaluation.members import Member
from ablationlab.evaluation.posed import Answers, Marker, Posed
from ablationlab.evaluation.scoring import StackScorer
from ablationlab.evaluation.workshop import OpenRun, Workshop, opened, save

Seat = tuple[OpenRun, Member]
Waiting = list[tuple[OpenRun, Future[Answers]]]
#: Runs whose files are written at once, at the end.
WRITERS = 8


class Course:
    """One task on the device, those before it with the markers, those before these on disk.

    So nobody waits for anybody: while a GPU is at a task, the answers to the one before it are handed to the markers, and
    what was put off (`later`) is done: writing what is marked, summing up. Where there is no GPU nothing is put off.
    """

    def __init__(self, shop: Workshop) -> None:
        self.shop = shop
        self.runs: dict[str, OpenRun] = {}
        self._asked: Callable[[], Waiting] = list
        self._marking: Waiting = []
        self._before: Waiting = []
        self._later: deque[tuple[str, Callable[[], None]]] = deque()

    @property
    def puts_off(self) -> bool:
        """Whether there is a device that works while this process does something else."""
        return self.shop.device.type == "cuda"

    def admit(self, final: Member, half: Member | None) -> OpenRun:
        """A run that is to be scored, with what is known of it."""
        return self.runs.setdefault(final.run.id, opened(self.shop, final, half))

    def later(self, one: OpenRun, work: Callable[[], None]) -> None:
        """Do this for a run when the device is busy, or at the end; in the order in which it was asked for."""
        if self.puts_off:
            self._later.append((one.record.id, work))
        else:
            work()

    def put(self, desk: Marker, scorer: StackScorer, seats: Sequence[Seat], task: Posed) -> None:
        """Put a task to those of a stack who lack it: scored together, each run's answers marked by themselves."""
        lacking = [(number, *seat) for number, seat in enumerate(seats) if seat[0].lacks(task, seat[1])]
        if not lacking:
            return
        scoring = scorer.begin(task.packed) if task.packed is not None else None

        def hand_over() -> Waiting:
            while self._later and scoring is not None and not scoring.mark.reached:
                self._later.popleft()[1]()
            scores = scoring.finish() if scoring is not None else None
            waiting: Waiting = []
            for number, one, member in lacking:
                answers = _answers(self.shop, desk, scorer, task, number) if scores is None else scores.answers(number)
                waiting.append((one, desk.mark(task.name, member.run.id, member.weights, answers)))
            return waiting

        self._marking += self._asked()
        self._asked = hand_over

    def save_marked(self) -> None:
        """At the end of a group of tasks: write the group before it."""
        self._write(self._before)
        self._before, self._marking = self._marking, []

    def settle(self) -> None:
        """A unit is through: the last task to the markers; where there is no GPU to keep busy, everything to disk."""
        self._marking += self._asked()
        self._asked = list
        if not self.puts_off:
            self.end()

    def end(self) -> None:
        """Everything to disk."""
        last = self._asked()
        self._write(self._before + self._marking + last)
        self._asked, self._before, self._marking = list, [], []
        by_run: dict[str, list[Callable[[], None]]] = {}
        for run, work in self._later:
            by_run.setdefault(run, []).append(work)
        self._later.clear()
        # Most of it is sorting, packing and hashing, outside of the interpreter.
        with ThreadPoolExecutor(WRITERS) as writers:
            for done in [writers.submit(_in_order, works) for works in by_run.values()]:
                done.result()

    def _write(self, waiting: Waiting) -> None:
        """Take in what was marked, run by run."""
        by_run: dict[str, tuple[OpenRun, list[Future[Answers]]]] = {}
        for one, future in waiting:
            by_run.setdefault(one.record.id, (one, []))[1].append(future)
        for one, futures in by_run.values():
            self.later(one, partial(_collect, self.shop, one, futures))


def _in_order(works: Sequence[Callable[[], None]]) -> None:
    for work in works:
        work()


def _answers(shop: Workshop, desk: Marker, scorer: StackScorer, task: Posed, member: int) -> Any:
    """Of a task that asks for more than log-probabilities: through the harness's own interface."""
    from ablationlab.evaluation.harness import StackLM

    lm = StackLM(scorer, shop.text, scorer.stack.model.context)
    lm.current = member
    return desk.respond(task.name, lm)


def _collect(shop: Workshop, one: OpenRun, futures: Sequence[Future[Answers]]) -> None:
    """A run's answers into its record; those to another version of a task make way."""
    answers = [future.result() for future in futures]
    new = [answer.result for answer in answers]
    keys = {result.key for result in new}
    kept = [task for task in one.record.tasks if task.key not in keys]
    superseded = [task.key for task in one.record.tasks if task.key in keys]
    ordered = sorted([*kept, *new], key=lambda task: (task.weights, task.fewshot, task.task, task.template))
    one.record = one.record.model_copy(update={"tasks": tuple(ordered)})
    one.rows = pa.concat_tables([files.without(one.rows, superseded), *(answer.rows for answer in answers)])
    save(shop, one)
