"""The five rules of the protocol, in their order; the first that applies decides, per variant and regime.

1. baseline unstable, lower bound of the stability gain above 0: adopt-in-regime if the upper bounds of the losses on the
   primary metric and on every guard keep their margins, else trade-off;
2. significantly worse on the primary metric: keep-baseline;
3. significantly better and not less stable: adopt;
4. equivalent within the smallest effect: tie, broken by the tie-breakers in their order;
5. otherwise inconclusive, with what it would take.

"Significantly" is by the criterion's own test, corrected over its family, at its alpha. A rule never asks a task that is
not sensitive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ablationlab.analysis.power import alpha_per_test, seeds_for, seeds_for_equivalence
from ablationlab.analysis.verdict.evidence import Evidence, gather, trade_off
from ablationlab.analysis.wording import bound, measured, number, share
from ablationlab.records.analysis import Analysis, Comparison
from ablationlab.records.settings import TUNED
from ablationlab.records.verdict import Decision, Needs, Rule, RuleCheck, TieBreak, TradeOff, VariantVerdict


@dataclass(frozen=True)
class RuleOutcome:
    """What one rule says: the decision if it applies, and why or why not."""

    decision: Decision | None
    why: str
    recommendation: str = ""
    tie_break: TieBreak | None = None
    needs: Needs | None = None


def judge(analysis: Analysis, variant: str, regime: str) -> VariantVerdict:
    """Ask the rules in their order."""
    evidence = gather(analysis, variant, regime)
    weighed = trade_off(evidence)
    checks: list[RuleCheck] = []
    for rule, apply in RULES.items():
        finding = apply(evidence, weighed)
        checks.append(RuleCheck(rule=rule, applies=finding.decision is not None, why=finding.why))
        if finding.decision is not None:
            return VariantVerdict(
                variant=variant,
                reference=analysis.baseline,
                regime=regime,
                decision=finding.decision,
                rule=rule,
                label=evidence.primary.label if evidence.primary is not None else "exploratory",
                why=finding.why,
                evidence=_cited(evidence, rule, finding),
                checks=tuple(checks),
                trade_off=weighed,
                tie_break=finding.tie_break,
                needs=finding.needs,
                recommendation=finding.recommendation,
            )
    raise AssertionError("the last rule always applies")


def _rescues(evidence: Evidence, weighed: TradeOff | None) -> RuleOutcome:
    if evidence.unpaired:
        return RuleOutcome(None, "the runs share no seed, so a gain in stability is not tested")
    if not evidence.stability_known or weighed is None:
        return RuleOutcome(None, "nothing is known of the runs' stability")
    if not evidence.baseline_unstable:
        return RuleOutcome(None, "the baseline is stable here")
    if weighed.gain_low is None or weighed.gain_low <= 0:
        low = share(weighed.gain_low)
        return RuleOutcome(None, f"the baseline is unstable, but the gain is not shown (lower bound {low})")
    if weighed.costs and all(cost.within for cost in weighed.costs):
        advice = (
            f"Use {evidence.variant} in this regime: it restores stability at a cost within the registered margins."
        )
        return RuleOutcome(Decision.ADOPT_IN_REGIME, weighed.text, advice)
    advice = (
        f"{evidence.variant} restores stability, but its cost is not shown to stay within the margins: use it where a run "
        "that diverges or spikes costs you more than that, or look for a smaller change (a lower learning rate, "
        "longer warmup)."
    )
    return RuleOutcome(Decision.TRADE_OFF, weighed.text, advice)


def _worse(evidence: Evidence, _: TradeOff | None) -> RuleOutcome:
    problem = _cannot_ask(evidence)
    if problem or evidence.primary is None:
        return RuleOutcome(None, problem)
    if evidence.primary.outcome != "worse":
        return RuleOutcome(None, f"not significantly worse: {measured(evidence.primary)}")
    advice = (
        f"Keep the baseline ({evidence.analysis.baseline}): with {evidence.variant}, {evidence.primary.metric} is worse "
        f"({bound(evidence.primary, evidence.primary.delta)}), at this budget and {_rate(evidence)}."
    )
    return RuleOutcome(Decision.KEEP_BASELINE, f"significantly worse: {measured(evidence.primary)}", advice)


def _better(evidence: Evidence, _: TradeOff | None) -> RuleOutcome:
    problem = _cannot_ask(evidence)
    if problem or evidence.primary is None:
        return RuleOutcome(None, problem)
    if evidence.primary.outcome != "better":
        return RuleOutcome(None, f"not significantly better: {measured(evidence.primary)}")
    if evidence.less_stable:
        return RuleOutcome(None, f"better ({measured(evidence.primary)}), but less stable: {_counts(evidence)}")
    recorded = evidence.stability_known or (evidence.unpaired and evidence.variant_arm is not None)
    known = _counts(evidence) if recorded else "stability was not recorded"
    why = f"significantly better: {measured(evidence.primary)}; {known}"
    gained = f"{evidence.primary.metric} is better ({bound(evidence.primary, evidence.primary.delta)})"
    advice = f"Adopt {evidence.variant}: {gained}, at this budget and {_rate(evidence)}."
    sentences = [advice, _smaller_than_matters(evidence), _one_rate(evidence)]
    return RuleOutcome(Decision.ADOPT, why, " ".join(one for one in sentences if one))


def _equivalent(evidence: Evidence, _: TradeOff | None) -> RuleOutcome:
    problem = _cannot_ask(evidence)
    if problem or evidence.primary is None:
        return RuleOutcome(None, problem)
    tost = evidence.primary.equivalence
    if tost is None:
        return RuleOutcome(None, "no smallest effect is registered, so equivalence cannot be shown")
    if not tost.equivalent:
        shown = "could not be tested" if tost.equivalent is None else "not shown"
        return RuleOutcome(None, f"equivalence within ±{tost.bounds[1]:g} {shown}")
    if evidence.diverged:
        text = f"equivalent on the surviving seeds only: {evidence.diverged} {evidence.variant} runs diverged"
        return RuleOutcome(None, text)
    broken = break_tie(evidence)
    why = f"equivalent within ±{tost.bounds[1]:g}: {measured(evidence.primary)}. {broken.text}"
    if broken.favours is None:
        advice = (
            f"No difference that matters: keep the baseline ({evidence.analysis.baseline}), which is the simpler one."
        )
    else:
        use = "use" if broken.favours == evidence.variant else "keep"
        advice = (
            f"No difference that matters on {evidence.primary.metric}; {broken.metric} favours {broken.favours}: "
            f"{use} it."
        )
    return RuleOutcome(Decision.TIE, why, advice, tie_break=broken)


def _otherwise(evidence: Evidence, _: TradeOff | None) -> RuleOutcome:
    needs = needs_of(evidence)
    problem = _cannot_ask(evidence)
    seen = problem or (measured(evidence.primary) if evidence.primary else "")
    advice = f"Undecided; keep the baseline ({evidence.analysis.baseline}) for now. {needs.text}"
    return RuleOutcome(Decision.INCONCLUSIVE, f"no rule above applies: {seen}", advice, needs=needs)


RULES: Mapping[Rule, Callable[[Evidence, TradeOff | None], RuleOutcome]] = {
    Rule.RESTORES_STABILITY: _rescues,
    Rule.WORSE: _worse,
    Rule.BETTER: _better,
    Rule.EQUIVALENT: _equivalent,
    Rule.UNDECIDED: _otherwise,
}


def _cannot_ask(evidence: Evidence) -> str:
    """Why the primary metric cannot answer, if so."""
    primary = evidence.primary
    if primary is None:
        return "the primary metric is not in the data"
    if primary.direction is None:
        return f"{primary.metric} has no better direction, so it cannot decide"
    if primary.sensitivity is not None and not primary.sensitivity.sensitive:
        return f"{primary.metric} is not sensitive at this scale: {'; '.join(primary.sensitivity.reasons)}"
    return ""


def _rate(evidence: Evidence) -> str:
    if evidence.analysis.source == "table":
        return "in these unpaired runs" if evidence.unpaired else "in these runs"
    return "each at its own best learning rate" if evidence.regime == TUNED else "at the same learning rate"


def _one_rate(evidence: Evidence) -> str:
    """A gain at one rate may be no more than a rate that suits the change better; of a table no rate is known."""
    if evidence.analysis.source == "table" or evidence.analysis.sweep is not None:
        return ""
    return (
        "Whether it still is when each has its own best rate was not asked: before you rely on it, ask with a [sweep]."
    )


def _counts(evidence: Evidence) -> str:
    variant, baseline = evidence.variant_arm, evidence.baseline_arm
    if evidence.unpaired and variant is not None and baseline is not None:
        return (
            f"{variant.unstable_runs} of {variant.runs} {evidence.variant} runs unstable, "
            f"{baseline.unstable_runs} of {baseline.runs} baseline runs"
        )
    gain = evidence.gain
    assert gain is not None
    return (
        f"{gain.variant_unstable} of {gain.n} {evidence.variant} runs unstable, "
        f"{gain.reference_unstable} of {gain.n} baseline runs"
    )


def _smaller_than_matters(evidence: Evidence) -> str:
    tost = evidence.primary.equivalence if evidence.primary else None
    if tost is None or not tost.equivalent:
        return ""
    return f"The gain is real but smaller than the ±{tost.bounds[1]:g} registered as mattering."


def _cited(evidence: Evidence, rule: Rule, finding: RuleOutcome) -> tuple[str, ...]:
    found = [evidence.primary.id] if evidence.primary is not None else []
    if evidence.gain is not None and rule in (Rule.RESTORES_STABILITY, Rule.BETTER, Rule.UNDECIDED):
        found.append(evidence.gain.id)
    if rule == Rule.RESTORES_STABILITY:
        found += [guard.id for guard in evidence.guards]
    if finding.tie_break is not None:
        found += [name for name in finding.tie_break.asked if name not in found]
    return tuple(found)


def break_tie(evidence: Evidence) -> TieBreak:
    """Ask each tie-breaker; *asked* lists the comparisons that were looked at."""
    asked: list[str] = []
    sentences: list[str] = []
    for name in evidence.analysis.tie_breakers:
        found = _comparisons(evidence, name)
        if not found:
            sentences.append(f"{name} was not measured")
        for one in found:
            asked.append(one.id)
            if one.outcome in ("better", "worse"):
                favours = evidence.variant if one.outcome == "better" else evidence.analysis.baseline
                sentences.append(f"{measured(one)}: favours {favours}")
                return TieBreak(asked=tuple(asked), metric=one.metric, favours=favours, text=_sentence(sentences))
            sentences.append(f"{one.metric} does not decide")
    return TieBreak(asked=tuple(asked), metric=None, favours=None, text=_sentence(sentences))


def _comparisons(evidence: Evidence, name: str) -> list[Comparison]:
    """The comparisons that a tie-breaker names: a metric, or all metrics of a family that have a better direction."""
    analysis = evidence.analysis
    metrics = dict.fromkeys(one.metric for one in analysis.comparisons)
    named = [name] if name in metrics else [metric for metric in metrics if analysis.metrics[metric].family == name]
    found = [analysis.comparison(metric, evidence.regime, evidence.variant, analysis.baseline) for metric in named]
    return [one for one in found if one is not None and one.direction is not None]


def _sentence(sentences: list[str]) -> str:
    return f"Tie-breakers: {'; '.join(sentences)}." if sentences else "No tie-breaker is registered."


POWER = 0.8


def needs_of(evidence: Evidence) -> Needs:
    """Numbers where they can be had, and a sentence."""
    one = evidence.primary
    if one is None:
        return Needs(text="Measure the primary metric in both arms.")
    if one.direction is None:
        return Needs(text=f"Register a primary metric with a better direction; {one.metric} has none.")
    if one.sensitivity is not None and not one.sensitivity.sensitive:
        return Needs(text="More seeds will not help: choose tasks that are sensitive at this scale, or a larger model.")
    if evidence.diverged and evidence.less_stable:
        return Needs(
            text=f"{evidence.diverged} {evidence.variant} runs diverged: make it train stably before its {one.metric} "
            "can count."
        )
    if one.n < 3:
        what = "runs in each arm" if evidence.unpaired else "pairs"
        return Needs(text=f"At least 3 {what} are needed for any inference; there are {one.n}.")
    if not one.delta_sd and evidence.unpaired:
        return Needs(text="Neither arm varies, so the spread is unknown: check that the runs really differ.")
    if not one.delta_sd:
        return Needs(text="All deltas are equal, so their spread is unknown: check that the runs really differ.")
    return _seeds_needed(evidence, one)


def _seeds_needed(evidence: Evidence, one: Comparison) -> Needs:
    alpha, effect = alpha_per_test(one), one.smallest_effect
    difference = seeds_for(effect, one.delta_sd, alpha, POWER)
    equivalence = seeds_for_equivalence(effect, one.delta_sd, one.alpha, POWER)
    observed = seeds_for(one.delta, one.delta_sd, alpha, POWER)
    unit = " (of logarithms)" if one.transform == "log" else f" {one.unit}" if one.unit not in ("", "1") else ""
    parts = []
    if effect is None:
        parts.append("No smallest effect is registered, so no number of seeds can be given for one.")
    else:
        parts.append(
            f"With an SD of {_spread(evidence)} of {number(one.delta_sd)} it takes {_count(difference)} "
            f"{_units(evidence)} to see a difference of {number(effect)}{unit} with {POWER:.0%} power, "
            f"{_count(equivalence)} to show that there is none (there are {one.n})."
        )
    worth = effect is None or abs(one.delta or 0.0) > effect
    if observed is not None and observed > one.n and worth:
        parts.append(f"Were the true difference as large as the observed one, {_count(observed)} seeds would show it.")
    if evidence.less_stable:
        parts.append(f"{evidence.variant} is also less stable here.")
    if one.n < 10 and effect is not None:
        parts.append(f"An SD from {one.sample} is itself a rough guess.")
    if evidence.unpaired:
        parts.append("These runs are unpaired; equal seeds in both arms usually need fewer.")
    return Needs(
        seeds_for_difference=difference,
        seeds_for_equivalence=equivalence,
        seeds_at_observed_effect=observed,
        power=POWER,
        text=" ".join(parts),
    )


def _spread(evidence: Evidence) -> str:
    return "the difference between two single runs" if evidence.unpaired else "the deltas"


def _units(evidence: Evidence) -> str:
    return "runs in each arm" if evidence.unpaired else "seeds in all"


def _count(seeds: int | None) -> str:
    return "more than a million" if seeds is None else f"{seeds:,}"
