"""The study's question, answered: the sentence of one verdict, and one text for all of them.

Each clause rests on a field of the verdict or of the comparison behind it; where that field is empty, the clause is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ablationlab.analysis.findings import (
    at_places,
    crossed_effects,
    interacting,
    judged,
    replicated,
    stability_tested,
)
from ablationlab.analysis.verdict.evidence import gather
from ablationlab.analysis.wording import (
    ADOPTED,
    FAILING,
    MOST_WORSE,
    Clause,
    better_variants,
    capital,
    change,
    difference_of,
    failing,
    given_rates,
    listed,
    margin_of,
    name_of,
    no_spread,
    the_baseline,
    used_in,
    where_alone,
    worse_elsewhere,
)
from ablationlab.core.format import count, several, with_unit
from ablationlab.core.grouping import grouped
from ablationlab.records.analysis import Analysis, Comparison, Label
from ablationlab.records.metrics import metric_name
from ablationlab.records.plan import Plan
from ablationlab.records.replication import Replication
from ablationlab.records.settings import DEFAULT_REGIME, TUNED, FrontEnd
from ablationlab.records.verdict import Decision, Reason, Rule, VariantVerdict, Verdict

#: More groups of verdicts than this are counted instead of told one by one: in one regime, in several.
MOST_GROUPS, MOST_IN_REGIMES = 4, 2
#: More variants than this, with three decisions or more, are listed by their decision.
MOST_VARIANTS = 6
#: More differences than this are told by the smallest and the largest.
MOST_SIZES = 3
#: More variants than this, of one decision, are counted.
MOST_NAMED = 4
#: Variants, at most, whose decisions in regimes that are not registered are told, too.
MOST_LEADS = 3


@dataclass(frozen=True)
class AlikeVerdicts:
    """Variants with the same decision for the same kind of reason, in the same regimes."""

    decision: Decision
    rule: Rule
    label: Label
    regimes: tuple[str, ...]
    verdicts: tuple[VariantVerdict, ...]


#: Sentences and letters of the headline, at most; one sentence is never cut.
MOST_SENTENCES, MOST_LETTERS = 2, 300


def answer(
    analysis: Analysis,
    verdict: Verdict,
    *,
    interim: bool = False,
    replication: Replication | None = None,
    plan: Plan | None = None,
) -> str:
    """The whole answer as one text."""
    return " ".join(answers(analysis, verdict, interim=interim, replication=replication, plan=plan))


def answers(
    analysis: Analysis,
    verdict: Verdict,
    *,
    interim: bool = False,
    replication: Replication | None = None,
    plan: Plan | None = None,
) -> list[str]:
    """The headline, which answers the study's question in one or two sentences, then the rest of the answer.

    What the study was made to ask comes first: whether a publication's results come back, whether stability is restored
    where the baseline is unstable, which part of a norm acts, and, if that is registered, on which of the settings that it
    crosses the result depends. Then the decisions, and the other hypotheses. *plan*: says which
    parts of a norm the variants have.
    """
    decisions = _decisions(analysis, verdict)
    if not decisions:
        return []
    tested = stability_tested(verdict)
    first = ["Interim, not all runs have ended, so nothing is inferred yet."] if interim else []
    first += [replicated(replication)] if replication is not None else []
    first += judged(analysis, verdict, stability=True) if tested else []
    rest = judged(analysis, verdict, stability=False)
    rest += [] if tested else judged(analysis, verdict, stability=True)
    between = _between_variants(analysis, every=all(decided.label != "registered" for decided in verdict.verdicts))
    settings = analysis.interactions
    registered = settings is not None and any(contrast.label == "registered" for contrast in settings.contrasts)
    factors = crossed_effects(analysis)
    if registered:
        main = [_interacting(analysis, factors[0]), *decisions, *between, *factors[1:]]
    elif factors:  # what its variants differ in is what such a study asks
        main = [*_acting(analysis, plan), decisions[0], *between, *decisions[1:], *factors]
    else:
        main = [*_acting(analysis, plan), *decisions, *between]
    if not interim and all(decided.label == "exploratory" for decided in verdict.verdicts):
        (first or main).insert(1, "This is exploratory: a lead to test again, not a finding.")
    texts = [*first, *main, *rest]
    return texts if replication is not None else _headed(texts)


def _headed(texts: list[str]) -> list[str]:
    large = 1
    while large < min(len(texts), MOST_SENTENCES) and len(" ".join(texts[: large + 1])) <= MOST_LETTERS:
        large += 1
    return [" ".join(texts[:large]), *texts[large:]]


def _decisions(analysis: Analysis, verdict: Verdict) -> list[str]:
    """What to do and why, a sentence for each decision."""
    if not verdict.verdicts:
        return []
    verdicts, groups = verdict.verdicts, _groups(verdict.verdicts)
    registered = tuple(decided for decided in verdicts if decided.label == "registered")
    leads: list[str] = []
    if registered and _too_many(groups, verdicts):
        others = [decided for decided in verdicts if decided.label != "registered"]
        if others and len({decided.variant for decided in others}) <= MOST_LEADS:
            leads = [_leads(analysis, verdict, others)]
        verdicts, groups = registered, _groups(registered)
    if _too_many(groups, verdicts):
        return [*_counted(analysis, verdict, verdicts), *_weighed(analysis, verdicts), *leads]
    shown = sorted(groups, key=lambda group: (group.label == "exploratory", group.decision not in ADOPTED))
    known = {(decided.variant, decided.decision) for decided in registered}
    if registered:  # what is not registered and decides the same says nothing new
        shown = [
            group
            for group in shown
            if group.label == "registered" or any((v.variant, v.decision) not in known for v in group.verdicts)
        ]
    mixed = len({group.label for group in groups}) > 1
    alike = len({group.regimes for group in shown}) == 1  # then the place is said once
    told, more, leading = list[str](), list[str](), set[str]()
    for place, group in enumerate(shown):
        words = decision_words(
            analysis,
            verdict,
            group,
            alone=False,
            placed=not (alike and place) or _one_of_several(analysis, group.regimes),
            behind=any(before.decision != group.decision for before in shown[:place]),
        )
        told.append(_told(group, words, mixed=mixed, again=words.lead in leading))
        leading.add(words.lead)
        more += words.more
    return [*told, *more, *leads]


def _leads(analysis: Analysis, verdict: Verdict, others: Sequence[VariantVerdict]) -> str:
    """``In regime hot (not registered), undecided: muon and rotary.``"""
    places = tuple(dict.fromkeys(decided.regime for decided in others))
    if len(places) == 1:
        clauses = _by_decision(analysis, verdict, others)
        return f"{capital(_where(analysis, places).strip())} (not registered), {'; '.join(clauses)}."
    return f"Not registered, leads only: {' '.join(_counted(analysis, verdict, others))}"


def _one_of_several(analysis: Analysis, regimes: Sequence[str]) -> bool:
    """Whether a sentence without its place could be read as one about another regime."""
    return len(regimes) == 1 and len(analysis.regimes) > 1 and TUNED not in regimes


def _weighed(analysis: Analysis, verdicts: Sequence[VariantVerdict]) -> list[str]:
    """What speaks against variants that are to be used, where decisions are counted."""
    used = [group for group in _groups(verdicts) if group.decision in ADOPTED]
    told = {worse: None for group in used if (worse := _worse_elsewhere(analysis, group, named=True))}
    return [f"But {'; '.join(told)}."] if told else []


def _between_variants(analysis: Analysis, *, every: bool) -> list[str]:
    """``Against winners: without-muon is worse by 0.12 nats/token.`` for every variant that a registered contrast names,
    whether it is better, worse, a tie or not shown.

    *every*: nothing was registered, so any contrast counts.
    """
    asked = [
        comparison
        for comparison in analysis.comparisons
        if (every or comparison.label == "registered")
        and comparison.reference != analysis.baseline
        and comparison.metric == analysis.primary
        and comparison.delta is not None
    ]
    sentences = []
    tied = [c for c in asked if c.outcome == "not-shown" and c.equivalence is not None and c.equivalence.equivalent]
    for (regime, _), alike in grouped(((c.regime, c.smallest_effect), c) for c in tied).items():
        pairs = listed(f"{c.variant} {'ties with' if c is alike[0] else 'with'} {c.reference}" for c in alike)
        within = margin_of(alike[0], alike[0].smallest_effect or 0.0)
        sentences.append(f"{pairs}{_at(analysis, regime)} ({name_of(alike[0])} within ±{within}).")
    for (reference, regime), comparisons in grouped(((c.reference, c.regime), c) for c in asked).items():
        clauses = _better_or_worse(comparisons)
        ordered = sorted(comparisons, key=lambda comparison: -abs(comparison.delta or 0.0))
        rest = [c for c in ordered if c.outcome not in ("better", "worse", "different") and c not in tied]
        if rest and (clauses or not every):
            clauses += _undecided(rest)
        if clauses:
            sentences.append(f"Against {reference}{_at(analysis, regime)}: {'; '.join(clauses)}.")
    return sentences


def _better_or_worse(comparisons: Sequence[Comparison]) -> list[str]:
    """``a and b are worse by 0.12 and 0.1 nats/token``, the largest difference first; nothing where none is shown."""
    ordered = sorted(comparisons, key=lambda comparison: -abs(comparison.delta or 0.0))
    shown = grouped((comparison.outcome, comparison) for comparison in ordered)
    return [
        f"{listed(comparison.variant for comparison in shown[outcome])} "
        f"{'are' if len(shown[outcome]) > 1 else 'is'} {outcome}{_by(shown[outcome])}"
        for outcome in ("better", "worse")
        if outcome in shown
    ]


def _undecided(comparisons: Sequence[Comparison]) -> list[str]:
    """What nothing is shown of, and what was not tested."""
    tested = [c.variant for c in comparisons if c.outcome == "not-shown"]
    others = [c.variant for c in comparisons if c.outcome != "not-shown"]
    shown = [f"no difference is shown for {listed(tested)}"] if tested else []
    return [*shown, *([f"{listed(others)} {'was' if len(others) == 1 else 'were'} not tested"] if others else [])]


def _nothing_shown(comparisons: Sequence[Comparison]) -> str:
    """The same without names."""
    untested = sum(comparison.outcome != "not-shown" for comparison in comparisons)
    if untested == len(comparisons):
        return "nothing could be tested"
    part = f" ({count(untested)} of {count(len(comparisons))} could not be tested)" if untested else ""
    return f"no difference is shown{part}"


def _registered_on_primary(analysis: Analysis) -> list[Comparison]:
    return [
        comparison
        for comparison in analysis.comparisons
        if comparison.label == "registered" and comparison.metric == analysis.primary and comparison.delta is not None
    ]


def _interacting(analysis: Analysis, sentence: str) -> str:
    """What the crossed settings do, with what each arm does to the one that it was registered against, if they interact and
    contrasts register several such references beside the baseline."""
    asked = _registered_on_primary(analysis)
    contrasts = [comparison for comparison in asked if comparison.reference != analysis.baseline]
    named = {name for comparison in contrasts for name in (comparison.variant, comparison.reference)}
    own = [c for c in asked if c.reference == analysis.baseline and c.variant not in named]
    interact = interacting(analysis)
    if not interact or not own or not contrasts or len({comparison.regime for comparison in asked}) > 1:
        return sentence
    told = [
        f"against {reference}, {listed(_better_or_worse(alike) or [_nothing_shown(alike)])}"
        for reference, alike in grouped((c.reference, c) for c in (*own, *contrasts)).items()
    ]
    return f"{interact}: {'; '.join(told)}."


def _acting(analysis: Analysis, plan: Plan | None) -> list[str]:
    """Which part of a norm on the embeddings acts: ``Scale makes the difference, not centering or bias: ...``; nothing
    unless registered comparisons single out several parts and show something of one."""
    found = {} if plan is None else _single_parts(analysis, plan)
    known = {part: next(iter(outcomes)) if len(outcomes) == 1 else "open" for part, outcomes in found.items()}
    act = [part for part, outcome in known.items() if outcome in ("better", "worse")]
    tied = [part for part, outcome in known.items() if outcome == "tie"]
    if len(known) < 2 or not (act or tied):
        return []
    compared = [comparison for part in known for alike in found[part].values() for comparison in alike]
    metric, where = name_of(compared[0]), _at(analysis, compared[0].regime)
    clauses = [
        f"{metric} is {known[part]}{_by(alike)} with {part} ({listed(c.variant for c in alike)}{where})"
        for part in act
        for alike in found[part].values()
    ]
    if tied:
        margins = {margin_of(c, c.smallest_effect or 0.0) for part in tied for c in found[part]["tie"]}
        within = f" within ±{margins.pop()}" if len(margins) == 1 else ""
        clauses.append(f"{'it' if act else metric} ties{within} with and without {listed(tied)}{'' if act else where}")
    if unknown := [part for part in known if part not in (*act, *tied)]:
        clauses.append(f"what {listed(unknown)} {'do' if len(unknown) > 1 else 'does'} is not shown")
    others = f", not {listed(tied, 'or')}" if tied else ""
    lead = f"{capital(listed(act))} {'make' if len(act) > 1 else 'makes'} the difference{others}" if act else ""
    neither = f"No difference comes from {listed(tied, 'or')}" if tied else ""
    return [f"{lead if act else neither}: {', and '.join(clauses)}."]


def _single_parts(analysis: Analysis, plan: Plan) -> dict[str, dict[str, list[Comparison]]]:
    """Registered comparisons of arms that differ in one part of the norm on the embeddings and in nothing else, by that part
    and by what it does: ``better``, ``worse``, ``tie`` or what else the comparison says. Nothing for several regimes."""
    asked = _registered_on_primary(analysis)
    if len({comparison.regime for comparison in asked}) != 1:
        return {}
    arms = {run.variant: run for run in plan.runs if run.regime == asked[0].regime}
    found: dict[str, dict[str, list[Comparison]]] = {}
    for comparison in asked:
        variant, reference = arms.get(comparison.variant), arms.get(comparison.reference)
        if variant is None or reference is None or variant.recipe is None or reference.recipe is None:
            continue
        others = [
            (arm.model.changed(front=_without_norm(arm.model.front)), arm.training) for arm in (variant, reference)
        ]
        mine, theirs = front_parts(variant.model.front), front_parts(reference.model.front)
        if others[0] != others[1] or len(mine ^ theirs) != 1:
            continue
        (part,) = mine ^ theirs
        outcome: str = comparison.outcome
        if theirs > mine:
            outcome = {"better": "worse", "worse": "better"}.get(outcome, outcome)
        tie = comparison.equivalence is not None and comparison.equivalence.equivalent
        found.setdefault(part, {}).setdefault("tie" if tie else outcome, []).append(comparison)
    return found


def _without_norm(front: FrontEnd) -> FrontEnd:
    """What is left of a front end: its place, and what becomes of its gradient."""
    return FrontEnd(place=front.place, gradient=front.gradient)


def front_parts(front: FrontEnd) -> frozenset[str]:
    """What a front end does to a vector."""
    parts = {"layernorm": {"scale", "centering"}, "rmsnorm": {"scale"}, "center": {"centering"}, "none": set[str]()}
    own = parts[front.norm] | ({"bias"} if front.bias else set()) | ({"scale"} if front.scale != 1 else set())
    return frozenset(own)


def _at(analysis: Analysis, regime: str) -> str:
    """Where, unless it is at tuned rates, which the decisions say."""
    return "" if regime == TUNED else _where(analysis, (regime,))


def _too_many(groups: Sequence[AlikeVerdicts], verdicts: Sequence[VariantVerdict]) -> bool:
    several = len({decided.regime for decided in verdicts}) > 1
    crowded = len(groups) > 2 and len({decided.variant for decided in verdicts}) > MOST_VARIANTS
    return crowded or len(groups) > (MOST_IN_REGIMES if several else MOST_GROUPS)


def _told(group: AlikeVerdicts, words: DecisionWords, *, mixed: bool, again: bool) -> str:
    """*again*: what to do was said before, for another reason."""
    if mixed and group.label == "exploratory":
        lead_only = "" if group.decision in (Decision.INCONCLUSIVE, Decision.NO_VERDICT) else ", a lead only"
        return f"Not registered{lead_only}: {words.lead}. {words.why.begun}."
    return f"{words.why.begun}." if again else f"{words.lead}: {words.why.text}."


def verdict_sentence(analysis: Analysis, verdict: Verdict, decided: VariantVerdict) -> tuple[str, str]:
    """What to do, and why in a few words."""
    group = AlikeVerdicts(decided.decision, decided.rule, decided.label, (decided.regime,), (decided,))
    words = decision_words(analysis, verdict, group)
    return f"{words.lead}.", f"{words.why.begun}."


def main_comparison(analysis: Analysis, decided: VariantVerdict) -> Comparison | None:
    """The comparison that a verdict speaks of: that of the primary metric, else the first of its evidence."""
    by_id = {comparison.id: comparison for comparison in analysis.comparisons}
    evidence = (by_id.get(name) for name in decided.evidence)
    asked = [comparison for comparison in evidence if comparison is not None and comparison.role == "primary"]
    if analysis.primary is not None:
        main = analysis.comparison(analysis.primary, decided.regime, decided.variant, decided.reference)
        asked = [*asked, *([] if main is None else [main])]
    asked += [by_id[name] for name in decided.evidence if name in by_id]
    return next((comparison for comparison in asked if comparison.n), None)


@dataclass(frozen=True)
class DecisionWords:
    """What to do and why, as the halves of a sentence, without a full stop; *more*: whole sentences that may stand apart."""

    lead: str
    why: Clause
    more: tuple[str, ...] = ()


def decision_words(
    analysis: Analysis,
    verdict: Verdict,
    group: AlikeVerdicts,
    *,
    alone: bool = True,
    placed: bool = True,
    behind: bool = False,
) -> DecisionWords:
    """For variants that share their decision; unless *alone*, many of them are "the other nine variants".

    *placed*: it says in which regime, or that rates are tuned. *behind*: it follows another decision, on other variants.
    """
    if group.decision in ADOPTED:
        return _use(analysis, verdict, group, placed=placed)
    first = group.verdicts[0]
    names, several = _names(analysis, group, alone=alone), len(group.verdicts) > 1
    counted = len(group.verdicts) > MOST_NAMED and not alone
    begin = names.capitalize() if counted else names
    base = the_baseline(first.reference)
    where, size = _where(analysis, group.regimes) if placed else "", _sizes(analysis, group)
    registered = "registered" if group.label == "registered" else "asked for"
    it, are, look = ("each", "are", "look") if several else ("it", "is", "looks")
    them = "them" if several else "it"
    now = group.decision == Decision.KEEP_PROVISIONALLY
    rather = f" rather than {_names(analysis, group, alone=alone, last='or')}" if behind else ""
    keep = f"Keep {base}{rather}{where}{' for now' if now else ''}"
    known = bool(behind)  # whether the lead names the variants
    if any(used_in(verdict, regime) for regime in group.regimes):
        unused = f"Do not use {_names(analysis, group, alone=alone, last='or')}{where}"
        keep = f"{begin} {are} not worth using{where} for now" if now else unused
        known = True

    def kept(rest: str) -> DecisionWords:
        subject = ("they" if several else "it") if known else names
        return DecisionWords(keep, Clause(f"{subject} {rest}", named=not known and not counted))

    def said(lead: str, why: str) -> DecisionWords:
        return DecisionWords(f"{lead}{where}", Clause(why))

    def open_still(why: str, *, named: bool = True) -> DecisionWords:
        return DecisionWords(f"Undecided{where}", Clause(why, named=named and not counted))

    match group.decision:
        case Decision.TRADE_OFF if group.rule == Rule.RESTORES_STABILITY:
            compared = [main_comparison(analysis, decided) for decided in group.verdicts]
            shown = all(comparison is not None and comparison.outcome == "worse" for comparison in compared)
            price = ("have" if several else "has") if shown else "may have"
            fails = f"{it} fails less often than {base}{_failures(analysis, group)}"
            return said(f"{begin} {price} a price", f"{fails}, but may cost more than the margins allow")
        case Decision.TRADE_OFF if first.reason == Reason.BETTER_WITH_BAD_RUNS:
            why = f"{it} is better than {base}{size}, but has single bad runs in something else that was {registered}"
            return said(f"{begin} may have a price", why)
        case Decision.TRADE_OFF:
            why = f"{it} is better than {base}{size}, but worse in something else that was {registered}"
            return said(f"{begin} {'have' if several else 'has'} a price", why)
        case Decision.KEEP_PROVISIONALLY if first.reason == Reason.BAD_RUNS:
            return kept(f"{look} worse, but {_bad_runs(analysis, group)}")
        case Decision.KEEP_PROVISIONALLY if first.reason == Reason.FAILS_MORE:
            shown_stable = f"{'they are' if several else 'it is'} not shown to be as stable"
            return DecisionWords(keep, Clause(f"more runs of {names} fail than the margin allows, and {shown_stable}"))
        case Decision.KEEP_PROVISIONALLY:
            diverged = f"{'each ' if several else ''}diverged {_alone_in(analysis, group)}"
            return kept(f"{diverged}, and no gain that is shown outweighs it")
        case Decision.KEEP_BASELINE:
            return kept(f"{are} {'less stable' if group.rule == Rule.LESS_STABLE else f'worse{size}'}")
        case Decision.TIE:
            stay = "their differences stay" if several else "the difference stays"
            within = f"{_within(analysis, first)}the smallest effect that was {registered}"
            return said(f"{begin} {'tie' if several else 'ties'} with {base}", f"{stay} within {within}")
        case Decision.INCONCLUSIVE if first.reason == Reason.RUNS_MISSING:
            missing = f"runs of {names} are missing on seeds where the baseline's are there"
            return open_still(f"{missing}, so what the others show does not decide", named=False)
        case Decision.INCONCLUSIVE if first.reason == Reason.MAY_BE_LESS_STABLE:
            stable = f"{names} {are} more stable on the runs that are there"
            return open_still(f"{stable}, but runs are missing that may have failed")
        case Decision.INCONCLUSIVE if first.reason == Reason.MAY_BE_SMALL:
            better = f"{names} {are} better than {base}{size}"
            return open_still(f"{better}, but only single runs keep {them} from being a tie")
        case Decision.INCONCLUSIVE if alike := _without_spread(analysis, group):
            return open_still(f"{alike}, so check that seeds vary the runs", named=False)
        case Decision.INCONCLUSIVE:
            differ = f"{names} {'differ' if several else 'differs'} from {base} in {_deciding(analysis, first)}"
            equivalent = f"{'they are' if several else 'it is'} equivalent to it"
            return open_still(f"these runs show neither that {differ}, nor that {equivalent}", named=False)
        case Decision.NO_VERDICT:
            cannot = f"{_deciding(analysis, first)} cannot decide, and no difference in stability is shown"
            return DecisionWords(f"No verdict{where} on {names}", Clause(cannot))


def _without_spread(analysis: Analysis, group: AlikeVerdicts) -> str:
    """That no variant's difference varies between seeds; nothing where one does."""
    compared = [
        analysis.primary_comparison(regime, decided.variant) for decided in group.verdicts for regime in group.regimes
    ]
    alike = [no_spread(comparison) for comparison in compared if comparison is not None]
    return listed(alike) if alike and all(alike) and len(alike) == len(compared) else ""


