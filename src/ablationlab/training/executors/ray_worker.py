"""What runs in a worker of a Ray cluster: one stack, trained as anywhere else, and the actor that its progress goes to."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from ablationlab.core.errors import AblationLabError
from ablationlab.data.corpus import TokenizedCorpus, load_corpus
from ablationlab.records.plan import Plan
from ablationlab.records.settings import DataConfig, validated
from ablationlab.records.storage import ResultsFolder
from ablationlab.training.executors.job import DEBUG_VARIABLE, Event, Job, Listener, attempt

NAME = "ray"


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


def train_stack(spec: str, stack: int, mailbox: Any) -> str:
    """Run by Ray on some node: train one stack, and say how it ended, as JSON."""
    import ray

    given = json.loads(spec)
    if given["debug"]:
        os.environ[DEBUG_VARIABLE] = "1"
    reported_at, stop = 0.0, False
    messages = [json.dumps({"stack": stack, "begun": True})]

    def report() -> None:
        nonlocal reported_at, stop
        reported_at = time.monotonic()
        try:
            stop = ray.get(mailbox.put.remote(messages))
        except ray.exceptions.RayError:
            raise EOFError from None  # the command is gone; what was checkpointed is on disk
        messages.clear()

    def should_stop() -> bool:
        if time.monotonic() - reported_at >= given["report_seconds"]:
            report()
        return stop

    def send(event: Event) -> None:
        messages[:] = [message for message in messages if '"note": ""' not in message]  # only the newest numbers matter
        messages.append(json.dumps({"stack": stack, **asdict(event.payload)}))

    if should_stop():
        return json.dumps({"kind": "stopped"})
    ended = _attempt_here(given, stack, send, should_stop)
    report()
    return json.dumps({"kind": ended.kind, "payload": ended.payload, "fatal": ended.fatal})


def _attempt_here(given: dict[str, Any], stack: int, send: Listener, should_stop: Callable[[], bool]) -> Event:
    from ablationlab.records.environment import current, drift

    try:
        results = ResultsFolder(Path(given["folder"]))
        plan = Plan.read(results.plan)
        changed = drift(plan.environment, current())
        if plan.plan_hash != given["plan"]:
            return Event("failed", stack, "its worker sees another plan in the results folder", fatal=True)
        if changed and not given["accept_drift"]:
            return Event("failed", stack, f"its worker is not what the plan was sealed for: {'; '.join(changed)}")
        job = Job(plan, results.path, validated(DataConfig, given["data"]), changed, given["accept_drift"])
        corpus = _corpus(json.dumps(given["data"]))
    except AblationLabError as error:
        return Event("failed", stack, str(error))
    return attempt(job, stack, corpus, NAME, send, should_stop)


@cache
def _corpus(data: str) -> TokenizedCorpus:
    """Read once by a worker, whatever it trains."""
    return load_corpus(validated(DataConfig, json.loads(data)))
