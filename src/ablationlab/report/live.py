"""Where a running study stands, as JSON: progress, curves and warnings. What the watcher's page asks for."""

from __future__ import annotations

import math
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from ablationlab.analysis.wording import cause
from ablationlab.core.errors import AblationLabError
from ablationlab.core.format import count, duration, number, percent, setting
from ablationlab.records.results import Cache, Results, Run
from ablationlab.records.settings import SPIKE_SCORE
from ablationlab.report.charts.curves import curves
from ablationlab.report.charts.theme import DARK_OF, colours, config
from ablationlab.report.interim import interim_note, interim_rows, look_pending
from ablationlab.report.page.embed import by_column
from ablationlab.stats.spikes import spike_score

#: Over how many seconds the speed is averaged.
SPEED_SECONDS = 120.0


#: What a study may write before it seals its plan.
_BEFORE_THE_PLAN = frozenset({"study.lock", "calibration", "locks", "use", "energy"})


def may_begin(folder: Path) -> bool:
    """Whether a folder without a plan is empty, or holds nothing but what comes before a plan; hidden files do not count."""
    return all(path.name in _BEFORE_THE_PLAN or path.name.startswith(".") for path in folder.iterdir())


def _waits_for(folder: Path) -> str:
    calibrates = " Its regimes are calibrated, or its rates swept, first." if (folder / "calibration").is_dir() else ""
    return f"Waiting for {folder / 'plan.lock'}, which `ablationlab run` writes when the study begins.{calibrates}"


class Live:
    """Reads a results folder again and again, opening only what changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache: Cache = {}
        self.seen: deque[tuple[float, float]] = deque()
        self.warnings: dict[str, tuple[Run, list[dict[str, str]]]] = {}

    def state(self, since: str = "") -> dict[str, Any]:
        """What the page shows now; little where it has shown the version *since*."""
        try:
            results = Results.open(self.folder, cache=self.cache)
        except AblationLabError as error:
            return {"waiting": _waits_for(self.folder) if may_begin(self.folder) else str(error)}
        version = _version(results)
        if version == since:
            return {"unchanged": True, "left": self._left(results)}
        hues, listed = colours(results), _listed(results)
        return {
            "name": results.name,
            "question": results.question,
            "version": version,
            "ended": results.ended,
            "total": len(results.runs),
            "share": results.share_done,
            "percent": percent(results.share_done),
            "left": self._left(results),
            "finished": bool(results.runs) and not results.interim and not look_pending(results),
            "report": (self.folder / "report.html").is_file(),
            "warnings": self._warnings(results),
            "registered": results.plan is not None and bool(results.plan.study.criteria),
            "pairs": interim_rows(results),
            "pairs_note": interim_note(results),
            "runs": [_row(run, hues) for run in listed],
            "listed": _listed_words(len(listed), len(results.runs)),
            "variants": list(results.variants),
            "colours": hues,
            "dark": dict(DARK_OF),
            "config": {"light": config(), "dark": config(dark=True)},
            "charts": [
                {
                    "key": figure.key,
                    "title": figure.title,
                    "caption": figure.caption,
                    "alt": figure.alt,
                    "height": figure.height,
                    "spec": figure.bare,
                    "data": {name: by_column(rows) for name, rows in figure.data.items()},
                }
                for figure in curves(results)
            ],
        }

    def _left(self, results: Results) -> str:
        """Time to go at the speed of the last minutes; empty where nothing moved."""
        now, done = time.monotonic(), results.share_done
        if not self.seen or self.seen[-1][1] != done:
            self.seen.append((now, done))
        while len(self.seen) > 2 and now - self.seen[0][0] > SPEED_SECONDS:
            self.seen.popleft()
        (then, before), (_, after) = self.seen[0], self.seen[-1]
        return "" if after <= before else duration((1 - after) * (now - then) / (after - before))

    def _warnings(self, results: Results) -> list[dict[str, str]]:
        warnings = [{"level": "bad", "text": f"{damage.file}: {damage.text}"} for damage in results.problems]
        threshold = SPIKE_SCORE if results.plan is None else results.plan.study.stability.spike_score
        for run in results.runs:
            if run.id not in self.warnings or self.warnings[run.id][0] is not run:
                self.warnings[run.id] = run, _warnings_of(run, threshold)
            warnings += self.warnings[run.id][1]
        return warnings


def _warnings_of(run: Run, threshold: float) -> list[dict[str, str]]:
    warnings = []
    if run.result is not None and run.result.divergence is not None:
        at = run.result.divergence
        warnings.append({"level": "bad", "text": f"{run.id} diverged at step {count(at.step)}: {cause(at)}"})
    elif run.state == "started":
        text = f"{run.id} stopped at step {count(run.step)} of {count(run.steps)}; run the study again to continue"
        warnings.append({"level": "warn", "text": text})
    if run.result is not None:
        score, step = run.result.course.spike_score, run.result.course.spike_step
    else:
        losses = run.curves.get("loss", np.empty(0))
        if not np.isfinite(losses).all():
            warnings.append({"level": "bad", "text": f"{run.id}: the loss is not finite"})
        spike = spike_score(losses)
        score, step = spike.score, spike.step
    if score is not None and score > threshold:
        text = f"loss spike at step {step}, score {number(score)}, above the registered {setting(threshold)}"
        warnings.append({"level": "warn", "text": f"{run.id}: {text}"})
    return warnings


#: Rows of the table of runs; those that have not ended well come first.
MOST_ROWS = 500


def _listed_words(listed: int, runs: int) -> str:
    if listed == runs:
        return ""
    kinds = "those that are trained, stopped, diverged or damaged, then others"
    return f"{count(listed)} of {count(runs)} runs are listed: {kinds}."


def _listed(results: Results) -> list[Run]:
    """The runs of the table, in the plan's order."""
    order = sorted(range(len(results.runs)), key=lambda place: results.runs[place].state in ("finished", "waiting"))
    return [results.runs[place] for place in sorted(order[:MOST_ROWS])]


def _version(results: Results) -> str:
    """Changes whenever something to show changes."""
    return f"{results.ended}-{sum(run.step for run in results.runs)}-{len(results.problems)}"


def _row(run: Run, hues: dict[str, str]) -> dict[str, Any]:
    return {
        "id": run.id,
        "variant": run.variant,
        "seed": str(run.seed),
        "regime": run.regime,
        "colour": hues.get(run.variant, "#626b75"),
        "state": run.state,
        "step": f"{count(run.step)} / {count(run.steps)}",
        "loss": _last(run, "loss"),
        "gradient": _last(run, "gradient_norm"),
    }


def _last(run: Run, column: str) -> str:
    values = run.curves.get(column)
    if values is None or not values.size:
        return ""
    value = float(values[-1])
    return number(value, 4) if math.isfinite(value) else "not finite"
