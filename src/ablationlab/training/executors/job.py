"""What every executor needs: the job, the events it sends, and how one stack is trained wherever it is.

A stack is guarded by a lock that the kernel releases when its holder dies, so no run is ever trained twice at once, whoever
started it and with which executor.
"""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

from ablationlab.core.code import place_of
from ablationlab.core.errors import AblationLabError, OutOfMemory, RunFailure, StorageError
from ablationlab.core.paths import real_path
from ablationlab.records.environment import Drift
from ablationlab.records.plan import Plan
from ablationlab.records.settings import DataConfig
from ablationlab.records.storage import Lock, ResultsFolder, StoredValue
from ablationlab.study.variants import arm_data

if TYPE_CHECKING:
    from ablationlab.data.corpus import TokenizedCorpus
    from ablationlab.training.distributed.ranks import Ranks
    from ablationlab.training.progress import Progress

# Between two looks at stacks that another command holds.
WAIT_SECONDS = 1.0
#: Signals that come within it are one request to stop.
SAME_MOMENT_SECONDS = 1.0
DEBUG_VARIABLE = "ABLATIONLAB_DEBUG"  # set by --debug; reaches the workers with their environment


EventKind = Literal[
    "progress",  # payload: a `Progress`
    "done",
    "stopped",  # at a step boundary, with a checkpoint
    "failed",  # payload: why
    "retry",  # its worker died; payload: how
    "busy",  # another process is training it
    "elsewhere",  # another process has trained it
    "waiting",  # another process trains all that is left; payload: which
    "resources",  # the cluster has no room now; payload: what is needed
    "stopping",  # the user asked for a stop
]


@dataclass(frozen=True)
class Event:
    """What happened to a stack; *stack* is -1 where it concerns all."""

    kind: EventKind
    stack: int
    payload: Any = None
    fatal: bool = False  # no other stack would fare better: the disk is full, say


Listener = Callable[[Event], None]


@dataclass(frozen=True)
class Job:
    """All that a worker needs; it travels to spawned processes."""

    plan: Plan
    folder: Path
    data: DataConfig  # the study's, where it is found here; variants may change it
    drift: tuple[Drift, ...] = ()
    accept_drift: bool = False
    agreed: frozenset[str] = frozenset()  # hashes of code that may run: what the user was asked about

    def data_of(self, stack: int) -> DataConfig:
        """The text of the runs of a stack, which is one."""
        return arm_data(self.data, self.plan.variants[self.plan.run(self.plan.stacks[stack][0]).variant])


class JobFile(StoredValue):
    """A job as JSON, for a process that is not spawned by this one: it reads the plan from the results folder."""

    folder: str
    plan_hash: str
    data: DataConfig
    drift: tuple[Drift, ...] = ()
    accept_drift: bool
    agreed: tuple[str, ...] = ()
    stacks: tuple[int, ...] = ()  # those to train, where the launcher chooses them
    debug: bool = False

    @classmethod
    def of(cls, job: Job, stacks: Sequence[int] = ()) -> JobFile:
        return cls(
            folder=str(real_path(job.folder)),
            plan_hash=job.plan.plan_hash,
            data=job.data,
            drift=job.drift,
            accept_drift=job.accept_drift,
            agreed=tuple(sorted(job.agreed)),
            stacks=tuple(stacks),
            debug=bool(os.environ.get(DEBUG_VARIABLE)),
        )

    def job(self) -> Job:
        plan = Plan.of(ResultsFolder(Path(self.folder)))
        return Job(plan, Path(self.folder), self.data, self.drift, self.accept_drift, frozenset(self.agreed))


def open_stacks(plan: Plan, results: ResultsFolder) -> list[int]:
    """Stacks that still have a run without a result, the longest first: what several workers end with is then short."""
    left = [n for n, stack in enumerate(plan.stacks) if not all(results.run(run_id).done for run_id in stack)]
    if plan.study.trainer is not None:  # what its runs cost, only it knows
        return left
    return sorted(left, key=lambda n: -plan.run(plan.stacks[n][0]).budget.matmul_flops)


def check_layout(job: Job, layout: tuple[str, int, bool] = ("none", 1, False)) -> None:
    """Refuse, before any process is started and once for all runs, what each of them would refuse: a study whose runs began
    on another number of processes, or in another layout."""
    from ablationlab.training.run_state import layout_drift

    results = ResultsFolder(job.folder)
    for stack in open_stacks(job.plan, results):
        folders = [results.run(run_id) for run_id in job.plan.stacks[stack]]
        layout_drift(job.plan, results, folders, job.plan.execution.over(layout), accept=job.accept_drift)


class Others:
    """Other commands at work on the same study: a stack that one of them holds is left to it, and waited for."""

    def __init__(self, results: ResultsFolder, listen: Listener) -> None:
        self.results, self.listen = results, listen
        self._waiting_for: list[str] = []

    def leave_free(self, left: Sequence[int]) -> list[int]:
        """Those of *left* that nobody else holds; where there is none, says whom we wait for, once."""
        locks = {stack: Lock(self.results.stack_lock(stack)) for stack in left}
        free = [stack for stack in left if not locks[stack].held_elsewhere()]
        if left and not free:
            holders = sorted({lock.holder() for lock in locks.values()})
            if holders != self._waiting_for:
                self._waiting_for = holders
                self.listen(Event("waiting", left[0], ", ".join(holders)))
        return free


