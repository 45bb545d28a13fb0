"""Records, analysis and verdict to what people read: a page, a paper, figures and tables. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablationlab.core.lazy import lazy_exports

if TYPE_CHECKING:
    from ablationlab.report.figures import draw_figures
    from ablationlab.report.make import make_report
    from ablationlab.report.page.build import write_page
    from ablationlab.report.paper import write_paper
    from ablationlab.report.table import Table
    from ablationlab.report.tables import write_tables

__getattr__ = lazy_exports(__name__)