def _deciding(analysis: Analysis, decided: VariantVerdict) -> str:
    """The metric that decides, in words."""
    if analysis.primary is None:
        return "the primary metric"
    found = analysis.comparison(analysis.primary, decided.regime, decided.variant, decided.reference)
    return metric_name(analysis.primary) if found is None else name_of(found)


def _alone_in(analysis: Analysis, group: AlikeVerdicts) -> str:
    """Where each variant diverged alone."""
    arms = (gather(analysis, decided.variant, regime) for decided in group.verdicts for regime in group.regimes)
    return where_alone(*arms)


def _use(analysis: Analysis, verdict: Verdict, group: AlikeVerdicts, *, placed: bool) -> DecisionWords:
    """What to use, the largest gain first: no variant that another one to use is shown to beat."""
    alike, lost = _by_size(analysis, group), _beaten(analysis, verdict)
    beaten = [decided for decided in alike if any((decided.variant, regime) in lost for regime in group.regimes)]
    best = [decided for decided in alike if decided not in beaten] or alike
    them = AlikeVerdicts(group.decision, group.rule, group.label, group.regimes, tuple(best))
    where, size, several = _where(analysis, group.regimes) if placed else "", _sizes(analysis, them), len(best) > 1
    base = the_baseline(best[0].reference)
    it, fail, cost = ("they are", "they fail", "cost") if several else ("it is", "it fails", "costs")
    match group.decision:
        case Decision.ADOPT:
            why = f"{it} better than {base}{size}{_no_less_stable(analysis, best[0])}"
        case Decision.ADOPT_PROVISIONALLY:
            why = f"{it} better than {base}{size}, but {_not_shown(analysis, best)}"
        case _:
            registered = "registered" if group.label == "registered" else "asked for"
            less = f"{fail} less often than {base}{_failures(analysis, them)}"
            why = f"{less}, and {cost} no more than the margins that were {registered}"
    if worse := _worse_elsewhere(analysis, them, named=False):
        why += f"{', and' if ', but ' in why else ', but'} {worse}"
    if len(beaten) == len(alike):
        names = listed(decided.variant for decided in beaten)
        return DecisionWords(f"{names} {'are' if several else 'is'} not the first choice{where}", Clause(why))
    named = [decided.variant for decided in best[:MOST_NAMED]]
    more = len(best) - len(named)
    either = listed([*named, *([f"one of {count(more)} more"] if more else [])], "or")
    rather = f" rather than {listed((decided.variant for decided in beaten), 'or')}" if beaten else ""
    now = "For now use" if group.decision == Decision.ADOPT_PROVISIONALLY else "Use"
    one_rate = group.decision != Decision.ADOPT_IN_REGIME and _one_rate(analysis)
    rate = f", at {given_rates(analysis, group.regimes)}" if one_rate else ""
    which = [_which_is_best(analysis, group.regimes, [decided.variant for decided in best])] if several else []
    return DecisionWords(f"{now} {either}{rather}{where}{rate}", Clause(why), tuple(which))


