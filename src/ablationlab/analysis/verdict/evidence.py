"""The evidence on one variant in one regime: what the rules look at, and nothing else.

What speaks for the variant counts every run that it alone lost as failed: one that diverged, one whose value is no number,
and one that is missing beside the baseline's. `lost_alone` says which, on one metric; `StabilityGain.single_broken` how many,
for stability. So no run helps its arm by not being there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ablationlab.analysis.comparisons import T_TESTS
from ablationlab.analysis.stability import mcnemar_p
from ablationlab.records.analysis import Absence, Analysis, Comparison, Missing, Seed, StabilityGain
from ablationlab.records.settings import TUNED, Criterion
from ablationlab.records.verdict import Cost, CostBound, StabilityStanding
from ablationlab.stats import CaveatCode, Equivalence, failure_bound, paired_t_test, paired_tost
from ablationlab.stats._common import MINIMUM_PAIRS, complement
from ablationlab.stats.failures import pairs_without_failure, with_diverged, worse_by_rank
from ablationlab.stats.robustness import largest_cap
from ablationlab.stats.stability import independent_gain
from ablationlab.stats.tuned import beyond_doubt, sure_bounds


@dataclass(frozen=True)
class Evidence:
    """*primary* is None where the primary metric was not compared at all; *gain* is on the widest registered failure.

    *of_each*: sentences about it speak of "each" of several variants.
    """

    analysis: Analysis
    variant: str
    regime: str
    primary: Comparison | None
    costs: tuple[Cost, ...]
    guarded: tuple[Comparison, ...]
    secondaries: tuple[Comparison, ...]
    gain: StabilityGain | None
    standing: StabilityStanding
    of_each: bool = False

    @property
    def name(self) -> str:
        """The variant, within a sentence."""
        return "each" if self.of_each else self.variant

    @property
    def subject(self) -> str:
        """The variant, at the start of a sentence."""
        return "Each" if self.of_each else self.variant

    @property
    def unpaired(self) -> bool:
        """The arms share no seed: Welch's test decides."""
        return self.primary is not None and self.primary.design == "unpaired"

    @property
    def at_grid_rates(self) -> bool:
        """The primary metric of tuned arms is not known at the best rates: not fitted, or the fit failed for an arm."""
        sweep = self.analysis.sweep
        if self.regime != TUNED or sweep is None:
            return False
        return not sweep.knows_best_rate(self.variant) or (self.primary is not None and self.primary.at_grid_rates)

    @property
    def baseline_unstable(self) -> bool:
        """At least one baseline run failed in this regime."""
        return self.gain is not None and self.gain.reference_unstable > 0

    @property
    def guards(self) -> tuple[Cost, ...]:
        return tuple(cost for cost in self.costs if cost.role == "guard")

    @property
    def shown_worse(self) -> tuple[Comparison, ...]:
        """Registered secondaries that are shown worse."""
        return tuple(comparison for comparison in self._telling(self.secondaries) if comparison.outcome == "worse")

    @staticmethod
    def _telling(comparisons: Iterable[Comparison]) -> Iterator[Comparison]:
        """Without those at grid rates, where a difference may be the grid's."""
        return (comparison for comparison in comparisons if not comparison.at_grid_rates)

    @property
    def refused(self) -> bool:
        """A run diverged, and the registered rule is to compare nothing then."""
        caveats = self.primary.caveats if self.primary is not None else ()
        return any(caveat.code == CaveatCode.REFUSED_FOR_DIVERGENCE for caveat in caveats)

    @property
    def variant_diverged(self) -> int:
        """Seeds on which the variant diverged and the baseline did not."""
        return 0 if self.primary is None else len(_diverged(self.primary, self.variant))

    @property
    def variant_missing(self) -> tuple[Seed, ...]:
        """Seeds on which the variant alone has no value, for whatever reason but divergence."""
        lost = [] if self.primary is None else lost_alone(self.primary, self.variant)
        return tuple(missing.seed for missing in lost if missing.reason not in _FAILED)

    @property
    def lacking(self) -> tuple[Comparison, ...]:
        """The primary metric, guards and secondaries that the variant alone lost runs of."""
        registered = (*([] if self.primary is None else [self.primary]), *self.guarded, *self.secondaries)
        return tuple(comparison for comparison in registered if lost_alone(comparison, self.variant))

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """Registered secondaries that no run of these arms has a value of."""
        analysis, arms = self.analysis, {self.variant, self.analysis.baseline}
        return tuple(
            criterion.metric
            for criterion in analysis.criteria
            if (criterion.role, criterion.regime) == ("secondary", self.regime)
            and (criterion.contrast is None or set(criterion.contrast) == arms)
            and analysis.comparison(criterion.metric, self.regime, self.variant, analysis.baseline) is None
        )

    @property
    def broken_guards(self) -> tuple[Cost, ...]:
        """Guards that are shown to be broken."""
        return tuple(guard for guard in self.guards if guard.shown == "broken")

    @property
    def hidden_costs(self) -> tuple[Comparison, ...]:
        """Guards that are not kept and secondaries that would be shown worse if their worst runs were less bad, or there."""
        known = {guard.comparison for guard in self.guards if guard.shown != "unknown"}
        return tuple(
            comparison
            for comparison in self._telling((*self.guarded, *self.secondaries))
            if comparison.id not in known and worse_if_less_bad(comparison)
        )

    @property
    def fails_more(self) -> StabilityGain | None:
        """The kind of failure, registered or not, that more of the variant's runs have, by count; that with the most."""
        stability = self.analysis.stability
        vector = stability.vector(self.variant, self.analysis.baseline, self.regime) if stability else ()
        worst = max((gain for gain in vector if gain.n), key=_excess, default=None)
        return worst if worst is not None and _excess(worst) > 0 else None

    @property
    def may_be_less_stable(self) -> bool:
        """Whether it would be shown less stable, had the runs failed that it lacks."""
        return perhaps_less_stable(self.analysis, self.variant, self.regime)

    @property
    def fails_beyond_margin(self) -> bool:
        """Whether, as counted, more of its runs fail than the margin allows, and it is not shown to be as stable."""
        return (self.standing.excess or 0.0) > self.standing.margin + 1e-9 and not self.standing.non_inferior

    @property
    def baseline_diverged(self) -> int:
        """Seeds on which the baseline diverged and the variant did not."""
        return 0 if self.primary is None else len(_diverged(self.primary, self.analysis.baseline))

    @property
    def holds(self) -> bool:
        """Whether what the primary comparison shows, better or worse, holds with lost runs counted."""
        return self.primary is not None and holds_with_lost(self.analysis, self.primary, self.standing)

    @property
    def bad_runs(self) -> tuple[Seed, ...]:
        """Seeds on which the variant is so bad that it is not shown worse: it would be if they were less bad."""
        return () if self.primary is None else hidden_by_bad_runs(self.analysis, self.primary)

    @property
    def hiding_cap(self) -> float | None:
        """The largest cost, none counted as more, at which it would be shown worse."""
        return None if self.primary is None else _hiding_cap(self.analysis, self.primary, _costs(self.primary))

    @property
    def bad_runs_stand_out(self) -> bool:
        """Whether those seeds are few and far from the others: each costs more than twice what any other does."""
        if self.primary is None or not (bad := self.bad_runs) or 2 * len(bad) >= self.primary.n:
            return False
        costs = dict(zip((pair.seed for pair in self.primary.pairs), _costs(self.primary), strict=True))
        others = max(cost for seed, cost in costs.items() if seed not in bad)
        return min(costs[seed] for seed in bad) > 2 * others

    @property
    def tie_cap(self) -> float | None:
        """The cost at which a gain would be a tie, were no run worse than that."""
        return None if self.primary is None else tie_cap(self.primary)

    @property
    def worse_than_a_tie(self) -> tuple[Seed, ...]:
        """Seeds on which the variant is worse than that."""
        cap = self.tie_cap
        if self.primary is None or cap is None:
            return ()
        costs = zip(self.primary.pairs, _raw_costs(self.primary), strict=True)
        return tuple(pair.seed for pair, cost in costs if cost > cap)

    @property
    def worse_everywhere(self) -> bool:
        """Whether the variant is worse on every seed, shown or not."""
        return self.primary is not None and all(cost > 0 for cost in _costs(self.primary))

    @property
    def equivalence_holds(self) -> bool:
        """Whether its equivalence does."""
        return self.primary is not None and equivalent_with_lost(self.analysis, self.primary, self.standing)


