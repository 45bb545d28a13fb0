"""The rules of the protocol, in their order; the first that applies decides, per variant and regime.

0. nothing sensitive was measured, neither the primary metric nor a difference in stability: no-verdict;
1. the variant is shown less stable: keep-baseline;
2. the baseline is unstable and a gain is shown: adopt-in-regime if the primary metric and every guard keep their
   margins and it fails beyond the margin in no registered way, as counted, else trade-off;
3. equivalent within the smallest effect that matters: tie, broken by the tie-breakers in their order;
   keep-provisionally if it fails beyond the margin, as counted;
4. shown worse on the primary metric: keep-baseline;
5. shown better: keep-provisionally if it fails beyond the margin, as counted; inconclusive if it would be a tie were its
   worst runs less bad; trade-off if a guard or a registered secondary is shown worse, or would be if its worst runs were
   less bad; adopt if every guard and the stability are shown non-inferior and every registered secondary was measured,
   else adopt-provisionally;
6. otherwise inconclusive, with what it would take; keep-provisionally where the variant diverged on a seed on which the
   baseline did not, where it fails beyond the margin, as counted, or where it would be shown worse if its worst runs were
   less bad.

What speaks for the variant (2, 3, 5, tie-breakers, hypotheses) must hold with every run counted as failed that it alone
lost (`evidence.lost_alone`): one that diverged, one whose value is no number, and one that is missing beside the
baseline's. "Worse" (4) must hold with the baseline's diverged runs counted (`stats.failures.with_diverged`). So a run that
diverges, or is not there, does not make the verdict on its arm better, but for the limits that docs/analysis.md names; where
runs are missing and what is there does not outweigh it, the verdict is inconclusive.

"Shown" is by the registered test, corrected over its family as it was sealed, at its alpha. A difference in stability is
corrected for every sealed place, and the same correction judges the hypothesis `restores-stability`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ablationlab.analysis.power import alpha_per_test, seeds_for, seeds_for_equivalence, sure_effect
from ablationlab.analysis.verdict.evidence import Evidence, gather, lost_alone
from ablationlab.records.analysis import Analysis, Comparison
from ablationlab.records.verdict import (
    Decision,
    Need,
    Needs,
    Reason,
    Rule,
    RuleCheck,
    TieBreak,
    TradeOff,
    VariantVerdict,
)

POWER = 0.8
#: Decisions that say what it would take to decide.
UNDECIDED = (Decision.INCONCLUSIVE, Decision.NO_VERDICT, Decision.KEEP_PROVISIONALLY)


@dataclass(frozen=True)
class RuleAnswer:
    """What one rule says: the decision if it applies, and why or why not."""

    reason: Reason
    decision: Decision | None = None


def judge(analysis: Analysis, variant: str, regime: str) -> VariantVerdict:
    """Ask the rules in their order."""
    evidence = gather(analysis, variant, regime)
    checks: list[RuleCheck] = []
    for rule, apply in RULES.items():
        answer = apply(evidence)
        checks.append(RuleCheck(rule=rule, applies=answer.decision is not None, reason=answer.reason))
        if answer.decision is not None:
            return _verdict(evidence, rule, answer.reason, answer.decision, checks)
    raise AssertionError("the last rule always applies")


def decision_of(evidence: Evidence) -> Decision:
    """The decision alone."""
    return next(answer.decision for apply in RULES.values() if (answer := apply(evidence)).decision is not None)


def _verdict(
    evidence: Evidence, rule: Rule, reason: Reason, decision: Decision, checks: list[RuleCheck]
) -> VariantVerdict:
    broken = break_tie(evidence) if decision == Decision.TIE else None
    needs = needs_of(evidence) if decision in UNDECIDED else None
    return VariantVerdict(
        variant=evidence.variant,
        reference=evidence.analysis.baseline,
        regime=evidence.regime,
        decision=decision,
        rule=rule,
        reason=reason,
        label=evidence.primary.label if evidence.primary is not None else "exploratory",
        evidence=_cited(evidence, rule, broken),
        checks=tuple(checks),
        costs=evidence.costs,
        secondaries=tuple(comparison.id for comparison in evidence.shown_worse),
        stability=evidence.standing,
        trade_off=_trade_off(evidence),
        tie_break=broken,
        needs=needs,
    )


def _not_sensitive(evidence: Evidence) -> RuleAnswer:
    problem = _cannot_ask(evidence)
    if problem is None:
        return RuleAnswer(Reason.MEASURED)
    if evidence.standing.gained or evidence.standing.lost:
        return RuleAnswer(Reason.STABILITY_DIFFERS)
    return RuleAnswer(problem, Decision.NO_VERDICT)


def _less_stable(evidence: Evidence) -> RuleAnswer:
    if not evidence.standing.known:
        return RuleAnswer(Reason.STABILITY_UNKNOWN)
    return (
        RuleAnswer(Reason.LESS_STABLE, Decision.KEEP_BASELINE)
        if evidence.standing.lost
        else RuleAnswer(Reason.NOT_LESS_STABLE)
    )


def _restores(evidence: Evidence) -> RuleAnswer:
    if not evidence.standing.known:
        return RuleAnswer(Reason.STABILITY_UNKNOWN)
    if not evidence.standing.gained:
        return RuleAnswer(Reason.GAIN_NOT_SHOWN if evidence.baseline_unstable else Reason.BASELINE_STABLE)
    if evidence.may_be_less_stable:
        return RuleAnswer(Reason.MAY_BE_LESS_STABLE, Decision.INCONCLUSIVE)
    kept = evidence.primary is not None and all(cost.shown == "kept" for cost in evidence.costs)
    if kept and not evidence.fails_beyond_margin:
        return RuleAnswer(Reason.GAIN_WITHIN_MARGINS, Decision.ADOPT_IN_REGIME)
    return RuleAnswer(Reason.GAIN_AT_A_COST, Decision.TRADE_OFF)


def _equivalent(evidence: Evidence) -> RuleAnswer:
    problem = _cannot_ask(evidence)
    if problem or evidence.primary is None:
        return RuleAnswer(problem or Reason.PRIMARY_MISSING)
    tost = evidence.primary.equivalence
    if tost is None and evidence.primary.smallest_effect is None:
        return RuleAnswer(Reason.NO_SMALLEST_EFFECT)
    if tost is None:
        return RuleAnswer(Reason.EQUIVALENCE_NOT_TESTED)
    if not tost.equivalent:
        return RuleAnswer(Reason.EQUIVALENCE_NOT_TESTED if tost.equivalent is None else Reason.NOT_EQUIVALENT)
    real = evidence.primary.outcome in ("better", "worse")
    return _outweighed(evidence, holds=evidence.equivalence_holds) or RuleAnswer(
        Reason.REAL_BUT_SMALL if real else Reason.EQUIVALENT, Decision.TIE
    )


def _outweighed(evidence: Evidence, *, holds: bool) -> RuleAnswer | None:
    """What keeps a claim for the variant from being made: runs that it alone lost, or it fails too often."""
    if not holds and evidence.variant_diverged:
        return RuleAnswer(Reason.SURVIVORS_ONLY)
    if evidence.fails_beyond_margin:
        return RuleAnswer(Reason.FAILS_MORE, Decision.KEEP_PROVISIONALLY)
    return None if holds else RuleAnswer(Reason.RUNS_MISSING, Decision.INCONCLUSIVE)


def _worse(evidence: Evidence) -> RuleAnswer:
    problem = _cannot_ask(evidence)
    if problem or evidence.primary is None:
        return RuleAnswer(problem or Reason.PRIMARY_MISSING)
    if evidence.primary.outcome != "worse":
        return RuleAnswer(Reason.NOT_WORSE)
    if not evidence.holds:
        return RuleAnswer(Reason.BASELINE_SURVIVORS_ONLY)
    return RuleAnswer(Reason.WORSE, Decision.KEEP_BASELINE)


def _better(evidence: Evidence) -> RuleAnswer:
    problem = _cannot_ask(evidence)
    if problem or evidence.primary is None:
        return RuleAnswer(problem or Reason.PRIMARY_MISSING)
    if evidence.primary.outcome != "better":
        return RuleAnswer(Reason.NOT_BETTER)
    # A tie that worse or lost runs undo is no gain either.
    tost = evidence.primary.equivalence
    tied = tost is not None and bool(tost.equivalent)
    if outweighed := _outweighed(evidence, holds=evidence.holds and not tied):
        return outweighed
    if evidence.tie_cap is not None:
        return RuleAnswer(Reason.MAY_BE_SMALL, Decision.INCONCLUSIVE)
    if evidence.shown_worse or evidence.broken_guards:
        return RuleAnswer(Reason.BETTER_AT_A_COST, Decision.TRADE_OFF)
    if evidence.hidden_costs:
        return RuleAnswer(Reason.BETTER_WITH_BAD_RUNS, Decision.TRADE_OFF)
    if (
        evidence.standing.non_inferior
        and not evidence.lacking
        and not evidence.unmeasured
        and all(guard.shown == "kept" for guard in evidence.guards)
    ):
        return RuleAnswer(Reason.BETTER_AND_SAFE, Decision.ADOPT)
    return RuleAnswer(Reason.BETTER_NOT_ALL_SHOWN, Decision.ADOPT_PROVISIONALLY)


def _otherwise(evidence: Evidence) -> RuleAnswer:
    if evidence.variant_diverged:
        return RuleAnswer(Reason.VARIANT_DIVERGED, Decision.KEEP_PROVISIONALLY)
    if evidence.fails_beyond_margin:
        return RuleAnswer(Reason.FAILS_MORE, Decision.KEEP_PROVISIONALLY)
    if evidence.bad_runs:
        return RuleAnswer(Reason.BAD_RUNS, Decision.KEEP_PROVISIONALLY)
    return RuleAnswer(Reason.NO_RULE_APPLIES, Decision.INCONCLUSIVE)


RULES: Mapping[Rule, Callable[[Evidence], RuleAnswer]] = {
    Rule.NOT_SENSITIVE: _not_sensitive,
    Rule.LESS_STABLE: _less_stable,
    Rule.RESTORES_STABILITY: _restores,
    Rule.EQUIVALENT: _equivalent,
    Rule.WORSE: _worse,
    Rule.BETTER: _better,
    Rule.UNDECIDED: _otherwise,
}


def _cannot_ask(evidence: Evidence) -> Reason | None:
    """Why the primary metric cannot answer, if so."""
    primary = evidence.primary
    if evidence.at_grid_rates:
        return Reason.GRID_RATES  # a difference may be the grid's: false claims up to 25 % (docs/validation.md)
    if primary is None:
        return Reason.PRIMARY_MISSING
    if primary.direction is None:
        return Reason.NO_DIRECTION
    if primary.sensitivity is not None and not primary.sensitivity.sensitive:
        return Reason.NOT_SENSITIVE
    return None


def _trade_off(evidence: Evidence) -> TradeOff | None:
    """Stability gained against what it costs on the primary metric and on every guard; None without stability."""
    gain = evidence.gain
    if gain is None or gain.estimate is None:
        return None
    return TradeOff(
        gain=gain.estimate,
        gain_low=gain.low,
        gain_high=gain.high,
        costs=evidence.costs,
    )


def _cited(evidence: Evidence, rule: Rule, broken: TieBreak | None) -> tuple[str, ...]:
    ids = [evidence.primary.id] if evidence.primary is not None else []
    if rule not in (Rule.WORSE, Rule.EQUIVALENT):
        ids += evidence.standing.gained + evidence.standing.lost
        ids += [evidence.gain.id] if evidence.gain is not None else []
    if rule in (Rule.RESTORES_STABILITY, Rule.BETTER):
        ids += [guard.comparison for guard in evidence.guards if guard.comparison is not None]
        ids += [comparison.id for comparison in (*evidence.shown_worse, *evidence.hidden_costs)]
    return tuple(dict.fromkeys([*ids, *(broken.asked if broken is not None else ())]))


def break_tie(evidence: Evidence) -> TieBreak:
    """Ask each tie-breaker; *asked* lists the comparisons that were looked at."""
    asked: list[Comparison] = []
    unmeasured: list[str] = []
    decided: Comparison | None = None
    for name in evidence.analysis.tie_breakers:
        comparisons = _comparisons(evidence, name)
        unmeasured += [] if comparisons else [name]
        for comparison in comparisons:
            asked.append(comparison)
            if comparison.outcome in ("better", "worse"):
                decided = comparison
                break
        if decided is not None:
            break
    favours = None
    if decided is not None and decided.outcome == "worse":
        favours = evidence.analysis.baseline
    elif decided is not None and not speaks_against(evidence) and not any(lost_alone(c, c.variant) for c in asked):
        favours = evidence.variant
    return TieBreak(
        asked=tuple(comparison.id for comparison in asked),
        unmeasured=tuple(unmeasured),
        metric=decided.metric if decided is not None else None,
        favours=favours,
    )


def speaks_against(evidence: Evidence) -> bool:
    """Whether anything that was seen keeps a tie-breaker from speaking for the variant."""
    seen = (
        evidence.broken_guards,
        evidence.shown_worse,
        evidence.hidden_costs,
        evidence.lacking,
        evidence.unmeasured,
    )
    return any(seen) or evidence.fails_more is not None


def _comparisons(evidence: Evidence, name: str) -> list[Comparison]:
    """The comparisons that a tie-breaker names: a metric, or all metrics of a family that have a better direction."""
    analysis = evidence.analysis
    metrics = dict.fromkeys(comparison.metric for comparison in analysis.comparisons)
    named = [name] if name in metrics else [metric for metric in metrics if analysis.metrics[metric].family == name]
    there = [analysis.comparison(metric, evidence.regime, evidence.variant, analysis.baseline) for metric in named]
    return [c for c in there if c is not None and c.direction is not None and not c.at_grid_rates]


def needs_of(evidence: Evidence) -> Needs:
    """What it would take: a code, and numbers where they can be had."""
    need = _need(evidence)
    primary = evidence.primary
    difference = equivalence = None
    if need == Need.FRESH_SEEDS and primary is not None:
        effect = sure_effect(primary)
        difference = seeds_for(effect, primary.delta_sd, alpha_per_test(primary), POWER, primary.test)
        equivalence = seeds_for_equivalence(effect, primary.delta_sd, primary.alpha, POWER)
    return Needs(
        need=need,
        seeds_for_difference=difference,
        seeds_for_equivalence=equivalence,
        power=POWER,
    )


def _need(evidence: Evidence) -> Need:
    primary = evidence.primary
    if primary is None:
        return Need.PRIMARY_METRIC
    if primary.direction is None:
        return Need.DIRECTION
    if primary.sensitivity is not None and not primary.sensitivity.sensitive:
        return Need.SENSITIVE_TASKS
    if evidence.at_grid_rates:
        return Need.BEST_RATES
    if evidence.variant_diverged or evidence.refused or evidence.fails_beyond_margin:
        return Need.STABLE_TRAINING
    if evidence.variant_missing or evidence.may_be_less_stable:
        return Need.MISSING_RUNS
    if primary.n < 3:
        return Need.THREE_PAIRS
    if not primary.delta_sd:
        return Need.VARIATION
    if primary.smallest_effect is None:
        return Need.SMALLEST_EFFECT
    # What the fits hide counts against a difference and against equivalence; beyond half of the effect, seeds buy little.
    return Need.CLOSER_RATES if primary.doubt > primary.smallest_effect / 2 else Need.FRESH_SEEDS
