"""Power: what a comparison's pairs could see, and before the runs, how many seeds and items the registered effects need.

In closed form for the paired t-test, since a number of seeds is what is looked for; `decision_power` simulates what the
planned seeds then decide. No test of that level has more power on normal deltas, so for a registered sign-flip or
Wilcoxon test it is the most that it can have, and 0 where its smallest p is above alpha.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

from ablationlab.analysis.comparisons import PlannedComparison, chains_of, planned_comparisons
from ablationlab.analysis.dataset import Arm, Dataset
from ablationlab.core.errors import StatisticsError
from ablationlab.core.format import number, setting
from ablationlab.core.grouping import grouped
from ablationlab.records.analysis import Analysis, Comparison, Power
from ablationlab.records.metrics import Metric
from ablationlab.records.settings import TUNED, Study, registered_alpha
from ablationlab.stats import (
    PowerPlan,
    detectable_effect,
    items_needed,
    paired_t_power,
    pairs_needed,
    plan,
    sd_interval,
    sign_flip_floor,
    tost_pairs_needed,
)
from ablationlab.stats.families import planned_levels
from ablationlab.study.checks import SIGN_TESTS
from ablationlab.study.trainers import metrics_of

#: What --sd may be: beyond these the noncentral t overflows, and no metric has such a spread.
SMALLEST_SD: Final = 1e-9
LARGEST_SD: Final = 1e9


def power_of(comparisons: Iterable[Comparison], primary: str | None) -> tuple[Power, ...]:
    """What the primary comparisons could see; none without pairs, where deltas do not vary, or p cannot reach alpha."""
    asked = [c for c in comparisons if c.metric == primary and c.design == "paired"]
    return tuple(
        _power(c, c.delta_sd) for c in asked if c.n >= 3 and c.delta_sd and can_show(c.test, c.n, alpha_per_test(c))
    )


def _power(comparison: Comparison, sd: float) -> Power:
    alpha, effect = alpha_per_test(comparison), sure_effect(comparison)
    upper = sd_interval(sd, comparison.n, level=0.6).high
    seen = None if comparison.delta is None else abs(comparison.delta) - comparison.doubt
    return Power(
        comparison=comparison.id,
        n=comparison.n,
        delta_sd=sd,
        smallest_effect=comparison.smallest_effect,
        alpha=alpha,
        detectable_80=detectable_effect(comparison.n, power=0.8, alpha=alpha) * sd + comparison.doubt,
        detectable_90=detectable_effect(comparison.n, power=0.9, alpha=alpha) * sd + comparison.doubt,
        pairs_80=seeds_for(effect, sd, alpha, 0.8, comparison.test),
        pairs_90=seeds_for(effect, sd, alpha, 0.9, comparison.test),
        pairs_80_conservative=seeds_for(effect, upper, alpha, 0.8, comparison.test),
        equivalence_pairs_80=seeds_for_equivalence(effect, sd, comparison.alpha, 0.8),
        pairs_as_seen_80=seeds_for(seen, sd, alpha, 0.8, comparison.test) if seen is not None and seen > 0 else None,
    )


def with_margin_pairs(comparison: Comparison) -> Comparison:
    """A guard with the pairs that would show its margin kept."""
    margin = comparison.margin if comparison.margin is not None else comparison.smallest_effect
    if comparison.role != "guard" or comparison.cost is None or comparison.design == "unpaired":
        return comparison
    pairs = seeds_for(margin, comparison.delta_sd, comparison.alpha, 0.8, "paired-t")
    return comparison.model_copy(update={"cost": comparison.cost.model_copy(update={"margin_pairs_80": pairs})})


def sure_effect(comparison: Comparison) -> float | None:
    """The smallest effect less what fitted best rates may hide of it, or of a difference of 0; None where that is all."""
    effect = comparison.smallest_effect
    return None if effect is None or effect <= comparison.doubt else effect - comparison.doubt


def alpha_per_test(comparison: Comparison) -> float:
    """alpha / m: what the smallest p of a family of m must stay below, whatever the others are (Holm, Bonferroni)."""
    corrects = comparison.correction in ("holm", "bonferroni")
    return comparison.alpha / max(1, comparison.family_size) if corrects else comparison.alpha


def can_show(test: str, n: int, alpha: float) -> bool:
    """Whether n pairs can give the test a p of alpha at all."""
    return test not in SIGN_TESTS or sign_flip_floor(n) <= alpha


def most_power(test: str, effect: float, n: int, alpha: float) -> float:
    """Power of the paired t-test, which no other test exceeds; 0 where the registered one cannot reach alpha."""
    return paired_t_power(effect, n, alpha=alpha) if can_show(test, n, alpha) else 0.0


def _at_least(pairs: int | None, test: str, alpha: float) -> int | None:
    """So many pairs, or as many as the registered test needs to reach alpha."""
    return None if pairs is None else next(n for n in count(pairs) if can_show(test, n, alpha))


def seeds_for(effect: float | None, sd: float | None, alpha: float, power: float, test: str) -> int | None:
    """Pairs to see *effect* with that power, at the least; None where no number can be given."""
    if not effect or not sd:
        return None
    try:
        return _at_least(pairs_needed(effect / sd, power=power, alpha=alpha), test, alpha)
    except StatisticsError:
        return None


def seeds_for_equivalence(effect: float | None, sd: float | None, alpha: float, power: float) -> int | None:
    """Pairs to show equivalence within +-effect when there is no difference; None where no number can be given."""
    if not effect or not sd:
        return None
    try:
        return tost_pairs_needed(effect / sd, power=power, alpha=alpha)
    except StatisticsError:
        return None


@dataclass(frozen=True)
class PlannedPower:
    """One registered comparison: *alpha* is what its test must stay below, after the correction, in the worst case."""

    comparison: PlannedComparison
    effect: float | None
    alpha: float
    sd: float | None
    sd_from: str
    plan: PowerPlan | None
    equivalence: dict[float, int | None]
    items: int | None
    doubt: float = 0.0
    """What the pilot's fitted best rates may be off; the plan is for the effect less that."""