def _worse_elsewhere(analysis: Analysis, group: AlikeVerdicts, *, named: bool) -> str:
    """``trade is worse by 0.042 in accuracy``: what speaks against variants to use, on other metrics that were given.

    *named*: a variant that stands alone goes by its name, too.
    """
    found = {decided.variant: worse_elsewhere(analysis, decided.variant, group.regimes) for decided in group.verdicts}
    by_metric = grouped((name_of(worse), worse) for mine in found.values() for worse in mine)
    if not by_metric:
        return ""
    exploratory = group.label == "registered" and all(
        comparison.label == "exploratory" for worse in by_metric.values() for comparison in worse
    )
    clauses = []
    for metric, worse in list(by_metric.items())[:MOST_WORSE]:
        names = list(dict.fromkeys(comparison.variant for comparison in worse))
        subject = listed(names) if len(names) <= MOST_NAMED else f"{count(len(names))} of them"
        subject = subject if named or len(group.verdicts) > 1 else "it"
        size = _by(worse) if len(group.regimes) == 1 else ""
        clauses.append(f"{subject} {'are' if len(names) > 1 else 'is'} worse{size} in {metric}")
    if len(by_metric) > MOST_WORSE:
        clauses.append(f"there are losses in {several(len(by_metric) - MOST_WORSE, 'more metric')}")
    return listed(clauses) + (" (exploratory)" if exploratory else "")


