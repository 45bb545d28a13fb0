"""The evidence on one variant in one regime, and the costs that rule 1 weighs."""

from __future__ import annotations

from dataclasses import dataclass

from ablationlab.analysis.wording import bound, number, share
from ablationlab.records.analysis import Absence, Analysis, ArmStability, Comparison, StabilityGain
from ablationlab.records.verdict import Cost, TradeOff
from ablationlab.stats import paired_t_interval


@dataclass(frozen=True)
class Evidence:
    """What the rules look at; *primary* is None where the primary metric was not compared at all."""

    analysis: Analysis
    variant: str
    regime: str
    primary: Comparison | None
    guards: tuple[Comparison, ...]
    gain: StabilityGain | None
    baseline_arm: ArmStability | None
    variant_arm: ArmStability | None

    @property
    def stability_known(self) -> bool:
        """Whether the runs' course is known at all."""
        return self.gain is not None and self.gain.n > 0

    @property
    def baseline_unstable(self) -> bool:
        """At least one baseline run diverged or spiked in this regime."""
        return self.baseline_arm is not None and bool(self.baseline_arm.unstable)

    @property
    def less_stable(self) -> bool:
        """More of the variant's runs are unstable than of the baseline's: over the shared seeds, or, unpaired, as shares."""
        arms = self.variant_arm, self.baseline_arm
        if self.unpaired and arms[0] is not None and arms[1] is not None:
            return arms[0].unstable_runs * arms[1].runs > arms[1].unstable_runs * arms[0].runs
        return self.gain is not None and self.gain.variant_unstable > self.gain.reference_unstable

    @property
    def unpaired(self) -> bool:
        """The arms share no seed: Welch's test decides."""
        return self.primary is not None and self.primary.design == "unpaired"

    @property
    def diverged(self) -> int:
        """How many of the variant's runs diverged."""
        return 0 if self.variant_arm is None else self.variant_arm.diverged


def gather(analysis: Analysis, variant: str, regime: str) -> Evidence:
    """Gather the evidence on one variant against the baseline."""
    here = [
        one
        for one in analysis.comparisons
        if (one.regime, one.variant, one.reference) == (regime, variant, analysis.baseline)
    ]
    metric = next((one.metric for one in here if one.role == "primary"), analysis.primary)
    stability = analysis.stability
    return Evidence(
        analysis=analysis,
        variant=variant,
        regime=regime,
        primary=analysis.comparison(metric, regime, variant, analysis.baseline) if metric else None,
        guards=tuple(one for one in here if one.role == "guard"),
        gain=stability.gain(variant, analysis.baseline, regime) if stability else None,
        baseline_arm=stability.arm(analysis.baseline, regime) if stability else None,
        variant_arm=stability.arm(variant, regime) if stability else None,
    )


def trade_off(evidence: Evidence) -> TradeOff | None:
    """Stability gained against what it costs on the primary metric and on every guard; None without stability."""
    if evidence.gain is None or evidence.gain.estimate is None:
        return None
    costs = [_cost(evidence, one) for one in (evidence.primary, *evidence.guards) if one is not None]
    gain = evidence.gain
    text = (
        f"Stability: {gain.reference_unstable} of {gain.n} baseline runs unstable, "
        f"{gain.variant_unstable} of {gain.n} with {evidence.variant}; gain {share(gain.estimate)} "
        f"({gain.level:.0%} interval {share(gain.low)} to {share(gain.high)}). "
    )
    text += " ".join(f"{cost.metric}: {cost.why}." for cost in costs)
    if not any(cost.metric != (evidence.primary.metric if evidence.primary else None) for cost in costs):
        text += " No guard is registered, so the cost is judged on the primary metric alone."
    return TradeOff(gain=gain.estimate, gain_low=gain.low, gain_high=gain.high, costs=tuple(costs), text=text)


def _cost(evidence: Evidence, one: Comparison) -> Cost:
    estimate, low, high = one.loss()
    note = ""
    if high is None:
        estimate, high, note = _with_diverged(evidence, one, estimate)
    margin = one.margin if one.margin is not None else one.smallest_effect
    within = None if high is None or margin is None else high <= margin
    if high is None:
        why = f"the cost has no upper bound ({note})"
    elif margin is None:
        why = f"costs at most {bound(one, high)}{note}, but no margin is registered"
    else:
        word = "within" if within else "outside"
        why = f"costs at most {bound(one, high)}{note}, {word} the margin of {number(margin)}"
    return Cost(
        metric=one.metric,
        comparison=one.id,
        estimate=estimate,
        low=low,
        high=high,
        margin=margin,
        within=within,
        why=why,
    )


def _with_diverged(
    evidence: Evidence, one: Comparison, estimate: float | None
) -> tuple[float | None, float | None, str]:
    """Estimate and upper bound of the cost where too few pairs survived, and a note.

    A diverged run is the worst outcome, so where the baseline diverged the variant lost nothing: the pair counts as a cost of
    0, which is more than the true one. Where the variant alone diverged there is no bound.
    """
    diverged: dict[object, set[str]] = {}
    for lost in one.missing:
        if lost.reason == Absence.DIVERGED:
            diverged.setdefault(lost.seed, set()).add(lost.arm)
    broken = sum(arms == {evidence.variant} for arms in diverged.values())
    if broken:
        return estimate, None, f"{broken} {evidence.variant} runs diverged where the baseline did not"
    sign = 1.0 if one.direction == "lower" else -1.0
    costs = [sign * pair.delta for pair in one.pairs] + [0.0] * len(diverged)
    if one.direction is None or len(costs) < 3 or not diverged:
        return estimate, None, f"pairs that both survived: {one.n}; 3 or more that vary are needed"
    interval = paired_t_interval(costs, level=round(1 - one.alpha, 12))
    high = interval.high if interval.high is not None else max(costs)
    return interval.estimate, high, f", counting the {len(diverged)} pairs whose baseline diverged as no cost"
