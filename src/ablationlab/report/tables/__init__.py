"""Tables of a study, each built once from its results: comparisons, arms, answers, stability, power, tasks, runs.

A builder gives a :class:`ablationlab.report.table.Table`; :func:`write_tables` writes those that are kept.
"""

from __future__ import annotations

from ablationlab.report.tables.ablation import ablation_table
from ablationlab.report.tables.write import check_conclusions, tables_of, write_tables
