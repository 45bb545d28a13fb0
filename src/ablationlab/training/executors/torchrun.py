"""One run at a time, over several processes: torchrun starts them, DDP or FSDP2 trains, the records are those of any run.

`execute` launches torchrun's elastic agent as a child and follows what the ranks report; `work` is what each rank does. They
share a folder with a few small files: a lock that the launcher holds while it lives, a request to stop, and a log of events
per rank. The agent restarts nothing: the checkpoints are on disk, and the same command continues from there.

    torchrun --standalone --nproc-per-node N -m ablationlab.training.executors.torchrun JOB.json  (what `execute` launches)
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import IO, Any

from ablationlab.core.code import place_of
from ablationlab.core.errors import AblationLabError, OutOfMemory, PlanError, StorageError
from ablationlab.core.processes import wait_or_kill
from ablationlab.model.rules import SHIPPED
from ablationlab.records.settings import Study
from ablationlab.records.storage import Lock, ResultsFolder
from ablationlab.study.code import activate_code
from ablationlab.study.plan import batch_refusal, optimizer_refusal, probes_refusal
from ablationlab.study.variants import variants_of
from ablationlab.training.executors.job import (
    DEBUG_VARIABLE,
    WAIT_SECONDS,
    Event,
    Interrupts,
    Job,
    JobFile,
    Listener,
    Others,
    Texts,
    check_layout,
    open_stacks,
    take,
    train_open_stacks,
    train_stack,
)

NAME = "torchrun"
POLL_SECONDS = 0.1
# After this long without an answer to a request to stop, the agent is told to end its ranks.
PATIENCE_SECONDS = 600.0
# Two lines of the table that the agent prints at the end for every rank that failed.
_EXIT_CODE = re.compile(r"^\s*rank\s+: (\d+) [^\n]*\n\s*exitcode\s+: (-?\d+)", re.MULTILINE)


def check(study: Study, processes: int) -> None:
    """Whether torchrun can train this study with that many processes; `PlanError` says what to change."""
    if processes < 1:
        raise PlanError(f"--nproc {processes}: at least one process is needed")
    if study.execution.parallel is None:
        raise PlanError(
            "--executor torchrun: the study does not say how one run is spread over processes; set execution.parallel = "
            "'ddp' (a whole copy each) or 'fsdp' (a shard each); that is another plan, so give it a folder: "
            "--set execution.parallel=ddp --out FOLDER"
        )
    for name, variant in variants_of(study).items():
        for regime in study.regime_names():
            _, training = variant.arm(*study.in_regime(regime))
            if training.optimizer not in SHIPPED and study.execution.parallel == "fsdp":
                raise PlanError(
                    f"variant {name!r}: training.optimizer = {training.optimizer!r} is an update rule of your own, which "
                    "sees whole parameters, and execution.parallel = 'fsdp' leaves them in no process. Use 'ddp', or "
                    "--executor local or ray"
                )
    text = probes_refusal(study) or optimizer_refusal(study) or batch_refusal(study, processes)
    if text is not None:
        raise PlanError(text)


def execute(job: Job, processes: int, listen: Listener) -> bool:
    """Train everything that is not done, one run after another; False if it was stopped by the user."""
    study = job.plan.study

    def train(stacks: list[int], interrupts: Interrupts) -> list[Event]:
        ends = _launch(job, stacks, processes, listen, lambda: interrupts.stopping)
        for event in ends:
            if event.kind == "failed":
                listen(event)
        return ends

    check(study, processes)
    check_layout(job, (str(study.execution.parallel), processes, study.execution.activation_checkpointing))
    return train_open_stacks(job, listen, train)


def _launch(job: Job, stacks: list[int], processes: int, listen: Listener, stopping: Callable[[], bool]) -> list[Event]:
    """One life of the elastic agent; how every stack that it came to has ended."""
    with tempfile.TemporaryDirectory(prefix="ablationlab-torchrun-") as name:
        place = Path(name)
        (place / "job.json").write_text(JobFile.of(job, stacks).model_dump_json())
        lock = Lock(place / "launcher")
        lock.acquire()
        arguments = ["--standalone", "--nproc-per-node", str(processes), "--max-restarts", "0", "--module"]
        with (place / "output").open("wb") as output:
            # In a session of its own: a terminal's Ctrl-C reaches us alone, and we pass it on as a request to stop.
            agent = subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", *arguments, __name__, str(place / "job.json")],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": str(job.plan.execution.threads),
                    # The modules of this process, and none of the current folder, in the agent and in its ranks.
                    "PYTHONSAFEPATH": "1",
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                },
            )
            try:
                ends = _follow(agent, place, listen, stopping)
            finally:
                if agent.poll() is None:  # an error of ours, or a second Ctrl-C
                    _end(agent)
                lock.release()
        return ends if agent.returncode == 0 else [*ends, _failure(place, processes, stacks, ends)]


def _follow(agent: subprocess.Popen[bytes], place: Path, listen: Listener, stopping: Callable[[], bool]) -> list[Event]:
    """Pass on what the leader reports until the agent has ended."""
    ends: list[Event] = []
    asked_at: float | None = None
    with _Tail(place / "events-0") as tail:
        while True:
            ended = agent.poll() is not None  # looked at before reading, so that no last line is missed
            for event in tail.read():
                if event.kind == "failed":  # reported when the agent, which knows of every rank, has ended
                    continue
                listen(event)
                if event.kind in ("done", "elsewhere", "busy", "stopped"):
                    ends.append(event)
            if ended:
                return ends
            if stopping() and asked_at is None:
                asked_at = time.monotonic()
                (place / "stop").touch()
                listen(Event("stopping", -1))
            if asked_at is not None and time.monotonic() - asked_at > PATIENCE_SECONDS:
                _end(agent)
            time.sleep(POLL_SECONDS)


def _end(agent: subprocess.Popen[bytes]) -> None:
    """End the agent, which ends its ranks; and the whole session, should it not."""
    agent.terminate()
    wait_or_kill(agent, 40)


def _failure(place: Path, processes: int, stacks: list[int], ends: list[Event]) -> Event:
    """Why the ranks did not come to their end: a signal, else the error of ours that one of them met, else any error."""
    finished = {event.stack for event in ends if event.kind in ("done", "elsewhere", "busy")}
    stack = next((stack for stack in stacks if stack not in finished), stacks[-1])
    output = (place / "output").read_text(errors="replace")
    signals = killed(output)
    failures = [event for rank in range(processes) for event in _failures(place / f"events-{rank}")]
    if signals:
        rank, number = signals[0]
        text = f"rank {rank} was killed by signal {number} (out of memory, or by hand?); the others were stopped"
        return Event("failed", stack, text)
    for event in sorted(failures, key=lambda event: not event.payload["ours"]):
        if event.payload["refused"]:
            raise PlanError(event.payload["text"])
        return Event("failed", stack, event.payload["text"], fatal=event.fatal)
    last = [line for line in output.splitlines() if line.strip()][-8:]
    return Event("failed", stack, "torchrun failed before any rank could say why:\n    " + "\n    ".join(last))


def killed(output: str) -> list[tuple[int, int]]:
    """Ranks and the signals that ended them, from the agent's output; SIGTERM is the agent's own doing."""
    ends = [(int(rank), -int(code)) for rank, code in _EXIT_CODE.findall(output)]
    return [(rank, number) for rank, number in ends if number > 0 and number != signal.SIGTERM]


def _failures(path: Path) -> list[Event]:
    with _Tail(path) as tail:
        return [event for event in tail.read() if event.kind == "failed"]


class _Tail:
    """Reads events from a file that another process appends to, whole lines only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] | None = None
        self._rest = b""

    def __enter__(self) -> _Tail:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def read(self) -> Iterator[Event]:
        from ablationlab.training.progress import Progress

        if self._file is None:
            if not self.path.exists():
                return
            self._file = self.path.open("rb")
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        for line in lines:
            fields = json.loads(line)
            if fields["kind"] == "progress":
                fields["payload"] = Progress(**fields["payload"])
            yield Event(**fields)


