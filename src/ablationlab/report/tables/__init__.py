"""Tables of a study, each built once from its results: comparisons, arms, verdicts, stability, power, runs.

A builder gives a :class:`ablationlab.report.table.Table`; :func:`write_tables` writes all of them as CSV and LaTeX, and the
whole analysis as statistics.md.
"""

from __future__ import annotations

from ablationlab.report.tables.comparisons import comparison_table, difference_of, item_table, method_table, pair_table
from ablationlab.report.tables.study import (
    DECISIONS,
    arm_table,
    criteria_table,
    direction_table,
    figure_table,
    gain_table,
    power_table,
    run_table,
    stability_table,
    variant_table,
    verdict_table,
)
from ablationlab.report.tables.write import check_conclusions, statistics_markdown, tables_of, write_tables

__all__ = [
    "DECISIONS",
    "arm_table",
    "check_conclusions",
    "comparison_table",
    "criteria_table",
    "difference_of",
    "direction_table",
    "figure_table",
    "gain_table",
    "item_table",
    "method_table",
    "pair_table",
    "power_table",
    "run_table",
    "stability_table",
    "statistics_markdown",
    "tables_of",
    "variant_table",
    "verdict_table",
    "write_tables",
]