def _which_is_best(analysis: Analysis, regimes: Sequence[str], names: Sequence[str]) -> str:
    """What is known of variants to use, none of which is shown better than another."""
    compared = any(
        comparison.metric == analysis.primary
        and comparison.regime in regimes
        and {comparison.variant, comparison.reference} <= set(names)
        for comparison in analysis.comparisons
    )
    few = len(names) <= MOST_NAMED
    which = Clause(listed(names) if few else f"the {count(len(names))} variants to use", named=few)
    return (
        f"Which of {which.text} is best is not shown."
        if compared
        else f"{which.begun} were not compared with each other."
    )


def _not_shown(analysis: Analysis, alike: Sequence[VariantVerdict]) -> str:
    """What keeps variants from being adopted outright, in a clause: stability, open guards, runs that are missing."""
    guards, lacking = [], set()
    for decided in alike:
        evidence = gather(analysis, decided.variant, decided.regime)
        guards += [metric_name(guard.metric) for guard in evidence.guards if guard.shown != "kept"]
        if not evidence.standing.non_inferior:
            lacking |= {"stability" if evidence.standing.known else "unknown"}
        lacking |= {"runs"} if evidence.lacking or evidence.variant_diverged else set()
        guards += map(metric_name, evidence.unmeasured)
    are, do, their = ("they are", "they do", "their") if len(alike) > 1 else ("it is", "it does", "its")
    clauses = [f"{are} not shown to be as stable"] if "stability" in lacking else []
    clauses += [f"{their} stability is not known"] if "unknown" in lacking else []
    parts = [f"what {do} to {listed(dict.fromkeys(guards))}"] if guards else []
    parts += [f"what {do} in the runs that are missing"] if "runs" in lacking else []
    clauses += [f"{listed(parts)} {'is' if len(parts) == 1 else 'are'} not shown"] if parts else []
    return ", and ".join(clauses) or "not everything is shown"


