"""The paper of a study: Typst source that anyone can edit, and the PDF it gives. Offline, without torch."""

from __future__ import annotations

from ablationlab.report.paper.write import write_paper

__all__ = ["write_paper"]