def gather(analysis: Analysis, variant: str, regime: str) -> Evidence:
    """Gather the evidence on one variant against the baseline."""
    here = [
        comparison
        for comparison in analysis.comparisons
        if (comparison.regime, comparison.variant, comparison.reference) == (regime, variant, analysis.baseline)
    ]
    primary = analysis.primary_comparison(regime, variant)
    costs = [_cost(primary, "primary")] if primary is not None else []
    costs += [_cost(comparison, "guard") for comparison in here if comparison.role == "guard"]
    costs += _unanswered(analysis, variant, regime, here)
    asked = _asked(analysis, variant, regime)
    return Evidence(
        analysis=analysis,
        variant=variant,
        regime=regime,
        primary=primary,
        costs=tuple(sorted(costs, key=lambda cost: cost.role == "guard")),
        guarded=tuple(comparison for comparison in here if comparison.role == "guard"),
        secondaries=tuple(comparison for comparison in here if comparison.role == "secondary"),
        gain=asked[-1] if asked else None,
        standing=standing_of(analysis, variant, regime),
    )


def _asked(analysis: Analysis, variant: str, regime: str) -> list[StabilityGain]:
    """The registered kinds of failure, the widest last; without any, every unstable run."""
    stability = analysis.stability
    vector = stability.vector(variant, analysis.baseline, regime) if stability else ()
    return [gain for gain in vector if gain.places] or list(vector[-1:])


