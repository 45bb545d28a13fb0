"""A document as Typst: the body of paper.typ, behind the layout of ``template/layout.typ``."""

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
from ablationlab.report.table import Table, typst_string
from ablationlab.report.table import typst as escaped


def typst(document: PaperDocument, layout: str) -> str:
    """The whole source; *layout* is the file that defines how it looks."""
    day = "none" if document.day is None else "datetime(year: {}, month: {}, day: {})".format(*document.day)
    authors = "".join(
        f"(name: {typst_string(a.name)}, affiliation: {typst_string(a.affiliation)}), " for a in document.authors
    )
    head = (
        f"// Compile with: typst compile paper.typ\n{layout}\n"
        f"#show: paper.with(\n  title: [{_words(document.title)}],\n"
        f"  plain-title: {typst_string(''.join(piece.text for piece in document.title))},\n  authors: ({authors}),\n"
        f"  byline: [{_words(document.byline)}],\n  header: {typst_string(document.header)},\n  day: {day},\n"
        f"  abstract: [{''.join(map(_block, document.abstract))}],\n)\n\n"
    )
    main, appendix = document.parts()
    body = "\n".join(map(_block, main))
    file = '"references.bib"' if document.cited() else "none"
    return f"{head}{body}\n#fullness\n#back(file: {file})[\n{''.join(map(_in_place, appendix))}]\n"


def _in_place(block: Block) -> str:
    """A block of the appendix, where tables do not float."""
    if isinstance(block, Float) and isinstance(block.body, Table):
        return _table(block, block.body, floating=False)
    return f"#appendix[{_words(block.words)}]\n" if isinstance(block, Heading) else _block(block)


def _words(words: Sequence[Inline]) -> str:
    made = ""
    for place, piece in enumerate(words):
        next_text = words[place + 1].text[:1] if place + 1 < len(words) else ""
        made += _piece(piece, next_text)
    return made


def _piece(piece: Inline, following: str) -> str:
    match piece.kind:
        case "code":
            made = f"#raw({typst_string(piece.text)})"
        case "cite":
            made = f"#cite(label({typst_string(piece.text)}))"
        case "ref":
            made = f"#ref(label({typst_string(piece.text)}))"
        case "math":
            return FORMULAS[piece.text][0]
        case _:
            made = escaped(piece.text)
    if piece.style:
        made = f"#{'emph' if piece.style == 'emphasis' else 'strong'}[{made}]"
    # What follows a call must not read as its continuation.
    return made + (";" if made.startswith("#") and following in ".([;" and following else "")


def _block(block: Block) -> str:
    match block:
        case Heading():
            return f"#heading(level: {block.level})[{_words(block.words)}]\n"
        case Paragraph():
            return _words(block.words) + "\n\n"
        case Items():
            start = "list" if block.start is None else f"enum(start: {block.start}, "
            opening = f"#{start}(" if block.start is None else f"#{start}"
            return opening + ", ".join(f"[{_words(item)}]" for item in block.items) + ")\n"
        case Remark():
            return f"#note[{_words(block.words)}]\n"
        case Float(body=Picture() as picture):
            return (
                f"#drawing({typst_string(picture.key)}, {typst_string(picture.alt)}, wide: {str(block.wide).lower()})"
                f"[{_words(block.caption)}]\n"
            )
        case Float(body=Table() as table):
            return _table(block, table)
    raise AssertionError(block)


def _table(block: Float, table: Table, *, floating: bool = True) -> str:
    cells = re.sub(r"\bE\\_(tok|pos)\b", r'$E_"\1"$', table.typst())  # the embeddings of a variant's formula
    return (
        f"#tabular({typst_string(block.key)}, wide: {str(block.wide).lower()}, floating: {str(floating).lower()}, "
        f"caption: [{_words(block.caption)}], {cells})\n"
    )
