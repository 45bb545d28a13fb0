"""One results folder, cut into disjoint studies of a few pairs, each a dataset for the ordinary analysis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ablationlab.analysis import read_results
from ablationlab.analysis.dataset import Arm, Dataset, Value, absent
from ablationlab.analysis.stability import diverged
from ablationlab.analysis.sweeps import METRIC
from ablationlab.core.errors import StatisticsError
from ablationlab.core.format import setting
from ablationlab.core.grouping import grouped
from ablationlab.records.analysis import Absence, RunStability, Seed, SweepAnalysis, SweepPoint
from ablationlab.records.plan import Plan
from ablationlab.records.results import Results
from ablationlab.records.settings import DEFAULT_REGIME, Study
from ablationlab.study.ledger import record_mismatches, refuse

FEWEST_STUDIES: Final = 10


@dataclass(frozen=True)
class Cut:
    """The studies of a folder: the whole dataset, and the seeds of each study, in the order of the study file."""

    dataset: Dataset
    groups: tuple[tuple[Seed, ...], ...]
    incomplete: int
    left_over: int

    def studies(self) -> list[Dataset]:
        values = _by_seed(self.dataset.values)
        runs = grouped((run.seed, run) for run in self.dataset.runs)
        return [study_of(self.dataset, group, number, values, runs) for number, group in enumerate(self.groups)]


def read_exchangeable(folder: Path) -> tuple[Dataset, Study, Plan]:
    """The dataset of a folder whose arms are exchangeable by construction; any other is refused."""
    dataset = read_results(folder)
    plan = Results.open(folder, strict=True).plan
    assert plan is not None  # read_results refuses a folder without one
    refuse_other_arms(plan, folder)
    return dataset, plan.study, plan


def refuse_other_arms(plan: Plan, folder: Path) -> None:
    """Only redraws of the baseline are exchangeable with it; with any other arm the truth is not known."""
    study = plan.study
    if study.regimes:
        raise StatisticsError(f"{folder}: validation knows the default regime alone, not {', '.join(study.regimes)}")
    models = {run.variant: run.model.changed(redraw=0) for run in plan.runs}
    other = [name for name in study.variants if models[name] != models[study.baseline]]
    if other:
        raise StatisticsError(
            f"{folder}: {', '.join(other)} and {study.baseline} are not exchangeable, so nobody knows what a right answer "
            "would be. Arms that can be validated are redraws of the baseline, with model.redraw set "
            "(studies/validation-aa.toml)"
        )
    if len(study.variants) < 2:
        raise StatisticsError(f"{folder}: a single arm compares with nothing")
    if not any(criterion.role == "primary" for criterion in study.criteria):
        raise StatisticsError(f"{folder}: no primary criterion is registered, so there is no decision to validate")


def cut(dataset: Dataset, pairs: int) -> Cut:
    """Consecutive seeds, *pairs* at a time; a study with an unfinished run is set aside and counted.

    A diverged run is an outcome: its study stays, and the registered rule for diverged runs judges it.
    """
    if pairs < 3:
        raise StatisticsError(f"--pairs {pairs}: fewer than 3 pairs give no interval")
    dataset = _deciding(dataset)
    whole = [dataset.seeds[i : i + pairs] for i in range(0, len(dataset.seeds) - pairs + 1, pairs)]
    missing = {run.seed for run in dataset.runs if run.state == "missing"}
    groups = tuple(tuple(group) for group in whole if not missing.intersection(group))
    if len(groups) < FEWEST_STUDIES:
        raise StatisticsError(
            f"{len(groups)} complete studies of {pairs} pairs in {len(dataset.seeds)} seeds"
            f"{f' ({len(whole) - len(groups)} have unfinished runs)' if len(whole) > len(groups) else ''}: a rate needs at "
            f"least {FEWEST_STUDIES} studies, better hundreds"
        )
    return Cut(dataset, groups, len(whole) - len(groups), len(dataset.seeds) - pairs * len(whole))


def _deciding(dataset: Dataset) -> Dataset:
    """The default regime and the metrics that a decision can depend on: those asked about, and the tie-breakers."""
    asked = {criterion.metric for criterion in dataset.criteria}
    ties = {name for name, metric in dataset.metrics.items() if {name, metric.family} & set(dataset.tie_breakers)}
    values = {
        arm: by_seed
        for arm, by_seed in dataset.values.items()
        if arm.regime == DEFAULT_REGIME and arm.metric in asked | ties
    }
    return replace(
        dataset,
        regimes=(DEFAULT_REGIME,),
        criteria=tuple(criterion for criterion in dataset.criteria if criterion.regime == DEFAULT_REGIME),
        values=values,
        runs=tuple(run for run in dataset.runs if run.regime == DEFAULT_REGIME),
        own_seeds={},
        sweep=None,
        crossing=None,
        ledger=None,
        deviations=(),
    )


def study_of(
    dataset: Dataset,
    seeds: Sequence[Seed],
    number: int,
    values: Mapping[Seed, Mapping[Arm, Value]],
    runs: Mapping[Seed, Sequence[RunStability]],
) -> Dataset:
    """One small study of the big one, as if these seeds were all that there is."""
    return replace(
        dataset,
        source_hash=f"{dataset.source_hash}/{number}",
        seeds=tuple(seeds),
        values={arm: {seed: values[seed][arm] for seed in seeds if arm in values[seed]} for arm in dataset.values},
        runs=tuple(run for seed in seeds for run in runs.get(seed, ())),
    )


def _by_seed(values: Mapping[Arm, Mapping[Seed, Value]]) -> dict[Seed, dict[Arm, Value]]:
    by_seed: dict[Seed, dict[Arm, Value]] = {}
    for arm, of_arm in values.items():
        for seed, value in of_arm.items():
            by_seed.setdefault(seed, {})[arm] = value
    return by_seed


@dataclass(frozen=True)
class Dose:
    """A variant at one rate of the sweep against the baseline at the study's own: values of both arms by seed."""

    variant: str
    lr: float
    dataset: Dataset
    calibration: tuple[tuple[float, float], ...]
    lost: int


