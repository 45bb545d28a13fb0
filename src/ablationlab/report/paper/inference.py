"""Methods, from the resolved study: how it is judged. Measures, statistics, decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ablationlab.records.analysis import Comparison
from ablationlab.report.naming import metric_meaning, metric_name
from ablationlab.report.numbers import setting
from ablationlab.report.paper.facts import CORRECTIONS, Facts
from ablationlab.report.paper.typst import Typst, escape, listed, say, sentences
from ablationlab.report.table import Table
from ablationlab.report.tables import comparisons, study

#: Metrics that the methods explain one by one; more stand in the tables.
MOST_METRICS = 8
TESTS = {
    "paired-t": "the paired t-test",
    "sign-flip": "the exact sign-flip test",
    "bootstrap": "a bootstrap test over seeds",
    "wilcoxon": "Wilcoxon's signed-rank test",
}
INTERVALS = {
    "paired-t": "paired t intervals",
    "percentile": "percentile bootstrap intervals over seeds",
    "bca": "BCa bootstrap intervals over seeds",
    "bootstrap-t": "bootstrap-t intervals over seeds",
}


def measures(facts: Facts) -> Typst:
    """The metrics that the criteria name, in the registry's words, and the measure of stability."""
    asked, others = comparisons.split(facts.analysis)
    names = list(dict.fromkeys(one.metric for one in (asked or others)))
    said = [
        say("_{name}_: {meaning}", name=metric_name(name), meaning=facts.readable(metric_meaning(name)))
        for name in names[:MOST_METRICS]
        if metric_meaning(name)
    ]
    parts = [Typst(f"{'; '.join(said)}.")] if said else []
    stability = facts.analysis.stability
    if stability is not None:
        parts.append(
            say(
                "A run is _unstable_ if it diverges or its _spike score_ exceeds {threshold}. The score is the "
                "largest rise of the training loss, over at least two steps, above the median of the twenty steps "
                "before, in robust standard deviations of the loss's own noise.",
                threshold=setting(stability.threshold),
            )
        )
    return sentences(parts)


def statistics(facts: Facts) -> Typst:
    """Pairing, intervals, tests, corrections, equivalence, as this study used them."""
    analysis = facts.analysis
    asked, others = comparisons.split(analysis)
    found = asked or others
    parts = [
        Typst(
            "Runs are paired by seed, and a difference is always variant minus reference. Perplexities and norms "
            "are compared on a logarithmic scale and shown as a change of geometric means."
            if any(one.transform == "log" for one in analysis.comparisons)
            else "Runs are paired by seed, and a difference is always variant minus reference."
        )
    ]
    tests = _used(TESTS, [one.test for one in found])
    intervals = _used(INTERVALS, [one.interval for one in found])
    alphas = listed(sorted({setting(one.alpha) for one in found}))
    if found:
        parts.append(
            say(
                "Differences are tested with {tests} at level {alpha}, with {intervals}.",
                tests=tests,
                alpha=alphas,
                intervals=intervals,
            )
        )
        parts.append(_correction(found))
    if any(one.equivalence is not None for one in found):
        parts.append(
            Typst(
                "Equivalence within the smallest effect that matters is shown by two one-sided tests "
                "@schuirmann1987; a difference that is not significant is not called equivalence."
            )
        )
    if analysis.stability is not None:
        parts.append(
            Typst(
                "The _stability gain_ is the share of unstable baseline runs minus that of the variant, with "
                "Tango's score interval for paired proportions @tango1998."
            )
        )
    return sentences(parts)


def _used(words: Mapping[str, str], names: Sequence[str]) -> Typst:
    return listed(words.get(name, name) for name in dict.fromkeys(names))


def _correction(found: Sequence[Comparison]) -> Typst:
    cites = {"holm": " @holm1979", "benjamini-hochberg": " @benjamini1995"}
    used = list(dict.fromkeys(one.correction for one in found))
    if used == ["none"]:
        return Typst("No correction for multiple testing is applied.")
    names = listed(
        Typst(f"{escape(CORRECTIONS.get(name, name))}{cites.get(name, '')}") for name in used if name != "none"
    )
    return say(
        "p-values are corrected ({names}) over all comparisons of one family of metrics; registered and exploratory "
        "ones are corrected apart. Intervals are not adjusted.",
        names=names,
    )


RULES = (
    "The baseline is unstable and the lower bound of the stability gain is above zero: _adopt in this regime_ if "
    "the upper bounds of the losses on the primary metric and on every guard keep their margins, else _trade-off_.",
    "The variant is significantly worse on the primary metric: _keep the baseline_.",
    "It is significantly better and not less stable: _adopt_.",
    "It is equivalent within the smallest effect: _tie_, broken by the tie-breakers in their order.",
    "Otherwise _inconclusive_, with what it would take to decide.",
)


def decision(facts: Facts) -> Typst:
    """The five rules, and the tie-breakers."""
    breakers = facts.analysis.tie_breakers
    parts = [Typst("The first rule that applies decides, for each variant and regime:")]
    rules = "\n".join(f"+ {rule}" for rule in RULES)
    said = (
        say("Tie-breakers, in order: {names}.", names=listed(breakers)) if breakers else Typst("No tie-breaker is set.")
    )
    asks = (
        Typst(" @criteria gives the criteria.") if facts.analysis.criteria else Typst(" No criterion was registered.")
    )
    return Typst(f"{sentences(parts)}\n{rules}\n\n{said}{asks}")


def criteria_table(facts: Facts) -> Table | None:
    """The registered criteria, short enough for a column."""
    table = study.criteria_table(facts.analysis)
    if not table.rows:
        return None
    return table.without("correction", "test") if _uniform(facts) else table.without("correction")


def _uniform(facts: Facts) -> bool:
    return len({(one.get("test"), one.get("correction")) for one in facts.analysis.criteria}) == 1
