"""Limits and reproducibility: what the study cannot say, and what it takes to make it again."""

from __future__ import annotations

from ablationlab.report.naming import metric_of
from ablationlab.report.numbers import counted, number, scaled, setting, with_unit
from ablationlab.report.paper.facts import Facts
from ablationlab.report.paper.typst import Typst, code, escape, listed, say, sentences

#: Caveats about methods that did not decide stand in statistics.md.
MOST_CAVEATS = 6


def limits(facts: Facts) -> list[Typst]:
    """Deviations, power, caveats, scale."""
    return [part for part in (_deviations(facts), _power(facts), _caveats(facts), _scale(facts)) if part]


def _deviations(facts: Facts) -> Typst:
    found = facts.analysis.deviations
    damaged = facts.material.problems
    start = "*Deviations.*"
    if not found and not damaged:
        none = "None from what the sealed plan registers was found." if facts.registered else "None was found."
        return Typst(f"{start} {none}")
    said = [escape(one.text) for one in found]
    said += [
        say("The file {file} could not be used: {text}.", file=code(one.file), text=one.text.rstrip("."))
        for one in damaged
    ]
    return sentences([start, *said])


def _power(facts: Facts) -> Typst:
    found = [one for one in facts.analysis.power if one.comparison.endswith(f":{facts.baseline}")]
    if not found:
        return Typst("")
    worst = max(found, key=lambda one: one.detectable_80)
    comparison = facts.material.comparison(worst.comparison)
    if comparison is None:
        return Typst("")
    unit = "(difference of logarithms)" if comparison.transform == "log" else comparison.unit
    unit = "" if unit == "1" else unit
    parts = [
        say(
            "*Power.* With {pairs} and the observed standard deviation of the differences ({sd}), a true difference "
            "of {effect} in {metric} is detected with 80{thin}% probability at the corrected level; a smaller one "
            "would likely be missed.",
            pairs=counted(worst.n, "pair"),
            sd=number(worst.delta_sd, 2),
            effect=with_unit(number(worst.detectable_80, 2), unit),
            metric=metric_of(comparison),
            thin="\N{NARROW NO-BREAK SPACE}",
        )
    ]
    if worst.smallest_effect is not None:
        enough = worst.detectable_80 <= worst.smallest_effect
        pairs = "" if worst.pairs_80 is None or enough else f" ({counted(worst.pairs_80, 'pair')} would be needed)"
        parts.append(
            say(
                "That is {word} the smallest effect set as mattering, {effect}{pairs}.",
                word="below" if enough else "above",
                effect=setting(worst.smallest_effect),
                pairs=pairs,
            )
        )
    if worst.n < 10:
        parts.append(say("A standard deviation from {pairs} is itself a rough guess.", pairs=counted(worst.n, "pair")))
    return sentences(parts)


def _caveats(facts: Facts) -> Typst:
    """Caveats about the pairs and about the interval and test that decide, each once."""
    texts = [
        caveat.text
        for one in facts.analysis.comparisons
        if one.label == "registered" or one.role is not None
        for caveat in one.caveats
        if caveat.about in ("", one.test, one.interval)
    ]
    unique = list(dict.fromkeys(texts))
    if not unique:
        return Typst("")
    return sentences([Typst("*Caveats.*"), *(escape(text) for text in unique[:MOST_CAVEATS])])


def _scale(facts: Facts) -> Typst:
    if facts.plan is None:
        return Typst("*Scope.* The results hold for the runs in the table and for nothing that they do not sample.")
    budget = facts.plan.runs[0].budget
    parts = [
        say(
            "*Scope.* The models have {parameters} parameters and see {tokens} tokens of {one}{corpus}; "
            "effects may differ in size and in sign at other scales, budgets, data and optimizer settings.",
            parameters=scaled(budget.parameters),
            tokens=scaled(budget.tokens),
            one="" if facts.mixture else "one text, ",
            corpus=facts.corpus,
        ),
        Typst(
            "Seeds vary the initial weights and the order of the data together; all share one validation split, so "
            "the intervals say nothing about other texts."
        ),
    ]
    if not facts.swept:
        parts.append(Typst("One learning rate is shared by all arms, which may suit one of them better than another."))
    return sentences(parts)


def reproducibility(facts: Facts) -> list[Typst]:
    """How to make it again, and the hashes that say whether one has."""
    plan = facts.plan
    if plan is None:
        return [
            say(
                "Every number in this paper is computed from the values given (hash {hash}); tables/, statistics.md "
                "and analysis.json hold them unrounded.",
                hash=code(facts.analysis.source_hash[:16]),
            )
        ]
    versions = listed(
        f"{name} ({version})" if " " in version else f"{name} {version}"
        for name, version in plan.environment.versions.items()
    )
    how = plan.execution
    paragraphs = [
        say(
            "plan.lock holds the resolved study, its criteria, the budget of every run and the environment; it was "
            "sealed on {date}, before the first step. `ablationlab run STUDY --out RESULTS` trains what it says, "
            "`ablationlab analyze RESULTS` computes every statistic from the records, and `ablationlab report "
            "RESULTS` writes this paper. No measured number in it was typed by hand.",
            date=plan.created[:10],
        ),
        say(
            "Environment: {versions}; {device}, {precision}, {width}, {threads}. The same plan gives the same bits "
            "at equal device, libraries, stack width and threads; elsewhere it gives the same inputs, and results "
            "that differ by what other rounding makes of them.",
            versions=versions,
            device=how.device_name,
            precision=how.precision,
            width=f"stack width {how.stack_width}",
            threads=counted(how.threads, "thread") + " a process",
        ),
    ]
    if not facts.material.sealed:
        paragraphs.insert(0, Typst("*The seal of plan.lock does not hold: it was changed after sealing.*"))
    return paragraphs


def hashes(facts: Facts) -> list[tuple[str, str]]:
    """Names and hashes, in full."""
    plan = facts.plan
    found = [("analysis", facts.verdict.analysis_hash)]
    if plan is None:
        return [("table", facts.analysis.source_hash), *found]
    return [
        ("plan", plan.plan_hash),
        ("study", plan.study_hash),
        ("criteria", plan.criteria_hash),
        ("text", plan.corpus.sha256),
        ("tokens", plan.corpus.tokens_sha256),
        ("code", plan.environment.code_hash),
        *found,
    ]
