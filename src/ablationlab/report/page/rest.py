"""What the page keeps closed: every table, settings, versions, hashes, downloads."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ablationlab.core.format import amount, count, duration
from ablationlab.instrument.replication import words
from ablationlab.records.energy import overlap
from ablationlab.records.storage import read_json
from ablationlab.report.designs import design_lines
from ablationlab.report.table import Cell, Column, Table, html_text
from ablationlab.report.tables.effects import effects_table
from ablationlab.report.tables.everything import every_table, probe_tables, rate_tables, task_tables
from ablationlab.report.tables.replication import direction_table, figure_table
from ablationlab.report.tables.setup import data_table, hash_table, run_table, variant_table
from ablationlab.report.terminal.planned import precisions

if TYPE_CHECKING:
    from ablationlab.records.energy import Energy
    from ablationlab.records.results import Results
    from ablationlab.report.effects import Effect
    from ablationlab.report.study_report import StudyReport

#: More rows than this are in the files beside the page alone; of more runs, those that did not finish come first.
MOST_ROWS = 500
#: Outcomes that nobody needs to read unless they ask.
NOT_SHOWN = "not shown"


def rest_of(results: Results, report: StudyReport) -> Iterator[tuple[str, str, str]]:
    """(title, how much of it, safe HTML)."""
    yield from _comparisons(report.effects)
    if results.analysis is not None and results.verdict is not None:
        yield from _group("Analysis", every_table(results), counted=False)
        yield from _group("Learning rates", rate_tables(results))
    yield from _group("Tasks", task_tables(results))
    yield from _group("Probes", probe_tables(results))
    yield from _replication(results)
    if results.plan is not None:
        arms = variant_table(results, results.plan)
        yield from _group("Variants", [arms])
        ordered = sorted(results.runs, key=lambda run: run.state == "finished") if len(results.runs) > MOST_ROWS else ()
        yield from _group("Runs", [run_table(results.changed(runs=tuple(ordered)) if ordered else results)])
        yield from _group("Data", [table for table in (data_table(results), hash_table(results)) if table is not None])
        yield from _group("Design", [Table.simple("", [""], [(line,) for line in design_lines(results.plan)])])
        yield "Settings", "", f'<pre tabindex="0">{html_text(configuration(results))}</pre>'
    yield from _group("Versions and hashes", [version_table(results), seal_table(results)], counted=False)
    if report.effects:
        yield "Download", "", _download(effects_table(report.effects))


def _comparisons(effects: Sequence[Effect]) -> Iterator[tuple[str, str, str]]:
    shown = [row for row in effects if row.word.text != NOT_SHOWN]
    others = [row for row in effects if row.word.text == NOT_SHOWN]
    for title, rows in (("Comparisons", shown), ("Comparisons, not shown", others)):
        if rows:
            yield title, count(len(rows)), _html(effects_table(rows))


def _replication(results: Results) -> Iterator[tuple[str, str, str]]:
    published = results.replication
    if published is None:
        return
    tables = [
        figure_table(published, figures, words.figures_title(figures, regime), definitions=True)
        for regime in dict.fromkeys(figure.regime for figure in published.figures)
        if (figures := [figure for figure in published.figures if figure.regime == regime])
    ]
    if published.directions:
        tables.append(direction_table(published, reasons=True))
    yield from _group("Published and ours", tables)


def _group(title: str, tables: Sequence[Table], *, counted: bool = True) -> Iterator[tuple[str, str, str]]:
    filled = [table for table in tables if table.rows]
    if filled:
        rows = count(len(filled[0].rows)) if counted else ""
        yield title, rows, "".join(map(_html, filled))


def _html(table: Table) -> str:
    """The first rows of a long table; tables/ has all."""
    first, left = table.first(MOST_ROWS)
    return first.html() + (f'<p class="note">+ {count(left)}</p>' if left else "")


def _download(table: Table) -> str:
    """The effects as a file that lies in the page."""
    made = base64.b64encode(table.csv().encode()).decode()
    return f'<p><a download="effects.csv" href="data:text/csv;base64,{made}">effects.csv</a></p>'


def version_table(results: Results) -> Table:
    """Versions and machine the plan was sealed with."""
    rows: list[tuple[str, str]] = []
    if results.plan is not None:
        plan, environment = results.plan, results.plan.environment
        rows = [
            *environment.versions.items(),
            ("platform", environment.platform),
            ("processor", environment.processor),
            ("device", f"{plan.execution.device_name}, {precisions(plan)}"),
            ("threads per process, stack width", f"{plan.execution.threads}, {plan.execution.stack_width}"),
            ("code hash", environment.code_hash),
        ]
        if environment.git.commit:
            changed = " (uncommitted changes)" if environment.git.dirty else ""
            rows.append(("git commit", environment.git.commit + changed))
        rows += [("energy", text)] if (text := energy_text(results.energy)) else []
    return _named("versions", "Versions and machine at sealing.", rows)


def energy_text(records: Sequence[Energy]) -> str:
    """What the study's commands measured; empty where none did."""
    if not records:
        return ""
    known = [record for record in records if record.joules is not None]
    if not known:
        return "not reported by this machine"
    if overlap(known):
        return "not known: two commands measured the same devices at once"
    sources = ", ".join(dict.fromkeys(reading.source for record in known for reading in record.readings))
    total = amount(sum(record.joules or 0.0 for record in known), "J")
    seconds = duration(sum(record.seconds for record in known))
    part = "" if len(known) == len(records) else f", {count(len(known))} of {count(len(records))} commands"
    return f"{total} in {seconds} of training and scoring ({sources}; whole devices, whatever else ran on them{part})"


def seal_table(results: Results) -> Table:
    """Hashes that pin the study."""
    rows: list[tuple[str, str]] = []
    if results.plan is not None:
        plan = results.plan
        rows = [
            ("plan", plan.plan_hash),
            ("study", plan.study_hash),
            ("criteria", plan.criteria_hash),
            *((Path(name).name, digest) for name, digest in plan.files.items()),
        ]
        if plan.study.trainer is None:
            rows += [("corpus, text", plan.corpus.sha256), ("corpus, tokens", plan.corpus.tokens_sha256)]
    if results.verdict is not None:
        rows += [("analysis", results.verdict.analysis_hash), ("verdict", results.verdict.sealed().seal)]
    return _named("seals", "SHA-256 of what pins the study.", rows)


def _named(key: str, title: str, rows: list[tuple[str, str]]) -> Table:
    """Names and what belongs to them, without a head."""
    columns = (Column("name"), Column("hash"))
    return Table(key, title, columns, tuple((Cell.of(name), Cell.name(text)) for name, text in rows))


def configuration(results: Results) -> str:
    """The resolved study, as it was sealed.

    The file itself is printed: a plan that was read has the paths of this machine, and seeds and variants of amendments.
    """
    if results.plan is None:
        return ""
    sealed = read_json(results.folder / "plan.lock")["study"]
    return json.dumps({key: value for key, value in sealed.items() if key != "text"}, indent=2, ensure_ascii=False)
