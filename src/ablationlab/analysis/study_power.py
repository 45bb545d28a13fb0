"""Power: what pairs of runs can show with 80 % power, before the runs and after them, and the seeds that would decide.

In closed form for the paired t-test, own variance or shared. No test of that level has more power on normal deltas, so for a
registered sign-flip or Wilcoxon test it is the most that it can have, and none where its smallest p is above alpha.
`benchmarks/power.py` compares it with simulated studies.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from typing import Final, Literal

from ablationlab.analysis.comparisons import PlannedComparison, chains_of, planned_comparisons
from ablationlab.analysis.dataset import Arm, Dataset
from ablationlab.analysis.stability import seeds_for_margin
from ablationlab.core.errors import StatisticsError
from ablationlab.core.format import setting
from ablationlab.core.grouping import grouped
from ablationlab.records.analysis import Analysis, Comparison, Power
from ablationlab.records.metrics import Metric
from ablationlab.records.plan import TwoStages
from ablationlab.records.settings import TUNED, Criterion, Study, registered_alpha
from ablationlab.stats import (
    detectable_effect,
    items_needed,
    paired_t_power,
    pairs_needed,
    pairs_to_decide,
    sign_flip_floor,
    tost_pairs_needed,
)
from ablationlab.stats.costs import shared_sd
from ablationlab.stats.families import planned_levels
from ablationlab.stats.sequential import Looks
from ablationlab.stats.tuned import expected_doubt, expected_doubt_of_pairs
from ablationlab.study.checks import SIGN_TESTS
from ablationlab.study.trainers import metrics_of

#: What every plan and every number of seeds is for.
POWER: Final = 0.8
#: A number of seeds beyond so many times those at hand is none.
OUT_OF_REACH: Final = 10
#: What a factor of two from the best rate is taken to cost before it is known, in SDs of a run.
COST: Final = 3.0
#: What is swept; the rates serve it and its functions.
SWEPT: Final = "validation_loss"
#: What --sd may be: beyond these the noncentral t overflows, and no metric has such a spread.
SMALLEST_SD: Final = 1e-9
LARGEST_SD: Final = 1e9


def power_of(comparisons: Iterable[Comparison], dataset: Dataset) -> tuple[Power, ...]:
    """What the primary comparisons could see; none without pairs, where deltas do not vary, or p cannot reach alpha."""
    asked = [c for c in comparisons if c.metric == dataset.primary and c.design == "paired"]
    return tuple(
        _power(c, max(c.delta_sd, shared_sd((c.delta_sd, *c.shared_with), c.n)), 1 + len(c.shared_with))
        for c in asked
        if c.n >= 3 and c.delta_sd and can_show(c.test, c.n, alpha_per_test(c))
    )


def _power(comparison: Comparison, sd: float, arms: int) -> Power:
    alpha = alpha_per_test(comparison)
    seen = detectable_effect(comparison.n, power=POWER, alpha=alpha, arms=arms) * sd
    return Power(
        comparison=comparison.id,
        n=comparison.n,
        sd=sd,
        smallest_effect=comparison.smallest_effect,
        alpha=alpha,
        arms=arms,
        detectable_80=seen + comparison.doubt.larger,
        limit=_limit(seen, comparison.doubt.larger),
        decided_by=_decided_by(comparison, sd, alpha, arms),
    )


def _limit(seen: float, doubt: float) -> Literal["seeds", "doubt"]:
    """The larger part of the difference that is seen."""
    return "doubt" if doubt > seen else "seeds"


def _decided_by(comparison: Comparison, sd: float, alpha: float, arms: int) -> int | None:
    """Seeds that decide with 80 % power, if the effect is as large as seen; None beyond ten times those at hand."""
    if comparison.estimate is None or comparison.direction is None:
        return None
    smallest, doubt = comparison.smallest_effect, comparison.doubt
    asked_same = smallest is not None and abs(comparison.estimate) < smallest
    pairs = pairs_to_decide(
        comparison.estimate / sd,
        None if smallest is None else smallest / sd,
        doubt=(doubt.larger if asked_same else doubt.above if comparison.estimate < 0 else doubt.below) / sd,
        power=POWER,
        alpha=alpha,
        arms=arms,
        most=OUT_OF_REACH * comparison.n,
    )
    return None if pairs is None else _at_least(pairs, comparison.test, alpha)


def with_seeds_to_keep(comparison: Comparison) -> Comparison:
    """A guard with the seeds that would show its margin kept with 80 % power, if the effect is as large as seen."""
    margin = comparison.margin if comparison.margin is not None else comparison.smallest_effect
    cost, sd, seen = comparison.cost, comparison.delta_sd, comparison.loss()[0]
    if comparison.role != "guard" or cost is None or comparison.design == "unpaired" or not sd or seen is None:
        return comparison
    room = (margin or 0.0) - seen - comparison.doubt_of_cost.above
    most = OUT_OF_REACH * comparison.n
    pairs = pairs_to_decide(room / sd, None, power=POWER, alpha=comparison.alpha, most=most) if room > 0 else None
    return comparison.model_copy(update={"cost": cost.model_copy(update={"kept_by": pairs})})


def sharing(criterion: Criterion, variants: Sequence[str]) -> int:
    """How many arms share the variance of one comparison."""
    return len(variants) - 1 if criterion.variance == "shared" else 1


def alpha_per_test(comparison: Comparison) -> float:
    """alpha / m: what the smallest p of a family of m must stay below, whatever the others are (Holm, Bonferroni)."""
    corrects = comparison.correction in ("holm", "bonferroni")
    return comparison.alpha / max(1, comparison.family_size) if corrects else comparison.alpha


def can_show(test: str, n: int, alpha: float) -> bool:
    """Whether n pairs can give the test a p of alpha at all."""
    return test not in SIGN_TESTS or sign_flip_floor(n) <= alpha


def _at_least(pairs: int, test: str, alpha: float) -> int:
    """So many pairs, or as many as the registered test needs to reach alpha."""
    return next(n for n in count(pairs) if can_show(test, n, alpha))


@dataclass(frozen=True)
class PlannedPower:
    """One registered comparison: *alpha* is what its test must stay below, after the correction, in the worst case.

    *effect*: the smallest effect, or a guard's margin. *arms*: so many share their variance. *doubt*: how far tuned arms
    may be from their best rates, in the metric's unit where an SD is known or the rates are found, else *doubt_in_sds*.
    *looks*: those of the study's design.
    """

    comparison: PlannedComparison
    effect: float | None
    alpha: float
    pairs: int
    arms: int
    sd: float | None
    sd_from: str
    items: int | None
    doubt: float = 0.0
    doubt_in_sds: float = 0.0
    looks: Looks | None = None

    @property
    def detectable(self) -> float | None:
        """What the planned seeds see, in SDs of the deltas; None where the test cannot reach alpha."""
        return self.seen_by(self.pairs)

    def seen_by(self, pairs: int) -> float | None:
        """What so many seeds see; of a look with those before it, but not of arms that share a variance: they see more."""
        if self.looks is not None and pairs in self.looks.pairs and self.arms == 1:
            return self.looks.seen_by(self.looks.pairs.index(pairs), self.alpha, POWER)
        alpha = self.level(pairs)
        if pairs < 2 or not can_show(self.comparison.criterion.test, pairs, alpha):
            return None
        return detectable_effect(pairs, power=POWER, alpha=alpha, arms=self.arms)

    def level(self, pairs: int) -> float:
        """What p must reach with so many seeds: at a look, or without looks."""
        if self.looks is None or pairs not in self.looks.pairs:
            return self.alpha
        return float(self.looks.levels(self.alpha)[self.looks.pairs.index(pairs)])

    def expected(self, effect: float) -> tuple[float, ...]:
        """Seeds on average, if each look is the last and an earlier one ends the study where it shows a difference.

        *effect*: in SDs of the deltas. Of arms that share a variance no more than one look shows counts: they take fewer.
        """
        assert self.looks is not None
        if self.arms == 1 or not effect:
            return tuple(self.looks.expected_pairs(effect, self.alpha).tolist())
        seeds, shown = [float(self.looks.pairs[0])], 0.0
        for n, more in pairwise(self.looks.pairs):
            shown = max(shown, paired_t_power(effect, n, alpha=self.level(n), arms=self.arms))
            seeds.append(seeds[-1] + (more - n) * (1 - shown))
        return tuple(seeds)

    @property
    def seen(self) -> float | None:
        """The same in the metric's unit, the doubt counted."""
        if self.sd is None or self.detectable is None or math.isinf(self.doubt):
            return None
        return self.detectable * self.sd + self.doubt

    @property
    def limit(self) -> Literal["seeds", "doubt", "both"]:
        """What the smallest difference that is seen is mostly made of: at least two thirds of it, else both."""
        seeds, doubt = (self.detectable or 0.0) * (self.sd or 1.0), self.doubt or self.doubt_in_sds
        if self.sd is None and self.doubt:
            return "both"  # a doubt in the metric's unit and seeds in SDs
        return "doubt" if doubt > 2 * seeds else "both" if 2 * doubt > seeds else "seeds"

    @property
    def sure(self) -> float | None:
        """The smallest effect less the doubt, in SDs; None where none is left."""
        if self.effect is None or self.sd is None or self.effect <= self.doubt:
            return None
        return (self.effect - self.doubt) / self.sd

    @property
    def seeds(self) -> int | None:
        """Seeds that see the smallest effect; None where no affordable number does."""
        if self.sure is None:
            return None
        try:
            pairs = pairs_needed(self.sure, power=POWER, alpha=self.alpha, arms=self.arms)
        except StatisticsError:
            return None
        return _at_least(pairs, self.comparison.criterion.test, self.alpha)

    @property
    def same(self) -> int | None:
        """Seeds that show a difference of 0 to be within the smallest effect."""
        if self.sure is None:
            return None
        try:
            return tost_pairs_needed(self.sure, power=POWER, alpha=self.comparison.criterion.alpha)
        except StatisticsError:
            return None