def standing_of(analysis: Analysis, variant: str, regime: str) -> StabilityStanding:
    """What is shown of the variant's stability, on the registered kinds of failure."""
    stability = analysis.stability
    asked = [gain for gain in _asked(analysis, variant, regime) if gain.n]
    alpha, margin = (stability.alpha, stability.margin) if stability else (0.05, 0.2)
    worst = max((failures_bound(gain, alpha) for gain in asked), default=None)
    return StabilityStanding(
        known=bool(asked),
        places=max((gain.places or 0 for gain in asked), default=0),
        gained=tuple(gain.id for gain in asked if gain.outcome == "more-stable"),
        lost=tuple(gain.id for gain in asked if gain.outcome == "less-stable"),
        excess=max(map(_excess, asked), default=None),
        worst=worst,
        level=complement(alpha),
        margin=margin,
        non_inferior=worst is not None
        and worst <= margin
        and not any(may_be_less_stable(gain, alpha) for gain in asked),
        pairs=min((gain.n for gain in asked), default=0),
        seeds_for_margin=pairs_without_failure(margin, alpha=alpha / 2),
    )


def perhaps_less_stable(analysis: Analysis, variant: str, regime: str) -> bool:
    """Whether it would be shown less stable in some registered way, had the runs failed that it lacks."""
    stability = analysis.stability
    asked = _asked(analysis, variant, regime)
    return stability is not None and any(may_be_less_stable(gain, stability.alpha) for gain in asked if gain.n)


def may_be_less_stable(gain: StabilityGain, alpha: float) -> bool:
    """Whether the variant would be shown less stable, had the runs failed that it lacks."""
    if gain.rescued is None or gain.broken is None or not gain.single_broken:
        return False
    broken = gain.broken + gain.single_broken
    p = mcnemar_p(gain.rescued, broken)
    return broken > gain.rescued and p is not None and p * (gain.places or 1) <= alpha


def _excess(gain: StabilityGain) -> float:
    """The share of runs that failed with the variant beyond the reference's, over seeds that either has a run of.

    Where it fails more often, its missing runs count as failed too: one that spiked must not help by not being there.
    """
    if gain.rescued is None or gain.broken is None:
        share = gain.reference_unstable / gain.reference_runs
        known = gain.variant_unstable / gain.variant_runs - share
        counted = (gain.variant_unstable + gain.single_broken) / (gain.variant_runs + gain.single) - share
    else:
        pairs = gain.n + gain.single
        known = (gain.broken + gain.single_failed - gain.rescued) / pairs
        counted = (gain.broken + gain.single_broken - gain.rescued) / pairs
    return counted if known > 0 else known