def _beaten(analysis: Analysis, verdict: Verdict) -> set[tuple[str, str]]:
    """(variant, regime) of what is adopted where another adopted variant is shown better."""
    use = [decided for decided in verdict.verdicts if decided.decision in ADOPTED]
    places = {(decided.variant, decided.regime) for decided in use}
    return {
        (decided.variant, decided.regime)
        for decided in use
        if any((name, decided.regime) in places for name in better_variants(analysis, decided))
    }


def _by_size(analysis: Analysis, group: AlikeVerdicts) -> list[VariantVerdict]:
    """Its verdicts, the largest difference first; as they stand where regimes or metrics make sizes unlike."""
    compared = {decided.variant: main_comparison(analysis, decided) for decided in group.verdicts}
    known = {
        name: comparison
        for name, comparison in compared.items()
        if comparison is not None and comparison.delta is not None
    }
    alike = len(known) == len(compared) and len({comparison.metric for comparison in known.values()}) == 1
    if not alike or len(group.regimes) > 1:
        return list(group.verdicts)
    return sorted(group.verdicts, key=lambda decided: -abs(known[decided.variant].delta or 0.0))


def _names(analysis: Analysis, group: AlikeVerdicts, *, alone: bool, last: str = "and") -> str:
    """The variants by the size of their difference; more than `MOST_NAMED` are counted."""
    names = [decided.variant for decided in _by_size(analysis, group)]
    every = len(analysis.variants) - 1
    if len(names) <= MOST_NAMED or alone:
        return listed(names, last)
    return f"all {count(every)} variants" if len(names) == every else f"the other {count(len(names))} variants"


