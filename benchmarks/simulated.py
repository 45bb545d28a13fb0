"""Simulated studies: values are drawn, and the study's own rules decide, by the code that decides on runs.

The value of a run is the effect of its variant plus normal noise, on the scale that the metric is tested on. Whatever a seed
has in common for all variants cancels in the pairs, so it is not drawn. Noise of different metrics is independent. A run is
unstable with a probability of its arm and regime, independently of everything else; a run that diverges has no values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import cast

import numpy as np
from numpy.typing import NDArray

from ablationlab.analysis.conclusion import analyze
from ablationlab.analysis.dataset import Arm, Dataset, Value, Values, absent, value_or_absent
from ablationlab.analysis.verdict.rules import answer_of, gather
from ablationlab.records.analysis import Absence, Analysis, Instability, RunStability, Seed, SweepAnalysis, TunedMinimum
from ablationlab.records.metrics import GATED, METRICS
from ablationlab.records.settings import TUNED, Study
from ablationlab.records.verdict import Answer
from ablationlab.stats import sensitivity
from ablationlab.stats._common import FloatArray
from ablationlab.stats.rates import best_rate
from ablationlab.stats.results import ControlOutcome, Doubt, FittedMinimum, Sensitivity
from ablationlab.stats.tuned import fitted_minimum
from ablationlab.study.stages import StageLosses, found

#: Level of a metric whose values must be positive; any other would do.
BASE = 1.0
#: What a run of a sweep that diverges counts, beyond its level: the loss at initialization.
INITIAL = 0.5


@dataclass(frozen=True)
class Instabilities:
    """Chances that a run of the baseline, and one of a variant, is unstable; *diverge*: such a run diverges."""

    baseline: float
    variant: float
    diverge: bool = False


@dataclass(frozen=True)
class SimulatedTasks:
    """*count* tasks; the baseline gains *gain* on each over the second half of training, with *sd* over seeds (points)."""

    count: int
    gain: float
    sd: float


@dataclass(frozen=True)
class World:
    """What is true. *effects* and *sds*: by metric, variant - baseline and the SD of that difference, on the tested scale.

    An effect holds for every variant, or for the *only* one, in every regime; a metric without an SD is not drawn. *tasks*:
    behind metrics that are means over tasks; without them every task counts. *curvature*: of the loss in log rate, for arms
    that a sweep tunes; without it their losses are drawn as all others are. *spreads*: by variant, how many times as noisy
    its runs are.
    """

    sds: Mapping[str, float]
    effects: Mapping[str, float] = field(default_factory=dict)
    unstable: Mapping[str, Instabilities] = field(default_factory=dict)
    tasks: SimulatedTasks | None = None
    curvature: float | None = None
    spreads: Mapping[str, float] = field(default_factory=dict)
    only: str | None = None

    def sd_of_runs(self, metric: str, variant: str) -> float:
        """The SD of single runs: the difference of two arms of spread 1 has the metric's."""
        return self.sds[metric] / float(np.sqrt(2)) * self.spreads.get(variant, 1.0)


@dataclass(frozen=True)
class SweptDataset(Dataset):
    """*chosen*: the losses at the best rate of the grid, before and after runs diverged: what plain tests would compare."""

    chosen: tuple[Values, Values] = ({}, {})


def analyze_to_stop(dataset: Dataset) -> Analysis:
    """The analysis that decides: of all seeds, or of a design's first look at which the study stops."""
    for number in range(1, 1 + len(dataset.design.looks) if dataset.design is not None else 1):
        analysis = analyze_at(dataset, number)
        if analysis.look is not None and analysis.look.stop:
            return analysis
    return analyze(dataset)


def analyze_at(dataset: Dataset, number: int) -> Analysis:
    """The analysis of a look."""
    assert dataset.design is not None
    counted = dataset.seeds[: dataset.design.looks[number - 1]]
    runs = tuple(run for run in dataset.runs if run.seed in counted)
    return analyze(replace(dataset, seeds=counted, runs=runs, look=number))


