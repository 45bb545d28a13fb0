"""The same curves at another budget: loss at equal tokens, FLOPs and time, and the tokens that a loss takes.

Runs are paired by seed and read by `stats.curves`; intervals are t intervals over seeds, of log ratios for the tokens. All of
it is exploratory. A curve that is read before its end has not had the end of its schedule, where the loss falls fastest, so a
costlier arm looks worse here than it would in a study whose budget matches that cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import numpy as np

from ablationlab.analysis.stability import EndedRun
from ablationlab.records.analysis import CurveReading, ReadingGap, ReadingKind, Readings, SeedValue
from ablationlab.records.plan import Plan
from ablationlab.records.settings import TUNED
from ablationlab.stats import paired_t_interval
from ablationlab.stats.curves import LossCurve, at_equal_cost, at_equal_loss

LEVEL: Final = 0.95
CurveName = Literal["curve_loss", "loss"]


def readings(plan: Plan, done: Sequence[EndedRun], tuned: Sequence[EndedRun] = ()) -> Readings | None:
    """Of every variant in every regime, and of the arms at their own chosen rates; None where no two runs have curves."""
    runs = {
        (ended.record.variant, ended.record.regime, ended.record.seed): ended
        for ended in done
        if ended.run.planned.role == "compared" and ended.result.status == "finished"
    }
    runs |= {
        (ended.record.variant, TUNED, ended.record.seed): ended for ended in tuned if ended.result.status == "finished"
    }
    regimes = dict.fromkeys(plan.study.regime_names(), plan.study.seeds)
    regimes |= {TUNED: plan.study.judging_seeds()} if tuned else {}
    curve = _curve_name(runs.values())
    if curve is None:
        return None
    baseline = plan.study.baseline
    match = plan.study.budget.match
    kinds: list[ReadingKind] = [kind for kind in ("tokens", "flops", "time") if kind != match]
    timed = _timed_together(runs.values())
    parts = [
        _reading(plan, kind, variant, regime, seeds, runs, timed)
        for regime, seeds in regimes.items()
        for variant in plan.study.variants
        if variant != baseline
        for kind in (*kinds, "efficiency")
    ]
    return Readings(
        curve=curve, match=match, clock="evaluation" if timed else "training", level=LEVEL, readings=tuple(parts)
    )


Runs = Mapping[tuple[str, str, int], EndedRun]


def _curve_name(runs: Iterable[EndedRun]) -> CurveName | None:
    """The loss that every run has a curve of."""
    curves = [ended.result.course.curve for ended in runs]
    names = {None if curve is None else curve.metric for curve in curves}
    return names.pop() if len(names) == 1 else None


def _timed_together(runs: Iterable[EndedRun]) -> bool:
    """Whether the evaluation timed all runs in turn, in one process."""
    groups = {
        None if (scores := ended.run.evaluation) is None or scores.throughput is None else scores.throughput.together
        for ended in runs
    }
    return len(groups) == 1 and None not in groups


def _reading(
    plan: Plan, kind: ReadingKind, variant: str, regime: str, seeds: Sequence[int], runs: Runs, timed: bool
) -> CurveReading:
    baseline = plan.study.baseline
    pairs = {
        seed: (runs[variant, regime, seed], runs[baseline, regime, seed])
        for seed in seeds
        if (variant, regime, seed) in runs and (baseline, regime, seed) in runs
    }
    empty = CurveReading(kind=kind, variant=variant, regime=regime, planned=len(seeds))
    gap = _gap(plan, kind, variant, list(pairs.values()), timed)
    if gap is not None:
        return empty.model_copy(update={"gap": gap})
    values: dict[int, float] = {}
    shares: list[tuple[float, float]] = []
    reached = 0
    for seed, pair in pairs.items():
        ours, theirs = (_curve(ended, kind, timed) for ended in pair)
        if kind == "efficiency":
            if (equal_loss := at_equal_loss(ours, theirs)) is not None:
                values[seed] = equal_loss.ratio
                reached += equal_loss.reached
        elif (equal_cost := at_equal_cost(ours, theirs)) is not None:
            values[seed] = equal_cost.delta
            shares.append((equal_cost.variant_share, equal_cost.reference_share))
    if not values:
        return empty.model_copy(update={"gap": ReadingGap.TOO_COARSE})
    log = kind == "efficiency"
    interval = paired_t_interval([math.log(v) for v in values.values()] if log else list(values.values()), level=LEVEL)
    estimate, low, high = (
        None if bound is None else math.exp(bound) if log else bound
        for bound in (interval.estimate, interval.low, interval.high)
    )
    return CurveReading(
        kind=kind,
        variant=variant,
        regime=regime,
        n=len(values),
        planned=len(seeds),
        values=tuple(SeedValue(seed=seed, value=value) for seed, value in values.items()),
        estimate=estimate,
        low=low,
        high=high,
        variant_share=float(np.mean([share[0] for share in shares])) if shares else None,
        baseline_share=float(np.mean([share[1] for share in shares])) if shares else None,
        reached=reached if log else None,
    )


def _gap(
    plan: Plan, kind: ReadingKind, variant: str, pairs: Sequence[tuple[EndedRun, EndedRun]], timed: bool
) -> ReadingGap | None:
    """Why a reading cannot be had."""
    if not pairs:
        return ReadingGap.NO_PAIR
    if plan.variants[variant].data or plan.variants[plan.study.baseline].data:
        return ReadingGap.OTHER_TEXT
    everyone = [ended for pair in pairs for ended in pair]
    if kind == "flops" and any(ended.result.matmul_flops is None for ended in everyone):
        return ReadingGap.NOT_REPORTED
    if kind in ("tokens", "efficiency") and any(ended.result.tokens is None for ended in everyone):
        return ReadingGap.NOT_REPORTED
    if kind != "time" or timed:
        return None
    if any(ended.record.recipe is None for ended in everyone):
        return ReadingGap.NOT_REPORTED
    if any(plan.reused_from(ended.run.id) is not None for ended in everyone):
        return ReadingGap.OTHER_CONDITIONS  # of another day
    stacks = [{pair[side].run.planned.stack for pair in pairs} for side in (0, 1)]
    if stacks[0] & stacks[1]:
        return ReadingGap.SHARED_STACK
    where = {
        (start.device_name, start.threads, start.parallel, start.ranks)
        for ended in everyone
        for start in ended.result.history
    }
    return ReadingGap.OTHER_CONDITIONS if len(where) > 1 else None


def _curve(ended: EndedRun, kind: ReadingKind, timed: bool) -> LossCurve:
    """Losses by cost. A step costs the same from the first to the last."""
    result = ended.result
    cost: float
    if kind == "time":
        throughput = ended.run.evaluation.throughput if timed and ended.run.evaluation is not None else None
        if throughput is not None and result.tokens is not None:
            cost = result.tokens / throughput.training_tokens_per_second
        else:
            cost = result.timing.train_seconds
    else:
        total = result.matmul_flops if kind == "flops" else result.tokens
        assert total is not None, "`_gap` has looked"
        cost = total
    curve = result.course.curve
    assert curve is not None, "`_curve_name` has looked"
    return LossCurve.of(np.array(curve.steps) * (cost / result.steps), curve.losses, cost)
