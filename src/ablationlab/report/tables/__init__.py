"""Tables of a study: each made once, as values and as text, then written as CSV, LaTeX (booktabs) and Markdown.

:func:`write_tables` is what the report calls. CSV holds the full numbers; the others what a paper prints.
"""

from __future__ import annotations

from ablationlab.report.tables.render import Cell, Column, Table
from ablationlab.report.tables.write import write_tables

__all__ = ["Cell", "Column", "Table", "write_tables"]
