"""What a study will decide: its own rules over simulated studies, at chosen true effects, and what more would buy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import fmean
from typing import Final

from ablationlab.analysis.power import PlannedPower, StudyPower, power_plans
from ablationlab.analysis.simulation import ArmInstability, Instabilities, Outcomes, World, simulate
from ablationlab.core.errors import StatisticsError
from ablationlab.core.grouping import grouped
from ablationlab.core.seeding import stream
from ablationlab.records.analysis import Analysis
from ablationlab.records.metrics import GATED
from ablationlab.records.settings import DEFAULT_REGIME, Criterion, Study, primary_criterion, registered_alpha
from ablationlab.records.verdict import Answer
from ablationlab.stats import sign_flip_floor
from ablationlab.study.checks import SIGN_TESTS

STUDIES: Final = 400
#: True effects, in smallest effects that matter; above 0 is better.
MULTIPLES: Final = (-2.0, -1.0, 0.0, 1.0, 2.0)
#: Those at which designs are held against each other; at exactly one smallest effect, half of all estimates are below it.
JUDGED: Final = (-2.0, 0.0, 2.0)
SEED_FACTORS: Final = (1, 2, 4)
ITEM_FACTORS: Final = (2, 4)
#: A stress regime in which nothing is known: half of the baseline's runs break, and one in twenty of a variant's.
STRESSED: Final = Instabilities(baseline=0.5, variant=0.05, diverge=True)
FOR_IT: Final = (Answer.BETTER, Answer.MORE_STABLE)


@dataclass(frozen=True)
class EffectRow:
    """What is decided in a regime, mean over variants, if each of them has that true *effect* on the primary metric.

    *seeds*: trained on average until the study stops.
    """

    regime: str
    multiple: float
    effect: float
    answers: Mapping[Answer, float]
    seeds: float


@dataclass(frozen=True)
class ShownRow:
    """How often a registered comparison, or a gain in stability, is shown if its own smallest effect is true.

    *least*: smallest p that the registered test can give; *needs*: what it must reach. Nothing can be shown where it cannot.
    """

    id: str
    share: float
    least: float | None = None
    needs: float | None = None


@dataclass(frozen=True)
class DesignRow:
    """Another size of the study: *compute* in units of the planned training, answers in the default regime."""

    seeds: int
    steps: int | None
    items: int | None
    compute: float
    better: float
    worse: float
    same: float


@dataclass(frozen=True)
class DecisionPower:
    """All of it, from *studies* simulated studies per row."""

    studies: int
    effects: tuple[EffectRow, ...]
    shown: tuple[ShownRow, ...]
    designs: tuple[DesignRow, ...]
    unstable: Mapping[str, Instabilities]


def decision_power(
    planned: StudyPower,
    *,
    pilot: Analysis | None = None,
    other_lengths: Sequence[Analysis] = (),
    unstable: Mapping[str, Instabilities] | None = None,
    multiples: Sequence[float] = MULTIPLES,
    studies: int = STUDIES,
) -> DecisionPower | None:
    """None where the primary metric has no smallest effect or no SD, so that there is nothing to simulate.

    *other_lengths*: pilots of more or fewer steps. How the spread of the differences, and the share of runs that break,
    change with the length is not extrapolated: each pilot says it for its own.
    """
    study, rows, metrics = planned.study, planned.rows, planned.metrics
    primary = primary_criterion(study.criteria)
    if primary is None or primary.smallest_effect is None:
        return None
    sds = _sds(study, rows, primary)
    if primary.metric not in sds:
        return None
    chances = _instabilities(study, pilot) | dict(unstable or {})
    doubts = _doubts(study, rows)
    better = {metric: -1.0 if metrics[metric].direction == "lower" else 1.0 for metric in sds}

    def outcomes(
        made: Study,
        spread: Mapping[str, float],
        effects: Mapping[str, float],
        breaking: Mapping[str, Instabilities] = chances,
        hidden: Mapping[tuple[str, str], float] = doubts,
    ) -> Outcomes:
        # The same draws for every row: rows differ by what differs between them.
        rng = stream(0, "analysis", "power", len(made.seeds))
        return simulate(made, World(spread, effects, breaking, doubts=hidden, metrics=metrics), studies, rng)

    def at(
        made: Study,
        spread: Mapping[str, float],
        multiple: float,
        breaking: Mapping[str, Instabilities] = chances,
        hidden: Mapping[tuple[str, str], float] = doubts,
    ) -> Outcomes:
        effect = multiple * better[primary.metric] * (primary.smallest_effect or 0.0)
        return outcomes(made, spread, {primary.metric: effect}, breaking, hidden)

    powers = {multiple: at(study, sds, multiple) for multiple in dict.fromkeys((*multiples, *JUDGED))}
    regimes = list(dict.fromkeys(regime for regime, _ in powers[0.0].answers))
    effects = tuple(
        EffectRow(
            regime,
            multiple,
            multiple * primary.smallest_effect,
            _mean(powers[multiple], regime),
            powers[multiple].seeds,
        )
        for regime in regimes
        for multiple in multiples
    )
    sizes = {
        criterion.metric: better[criterion.metric] * criterion.smallest_effect
        for criterion in study.criteria
        if criterion.smallest_effect is not None and criterion.metric in sds
    }
    designs = [_design(study, None, 1.0, {multiple: powers[multiple] for multiple in JUDGED})]
    for factor in SEED_FACTORS[1:]:
        larger = _with_seeds(study, factor * len(study.seeds))
        compute = _runs(larger) / _runs(study)
        designs.append(_design(larger, None, compute, {m: at(larger, sds, m) for m in JUDGED}))
    planned_steps = study.training.steps if study.training is not None else None
    if other_lengths and planned_steps is None:
        raise StatisticsError(
            f"{study.name} plans no number of steps, so a pilot of another length has no cost beside it"
        )
    for other in other_lengths:
        assert planned_steps is not None
        theirs = power_plans(study, other, metrics=metrics).rows
        steps, spread, hidden = steps_of(other), _sds(study, theirs, primary), _doubts(study, theirs)
        if primary.metric not in spread:
            raise StatisticsError(f"{other.study}: it has no differences in {primary.metric}, the primary metric")
        breaking = _instabilities(study, other) | dict(unstable or {})
        rates = {m: at(study, spread, m, breaking, hidden) for m in JUDGED}
        designs.append(replace(_design(study, None, steps / planned_steps, rates), steps=steps))
    for items, spread in _more_items(sds, primary.metric, pilot):
        designs.append(_design(study, items, 1.0, {m: at(study, spread, m) for m in JUDGED}))
    shown = _shown(study, rows, outcomes(study, sds, sizes))
    return DecisionPower(studies, effects, shown, tuple(designs), chances)


def steps_of(pilot: Analysis) -> int:
    """Steps of its runs in the default regime."""
    runs = pilot.stability.runs if pilot.stability is not None else ()
    lengths = {run.steps for run in runs if run.regime == DEFAULT_REGIME and run.steps is not None}
    if len(lengths) != 1:
        raise StatisticsError(
            f"{pilot.study}: a further pilot stands for another number of steps, and its runs have "
            f"{' and '.join(map(str, sorted(lengths))) or 'none on record'}"
        )
    return lengths.pop()


def _sds(study: Study, rows: Sequence[PlannedPower], primary: Criterion) -> dict[str, float]:
    """Per metric. An assumed SD is of the primary metric; the others have it in proportion to their effects or margins."""
    known = grouped((row.comparison.metric.name, row.sd) for row in rows if row.sd is not None)
    sds = {metric: sqrt(fmean(sd**2 for sd in several)) for metric, several in known.items()}
    if primary.metric not in sds or not any(row.sd_from == "assumed" for row in rows):
        return sds
    unit = sds[primary.metric] / (primary.smallest_effect or 1.0)
    sizes = {c.metric: c.smallest_effect or c.margin for c in study.criteria if c.metric != primary.metric}
    return {primary.metric: sds[primary.metric]} | {metric: unit * size for metric, size in sizes.items() if size}


def _doubts(study: Study, rows: Sequence[PlannedPower]) -> dict[tuple[str, str], float]:
    """By metric and variant, against the baseline: what the pilot's fitted best rates may be off."""
    planned = [(row.comparison, row.doubt) for row in rows if row.doubt]
    return {(c.metric.name, c.variant): doubt for c, doubt in planned if c.reference == study.baseline}