def answers_of(analysis: Analysis) -> dict[tuple[str, str], Answer]:
    """What the rules answer, by regime and variant."""
    return {
        (regime, variant): answer_of(gather(analysis, variant, regime))
        for regime in analysis.regimes
        for variant in analysis.variants
        if variant != analysis.baseline
    }


def datasets(study: Study, world: World, studies: int, rng: np.random.Generator) -> Iterator[Dataset]:
    """Studies as they might come out."""
    regimes = [*study.regime_names(), *([TUNED] if TUNED in study.own_seeds() else [])]
    asked = [
        (criterion.metric, regime)
        for criterion in study.criteria
        for regime in regimes
        if criterion.metric in world.sds and METRICS[criterion.metric].level != "sweep"
    ]
    asked = list(dict.fromkeys(asked))
    arms = {
        Arm(metric, None, regime, variant): rng.normal(
            _mean(study, world, metric, variant),
            world.sd_of_runs(metric, variant),
            (studies, len(_seeds(study, regime))),
        )
        for metric, regime in asked
        for variant in study.variants
    }
    chances = {
        (regime, variant): rng.random((studies, len(_seeds(study, regime))))
        for regime in regimes
        for variant in study.variants
    }
    for number in range(studies):
        fails = {arm: _failed(study, world, *arm, draws[number]) for arm, draws in chances.items()}
        drawn = {arm: draws[number] for arm, draws in arms.items()}
        gated = True
        if world.tasks is not None:
            counted = _counting_tasks(world.tasks, len(study.evaluation.gate_seeds), rng)
            gated = counted > 0
            # The SD is that of all tasks; the mean over fewer of them varies more.
            wider = np.sqrt(world.tasks.count / max(counted, 1))
            for arm, values in drawn.items():
                if arm.metric in GATED:
                    mean = _mean(study, world, arm.metric, arm.variant)
                    drawn[arm] = mean + wider * (values - mean)
        if world.curvature is None or study.sweep is None:
            yield _dataset(study, world, drawn, fails, gated=gated)
            continue
        swept = _swept(study, world, world.curvature, rng)
        fails |= {(TUNED, variant): _Failed(lost, lost) for variant, lost in swept.diverged.items()}
        made = _dataset(study, world, drawn, fails, gated=gated)
        known = {name: getattr(made, name) for name in Dataset.__dataclass_fields__}
        known |= {"values": {**made.values, **swept.values}, "doubts": swept.doubts, "sweep": swept.part}
        yield SweptDataset(**known, chosen=swept.chosen)


def _counting_tasks(tasks: SimulatedTasks, seeds: int, rng: np.random.Generator) -> int:
    """How many tasks the gate lets through: the baseline's final scores against those at half of the steps."""
    half = rng.normal(0.0, tasks.sd / np.sqrt(2), (tasks.count, seeds))
    final = rng.normal(tasks.gain, tasks.sd / np.sqrt(2), (tasks.count, seeds))
    asked = [
        sensitivity(ours, items=1, chance=None, control=(before, ours))
        for before, ours in zip(half, final, strict=True)
    ]
    return sum(task.sensitive for task in asked)


@dataclass(frozen=True)
class _Swept:
    """What a sweep adds to a dataset; *diverged*: of the judging seeds, at the rate that an arm is judged at."""

    part: SweepAnalysis
    values: Values
    doubts: Mapping[Arm, Doubt]
    diverged: Mapping[str, NDArray[np.bool_]]
    chosen: tuple[Values, Values]


@dataclass(frozen=True)
class _Drawn:
    """The runs of one arm at some rates: losses if all end, and which diverge; a row is a rate."""

    rates: list[float]
    losses: FloatArray
    diverges: NDArray[np.bool_]

    def counted(self, *, whole: bool = False) -> dict[float, list[float]]:
        losses = self.losses if whole else np.where(self.diverges, BASE + INITIAL, self.losses)
        return dict(zip(self.rates, losses.tolist(), strict=True))


