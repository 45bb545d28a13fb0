"""A document as LaTeX for IEEEtran, the class of many conferences: paper.tex, which needs references.bib and the figures."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ablationlab.report.paper.document import (
    Block,
    Float,
    Heading,
    Inline,
    Items,
    PaperDocument,
    Paragraph,
    Picture,
    Remark,
)
from ablationlab.report.paper.formulas import FORMULAS
from ablationlab.report.table import Cell, Table
from ablationlab.report.table import latex as escaped

_HEADINGS = ("section", "subsection", "subsubsection")


def latex(document: PaperDocument, preamble: str) -> str:
    """The whole source. Compile with: pdflatex paper, bibtex paper, pdflatex paper, pdflatex paper."""
    authors = r" \and ".join(
        rf"\IEEEauthorblockN{{{escaped(author.name)}}}"
        + (rf"\IEEEauthorblockA{{{escaped(author.affiliation)}}}" if author.affiliation else "")
        for author in document.authors
    )
    if not authors:
        authors = rf"\parbox{{0.8\textwidth}}{{\centering {_words(document.byline)}}}"
    body, appendix = ("\n".join(map(_block, part)) for part in document.parts())
    end = "\\bibliographystyle{IEEEtran}\n\\bibliography{references}\n" if document.cited() else ""
    abstract = "\n".join(map(_block, document.abstract))
    return (
        f"{preamble}\n\\begin{{document}}\n\\title{{{_words(document.title)}}}\n\\author{{{authors}}}\n\\maketitle\n"
        f"\\begin{{abstract}}\n{abstract}\\end{{abstract}}\n\n{body}\n{end}{appendix}\\end{{document}}\n"
    )


def _words(words: Sequence[Inline]) -> str:
    return "".join(map(_piece, words))


def _piece(piece: Inline) -> str:
    match piece.kind:
        case "code":
            made = _code(piece.text)
        case "cite":
            return rf"~\cite{{{piece.text}}}"
        case "ref":
            return rf"\autoref{{{_label(piece.text)}}}"
        case "math":
            return FORMULAS[piece.text][1]
        case _:
            made = _text(piece.text)
    if piece.style:
        return rf"\{'emph' if piece.style == 'emphasis' else 'textbf'}{{{made}}}"
    return made


def _text(text: str) -> str:
    return escaped(text).replace("...", ".{}.{}.")


def _code(text: str) -> str:
    """A name, which may break behind its dashes, dots and slashes."""
    breakable = re.sub(r"([-./:])", r"\1\\allowbreak{}", escaped(text))
    return rf"\texttt{{{breakable}}}"


def _label(key: str) -> str:
    return re.sub(r"[^A-Za-z0-9:-]", "-", key)


def _block(block: Block) -> str:
    match block:
        case Heading():
            opening = "\\appendices\n" if block.appendix else ""
            return f"{opening}\\{_HEADINGS[min(block.level, 3) - 1]}{{{_words(block.words)}}}\n"
        case Paragraph():
            return _words(block.words) + "\n"
        case Items():
            kind = "itemize" if block.start is None else "enumerate"
            first = "" if block.start is None else f"\\setcounter{{enumi}}{{{block.start - 1}}}\n"
            items = "".join(f"\\item {_words(item)}\n" for item in block.items)
            return f"\\begin{{{kind}}}\n{first}{items}\\end{{{kind}}}\n"
        case Remark():
            return f"\\medskip\\noindent\\fbox{{\\parbox{{0.95\\linewidth}}{{{_words(block.words)}}}}}\\medskip\n"
        case Float(body=Picture() as picture):
            return _float(block, "figure", f"\\includegraphics[width=\\linewidth]{{figures/{picture.key}.pdf}}\n")
        case Float(body=Table() as table):
            return _float(block, "table", _tabular(table))
    raise AssertionError(block)


def _float(block: Float, kind: str, body: str) -> str:
    name = kind + ("*" if block.wide else "")
    caption = f"\\caption{{{_words(block.caption)}}}\\label{{{_label(block.key)}}}\n"
    parts = caption + body if kind == "table" else body + caption
    return f"\\begin{{{name}}}[t]\n\\centering\n{parts}\\end{{{name}}}\n"


def _tabular(table: Table) -> str:
    shown = table.printed()
    align = "".join(column.align[0] for column, _ in shown)
    head = " & ".join(_text(column.title) for column, _ in shown)
    rows = zip(*(cells for _, cells in shown), strict=True)
    body = "".join(" & ".join(map(_cell, row)) + " \\\\\n" for row in rows)
    return (
        f"\\fitted{{\\begin{{tabular}}{{{align}}}\n\\toprule\n{head} \\\\\n\\midrule\n{body}\\bottomrule\n"
        "\\end{tabular}}\n"
    )


def _cell(cell: Cell) -> str:
    text = rf"\texttt{{{escaped(cell.whole)}}}" if cell.code else _text(cell.whole)
    text = re.sub(r"\bE\\_(tok|pos)\b", r"$E_{\\mathrm{\1}}$", text)
    return rf"\textbf{{{text}}}" if cell.strong else text
