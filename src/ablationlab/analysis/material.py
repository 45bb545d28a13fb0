"""What an analysis starts from, wherever the runs came from: values per metric, task, regime, variant and seed; questions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal, NamedTuple

from ablationlab.records.analysis import (
    MACRO,
    Deviation,
    EvaluationAnalysis,
    LedgerCheck,
    RunStability,
    Seed,
    SweepAnalysis,
)
from ablationlab.records.metrics import Metric
from ablationlab.records.settings import SWEEP, Criterion
from ablationlab.stats.results import Sensitivity


class Arm(NamedTuple):
    """The values of one metric of one variant in one regime."""

    metric: str
    task: str | None
    regime: str
    variant: str


#: Per arm and seed: a number, or in words why there is none.
Values = Mapping[Arm, Mapping[Seed, float | str]]


@dataclass(frozen=True)
class Ask:
    """A question about a metric, and how it is to be answered. regime None: every regime; contrast None: every variant."""

    metric: str
    regime: str | None = None
    contrast: tuple[str, str] | None = None
    role: Literal["primary", "secondary", "guard"] | None = None
    test: str = "paired-t"
    interval: str = "paired-t"
    alpha: float = 0.05
    correction: str = "holm"
    smallest_effect: float | None = None
    margin: float | None = None
    registered: bool = False

    @classmethod
    def from_criterion(cls, criterion: Criterion, *, registered: bool) -> Ask:
        """A registered criterion as a question; under a plan that was tampered with it is not registered."""
        return cls(**dict(criterion), registered=registered)


@dataclass(frozen=True)
class Crossing:
    """Two settings that the regimes cross: their keys, their levels, and the regime of every pair of levels."""

    keys: tuple[str, str]
    levels: tuple[tuple[str, ...], tuple[str, ...]]
    regimes: Mapping[tuple[str, str], str]


@dataclass(frozen=True)
class Material:
    """Everything the comparisons, the stability and the verdict are made from."""

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
    asks: tuple[Ask, ...]
    metrics: Mapping[str, Metric]
    values: Values
    tie_breakers: tuple[str, ...] = ()
    spike_threshold: float = 0.0
    diverged: Literal["survivors", "refuse"] = "survivors"
    runs: tuple[RunStability, ...] = ()
    ledger: LedgerCheck | None = None
    deviations: tuple[Deviation, ...] = ()
    criteria: tuple[dict[str, object], ...] = field(default=())
    own_seeds: Mapping[str, tuple[Seed, ...]] = field(default_factory=dict)
    sweep: SweepAnalysis | None = None
    crossing: Crossing | None = None
    #: By metric, task and regime: whether it can tell models apart at this scale.
    sensitivity: Mapping[tuple[str, str | None, str], Sensitivity] = field(default_factory=dict)
    evaluation: EvaluationAnalysis | None = None
    #: Tasks that the plan does not ask, or not so: nothing about them is registered.
    exploratory_tasks: frozenset[str] = frozenset()

    @property
    def primary(self) -> str | None:
        """The primary metric: the first asked as primary; without any, validation loss where there is one."""
        asked = [ask.metric for ask in self.asks if ask.role == "primary"]
        if asked:
            return asked[0]
        return "validation_loss" if any(arm.metric == "validation_loss" for arm in self.values) else None

    def seeds_of(self, regime: str) -> tuple[Seed, ...]:
        """The seeds that a regime was promised: the study's, or those that a sweep has of its own."""
        return tuple(self.own_seeds.get(regime, self.seeds))

    def asked_regimes(self) -> tuple[str, ...]:
        """Where comparisons are made: the regimes, and over the rates of a sweep."""
        return tuple(dict.fromkeys([*self.regimes, *self.own_seeds, SWEEP] if self.own_seeds else self.regimes))

    def pairs(self) -> list[tuple[str, str]]:
        """(variant, reference): every variant against the baseline, then the contrasts, each pair of arms once."""
        wanted = [(variant, self.baseline) for variant in self.variants if variant != self.baseline]
        wanted += [*self.contrasts, *(ask.contrast for ask in self.asks if ask.contrast is not None)]
        seen: dict[frozenset[str], tuple[str, str]] = {}
        for pair in wanted:
            seen.setdefault(frozenset(pair), pair)
        return list(seen.values())


def with_macro(values: Values) -> dict[Arm, dict[Seed, float | str]]:
    """Add the macro average over tasks wherever a metric has several; a seed that lacks a task has none."""
    found: dict[Arm, dict[Seed, float | str]] = {arm: dict(by_seed) for arm, by_seed in values.items()}
    groups: dict[tuple[str, str, str], list[Arm]] = {}
    for arm in values:
        if arm.task is not None:
            groups.setdefault((arm.metric, arm.regime, arm.variant), []).append(arm)
    everywhere: dict[str, set[str | None]] = {}
    for arm in values:
        everywhere.setdefault(arm.metric, set()).add(arm.task)
    for (metric, regime, variant), arms in groups.items():
        tasks = everywhere[metric] - {None}
        if len(tasks) > 1:
            found[Arm(metric, MACRO, regime, variant)] = _macro(arms, values, len(tasks))
    return found


def _macro(arms: Iterable[Arm], values: Values, tasks: int) -> dict[Seed, float | str]:
    by_seed: dict[Seed, list[float | str]] = {}
    for arm in arms:
        for seed, value in values[arm].items():
            by_seed.setdefault(seed, []).append(value)
    return {seed: _average(found, tasks) for seed, found in by_seed.items()}


def _average(found: list[float | str], tasks: int) -> float | str:
    numbers = [value for value in found if not isinstance(value, str)]
    return fmean(numbers) if len(numbers) == tasks else f"only {len(numbers)} of {tasks} tasks have a value"
