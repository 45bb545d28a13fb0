"""Which pictures a page has between how sure and fair: a section each, where the records have anything for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ablationlab.records.settings import TUNED
from ablationlab.report.charts.chart import Chart
from ablationlab.report.charts.difference import difference_chart
from ablationlab.report.charts.failures import failure_times_chart, failures_chart
from ablationlab.report.charts.grid import grid_chart
from ablationlab.report.charts.inside import inside_chart
from ablationlab.report.charts.side_effects import side_effects_chart
from ablationlab.report.study_report import StudyReport

#: From this share of failed runs on, when they failed says more than curves of those that are left.
MANY: Final = 0.1


def pictures(report: StudyReport) -> list[tuple[str, str, list[Chart]]]:
    """(key, title, charts)"""
    found = (
        ("regimes", "Regimes", _regimes(report)),
        ("when", "When", _when(report)),
        ("side", "Side effects", [side_effects_chart(report)]),
        ("inside", "Inside", [inside_chart(report)]),
    )
    sections = ((key, title, [chart for chart in charts if chart is not None]) for key, title, charts in found)
    return [(key, title, charts) for key, title, charts in sections if charts]


def _regimes(report: StudyReport) -> Iterator[Chart | None]:
    """Of a study with regimes of its own where not all of them have an answer; an answer has its own forest."""
    everywhere = {end.regime for end in report.ends} & {row.regime for row in report.effects}
    if len(report.regimes) == 1 and len(everywhere) > 1 and report.regimes[0] != TUNED:
        yield grid_chart(report, every=True)


def _when(report: StudyReport) -> Iterator[Chart | None]:
    failed = sum(end.failed for end in report.ends)
    squares = failed and len(report.regimes) == 1  # of several regimes, the answer has them
    if failed and failed >= MANY * len(report.ends):
        yield failure_times_chart(report)
    else:
        yield difference_chart(report)
    if squares:
        yield failures_chart(report)
