"""Stability: of one run from its curves, of an arm from its runs, and what a variant gains over a reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ablationlab.analysis import wording
from ablationlab.analysis.dataset import Absent, Dataset, Value, absent, value_or_absent
from ablationlab.records.analysis import (
    Absence,
    ArmStability,
    Instability,
    RunStability,
    StabilityAnalysis,
    StabilityGain,
)
from ablationlab.records.plan import PlannedRun
from ablationlab.records.results import Run
from ablationlab.records.run import Result, RunRecord
from ablationlab.records.settings import Stability
from ablationlab.stats import Gain, item_pairs, mcnemar_tests
from ablationlab.stats.results import Caveat, CaveatCode
from ablationlab.stats.stability import Course, Spike, course, ended_worse, spike_score, stability_gain

#: Metrics that no result holds: they are made here, from the course of the run.
COURSE: Final = (
    "spike_score",
    "gradient_spike_score",
    "gradient_spikes",
    "largest_loss_rise",
    "steps_to_loss",
    "mean_training_loss",
)


UNSTABLE: Final = frozenset({Instability.DIVERGED, Instability.ENDED_WORSE, Instability.SPIKED})


@dataclass(frozen=True)
class EndedRun:
    """A run that has its result, and the measures of its course. *initial_loss*: of the first batch, before any update."""

    run: Run
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


def ended_run(run: Run, rules: Stability) -> EndedRun | None:
    """The run with its measures; None where it has not ended."""
    if run.record is None or run.result is None:
        return None
    steps, losses, norms = (run.curves.get(name, np.empty(0)) for name in ("step", "loss", "gradient_norm"))
    initial = float(losses[0]) if losses.size and steps[0] == 1 and math.isfinite(losses[0]) else None
    measures = course(losses, norms, loss_threshold=rules.loss_threshold, spike_threshold=rules.spike_score)
    return EndedRun(run, run.record, run.result, spike_score(losses), measures, initial)


def value_of(run: EndedRun | None, name: str) -> Value:
    """A metric's value for the comparisons, or why there is none."""
    return ending(run) or value_or_absent(run.metric(name) if run is not None else None)


def ending(run: EndedRun | None) -> Absent | None:
    """Why a run has no value of any metric, if so."""
    if run is None:
        return absent(Absence.NOT_FINISHED)
    if run.result.status != "diverged":
        return None
    at = run.result.divergence
    return absent(Absence.DIVERGED) if at is None else absent(Absence.DIVERGED, step=at.step, cause=at.cause)


def stability_of(planned: PlannedRun, run: EndedRun | None, registered: Stability) -> RunStability:
    """Whether the run counts as unstable by what was registered, and why."""
    threshold, times = registered.spike_score, registered.worse_than_start
    ended = ending(run)
    score = run.spike.score if run is not None else None
    final = run.result.metrics.get("validation_loss") if run is not None else None
    initial = run.initial_loss if run is not None else None
    if run is None:
        reason = Instability.NOT_FINISHED
    elif ended is not None:
        reason = Instability.DIVERGED
    elif times != "off" and ended_worse(final, initial, times):
        reason = Instability.ENDED_WORSE
    elif score is None:
        reason = Instability.TOO_SHORT
    else:
        reason = Instability.SPIKED if score > threshold else Instability.CALM
    words = {"final": final, "initial": initial, "score": score, "threshold": threshold}
    at = run.result.divergence if run is not None else None
    return RunStability(
        run=planned.id,
        variant=planned.variant,
        regime=planned.regime,
        seed=planned.seed,
        lr=planned.lr,
        state="missing" if run is None else run.result.status,
        spike_score=score,
        spike_step=run.spike.step if run is not None else None,
        unstable=None if run is None else reason in UNSTABLE,
        worse_than_start=reason == Instability.ENDED_WORSE,
        reason=reason,
        why=wording.absence(ended) if ended is not None else wording.instability(reason, **words),
        diverged_at=at.step if at is not None else None,
        cause=at.cause if at is not None else None,
        measures={} if run is None else {k: v for k, v in run.derived().items() if k != "spike_score"},
    )


def measured_names(done: Sequence[EndedRun]) -> list[str]:
    """Course measures that at least one run has a value of."""
    return [name for name in COURSE if any(run.derived()[name] is not None for run in done)]


def stability(dataset: Dataset) -> StabilityAnalysis | None:
    """All of it; None where nothing is known of the runs' course (a table of values)."""
    if not dataset.runs:
        return None
    arms = [
        _arm(variant, regime, [r for r in dataset.runs if (r.variant, r.regime) == (variant, regime)])
        for regime in dataset.regimes
        for variant in dataset.variants
    ]
    gains = [
        _gain(dataset, variant, reference, regime)
        for regime in dataset.regimes
        for variant, reference in dataset.pairs()
    ]
    return StabilityAnalysis(threshold=dataset.spike_threshold, runs=dataset.runs, arms=tuple(arms), gains=tuple(gains))


def _arm(variant: str, regime: str, runs: Sequence[RunStability]) -> ArmStability:
    known = [run for run in runs if run.unstable is not None]
    scores = [run.spike_score for run in known if run.spike_score is not None]
    diverged = sum(run.state == "diverged" for run in known)
    failed = sum(run.worse_than_start for run in known)
    unstable = sum(bool(run.unstable) for run in known)
    return ArmStability(
        variant=variant,
        regime=regime,
        runs=len(known),
        diverged=diverged,
        spiked=unstable - diverged - failed,
        failed=failed,
        unstable_runs=unstable,
        unstable=unstable > 0 if known else None,
        largest_spike_score=max(scores, default=None),
    )


def _gain(dataset: Dataset, variant: str, reference: str, regime: str) -> StabilityGain:
    flags = {(r.variant, r.seed): r.unstable for r in dataset.runs if r.regime == regime and r.unstable is not None}
    promised = dataset.seeds_of(regime)
    seeds = [s for s in promised if (variant, s) in flags and (reference, s) in flags]
    a, b = ([bool(flags[arm, s]) for s in seeds] for arm in (variant, reference))
    gain = stability_gain(a, b)
    p = mcnemar_tests(item_pairs([float(v) for v in a], [float(v) for v in b]))[0].p if seeds else None
    return StabilityGain(
        **vars(gain),
        id=f"stability/{regime}/{variant}:{reference}",
        variant=variant,
        reference=reference,
        regime=regime,
        planned_pairs=len(promised),
        mcnemar_p=p,
        caveats=tuple(_caveats(gain, len(promised))),
    )


def _caveats(gain: Gain, planned: int) -> list[Caveat]:
    caveats = []
    if gain.n < planned:
        caveats.append(wording.caveat(CaveatCode.FEWER_PAIRS_THAN_PLANNED, n=gain.n, planned=planned))
    if gain.n < 4:
        caveats.append(wording.caveat(CaveatCode.CANNOT_EXCLUDE_ZERO, "tango", n=gain.n))
    elif gain.n == 4:
        caveats.append(wording.caveat(CaveatCode.UNDERCOVERAGE, "tango"))
    return caveats
