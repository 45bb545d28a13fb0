"""Every table of a study beyond its effects: what terminal and page open behind the answer."""

from __future__ import annotations

from dataclasses import replace

from ablationlab.records.analysis import Analysis
from ablationlab.records.results import Results
from ablationlab.report.slots import Statement
from ablationlab.report.table import Table
from ablationlab.report.tables.answers import hypothesis_table
from ablationlab.report.tables.can_show import power_table
from ablationlab.report.tables.codes import caveat_table, deviation_table, note_table
from ablationlab.report.tables.comparisons import text_table
from ablationlab.report.tables.factors import factor_table, interaction_table, simple_table
from ablationlab.report.tables.failures import stability_table
from ablationlab.report.tables.means import probe_table, score_table
from ablationlab.report.tables.noise import noise_table
from ablationlab.report.tables.readings import reading_table
from ablationlab.report.tables.sweeps import rate_table, sweep_table
from ablationlab.report.tables.tasks import task_table


def every_table(results: Results) -> list[Table]:
    """What the analysis has, where it has it."""
    analysis, verdict = results.analysis, results.verdict
    assert analysis is not None
    assert verdict is not None
    crossed, scores, readings = analysis.interactions, analysis.evaluation, analysis.readings
    return _filled(
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
        _bare("Power", power_table(analysis)),
        deviation_table(analysis),
        note_table(() if scores is None else scores.notes),
        caveat_table(analysis.comparisons),
    )


def rate_tables(results: Results) -> list[Table]:
    """The sweep: every rate of every arm, and the best ones."""
    sweep = None if results.analysis is None else results.analysis.sweep
    if sweep is None or results.analysis is None:
        return []
    return _filled(sweep_table(sweep, results.analysis.variants), _bare("Rates", rate_table(sweep)))


def task_tables(results: Results) -> list[Table]:
    """Every task, and every metric that an evaluation measured."""
    tasks = task_table(results).without("sensitive", "meaning", "templates", "spread", "hash")
    return _filled(_bare("Tasks", tasks), score_table(results))


def probe_tables(results: Results) -> list[Table]:
    """Every probe, last measured."""
    return _filled(probe_table(results))


def _failures(analysis: Analysis) -> Table | None:
    table = _bare("Failures", stability_table(analysis))
    contradicted = analysis.stability is not None and any(gain.contradicted for gain in analysis.stability.gains)
    return replace(table, note=Statement("more.contradicted").text) if table is not None and contradicted else table


def _bare(title: str, table: Table | None) -> Table | None:
    """A table without what a paper says around it."""
    return None if table is None else replace(table, title=title, about="", note="")


def _filled(*tables: Table | None) -> list[Table]:
    return [table for table in tables if table is not None and table.rows]
