"""What a terminal shows behind an answer: its tables; and items, trends, a replication, the probes of a run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from rich.console import RenderableType
from rich.text import Text

from ablationlab.analysis import wording
from ablationlab.analysis.trends import Scale, StudyTrend
from ablationlab.core.format import DASH, count, difference, number, p_clause, percent, plain
from ablationlab.instrument.replication import Replication, words
from ablationlab.records.analysis import ItemComparison
from ablationlab.records.probes import ProbeLine, failures
from ablationlab.records.results import Results
from ablationlab.report.layout import Paragraphs
from ablationlab.report.study_report import StudyReport
from ablationlab.report.table import Table
from ablationlab.report.tables.comparisons import item_table
from ablationlab.report.tables.effects import effects_table, guard_table
from ablationlab.report.tables.everything import every_table, probe_table, rate_tables, task_tables
from ablationlab.report.tables.study import (
    direction_table,
    figure_table,
)
from ablationlab.stats.results import TrendPrediction

#: What `show` opens of a study.
Part = Literal["guards", "tasks", "probes", "rates", "all"]


def details_view(results: Results, report: StudyReport, parts: Collection[Part]) -> Iterator[RenderableType]:
    """The tables behind an answer, each under its title."""
    tables: list[Table] = []
    if {"guards", "all"} & set(parts):
        tables.append(guard_table(report.answers))
    if "all" in parts:
        tables += [effects_table(report.effects), *every_table(results)]
    if {"rates", "all"} & set(parts):
        tables += rate_tables(results)
    if {"tasks", "all"} & set(parts):
        tables += task_tables(results)
    if {"probes", "all"} & set(parts):
        tables.append(probe_table(results))
    shown = [table for table in tables if table.rows]
    for table in shown:
        yield ""
        yield table.terminal()
    if not shown:
        yield Text("Nothing was recorded for that.")


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
    caveats = [*(caveat for task in items.tasks for caveat in task.caveats), *items.caveats]
    texts = [wording.caveat(caveat) for caveat in caveats]
    if texts:
        yield _lines("Mind", list(dict.fromkeys(texts)))


def _lines(title: str, lines: Sequence[str]) -> Paragraphs:
    return Paragraphs(title, [plain(line) for line in lines])


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