# ---- in a rank ----------------------------------------------------------------------------------------------------------


def execute_in_rank(job: Job, ranks: Any, listen: Listener, should_stop: Callable[[], bool]) -> bool:
    """`execute` for a process that is itself a rank of the user's torchrun; False if it was stopped."""
    results = ResultsFolder(job.folder)
    others = Others(results, listen)

    def choose() -> list[int] | None:
        left = open_stacks(job.plan, results)
        return (others.leave_free(left) or None) if left else []

    return work(job, choose, ranks, listen, should_stop)


def work(
    job: Job,
    choose: Callable[[], list[int] | None],
    ranks: Any,
    send: Listener,
    should_stop: Callable[[], bool],
) -> bool:
    """What one rank does: train the stacks that the leader chooses, in step with the others; False if it was stopped.

    *choose* is called until it names none; None means that others are training what is left, and it is called again.
    """
    texts = Texts(job)
    for stack in _chosen(choose, ranks, should_stop):
        if stack is None:
            send(Event("stopped", -1))
            return False
        lock = Lock(ResultsFolder(job.folder).stack_lock(stack))  # the leader holds it for all
        try:
            state = ranks.share(partial(take, job, stack, lock))
            if state == "taken":
                if ranks.leads:
                    texts.of(stack)  # the others then find it in the cache
                ranks.agree(True)
                state = train_stack(job, stack, texts.of(stack), NAME, send, should_stop, lock, ranks)
        finally:
            lock.release()
        send(Event(state, stack))
        if state == "stopped":
            return False
    return True