def _bad_runs(analysis: Analysis, group: AlikeVerdicts) -> str:
    """What hides that variants are worse: differences that vary too much, and the seed if one alone does it."""
    known = (gather(analysis, decided.variant, decided.regime) for decided in group.verdicts)
    bad = {seed for evidence in known if evidence.bad_runs_stand_out for seed in evidence.bad_runs}
    largest = f"; look at the runs of seed {next(iter(bad))}, where they are largest" if len(bad) == 1 else ""
    return f"the differences vary too much between seeds to show it{largest}"


def _groups(verdicts: Sequence[VariantVerdict]) -> list[AlikeVerdicts]:
    """Variants that share decision and reason in a regime, then regimes that share such variants."""
    by_regime = grouped(
        (
            (
                decided.regime,
                decided.decision,
                decided.rule,
                decided.label,
                decided.reason if decided.decision in (Decision.KEEP_PROVISIONALLY, Decision.INCONCLUSIVE) else None,
            ),
            decided,
        )
        for decided in verdicts
    )
    merged: dict[tuple[object, ...], AlikeVerdicts] = {}
    for (regime, decision, rule, label, told), members in by_regime.items():
        key = (decision, rule, label, told, tuple(decided.variant for decided in members))
        before = merged.get(key)
        regimes = (regime,) if before is None else (*before.regimes, regime)
        merged[key] = AlikeVerdicts(
            decision, rule, label, regimes, before.verdicts if before is not None else tuple(members)
        )
    return list(merged.values())


