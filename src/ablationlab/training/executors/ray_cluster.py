"""Runs on a Ray cluster: every stack is a task with its own cores or GPU, retried from its checkpoint when its worker dies.

Only the name of a function of this file and plain data travel between processes: texts (JSON) and numbers. A
worker reads what it trains from plan.lock on the shared folder, and its code, libraries, processor and device must be those
of the plan: every node is asked before the first task, and every task checks again.
"""

from __future__ import annotations

import io
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ablationlab.core.errors import AblationLabError, PlanError, RunFailure
from ablationlab.core.format import setting
from ablationlab.core.paths import real_path
from ablationlab.core.processes import usable_cores
from ablationlab.data.corpus import TokenizedCorpus, load_corpus
from ablationlab.records.environment import Environment, current, drift
from ablationlab.records.plan import Plan
from ablationlab.records.settings import DataConfig
from ablationlab.records.storage import Lock, ResultsFolder, StoredValue
from ablationlab.study.code import activate_code
from ablationlab.study.plan import plan_drift
from ablationlab.training.executors.job import (
    DEBUG_VARIABLE,
    Event,
    Interrupts,
    Job,
    JobFile,
    Listener,
    announcing,
    attempt,
    check_layout,
    open_stacks,
    refuse_failures,
)

NAME = "ray"
POLL_SECONDS = 0.2
# How often a worker sends its progress and asks whether to stop.
REPORT_SECONDS = 0.5
# Before a stack that another process holds is tried again. On NFS a dead node's lock lasts as long as the server's lease.
BUSY_SECONDS = 5.0
# Deaths of a stack's worker in a row without a later checkpoint between them.
MOST_DEATHS = 4
# After that long without a free worker, the user is told what is waited for.
PATIENCE_SECONDS = 15.0
INSPECT_SECONDS = 120.0
CONNECT_SECONDS, JOIN_SECONDS = 5.0, 60.0
OBJECT_STORE_BYTES = 80_000_000  # nothing large goes through it; Ray's least
# Before ray is imported: no usage statistics, and no output of its own in the terminal.
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
}


def execute(job: Job, address: str | None, workers: int | None, listen: Listener) -> bool:
    """Train everything that is not done; False if it was stopped by the user. Raises `RunFailure` if a stack failed.

    Without *address* a cluster is started on this machine and ended afterwards; *workers* bounds the stacks in training.
    """
    job = replace(job, folder=real_path(job.folder))
    check_layout(job)
    with cluster(job, address, workers) as ray, Interrupts() as interrupts:
        try:
            check_resources(ray, job.plan)
            inspect(ray, job)
            return _Schedule(ray, job, workers, listen, announcing(interrupts, listen)).run()
        except ray.exceptions.RayError as error:  # of a task, `_Schedule` handles it
            raise RunFailure(
                f"the Ray cluster is lost: its head node died or cannot be reached ({first_line(error)}). Checkpoints are "
                "kept; run the same command again to continue"
            ) from error