def refuse_failures(plan: Plan, failures: dict[int, str]) -> None:
    """Raise `RunFailure` with every stack that was not trained, if there is one."""
    if failures:
        runs: dict[str, list[str]] = {}  # what happened to several in the same words is said once
        for stack, text in failures.items():
            runs.setdefault(text, []).extend(plan.stacks[stack])
        lines = [f"{', '.join(members)}: {text}" for text, members in runs.items()]
        again = "run the same command again to continue"
        mended = [code.name for code in plan.study.use if any(f"{code.name}, line " in line for line in lines)]
        if mended:
            again = (
                f"the plan is sealed with {', '.join(mended)} as it was, so a corrected file is another study: give it "
                "another folder with --out"
            )
        raise RunFailure(f"some runs were not trained; {again}\n  " + "\n  ".join(lines))


class Interrupts:
    """While it lasts, Ctrl-C and SIGTERM ask for a stop; a second Ctrl-C gives up at once.

    Two in the same moment are one: `timeout` and some schedulers signal a process and then its whole group.
    """

    def __init__(self) -> None:
        self.stopping = False
        self._asked_at = 0.0
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
        now = time.monotonic()
        if not self.stopping:
            self.stopping, self._asked_at = True, now  # nothing more inside a handler: the loops look at it
        elif number == signal.SIGINT and now - self._asked_at > SAME_MOMENT_SECONDS:
            raise KeyboardInterrupt


def announcing(interrupts: Interrupts, listen: Listener) -> Callable[[], bool]:
    """A function that says whether to stop, and sends an event the first time."""
    announced = False

    def stopping() -> bool:
        nonlocal announced
        if interrupts.stopping and not announced:
            announced = True
            listen(Event("stopping", -1))
        return interrupts.stopping

    return stopping


class Texts:
    """Corpora by their settings, each loaded once by this process; the one used last is kept, and the study's own."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._loaded: dict[str, TokenizedCorpus] = {}

    def of(self, stack: int) -> TokenizedCorpus | None:
        """The text of a stack; None where the user's own trainer has it."""
        if self.job.plan.study.trainer is not None:
            return None
        from ablationlab.data.corpus import load_corpus

        data = self.job.data_of(stack)
        key = data.model_dump_json()
        if key not in self._loaded:
            own = self.job.data.model_dump_json()
            self._loaded = {kept: text for kept, text in self._loaded.items() if kept == own}
            self._loaded[key] = load_corpus(data)
        return self._loaded[key]


def train_stack(
    job: Job,
    stack: int,
    corpus: TokenizedCorpus | None,
    executor: str,
    send: Listener,
    should_stop: Callable[[], bool],
    lock: Lock,
    ranks: Ranks | None = None,
) -> Literal["done", "stopped"]:
    """Train one stack, whose lock is held, from its last checkpoint."""
    from ablationlab.training.progress import Stopped

    def report(progress: Progress) -> None:
        send(Event("progress", stack, progress))

    try:
        if corpus is None:  # the user's own trainer has its text
            from ablationlab.training.own_trainer import train_run

            train_run(job, stack, executor=executor, lock=lock, report=report, should_stop=should_stop)
        else:
            from ablationlab.training.loop import StackTrainer

            trainer = StackTrainer(
                job, stack, corpus, executor=executor, ranks=ranks, report=report, should_stop=should_stop
            )
            trainer.train()
    except Stopped:
        return "stopped"
    return "done"


def take(job: Job, stack: int, lock: Lock) -> Literal["taken", "busy", "elsewhere"]:
    """Take a stack's lock, unless another process has it, or has trained the stack meanwhile."""
    if not lock.acquire():
        return "busy"
    return "taken" if stack in open_stacks(job.plan, ResultsFolder(job.folder)) else "elsewhere"


def train_open_stacks(job: Job, listen: Listener, train: Callable[[list[int], Interrupts], list[Event]]) -> bool:
    """Have *train* take the stacks that nobody else holds until none is left, and wait for those that others hold.

    False if it was stopped by the user; raises `RunFailure` if a stack failed. *train* returns how each stack ended.
    """
    results = ResultsFolder(job.folder)
    failures: dict[int, str] = {}
    others = Others(results, listen)
    with Interrupts() as interrupts:
        while not interrupts.stopping:
            left = [stack for stack in open_stacks(job.plan, results) if stack not in failures]
            if not left:
                break
            free = others.leave_free(left)
            if not free:  # looking costs nothing; processes are started when there is something for them to do
                time.sleep(WAIT_SECONDS)
                continue
            ends = train(free, interrupts)
            failures |= {event.stack: str(event.payload) for event in ends if event.kind == "failed"}
            if any(event.fatal for event in ends):
                break
    refuse_failures(job.plan, failures)
    return not interrupts.stopping


def attempt(
    job: Job,
    stack: int,
    corpus: TokenizedCorpus | None,
    executor: str,
    send: Listener,
    should_stop: Callable[[], bool],
) -> Event:
    """Train one stack; whatever goes wrong with it is returned, and does not reach the other stacks."""
    lock = Lock(ResultsFolder(job.folder).stack_lock(stack))
    try:
        state = take(job, stack, lock)
        return Event(
            train_stack(job, stack, corpus, executor, send, should_stop, lock) if state == "taken" else state, stack
        )
    except AblationLabError as error:
        return Event("failed", stack, str(error), fatal=isinstance(error, StorageError | OutOfMemory))
    except (BrokenPipeError, EOFError):
        raise  # the parent is gone
    except Exception as error:
        if os.environ.get(DEBUG_VARIABLE):
            return Event("failed", stack, traceback.format_exc())
        place = place_of(error)
        if place is not None:
            return Event("failed", stack, f"{place}: {type(error).__name__}: {error}")
        return Event("failed", stack, f"{type(error).__name__}: {error} (a bug in ablationlab? --debug shows where)")
    finally:
        lock.release()
