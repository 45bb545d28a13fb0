"""Runs on this machine: one process, or several that each take the next stack that is free.

Every stack is guarded by a lock that the kernel releases when its holder dies, so two commands started on one study share
the work and never train a run twice. Ctrl-C stops every stack at a step boundary, with a checkpoint.
"""

from __future__ import annotations

import multiprocessing as mp
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, cast

from ablationlab.records.folders import ResultsFolder
from ablationlab.training.executors.job import (
    WAIT_SECONDS,
    Event,
    Interrupts,
    Job,
    Listener,
    Others,
    announcing,
    attempt,
    check_layout,
    corpus_of,
    open_stacks,
    refuse_failures,
)

NAME = "local"
POLL_SECONDS = 0.2


def execute(job: Job, workers: int, listen: Listener) -> bool:
    """Train everything that is not done; False if it was stopped by the user. Raises `RunFailure` if a stack failed."""
    check_layout(job)
    results = ResultsFolder(job.folder)
    failures: dict[int, str] = {}
    others = Others(results, listen)
    with Interrupts() as interrupts:
        while not interrupts.stopping:
            left = [stack for stack in open_stacks(job.plan, results) if stack not in failures]
            if not left:
                break
            todo = others.leave_free(left)
            if not todo:
                time.sleep(WAIT_SECONDS)
                continue
            crew = _in_process if min(workers, len(todo)) == 1 else _in_processes
            ends = crew(job, todo, min(workers, len(todo)), listen, interrupts)
            failures |= {event.stack: str(event.payload) for event in ends if event.kind == "failed"}
            if any(event.fatal for event in ends):
                break
    if interrupts.stopping and not failures:
        return False
    refuse_failures(job.plan, failures)
    return True


def _in_process(job: Job, todo: list[int], count: int, listen: Listener, interrupts: Interrupts) -> list[Event]:
    corpus, ends = corpus_of(job), []
    for stack in todo:
        if interrupts.stopping:
            break
        ends.append(attempt(job, stack, corpus, NAME, listen, announcing(interrupts, listen)))
        listen(ends[-1])
        if ends[-1].fatal:
            break
    return ends


def _worker(job: Job, channel: Connection, stop: Any) -> None:
    # Born deaf to SIGINT and SIGTERM: a terminal's Ctrl-C, or a stop of the whole group, is the parent's to hear.
    parent = mp.parent_process()

    def should_stop() -> bool:
        if parent is not None and not parent.is_alive():
            raise EOFError
        return bool(stop.is_set())

    try:
        corpus = corpus_of(job)
        while (stack := channel.recv()) is not None:
            channel.send(attempt(job, stack, corpus, NAME, channel.send, should_stop))
    except (BrokenPipeError, EOFError):
        return  # nobody is left to report to; what was checkpointed is on disk


def _in_processes(job: Job, todo: list[int], count: int, listen: Listener, interrupts: Interrupts) -> list[Event]:
    """Spawned workers, each with a channel of its own: one that is killed breaks nobody else's."""
    context = mp.get_context("spawn")
    crew: dict[Connection, tuple[BaseProcess, int]] = {}
    waiting: deque[int] = deque(todo)
    ends: list[Event] = []
    stop, stopping = context.Event(), announcing(interrupts, listen)
    for _ in range(count):
        ours, theirs = context.Pipe()
        process: BaseProcess = context.Process(target=_worker, args=(job, theirs, stop), daemon=True)
        with interrupts.ignored():
            process.start()
        theirs.close()
        stack = waiting.popleft()
        ours.send(stack)
        crew[ours] = (process, stack)
    try:
        _attend(crew, waiting, ends, listen, stop, stopping)
    finally:
        for process, _ in crew.values():  # an error or a second Ctrl-C: a killed worker loses no finished work
            process.kill()
            process.join()
    return ends


def _attend(
    crew: dict[Connection, tuple[BaseProcess, int]],
    waiting: deque[int],
    ends: list[Event],
    listen: Listener,
    stop: Any,
    stopping: Callable[[], bool],
) -> None:
    """Hear the workers and hand out stacks until everyone has gone home."""
    while crew:
        if stopping():
            stop.set()
        for channel in cast("list[Connection]", wait(list(crew), timeout=POLL_SECONDS)):
            process, stack = crew[channel]
            try:
                event = channel.recv()
            except (EOFError, OSError):
                process.join()
                event = Event("failed", stack, _death(process.exitcode or 0))
            listen(event)
            if event.kind == "progress":
                continue
            ends.append(event)
            if event.fatal:
                waiting.clear()
            if process.is_alive() and waiting and not stopping():
                stack = waiting.popleft()
                channel.send(stack)
                crew[channel] = (process, stack)
            else:
                _dismiss(channel, process)
                del crew[channel]


def _dismiss(channel: Connection, process: BaseProcess) -> None:
    with suppress(BrokenPipeError, OSError):
        channel.send(None)
    process.join()
    channel.close()


def _death(code: int) -> str:
    if code < 0:
        return f"its worker was killed by signal {-code} (out of memory, or by hand?)"
    return f"its worker ended early, with exit code {code}"