class _Schedule:
    """Gives stacks to workers, and gives those again that a death or another process left undone."""

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
        self.reporting: set[int] = set()  # stacks whose worker has reported
        self.gave_up = False
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self.mailbox = ray.remote(Mailbox).options(num_cpus=0, scheduling_strategy=here).remote()
        needs = needs_of(job.plan)
        self.task = ray.remote(train_stack).options(num_cpus=needs["CPU"], num_gpus=needs.get("GPU", 0), max_retries=0)
        self.job_file = JobFile.of(job).model_dump_json()

    def run(self) -> bool:
        """Until nothing is left, or nothing more can be done."""
        quiet_since, announced = time.monotonic(), False
        while self.running or self.waiting or self.later:
            stop = self.stopping() or self.gave_up
            if stop:
                self.waiting.clear()
                self.later.clear()
            self._submit_waiting()
            if self.running:
                done, _ = self.ray.wait(list(self.running), timeout=POLL_SECONDS)
            else:
                done = []
                time.sleep(POLL_SECONDS)
            heard = self._read_messages(stop)
            for task in done:
                self.reporting.discard(self.running[task])
                self._end(task, self.running.pop(task))
            if heard or done or self.reporting or not self.running:
                quiet_since = time.monotonic()
            if not announced and time.monotonic() - quiet_since > PATIENCE_SECONDS and self._nothing_free():
                announced = True
                self.listen(
                    Event(
                        "resources", -1, " and ".join(f"{setting(v)} {k}" for k, v in needs_of(self.job.plan).items())
                    )
                )
        if self.stopping() and not self.failures:
            return False
        refuse_failures(self.job.plan, self.failures)
        return True

    def _submit_waiting(self) -> None:
        now = time.monotonic()
        self.waiting += [stack for when, stack in self.later if when <= now]
        self.later = [(when, stack) for when, stack in self.later if when > now]
        while self.waiting and len(self.running) < self.most:
            stack = self.waiting.popleft()
            self.running[self.task.remote(self.job_file, stack, self.mailbox)] = stack

    def _nothing_free(self) -> bool:
        free = self.ray.available_resources()
        return any(free.get(key, 0.0) < value for key, value in needs_of(self.job.plan).items())

    def _read_messages(self, stop: bool) -> bool:
        messages = self.ray.get(self.mailbox.read.remote(stop))
        for message in messages:
            now = SimpleNamespace(**json.loads(message))
            if hasattr(now, "begun"):
                self.reporting.add(now.stack)
                continue
            if now.start > self.started.get(now.stack, -1):  # it continued from a later checkpoint than last time
                self.started[now.stack] = now.start
                self.deaths[now.stack] = 0
            self.listen(Event("progress", now.stack, now))
        return bool(messages)

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


# ---- the cluster ------------------------------------------------------------------------------------------------------


def _import() -> Any:
    if find_spec("ray") is None:
        raise AblationLabError("--executor ray needs Ray, which is not installed: pip install 'ablationlab[ray]'")
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    import ray

    return ray


@contextmanager
def cluster(job: Job, address: str | None, workers: int | None) -> Iterator[Any]:
    """Ray, connected; a connection that was there before (a notebook's) is used and left as it is."""
    ray = _import()
    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error", "configure_logging": False}
    if address is None:
        threads = job.plan.execution.threads
        cores = threads * workers if workers is not None else max(threads, usable_cores())
        options |= {"num_cpus": cores, "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
        # An address in the environment is for those who ask for it with --address auto.
        options["address"] = "local"
    else:
        options["address"] = _reachable(address)
    try:
        # Workers import modules of the driver's current folder first, and that may be anyone's.
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), chdir(sys.prefix):
            ray.init(**options)
    except Exception as error:  # a node that is slow to start raises no narrower one
        where = "a cluster on this machine" if address is None else f"the cluster at --address {address}"
        raise AblationLabError(f"{where} cannot be used: {first_line(error)}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _reachable(address: str) -> str:
    """The address, if a Ray cluster answers there within a bounded time.

    ray.init waits forever and ignores signals where something else answers or nothing does, so it is tried first in a
    process that can be killed.
    """
    if address == "auto":
        return _joinable(address)
    parts = re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[^\s:/\[\]]+):(\d{1,5})", address)
    if parts is None or not 0 < int(parts[2]) < 65536:
        raise AblationLabError(
            f"--address {address!r}: expected auto or host:port of a cluster's head node, as `ray start --head` prints it "
            "(ray:// addresses are for Ray's own client, which cannot stream progress here)"
        )
    try:
        socket.create_connection((parts[1].strip("[]"), int(parts[2])), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise AblationLabError(
            f"--address {address}: nothing answers there ({error.strerror or error}); is the head node up, and its port open?"
        ) from error
    return _joinable(address)


def _joinable(address: str) -> str:
    script = (
        "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='error'); ray.shutdown()"
    )
    try:
        subprocess.run(
            [sys.executable, "-P", "-c", script, address],
            check=True,
            timeout=JOIN_SECONDS,
            capture_output=True,
            text=True,
        )
    except subprocess.TimeoutExpired as error:
        raise AblationLabError(
            f"--address {address}: something answers there, but no Ray cluster within {setting(JOIN_SECONDS)} s"
        ) from error
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if line.strip()] or ["no reason given"]
        if address == "auto" and "ConnectionError" in error.stderr:
            raise AblationLabError(
                "--address auto: no Ray cluster runs on this machine; start one with `ray start --head` (docs/scale.md), "
                "give its address as host:port, or leave --address out for a cluster that lasts as long as this command"
            ) from error
        reason = next((line for line in lines if "Version mismatch" in line), lines[-1])
        raise AblationLabError(f"--address {address}: the cluster cannot be joined: {reason.strip()}") from error
    return address


