"""One run as the analysis sees it: what was planned, how it ended, and the measures of its course."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ablationlab.analysis.comparisons import number_or_why
from ablationlab.records.analysis import RunStability
from ablationlab.records.folders import ResultsFolder
from ablationlab.records.plan import PlannedRun
from ablationlab.records.run import Result, RunRecord, read_metrics
from ablationlab.records.settings import Stability, Study
from ablationlab.stats.stability import Course, Spike, course, ended_worse, spike_score

#: Metrics that no result holds: they are made here, from the course of the run.
COURSE: Final = (
    "spike_score",
    "gradient_spike_score",
    "gradient_spikes",
    "largest_loss_rise",
    "steps_to_loss",
    "mean_training_loss",
)


@dataclass(frozen=True)
class DoneRun:
    """A planned run that has its result. *initial_loss* is that of its first batch, before the first update."""

    planned: PlannedRun
    record: RunRecord
    result: Result
    spike: Spike
    course: Course
    initial_loss: float | None

    def derived(self) -> dict[str, float | None]:
        """The measures of its course, by name."""
        return {"spike_score": self.spike.score, **self.course.measures()}

    def metric(self, name: str) -> float | None:
        """A recorded metric, or a measure of the course."""
        return self.derived()[name] if name in COURSE else self.result.metrics.get(name)


def read_run(results: ResultsFolder, run: PlannedRun, rules: Stability) -> DoneRun:
    """The records of a run that is done."""
    folder = results.run(run.id)
    lines = list(read_metrics(folder.metrics)) if folder.metrics.exists() else []
    losses, norms = [line.loss for line in lines], [line.gradient_norm for line in lines]
    first = losses[0] if losses and lines[0].step == 1 and math.isfinite(losses[0]) else None
    found = course(losses, norms, loss_threshold=rules.loss_threshold, spike_threshold=rules.spike_score)
    result = Result.read(folder.result)
    return DoneRun(run, RunRecord.read(folder.record), result, spike_score(losses), found, first)


def is_ordinary(study: Study, run: PlannedRun) -> bool:
    """Whether a run is one of the study's own cells: its seeds, at the rate of its regime; the others are the sweep's."""
    return study.owns(run)


def value_of(run: DoneRun | None, name: str) -> float | str:
    """A metric's value for the comparisons, or in words why there is none."""
    if run is None:
        return "not finished"
    if run.result.status == "diverged":
        at = run.result.divergence
        return "diverged" if at is None else f"diverged at step {at.step} ({at.cause})"
    return number_or_why(run.metric(name))


def stability_of(planned: PlannedRun, run: DoneRun | None, registered: Stability) -> RunStability:
    """Whether the run counts as unstable by what was registered, and why."""
    where = {
        "run": planned.id,
        "variant": planned.variant,
        "regime": planned.regime,
        "seed": planned.seed,
        "lr": planned.lr,
    }
    if run is None:
        return RunStability.model_validate(
            {
                **where,
                "state": "missing",
                "spike_score": None,
                "spike_step": None,
                "unstable": None,
                "why": "not finished",
            }
        )
    score, at = run.spike.score, run.result.divergence
    diverged = run.result.status == "diverged"
    threshold, times = registered.spike_score, registered.worse_than_start
    spiked = score is not None and score > threshold
    final = run.result.metrics.get("validation_loss")
    failed = not diverged and times != "off" and ended_worse(final, run.initial_loss, times)
    if diverged:
        why = str(value_of(run, "spike_score"))
    elif failed:
        why = f"ended worse than it began: loss {final:.3g}, {run.initial_loss:.3g} at the start"
    elif score is None:
        why = "finished; too short a curve for a spike score"
    else:
        why = f"spike score {score:.3g} {'above' if spiked else 'within'} {threshold:g}"
    measures = {name: value for name, value in run.derived().items() if name != "spike_score"}
    return RunStability.model_validate(
        {
            **where,
            "state": run.result.status,
            "spike_score": score,
            "spike_step": run.spike.step,
            "unstable": diverged or spiked or failed,
            "worse_than_start": failed,
            "why": why,
            "diverged_at": at.step if at is not None else None,
            "cause": at.cause if at is not None else None,
            "measures": measures,
        }
    )


def measured_names(done: Sequence[DoneRun]) -> list[str]:
    """Course measures that at least one run has a value of."""
    return [name for name in COURSE if any(run.derived()[name] is not None for run in done)]