@dataclass(frozen=True)
class StudyPower:
    """All registered comparisons of a study, and what to mind."""

    study: Study
    metrics: Mapping[str, Metric]
    rows: tuple[PlannedPower, ...]
    alpha: float
    detectable: dict[float, float] | None
    notes: tuple[str, ...]


def power_plans(
    study: Study,
    pilot: Analysis | None = None,
    sd: float | None = None,
    discordance: float | None = None,
    metrics: Mapping[str, Metric] | None = None,
) -> StudyPower:
    """One row per registered comparison; the SD of the deltas is the pilot's, or the one assumed.

    *metrics*: of a study whose code is not loaded.
    """
    if pilot is not None and sd is not None:
        raise StatisticsError("give --from or --sd, not both: the SD comes from one of them")
    if sd is not None and not SMALLEST_SD <= sd <= LARGEST_SD:
        raise StatisticsError(f"--sd {sd}: must be between {setting(SMALLEST_SD)} and {setting(LARGEST_SD)}")
    if discordance is not None and not 0 < discordance <= 1:
        raise StatisticsError(f"--discordance {discordance}: must lie above 0 and not above 1")
    metrics = metrics_of(study) if metrics is None else metrics
    asked = _registered(study, metrics)
    notes = [] if asked else ["The study registers no criteria, so there is no effect to plan for: add [[criteria]]."]
    if pilot is not None:
        notes += _about_pilot(study, pilot)
    alphas = _alphas(asked)
    rows = [_row(planned, alphas[planned.id], study, pilot, sd, discordance) for planned in asked]
    notes += _about_rows(rows)
    n, alpha = len(study.seeds), registered_alpha(study.criteria)
    detectable = {p: detectable_effect(n, power=p, alpha=alpha) for p in (0.8, 0.9)} if n >= 2 else None
    return StudyPower(study, metrics, tuple(rows), alpha, detectable, tuple(dict.fromkeys(notes)))


def _registered(study: Study, metrics: Mapping[str, Metric]) -> list[PlannedComparison]:
    """The registered comparisons, as the analysis will make them."""
    dataset = Dataset.imagined(study, metrics, {arm: {} for arm in _arms(study)})
    return [planned for planned in planned_comparisons(dataset) if planned.standing == "registered"]


