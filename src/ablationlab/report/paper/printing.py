"""A document printed in a language: one walk over its blocks, and what Typst and LaTeX write for each kind."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

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
from ablationlab.report.table import Table, bibtex, latex, latex_code, typst, typst_code, typst_string

#: Formulas by name, for Typst and for LaTeX.
FORMULAS = {
    "layernorm": (
        '$"LN"(x) = (x - "mean"(x)) \\/ sqrt("var"(x) + epsilon) dot.o g + b$',
        r"$\mathrm{LN}(x) = (x - \mathrm{mean}(x)) / \sqrt{\mathrm{var}(x) + \epsilon} \odot g + b$",
    ),
    "rmsnorm": (
        '$"RMSNorm"(x) = x \\/ sqrt("mean"(x^2) + epsilon) dot.o g$',
        r"$\mathrm{RMSNorm}(x) = x / \sqrt{\mathrm{mean}(x^2) + \epsilon} \odot g$",
    ),
    "residual": ("$sqrt(2 L)$", r"$\sqrt{2L}$"),
    "blocks": ("$L$", "$L$"),
    "width": ("$d$", "$d$"),
    "beta": ("$beta$", r"$\beta$"),
    "epsilon": ("$epsilon$", r"$\epsilon$"),
    "d_z": ("$d_z$", "$d_z$"),
}


class Typesetter(ABC):
    """A language: *document* gives the whole source, the other methods one kind of block or piece each."""

    @abstractmethod
    def document(self, paper: PaperDocument, layout: str) -> str: ...

    def blocks(self, blocks: Iterable[Block]) -> str:
        return "".join(map(self.block, blocks))

    def block(self, block: Block) -> str:
        match block:
            case Heading():
                return self.heading(block)
            case Paragraph():
                return self.words(block.words) + "\n\n"
            case Items():
                return self.items(block, [self.words(item) for item in block.items])
            case Remark():
                return self.remark(self.words(block.words))
            case Float(body=Picture() as picture):
                return self.picture(block, picture)
            case Float(body=Table() as table):
                return self.table(block, table)
        raise AssertionError(block)

    def words(self, words: Sequence[Inline]) -> str:
        printed, following = [], ""
        for piece in reversed(words):
            printed.append(self.styled(piece, self.piece(piece), following))
            following = piece.text[:1] or following
        return "".join(reversed(printed))

    @abstractmethod
    def piece(self, piece: Inline) -> str: ...

    @abstractmethod
    def styled(self, piece: Inline, printed: str, following: str) -> str:
        """A printed piece in its style; *following* is the first letter after it."""

    @abstractmethod
    def heading(self, heading: Heading) -> str: ...

    @abstractmethod
    def items(self, block: Items, items: list[str]) -> str: ...

    @abstractmethod
    def remark(self, words: str) -> str: ...

    @abstractmethod
    def picture(self, block: Float, picture: Picture) -> str: ...

    @abstractmethod
    def table(self, block: Float, table: Table) -> str: ...


class Typst(Typesetter):
    """The body of paper.typ, behind the layout of ``template/layout.typ``.

    A short appendix stands before the references. The tables of a long one would float into them, so it stands behind, on
    pages of one column, and nothing in it floats.
    """

    def __init__(self, floating: bool = True) -> None:
        self.floating = floating

    def document(self, paper: PaperDocument, layout: str) -> str:
        day = "none" if paper.day is None else "datetime(year: {}, month: {}, day: {})".format(*paper.day)
        authors = "".join(
            f"(plain: {typst_string(a.name)}, name: [{typst(a.name)}], affiliation: [{typst(a.affiliation)}]), "
            for a in paper.authors
        )
        main, appendix = paper.parts()
        cited = '#references("references.bib")\n' if paper.cited() else ""
        behind = sum(map(_rows, appendix)) > _SHORT
        inside = "" if behind else self.blocks(appendix)
        back = f"#back[\n{Typst(floating=False).blocks(appendix)}]\n" if behind else ""
        return (
            f"// Compile with: typst compile paper.typ\n{layout}\n"
            f"#show: paper.with(\n  title: [{self.words(paper.title)}],\n"
            f"  plain-title: {typst_string(''.join(piece.text for piece in paper.title))},\n  authors: ({authors}),\n"
            f"  byline: [{self.words(paper.byline)}],\n  header: [{typst(paper.header)}],\n  day: {day},\n"
            f"  abstract: [{self.blocks(paper.abstract)}],\n)\n\n"
            f"{self.blocks(main)}\n{inside}\n{cited}#layout-check\n{back}"
        )

    def piece(self, piece: Inline) -> str:
        match piece.kind:
            case "code":
                return typst_code(piece.text)
            case "cite" | "ref":
                return f"#{piece.kind}(label({typst_string(piece.text)}))"
            case "math":
                return FORMULAS[piece.text][0]
            case _:
                return typst(piece.text)

    def styled(self, piece: Inline, printed: str, following: str) -> str:
        if piece.style:
            printed = f"#{'emph' if piece.style == 'emphasis' else 'strong'}[{printed}]"
        # What follows a call must not read as its continuation.
        call = piece.style or piece.kind in ("code", "cite", "ref")
        return printed + (";" if call and following and following in ".([;" else "")

    def heading(self, heading: Heading) -> str:
        opening = "#appendix" if heading.appendix else f"#heading(level: {heading.level})"
        return f"{opening}[{self.words(heading.words)}]\n"

    def items(self, block: Items, items: list[str]) -> str:
        if not block.numbers:
            return "#list(" + ", ".join(f"[{item}]" for item in items) + ")\n"
        numbered = zip(block.numbers, items, strict=True)
        return "#enum(" + ", ".join(f"enum.item({number})[{item}]" for number, item in numbered) + ")\n"

    def remark(self, words: str) -> str:
        return f"#note[{words}]\n"

    def picture(self, block: Float, picture: Picture) -> str:
        return (
            f"#drawing({typst_string(picture.key)}, {typst_string(picture.alt)}, {picture.shape:.4f}, "
            f"wide: {_flag(block.wide)})"
            f"[{self.words(block.caption)}]\n"
        )

    def table(self, block: Float, table: Table) -> str:
        return (
            f"#tabular({typst_string(block.key)}, wide: {_flag(block.wide)}, floating: {_flag(self.floating)}, "
            f"caption: [{self.words(block.caption)}], {table.typst()})\n"
        )


class Latex(Typesetter):
    """paper.tex for IEEEtran, the class of many conferences; its preamble knows others too."""

    def document(self, paper: PaperDocument, layout: str) -> str:
        authors = "\\nextauthor\n".join(
            rf"\paperauthor{{{latex(author.name)}}}{{{latex(author.affiliation)}}}" for author in paper.authors
        )
        main, appendix = paper.parts()
        cited = "\\bibliography{references}\n" if paper.cited() else ""
        back = f"\\behind\n{self.blocks(appendix)}" if appendix else ""
        unknown = sorted({sign for sign in bibtex(paper.references) if not sign.isascii() and latex(sign) != sign})
        signs = "".join(f"\\DeclareUnicodeCharacter{{{ord(sign):04X}}}{{{latex(sign)}}}\n" for sign in unknown)
        return (
            f"{layout}{signs}\n\\begin{{document}}\n"
            f"\\front{{{self.words(paper.title)}}}{{{authors}}}{{{self.blocks(paper.abstract).strip()}}}\n\n"
            f"\\medskip\\noindent\\emph{{{self.words(paper.byline)}}}\n\n"
            f"{self.blocks(main)}\n{cited}{back}\\end{{document}}\n"
        )

    def words(self, words: Sequence[Inline]) -> str:
        printed = super().words(words).replace(" ~\\citep{", "~\\citep{")
        return re.sub(r"(\\citep\{[^}]*)\}~\\citep\{", r"\1,", printed)

    def piece(self, piece: Inline) -> str:
        match piece.kind:
            case "code":
                return latex_code(piece.text)
            case "cite":
                return rf"~\citep{{{piece.text}}}"
            case "ref":
                return rf"\autoref{{{_label(piece.text)}}}"
            case "math":
                return FORMULAS[piece.text][1]
            case _:
                return latex(piece.text)

    def styled(self, piece: Inline, printed: str, following: str) -> str:
        return rf"\{'emph' if piece.style == 'emphasis' else 'textbf'}{{{printed}}}" if piece.style else printed

    def heading(self, heading: Heading) -> str:
        star = "*" if heading.appendix else ""
        return f"\\{'sub' * min(heading.level - 1, 2)}section{star}{{{self.words(heading.words)}}}\n"

    def items(self, block: Items, items: list[str]) -> str:
        kind = "enumerate" if block.numbers else "itemize"
        marks = [f"[{number}.]" for number in block.numbers] or [""] * len(items)
        body = "".join(f"\\item{mark} {item}\n" for mark, item in zip(marks, items, strict=True))
        return f"\\begin{{{kind}}}\n{body}\\end{{{kind}}}\n\n"

    def remark(self, words: str) -> str:
        return f"\\medskip\\noindent\\fbox{{\\parbox{{0.95\\linewidth}}{{{words}}}}}\\medskip\n\n"

    def picture(self, block: Float, picture: Picture) -> str:
        size = "width=\\linewidth,height=0.85\\textheight,keepaspectratio"
        image = f"\\includegraphics[{size}]{{figures/{picture.key}.pdf}}\n"
        return self._float(block, "figure", f"{image}{self._caption(block)}\\Description{{{latex(picture.alt)}}}\n")

    def table(self, block: Float, table: Table) -> str:
        return self._float(block, "table", f"{self._caption(block)}\\fitted{{{table.tabular('L')}}}\n")

    def _caption(self, block: Float) -> str:
        return f"\\caption{{{self.words(block.caption)}}}\\label{{{_label(block.key)}}}\n"

    def _float(self, block: Float, kind: str, body: str) -> str:
        name = kind + ("*" if block.wide else "")
        return f"\\begin{{{name}}}[tp]\n\\centering\n{body}\\end{{{name}}}\n\n"


#: Rows of tables in an appendix that leave most of a page to the text.
_SHORT = 20


def _rows(block: Block) -> int:
    return len(block.body.rows) if isinstance(block, Float) and isinstance(block.body, Table) else 0


def _flag(value: bool) -> str:
    return str(value).lower()


def _label(key: str) -> str:
    return re.sub(r"[^A-Za-z0-9:-]", "-", key)
