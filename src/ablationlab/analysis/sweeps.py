"""A sweep over learning rates: curves, sensitivity, the best rate per variant, and each variant judged at its own.

The rate is chosen on the selection seeds alone and judged on the others, so that no arm is judged on the noise that chose
it. That does not protect from the grid: two arms with one curve, shifted, lie unequally far from their nearest grid
rates. So the loss of tuned arms is that at the fitted optimum (`stats.tuned`), and an arm without one has no tuned loss.
Where the baseline has none, all arms are compared at the chosen grid rates, without a verdict. Functions of the loss
follow its fit, and its doubt. All other metrics are those of the runs at the chosen grid rates, and say so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import stdev
from sys import float_info
from typing import Any, Final, Literal

from ablationlab.analysis.dataset import Absent, Arm, Values, absent
from ablationlab.analysis.stability import EndedRun, ended_run, stability_of, value_of
from ablationlab.core.errors import StatisticsError
from ablationlab.records.analysis import (
    Absence,
    ChosenRate,
    RateSensitivity,
    RateSensitivitySummary,
    RunStability,
    SweepAnalysis,
    SweepCurve,
    SweepPoint,
    TunedMinimum,
)
from ablationlab.records.metrics import Metric
from ablationlab.records.plan import Plan, PlannedRun, TwoStages
from ablationlab.records.results import Run
from ablationlab.records.settings import DEFAULT_REGIME, SWEEP, TUNED, Study, Sweep, Trial
from ablationlab.stats import paired_t_interval
from ablationlab.stats.rates import best_rate, counted_loss, lr_sensitivity
from ablationlab.stats.results import Doubt, FittedMinimum
from ablationlab.stats.tuned import fitted_minimum
from ablationlab.study.ledger import environment_mismatches, record_mismatches, refuse
from ablationlab.study.stages import StageLosses

#: What a sweep is judged by.
METRIC: Final = "validation_loss"
LEVEL: Final = 0.95
#: The largest loss that has a perplexity.
_LARGEST_LOSS: Final = log(float_info.max)


@dataclass(frozen=True)
class Swept:
    """What a sweep adds to the material: its part of the analysis, values to compare, runs at the tuned rates."""

    part: SweepAnalysis
    values: Values
    doubts: Mapping[Arm, Doubt]
    runs: tuple[RunStability, ...]
    checked_pairs: int


@dataclass(frozen=True)
class _Grid:
    """The runs of the sweep by variant, rate and seed."""

    study: Study
    sweep: Sweep
    planned: Mapping[tuple[str, Trial, int], PlannedRun]
    done: Mapping[str, EndedRun]

    def run(self, variant: str, lr: Trial, seed: int) -> EndedRun | None:
        planned = self.planned.get((variant, lr, seed))
        return None if planned is None else self.done.get(planned.id)

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.study.sweep_seeds()


def swept(
    study: Study, plan: Plan, done: Sequence[EndedRun], names: Sequence[str], pairs: Sequence[tuple[str, str]]
) -> Swept | None:
    """Everything the sweep of a study gives; None without one. *names* are the metrics to compare at the tuned rates."""
    if study.sweep is None:
        return None
    cells = {
        (run.variant, study.sweep.trial_of(run.training), run.seed): run
        for run in plan.runs
        if run.regime == DEFAULT_REGIME and run.role in ("compared", "sweep")
    }
    grid = _Grid(study, study.sweep, cells, {ended.run.id: ended for ended in done})
    if plan.tuned is not None:
        return _judged(grid, plan, plan.tuned, names, pairs)
    points = _points(grid)
    by_cell = {(point.variant, point.lr, point.seed): point for point in points}
    sensitivities = [
        _sensitivity(variant, seed, [by_cell[variant, lr, seed] for lr in study.sweep.rates(variant)])
        for variant in study.variants
        for seed in grid.seeds
    ]
    best = [_best(grid, by_cell, variant) for variant in study.variants] if study.sweep.selection_seeds else []
    rates = {choice.variant: choice.lr for choice in best if choice.lr is not None}
    minima = {variant: _minimum(grid, by_cell, variant) for variant in rates}
    base = minima.get(study.baseline)
    tuned_at: Literal["fitted-minima", "grid-rates"] | None = None
    if rates:
        tuned_at = "fitted-minima" if base is not None and base.status == "ok" else "grid-rates"
    part = SweepAnalysis(
        metric=METRIC,
        rates=study.sweep.all_rates(),
        selection_seeds=study.sweep.selection_seeds,
        seeds=study.judging_seeds(),
        points=tuple(points),
        curves=tuple(
            _curve(variant, lr, [by_cell[variant, lr, seed] for seed in grid.seeds])
            for variant in study.variants
            for lr in study.sweep.rates(variant)
        ),
        sensitivities=tuple(sensitivities),
        summaries=tuple(_summary(name, [s for s in sensitivities if s.variant == name]) for name in study.variants),
        best=tuple(best),
        tuned_at=tuned_at,
        minima=tuple(TunedMinimum(variant=variant, minimum=minimum) for variant, minimum in minima.items()),
        comparisons=(),
    )
    values = _over_the_sweep(grid, sensitivities, points) | _tuned_values(grid, rates, names)
    doubts: dict[Arm, Doubt] = {}
    if tuned_at == "fitted-minima":
        fitted, doubts = _fitted(grid, minima, [plan.metrics[name] for name in names if name in plan.metrics])
        values |= fitted
    return Swept(
        part=part,
        values=values,
        doubts=doubts,
        runs=tuple(_tuned_runs(grid, rates)),
        checked_pairs=_check_tuned(grid, rates, pairs),
    )


def _judged(grid: _Grid, plan: Plan, tuned: TwoStages, names: Sequence[str], pairs: Sequence[tuple[str, str]]) -> Swept:
    """What a sweep of two stages gives: the runs that are judged, each variant at the rate found before the plan."""
    study, seeds = grid.study, grid.study.judging_seeds()
    rates = {variant: grid.sweep.trials(variant)[0] for variant in study.variants}
    points = _points(grid)
    known = {name for name, minimum in tuned.minima.items() if minimum.status == "ok"}
    values, doubts = _tuned_values(grid, rates, names), dict[Arm, Doubt]()
    for metric in (plan.metrics[name] for name in names if name in plan.metrics):
        if METRIC not in (metric.name, metric.derived_from) or study.baseline not in known:
            continue
        for variant in study.variants:
            arm, scale = Arm(metric.name, None, TUNED, variant), _per_nat(grid, variant, metric)
            if variant in known and scale is not None:
                doubts[arm] = Doubt(
                    below=scale * tuned.minima[variant].doubt
                )  # at its rate, never better than at its best
            else:
                values[arm] = dict.fromkeys(seeds, absent(Absence.NO_BEST_RATE))
    part = SweepAnalysis(
        metric=METRIC,
        rates=grid.sweep.all_rates(),
        selection_seeds=study.choosing_seeds(),
        seeds=seeds,
        points=tuple(points),
        curves=tuple(
            _curve(variant, grid.sweep.rates(variant)[0], [point for point in points if point.variant == variant])
            for variant in rates
        ),
        sensitivities=(),
        summaries=(),
        best=tuple(
            ChosenRate(
                variant=variant,
                lr=grid.sweep.rates(variant)[0],
                chosen_on=study.choosing_seeds(),
                judged_on=seeds,
                edge=tuned.minima[variant].status == "grid-edge",
            )
            for variant in rates
        ),
        tuned_at="fitted-minima" if study.baseline in known else "grid-rates",
        minima=tuple(TunedMinimum(variant=variant, minimum=minimum) for variant, minimum in tuned.minima.items()),
        comparisons=(),
        stages=2,
        second=None if grid.sweep.second is None else grid.sweep.second.setting,
    )
    return Swept(part, values, doubts, tuple(_tuned_runs(grid, rates)), _check_tuned(grid, rates, pairs))


def stage_losses(runs: Sequence[Run], plan: Plan) -> StageLosses:
    """The counted losses of a stage of a sweep, of the variants whose runs all have one; the baseline must."""
    study = plan.study
    assert study.sweep is not None
    sweep = study.sweep
    cells = {(run.variant, sweep.trial_of(run.training), run.seed): run for run in plan.runs}
    done = {ended.run.id: ended for run in runs if (ended := ended_run(run)) is not None}
    points = _points(_Grid(study, sweep, cells, done))
    missing = {point.variant: point.run for point in points if point.counted is None}
    if study.baseline in missing:
        raise StatisticsError(f"{missing[study.baseline]} has no loss, so the sweep cannot choose the baseline's rate")
    losses: dict[str, dict[Trial, list[float]]] = {}
    trials = {run.id: trial for (_, trial, _), run in cells.items()}
    for point in (point for point in points if point.variant not in missing):
        losses.setdefault(point.variant, {}).setdefault(trials[point.run], []).append(point.counted or 0.0)
    return losses


def _points(grid: _Grid) -> list[SweepPoint]:
    return [
        _point(grid, variant, lr, seed)
        for variant in grid.study.variants
        for lr in grid.sweep.trials(variant)
        for seed in grid.seeds
    ]


def _point(grid: _Grid, variant: str, lr: Trial, seed: int) -> SweepPoint:
    planned = grid.planned[variant, lr, seed]
    run = grid.done.get(planned.id)
    stable = stability_of(planned, run, grid.study.stability)
    # The loss before the first update is the same at every rate: any of them can tell it.
    runs = [grid.run(variant, rate, seed) for rate in grid.sweep.trials(variant)]
    starts = [other.result.course.initial_loss for other in runs if other is not None]
    initial = next((loss for loss in starts if loss is not None), None)
    loss = value_of(run, METRIC)
    diverged = isinstance(loss, Absent) and loss.reason == Absence.DIVERGED
    final = None if isinstance(loss, Absent) else loss
    counted = counted_loss(final, initial) if initial is not None and (diverged or final is not None) else None
    swept = {
        "use": "selection" if seed in grid.sweep.selection_seeds else "judging",
        "loss": final,
        "initial_loss": initial,
        "counted": counted,
        "clipped": counted is not None and (final is None or final > counted),
    }
    return SweepPoint.model_validate(dict(stable) | swept)


def _curve(variant: str, lr: float, points: Sequence[SweepPoint]) -> SweepCurve:
    counted = [point.counted for point in points if point.counted is not None]
    return SweepCurve(
        variant=variant,
        lr=lr,
        **_spread(counted),
        diverged=sum(point.state == "diverged" for point in points),
        clipped=sum(point.clipped for point in points),
        unstable=sum(bool(point.unstable) for point in points),
    )


def _spread(values: Sequence[float]) -> dict[str, Any]:
    """Number, mean, SD and the bounds of a t interval; None where there are too few."""
    if not values:
        return {"n": 0, **dict.fromkeys(("mean", "sd", "low", "high"))}
    interval = paired_t_interval(values, level=LEVEL)
    sd = stdev(values) if len(values) > 1 else None
    return {"n": len(values), "mean": interval.estimate, "sd": sd, "low": interval.low, "high": interval.high}


def _sensitivity(variant: str, seed: int, points: Sequence[SweepPoint]) -> RateSensitivity:
    missing = _without_loss(points)
    flags = [point.unstable for point in points]
    share = None if None in flags else sum(map(bool, flags)) / len(flags)
    if missing:
        return RateSensitivity(variant=variant, seed=seed, unstable_share=share, missing=missing)
    counted = {point.lr: point.counted for point in points if point.counted is not None}
    best = best_rate({lr: [loss] for lr, loss in counted.items()})
    return RateSensitivity(
        variant=variant,
        seed=seed,
        sensitivity=lr_sensitivity(list(counted), list(counted.values())),
        best_lr=best.lr,
        best_loss=best.mean_loss,
        unstable_share=share,
    )


def _summary(variant: str, sensitivities: Sequence[RateSensitivity]) -> RateSensitivitySummary:
    values = [s.sensitivity for s in sensitivities if s.sensitivity is not None]
    return RateSensitivitySummary(variant=variant, **_spread(values), level=LEVEL)


def _best(grid: _Grid, points: Mapping[tuple[str, float, int], SweepPoint], variant: str) -> ChosenRate:
    chosen_on, judged_on = grid.sweep.selection_seeds, grid.study.judging_seeds()
    losses = {lr: [points[variant, lr, seed].counted for seed in chosen_on] for lr in grid.sweep.rates(variant)}
    counted = {lr: [loss for loss in seed_losses if loss is not None] for lr, seed_losses in losses.items()}
    missing = tuple(lr for lr, seed_losses in counted.items() if len(seed_losses) < len(chosen_on))
    if missing:
        return ChosenRate(variant=variant, chosen_on=chosen_on, judged_on=judged_on, missing=missing)
    best = best_rate(counted)
    return ChosenRate(
        variant=variant,
        lr=best.lr,
        mean_loss=best.mean_loss,
        chosen_on=chosen_on,
        judged_on=judged_on,
        edge=best.edge,
    )


def _minimum(grid: _Grid, points: Mapping[tuple[str, float, int], SweepPoint], variant: str) -> FittedMinimum | None:
    """The fit over the judging seeds, as they count; None where one of them has no loss at some rate."""
    losses: dict[float, list[float]] = {}
    for lr in grid.sweep.rates(variant):
        counted = [points[variant, lr, seed].counted for seed in grid.study.judging_seeds()]
        losses[lr] = [loss for loss in counted if loss is not None]
        if len(losses[lr]) < len(counted):
            return None
    return fitted_minimum(losses)


def _fitted(
    grid: _Grid, minima: Mapping[str, FittedMinimum | None], metrics: Sequence[Metric]
) -> tuple[Values, dict[Arm, Doubt]]:
    """The loss at the fitted best rate and its functions, and how far each may be off on the scale that it is tested on.

    Absent, never that at a grid rate, where an arm has no fit beside others that do.
    """
    seeds = grid.study.judging_seeds()
    values: Values = {}
    doubts: dict[Arm, Doubt] = {}
    for variant, minimum in minima.items():
        for metric in metrics:
            if METRIC not in (metric.name, metric.derived_from):
                continue
            arm, scale = Arm(metric.name, None, TUNED, variant), _per_nat(grid, variant, metric)
            if minimum is None or minimum.status != "ok" or scale is None:
                values[arm] = dict.fromkeys(seeds, absent(Absence.NO_BEST_RATE))
                continue
            if metric.transform == "log" and max(minimum.values) > _LARGEST_LOSS:
                values[arm] = dict.fromkeys(seeds, absent(Absence.NOT_FINITE, value="inf"))
                continue
            at_best = (exp(loss) if metric.transform == "log" else scale * loss for loss in minimum.values)
            values[arm] = dict(zip(seeds, at_best, strict=True))
            doubts[arm] = Doubt(scale * minimum.doubt, scale * minimum.doubt)
    return values, doubts


def _per_nat(grid: _Grid, variant: str, metric: Metric) -> float | None:
    """By how much a function of the loss moves per nat, on the scale that it is tested on; None where no run tells it.

    The logarithm of the perplexity is the loss. Bits per byte are a multiple of it, the same in all runs on one text.
    """
    if metric.name == METRIC or metric.transform == "log":
        return 1.0
    for lr in grid.sweep.trials(variant):
        for seed in grid.seeds:
            run = grid.run(variant, lr, seed)
            value, loss = value_of(run, metric.name), value_of(run, METRIC)
            if not isinstance(value, Absent) and not isinstance(loss, Absent) and loss:
                return value / loss
    return None


def _over_the_sweep(grid: _Grid, sensitivities: Sequence[RateSensitivity], points: Sequence[SweepPoint]) -> Values:
    """What is measured over all rates; absent for a variant with rates of its own, whose range differs."""
    values: Values = {}
    pick: dict[str, Callable[[RateSensitivity], float | None]] = {
        "lr_sensitivity": lambda s: s.sensitivity,
        "unstable_share": lambda s: s.unstable_share,
    }
    for name, get in pick.items():
        for s in sensitivities:
            cell = values.setdefault(Arm(name, None, SWEEP, s.variant), {})
            if s.variant in grid.sweep.variant_lr:
                cell[s.seed] = absent(Absence.OWN_RATES)
                continue
            value = get(s)
            cell[s.seed] = value if value is not None else _absent(points, s)
    return values


def _absent(points: Sequence[SweepPoint], sensitivity: RateSensitivity) -> Absent:
    mine = [point for point in points if (point.variant, point.seed) == (sensitivity.variant, sensitivity.seed)]
    rates = _without_loss(mine)
    return absent(Absence.RATES_MISSING, rates=list(rates)) if rates else absent(Absence.RUN_MISSING)


def _without_loss(points: Sequence[SweepPoint]) -> tuple[float, ...]:
    return tuple(point.lr for point in points if point.counted is None)


def _tuned_values(grid: _Grid, rates: Mapping[str, Trial], names: Sequence[str]) -> Values:
    """Every metric of every judging seed, each variant at its own rate."""
    return {
        Arm(name, None, TUNED, variant): {
            seed: value_of(grid.run(variant, lr, seed), name) for seed in grid.study.judging_seeds()
        }
        for name in names
        for variant, lr in rates.items()
    }


def _tuned_runs(grid: _Grid, rates: Mapping[str, Trial]) -> list[RunStability]:
    """The same runs once more, under the name that the tuned comparisons stand under."""
    return [
        stability_of(planned, grid.done.get(planned.id), grid.study.stability).model_copy(update={"regime": TUNED})
        for variant, lr in rates.items()
        for seed in grid.study.judging_seeds()
        if (planned := grid.planned[variant, lr, seed])
    ]


def _check_tuned(grid: _Grid, rates: Mapping[str, Trial], pairs: Sequence[tuple[str, str]]) -> int:
    """The ledger over arms at different rates: nothing may differ but what the variants declare and the rate.

    Checked are runs at a rate that only their variant has, each with some run of the reference and its seed, and the tuned
    arms; runs at one rate are checked with all the others.
    """
    compared: dict[tuple[str, str], tuple[EndedRun, EndedRun]] = {}
    for variant, reference in pairs:
        shared = set(grid.sweep.trials(reference))
        for seed in grid.seeds:
            references = [grid.run(reference, lr, seed) for lr in grid.sweep.trials(reference)]
            other = next((run for run in references if run is not None), None)
            own = [grid.run(variant, lr, seed) for lr in grid.sweep.trials(variant) if lr not in shared]
            both = [(run, other) for run in own]
            if rates.get(variant) != rates.get(reference) and variant in rates and reference in rates:
                tuned = grid.run(variant, rates[variant], seed), grid.run(reference, rates[reference], seed)
                both += [tuned] if seed in grid.study.judging_seeds() else []
            compared |= {(a.run.id, b.run.id): (a, b) for a, b in both if a is not None and b is not None}
    for (ours, theirs), (a, b) in compared.items():
        differ = record_mismatches(a.record, b.record, tuned=grid.sweep.tunes)
        refuse(ours, theirs, differ + environment_mismatches(a.result, b.result))
    return len(compared)