def _instabilities(study: Study, pilot: Analysis | None) -> dict[str, Instabilities]:
    """Of every arm and regime as in the pilot, and of a variant that the pilot lacks, as of its variants together.

    Without a pilot the default regime is stable, and the others break half of the baseline's runs.
    """
    chances = {regime: STRESSED for regime in study.regime_names() if regime != DEFAULT_REGIME}
    stability = pilot.stability if pilot is not None else None
    for regime in study.regime_names():
        arms = [arm for arm in stability.arms if arm.regime == regime and arm.runs] if stability is not None else []
        base = [arm for arm in arms if arm.variant == study.baseline]
        others = [arm for arm in arms if arm.variant in study.variants and arm.variant != study.baseline]
        if base and others:
            shares = [
                sum(arm.unstable_runs for arm in group) / sum(arm.runs for arm in group) for group in (base, others)
            ]
            own = {
                arm.variant: ArmInstability(arm.unstable_runs / arm.runs, arm.diverged / arm.runs)
                for arm in (*base, *others)
            }
            chances[regime] = Instabilities(shares[0], shares[1], any(arm.diverged for arm in arms), own)
    return chances


def _mean(outcomes: Outcomes, regime: str) -> dict[Answer, float]:
    return {answer: outcomes.share(answer, regime) for answer in Answer}


