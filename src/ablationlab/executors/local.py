"""Runs on this machine: one process, or several that each take the next stack that is free.

Every stack is guarded by a lock that the kernel releases when its holder dies, so two commands started on one study share
the work and never train a run twice. Ctrl-C stops every stack at a step boundary, with a checkpoint.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any, cast

from ablationlab.config import DataConfig
from ablationlab.errors import AblationLabError, OutOfMemory, RunFailure, StorageError
from ablationlab.records import Plan, ResultsFolder
from ablationlab.storage import Lock

NAME = "local"
DEBUG_VARIABLE = "ABLATIONLAB_DEBUG"  # set by --debug; reaches the workers with their environment
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Event:
    """A message from a worker: ``kind`` is progress, done, elsewhere (done by another process), busy (another
    process is at it), failed or stopped."""

    kind: str
    stack: int
    payload: Any = None
    fatal: bool = False  # no other stack can do better: the disk is full, say


Listener = Callable[[Event], None]


@dataclass(frozen=True)
class Job:
    """All that a worker needs; it travels to spawned processes."""

    plan: Plan
    folder: Path
    data: DataConfig
    drift: tuple[str, ...] = ()
    accept_drift: bool = False


def open_stacks(plan: Plan, results: ResultsFolder) -> list[int]:
    """Stacks that still have a run without a result."""
    return [n for n, stack in enumerate(plan.stacks) if not all(results.run(run_id).done for run_id in stack)]


def execute(job: Job, workers: int, listen: Listener) -> bool:
    """Train everything that is not done; False if it was stopped by the user. Raises `RunFailure` if a stack failed."""
    results = ResultsFolder(job.folder)
    failures: dict[int, str] = {}
    waiting_for: list[str] = []
    with Interrupts() as interrupts:
        while not interrupts.stopping:
            left = [stack for stack in open_stacks(job.plan, results) if stack not in failures]
            if not left:
                break
            locks = {stack: Lock(results.stack_lock(stack)) for stack in left}
            todo = [stack for stack in left if not locks[stack].held_elsewhere()]
            if not todo:  # all that is left is being trained by another process: wait for it
                holders = sorted({lock.holder() for lock in locks.values()})
                if holders != waiting_for:
                    waiting_for = holders
                    listen(Event("waiting", left[0], ", ".join(holders)))
                time.sleep(POLL_SECONDS * 5)
                continue
            crew = _in_process if min(workers, len(todo)) == 1 else _in_processes
            ends = crew(job, todo, min(workers, len(todo)), listen, interrupts)
            failures |= {event.stack: str(event.payload) for event in ends if event.kind == "failed"}
            if any(event.fatal for event in ends):
                break
    if interrupts.stopping and not failures:
        return False
    if failures:
        lines = [f"{', '.join(job.plan.stacks[stack])}: {text}" for stack, text in failures.items()]
        raise RunFailure("some runs were not trained; run the same command again to go on\n  " + "\n  ".join(lines))
    return True


class Interrupts:
    """While it lasts, Ctrl-C and SIGTERM ask for a stop; a second Ctrl-C gives up at once."""

    def __init__(self) -> None:
        self.stopping = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        except ValueError:  # not the main thread (a notebook's executor, say): its owner handles signals
            self._before = {}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.stopping and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.stopping = True  # nothing more inside a handler: the loops look at it

    @contextmanager
    def ignored(self) -> Iterator[None]:
        """Children started in here are born deaf to both signals, until they say otherwise."""
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)
        try:
            yield
        finally:
            for number in self._before:
                signal.signal(number, self._ask)


@contextmanager
def _stack_lock(results: ResultsFolder, stack: int) -> Iterator[Lock | None]:
    lock = Lock(results.stack_lock(stack))
    held = lock.acquire()
    try:
        yield lock if held else None
    finally:
        lock.release()


def _train(job: Job, stack: int, corpus: Any, send: Listener, should_stop: Callable[[], bool]) -> str:
    """Train one stack under its lock; returns how it ended."""
    from ablationlab.environment import current
    from ablationlab.training.loop import StackTrainer, Stopped

    results = ResultsFolder(job.folder)
    with _stack_lock(results, stack) as lock:
        if lock is None:
            return "busy"
        if stack not in open_stacks(job.plan, results):
            return "elsewhere"
        try:
            StackTrainer(
                job.plan,
                stack,
                results,
                corpus,
                executor=NAME,
                environment=current(),
                drift=job.drift,
                accept_drift=job.accept_drift,
                report=lambda progress: send(Event("progress", stack, progress)),
                should_stop=should_stop,
            ).train()
        except Stopped:
            return "stopped"
    return "done"


def _corpus(job: Job) -> Any:
    from ablationlab.data.corpus import load_corpus

    return load_corpus(job.data)


def _attempt(job: Job, stack: int, corpus: Any, send: Listener, should_stop: Callable[[], bool]) -> Event:
    """Train one stack; whatever goes wrong with it is told, and does not reach the other stacks."""
    try:
        return Event(_train(job, stack, corpus, send, should_stop), stack)
    except AblationLabError as error:
        return Event("failed", stack, str(error), fatal=isinstance(error, StorageError | OutOfMemory))
    except (BrokenPipeError, EOFError):
        raise  # the parent is gone
    except Exception as error:
        if os.environ.get(DEBUG_VARIABLE):
            return Event("failed", stack, traceback.format_exc())
        return Event("failed", stack, f"{type(error).__name__}: {error} (a bug in ablationlab? --debug shows where)")


def _in_process(job: Job, todo: list[int], count: int, listen: Listener, interrupts: Interrupts) -> list[Event]:
    corpus, ends = _corpus(job), []
    for stack in todo:
        if interrupts.stopping:
            break
        ends.append(_attempt(job, stack, corpus, listen, _announcing(interrupts, listen)))
        listen(ends[-1])
        if ends[-1].fatal:
            break
    return ends


def _announcing(interrupts: Interrupts, listen: Listener) -> Callable[[], bool]:
    """Whether to stop; says so the first time."""
    said: list[bool] = []

    def stopping() -> bool:
        if interrupts.stopping and not said:
            said.append(True)
            listen(Event("stopping", -1))
        return interrupts.stopping

    return stopping


def _worker(job: Job, channel: Connection, stop: Any) -> None:
    # Born deaf to SIGINT and SIGTERM: a terminal's Ctrl-C, or a stop of the whole group, is the parent's to hear.
    parent = mp.parent_process()

    def should_stop() -> bool:
        if parent is not None and not parent.is_alive():
            raise EOFError
        return bool(stop.is_set())

    try:
        corpus = _corpus(job)
        while (stack := channel.recv()) is not None:
            channel.send(_attempt(job, stack, corpus, channel.send, should_stop))
    except (BrokenPipeError, EOFError):
        return  # nobody is left to report to; what was checkpointed is on disk


def _in_processes(job: Job, todo: list[int], count: int, listen: Listener, interrupts: Interrupts) -> list[Event]:
    """Spawned workers, each with a channel of its own: one that is killed breaks nobody else's."""
    context = mp.get_context("spawn")
    crew: dict[Connection, tuple[BaseProcess, int]] = {}
    waiting: deque[int] = deque(todo)
    ends: list[Event] = []
    stop, stopping = context.Event(), _announcing(interrupts, listen)
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