class _Arm:
    """Its runs: a loss is curvature (log rate - log best)^2 plus noise; the best rate lies anywhere within a step of the
    grid's middle. Runs diverge at any rate alike."""

    def __init__(self, study: Study, world: World, variant: str, rng: np.random.Generator) -> None:
        assert study.sweep is not None
        self.rng, self.curvature = rng, world.curvature or 0.0
        self.grid = list(study.sweep.rates(variant))
        self.level = BASE + _mean(study, world, "validation_loss", variant)
        self.sd = world.sd_of_runs("validation_loss", variant)
        chances = world.unstable.get(TUNED, Instabilities(0.0, 0.0))
        self.chance = chances.baseline if variant == study.baseline else chances.variant
        middle = len(self.grid) // 2
        step = np.log(self.grid[middle] / self.grid[middle - 1])
        self.best = np.log(self.grid[middle]) + step * rng.uniform(-0.5, 0.5)

    def drawn(self, rates: Sequence[float], seeds: int) -> _Drawn:
        bowl = self.curvature * (np.log(np.array(rates)) - self.best) ** 2
        losses = self.level + bowl[:, None] + self.rng.normal(0.0, self.sd, (len(rates), seeds))
        return _Drawn(list(rates), losses, self.rng.random(losses.shape) < self.chance)


def _swept(study: Study, world: World, curvature: float, rng: np.random.Generator) -> _Swept:
    """A sweep of one stage or of two, as analysis/sweeps.py has it: the loss at the fitted best rate, or of the runs at the
    rate that both stages found."""
    sweep, judging = study.sweep, study.judging_seeds()
    assert sweep is not None
    arms = {variant: _Arm(study, world, variant, rng) for variant in study.variants}
    first = {name: arm.drawn(arm.grid, len(sweep.selection_seeds)) for name, arm in arms.items()}
    minima: dict[str, FittedMinimum]
    judged: dict[str, tuple[_Drawn, _Drawn]] = {}  # where nothing had diverged, and as it came out
    if sweep.finer is None:
        second = {name: arm.drawn(arm.grid, len(judging)) for name, arm in arms.items()}
        minima = {name: fitted_minimum(runs.counted()) for name, runs in second.items()}
        for name, runs in second.items():
            at = [runs.rates.index(best_rate(first[name].counted(whole=whole)).lr) for whole in (True, False)]
            whole, ours = (_Drawn([runs.rates[i]], runs.losses[[i]], runs.diverges[[i]]) for i in at)
            judged[name] = whole, ours
    else:
        centres = {name: best_rate(runs.counted()).lr for name, runs in first.items()}
        finer = {
            name: arm.drawn(sweep.finer.about(centres[name]), len(sweep.finer.seeds)) for name, arm in arms.items()
        }
        coarse, close = ({name: runs.counted() for name, runs in stage.items()} for stage in (first, finer))
        minima = found(study, (), cast(StageLosses, coarse), cast(StageLosses, close)).minima
        for name, arm in arms.items():
            rate = minima[name].lr
            assert rate is not None
            judged[name] = (arm.drawn([rate], len(judging)),) * 2
    known = {name for name, minimum in minima.items() if minimum.status == "ok"}
    tuned = study.baseline in known
    values: Values = {}
    doubts: dict[Arm, Doubt] = {}
    for name, (_, ours) in judged.items():
        place, minimum = Arm("validation_loss", None, TUNED, name), minima[name]
        if not tuned:
            values[place] = _at(judging, ours)
        elif name not in known:
            values[place] = dict.fromkeys(judging, absent(Absence.NO_BEST_RATE))
        else:
            values[place] = _at(judging, ours) if sweep.finer else dict(zip(judging, minimum.values, strict=True))
            doubts[place] = Doubt(minimum.doubt, 0.0 if sweep.finer else minimum.doubt)
    part = SweepAnalysis(
        metric="validation_loss",
        rates=sweep.all_rates(),
        selection_seeds=sweep.selection_seeds,
        seeds=judging,
        points=(),
        curves=(),
        sensitivities=(),
        summaries=(),
        best=(),
        tuned_at="fitted-minima" if tuned else "grid-rates",
        minima=tuple(TunedMinimum(variant=name, minimum=minimum) for name, minimum in minima.items()),
        comparisons=(),
        stages=1 if sweep.finer is None else 2,
    )
    chosen = (
        {
            Arm("validation_loss", None, TUNED, name): _at(judging, whole, whole=True)
            for name, (whole, _) in judged.items()
        },
        {Arm("validation_loss", None, TUNED, name): _at(judging, ours) for name, (_, ours) in judged.items()},
    )
    return _Swept(part, values, doubts, {name: ours.diverges[0] for name, (_, ours) in judged.items()}, chosen)


