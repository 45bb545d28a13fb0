"""Results: what the criteria ask, what else was seen, stability, calibration and tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ablationlab.records.analysis import Comparison
from ablationlab.report.naming import metric_of
from ablationlab.report.numbers import count, counted, number, percent, setting
from ablationlab.report.paper.facts import Facts, finding, gain_clause, outcome, unstable_counts
from ablationlab.report.paper.typst import Typst, capital, listed, say, sentences
from ablationlab.report.table import Table
from ablationlab.report.tables import comparisons, study

#: Comparisons told one by one; the table has them all.
MOST_TOLD = 4
#: Rows of a table in the paper; the CSV file has them all.
MOST_ROWS = 24
#: Names in one list.
MOST_NAMES = 8


def main(facts: Facts) -> list[Typst]:
    """The comparisons of the criteria: the primary metric first, then the others, then contrasts between variants."""
    asked, others = comparisons.split(facts.analysis)
    if not asked and not others:
        return [Typst("There is no variant beside the baseline, so there is nothing to compare.")]
    if not asked:
        return [
            Typst("No criterion names a metric that was measured, so every comparison is exploratory (@exploratory).")
        ]
    primary = [one for one in asked if one.role == "primary"]
    against = [one for one in asked if one.role != "primary" and one.reference == facts.baseline]
    between = [one for one in asked if one.role != "primary" and one.reference != facts.baseline]
    label = "registered comparisons" if facts.registered else "comparisons that the criteria ask for"
    paragraphs = [say("@registered gives the {label}.", label=label)]
    for title, found in (("Primary metric", primary), ("Other criteria", against), ("Between variants", between)):
        if found:
            paragraphs.append(Typst(f"*{title}.* {_told(facts, found)}"))
    paragraphs[1:2] = [Typst(f"{paragraphs[0]} {paragraphs[1]}")] if len(paragraphs) > 1 else []
    return paragraphs[1:] or paragraphs


def _told(facts: Facts, found: Sequence[Comparison]) -> Typst:
    """Each comparison as a sentence; of many, those with a result come first and the rest are counted."""
    order = sorted(found, key=lambda one: one.outcome in ("not-shown", "not-tested"))
    told = [one for one in found if one in order[:MOST_TOLD]]
    said = [Typst(f"{capital(finding(one))}{facts.where(one.regime)}: {outcome(one)}.") for one in told]
    left = len(found) - len(told)
    if left:
        said.append(say("{n} more stand in the table.", n=count(left).capitalize()))
    short = [one for one in found if one.n != one.planned_pairs]
    if short:
        lost = _some(
            dict.fromkeys(f"seed {gone.seed} of {gone.arm}: {gone.why}" for one in short for gone in one.missing)
        )
        said.append(say("Pairs are missing ({lost}).", lost=lost))
    return sentences(said)


def _some(items: Iterable[str], most: int = 4) -> str:
    """The first few of many, and how many are left."""
    found = list(items)
    left = len(found) - most
    return "; ".join(found[:most]) + (f"; and {count(left)} more" if left > 0 else "")


def exploratory(facts: Facts) -> Typst:
    """What was compared without being asked for."""
    _, others = comparisons.split(facts.analysis)
    if not others:
        return Typst("Nothing was compared beyond the criteria.")
    shown = [one for one in others if one.outcome in ("better", "worse", "different")]
    text = say(
        "Beyond the criteria {n} {were} made (@exploratory). They are exploratory: corrected among themselves, "
        "never evidence for the decision, leads for a study that registers them.",
        n=counted(len(others), "comparison"),
        were="was" if len(others) == 1 else "were",
    )
    if not shown:
        return sentences([text, "None of them shows a difference."])
    names = list(dict.fromkeys(metric_of(one) for one in shown))
    metrics = names if len(names) <= MOST_NAMES else [*names[:MOST_NAMES], f"{len(names) - MOST_NAMES} others"]
    most = [Typst(f"{capital(finding(one))}{facts.where(one.regime)}.") for one in _one_a_metric(shown)[:3]]
    return sentences(
        [
            text,
            say(
                "{n} of them {show} a difference, in {metrics}.",
                n=count(len(shown)).capitalize(),
                show="shows" if len(shown) == 1 else "show",
                metrics=listed(metrics),
            ),
            *most,
        ]
    )


def _one_a_metric(found: Sequence[Comparison]) -> list[Comparison]:
    """The first comparison of every metric."""
    seen: dict[str, Comparison] = {}
    for one in found:
        seen.setdefault(one.metric, one)
    return list(seen.values())


def stability(facts: Facts) -> list[Typst]:
    """Unstable runs, gains, scores."""
    part = facts.analysis.stability
    if part is None:
        return [Typst("The course of training is not in the data, so nothing can be said about stability.")]
    known = [arm for arm in part.arms if arm.unstable is not None]
    unstable = [arm for arm in known if arm.unstable]
    if not known:
        return [Typst("No run has ended, so nothing can be said about stability yet.")]
    runs = sum(arm.runs for arm in known)
    scores = [arm.largest_spike_score for arm in known if arm.largest_spike_score is not None]
    largest = (
        say(
            " The largest spike score of any run is {score}, against a threshold of {threshold}.",
            score=number(max(scores)),
            threshold=setting(part.threshold),
        )
        if scores
        else Typst("")
    )
    if not unstable:
        text = say("None of the {runs} runs diverged or spiked (@stability).", runs=count(runs))
        gain = next((one for one in part.gains if one.reference == facts.baseline and one.low is not None), None)
        bound = ""
        if gain is not None and gain.high is not None:
            bound = say(
                " That no baseline run was unstable leaves no gain to be had here; with {pairs} the interval still "
                "reaches from {low} to {high}.",
                pairs=counted(gain.n, "pair"),
                low=percent(gain.low),
                high=percent(gain.high),
            )
        return [Typst(f"{text}{largest}{bound}")]
    paragraphs = [
        say(
            "{n} of {runs} runs were unstable (@stability).{largest}",
            n=count(sum(arm.unstable_runs for arm in unstable)).capitalize(),
            runs=count(runs),
            largest=largest,
        )
    ]
    gains = [g for g in part.gains if g.reference == facts.baseline and (g.reference_unstable or g.variant_unstable)]
    said = [
        Typst(f"{capital(unstable_counts(one))}{facts.where(one.regime)}: {gain_clause(one)}.")
        for one in gains[:MOST_TOLD]
    ]
    if len(gains) > MOST_TOLD:
        said.append(say("The other {n} gains are in the table.", n=count(len(gains) - MOST_TOLD)))
    diverged = [run for run in part.runs if run.state == "diverged"]
    if diverged:
        said.append(
            say(
                "{n} diverged; a diverged run counts as unstable and has no value in any other metric.",
                n=counted(len(diverged), "run").capitalize(),
            )
        )
    paragraphs.append(sentences(said))
    return [text for text in paragraphs if text]


def evaluation(facts: Facts) -> Typst:
    """Tasks through the harness, where they were measured."""
    found = facts.family("accuracy", "task-accuracy")
    tasks = facts.tasks()
    if not found and not tasks:
        asked = facts.study is not None and bool(facts.study.evaluation.tasks)
        return Typst(
            "The study names tasks, but no result of them is in the records."
            if asked
            else "No zero- or few-shot task was evaluated."
        )
    whole = [one for one in found if one not in tasks]
    insensitive = sorted(
        {str(one.task) for one in tasks if one.sensitivity is not None and not one.sensitivity.sensitive}
    )
    parts = [Typst(f"{capital(finding(one))}{facts.where(one.regime)}: {outcome(one)}.") for one in whole[:MOST_TOLD]]
    if tasks:
        names = sorted({str(one.task) for one in tasks})
        parts.append(
            say("{n} were scored through a common harness @gao2024.", n=counted(len(names), "task").capitalize())
        )
    if insensitive:
        parts.append(
            say(
                "Not sensitive at this scale, and therefore no evidence: {names}.",
                names=listed(insensitive),
            )
        )
    return sentences(parts)


def calibration(facts: Facts) -> Typst:
    """Calibration metrics against the baseline, where they were measured."""
    found = facts.family("calibration")
    if not found:
        return Typst("Calibration was not measured in this study.")
    told = [Typst(f"{capital(finding(one))}{facts.where(one.regime)}: {outcome(one)}.") for one in found[:MOST_TOLD]]
    start = Typst("Calibration compares predicted probabilities with how often they come true @guo2017.")
    more = len(found) - len(told)
    return sentences(
        [start, *told, say("{n} more comparisons are in the tables.", n=count(more).capitalize()) if more else ""]
    )


def comparison_tables(facts: Facts) -> dict[str, tuple[Table, str]]:
    """The tables of the results by label, each with a sentence on what it leaves out."""
    asked, others = comparisons.split(facts.analysis)
    regimes = len(facts.analysis.regimes)
    found: dict[str, tuple[Table, str]] = {}
    if asked:
        title = "Registered comparisons" if facts.registered else "What the criteria ask (exploratory: not registered)"
        table = comparisons.comparison_table(
            "registered", f"{title}; difference = variant − reference.", asked, regimes
        )
        found["registered"] = _limited(table, MOST_ROWS)
    if others:
        caption = "Exploratory comparisons, corrected among themselves; difference = variant − reference."
        table = comparisons.comparison_table("exploratory", caption, others, regimes)
        found["exploratory"] = _limited(table, MOST_ROWS)
    stable = study.stability_table(facts.analysis)
    if stable is not None and stable.rows:
        found["stability"] = _limited(stable, MOST_ROWS)
    return found


def _limited(table: Table, most: int) -> tuple[Table, str]:
    short, left = table.first(most)
    return short, f"The other {count(left)} rows are in tables/{table.key}.csv." if left else ""