def doses(dataset: Dataset, study: Study, folder: Path) -> tuple[float, list[Dose]]:
    """The study's own rate, and every variant at every rate of its sweep; empty without a sweep."""
    sweep, base = dataset.sweep, study.in_regime(DEFAULT_REGIME)[1].lr
    if sweep is None:
        return base, []
    if sweep.stages == 2:
        raise StatisticsError(f"{folder}: a sweep of two stages judges one rate of each arm, so it injects no effects")
    if not sweep.selection_seeds:
        raise StatisticsError(f"{folder}: the sweep has no selection_seeds, which calibrate the injected effects")
    if study.sweep is not None and study.sweep.variant_lr:
        raise StatisticsError(
            f"{folder}: injected effects need one grid for all variants, and the sweep has variant_lr"
        )
    if base not in sweep.rates:
        raise StatisticsError(
            f"{folder}: the study's own rate {setting(base)} must be one of the sweep's, to be compared with"
        )
    if dataset.primary != METRIC:
        raise StatisticsError(
            f"{folder}: injected effects are judged on {METRIC}, but the primary metric is {dataset.primary}"
        )
    points = {(point.variant, point.lr, point.seed): point for point in sweep.points}
    injected = [
        _dose(dataset, study, points, name, lr)
        for name in study.variants
        if name != study.baseline
        for lr in sorted(sweep.rates, reverse=True)
    ]
    _check(study, Results.open(folder, strict=True), sweep)
    return base, injected


def _dose(
    dataset: Dataset,
    study: Study,
    points: Mapping[tuple[str, float, int], SweepPoint],
    variant: str,
    lr: float,
) -> Dose:
    base = study.in_regime(DEFAULT_REGIME)[1].lr
    assert study.sweep is not None
    both = [(points[variant, lr, seed], points[study.baseline, base, seed]) for seed in study.sweep.selection_seeds]
    pairs = tuple((a.loss, b.loss) for a, b in both if a.loss is not None and b.loss is not None)
    seeds = study.judging_seeds()
    arms: dict[Arm, dict[Seed, Value]] = {
        Arm(METRIC, None, DEFAULT_REGIME, name): {seed: _value(points[name, rate, seed]) for seed in seeds}
        for name, rate in ((variant, lr), (study.baseline, base))
    }
    runs = [points[name, rate, seed] for name, rate in ((study.baseline, base), (variant, lr)) for seed in seeds]
    dosed = replace(
        dataset,
        variants=(study.baseline, variant),
        seeds=seeds,
        contrasts=(),
        criteria=tuple(c for c in dataset.criteria if c.metric == METRIC and c.contrast is None),
        values=arms,
        runs=tuple(runs),
    )
    return Dose(variant, lr, dosed, pairs, len(both) - len(pairs))


def _value(point: SweepPoint) -> Value:
    if point.loss is not None:
        return point.loss
    if point.state == "diverged":
        return diverged(point.divergence)
    return absent(Absence.NOT_FINISHED if point.state == "missing" else Absence.NOT_RECORDED)


def _check(study: Study, results: Results, sweep: SweepAnalysis) -> None:
    """The baseline at every rate against itself at the study's own: nothing but the rate may differ.

    Variant and baseline at one rate were compared when the folder was read, so the rate is all that a dose adds.
    """
    runs = {(run.lr, run.seed): run for run in results.runs if run.variant == study.baseline}
    for seed in (*sweep.selection_seeds, *sweep.seeds):
        own = runs[study.in_regime(DEFAULT_REGIME)[1].lr, seed]
        reference = own.record
        if not own.done or reference is None:
            continue
        for lr in sweep.rates:
            other = runs[lr, seed]
            record = other.record
            if lr != study.in_regime(DEFAULT_REGIME)[1].lr and other.done and record is not None:
                refuse(record.id, reference.id, record_mismatches(record, reference, tuned=("training.lr",)))
