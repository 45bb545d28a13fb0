"""Runs on a Ray cluster: every stack is a task with its own cores or GPU, retried from its checkpoint when its worker dies.

Between processes travel the name of a function (of `ray_nodes` or `ray_worker`) and plain data: texts (JSON) and numbers.
What is trained a worker reads from plan.lock on the shared folder, and its code, libraries, processor and device must be
those of the plan: every node is asked before the first task, and every task asks itself again.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from ablationlab.records.folders import ResultsFolder
from ablationlab.records.storage import Lock
from ablationlab.training.executors.job import (
    DEBUG_VARIABLE,
    Event,
    Interrupts,
    Job,
    Listener,
    announcing,
    check_layout,
    open_stacks,
    refuse_failures,
)
from ablationlab.training.executors.ray_connection import cluster, first_line
from ablationlab.training.executors.ray_nodes import check_resources, inspect, needs_of
from ablationlab.training.executors.ray_worker import Desk, train_stack

POLL_SECONDS = 0.2
# How often a worker hands over its progress and asks whether to stop.
REPORT_SECONDS = 0.5
# Before a stack that another process holds is asked for again. On NFS a dead node's lock lasts as long as the server's lease.
BUSY_SECONDS = 5.0
# Deaths of a stack's worker in a row without a later checkpoint between them.
MOST_DEATHS = 4
# After that long without a free worker, the user is told what is waited for.
PATIENCE_SECONDS = 15.0


def execute(job: Job, address: str | None, workers: int | None, listen: Listener) -> bool:
    """Train everything that is not done; False if it was stopped by the user. Raises `RunFailure` if a stack failed.

    Without *address* a cluster is started on this machine and ended afterwards; *workers* bounds the stacks in training.
    """
    job = replace(job, folder=job.folder.resolve())
    check_layout(job)
    with cluster(job, address, workers) as ray, Interrupts() as interrupts:
        check_resources(ray, job.plan)
        inspect(ray, job)
        return _Round(ray, job, workers, listen, announcing(interrupts, listen)).run()


class _Round:
    """Hands out stacks, hears their workers, and hands out again what a death or another process left undone."""

    def __init__(self, ray: Any, job: Job, workers: int | None, listen: Listener, stopping: Callable[[], bool]) -> None:
        self.ray, self.job, self.listen, self.stopping = ray, job, listen, stopping
        self.results = ResultsFolder(job.folder)
        self.waiting = deque(open_stacks(job.plan, self.results))
        self.most = workers or len(self.waiting)
        self.running: dict[Any, int] = {}
        self.later: list[tuple[float, int]] = []  # stacks that another process holds, and when to ask again
        self.failures: dict[int, str] = {}
        self.deaths: dict[int, int] = {}
        self.started: dict[int, int] = {}
        self.begun: set[int] = set()  # stacks whose worker has spoken
        self.gave_up = False
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self.desk = ray.remote(Desk).options(num_cpus=0, scheduling_strategy=here).remote()
        needs = needs_of(job.plan)
        self.task = ray.remote(train_stack).options(num_cpus=needs["CPU"], num_gpus=needs.get("GPU", 0), max_retries=0)
        self.letter = json.dumps(
            {
                "folder": str(job.folder),
                "plan": job.plan.plan_hash,
                "data": job.data.model_dump(mode="json"),
                "accept_drift": job.accept_drift,
                "every": REPORT_SECONDS,
                "debug": bool(os.environ.get(DEBUG_VARIABLE)),
            }
        )

    def run(self) -> bool:
        """Until nothing is left, or nothing more can be done."""
        quiet_since, told = time.monotonic(), False
        while self.running or self.waiting or self.later:
            stop = self.stopping() or self.gave_up
            if stop:
                self.waiting.clear()
                self.later.clear()
            self._hand_out()
            if self.running:
                done, _ = self.ray.wait(list(self.running), timeout=POLL_SECONDS)
            else:
                done = []
                time.sleep(POLL_SECONDS)
            heard = self._hear(stop)
            for one in done:
                self.begun.discard(self.running[one])
                self._end(one, self.running.pop(one))
            if heard or done or self.begun or not self.running:
                quiet_since = time.monotonic()
            if not told and time.monotonic() - quiet_since > PATIENCE_SECONDS and self._nothing_free():
                told = True
                self.listen(
                    Event("resources", -1, " and ".join(f"{v:g} {k}" for k, v in needs_of(self.job.plan).items()))
                )
        if self.stopping() and not self.failures:
            return False
        refuse_failures(self.job.plan, self.failures)
        return True

    def _hand_out(self) -> None:
        now = time.monotonic()
        self.waiting += [stack for when, stack in self.later if when <= now]
        self.later = [(when, stack) for when, stack in self.later if when > now]
        while self.waiting and len(self.running) < self.most:
            stack = self.waiting.popleft()
            self.running[self.task.remote(self.letter, stack, self.desk)] = stack

    def _nothing_free(self) -> bool:
        free = self.ray.available_resources()
        return any(free.get(key, 0.0) < value for key, value in needs_of(self.job.plan).items())

    def _hear(self, stop: bool) -> bool:
        letters = self.ray.get(self.desk.read.remote(stop))
        for letter in letters:
            said = SimpleNamespace(**json.loads(letter))
            if hasattr(said, "begun"):
                self.begun.add(said.stack)
                continue
            if said.start > self.started.get(said.stack, -1):  # it went on from a later checkpoint than last time
                self.started[said.stack] = said.start
                self.deaths[said.stack] = 0
            self.listen(Event("progress", said.stack, said))
        return bool(letters)

    def _end(self, answer: Any, stack: int) -> None:
        try:
            ended = json.loads(self.ray.get(answer))
        except self.ray.exceptions.RayError as error:
            self._died(stack, error)
            return
        event = Event(ended["kind"], stack, ended.get("payload"), bool(ended.get("fatal")))
        if event.kind == "busy":
            holder = Lock(self.results.stack_lock(stack)).holder()
            if stack not in {held for _, held in self.later}:
                self.listen(Event("waiting", stack, holder))
            self.later.append((time.monotonic() + BUSY_SECONDS, stack))
            return
        self.listen(event)
        if event.kind == "failed":
            self.failures[stack] = str(event.payload)
            self.gave_up |= event.fatal

    def _died(self, stack: int, error: Exception) -> None:
        """A worker or its node is gone: again, from the checkpoint, unless that only repeats itself."""
        if isinstance(error, self.ray.exceptions.RayTaskError):  # it raised: a bug, or a worker of another version
            self._fail(stack, f"its worker failed: {first_line(error)}")
            return
        self.deaths[stack] = self.deaths.get(stack, 0) + 1
        what = _death(self.ray, error)
        if self.deaths[stack] >= MOST_DEATHS:
            self._fail(stack, f"{what}, {MOST_DEATHS} times at the same checkpoint")
        elif self.stopping() or self.gave_up:
            self.listen(Event("stopped", stack))
        else:
            self.listen(Event("retry", stack, what))
            self.waiting.append(stack)

    def _fail(self, stack: int, why: str) -> None:
        self.failures[stack] = why
        self.listen(Event("failed", stack, why))


def _death(ray: Any, error: Exception) -> str:
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return "its worker was ended because its node ran out of memory"
    if isinstance(error, ray.exceptions.NodeDiedError):
        return "its node died"
    return "its worker died"
