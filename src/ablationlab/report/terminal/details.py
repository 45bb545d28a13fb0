"""What a terminal shows behind an answer: its tables; and two sets of answers, item by item."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Literal

from rich.console import RenderableType
from rich.text import Text

from ablationlab.core.format import DASH
from ablationlab.records.analysis import ItemComparison
from ablationlab.records.results import Results
from ablationlab.report.slots import Statement
from ablationlab.report.study_report import StudyReport
from ablationlab.report.table import Table
from ablationlab.report.tables.codes import item_caveat_table
from ablationlab.report.tables.comparisons import item_table
from ablationlab.report.tables.effects import effects_table, guard_table
from ablationlab.report.tables.everything import every_table, probe_tables, rate_tables, task_tables

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
        tables += probe_tables(results)
    shown = [table for table in tables if table.rows]
    for table in shown:
        yield ""
        yield table.terminal()
    if not shown:
        yield Text(Statement("more.nothing").text)


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
