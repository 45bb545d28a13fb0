"""Where a running study stands: progress, warnings and the pairs that are complete. The page of `watch` shows it."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ablationlab.analysis.courses import RunLoss, courses
from ablationlab.analysis.wording import cause
from ablationlab.core.errors import AblationLabError
from ablationlab.core.format import count, duration, percent
from ablationlab.records.courses import Courses
from ablationlab.records.results import Cache, Results, Run
from ablationlab.records.settings import SPIKE_SCORE
from ablationlab.report.interim import look_pending
from ablationlab.report.slots import Slot, Statement
from ablationlab.stats.spikes import spike_score

#: Over how many seconds the speed is averaged.
SPEED_SECONDS = 120.0
#: Warnings that the page names; more are counted.
MOST_WARNINGS = 20
#: What a study may write before it seals its plan.
_BEFORE_THE_PLAN = frozenset({"study.lock", "calibration", "locks", "use", "energy"})


def may_begin(folder: Path) -> bool:
    """Whether a folder without a plan is empty, or holds nothing but what comes before a plan; hidden files do not count."""
    return all(path.name in _BEFORE_THE_PLAN or path.name.startswith(".") for path in folder.iterdir())


@dataclass(frozen=True)
class LiveState:
    """*share* of all steps that are done, *warnings* as clauses; *finished*: every run has ended and no look is to come.
    *waiting*: what it waits for, where there is no plan yet.
    """

    version: str = ""
    share: float = 0.0
    percent: str = ""
    left: str = ""
    ended: Statement | None = None
    warnings: tuple[Statement, ...] = ()
    finished: bool = False
    report: bool = False
    waiting: Statement | None = None
    fault: str = ""


class Live:
    """Reads a results folder again and again, opening only what changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache: Cache = {}
        self.seen: deque[tuple[float, float]] = deque()
        self.warnings: dict[str, tuple[Run, list[Statement]]] = {}

    def page(self) -> str:
        """The page of what is there."""
        from ablationlab.report.page.build import live_html, waiting_html

        results, state = self.state()
        if results is None:
            return waiting_html(self.folder.name, state)
        return live_html(results.changed(analysis=None, verdict=None), state, _courses(results))

    def asked(self, since: str) -> dict[str, Any]:
        """Whether there is more to show than the version *since*, and the time left."""
        _, state = self.state(since)
        return {"unchanged": state.version == since, "version": state.version, "left": state.left}

    def state(self, since: str | None = None) -> tuple[Results | None, LiveState]:
        """The records, where there are some, and where the study stands; little of a version that is shown already."""
        try:
            results = Results.open(self.folder, cache=self.cache)
        except AblationLabError as error:
            if may_begin(self.folder):
                begun = (self.folder / "calibration").is_dir()
                code = "live.calibrates" if begun else "live.waiting"
                return None, LiveState(f"waiting-{code}", waiting=Statement(code, {"folder": Slot(str(self.folder))}))
            return None, LiveState(f"fault-{error}", fault=str(error))
        version, left = _version(results), self._left(results)
        if version == since:
            return results, LiveState(version, left=left)
        ended = {"ended": Slot(count(results.ended)), "planned": Slot(count(len(results.runs)))}
        state = LiveState(
            version,
            results.share_done,
            percent(results.share_done),
            left,
            Statement("sure.ended", ended),
            tuple(self._warnings(results)),
            bool(results.runs) and not results.interim and not look_pending(results),
            (self.folder / "report.html").is_file(),
        )
        return results, state

    def _left(self, results: Results) -> str:
        """Time to go at the speed of the last minutes; empty where nothing moved."""
        now, done = time.monotonic(), results.share_done
        if not self.seen or self.seen[-1][1] != done:
            self.seen.append((now, done))
        while len(self.seen) > 2 and now - self.seen[0][0] > SPEED_SECONDS:
            self.seen.popleft()
        (then, before), (_, after) = self.seen[0], self.seen[-1]
        return "" if after <= before else duration((1 - after) * (now - then) / (after - before))

    def _warnings(self, results: Results) -> list[Statement]:
        threshold = SPIKE_SCORE if results.plan is None else results.plan.study.stability.spike_score
        found: list[Statement] = []
        for run in results.runs:
            if run.id not in self.warnings or self.warnings[run.id][0] is not run:
                self.warnings[run.id] = run, _warnings_of(run, threshold)
            found += self.warnings[run.id][1]
        more = len(found) - MOST_WARNINGS
        return [*found[:MOST_WARNINGS], Statement("live.more", {"n": Slot(count(more))})] if more > 0 else found


def _courses(results: Results) -> Courses | None:
    """The curves of every run so far, described: without intervals."""
    runs = [
        RunLoss(run.variant, run.regime, run.seed, run.curves["step"], losses, run.steps, run.state == "diverged")
        for run in results.compared
        if (losses := run.curves.get("loss", np.empty(0))).size
    ]
    found = courses(runs, "loss", results.baseline, results.variants, whole=True) if runs else None
    if found is None:
        return None
    arms = tuple(arm.model_copy(update={"low": (), "high": (), "level": None}) for arm in found.arms)
    return Courses(analysis_hash="", curves=found.model_copy(update={"arms": arms}), diagnostics=())


def _warnings_of(run: Run, threshold: float) -> list[Statement]:
    found: list[Statement] = []
    named = {"run": Slot(run.id)}
    if run.result is not None and run.result.divergence is not None:
        at = run.result.divergence
        found.append(Statement("live.diverged", {**named, "step": Slot(count(at.step)), "cause": Slot(cause(at))}))
    elif run.state == "started":
        steps = {"step": Slot(count(run.step)), "of": Slot(count(run.steps))}
        found.append(Statement("live.stopped", {**named, **steps}))
    if run.result is not None:
        score, step = run.result.course.spike_score, run.result.course.spike_step
    else:
        losses = run.curves.get("loss", np.empty(0))
        if not np.isfinite(losses).all():
            found.append(Statement("live.not-finite", named))
        spike = spike_score(losses)
        score, step = spike.score, spike.step
    if score is not None and score > threshold:
        at_step = Slot("" if step is None or not math.isfinite(step) else count(step))
        found.append(Statement("live.spike", {**named, "step": at_step}))
    return found


def _version(results: Results) -> str:
    """Changes whenever something to show changes."""
    return f"{results.ended}-{sum(run.step for run in results.runs)}-{len(results.problems)}"
