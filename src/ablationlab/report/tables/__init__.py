"""Tables of a study, each built once from its results: comparisons, arms, answers, stability, power, tasks, runs.

A builder gives a :class:`ablationlab.report.table.Table`; :func:`write_tables` writes those that are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablationlab.core.lazy import lazy_exports

if TYPE_CHECKING:
    from ablationlab.report.tables.write import check_conclusions, tables_of, write_tables

__getattr__ = lazy_exports(__name__)
