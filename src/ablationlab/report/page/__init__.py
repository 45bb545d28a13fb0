"""report.html: one self-contained file that a double click opens, without a network.

`write_page` writes it. `asset`, `render`, `by_column` and `vega_bundle` serve the live page too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablationlab.core.lazy import lazy_exports

if TYPE_CHECKING:
    from ablationlab.report.page.build import page_html, write_page
    from ablationlab.report.page.embed import asset, by_column, render, vega_bundle

__getattr__ = lazy_exports(__name__)