def _arms(study: Study) -> Iterable[Arm]:
    for criterion in study.criteria:
        yield Arm(criterion.metric, None, criterion.regime, study.baseline)


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
    spread, pairs, source, doubt = _spread(planned, pilot, assumed)
    effect = criterion.smallest_effect
    sure = effect - doubt if effect is not None and effect > doubt else None
    seeds = len(study.own_seeds().get(planned.regime, study.seeds))
    made = None
    if sure is not None and spread is not None:
        made = plan(sure, spread, pilot_pairs=pairs, planned=seeds if seeds >= 2 else None, alpha=alpha)
        made = _for_test(made, criterion.test)
    bound = sure / spread if sure is not None and spread is not None else None
    return PlannedPower(
        comparison=planned,
        effect=effect,
        alpha=alpha,
        sd=spread,
        sd_from=source,
        plan=made,
        equivalence={power: _equivalence(bound, power, criterion.alpha) for power in (0.8, 0.9)},
        items=_items(planned, effect, discordance, alpha),
        doubt=doubt,
    )


def _for_test(made: PowerPlan, test: str) -> PowerPlan:
    """The plan where the registered test must reach alpha, too."""

    def needed(by_power: dict[float, int | None]) -> dict[float, int | None]:
        return {power: _at_least(pairs, test, made.alpha) for power, pairs in by_power.items()}

    shows = made.planned is None or can_show(test, made.planned, made.alpha)
    return replace(
        made,
        needed=needed(made.needed),
        needed_conservative=None if made.needed_conservative is None else needed(made.needed_conservative),
        planned_power=made.planned_power if shows else 0.0,
        planned_detectable=made.planned_detectable if shows else None,
    )


def _equivalence(bound: float | None, power: float, alpha: float) -> int | None:
    try:
        return None if bound is None else tost_pairs_needed(bound, power=power, alpha=alpha)
    except StatisticsError:
        return None


def _items(planned: PlannedComparison, effect: float | None, discordance: float | None, alpha: float) -> int | None:
    """Items for McNemar's test, for metrics that are shares of items answered rightly."""
    metric = planned.metric
    if discordance is None or effect is None or metric.unit != "1" or metric.direction != "higher":
        return None
    return items_needed(effect, discordance, alpha=alpha)


def _spread(
    planned: PlannedComparison, pilot: Analysis | None, assumed: float | None
) -> tuple[float | None, int | None, str, float]:
    """SD of the differences, pairs it is from, where it is from, and the doubt of the pilot's fitted rates."""
    if assumed is not None:
        return assumed, None, "assumed", 0.0
    if pilot is None:
        return None, None, "unknown", 0.0
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
        return None, None, "not in the pilot", 0.0
    where = "" if best.regime == planned.regime else f", regime {best.regime}"
    doubt = best.doubt if planned.regime == TUNED else 0.0
    return best.delta_sd, best.n, f"pilot, {best.n} pairs{where}", doubt


def _about_pilot(study: Study, pilot: Analysis) -> list[str]:
    notes = []
    shared = sorted(set(study.seeds) & set(pilot.seeds), key=str)
    if shared:
        text = ", ".join(map(str, shared))
        notes.append(f"Seeds {text} are in the pilot too: what was planned on them should be tested on others.")
    if len(pilot.seeds) < 5:
        notes.append(
            f"An SD from {len(pilot.seeds)} pairs is a rough guess: plan with the conservative column (its 80 % upper bound)."
        )
    notes.append("The SD is that of the pilot's length and size; longer or larger runs have another.")
    return notes


def _about_rows(rows: Iterable[PlannedPower]) -> list[str]:
    notes = []
    for row in rows:
        if row.effect is None:
            notes.append(f"{row.comparison.metric.name}: no smallest_effect is registered, so no number can be given.")
        elif row.doubt >= row.effect:
            notes.append(
                f"{row.comparison.id}: the pilot's rates leave {number(row.doubt)} in doubt, and the smallest effect is "
                f"{number(row.effect)}. No number of seeds shows it: use closer rates."
            )
        elif row.sd is None:
            unknown = "The SD of the deltas is unknown: give a pilot's results with --from, or assume one with --sd."
            notes.append(unknown if row.sd_from == "unknown" else f"{row.comparison.id}: its SD is not in the pilot.")
        elif (test := row.comparison.criterion.test) in SIGN_TESTS:
            notes.append(
                f"{row.comparison.metric.name}: the seeds for {test} are the least and its power the most that it can have; "
                "what it shows is simulated below."
            )
        if row.comparison.regime == TUNED and not row.doubt:
            notes.append(
                "Tuned arms: how far the fitted best rates may be off is known after the sweep. Until then this is the most "
                "power that it can have."
            )
    return notes