def holds_with_lost(analysis: Analysis, comparison: Comparison, standing: StabilityStanding) -> bool:
    """Whether "better" stays shown with the runs counted that the variant alone lost, "worse" with diverged baselines.

    "Better" needs a variant that fails within the margin, too.
    """
    better = comparison.outcome == "better"
    lost = len(lost_alone(comparison, comparison.variant) if better else _diverged(comparison, comparison.reference))
    if not lost:
        return True
    if comparison.design == "unpaired":
        return not better and _worse_by_rank(analysis, comparison, lost)
    costs = _costs(comparison)
    if not costs or (better and not standing.non_inferior):
        return False
    counted = with_diverged(costs, lost if better else -lost)
    p = paired_t_test(counted).p
    return p is not None and p <= _level(analysis, comparison) and (sum(counted) < 0) == better


def _worse_by_rank(analysis: Analysis, comparison: Comparison, diverged: int) -> bool:
    sign = -1.0 if comparison.direction == "higher" else 1.0
    variant, reference = (
        [sign * run.value for run in comparison.runs if run.arm == arm]
        for arm in (comparison.variant, comparison.reference)
    )
    return worse_by_rank(variant, reference, diverged, alpha=_level(analysis, comparison))


def _level(analysis: Analysis, comparison: Comparison) -> float:
    """What one t-test may spend after the correction over its family, and at a planned look after the spending."""
    level = comparison.alpha
    if analysis.look is not None:
        level = min((finding.level for finding in analysis.look.findings), default=level)
    if comparison.p is not None and comparison.p_adjusted is not None:
        # A p too small for a float is 0, and so is its adjusted one: then the whole family is paid for.
        paid = comparison.p / comparison.p_adjusted if comparison.p_adjusted > 0 else 1 / max(1, comparison.family_size)
        level *= min(1.0, paid)
    return level


def hidden_by_bad_runs(analysis: Analysis, comparison: Comparison) -> tuple[Seed, ...]:
    """Seeds whose cost, counted as less, would let the t-test show the variant worse, by more than a tie; none if it does.

    A worse run must not help its arm, but t falls where one cost is far beyond the others.
    """
    # With diverged baselines counted, the t-test decides, whatever was registered.
    by_t = comparison.test in T_TESTS or _diverged(comparison, comparison.reference)
    if not by_t or comparison.direction is None or _is_worse(analysis, comparison):
        return ()
    costs = _costs(comparison)
    cap = _hiding_cap(analysis, comparison, costs)
    if cap is None or cap >= max(costs):
        return ()
    return tuple(pair.seed for pair, cost in zip(comparison.pairs, costs, strict=True) if cost > cap)


def tie_cap(comparison: Comparison) -> float | None:
    """The largest cost, none counted as more, at which a gain would be a tie, with the variant's lost runs counted.

    A worse run must not help its arm, but it makes the interval wider, and what was surely too small to matter no longer is.
    """
    tost, costs = comparison.equivalence, _raw_costs(comparison)
    if tost is None or comparison.design == "unpaired" or not costs:
        return None
    lost = len(lost_alone(comparison, comparison.variant))
    low, _ = _bounds(comparison, tost)
    counted = with_diverged(costs, lost) if lost else costs
    # Only the end of the interval that lies on the side of the gain is in question.
    cap = largest_cap([cost - low for cost in counted], alpha=2 * tost.alpha)
    return None if cap is None else cap + low


def _hiding_cap(analysis: Analysis, comparison: Comparison, costs: Sequence[float]) -> float | None:
    """The largest cost, none counted as more, at which the variant is shown worse by more than a tie."""
    if sum(costs) <= 0:
        return None
    lost = len(_diverged(comparison, comparison.reference))
    counted = with_diverged(costs, -lost) if lost else costs
    cap = largest_cap(counted, alpha=_level(analysis, comparison))
    if cap is None:
        return None
    tost = comparison.equivalence
    # The costs are less the doubt, and so are the bounds.
    capped = [min(cost, cap) + comparison.doubt for cost in costs]
    if tost is not None and paired_tost(capped, smallest_effect=_bounds(comparison, tost), alpha=tost.alpha).equivalent:
        return None
    return cap


def _is_worse(analysis: Analysis, comparison: Comparison) -> bool:
    """Whether "worse" is shown, with the reference's diverged runs counted."""
    standing = standing_of(analysis, comparison.variant, comparison.regime)
    return comparison.outcome == "worse" and holds_with_lost(analysis, comparison, standing)