#: A decision behind the names of the variants it is about.
_DECIDED = {
    Decision.ADOPT: "use{it}",
    Decision.ADOPT_IN_REGIME: "use{it}",
    Decision.ADOPT_PROVISIONALLY: "use{it} for now",
    Decision.TRADE_OFF: "a trade-off",
    Decision.TIE: "a tie",
    Decision.INCONCLUSIVE: "undecided",
    Decision.NO_VERDICT: "no verdict",
    Decision.KEEP_PROVISIONALLY: "keep the baseline for now",
    Decision.KEEP_BASELINE: "keep the baseline",
}
#: The same where another variant is to be used.
_NOT_USED = {Decision.KEEP_PROVISIONALLY: "not worth using for now", Decision.KEEP_BASELINE: "do not use{it}"}


def _decided(verdict: Verdict, decision: Decision, regime: str, it: str = " it") -> str:
    return (_DECIDED | _NOT_USED if used_in(verdict, regime) else _DECIDED)[decision].format(it=it)


def _counted(analysis: Analysis, verdict: Verdict, verdicts: Sequence[VariantVerdict]) -> list[str]:
    """``layernorm: use it in deep and no-warmup, keep the baseline in four of six regimes.`` for variants that are decided
    alike; in one regime ``Use: rotary and muon. Undecided: swiglu.``"""
    places = tuple(dict.fromkeys(decided.regime for decided in verdicts))
    if len(places) == 1:
        clauses = _by_decision(analysis, verdict, verdicts)
        if _one_of_several(analysis, places):
            return [f"{capital(_where(analysis, places).strip())}, {'; '.join(clauses)}."]
        sentences = [f"{capital(clause)}." for clause in clauses]
        return [*sentences, *(["Every arm has its own best learning rate."] if places == (TUNED,) else [])]
    sentences = []
    every = dict.fromkeys(decided.regime for decided in verdicts)
    by_variant = grouped((decided.variant, decided) for decided in verdicts)
    same = grouped(
        (tuple((decided.decision, decided.regime) for decided in mine), name) for name, mine in by_variant.items()
    )
    for decisions, names in same.items():
        regimes = grouped((_decided(verdict, decision, regime), regime) for decision, regime in decisions)
        parts = [f"{words} {at_places(places, every)}" for words, places in regimes.items()]
        sentences.append(f"{listed(names)}: {', '.join(parts)}.")
    return sentences


def _by_decision(analysis: Analysis, verdict: Verdict, verdicts: Sequence[VariantVerdict]) -> list[str]:
    """``use: rotary and muon``, a clause for every decision in one regime."""
    beaten = _beaten(analysis, verdict)
    alike: dict[str, list[VariantVerdict]] = {}
    used_first = sorted(
        verdicts, key=lambda known: known.decision not in ADOPTED or (known.variant, known.regime) in beaten
    )
    for decided in used_first:
        words = "better than the baseline, but worse than another variant"
        if (decided.variant, decided.regime) not in beaten:
            words = _decided(verdict, decided.decision, decided.regime, it="")
        alike.setdefault(words, []).append(decided)
    return [f"{words}: {_named(analysis, members, len(verdicts))}" for words, members in alike.items()]


