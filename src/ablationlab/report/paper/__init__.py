"""The paper of a study or of several: Typst and LaTeX source that anyone can edit, and the PDF. Offline, without torch."""

from __future__ import annotations

from ablationlab.report.paper.write import write_paper, write_programme
