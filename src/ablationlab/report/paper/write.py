"""The folder of a paper and the PDF that Typst makes of it.

The folder is whole: paper.typ, paper.tex, references.bib, figures/, fonts/ and claims.json. It compiles as it stands, with
`typst compile --font-path fonts --ignore-system-fonts paper.typ` or with pdflatex and bibtex; it needs no package beyond
TeX Live and no font beyond its own and Typst's. The same records give the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ablationlab.core.errors import AblationLabError
from ablationlab.records.results import Results
from ablationlab.records.settings import StudyText
from ablationlab.records.storage import replace
from ablationlab.report import fonts
from ablationlab.report.paper.compose import document_of, read_template
from ablationlab.report.paper.document import PaperDocument, Picture
from ablationlab.report.paper.figures import pictures, programme_pictures
from ablationlab.report.paper.printing import Latex, Typst
from ablationlab.report.paper.sources import claims_json
from ablationlab.report.paper.typesetting import typeset
from ablationlab.report.table import bibtex
from ablationlab.report.tables import check_conclusions
from ablationlab.study.text import entries

if TYPE_CHECKING:
    from ablationlab.report.figures import Figures

FOLDER = "paper"
REFERENCES = "references.bib"
CLAIMS = "claims.json"


def write_paper(
    results: Results, folder: Path, *, figures: Figures | None = None, say: Callable[[str], None] = print
) -> Path:
    """Write paper/ and paper.pdf into *folder*; the path of the PDF.

    *figures* are those of the page, where they are drawn already; *say* hears which chart could not be.

    Refused, with the reason, where there is no analysis or one that is not of these records. A study that is not
    finished gives a paper that says so at the top and above the answers.
    """
    check_conclusions(results)
    replace(folder / FOLDER / REFERENCES, b"")  # a folder that cannot be written is known before anything is drawn
    drawn = {"": pictures(results, figures, say)}
    write_sources(document_of([results], drawn), drawn, folder / FOLDER)
    return typeset(folder / FOLDER, _keys(drawn), folder / "paper.pdf")


def write_programme(
    studies: Sequence[Results],
    folder: Path,
    *,
    title: str = "",
    text: StudyText | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Write one paper over several studies into *folder*; the path of the PDF."""
    for results in studies:
        check_conclusions(results)
    names = [results.analysis.study for results in studies if results.analysis is not None]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise AblationLabError(f"two of the results are of the study {twice[0]!r}; give each study once")
    replace(folder / REFERENCES, b"")
    if len(studies) > 1:
        texts = (text, *(results.plan.study.text for results in studies if results.plan is not None))
        drawn = programme_pictures(studies, next((own.studies for own in texts if own is not None), {}), say)
    else:
        drawn = {"": pictures(studies[0], say=say)}
    document = document_of(studies, drawn, title=title, text=text)
    write_sources(document, drawn, folder)
    return typeset(folder, _keys(drawn), folder / "paper.pdf")


def write_sources(document: PaperDocument, drawn: Mapping[str, Sequence[Picture]], folder: Path) -> None:
    """Everything but PDFs: both sources, references, figures and claims."""
    for pictures_of_study in drawn.values():
        for picture in pictures_of_study:
            replace(folder / "figures" / f"{picture.key}.svg", picture.svg.encode())
    for path in fonts.paths():
        replace(folder / "fonts" / path.name, path.read_bytes())
    replace(folder / "paper.typ", Typst().document(document, read_template("layout.typ")).encode())
    replace(folder / "paper.tex", Latex().document(document, read_template("preamble.tex")).encode())
    replace(folder / REFERENCES, references(document).encode())
    replace(folder / CLAIMS, claims_json(document).encode())


def _keys(drawn: Mapping[str, Sequence[Picture]]) -> list[str]:
    return [picture.key for pictures_of_study in drawn.values() for picture in pictures_of_study]


def references(document: PaperDocument) -> str:
    """The entries that the paper cites; a study's own entry goes before that of every paper."""
    try:
        every = entries(read_template(REFERENCES)) | entries(document.references)
    except ValueError as error:
        raise AblationLabError(f"the references in plan.lock cannot be printed: {error}") from error
    return bibtex("".join(f"{_numbered(every[key])}\n\n" for key in document.cited() if key in every))


def _numbered(entry: str) -> str:
    """An entry whose journal is ``arXiv preprint arXiv:1607.06450``, as search engines give it, with the number apart."""
    if re.search(r"\bnumber\s*=", entry):
        return entry
    return re.sub(r"(journal\s*=\s*\{arXiv preprint) arXiv:([\w./-]+)\}", r"\1},\n  number = {\2}", entry)
