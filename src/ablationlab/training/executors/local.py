"""Runs on this machine: in this process, or in several workers that each take the next stack that is free.

Every stack is guarded by a lock that the kernel releases when its holder dies, so two commands started on one study share
the work and never train a run twice. Ctrl-C stops every stack at a step boundary, with a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator

from ablationlab.core import processes
from ablationlab.core.errors import WorkerDied
from ablationlab.core.processes import Pool
from ablationlab.training.executors.job import (
    Event,
    Interrupts,
    Job,
    Listener,
    Texts,
    announcing,
    attempt,
    check_layout,
    train_open_stacks,
)

NAME = "local"


def execute(job: Job, workers: int, listen: Listener) -> bool:
    """Train everything that is not done; False if it was stopped by the user. Raises `RunFailure` if a stack failed."""

    def train(stacks: list[int], interrupts: Interrupts) -> list[Event]:
        return _train(job, stacks, min(workers, len(stacks)), listen, interrupts)

    check_layout(job)
    return train_open_stacks(job, listen, train)


class _Trainer:
    """What a worker does: it loads a text once, and trains one stack per call."""

    def __init__(self, job: Job) -> None:
        self.job, self.texts = job, Texts(job)

    def __call__(self, stack: int) -> Event:
        return attempt(self.job, stack, self.texts.of(stack), NAME, processes.send, processes.stop_requested)


def _train(job: Job, stacks: list[int], workers: int, listen: Listener, interrupts: Interrupts) -> list[Event]:
    """How every stack ended that was begun."""
    stopping = announcing(interrupts, listen)
    ends: list[Event] = []

    def calls() -> Iterator[tuple[int, tuple[int]]]:
        for stack in stacks:
            if stopping() or any(event.fatal for event in ends):
                return
            yield stack, (stack,)

    with Pool(_Trainer, (job,), processes=workers, name="training", inline=workers == 1) as pool:

        def poll() -> None:
            if stopping():
                pool.stop()

        for stack, future in pool.as_completed(calls(), listen=lambda _, event: listen(event), poll=poll):
            try:
                event = future.result()
            except WorkerDied as death:
                event = Event("failed", stack, f"its worker {death.how}")
            listen(event)
            ends.append(event)
    return ends
