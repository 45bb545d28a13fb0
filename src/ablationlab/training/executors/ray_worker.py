"""What runs in a worker of a Ray cluster: one stack, trained as anywhere else, and the desk that its progress goes to."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ablationlab.core.errors import AblationLabError
from ablationlab.records.folders import ResultsFolder
from ablationlab.records.plan import Plan
from ablationlab.records.settings import DataConfig, validated
from ablationlab.training.executors.job import DEBUG_VARIABLE, Event, Job, Listener, attempt, corpus_of

NAME = "ray"


class Desk:
    """The actor between workers and the command: progress goes one way, the wish to stop the other."""

    def __init__(self) -> None:
        self._letters: list[str] = []
        self._stop = False

    def hear(self, letters: list[str]) -> bool:
        """Take what a worker has to tell; whether it should stop."""
        self._letters += letters
        return self._stop

    def read(self, stop: bool) -> list[str]:
        """What was told since the last time; from now on, workers are told to stop or not."""
        self._stop = stop
        found, self._letters = self._letters, []
        return found


def train_stack(job: str, stack: int, desk: Any) -> str:
    """Run by Ray on some node: train one stack, and say how it ended, as JSON."""
    import ray

    given = json.loads(job)
    if given["debug"]:
        os.environ[DEBUG_VARIABLE] = "1"
    asked: list[Any] = [0.0, False]
    letters = [json.dumps({"stack": stack, "begun": True})]

    def should_stop() -> bool:
        now = time.monotonic()
        if now - asked[0] >= given["every"]:
            try:
                asked[:] = [now, ray.get(desk.hear.remote(letters))]
            except ray.exceptions.RayError:
                raise EOFError from None  # the command is gone; what was checkpointed is on disk
            letters.clear()
        return bool(asked[1])

    def send(event: Event) -> None:
        letters[:] = [one for one in letters if '"note": ""' not in one]  # only the newest numbers are worth the way
        letters.append(json.dumps({"stack": stack, **asdict(event.payload)}))

    if should_stop():
        return json.dumps({"kind": "stopped"})
    ended = _attempt_here(given, stack, send, should_stop)
    try:
        ray.get(desk.hear.remote(letters))
    except ray.exceptions.RayError:
        raise EOFError from None
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
def _corpus(data: str) -> Any:
    """Read once by a worker, whatever it trains."""
    return corpus_of(SimpleNamespace(data=validated(DataConfig, json.loads(data))))  # type: ignore[arg-type]