@dataclass(frozen=True)
class PowerNote:
    """What to mind: the clause of statements.toml, under ``power``, and what stands in it."""

    code: str
    told: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class StudyPower:
    """All registered comparisons of a study, and what to mind. *failures*: seeds without a failure that close that guard."""

    study: Study
    metrics: Mapping[str, Metric]
    rows: tuple[PlannedPower, ...]
    failures: int | None
    notes: tuple[PowerNote, ...]


def power_plans(
    study: Study,
    pilot: Analysis | None = None,
    sd: float | None = None,
    discordance: float | None = None,
    metrics: Mapping[str, Metric] | None = None,
    tuned: TwoStages | None = None,
) -> StudyPower:
    """One row per registered comparison; the SD of the deltas is the pilot's, or the one assumed.

    *metrics*: of a study whose code is not loaded. *tuned*: what both stages of its sweep found.
    """
    if pilot is not None and sd is not None:
        raise StatisticsError("give --from or --sd, not both: the SD comes from one of them")
    if sd is not None and not SMALLEST_SD <= sd <= LARGEST_SD:
        raise StatisticsError(f"--sd {sd}: must be between {setting(SMALLEST_SD)} and {setting(LARGEST_SD)}")
    if discordance is not None and not 0 < discordance <= 1:
        raise StatisticsError(f"--discordance {discordance}: must lie above 0 and not above 1")
    metrics = metrics_of(study) if metrics is None else metrics
    asked = _registered(study, metrics)
    notes = [] if asked else [PowerNote("no-criteria")]
    if pilot is not None:
        notes += _about_pilot(study, pilot)
    alphas = _alphas(asked)
    expected = planned_doubt(study) if any(planned.regime == TUNED for planned in asked) else 0.0
    rows = [
        _with_doubt(_row(planned, alphas[planned.id], study, pilot, sd, discordance), expected, tuned)
        for planned in asked
    ]
    notes += _about_rows(rows)
    failures = seeds_for_margin(study.design, study.stability.margin, registered_alpha(study.criteria))
    once = tuple(note for place, note in enumerate(notes) if note not in notes[:place])
    return StudyPower(study, metrics, tuple(rows), failures, once)


