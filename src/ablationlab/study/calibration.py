"""Which value a calibration tries next, and which it settles on. Every try is a small study of baselines alone.

Bisection between two ends of which one breaks fewer baselines than wanted and the other more. It depends on nothing but the
counts of broken runs, so a calibration that was killed continues where it stopped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ablationlab.core.errors import PlanError
from ablationlab.core.format import percent, plain, setting
from ablationlab.records.plan import Calibrated, Try
from ablationlab.records.settings import Calibrate, EvaluationConfig, Study


def next_value(study: Study, regime: str, tries: Sequence[Try]) -> float | None:
    """The next value to try in a regime; None when its calibration is done.

    Raises `PlanError` where the ends do not lie on two sides of the target.
    """
    calibrate = study.regimes[regime].calibrate
    assert calibrate is not None
    if any(attempt.near(calibrate.target) for attempt in tries):
        return None
    if len(tries) < 2:
        return (calibrate.low, calibrate.high)[len(tries)]
    ends = tries[:2]
    if (ends[0].share < calibrate.target) == (ends[1].share < calibrate.target):
        counts = " and ".join(f"{end.broken} of {len(end.seeds)} at {setting(end.value)}" for end in ends)
        raise PlanError(
            f"{calibrate.setting} cannot be calibrated between {setting(calibrate.low)} and "
            f"{setting(calibrate.high)}: baselines that break are {counts}, and about {plain(percent(calibrate.target))} "
            "should. Choose ends on two sides of that"
        )
    if len(tries) >= calibrate.tries:
        return None
    breaks_above = ends[1].share > ends[0].share
    low, high = calibrate.low, calibrate.high
    for attempt in tries[2:]:
        if (attempt.share < calibrate.target) == breaks_above:
            low = attempt.value
        else:
            high = attempt.value
    middle = math.sqrt(low * high) if calibrate.scale == "log" else (low + high) / 2
    middle = round(middle) if _is_whole(study, regime, calibrate) else middle
    return None if middle in (low, high) else middle


def settled(calibrate: Calibrate, tries: Sequence[Try]) -> Calibrated:
    """The value whose number of broken baselines is nearest to the target, of those at which any breaks: a regime without a
    broken baseline can show nothing.

    Of equally near numbers the one nearer to half of the runs, then the larger one; of equal numbers the latest, which lies
    closest to where the share changes.
    """
    wanted = calibrate.target * len(calibrate.seeds)

    def distance(attempt: Try) -> tuple[bool, float, float, bool]:
        from_half = abs(attempt.broken - len(attempt.seeds) / 2)
        return attempt.broken == 0, round(abs(attempt.broken - wanted), 9), from_half, attempt.broken < wanted

    nearest = min(reversed(tries), key=distance)
    return Calibrated(setting=calibrate.setting, value=nearest.value, tries=tuple(tries))


def _is_whole(study: Study, regime: str, calibrate: Calibrate) -> bool:
    """Whether the setting is a whole number, as layers are."""
    part, key, _ = calibrate.place
    model, training = study.in_regime(regime)
    return isinstance(getattr(model if part == "model" else training, key), int)


def try_study(study: Study, regime: str, value: float) -> Study:
    """The baseline alone, in one regime at one value, on the calibration's own seeds."""
    calibrate = study.regimes[regime].calibrate
    assert calibrate is not None
    model, training = study.calibrated(regime, value).in_regime(regime)
    return Study(
        name=f"{study.name[:40]} calibration {regime[:20]} {value:.6g}",
        question=f"How many baselines break at {calibrate.setting} = {value:g}?",
        baseline=study.baseline,
        variants=(study.baseline,),
        tables=study.tables,
        seeds=calibrate.seeds,
        model=model,
        training=training,
        data=study.data,
        execution=study.execution,
        evaluation=EvaluationConfig(
            curve_every=study.evaluation.curve_every, curve_windows=study.evaluation.curve_windows
        ),
        stability=study.stability,
    )
