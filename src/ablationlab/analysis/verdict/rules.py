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

from collections.abc import Callable
from dataclasses import dataclass

from ablationlab.analysis.verdict.case import Case, case_of, trade_off
from ablationlab.analysis.verdict.needs import needs_of
from ablationlab.analysis.verdict.ties import break_tie
from ablationlab.analysis.verdict.words import bound, measured, share
from ablationlab.records.analysis import Analysis
from ablationlab.records.settings import TUNED
from ablationlab.records.verdict import Decision, Needs, RuleCheck, TieBreak, TradeOff, VariantVerdict


@dataclass(frozen=True)
class Finding:
    """What one rule says: the decision if it applies, and why or why not."""

    decision: Decision | None
    why: str
    recommendation: str = ""
    tie_break: TieBreak | None = None
    needs: Needs | None = None


def judge(analysis: Analysis, variant: str, regime: str) -> VariantVerdict:
    """Ask the rules in their order."""
    case = case_of(analysis, variant, regime)
    weighed = trade_off(case)
    checks: list[RuleCheck] = []
    for position, rule in enumerate(RULES, start=1):
        finding = rule(case, weighed)
        checks.append(RuleCheck(rule=position, applies=finding.decision is not None, why=finding.why))
        if finding.decision is not None:
            return VariantVerdict(
                variant=variant,
                reference=analysis.baseline,
                regime=regime,
                decision=finding.decision,
                rule=position,
                label=case.primary.label if case.primary is not None else "exploratory",
                why=finding.why,
                evidence=_evidence(case, position, finding),
                checks=tuple(checks),
                trade_off=weighed,
                tie_break=finding.tie_break,
                needs=finding.needs,
                recommendation=finding.recommendation,
            )
    raise AssertionError("the last rule always applies")


def _rescues(case: Case, weighed: TradeOff | None) -> Finding:
    if not case.stability_known or weighed is None:
        return Finding(None, "nothing is known of the runs' stability")
    if not case.baseline_unstable:
        return Finding(None, "the baseline is stable here")
    if weighed.gain_low is None or weighed.gain_low <= 0:
        low = share(weighed.gain_low)
        return Finding(None, f"the baseline is unstable, but the gain is not shown (lower bound {low})")
    if weighed.costs and all(cost.within for cost in weighed.costs):
        advice = f"Use {case.variant} in this regime: it restores stability at a cost within the registered margins."
        return Finding("adopt-in-regime", weighed.text, advice)
    advice = (
        f"{case.variant} restores stability, but its cost is not shown to stay within the margins: use it where a run that "
        "diverges or spikes costs you more than that, or look for a smaller change (a lower learning rate, longer warmup)."
    )
    return Finding("trade-off", weighed.text, advice)


def _worse(case: Case, _: TradeOff | None) -> Finding:
    problem = _cannot_ask(case)
    if problem or case.primary is None:
        return Finding(None, problem)
    if case.primary.outcome != "worse":
        return Finding(None, f"not significantly worse: {measured(case.primary)}")
    advice = (
        f"Keep the baseline ({case.analysis.baseline}): with {case.variant}, {case.primary.metric} is worse "
        f"({bound(case.primary, case.primary.delta)}), at this budget and {_rate(case)}."
    )
    return Finding("keep-baseline", f"significantly worse: {measured(case.primary)}", advice)


def _better(case: Case, _: TradeOff | None) -> Finding:
    problem = _cannot_ask(case)
    if problem or case.primary is None:
        return Finding(None, problem)
    if case.primary.outcome != "better":
        return Finding(None, f"not significantly better: {measured(case.primary)}")
    if case.less_stable:
        return Finding(None, f"better ({measured(case.primary)}), but less stable: {_counts(case)}")
    known = _counts(case) if case.stability_known else "stability was not recorded"
    why = f"significantly better: {measured(case.primary)}; {known}"
    gained = f"{case.primary.metric} is better ({bound(case.primary, case.primary.delta)})"
    advice = f"Adopt {case.variant}: {gained}, at this budget and {_rate(case)}."
    said = [advice, _smaller_than_matters(case), _one_rate(case)]
    return Finding("adopt", why, " ".join(one for one in said if one))


