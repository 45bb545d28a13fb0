"""What a terminal shows behind an answer: its tables; and two sets of answers, item by item."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Literal

from rich.console import RenderableType
from rich.text import Text

from ablationlab.core.format import DASH
from ablationlab.records.analysis import Analysis, ItemComparison
from ablationlab.records.results import Results
from ablationlab.report.slots import Statement
from ablationlab.report.study_report import StudyReport
from ablationlab.report.table import Table
from ablationlab.report.tables.answers import hypothesis_table
from ablationlab.report.tables.codes import caveat_table, deviation_table, item_caveat_table, note_table
from ablationlab.report.tables.comparisons import item_table, text_table
from ablationlab.report.tables.effects import effects_table, guard_table
from ablationlab.report.tables.factors import factor_table, interaction_table, simple_table
from ablationlab.report.tables.failures import stability_table
from ablationlab.report.tables.means import probe_table, score_table
from ablationlab.report.tables.noise import noise_table
from ablationlab.report.tables.readings import reading_table
from ablationlab.report.tables.sweeps import rate_table, sweep_table
from ablationlab.report.tables.tasks import task_table

#: What `show` opens of a study.
Part = Literal["guards", "tasks", "probes", "rates", "all"]


def details_view(results: Results, report: StudyReport, parts: Collection[Part]) -> Iterator[RenderableType]:
    """The tables behind an answer, each under its title."""
    tables: list[Table | None] = []
    if {"guards", "all"} & set(parts):
        tables.append(guard_table(report.answers))
    if "all" in parts:
        tables += _every_table(results, report)
    if {"rates", "all"} & set(parts):
        tables += _rate_tables(results)
    if {"tasks", "all"} & set(parts):
        tasks = task_table(results).without("sensitive", "meaning", "templates", "spread", "hash")
        tables += [_bare("Tasks", tasks), score_table(results)]
    if {"probes", "all"} & set(parts):
        tables.append(probe_table(results))
    shown = [table for table in tables if table is not None and table.rows]
    for table in shown:
        yield ""
        yield table.terminal()
    if not shown:
        yield Text(Statement("more.nothing").text)


def _every_table(results: Results, report: StudyReport) -> list[Table | None]:
    analysis, verdict = results.analysis, results.verdict
    assert analysis is not None
    assert verdict is not None
    crossed, scores, readings = analysis.interactions, analysis.evaluation, analysis.readings
    return [
        effects_table(report.effects),
        hypothesis_table(verdict),
        _failures(analysis),
        _bare("Validation loss over seeds and text", text_table(analysis)),
        None
        if readings is None
        else _bare("At another budget", reading_table(readings, len(analysis.regimes), analysis.comparisons)),
        factor_table(analysis, crossed) if crossed is not None and crossed.cells else None,
        None if crossed is None else _bare("Main effects and interactions", interaction_table(crossed)),
        _bare("Simple effects", simple_table(analysis)),
        _bare("Noise by source", noise_table(analysis.noise, analysis.primary)),
        deviation_table(analysis),
        note_table(() if scores is None else scores.notes),
        caveat_table(analysis.comparisons),
    ]


def _failures(analysis: Analysis) -> Table | None:
    table = _bare("Failures", stability_table(analysis))
    contradicted = analysis.stability is not None and any(gain.contradicted for gain in analysis.stability.gains)
    return replace(table, note=Statement("more.contradicted").text) if table is not None and contradicted else table


def _bare(title: str, table: Table | None) -> Table | None:
    """A table without what the page says around it."""
    return None if table is None else replace(table, title=title, about="", note="")


def _rate_tables(results: Results) -> list[Table | None]:
    sweep = None if results.analysis is None else results.analysis.sweep
    if sweep is None or results.analysis is None:
        return []
    return [sweep_table(sweep, results.analysis.variants), _bare("Rates", rate_table(sweep))]


def items_view(items: ItemComparison) -> Iterator[RenderableType]:
    """Per task and on average: the difference, intervals over items, seeds and both, p-values."""
    table = item_table(items)
    empty = [
        column.key
        for place, column in enumerate(table.columns)
        if all(row[place].text in ("", DASH) for row in table.rows)
    ]
    # With one run per arm, McNemar's p is the p.
    yield table.without("caveats", *empty, *(["McNemar p"] if len(items.seeds) == 1 else [])).terminal()
    caveats = item_caveat_table([*(caveat for task in items.tasks for caveat in task.caveats), *items.caveats])
    if caveats.rows:
        yield ""
        yield caveats.terminal()