def _chosen(
    choose: Callable[[], list[int] | None], ranks: Any, should_stop: Callable[[], bool]
) -> Iterator[int | None]:
    """Stacks to train, the same in all ranks; None when it is time to stop."""
    while True:
        todo = ranks.share(choose)
        if todo is None:
            if ranks.leads:  # the others wait for the leader's next word
                time.sleep(WAIT_SECONDS)
        elif not todo:
            return
        for stack in todo or [None]:
            (stop,) = ranks.agree(should_stop())
            if stop:
                yield None
            elif stack is not None:
                yield stack


@contextmanager
def exit_on_failure(send: Listener) -> Iterator[None]:
    """Send what ends a rank, then end the process at once, without waiting for ranks that wait for it."""
    try:
        yield
    except BaseException as error:
        place = place_of(error)
        ours = isinstance(error, AblationLabError) or place is not None
        text = str(error) if isinstance(error, AblationLabError) else f"{type(error).__name__}: {error}"
        text = text if place is None else f"{place}: {text}"
        if os.environ.get(DEBUG_VARIABLE):
            text = traceback.format_exc()
        refused = isinstance(error, PlanError)
        fatal = refused or isinstance(error, StorageError | OutOfMemory)
        send(Event("failed", -1, {"text": text, "ours": ours, "refused": refused}, fatal=fatal))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def _rank(path: Path) -> None:
    """A rank that `execute` launched."""
    place = path.parent
    with (place / f"events-{os.environ['RANK']}").open("a", buffering=1) as log:

        def send(event: Event) -> None:
            log.write(json.dumps(asdict(event)) + "\n")

        with exit_on_failure(send):
            given = JobFile.model_validate_json(path.read_text())
            job = given.job()
            activate_code(job.plan.study, ResultsFolder(job.folder))
            from ablationlab.training.distributed.ranks import Ranks

            ranks = Ranks.join(job.plan.execution.device)
            launcher = Lock(place / "launcher")

            def should_stop() -> bool:
                # A launcher that was killed no longer holds its lock: stop at this step boundary.
                return (place / "stop").exists() or not launcher.held_elsewhere()

            chosen = iter([list(given.stacks)])  # once: the launcher waits for what another process holds
            work(job, lambda: next(chosen, []), ranks, send if ranks.leads else lambda _: None, should_stop)
            ranks.leave()


if __name__ == "__main__":
    _rank(Path(sys.argv[1]))