def worse_if_less_bad(comparison: Comparison) -> bool:
    """Whether a comparison that is not shown worse would be, were its worst and its lost runs less bad, or not gated.

    The largest t of all samples that are nowhere worse can only rise where a run gets worse, so a bad run never helps.
    """
    if comparison.test not in T_TESTS or comparison.outcome == "worse" or comparison.direction is None:
        return False
    costs, lost = _costs(comparison), len(lost_alone(comparison, comparison.variant))
    costs = with_diverged(costs, lost) if costs and lost else costs
    return bool(costs) and largest_cap(costs, alpha=comparison.alpha) is not None


def equivalent_with_lost(analysis: Analysis, comparison: Comparison, standing: StabilityStanding) -> bool:
    """Whether equivalence is shown, also with the variant's lost runs counted, and it fails within the margin.

    And whatever the runs had cost that it lost beyond as many as the baseline: at no cost may they show the variant worse.
    """
    tost = comparison.equivalence
    if tost is None or not tost.equivalent:
        return False
    lost = len(lost_alone(comparison, comparison.variant))
    if not lost:
        return True
    costs = _costs(comparison)
    if not costs or not standing.non_inferior or comparison.design == "unpaired":
        return False
    counted = with_diverged(_raw_costs(comparison), lost)
    if not paired_tost(counted, smallest_effect=_bounds(comparison, tost), alpha=tost.alpha).equivalent:
        return False
    more = lost - len(_diverged(comparison, comparison.reference))
    beyond = 1e6 * (1 + max(map(abs, costs)))
    return more <= 0 or _hiding_cap(analysis, comparison, [*costs, *[beyond] * more]) is None


def _bounds(comparison: Comparison, tost: Equivalence) -> tuple[float, float]:
    """A cost within this does not count."""
    low, high = sure_bounds(tost.bounds, comparison.doubt)
    return (low, high) if comparison.direction != "higher" else (-high, -low)


def _raw_costs(comparison: Comparison) -> list[float]:
    """Differences, above 0 is worse."""
    sign = -1.0 if comparison.direction == "higher" else 1.0
    return [sign * pair.delta for pair in comparison.pairs]


def _costs(comparison: Comparison) -> list[float]:
    """Differences beyond doubt, above 0 is worse."""
    return beyond_doubt(_raw_costs(comparison), comparison.doubt)


def failures_bound(gain: StabilityGain, alpha: float) -> float:
    """Upper end of the 1 - alpha interval of the share of runs that fail with the variant beyond the reference's.

    A run that the variant lacks counts as failed, and one that the reference lacks as stable.
    """
    if gain.rescued is None or gain.broken is None:  # independent arms: the other end of Newcombe's interval
        failed = [True] * (gain.variant_unstable + gain.single_broken)
        variant = [*failed, *[False] * (gain.variant_runs + gain.single - len(failed))]
        reference = [place < gain.reference_unstable for place in range(gain.reference_runs)]
        low = independent_gain(variant, reference, level=gain.level).low
        return 1.0 if low is None else -low
    pairs, broken = gain.n + gain.single, gain.broken + gain.single_broken
    variant = [True] * broken + [False] * (pairs - broken)
    reference = [False] * (pairs - gain.rescued) + [True] * gain.rescued
    bound = failure_bound(variant, reference, alpha=alpha / 2).upper
    assert bound is not None
    return bound


#: Lost for good. A finished run whose value is no number did not diverge, but counts as if it had.
_FAILED: Final = (Absence.DIVERGED, Absence.NOT_FINITE)
#: Why a metric that is shown better may cost something all the same.
_NOTHING_KEPT: Final = (
    CostBound.NOT_SENSITIVE,
    CostBound.GRID_RATES,
    CostBound.VARIANT_DIVERGED,
    CostBound.VARIANT_MISSING,
)


