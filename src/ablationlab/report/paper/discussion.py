"""Discussion, generated from the verdict: each decision told with its own evidence, and what a reader should do."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ablationlab.analysis.verdict.words import asked, not_asked
from ablationlab.records.verdict import Cost, VariantVerdict
from ablationlab.report.naming import metric_name
from ablationlab.report.numbers import count, number, setting, with_unit
from ablationlab.report.paper.facts import Facts, finding, gain_clause, unstable_counts
from ablationlab.report.paper.typst import Typst, capital, code, listed, say, sentences

#: Variants of one decision that are told one by one; the tables have them all.
MOST_TOLD = 4

Teller = Callable[[Facts, Sequence[VariantVerdict]], Typst]


def paragraphs(facts: Facts) -> list[Typst]:
    """One paragraph for each decision in each regime, then the hypotheses."""
    groups: dict[tuple[str, str], list[VariantVerdict]] = {}
    for one in facts.verdict.verdicts:
        groups.setdefault((one.regime, one.decision), []).append(one)
    told = [_TELLERS[decision](facts, found) for (_, decision), found in groups.items()]
    if not told:
        told = [Typst("There is no variant beside the baseline, so there is nothing to decide.")]
    if facts.interim:
        told.insert(0, Typst("*The study is not finished; the following is a state of affairs, not a result.*"))
    exploratory = [one for one in facts.verdict.verdicts if one.label == "exploratory"]
    if exploratory:
        told.append(_exploratory(exploratory, len(facts.verdict.verdicts)))
    if not facts.from_table:
        told.append(_hypotheses(facts))
    return told


def _head(facts: Facts, found: Sequence[VariantVerdict], words: str) -> Typst:
    names = listed(code(one.variant) for one in found)
    regime = facts.where(found[0].regime)
    return say("*{words}* ({names}{regime}).", words=words, names=names, regime=regime)


def _evidence(facts: Facts, one: VariantVerdict) -> Typst:
    comparison = facts.primary_of(one.variant, one.regime)
    return Typst("") if comparison is None else Typst(f"{capital(finding(comparison))}.")


def _rest(found: Sequence[VariantVerdict]) -> Typst:
    """Where the numbers of the variants are that were not told one by one."""
    left = len(found) - MOST_TOLD
    if left <= 0:
        return Typst("")
    return say("The same rule decides on the other {n}; their numbers are in the tables.", n=count(left))


def _baseline_stable(facts: Facts, regime: str) -> bool | None:
    stability = facts.analysis.stability
    arm = stability.arm(facts.baseline, regime) if stability is not None else None
    return None if arm is None or arm.unstable is None else not arm.unstable


def _keep(facts: Facts, found: Sequence[VariantVerdict]) -> Typst:
    many = len(found) > 1
    parts = [_head(facts, found, "Keep the baseline")]
    parts.append(
        Typst(
            f"{'Each of these changes' if many else 'The change'} makes the primary metric significantly worse, so "
            "rule 2 keeps the baseline."
        )
    )
    parts += [*(_evidence(facts, one) for one in found[:MOST_TOLD]), _rest(found)]
    stable = _baseline_stable(facts, found[0].regime)
    if stable:
        parts.append(
            Typst(
                "The baseline itself trained without an unstable run, so there was no stability to buy at that price."
            )
        )
    elif stable is False:
        gains = [facts.gain_of(one.variant, one.regime) for one in found]
        told = [Typst(f"{capital(gain_clause(gain))}.") for gain in gains[:MOST_TOLD] if gain is not None]
        parts += [Typst("The baseline was not always stable, but a gain in stability is not shown."), *told]
    return sentences([*parts, *_one_rate(facts)])


def _one_rate(facts: Facts) -> list[Typst]:
    if facts.swept or facts.from_table:
        return []
    return [
        Typst(
            "This holds for the setting of this study; it does not say what a learning rate tuned for each arm would give."
        )
    ]


def _adopt(facts: Facts, found: Sequence[VariantVerdict]) -> Typst:
    parts = [_head(facts, found, "Adopt")]
    parts.append(
        Typst(
            f"{'Each of these changes' if len(found) > 1 else 'The change'} makes the primary metric significantly "
            "better and is not less stable than the baseline: rule 3."
        )
    )
    for one in found[:MOST_TOLD]:
        parts.append(_evidence(facts, one))
        gain = facts.gain_of(one.variant, one.regime)
        if gain is not None and gain.n:
            parts.append(Typst(f"{capital(unstable_counts(gain))}."))
        else:
            parts.append(Typst("Stability was not recorded."))
        comparison = facts.primary_of(one.variant, one.regime)
        tost = comparison.equivalence if comparison is not None else None
        if tost is not None and tost.equivalent:
            parts.append(
                say(
                    "The gain is smaller than the ±{effect} that was set as mattering, so little is lost by not "
                    "adopting it.",
                    effect=setting(tost.bounds[1]),
                )
            )
    return sentences([*parts, _rest(found), *_one_rate(facts)])


def _rescue(facts: Facts, found: Sequence[VariantVerdict]) -> Typst:
    parts = [_head(facts, found, "Adopt in this regime")]
    parts.append(
        Typst("The baseline is unstable here, and rule 1 weighs the stability that is gained against its price.")
    )
    for one in found[:MOST_TOLD]:
        parts += [*_gain(facts, one), *_costs(facts, one)]
    parts.append(_rest(found))
    parts.append(
        Typst(
            "Both sides keep what was set beforehand, so the change is adopted where training is unstable. Where "
            "the baseline trains stably this says nothing in its favour."
        )
    )
    return sentences(parts)


def _trade(facts: Facts, found: Sequence[VariantVerdict]) -> Typst:
    parts = [_head(facts, found, "A trade-off")]
    parts.append(
        Typst(
            "The baseline is unstable here and the change restores stability, but its price is not shown to be small."
        )
    )
    for one in found[:MOST_TOLD]:
        parts += [*_gain(facts, one), *_costs(facts, one)]
    parts.append(_rest(found))
    parts.append(
        Typst(
            "Which side weighs more is no statistical question: it depends on what a run that diverges or spikes "
            "costs. A lower learning rate or a longer warmup may buy the same stability and should be compared."
        )
    )
    return sentences(parts)


def _gain(facts: Facts, one: VariantVerdict) -> list[Typst]:
    gain = facts.gain_of(one.variant, one.regime)
    if gain is None:
        return []
    return [Typst(f"{capital(unstable_counts(gain))}; {gain_clause(gain)}.")]


def _costs(facts: Facts, one: VariantVerdict) -> list[Typst]:
    return [_cost(facts, cost) for cost in (one.trade_off.costs if one.trade_off is not None else ())]


def _cost(facts: Facts, cost: Cost) -> Typst:
    comparison = facts.material.comparison(cost.comparison or "")
    unit = "" if comparison is None or comparison.unit in ("", "1") else comparison.unit
    if comparison is not None and comparison.transform == "log":
        unit = "(difference of logarithms)"
    name = metric_name(cost.metric)
    if cost.high is None:
        return say("The loss of {metric} has no upper bound{why}.", metric=name, why=_bracket(cost.why))
    counting = re.search(r"counting the .* as no cost", cost.why)
    bound = with_unit(number(cost.high), unit) + (f" ({counting[0]})" if counting else "")
    if cost.margin is None:
        return say("The loss of {metric} is at most {bound}, for which no margin was set.", metric=name, bound=bound)
    return say(
        "The loss of {metric} is at most {bound}, {word} the margin of {margin}.",
        metric=name,
        bound=bound,
        word="within" if cost.within else "outside",
        margin=setting(cost.margin),
    )


def _bracket(why: str) -> str:
    found = re.search(r"\((.+)\)", why)
    return f" ({found[1]})" if found else ""


def _tie(facts: Facts, found: Sequence[VariantVerdict]) -> Typst:
    parts = [_head(facts, found, "A tie")]
    for one in found[:MOST_TOLD]:
        comparison = facts.primary_of(one.variant, one.regime)
        tost = comparison.equivalence if comparison is not None else None
        if tost is not None:
            parts.append(
                say(
                    "On the primary metric {variant} is equivalent to the baseline within ±{effect}.",
                    variant=code(one.variant),
                    effect=setting(tost.bounds[1]),
                )
            )
        parts.append(_evidence(facts, one))
        broken = one.tie_break
        if broken is None or broken.favours is None:
            parts.append(Typst("No tie-breaker decides, so the simpler model, the baseline, is kept."))
        else:
            parts.append(
                say(
                    "The tie is broken by {metric}, which favours {name}.",
                    metric=metric_name(broken.metric or ""),
                    name=code(broken.favours),
                )
            )
    return sentences([*parts, _rest(found)])


def _open(facts: Facts, found: Sequence[VariantVerdict]) -> Typst:
    parts = [_head(facts, found, "Inconclusive"), Typst("No rule decides.")]
    for one in found[:MOST_TOLD]:
        parts += [_evidence(facts, one), _why_open(facts, one)]
        if one.needs is not None:
            parts.append(say("{text}", text=facts.readable(one.needs.text)))
    parts.append(_rest(found))
    parts.append(Typst("Until then the baseline stays, for want of evidence and not because of any."))
    return sentences(parts)


def _why_open(facts: Facts, one: VariantVerdict) -> Typst:
    """What kept every rule from applying."""
    comparison, name = facts.primary_of(one.variant, one.regime), code(one.variant)
    gain, stability = facts.gain_of(one.variant, one.regime), facts.analysis.stability
    arm = stability.arm(one.variant, one.regime) if stability is not None else None
    if comparison is None:
        return say("For {name} the primary metric is not in the data.", name=name)
    metric = metric_name(comparison.metric)
    if comparison.direction is None:
        return say("That does not decide, since {metric} has no better direction.", metric=metric)
    if comparison.sensitivity is not None and not comparison.sensitivity.sensitive:
        return say("That counts for nothing, since {metric} is not sensitive at this scale.", metric=metric)
    if comparison.outcome == "better" and gain is not None and gain.variant_unstable > gain.reference_unstable:
        return say(
            "That is a significant gain, but {counts}, and no rule sets the one against the other.",
            counts=unstable_counts(gain),
        )
    if comparison.equivalence is not None and comparison.equivalence.equivalent and arm is not None and arm.diverged:
        return say("The surviving pairs are equivalent, but not all of them survived with {name}.", name=name)
    return Typst("Neither a difference that decides nor its absence is shown.")


_TELLERS: dict[str, Teller] = {
    "keep-baseline": _keep,
    "adopt": _adopt,
    "adopt-in-regime": _rescue,
    "trade-off": _trade,
    "tie": _tie,
    "inconclusive": _open,
}


def _exploratory(found: Sequence[VariantVerdict], total: int) -> Typst:
    which = (
        "These decisions rest" if len(found) == total else f"{count(len(found)).capitalize()} of these decisions rest"
    )
    if total == 1:
        which = "This decision rests"
    return Typst(
        f"{which} on comparisons that were not registered. They are leads to be tested in a study of their own, not "
        "findings."
    )


def _hypotheses(facts: Facts) -> Typst:
    said = [
        say("{key} is _{status}_: {why}.", key=key, status=found.status, why=_shortened(facts.readable(found.why)))
        for key, found in asked(facts.verdict.hypotheses).items()
    ]
    left = say("{text}", text=not_asked(facts.verdict.hypotheses))
    return sentences([Typst("*Hypotheses.*"), *said, left])


def _shortened(why: str) -> str:
    """The first few reasons of many."""
    reasons = why.rstrip(".").split("; ")
    left = len(reasons) - MOST_TOLD
    return "; ".join(reasons[:MOST_TOLD]) + (f"; and {count(left)} more" if left > 0 else "")
