"""What an analysis starts from, wherever the runs came from: values by metric, task, regime, variant and seed; criteria."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal, NamedTuple

from pydantic import JsonValue

from ablationlab.core.grouping import grouped
from ablationlab.records.analysis import (
    MACRO,
    Absence,
    ComparedTask,
    Deviation,
    EvaluationAnalysis,
    LedgerCheck,
    NoiseSources,
    Readings,
    RunStability,
    Seed,
    SweepAnalysis,
)
from ablationlab.records.courses import Diagnostic, LossCurves
from ablationlab.records.fairness import FairCondition
from ablationlab.records.metrics import Metric
from ablationlab.records.settings import (
    DEFAULT_REGIME,
    SWEEP,
    TUNED,
    Criterion,
    Design,
    Hypothesis,
    Stability,
    Study,
    primary_criterion,
    registered_alpha,
)
from ablationlab.records.table_curves import TableRun
from ablationlab.stats import Sensitivity
from ablationlab.stats._common import LARGEST
from ablationlab.stats.results import NO_DOUBT, Doubt


class Arm(NamedTuple):
    """The values of one metric of one variant in one regime."""

    metric: str
    task: ComparedTask | None
    regime: str
    variant: str


@dataclass(frozen=True)
class Absent:
    """Why an arm has no value on a seed; *details* is what `wording.absence` needs to say it."""

    reason: Absence
    details: Mapping[str, JsonValue] = field(default_factory=dict)


Value = float | Absent
Values = dict[Arm, dict[Seed, Value]]


def absent(reason: Absence, **details: JsonValue) -> Absent:
    return Absent(reason, details)


def value_or_absent(value: float | None) -> Value:
    """A recorded value if it is a number that can be compared."""
    if value is None:
        return absent(Absence.NOT_RECORDED)
    if not math.isfinite(value):
        return absent(Absence.NOT_FINITE, value=str(value))
    return float(value) if abs(value) <= LARGEST else absent(Absence.BEYOND_RANGE, value=value)


def mean_or_absent(values: Sequence[Value]) -> Value:
    """The mean, or the first reason why a value is absent."""
    numbers = [value for value in values if not isinstance(value, Absent)]
    return next((value for value in values if isinstance(value, Absent)), None) or fmean(numbers)


@dataclass(frozen=True)
class Crossing:
    """Settings that the arms ([factors]) or the regimes cross: keys, levels, and the name of the arm or regime per cell.

    *registered*: effects, by their keys, that the study asks for. *regime*: of crossed arms, where they are judged.
    """

    kind: Literal["arms", "regimes"]
    keys: tuple[str, ...]
    levels: tuple[tuple[str, ...], ...]
    names: Mapping[tuple[str, ...], str]
    registered: tuple[frozenset[str], ...] = ()
    regime: str = DEFAULT_REGIME


@dataclass(frozen=True)
class Dataset:
    """Everything the comparisons, the stability and the verdict are made from.

    *registered*: the criteria were sealed before the runs. *own_seeds*: the seeds behind the comparisons of a sweep.
    *sensitivity*: by metric, task and regime, whether it can tell models apart at this scale. *averaged*: by
    metric and regime, the tasks that a macro average is over.
    *unpaired*: equal seeds of a user's table mean nothing. *curves*: those of such a table. *budget_unknown*: variants of
    which, or of the baseline, nothing says how long they trained. *again*: those that are the baseline again. *added*:
    variants that joined the study after it was sealed. *look*: the planned look, from 1, that these runs are; None where
    they are none. *own*: so many seeds train by themselves; without it, those of all looks. *reused*: by regime, how many
    studies rest on its baseline runs, where an earlier study trained them.
    *doubts*: how far an arm's values may be off, all by the same amount. *brief*: compute only what decides, as simulations
    need it.
    """

    name: str
    question: str
    source: Literal["records", "table"]
    source_hash: str
    criteria_hash: str | None
    baseline: str
    variants: tuple[str, ...]
    regimes: tuple[str, ...]
    seeds: tuple[Seed, ...]
    contrasts: tuple[tuple[str, str], ...]
    criteria: tuple[Criterion, ...]
    registered: bool
    metrics: Mapping[str, Metric]
    values: Mapping[Arm, Mapping[Seed, Value]]
    hypotheses: tuple[Hypothesis, ...] = ()
    tie_breakers: tuple[str, ...] = ()
    stability: Stability = field(default_factory=Stability)
    runs: tuple[RunStability, ...] = ()
    ledger: LedgerCheck | None = None
    deviations: tuple[Deviation, ...] = ()
    own_seeds: Mapping[str, tuple[Seed, ...]] = field(default_factory=dict)
    sweep: SweepAnalysis | None = None
    crossing: Crossing | None = None
    readings: Readings | None = None
    noise: tuple[NoiseSources, ...] = ()
    loss_curves: LossCurves | None = None
    diagnostics: tuple[Diagnostic, ...] = ()
    fair: tuple[FairCondition, ...] = ()
    about: Mapping[str, str] = field(default_factory=dict)
    sensitivity: Mapping[tuple[str, ComparedTask | None, str], Sensitivity] = field(default_factory=dict)
    evaluation: EvaluationAnalysis | None = None
    averaged: Mapping[tuple[str, str], tuple[ComparedTask, ...]] = field(default_factory=dict)
    unpaired: bool = False
    curves: tuple[TableRun, ...] = ()
    budget_unknown: tuple[str, ...] = ()
    reused: Mapping[str, int] = field(default_factory=dict)
    again: tuple[str, ...] = ()
    added: frozenset[str] = frozenset()
    design: Design | None = None
    look: int | None = None
    own: int | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    altered: Mapping[str, str] = field(default_factory=dict)
    doubts: Mapping[Arm, Doubt] = field(default_factory=dict)
    brief: bool = False

    def doubt_of(self, variant: Arm, reference: Arm) -> Doubt:
        """How far the difference of two arms may be off, because their best rates are not known exactly."""
        return self.doubts.get(variant, NO_DOUBT).minus(self.doubts.get(reference, NO_DOUBT))

    def at_grid_rates(self, *arms: Arm) -> bool:
        """Whether one of these tuned arms has its values at the grid rate that was chosen, not at a fitted best one."""
        return self.sweep is not None and any(arm.regime == TUNED and arm not in self.doubts for arm in arms)

    @classmethod
    def imagined(
        cls, study: Study, metrics: Mapping[str, Metric], values: Mapping[Arm, Mapping[Seed, Value]]
    ) -> Dataset:
        """What a study would be analyzed from if its runs had these values: for its power."""
        return cls(
            name=study.name,
            question="",
            source="records",
            source_hash="",
            criteria_hash=None,
            baseline=study.baseline,
            variants=study.variants,
            regimes=study.regime_names(),
            seeds=study.seeds,
            contrasts=study.contrasts,
            criteria=study.criteria,
            registered=True,
            metrics=metrics,
            values=values,
            hypotheses=study.hypotheses,
            tie_breakers=study.tie_breakers,
            stability=study.stability,
            own_seeds=study.own_seeds(),
            design=study.design,
        )

    @property
    def primary(self) -> str | None:
        """The primary metric: the first asked as primary; without any, validation loss where there is one."""
        if (asked := primary_criterion(self.criteria)) is not None:
            return asked.metric
        return "validation_loss" if any(arm.metric == "validation_loss" for arm in self.values) else None

    @property
    def alpha(self) -> float:
        return registered_alpha(self.criteria)

    def seeds_of(self, regime: str) -> tuple[Seed, ...]:
        """The seeds that a regime was promised: the study's, or those that a sweep has of its own."""
        return tuple(self.own_seeds.get(regime, self.seeds))

    def compared_regimes(self) -> tuple[str, ...]:
        """Where comparisons are made: the regimes, and over the rates of a sweep."""
        return tuple(dict.fromkeys([*self.regimes, *self.own_seeds, SWEEP] if self.own_seeds else self.regimes))

    def pairs(self) -> list[tuple[str, str]]:
        """(variant, reference): every variant against the baseline, then the contrasts, each pair of arms once."""
        wanted = [(variant, self.baseline) for variant in self.variants if variant != self.baseline]
        wanted += [*self.contrasts, *(c.contrast for c in self.criteria if c.contrast is not None)]
        seen: dict[frozenset[str], tuple[str, str]] = {}
        for pair in wanted:
            seen.setdefault(frozenset(pair), pair)
        return list(seen.values())


def with_macro(values: Values) -> Values:
    """Add the macro average over tasks wherever a metric has several; a seed that lacks a task has none."""
    of_tasks = [arm for arm in values if arm.task is not None]
    tasks = {metric: len({*names}) for metric, names in grouped((arm.metric, arm.task) for arm in of_tasks).items()}
    groups = grouped(((arm.metric, arm.regime, arm.variant), arm) for arm in of_tasks)
    averages = {
        Arm(metric, MACRO, regime, variant): _macro(arms, values, tasks[metric])
        for (metric, regime, variant), arms in groups.items()
        if tasks[metric] > 1
    }
    return values | averages


def _macro(arms: Iterable[Arm], values: Values, tasks: int) -> dict[Seed, Value]:
    by_seed: dict[Seed, list[float]] = {}
    for arm in arms:
        for seed, value in values[arm].items():
            numbers = by_seed.setdefault(seed, [])
            if not isinstance(value, Absent):
                numbers.append(value)
    return {
        seed: fmean(numbers)
        if len(numbers) == tasks
        else absent(Absence.TASKS_INCOMPLETE, scored=len(numbers), tasks=tasks)
        for seed, numbers in by_seed.items()
    }
