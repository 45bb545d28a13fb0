"""The folder paper/ (template, facts.json, references.bib, figures/) and paper.pdf, which is compiled from it.

The folder is whole: it compiles as it stands with plain `typst compile paper.typ`, needs no package and only the
compiler's own fonts. The same records give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING

from ablationlab.core.errors import AblationLabError
from ablationlab.records.results import Results
from ablationlab.records.storage import replace
from ablationlab.report.paper.collect import facts_of
from ablationlab.report.paper.figures import Picture, pictures
from ablationlab.report.tables import check_conclusions
from ablationlab.study.text import entries

if TYPE_CHECKING:
    from ablationlab.report.figures import Figures

FOLDER = "paper"
REFERENCES = "references.bib"


def write_paper(
    results: Results, folder: Path, *, figures: Figures | None = None, say: Callable[[str], None] = print
) -> Path:
    """Write paper/ and paper.pdf into *folder*; the path of the PDF.

    *figures* are those of the page, where they are drawn already; *say* hears which chart could not be.

    Refused, with the reason, where there is no analysis or one that is not of these records. A study that is not
    finished gives a paper that says so at the top and wherever it speaks of a decision.
    """
    check_conclusions(results)
    write_template(folder / FOLDER)  # first: a folder that cannot be written is known before anything is drawn
    drawn = pictures(results, figures, say)
    for picture in drawn:
        replace(folder / FOLDER / "figures" / f"{picture.key}.svg", picture.svg.encode())
    write_facts(results, folder / FOLDER, drawn)
    paper = folder / "paper.pdf"
    replace(paper, compiled(folder / FOLDER / "paper.typ"))
    return paper


def write_template(folder: Path) -> None:
    """Write the Typst files and the references of every paper."""
    for name, content in _template(files("ablationlab.report.paper") / "template"):
        replace(folder / name, content)


def write_facts(results: Results, folder: Path, drawn: Sequence[Picture] = ()) -> None:
    """Write facts.json, and the study's own references among those of every paper."""
    replace(folder / "facts.json", facts_of(results, drawn).to_json().encode())
    text = results.plan.study.text if results.plan is not None else None
    if text is not None and text.references:
        every = (files("ablationlab.report.paper") / "template" / REFERENCES).read_text(encoding="utf-8")
        try:
            merged = entries(every) | entries(text.references)  # a key's entry is the study's, where it has one
        except ValueError as error:
            raise AblationLabError(
                f"{results.folder}: the references in plan.lock cannot be printed: {error}"
            ) from error
        replace(folder / REFERENCES, ("\n\n".join(merged.values()) + "\n").encode())


def _template(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        name = f"{prefix}{entry.name}"
        if entry.is_dir():
            yield from _template(entry, f"{name}/")
        else:
            yield name, entry.read_bytes()


def compiled(source: Path) -> bytes:
    """The PDF of a Typst file; only the compiler's own fonts are used, so that it is the same everywhere."""
    import typst

    try:
        made = typst.compile(source, ignore_system_fonts=True)
    except typst.TypstError as error:
        raise AblationLabError(f"{source} does not compile: {error}") from error
    assert isinstance(made, bytes)
    return made