def _with_seeds(study: Study, count: int) -> Study:
    taken = {*study.evaluation.gate_seeds, *study.sweep_seeds()} - set(study.seeds)
    fresh = [seed for seed in range(max(study.seeds) + 1, max(study.seeds) + 10 * count) if seed not in taken]
    design = study.design
    if design is not None:  # the same shares of the seeds
        looks = tuple(look * count // len(study.seeds) for look in design.looks)
        design = design.changed(looks=looks)
    return study.changed(seeds=(*study.seeds, *fresh[: count - len(study.seeds)]), design=design)


def _runs(study: Study) -> int:
    gate = len(study.evaluation.gate_seeds)
    rates = len(study.sweep.lr) if study.sweep is not None else 0
    return len(study.regime_names()) * (len(study.variants) * len(study.seeds) + gate) + rates * len(
        study.sweep_seeds()
    ) * len(study.variants)


def _design(study: Study, items: int | None, compute: float, at: Mapping[float, Outcomes]) -> DesignRow:
    return DesignRow(
        seeds=len(study.seeds),
        steps=None,
        items=items,
        compute=compute,
        better=sum(at[2.0].share(answer) for answer in FOR_IT),
        worse=at[-2.0].share(Answer.WORSE),
        same=at[0.0].share(Answer.SAME),
    )


def _more_items(sds: Mapping[str, float], metric: str, pilot: Analysis | None) -> list[tuple[int, dict[str, float]]]:
    """The SD with more items per task: of the variance of a difference, the part that single answers make falls with them.

    That part is discordance / items for one task, and the mean of it over T tasks divided by T for their average.
    """
    evaluation = pilot.evaluation if pilot is not None else None
    if metric not in GATED or evaluation is None or not evaluation.contrasts:
        return []
    contrast = evaluation.contrasts[0].comparison
    counted = [task for task in contrast.tasks if task.mcnemar and task.items]
    if not counted:
        return []
    shares = [
        fmean(test.variant_only + test.reference_only for test in task.mcnemar.values()) / task.items**2
        for task in counted
    ]
    flips = fmean(shares) / len(counted)
    largest = max(task.items for task in counted)
    rest = max(sds[metric] ** 2 - flips, 0.0)
    return [
        (factor * largest, {**sds, metric: sqrt(rest + min(flips, sds[metric] ** 2) / factor)})
        for factor in ITEM_FACTORS
    ]


def _shown(study: Study, rows: Sequence[PlannedPower], outcomes: Outcomes) -> tuple[ShownRow, ...]:
    """The registered comparisons, then the registered gains in stability."""

    def floor(regime: str) -> float:
        return sign_flip_floor(len(study.own_seeds().get(regime, study.seeds)))

    by_id = {row.comparison.id: row for row in rows}
    found = []
    for name, shares in outcomes.outcomes.items():
        if (row := by_id.get(name)) is not None:
            share = sum(shares.get(outcome, 0.0) for outcome in ("better", "worse", "different"))
            signs = row.comparison.criterion.test in SIGN_TESTS
            least, needs = (floor(row.comparison.regime), row.alpha) if signs else (None, None)
            found.append(ShownRow(name, share, least, needs))
    needs = registered_alpha(study.criteria) / outcomes.places
    for (regime, name), shares in outcomes.gains.items():
        share = sum(shares.get(outcome, 0.0) for outcome in ("more-stable", "less-stable"))
        # McNemar's exact test: all pairs rescued, none broken
        found.append(ShownRow(name, share, floor(regime), needs))
    return tuple(found)