def _named(analysis: Analysis, alike: Sequence[VariantVerdict], judged: int) -> str:
    """The variants, the largest difference first; of many, how many of all that were *judged*, and the largest gain."""
    first = alike[0]
    group = AlikeVerdicts(first.decision, first.rule, first.label, (first.regime,), tuple(alike))
    if len(alike) <= MOST_NAMED:
        return listed(decided.variant for decided in _by_size(analysis, group))
    known = [(decided, main_comparison(analysis, decided)) for decided in alike]
    sized = [(decided, it) for decided, it in known if it is not None and it.delta is not None and it.direction]
    text = f"{count(len(alike))} of {count(judged)} variants"
    if first.decision not in ADOPTED or not sized or len({it.metric for _, it in sized}) > 1:
        return text
    best, comparison = min(sized, key=lambda pair: (pair[1].delta or 0.0) * (1 if pair[1].direction == "lower" else -1))
    return f"{text}, the largest gain that of {best.variant} ({change(comparison)})"


def _where(analysis: Analysis, regimes: tuple[str, ...]) -> str:
    if regimes == (TUNED,):
        return " at tuned rates"
    if regimes == (DEFAULT_REGIME,) and len(analysis.regimes) == 1:
        return ""
    return f" in {'regime ' if len(regimes) == 1 else ''}{listed(regimes)}"


def _one_rate(analysis: Analysis) -> bool:
    """Whether every run was trained here at one learning rate."""
    return analysis.source == "records" and not analysis.own_trainer and analysis.sweep is None


def _sizes(analysis: Analysis, group: AlikeVerdicts) -> str:
    """`` by 0.012 and 0.010 nats/token in validation loss``; nothing for several regimes, which have sizes of their own."""
    compared = [main_comparison(analysis, decided) for decided in _by_size(analysis, group)]
    known = [comparison for comparison in compared if comparison is not None and comparison.delta is not None]
    if len(known) < len(compared) or len({comparison.metric for comparison in known}) > 1:
        return ""
    name = name_of(known[0])
    if len(group.regimes) > 1 or any(comparison.told_by_medians for comparison in known):
        return f" in {name}"
    return f" by {_amounts(known)} in {name}"


def _by(comparisons: Sequence[Comparison]) -> str:
    """`` by 0.012 nats/token``; nothing where unstable runs make a difference."""
    return "" if any(comparison.told_by_medians for comparison in comparisons) else f" by {_amounts(comparisons)}"


def _amounts(comparisons: Sequence[Comparison]) -> str:
    """``0.012 and 0.010 nats/token``; of many, the smallest and the largest: ``0.385 to 0.706 nats/token``."""
    if len(comparisons) > MOST_SIZES:
        ends = sorted(comparisons, key=lambda comparison: abs(comparison.delta or 0.0))
        comparisons, joined = (ends[0], ends[-1]), " to ".join
    else:
        joined = listed
    sizes = [(shown.size, shown.unit) for shown in map(difference_of, comparisons)]
    if len(set(sizes)) == 1:
        return with_unit(*sizes[0])
    if len({unit for _, unit in sizes}) > 1:
        return joined([with_unit(*size) for size in sizes])
    return with_unit(joined([size for size, _ in sizes]), sizes[0][1])


def _within(analysis: Analysis, decided: VariantVerdict) -> str:
    comparison = main_comparison(analysis, decided)
    if comparison is None or comparison.smallest_effect is None:
        return ""
    return f"±{margin_of(comparison, comparison.smallest_effect)} in {name_of(comparison)}, "


def _failures(analysis: Analysis, group: AlikeVerdicts) -> str:
    """`` (11 of 48 none runs diverged, 0 of 48 layernorm runs)``, by the worst kind of failure that shows it; of several
    regimes, which kinds are rarer where."""
    if len(group.verdicts) > MOST_SIZES or analysis.stability is None:
        return ""
    rarer = []
    for decided in group.verdicts:
        for regime in group.regimes:
            kinds = analysis.stability.vector(decided.variant, decided.reference, regime)
            rarer += [gain for gain in kinds if gain.outcome == "more-stable"][:1]
    if not rarer:
        return ""
    if len(group.regimes) == 1:
        return f" ({'; '.join(map(failing, rarer))})"
    where = grouped((gain.failure, gain.regime) for gain in rarer)
    clauses = [
        f"fewer runs {FAILING.get(kind, 'are unstable')} {at_places(list(dict.fromkeys(regimes)))}"
        for kind, regimes in where.items()
    ]
    return f" ({', '.join(clauses)})"


def _no_less_stable(analysis: Analysis, decided: VariantVerdict) -> str:
    """What is shown of its stability: of runs whose curves are not known, divergence alone."""
    if not decided.stability.non_inferior:
        return ""
    return ", and no less stable" if spikes_known(analysis) else ", and diverges no more often"


def spikes_known(analysis: Analysis) -> bool:
    """Whether the training curve of any run was read for spikes."""
    return analysis.stability is not None and any(run.spike_score is not None for run in analysis.stability.runs)
