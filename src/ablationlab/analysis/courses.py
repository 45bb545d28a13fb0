"""The loss of every arm along training, and each variant's difference to the baseline at the same place of the same seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ablationlab.analysis.stability import UNSTABLE, EndedRun
from ablationlab.core.grouping import grouped
from ablationlab.records.analysis import RunStability, Seed
from ablationlab.records.courses import ArmCourse, LossCurves
from ablationlab.records.table_curves import TableRun
from ablationlab.stats._common import FloatArray
from ablationlab.stats.centres import centred
from ablationlab.stats.curves import POINTS, binned

LEVEL: Final = 0.95
_DIGITS: Final = 5


@dataclass(frozen=True)
class RunLoss:
    """A run's loss curve; *length*: the steps of its budget. *lost*: it diverged, so no loss follows its last."""

    variant: str
    regime: str
    seed: Seed
    steps: FloatArray
    losses: FloatArray
    length: int
    lost: bool = False
    unstable: bool = False


def courses_of(
    runs: Iterable[RunStability], done: Mapping[str, EndedRun], baseline: str, variants: Sequence[str]
) -> LossCurves | None:
    """Of runs of the package or of the user's own trainer: every step where all have them, else their thinned curves."""
    ended = [(run, done[run.run]) for run in runs if run.run in done and run.variant in variants]
    if not ended:
        return None
    whole = all(_every_step(run) for _, run in ended)
    found = []
    for stability, run in ended:
        if whole:
            steps, losses = run.run.curves["step"], run.run.curves["loss"]
        elif (thinned := run.result.course.curve) is not None:
            steps, losses = np.array(thinned.steps, dtype=np.float64), np.array(thinned.losses)
        else:
            steps = losses = np.empty(0)
        length = stability.steps or run.result.steps
        lost = run.result.status == "diverged"
        unstable = stability.reason in UNSTABLE
        key = (stability.variant, stability.regime, stability.seed)
        found.append(RunLoss(*key, steps, losses, max(length, run.result.steps), lost, unstable))
    kinds = {None if (curve := run.result.course.curve) is None else curve.metric for _, run in ended} - {None}
    if not whole and len(kinds) != 1:
        return None
    metric = "loss" if whole else str(kinds.pop())
    return courses(found, metric, baseline, variants, whole=whole)


def _every_step(run: EndedRun) -> bool:
    """Whether its log is kept, and has the loss of each step: a user's own trainer may write some alone."""
    losses = run.run.curves.get("loss")
    return losses is not None and losses.size >= run.result.steps


def table_courses(
    tables: Iterable[TableRun], metric: str, baseline: str, variants: Sequence[str], *, unpaired: bool
) -> LossCurves | None:
    """Of a user's table that has the curves of its primary metric. Where equal seeds mean nothing, there are no pairs."""
    runs = []
    for table in tables:
        values = table.curves.get(metric, np.empty(0))
        there = np.isfinite(values)
        if there.any():
            steps, losses = table.curves["step"][there], values[there]
            seed = table.id if unpaired else table.seed
            runs.append(RunLoss(table.variant, table.regime, seed, steps, losses, table.steps))
    return courses(runs, metric, baseline, variants, whole=False) if runs else None


def courses(
    runs: Sequence[RunLoss], metric: str, baseline: str, variants: Sequence[str], *, whole: bool
) -> LossCurves | None:
    """By regime and arm, the baseline first in each regime; *whole*: curves have every step, and points are means of some."""
    by_regime = grouped((run.regime, run) for run in runs)
    unequal = any(len({run.length for run in there}) > 1 for there in by_regime.values())
    arms = [
        arm
        for regime, there in by_regime.items()
        for arm in _regime(regime, there, baseline, variants, whole=whole, shares=unequal)
    ]
    longest = max(run.length for run in runs)
    per_point = max(1.0, longest / POINTS) if whole else None
    if not arms:
        return None
    return LossCurves(metric=metric, along="share" if unequal else "steps", steps_per_point=per_point, arms=tuple(arms))


def _regime(
    regime: str, runs: Sequence[RunLoss], baseline: str, variants: Sequence[str], *, whole: bool, shares: bool
) -> Iterable[ArmCourse]:
    longest = max(runs, key=lambda run: (run.length, run.steps.size))
    if longest.length < 2 or not any(run.steps.size for run in runs):
        return
    if whole:
        every = np.arange(1, longest.length + 1)
        at_S = binned(every, every, longest.length, min(POINTS, longest.length)) / longest.length
    else:
        complete = max(runs, key=lambda run: run.steps.size)
        at_S = complete.steps / complete.length
    read = {(run.variant, run.seed): (_read(run, at_S, whole=whole), run) for run in runs}
    places = _stored(at_S if shares else at_S * longest.length)
    for variant in dict.fromkeys((baseline, *variants)):
        own = {seed: found for (name, seed), found in read.items() if name == variant}
        if not own:
            continue
        pairs = {seed: (found, read[baseline, seed]) for seed, found in own.items() if (baseline, seed) in read}
        asked = [run for _, run in own.values()] + [run for _, (_, run) in pairs.values()]
        median = any(run.lost or run.unstable for run in asked)
        values = np.array([np.where(np.isnan(loss) & run.lost, np.inf, loss) for loss, run in own.values()])
        losses, _, _ = centred(values, level=LEVEL, median=median)
        course = ArmCourse(
            variant=variant,
            regime=regime,
            n=len(own),
            centre="median" if median else "mean",
            level=None,
            places=tuple(place or 0.0 for place in places),
            losses=_stored(losses),
        )
        if variant == baseline or not pairs:
            yield course
            continue
        found = centred(np.array([_difference(*pair) for pair in pairs.values()]), level=LEVEL, median=median)
        difference, low, high = map(_stored, found)
        known = any(end is not None for end in (*low, *high))
        yield course.model_copy(
            update={
                "n": len(pairs),
                "level": LEVEL if known else None,
                "difference": difference,
                "low": low if known else (),
                "high": high if known else (),
            }
        )


def _read(run: RunLoss, at_S: FloatArray, *, whole: bool) -> FloatArray:
    """Its losses at these shares of its length; NaN where it has none."""
    if whole:
        return binned(run.steps, run.losses, run.length, at_S.size)
    if not run.steps.size:
        return np.full(at_S.size, np.nan)
    at = np.round(at_S * run.length, 6)
    read: FloatArray = np.interp(at, run.steps, run.losses, left=np.nan, right=np.nan)
    return read


def _difference(ours: tuple[FloatArray, RunLoss], theirs: tuple[FloatArray, RunLoss]) -> FloatArray:
    """Variant - baseline; infinite where one of them has diverged, and NaN where both have, or a loss is not known."""
    (a, variant), (b, reference) = ours, theirs
    made: FloatArray = a - b
    lost_a, lost_b = (np.isnan(a) & variant.lost), (np.isnan(b) & reference.lost)
    made[lost_a & ~np.isnan(b)] = np.inf
    made[lost_b & ~np.isnan(a)] = -np.inf
    return made


def _stored(values: FloatArray) -> tuple[float | None, ...]:
    return tuple(float(f"{value:.{_DIGITS}g}") if np.isfinite(value) else None for value in values)
