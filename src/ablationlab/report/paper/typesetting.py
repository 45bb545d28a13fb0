"""A paper's Typst source to its PDF. Typst runs in the workers that draw charts, because it dies by a signal where memory is
short.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from ablationlab.core.errors import AblationLabError, WorkerDied
from ablationlab.records.storage import replace
from ablationlab.report import fonts
from ablationlab.report.convert import NOT_DRAWN, start_converters

if TYPE_CHECKING:
    import typst

#: Sizes of a paper's text in points: the first that fills its last page to this share, else the one that fills it most.
SIZES = (9.6, 9.5, 9.7, 9.4, 9.8, 9.3, 9.9, 9.2, 10.0, 9.1, 10.1, 10.2, 10.3, 10.4, 10.5, 10.8, 11.1, 11.4)
FULL = 0.8


def typeset(folder: Path, figures: Iterable[str], pdf: Path) -> Path:
    """Make *pdf* of ``folder/paper.typ``, and PDFs of these figures for LaTeX."""
    try:
        start_converters().submit("paper", folder, tuple(figures), pdf).result()
    except NOT_DRAWN as error:
        why = f"Typst {error.how}" if isinstance(error, WorkerDied) else str(error)
        raise AblationLabError(
            f"{folder / 'paper.typ'} is written, but {pdf.name} could not be made of it: {why}"
        ) from error
    return pdf


# ---- in a worker --------------------------------------------------------------------------------------------------------


def make_paper(folder: Path, figures: Iterable[str], pdf: Path) -> None:
    """In a worker: the figures' PDFs, the size of text that fills the last page, and the paper's PDF."""
    for key in figures:
        svg_to_pdf(folder / "figures", key)
    source = folder / "paper.typ"
    written = source.read_text(encoding="utf-8")
    best = fullest(written, folder)
    if best != written:
        replace(source, best.encode())
    replace(pdf, compiled(best, folder))


def svg_to_pdf(folder: Path, key: str) -> None:
    """``key.pdf`` beside ``key.svg``, by Typst: its bytes repeat, where those of the chart converter do not."""
    page = f'#set document(date: none)\n#set page(width: auto, height: auto, margin: 0pt)\n#image("{key}.svg")\n'
    replace(folder / f"{key}.pdf", compiled(page, folder))


def fullest(source: str, folder: Path) -> str:
    """The source at the size of text that leaves the least of the last page empty, with the tables in order."""
    fullest, best = -1.0, source
    for apart, size in product(("false", "true"), SIZES):
        trial = source.replace("#let size = 9.6pt", f"#let size = {size}pt", 1)
        trial = trial.replace("#let apart = false", f"#let apart = {apart}", 1)
        with typst_compiler(trial, folder) as compiler:
            found = json.loads(compiler.query("<end>", field="value", one=True))
        if found["ordered"] and found["full"] > fullest:
            fullest, best = found["full"], trial
        if fullest > FULL:
            break
    return best


def compiled(source: str, folder: Path) -> bytes:
    """The PDF of a Typst source whose files lie in *folder*."""
    with typst_compiler(source, folder) as compiler:
        made = compiler.compile()
    assert isinstance(made, bytes)
    return made


@contextmanager
def typst_compiler(source: str, folder: Path) -> Iterator[typst.Compiler]:
    import typst

    try:
        yield typst.Compiler(source.encode(), root=folder, font_paths=_typst_fonts(), ignore_system_fonts=True)
    except RuntimeError as error:
        raise AblationLabError(f"the Typst source in {folder} does not compile: {error}") from error


@cache
def _typst_fonts() -> typst.Fonts:
    """Only the package's fonts and the compiler's own, so that the PDF is the same everywhere."""
    import typst

    return typst.Fonts(include_system_fonts=False, font_paths=[fonts.FOLDER])
