"""What every picture of the page is: responsive SVG, the table behind it, and fixed clauses."""

from __future__ import annotations

from dataclasses import dataclass

from ablationlab.report.slots import Statement
from ablationlab.report.table import Table


@dataclass(frozen=True)
class Chart:
    """*svg*: safe HTML, x in percent and y in pixels; *table*: what a screen reader gets and what opens behind it."""

    svg: str
    table: Table
    statements: tuple[Statement, ...] = ()
