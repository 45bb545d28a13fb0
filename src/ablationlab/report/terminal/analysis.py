"""What a terminal shows of results: the analysis and the answers, power, evaluation, items, a replication, probes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from rich.console import RenderableType
from rich.text import Text

from ablationlab.analysis import wording
from ablationlab.analysis.comparisons import TIMED
from ablationlab.analysis.trends import Scale, StudyTrend
from ablationlab.analysis.wording import ledger_of
from ablationlab.core.format import DASH, count, difference, number, p_clause, percent, plain
from ablationlab.core.grouping import grouped
from ablationlab.instrument.replication import Replication, words
from ablationlab.records.analysis import Analysis, Comparison, ItemComparison
from ablationlab.records.metrics import metric_name
from ablationlab.records.probes import ProbeLine, failures
from ablationlab.records.results import Results
from ablationlab.records.verdict import Verdict
from ablationlab.report.designs import look_line
from ablationlab.report.layout import Paragraphs
from ablationlab.report.table import Table
from ablationlab.report.tables.answers import answer_table, hypothesis_table
from ablationlab.report.tables.comparisons import (
    TERMINAL,
    comparison_table,
    important,
    item_table,
    split,
    text_table,
)
from ablationlab.report.tables.readings import reading_table, reading_text
from ablationlab.report.tables.study import (
    direction_table,
    factor_table,
    figure_table,
    interaction_table,
    noise_table,
    rate_table,
    simple_table,
    stability_table,
    sweep_table,
)
from ablationlab.report.tables.tasks import arm_name, task_table
from ablationlab.stats.results import TrendPrediction

_OTHER_METHODS = ("cannot-reach-alpha", "undercoverage")
#: Comparisons that a note names, at most.
MOST_PLACES = 3
#: Exploratory comparisons that are listed without --all.
MOST_EXPLORATORY = 40


def analysis_view(analysis: Analysis, verdict: Verdict, *, everything: bool = False) -> Iterator[RenderableType]:
    """What was registered, then the rest, stability, deviations and the answers."""
    registered, others = split(analysis)
    if registered:
        yield _comparisons(analysis, _title(analysis, registered), registered, everything)
        yield ""
    shown = others
    if not everything and len(others) > MOST_EXPLORATORY:
        shown = [
            comparison for comparison in others if comparison.metric == analysis.primary and comparison.task is None
        ]
    if shown:
        yield _comparisons(analysis, "Exploratory comparisons (not registered)", shown, everything)
    if len(shown) < len(others):
        left = len(others) - len(shown)
        yield Text(f"{left} more exploratory comparisons: --all shows them; analysis.json and statistics.md have them.")
    if others:
        yield ""
    yield _legend(analysis)
    stability = stability_table(analysis)
    if stability is not None:
        yield ""
        yield stability.terminal()
    text = text_table(analysis)
    if text is not None:
        yield ""
        yield text.terminal()
    yield from _sweep(analysis)
    if analysis.readings is not None:
        yield ""
        yield reading_table(analysis.readings, len(analysis.regimes), analysis.comparisons).terminal()
        yield Text(plain(reading_text(analysis.readings)))
    yield from _noise(analysis)
    notes = _notes(registered, everything) or _notes(others, everything)
    if notes:
        yield _lines("Mind", notes)
    deviations = [wording.deviation(known) for known in analysis.deviations]
    yield _lines("Deviations from the registration", deviations or ["none found"])
    if analysis.evaluation is not None and analysis.evaluation.notes:
        yield _lines("Scores of tasks", list(map(wording.evaluation_note, analysis.evaluation.notes)))
    if analysis.ledger is not None:
        yield _lines("Ledger", [ledger_of(analysis)])
    yield ""
    yield from answers_view(analysis, verdict)


def answers_view(analysis: Analysis, verdict: Verdict) -> Iterator[RenderableType]:
    """The answers and the hypotheses, and where the study stands in its looks."""
    for table in (answer_table(analysis, verdict), hypothesis_table(verdict)):
        if table.rows:
            yield table.terminal()
    if analysis.look is not None:
        yield _lines("Look", [look_line(analysis.look)])


def _title(analysis: Analysis, comparisons: Sequence[Comparison]) -> str:
    if analysis.source == "table":
        return "The question stated on the command line (exploratory: nothing was registered)"
    if all(comparison.label == "exploratory" for comparison in comparisons):
        return "Criteria of the plan, exploratory: the registration does not hold (see deviations)"
    return "Registered comparisons"


def _comparisons(analysis: Analysis, title: str, comparisons: Sequence[Comparison], everything: bool) -> RenderableType:
    columns = (*TERMINAL, "role") if everything else TERMINAL
    regimes = len(analysis.regimes)
    return comparison_table("", title, comparisons, regimes, columns=columns, all_caveats=everything).terminal()


def _notes(comparisons: Sequence[Comparison], everything: bool) -> list[str]:
    """What to know before believing these numbers, with what it is about where it is not about all of them."""
    several = len({comparison.regime for comparison in comparisons}) > 1
    about = grouped(
        (wording.caveat(caveat), _about(comparison, several))
        for comparison in comparisons
        for caveat in important(comparison, everything)
        if caveat.code not in _OTHER_METHODS
    )
    texts = []
    for text, named in about.items():
        places = list(dict.fromkeys(named))
        more = f" and {len(places) - MOST_PLACES} more" if len(places) > MOST_PLACES else ""
        where = "" if len(named) >= len(comparisons) else f"{'; '.join(places[:MOST_PLACES])}{more}: "
        texts.append(f"{where}{text}")
    # What the other methods cannot claim is printed once, so that nobody picks the smallest p.
    return texts + wording.other_methods(
        caveat
        for comparison in comparisons
        if comparison.n >= 3
        for caveat in comparison.caveats
        if caveat.code in _OTHER_METHODS
    )


def _about(comparison: Comparison, several: bool) -> str:
    """Metric and contrast of a comparison, and the regime where there are *several*."""
    where = f" in {comparison.regime}" if several else ""
    return f"{wording.name_of(comparison)}{where}, {comparison.variant} − {comparison.reference}"


#: How the p-values of a role are corrected, in the order of the families.
_FAMILIES: Mapping[str | None, str] = {
    "primary": "primary",
    "secondary": "secondaries behind it, in registered order",
    "guard": "guards, not adjusted",
    "stability": "smoothness",
    None: "all the rest, false discovery rate",
}


def _families(analysis: Analysis) -> str:
    """The families that this study has; nothing where there is one."""
    roles = {comparison.role for comparison in analysis.comparisons}
    words = [text for role, text in _FAMILIES.items() if role in roles]
    if any(comparison.family == TIMED for comparison in analysis.comparisons):
        words.append("speeds, a family of their own")
    return f" Families: {'; '.join(words)}." if len(words) > 1 else ""


def _logs(analysis: Analysis) -> str:
    log = any(comparison.transform == "log" for comparison in analysis.comparisons)
    return " Metrics tested as logarithms show a change in %, of geometric means." if log else ""


def _legend(analysis: Analysis) -> Text:
    methods = sorted({f"{wording.method_name(comparison.test)} test" for comparison in analysis.comparisons})
    return Text(
        plain(
            f"Difference = variant − reference{_pairing(analysis)} ({'; '.join(methods)}). An interval is at the level of "
            f"its adjusted p: it excludes 0 exactly where a difference is shown.{_families(analysis)}{_logs(analysis)} Every "
            "method, effect size and caveat is in analysis.json."
        )
    )


def _pairing(analysis: Analysis) -> str:
    designs = {comparison.design for comparison in analysis.comparisons}
    if "unpaired" not in designs:
        return " over pairs of one seed"
    return (
        ", of means where runs are unpaired, else over pairs of one seed" if len(designs) > 1 else " of means, unpaired"
    )


def _sweep(analysis: Analysis) -> Iterator[RenderableType]:
    """Loss by rate, sensitivity and best rate, and the tables of interactions."""
    if analysis.sweep is not None:
        yield ""
        yield sweep_table(analysis.sweep, analysis.variants).terminal()
        yield ""
        yield rate_table(analysis.sweep).terminal()
        chosen = (
            " A rate is chosen on the selection seeds alone; comparisons in the regime tuned use the others."
            if analysis.sweep.best
            else ""
        )
        if analysis.sweep.stages == 1:
            yield Text(
                "Sensitivity: mean excess of the loss over the best rate's, for a rate that is log-uniform over the sweep. A "
                f"run that diverged, or ended worse than it began, counts with its loss at the start.{chosen}"
            )
        if notes := wording.sweep_notes(analysis.sweep):
            yield _lines("Learning rates", notes)
    if analysis.interactions is not None:
        yield ""
        if analysis.interactions.cells:
            yield factor_table(analysis, analysis.interactions).terminal()
            yield ""
        yield interaction_table(analysis.interactions).terminal()
        if (simple := simple_table(analysis)) is not None:
            yield ""
            yield simple.terminal()
        yield Text(plain(wording.interactions(analysis, analysis.interactions)))


def _noise(analysis: Analysis) -> Iterator[RenderableType]:
    """Of the primary metric; the page and tables have every metric."""
    table = noise_table(analysis.noise, analysis.primary)
    if table is not None:
        yield ""
        yield table.terminal()


def _lines(title: str, lines: Sequence[str]) -> Paragraphs:
    return Paragraphs(title, [plain(line) for line in lines])


def items_view(items: ItemComparison) -> Iterator[RenderableType]:
    """Per task and on average: the difference, intervals over items, seeds and both, p-values."""
    table = item_table(items)
    empty = [
        column.key
        for place, column in enumerate(table.columns)
        if all(row[place].text in ("", DASH) for row in table.rows)
    ]
    # With one run per arm, McNemar's p is the p.
    yield table.without(*empty, *(["McNemar p"] if len(items.seeds) == 1 else [])).terminal()
    tests = ", ".join(dict.fromkeys([*(task.p_test for task in items.tasks), items.macro_p_test]))
    yield Text(
        f"Difference = {items.variant} − {items.reference}, paired item by item. p: {tests}; adjusted by "
        f"{items.correction} over the tasks. Over items: these trained models on other items (range over seeds where there "
        "are several). Over seeds: retrained models on these items. Crossed: both."
    )
    caveats = [*(caveat for task in items.tasks for caveat in task.caveats), *items.caveats]
    texts = [wording.caveat(caveat) for caveat in caveats]
    texts += [
        f"{task.task}: {count(task.needs_items)} items would show the smallest effect in one pair of models (80 % power)."
        for task in items.tasks
        if task.needs_items is not None
    ]
    if texts:
        yield _lines("Mind", list(dict.fromkeys(texts)))


#: What the size of a study is, as the head of a column.
_SCALES: Mapping[Scale, str] = {"parameters": "parameters", "tokens": "tokens", "matmul_flops": "FLOPs"}


def trend_view(trend: StudyTrend) -> Iterator[RenderableType]:
    """The effect of each study by size, the trend per factor of ten, and the prediction."""
    first, fit = trend.studies[0].comparison, trend.fit
    heads = [_SCALES[trend.scale], "pairs", "Δ", f"{percent(fit.level)} interval"]
    rows = []
    for study in trend.studies:
        shown = study.comparison.intervals["paired-t"]
        text = difference(shown.estimate, shown.low, shown.high)
        rows.append([study.study, count(int(study.size)), count(study.comparison.n), text.text, text.range])
    slope = difference(fit.slope, fit.low, fit.high)
    rows.append(["per factor of ten", "", "", slope.text, slope.range])
    if fit.prediction is not None:
        at = difference(fit.prediction.estimate, fit.prediction.low, fit.prediction.high)
        rows.append(["predicted", count(int(fit.prediction.size)), "", at.text, at.range])
    title = f"{first.metric}, {first.variant} − {first.reference}, over {_SCALES[trend.scale]}"
    yield Table.simple(title, ["study", *heads], rows, heads).terminal()
    yield Text(
        f"Trend {p_clause(fit.p)} (t, {count(fit.degrees_of_freedom)} degrees of freedom). "
        f"SD between studies beyond the trend: {number(fit.between_sd)}."
    )
    if fit.prediction is not None:
        yield Text(
            f"The sign seen at the largest size holds at {count(int(fit.prediction.size))} with probability "
            f"{_chance(fit.prediction.sign_holds)}, if the effect stays linear in log size."
        )
        yield from map(Text, _beyond(trend, fit.prediction))


def _chance(probability: float) -> str:
    """A probability that is estimated is never said to be 0 or 1."""
    if probability < 0.01:
        return f"below {percent(0.01)}"
    return f"above {percent(0.99)}" if probability > 0.99 else percent(probability)


def _beyond(found: StudyTrend, predicted: TrendPrediction) -> Iterator[str]:
    """What to mind of a prediction outside the sizes that were studied."""
    sizes = [study.size for study in found.studies]
    low, high = min(sizes), max(sizes)
    if low <= predicted.size <= high:
        return
    apart = predicted.size / high if predicted.size > high else low / predicted.size
    edge = "largest" if predicted.size > high else "smallest"
    yield f"That is a factor of {number(apart)} from the {edge} size here; the sizes themselves span {number(high / low)}."
    effects = [study.comparison.intervals["paired-t"].estimate or 0.0 for study in found.studies]
    if predicted.estimate and all(effect * predicted.estimate < 0 for effect in effects):
        yield (
            "No study has the predicted sign: the line crosses zero between the sizes here and there. An effect that only "
            "shrinks towards zero looks the same, so this is no evidence of the opposite effect."
        )


# --- evaluation -----------------------------------------------------------------------------------------------


def evaluation_view(results: Results) -> list[RenderableType]:
    """Accuracy of every variant on every task, beside chance and the n-gram models; then the run-level metrics."""
    arms = grouped((arm_name(run), run.evaluation) for run in results.runs if run.evaluation is not None)
    tasks = task_table(results).without("sensitive", "meaning", "templates", "spread", "hash")
    parts = [tasks.terminal()] if tasks.rows else []
    metrics = dict.fromkeys(
        metric for members in arms.values() for evaluation in members for metric in evaluation.metrics
    )
    rows = []
    for metric in metrics:
        means = [_mean([evaluation.metrics.get(metric) for evaluation in members]) for members in arms.values()]
        if any(mean is not None for mean in means):
            rows.append((metric_name(metric), *(number(mean, 4) for mean in means)))
    return [*parts, Table.simple("Means over seeds", ["metric", *arms], rows, arms).terminal()]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


# --- replication ----------------------------------------------------------------------------------------------


def replication_view(replication: Replication, folder: Path) -> Iterator[RenderableType]:
    """Published, ours, the difference with its interval, and what follows."""
    yield f"{replication.title}\n{replication.source.citation} ({replication.source.date})\n{replication.about}"
    yield from words.warnings(replication)
    for regime in dict.fromkeys(figure.regime for figure in replication.figures):
        figures = [figure for figure in replication.figures if figure.regime == regime]
        yield figure_table(replication, figures, words.figures_title(figures, regime)).terminal()
    if replication.directions:
        yield direction_table(replication, reasons=True).terminal()
    yield "\n".join(f"- {text}" for text in words.conclusions(replication))
    yield f"Written to {folder / 'replication.json'}"


# --- probes ---------------------------------------------------------------------------------------------------


def run_probes_view(title: str, lines: Sequence[ProbeLine]) -> Iterator[RenderableType]:
    """Every scalar of a run when it was first, halfway and last measured; distributions are in the files."""
    rows: list[tuple[str, ...]] = []
    for probe in dict.fromkeys(line.probe for line in lines):
        mine = [line for line in lines if line.probe == probe and line.error is None]
        if not mine:
            continue
        values: dict[tuple[str, str], list[str]] = {}
        for line in (mine[0], mine[len(mine) // 2], mine[-1]):
            for row in line.rows:
                if row.at is None:
                    values.setdefault((row.measure, row.group or ""), []).append(number(row.value, 4))
        rows += [(probe, measure, group, *texts) for (measure, group), texts in values.items()]
    if rows:
        steps = [line.step for line in lines]
        heads = ["first", "halfway", "last"]
        title = f"{title}, from step {min(steps)} to {max(steps)}"
        yield Table.simple(title, ["probe", "measure", "of", *heads], rows, heads).terminal()
    for name, (step, error) in failures(lines).items():
        yield Text(f"{name} failed at step {step} and was switched off: {error}")
