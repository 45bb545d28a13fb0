"""Charts: one file per subject, each function from results to figures, none where there is nothing to draw.

`Figure` is a chart with its words and its rows. `report.figures` draws all of them, section by section.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablationlab.core.lazy import lazy_exports

if TYPE_CHECKING:
    from ablationlab.report.charts.theme import DARK_OF, MANY, Figure, colours, config
    from ablationlab.report.charts.validation import power_figure

__getattr__ = lazy_exports(__name__)
