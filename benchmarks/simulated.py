"""Simulated studies: values are drawn, and the study's own rules decide, by the code that decides on runs.

The value of a run is the effect of its variant plus normal noise, on the scale that the metric is tested on. Whatever a seed
has in common for all variants cancels in the pairs, so it is not drawn. Noise of different metrics is independent. A run is
unstable with a probability of its arm and regime, independently of everything else; a run that diverges has no values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ablationlab.analysis.conclusion import analyze
from ablationlab.analysis.dataset import Arm, Dataset, Values, absent, value_or_absent
from ablationlab.analysis.verdict.rules import answer_of, gather
from ablationlab.records.analysis import Absence, Analysis, Instability, RunStability
from ablationlab.records.metrics import GATED, METRICS
from ablationlab.records.settings import TUNED, Study
from ablationlab.records.verdict import Answer
from ablationlab.stats import sensitivity
from ablationlab.stats._common import FloatArray
from ablationlab.stats.results import ControlOutcome, Doubt, Sensitivity
from ablationlab.stats.tuned import fitted_minimum

#: Level of a metric whose values must be positive; any other would do.
BASE = 1.0


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

    An effect holds for every variant, in every regime; a metric without an SD is not drawn. *tasks*: behind metrics that are
    means over tasks; without them every task counts. *curvature*: of the loss in log rate, for arms that a sweep tunes;
    without it their losses are drawn as all others are. *spreads*: by variant, how many times as noisy its runs are.
    """

    sds: Mapping[str, float]
    effects: Mapping[str, float] = field(default_factory=dict)
    unstable: Mapping[str, Instabilities] = field(default_factory=dict)
    tasks: SimulatedTasks | None = None
    curvature: float | None = None
    spreads: Mapping[str, float] = field(default_factory=dict)

    def sd_of_runs(self, metric: str, variant: str) -> float:
        """The SD of single runs: the difference of two arms of spread 1 has the metric's."""
        return self.sds[metric] / float(np.sqrt(2)) * self.spreads.get(variant, 1.0)


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
        doubts: dict[Arm, Doubt] = {}
        if world.curvature is not None and study.sweep is not None:
            tuned, doubts = _tuned(study, world, world.curvature, rng)
            drawn |= tuned
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
        yield replace(_dataset(study, world, drawn, fails, gated=gated), doubts=doubts)


def _counting_tasks(tasks: SimulatedTasks, seeds: int, rng: np.random.Generator) -> int:
    """How many tasks the gate lets through: the baseline's final scores against those at half of the steps."""
    half = rng.normal(0.0, tasks.sd / np.sqrt(2), (tasks.count, seeds))
    final = rng.normal(tasks.gain, tasks.sd / np.sqrt(2), (tasks.count, seeds))
    asked = [
        sensitivity(ours, items=1, chance=None, control=(before, ours))
        for before, ours in zip(half, final, strict=True)
    ]
    return sum(task.sensitive for task in asked)


def _tuned(
    study: Study, world: World, curvature: float, rng: np.random.Generator
) -> tuple[dict[Arm, FloatArray], dict[Arm, Doubt]]:
    """Losses of the judging seeds at each variant's fitted best rate; none without a fit, or without the baseline's, for
    nothing is decided then.

    A loss is curvature (log rate - log best)^2 plus noise; a variant's best rate lies anywhere within a step of the middle.
    """
    assert study.sweep is not None
    choosing = len(study.sweep.selection_seeds)
    seeds = choosing + len(study.judging_seeds())
    fits = {}
    for variant in study.variants:
        rates = np.array(study.sweep.rates(variant))
        step = np.log(rates[1] / rates[0])
        best = np.log(rates[len(rates) // 2]) + step * rng.uniform(-0.5, 0.5)
        noise = rng.normal(0.0, world.sd_of_runs("validation_loss", variant), (len(rates), seeds))
        bowl = curvature * (np.log(rates) - best) ** 2
        losses = _mean(study, world, "validation_loss", variant) + bowl[:, None] + noise
        judging = losses[:, choosing:]
        fits[variant] = fitted_minimum(dict(zip(rates.tolist(), judging.tolist(), strict=True)))
    unknown = np.full(seeds - choosing, np.nan)
    known = fits[study.baseline].status == "ok"
    arms = {Arm("validation_loss", None, TUNED, variant): fit for variant, fit in fits.items()}
    return {arm: np.array(fit.values) if known and fit.status == "ok" else unknown for arm, fit in arms.items()}, {
        arm: Doubt(fit.doubt, fit.doubt) for arm, fit in arms.items()
    }


def _seeds(study: Study, regime: str) -> tuple[int, ...]:
    return study.own_seeds().get(regime, study.seeds)


def _mean(study: Study, world: World, metric: str, variant: str) -> float:
    return 0.0 if variant == study.baseline else world.effects.get(metric, 0.0)


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
