"""The paper of a study or of several: Typst and LaTeX source that anyone can edit, and the PDF. Offline, without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablationlab.core.lazy import lazy_exports

if TYPE_CHECKING:
    from ablationlab.report.paper.write import write_paper, write_programme

__getattr__ = lazy_exports(__name__)