def first_line(error: Exception) -> str:
    """The line of Ray's text that says what happened: the last one of an error in a worker, else the first."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1] if "Traceback" in text or lines[0].startswith("ray::") else lines[0]


# ---- its nodes --------------------------------------------------------------------------------------------------------


def needs_of(plan: Plan) -> dict[str, float]:
    """Resources of one stack, in Ray's words."""
    execution = plan.execution
    return {"CPU": float(execution.threads)} if execution.device == "cpu" else {"CPU": 1.0, "GPU": 1.0}


def _able(ray: Any, plan: Plan) -> list[Any]:
    """The living nodes that are large enough for a stack."""
    needs = needs_of(plan).items()
    return [n for n in ray.nodes() if n["Alive"] and all(n["Resources"].get(key, 0.0) >= value for key, value in needs)]


def check_resources(ray: Any, plan: Plan) -> None:
    """Refuse what would wait forever: a task that no node is large enough for."""
    if _able(ray, plan):
        return
    settings = "execution.threads" if plan.study.trainer is None else "--workers, which share the cores"
    wanted = " and ".join(f"{setting(value)} {key}" for key, value in needs_of(plan).items())
    has = [
        f"{node['NodeManagerHostname']}: "
        + ", ".join(f"{setting(node['Resources'].get(kind, 0))} {kind}" for kind in ("CPU", "GPU"))
        for node in ray.nodes()
        if node["Alive"]
    ]
    raise PlanError(
        f"a stack of this plan needs {wanted} on one node, and no node of the cluster has that:\n"
        + "\n".join(f"  - {line}" for line in has)
        + f"\nAdd such a node, or plan again with --out and other settings ({settings}, --device)"
    )


def inspect(ray: Any, job: Job) -> None:
    """Ask every node that could train whether it is what the plan was sealed for; refuse the cluster if one is not."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    results = ResultsFolder(job.folder)
    check = Lock(results.locks / "cluster-check")
    check.acquire()  # if another command holds it just now, it is held all the same
    share = {"num_gpus": 0.001} if job.plan.execution.device == "cuda" else {}
    wrong: list[str] = []
    try:
        answers = {}
        for node in _able(ray, job.plan):
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            task = ray.remote(inspect_node).options(num_cpus=0, max_retries=0, scheduling_strategy=there, **share)
            answers[task.remote(str(job.folder), job.plan.execution.device)] = node
        _, late = ray.wait(list(answers), num_returns=len(answers), timeout=INSPECT_SECONDS)
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        for answer, node in answers.items():
            if node["NodeID"] in alive:  # one that died meanwhile can do no harm
                silent = [f"gave no answer within {setting(INSPECT_SECONDS)} s (is its GPU taken by another job?)"]
                lines = silent if answer in late else _found_wrong(ray, answer, job)
                wrong += [f"{node['NodeManagerHostname']}: {line}" for line in lines]
    finally:
        check.release()
    if wrong:
        raise PlanError(
            "the workers of this cluster are not what the plan was sealed for:\n"
            + "\n".join(f"  - {line}" for line in dict.fromkeys(wrong))
            + "\nRuns made by different versions or devices are not a fair comparison. Give every node the same "
            "ablationlab, libraries and hardware, and the same folder under the same path (docs/scale.md)"
        )


def _found_wrong(ray: Any, answer: Any, job: Job) -> list[str]:
    try:
        node = NodeReport.model_validate_json(ray.get(answer))
    except ray.exceptions.RayError as error:
        cause = first_line(error)
        return [f"cannot run this version of ablationlab; is it installed there? ({cause})"]
    return mismatches(node, job.plan, accept_drift=job.accept_drift)


class NodeReport(StoredValue):
    """A node of the cluster, and what it sees of the results folder: the plan's hash, and a lock that the command holds."""

    environment: Environment
    device: str
    plan_hash: str | None
    sees_lock: bool