def _cost(comparison: Comparison, role: Literal["primary", "guard"]) -> Cost:
    estimate, low, high = comparison.loss()
    bound, runs = CostBound.INTERVAL, 0
    if comparison.direction is None:
        bound = CostBound.NO_DIRECTION
    elif comparison.sensitivity is not None and not comparison.sensitivity.sensitive:
        low = high = None
        bound = CostBound.NOT_SENSITIVE
    elif comparison.at_grid_rates:
        low = high = None
        bound = CostBound.GRID_RATES
    elif alone := lost_alone(comparison, comparison.variant):
        # The survivors bound what the survivors cost, and nothing else.
        diverged = sum(lost.reason == Absence.DIVERGED for lost in alone)
        high, runs = None, diverged or len(alone)
        bound = CostBound.VARIANT_DIVERGED if diverged else CostBound.VARIANT_MISSING
    elif high is None:
        gone = {lost.seed for lost in comparison.missing if lost.reason == Absence.DIVERGED}
        bound, runs = CostBound.TOO_FEW_PAIRS, len(gone)
        if runs >= MINIMUM_PAIRS and _no_baseline_left(comparison):
            # Diverged is the worst outcome: where every baseline did, the variant lost nothing.
            estimate = high = 0.0
            bound = CostBound.EVERY_BASELINE_DIVERGED
    margin = comparison.margin if comparison.margin is not None else comparison.smallest_effect
    shown: Literal["kept", "broken", "unknown"] = "unknown"
    # A metric that is shown better costs nothing, whatever margin it has.
    if (high is not None and high <= (margin or 0.0)) or (
        comparison.outcome == "better" and bound not in _NOTHING_KEPT
    ):
        shown = "kept"
    elif low is not None and low > 0:
        shown = "broken"
    return Cost(
        metric=comparison.metric,
        comparison=comparison.id,
        role=role,
        estimate=estimate,
        low=low,
        high=high,
        level=complement(comparison.alpha),
        margin=margin,
        shown=shown,
        bound=bound,
        runs=runs,
    )


def _unanswered(analysis: Analysis, variant: str, regime: str, here: Sequence[Comparison]) -> Iterator[Cost]:
    """Criteria of these arms without a comparison of their own: what nobody measured keeps no margin.

    The comparisons of a variant that joined the study later are exploratory, and its guards count all the same.
    """
    answered = {comparison.metric for comparison in here if comparison.role is not None}
    for criterion in analysis.criteria:
        asked = criterion.contrast is None or set(criterion.contrast) == {variant, analysis.baseline}
        if criterion.role == "secondary" or criterion.regime != regime or not asked or criterion.metric in answered:
            continue
        comparison = analysis.comparison(criterion.metric, regime, variant, analysis.baseline)
        if comparison is None:
            yield _unmeasured(criterion, criterion.role)
        elif criterion.role == "guard":
            yield _cost(comparison, "guard")


def _unmeasured(criterion: Criterion, role: Literal["primary", "guard"]) -> Cost:
    return Cost(
        metric=criterion.metric,
        comparison=None,
        role=role,
        estimate=None,
        low=None,
        high=None,
        level=complement(criterion.alpha),
        margin=criterion.margin if criterion.margin is not None else criterion.smallest_effect,
        shown="unknown",
        bound=CostBound.NOT_MEASURED,
    )


def _no_baseline_left(comparison: Comparison) -> bool:
    """Whether every run of the baseline diverged, wherever the variant's are."""
    diverged = [lost.reason == Absence.DIVERGED for lost in comparison.missing if lost.arm == comparison.reference]
    if comparison.design == "unpaired":
        return all(diverged) and all(run.arm != comparison.reference for run in comparison.runs)
    return sum(diverged) >= comparison.planned_pairs


def lost_alone(comparison: Comparison, arm: str) -> list[Missing]:
    """The runs that *arm* alone lost: diverged where the other did not, or missing where the other's is there.

    Independent arms share no seed, whatever they say: of them, all that the arm lost.
    """
    if comparison.design == "unpaired":
        return [lost for lost in comparison.missing if lost.arm == arm]
    others = {lost.seed: lost.reason for lost in comparison.missing if lost.arm != arm}
    return [
        lost
        for lost in comparison.missing
        if lost.arm == arm
        and (lost.seed not in others or (lost.reason in _FAILED and others[lost.seed] not in _FAILED))
    ]


def _diverged(comparison: Comparison, arm: str) -> list[Missing]:
    """Those of them that diverged, or ended without a number."""
    return [lost for lost in lost_alone(comparison, arm) if lost.reason in _FAILED]