def _at(seeds: Sequence[int], runs: _Drawn, *, whole: bool = False) -> dict[Seed, Value]:
    """The runs at one rate."""
    return {
        seed: absent(Absence.DIVERGED) if gone and not whole else float(value)
        for seed, value, gone in zip(seeds, runs.losses[0], runs.diverges[0], strict=True)
    }


def _seeds(study: Study, regime: str) -> tuple[int, ...]:
    return study.own_seeds().get(regime, study.seeds)


def _mean(study: Study, world: World, metric: str, variant: str) -> float:
    return world.effects.get(metric, 0.0) if variant == (world.only or variant) != study.baseline else 0.0


@dataclass(frozen=True)
class _Failed:
    """Which runs of an arm diverge, and which are unstable."""

    diverged: NDArray[np.bool_]
    unstable: NDArray[np.bool_]


def _failed(study: Study, world: World, regime: str, variant: str, draws: FloatArray) -> _Failed:
    known = world.unstable.get(regime, Instabilities(0.0, 0.0))
    fails = draws < (known.baseline if variant == study.baseline else known.variant)
    return _Failed(fails & known.diverge, fails)


def _dataset(
    study: Study,
    world: World,
    draws: Mapping[Arm, FloatArray],
    fails: Mapping[tuple[str, str], _Failed],
    *,
    gated: bool,
) -> Dataset:
    values: Values = {}
    for arm, numbers in draws.items():
        shown = np.exp(numbers) if METRICS[arm.metric].transform == "log" else BASE + numbers
        lost = fails[arm.regime, arm.variant].diverged
        values[arm] = {
            seed: absent(Absence.DIVERGED) if gone else value_or_absent(None if np.isnan(value) else float(value))
            for seed, value, gone in zip(_seeds(study, arm.regime), shown, lost, strict=True)
        }
    runs = [
        _run(regime, variant, seed, diverged=bool(diverged), unstable=bool(unstable))
        for (regime, variant), failed in fails.items()
        for seed, diverged, unstable in zip(_seeds(study, regime), failed.diverged, failed.unstable, strict=True)
    ]
    control: ControlOutcome = "told-apart" if gated else "not-told-apart"
    sensitive = Sensitivity(sensitive=gated and bool(study.evaluation.gate_seeds), control=control)
    return replace(
        Dataset.imagined(study, dict(METRICS.items()), values),
        regimes=tuple(dict.fromkeys(regime for regime, _ in fails)),
        criteria=tuple(c for c in study.criteria if c.role != "guard" or c.metric in world.sds),
        runs=tuple(runs),
        sensitivity={(arm.metric, None, arm.regime): sensitive for arm in draws if arm.metric in GATED},
        brief=True,
    )


@lru_cache(2**16)  # thousands of studies have the same runs, and records are never changed
def _run(regime: str, variant: str, seed: int, *, diverged: bool, unstable: bool) -> RunStability:
    reason = Instability.DIVERGED if diverged else Instability.SPIKED if unstable else Instability.CALM
    return RunStability.model_construct(
        run=f"{regime}-{variant}-{seed}",
        variant=variant,
        regime=regime,
        seed=seed,
        state="diverged" if diverged else "finished",
        spike_score=None,
        spike_step=None,
        unstable=unstable,
        reason=reason,
        measures={},
    )