def inspect_node(folder: str, device: str) -> str:
    """Run by Ray on a node: its `NodeReport`, as JSON."""
    from ablationlab.model.machine import choose_device

    results = ResultsFolder(Path(folder))
    try:
        name = choose_device("cuda" if device == "cuda" else "cpu")[1]
    except PlanError as error:
        name = str(error)
    shared = results.plan.exists()
    return NodeReport(
        environment=current(),
        device=name,
        plan_hash=Plan.of(results).plan_hash if shared else None,
        sees_lock=shared and Lock(results.locks / "cluster-check").held_elsewhere(),
    ).model_dump_json()


def mismatches(node: NodeReport, plan: Plan, *, accept_drift: bool) -> list[str]:
    """What of a node's answer does not fit the plan."""
    if node.plan_hash is None:
        return ["does not see the results folder; it must be shared and have the same path on every node"]
    problems = [] if accept_drift else [*map(str, drift(plan.environment, node.environment))]
    if node.plan_hash != plan.plan_hash:
        problems.append("sees another plan in the results folder")
    elif not node.sees_lock:
        problems.append(
            "does not see locks that this machine holds in the results folder; two workers could train one run. Mount it "
            "with locks that reach all nodes (NFS version 4, Lustre with -o flock)"
        )
    if node.device != plan.execution.device_name:
        problems.append(f"device {plan.execution.device_name} -> {node.device}")
    return problems


# What runs in a worker: one stack, trained as anywhere else, and the actor that its progress goes to.


class Mailbox:
    """The actor between workers and the command: progress goes one way, the request to stop the other."""

    def __init__(self) -> None:
        self._messages: list[str] = []
        self._stop = False

    def put(self, messages: list[str]) -> bool:
        """Take a worker's messages; returns whether it should stop."""
        self._messages += messages
        return self._stop

    def read(self, stop: bool) -> list[str]:
        """The messages since the last call; from now on, workers are told to stop or not."""
        self._stop = stop
        messages, self._messages = self._messages, []
        return messages


def train_stack(job_file: str, stack: int, mailbox: Any) -> str:
    """Run by Ray on some node: train one stack, and say how it ended, as JSON."""
    import ray

    given = JobFile.model_validate_json(job_file)
    if given.debug:
        os.environ[DEBUG_VARIABLE] = "1"
    reported_at, stop = 0.0, False
    messages: list[dict[str, Any]] = [{"stack": stack, "begun": True}]

    def report() -> None:
        nonlocal reported_at, stop
        reported_at = time.monotonic()
        try:
            stop = ray.get(mailbox.put.remote([json.dumps(message) for message in messages]))
        except ray.exceptions.RayError:
            raise EOFError from None  # the command is gone; what was checkpointed is on disk
        messages.clear()

    def should_stop() -> bool:
        if time.monotonic() - reported_at >= REPORT_SECONDS:
            report()
        return stop

    def send(event: Event) -> None:
        messages[:] = [message for message in messages if message.get("note") != ""]  # only the newest numbers matter
        messages.append({"stack": stack, **asdict(event.payload)})

    if should_stop():
        return json.dumps({"kind": "stopped"})
    ended = _attempt_here(given, stack, send, should_stop)
    report()
    return json.dumps({"kind": ended.kind, "payload": ended.payload, "fatal": ended.fatal})


def _attempt_here(given: JobFile, stack: int, send: Listener, should_stop: Callable[[], bool]) -> Event:
    try:
        job = given.job()
        changed = plan_drift(job.plan, None, "auto")
        if job.plan.plan_hash != given.plan_hash:
            return Event("failed", stack, "its worker sees another plan in the results folder", fatal=True)
        if changed and not given.accept_drift:
            return Event(
                "failed", stack, f"its worker is not what the plan was sealed for: {'; '.join(map(str, changed))}"
            )
        activate_code(job.plan.study, ResultsFolder(job.folder))
        job = replace(job, drift=changed)
        own = job.plan.study.trainer is not None
        corpus = None if own else _corpus(job.data_of(stack).model_dump_json())
    except AblationLabError as error:
        return Event("failed", stack, str(error))
    return attempt(job, stack, corpus, NAME, send, should_stop)


@cache
def _corpus(data: str) -> TokenizedCorpus:
    """Read once by a worker, whatever it trains."""
    return load_corpus(DataConfig.model_validate_json(data))