def _registered(study: Study, metrics: Mapping[str, Metric]) -> list[PlannedComparison]:
    """The registered comparisons, as the analysis will make them."""
    arms = [Arm(criterion.metric, None, criterion.regime, study.baseline) for criterion in study.criteria]
    dataset = Dataset.imagined(study, metrics, {arm: {} for arm in arms})
    return [planned for planned in planned_comparisons(dataset) if planned.standing == "registered"]


def _alphas(asked: Sequence[PlannedComparison]) -> dict[str, float]:
    """What the p of each registered comparison must reach if no other is true, by the families of the analysis.

    A secondary's primary is taken as shown. Guards cost no alpha.
    """
    chains = chains_of(asked, {planned.id: planned.order for planned in asked})
    families = grouped((planned.family, planned) for planned in asked)
    alphas: dict[str, float] = {}
    for family in families.values():
        alpha = family[0].criterion.alpha
        behind = [chains.get(planned.id, []) for planned in family]
        correction = family[0].correction
        if correction == "gatekeeping":
            if chains:
                continue  # each stands behind its primary
            correction = "holm"
        levels, passed = planned_levels([len(chain) for chain in behind], correction=correction, alpha=alpha)
        alphas |= {planned.id: level for planned, level in zip(family, levels, strict=True)}
        for chain, shares in zip(behind, passed, strict=True):
            alphas |= {planned.id: share for planned, share in zip(chain, shares, strict=True)}
    return alphas


def _row(
    planned: PlannedComparison,
    alpha: float,
    study: Study,
    pilot: Analysis | None,
    assumed: float | None,
    discordance: float | None,
) -> PlannedPower:
    criterion = planned.criterion
    spread, source, doubt = _spread(planned, pilot, assumed)
    effect = criterion.smallest_effect
    if criterion.role == "guard" and criterion.margin is not None:
        effect = criterion.margin
    return PlannedPower(
        comparison=planned,
        effect=effect,
        alpha=alpha,
        pairs=len(study.own_seeds().get(planned.regime, study.seeds)),
        arms=sharing(criterion, study.variants),
        sd=spread,
        sd_from=source,
        items=_items(planned, effect, discordance, alpha),
        doubt=doubt,
        looks=None if study.design is None else Looks(study.design.looks, study.design.spending),
    )


