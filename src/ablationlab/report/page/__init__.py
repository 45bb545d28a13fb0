"""report.html: one self-contained file, opened by double click, no network."""

from __future__ import annotations

from ablationlab.report.page.build import page_html, write_page

__all__ = ["page_html", "write_page"]