def _equivalent(case: Case, _: TradeOff | None) -> Finding:
    problem = _cannot_ask(case)
    if problem or case.primary is None:
        return Finding(None, problem)
    tost = case.primary.equivalence
    if tost is None:
        return Finding(None, "no smallest effect is registered, so equivalence cannot be shown")
    if not tost.equivalent:
        shown = "could not be tested" if tost.equivalent is None else "not shown"
        return Finding(None, f"equivalence within ±{tost.bounds[1]:g} {shown}")
    if case.diverged:
        text = f"equivalent on the surviving seeds only: {case.diverged} {case.variant} runs diverged"
        return Finding(None, text)
    broken = break_tie(case)
    why = f"equivalent within ±{tost.bounds[1]:g}: {measured(case.primary)}. {broken.text}"
    if broken.favours == case.variant:
        advice = f"No difference that matters on {case.primary.metric}; {broken.metric} favours {case.variant}: use it."
    elif broken.favours is not None:
        advice = (
            f"No difference that matters on {case.primary.metric}; {broken.metric} favours {broken.favours}: keep it."
        )
    else:
        advice = f"No difference that matters: keep the baseline ({case.analysis.baseline}), which is the simpler one."
    return Finding("tie", why, advice, tie_break=broken)


def _otherwise(case: Case, _: TradeOff | None) -> Finding:
    needs = needs_of(case)
    problem = _cannot_ask(case)
    seen = problem or (measured(case.primary) if case.primary else "")
    advice = f"Undecided; keep the baseline ({case.analysis.baseline}) for now. {needs.text}"
    return Finding("inconclusive", f"no rule above applies: {seen}", advice, needs=needs)


Rule = Callable[[Case, TradeOff | None], Finding]
RULES: tuple[Rule, ...] = (_rescues, _worse, _better, _equivalent, _otherwise)


def _cannot_ask(case: Case) -> str:
    """Why the primary metric cannot answer, if so."""
    primary = case.primary
    if primary is None:
        return "the primary metric is not in the data"
    if primary.direction is None:
        return f"{primary.metric} has no better direction, so it cannot decide"
    if primary.sensitivity is not None and not primary.sensitivity.sensitive:
        return f"{primary.metric} is not sensitive at this scale: {'; '.join(primary.sensitivity.reasons)}"
    return ""


def _rate(case: Case) -> str:
    if case.analysis.source == "table":
        return "in these runs"
    return "each at its own best learning rate" if case.regime == TUNED else "at the same learning rate"


def _one_rate(case: Case) -> str:
    """A gain at one rate may be no more than a rate that suits the change better; of a table no rate is known."""
    if case.analysis.source == "table" or case.analysis.sweep is not None:
        return ""
    return (
        "Whether it still is when each has its own best rate was not asked: before you rely on it, ask with a [sweep]."
    )


def _counts(case: Case) -> str:
    gain = case.gain
    assert gain is not None
    return (
        f"{gain.variant_unstable} of {gain.n} {case.variant} runs unstable, "
        f"{gain.reference_unstable} of {gain.n} baseline runs"
    )


def _smaller_than_matters(case: Case) -> str:
    tost = case.primary.equivalence if case.primary else None
    if tost is None or not tost.equivalent:
        return ""
    return f"The gain is real but smaller than the ±{tost.bounds[1]:g} registered as mattering."


def _evidence(case: Case, rule: int, finding: Finding) -> tuple[str, ...]:
    found = [case.primary.id] if case.primary is not None else []
    if case.gain is not None and rule in (1, 3, 5):
        found.append(case.gain.id)
    if rule == 1:
        found += [guard.id for guard in case.guards]
    if finding.tie_break is not None:
        found += [name for name in finding.tie_break.asked if name not in found]
    return tuple(found)