def planned_doubt(study: Study) -> float:
    """The doubt of one side to expect, in SDs of the deltas, if a factor of two from the best rate costs `COST`."""
    sweep = study.sweep
    if sweep is None:
        return 0.0
    trials = sweep.first_stage.trials(study.baseline)
    if sweep.finer is None:
        rates = [trial for trial in trials if isinstance(trial, float)]
        return expected_doubt(rates, len(study.judging_seeds()), COST) / math.sqrt(2)
    first, more = len(sweep.selection_seeds), len(sweep.finer.seeds)
    if sweep.second is None:
        return expected_doubt(
            sweep.first_stage.rates(study.baseline), first, COST, (sweep.finer.about, more)
        ) / math.sqrt(2)

    def about(pair: tuple[float, float]) -> list[tuple[float, float]]:
        return [trial for trial in sweep.about(pair) if isinstance(trial, tuple)]

    pairs = [trial for trial in trials if isinstance(trial, tuple)]
    factors = sweep.finer.factor, sweep.second.factor
    return expected_doubt_of_pairs(pairs, first, COST, (about, more), factors) / math.sqrt(2)


def _with_doubt(row: PlannedPower, expected: float, tuned: TwoStages | None) -> PlannedPower:
    """With the doubt that the stages found, else the pilot's, else the one to expect."""
    planned = row.comparison
    if planned.regime != TUNED:
        return row
    if tuned is not None and (planned.metric.name == SWEPT or planned.metric.transform == "log"):
        known = [tuned.minima[arm] for arm in (planned.variant, planned.reference)]
        found = max(minimum.doubt if minimum.status == "ok" else math.inf for minimum in known)
        return replace(row, doubt=found)
    if row.doubt:
        return row
    return replace(row, doubt_in_sds=expected) if row.sd is None else replace(row, doubt=expected * row.sd)


def _items(planned: PlannedComparison, effect: float | None, discordance: float | None, alpha: float) -> int | None:
    """Items for McNemar's test, for metrics that are shares of items answered rightly."""
    metric = planned.metric
    if discordance is None or not effect or metric.unit != "1" or metric.direction != "higher":
        return None
    return items_needed(effect, discordance, alpha=alpha)


def _spread(
    planned: PlannedComparison, pilot: Analysis | None, assumed: float | None
) -> tuple[float | None, str, float]:
    """SD of the differences, where it is from, and the doubt of the pilot's fitted rates."""
    if assumed is not None:
        return assumed, "assumed", 0.0
    if pilot is None:
        return None, "unknown", 0.0
    same = [
        comparison
        for comparison in pilot.comparisons
        if comparison.metric == planned.metric.name
        and {comparison.variant, comparison.reference} == {planned.variant, planned.reference}
        and comparison.transform == planned.metric.transform  # raw, where a value of a log metric is not positive
        and comparison.delta_sd
        and comparison.n >= 2
    ]
    best = next((comparison for comparison in same if comparison.regime == planned.regime), same[0] if same else None)
    if best is None:
        return None, "not in the pilot", 0.0
    where = "" if best.regime == planned.regime else f", regime {best.regime}"
    doubt = best.doubt.larger if planned.regime == TUNED else 0.0
    return best.delta_sd, f"pilot, {best.n} pairs{where}", doubt


def _about_pilot(study: Study, pilot: Analysis) -> Iterator[PowerNote]:
    shared = sorted(set(study.seeds) & set(pilot.seeds), key=str)
    if shared:
        yield PowerNote("pilot-s-seeds", {"seeds": ", ".join(map(str, shared))})
    if len(pilot.seeds) < 5:
        yield PowerNote("rough", {"pairs": str(len(pilot.seeds))})
    yield PowerNote("of-the-pilot")


def _about_rows(rows: Iterable[PlannedPower]) -> Iterator[PowerNote]:
    for row in rows:
        if row.effect is None:
            yield PowerNote("no-effect", {"metric": row.comparison.metric.name})
        elif row.doubt and row.doubt >= row.effect:
            yield PowerNote("doubt", {"metric": row.comparison.metric.name})
        elif row.sd is None:
            yield PowerNote("no-sd" if row.sd_from == "unknown" else "not-in-pilot")
        elif (test := row.comparison.criterion.test) in SIGN_TESTS:
            yield PowerNote("sign-test", {"metric": row.comparison.metric.name, "test": test})
