"""A table, and its six forms: terminal, CSV, LaTeX, Markdown, HTML and Typst.

A cell has a text for people and a raw value for CSV. Each form escapes text in its own way, here and nowhere else.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ablationlab.core.format import DASH, MINUS, NARROW, plain, printable
from ablationlab.report.fonts import spelled

if TYPE_CHECKING:
    import pandas as pd

    from ablationlab.report.layout import TerminalTable

Value = str | float | int | bool | None
Align = Literal["left", "right", "center"]
Tone = Literal["", "good", "bad", "warn"]


@dataclass(frozen=True)
class Cell:
    """A value as it is recorded, and as it is printed. *note* is an aside: a second line in HTML, in brackets elsewhere."""

    value: Value
    text: str
    code: bool = False  # a name, in the typewriter face
    formula: bool = False  # of a variant, in the words of a study file
    strong: bool = False
    note: str = ""
    # In HTML only:
    tone: Tone = ""

    @classmethod
    def of(
        cls,
        value: Value,
        text: str | Callable[[Any], str] | None = None,
        *,
        note: str = "",
        tone: Tone = "",
    ) -> Cell:
        """A cell with this text, or that which a function of `core.format` makes of the value; without one, its own."""
        if callable(text):
            text = text(value)
        shown = text if text is not None else DASH if value is None else str(value)
        return cls(value, shown, note=note, tone=tone)

    @classmethod
    def name(cls, value: str) -> Cell:
        """The name of a variant, a run, a regime."""
        return cls(value, value, code=True)

    @classmethod
    def contrast(cls, variant: str, reference: str) -> Cell:
        """Variant − reference."""
        return cls(variant, f"{variant} − {reference}", code=True)

    @property
    def whole(self) -> str:
        """The text, and the note in brackets."""
        return f"{self.text} ({self.note})" if self.note else self.text


@dataclass(frozen=True)
class Column:
    """A column: *key* heads it in CSV, *title* elsewhere. One that is not *printed* is in CSV alone.

    A *spare* one is the first to go where a terminal has no room, to a line "below" its row or away.
    In HTML, a column *below* another is the second line of the cell before it; there its *prefix* may stand for its title.
    The title of a column may be a *name*, which no form changes. Its *note* stands below the table where it is shown.
    """

    key: str
    title: str = ""
    align: Align = "left"
    printed: bool = True
    below: bool = False
    prefix: str = ""
    name: bool = False
    spare: bool | Literal["below"] = False
    note: str = ""

    @property
    def small_title(self) -> str:
        """The title in small letters, for terminal and page; FLOPs, SD and McNemar stay as they are."""
        first = re.match(r"[A-Z]\w+", self.title)
        change = first is not None and first[0][1:].islower() and not self.name
        return self.title[:1].lower() + self.title[1:] if change else self.title


Row = tuple[Cell, ...]
Cells = Mapping[Column, Cell | Value]


@dataclass(frozen=True)
class Table:
    """Columns and rows; *title* stands above, with what the rows are *about* in more words, and *note* below."""

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    note: str = ""
    about: str = ""

    @property
    def caption(self) -> str:
        """Everything that stands above."""
        return " ".join(filter(None, (self.title, self.about)))

    @property
    def notes(self) -> str:
        """Everything that stands below: the table's note, and those of the columns that are printed."""
        return " ".join(filter(None, (self.note, *(column.note for column in self.columns if column.printed))))

    @classmethod
    def of(cls, key: str, title: str, rows: Iterable[Cells], note: str = "", about: str = "") -> Table:
        """A table from rows by column, all with the same columns; what is no cell is shown as it is."""
        made = list(rows)
        columns = tuple(made[0]) if made else ()
        return cls(key, title, columns, tuple(tuple(map(_cell, row.values())) for row in made), note, about)

    @classmethod
    def simple(
        cls, title: str, heads: Sequence[str], rows: Iterable[Sequence[Value | Cell]], right: Iterable[str] = ()
    ) -> Table:
        """A table from plain values; the columns named in *right* are aligned to the right."""
        numbers = set(right)
        columns = tuple(Column(head, head, "right" if head in numbers else "left", name=True) for head in heads)
        made = (tuple(map(_cell, row)) for row in rows)
        return cls(re.sub(r"\W+", "-", title.lower()).strip("-"), title, columns, tuple(made))

    def without(self, *keys: str) -> Table:
        """The same with these columns in CSV alone."""
        columns = (dataclasses.replace(c, printed=False) if c.key in keys else c for c in self.columns)
        return dataclasses.replace(self, columns=tuple(columns))

    def first(self, most: int) -> tuple[Table, int]:
        """The first rows of a long table, and how many were left out."""
        return dataclasses.replace(self, rows=self.rows[:most]), max(0, len(self.rows) - most)

    def only(self, *keys: str) -> Table:
        """The same with the other columns in CSV alone."""
        return dataclasses.replace(
            self, columns=tuple(dataclasses.replace(c, printed=c.key in keys) for c in self.columns)
        )

    def frame(self) -> pd.DataFrame:
        """The recorded values, printed or not; without rows it still has its columns."""
        import pandas as pd

        rows = [[cell.value for cell in row] for row in self.rows]
        return pd.DataFrame(rows, columns=[column.key for column in self.columns])

    def printed(self) -> list[tuple[Column, list[Cell]]]:
        """(column, its cells) of everything that is printed."""
        return [(c, [row[i] for row in self.rows]) for i, c in enumerate(self.columns) if c.printed]

    def terminal(self) -> TerminalTable:
        """A table for rich that fits the terminal it is printed on; cells are text, never markup."""
        from rich.text import Text

        from ablationlab.report.layout import TerminalColumn, TerminalTable

        def column(of: Column, cells: list[Cell]) -> TerminalColumn:
            texts = tuple(Text(_terminal(cell.whole), style="bold" if cell.strong else "") for cell in cells)
            sentences = of.align == "left" and not any(cell.code for cell in cells)
            prose = sentences and any(" " in text.plain and len(text.plain) > _SENTENCE for text in texts)
            return TerminalColumn(_terminal(of.small_title), of.align, texts, prose, of.spare, _terminal(of.note))

        columns = tuple(column(of, cells) for of, cells in self.printed())
        return TerminalTable(_terminal(self.caption), _terminal(self.note), columns)

    def csv(self) -> str:
        """RFC 4180 with full numbers; a formula-like text (=, +, -, @) is quoted with an apostrophe, as spreadsheets ask."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\r\n")
        writer.writerow([_csv(column.key) for column in self.columns])
        writer.writerows([_csv(cell.value) for cell in row] for row in self.rows)
        return out.getvalue()

    def json(self) -> str:
        """A list of rows, each with every value by its key."""
        keys = [column.key for column in self.columns]
        rows = [dict(zip(keys, (cell.value for cell in row), strict=True)) for row in self.rows]
        return json.dumps(rows, indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def latex(self) -> str:
        """A table environment, scaled down where it is wider than the text; beside its two packages it needs textcomp's signs
        (any LaTeX since 2020)."""
        note = f"\n  \\par\\smallskip\\footnotesize {latex(self.notes)}" if self.notes else ""
        return (
            "% Needs \\usepackage{booktabs,graphicx}.\n"
            "\\begin{table}\n  \\centering\n"
            f"  \\caption{{{latex(self.caption)}}}\n  \\label{{tab:{self.key}}}\n"
            "  \\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{"
            f"{self.tabular()}}}{note}\n\\end{{table}}\n"
        )

    def tabular(self, wrapped: str = "") -> str:
        """The tabular environment alone. Texts that are too long for one line stand in columns of the kind *wrapped*."""
        shown = self.printed()
        long = {
            column.key for column, cells in shown if any(len(cell.whole) > _LONG and not cell.code for cell in cells)
        }
        align = "".join(wrapped if wrapped and column.key in long else column.align[0] for column, _ in shown)
        head = " & ".join(_folded(column.title, column.align) or latex(column.title) for column, _ in shown)
        body = "\n".join("    " + " & ".join(map(_latex_cell, cells)) + r" \\" for cells in _rows(shown))
        return (
            f"\\begin{{tabular}}{{{align}}}\n    \\toprule\n    {head} \\\\\n    \\midrule\n{body}\n    \\bottomrule\n"
            "  \\end{tabular}"
        )

    def markdown(self) -> str:
        """A pipe table, and the note below it."""
        marks = {"left": ":--", "right": "--:", "center": ":-:"}
        shown = self.printed()
        lines = [
            "| " + " | ".join(markdown(column.title) for column, _ in shown) + " |",
            "|" + "|".join(marks[column.align] for column, _ in shown) + "|",
            *("| " + " | ".join(map(_markdown_cell, cells)) + " |" for cells in _rows(shown)),
        ]
        return "\n".join(lines) + "\n" + (f"\n{markdown(self.notes)}\n" if self.notes else "")

    def typst(self) -> str:
        """Alignments, titles and cells as the arguments of a call in the paper's source."""
        shown = self.printed()
        aligns = ", ".join(column.align for column, _ in shown)
        heads = ", ".join(f"[{typst(column.title)}]" for column, _ in shown)
        cells = "".join(f"  {', '.join(map(_typst_cell, cells))},\n" for cells in _rows(shown))
        return f"({aligns},), ({heads},),\n{cells}"

    def html(self) -> str:
        """A table in a region that scrolls, for the page and its style sheet; nothing where it has no rows."""
        if not self.rows:
            return ""
        body = "".join(f"<tr>{self._html_cells(row)}</tr>\n" for row in self.rows)
        above = f"<caption>{html_text(self.caption)}</caption>" if self.title else ""
        below = f'<p class="note">{html_text(self.notes)}</p>' if self.notes else ""
        label = html_text(self.title.rstrip(".") or self.key)
        return (
            f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">'
            f"<table>{above}{self._html_head()}\n<tbody>\n{body}</tbody></table></div>{below}"
        )

    def html_standalone(self) -> str:
        """A table with its own style, for a notebook."""
        shown = self.printed()
        base = "padding:2px 10px"
        heads = "".join(
            f'<th style="{base};border-bottom:1px solid #999;text-align:{c.align}">{html_text(c.title)}</th>'
            for c, _ in shown
        )
        rows = "".join(
            "<tr>"
            + "".join(
                f'<td style="{base};text-align:{c.align}">{html_text(cell.whole)}</td>'
                for (c, _), cell in zip(shown, cells, strict=True)
            )
            + "</tr>"
            for cells in _rows(shown)
        )
        style = "border-collapse:collapse;font-variant-numeric:tabular-nums"
        return f'<table style="{style}"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>'

    def _html_head(self) -> str:
        if not any(column.title for column in self.columns if column.printed):
            return ""
        cells = []
        for columns in _stacked([(column, column) for column in self.columns]):
            titles = (column.small_title for column in columns if not column.prefix)
            title = html_text(", ".join(filter(None, titles)))
            cells.append(f"<th{_class('n' if columns[0].align == 'right' else '')}>{title}</th>")
        return f"<thead><tr>{''.join(cells)}</tr></thead>"

    def _html_cells(self, row: Row) -> str:
        """The cells of a row, the first one as its head."""
        stacks = _stacked([(column, (column, cell)) for column, cell in zip(self.columns, row, strict=True)])
        return "".join(_html_cell(*cells, first=number == 0) for number, cells in enumerate(stacks))


#: A text of more characters than this, with spaces, is a sentence to a terminal, and may wrap.
_SENTENCE = 24
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b\u2028\u2029\ufeff]+")


def _cell(value: Value | Cell) -> Cell:
    return value if isinstance(value, Cell) else Cell.of(value)


T = TypeVar("T")


def _stacked(items: Iterable[tuple[Column, T]]) -> list[list[T]]:
    """What is printed, with the columns *below* another in one list with it."""
    stacks: list[list[T]] = []
    for column, item in items:
        if column.printed and column.below and stacks:
            stacks[-1].append(item)
        elif column.printed:
            stacks.append([item])
    return stacks


def _rows(shown: list[tuple[Column, list[Cell]]]) -> Iterable[tuple[Cell, ...]]:
    return zip(*(cells for _, cells in shown), strict=True)


def html_text(text: str) -> str:
    """Text as HTML shows it: no markup, no control character."""
    return escape(printable(text))


def _terminal(text: str) -> str:
    """Text without the control characters that a terminal would obey; line breaks stay."""
    return "\n".join(_CONTROL.sub(" ", line) for line in plain(text).split("\n"))


def _csv(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else repr(value)
    text = printable(str(value))
    return f"'{text}" if text.startswith(tuple("=+-@\t\r\n")) and not isinstance(value, int) else text


#: Letters of a cell from which a paper's table breaks it, and letters of a name on one line of a cell.
_LONG = 60
_LINE = 32
_GREEK = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi omega"
_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "#": r"\#",
    "$": r"\$",
    "%": r"\%",
    "&": r"\&",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "`": r"\textasciigrave{}",
    MINUS: "$-$",
    DASH: r"\textendash{}",
    NARROW: r"\,",
    "…": r"\ldots{}",
    "√": r"$\surd$",
    "◀": r"$\triangleleft$",
    "▶": r"$\triangleright$",
    "↕": r"$\updownarrow$",
    "○": r"$\circ$",
    "⁻": r"\textsuperscript{$-$}",
    "\N{NO-BREAK SPACE}": "~",
    **{sign: rf"\textsuperscript{{{digit}}}" for digit, sign in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
    **{sign: rf"\textsubscript{{{digit}}}" for digit, sign in enumerate("₀₁₂₃₄₅₆₇₈₉")},
    **{
        sign: rf"$\{name}$"
        for sign, name in zip(
            "±×·÷≤≥≠≈≡∝∞∈∑∏∂∇⊙←→↔⇒αβγδεζηθικλμνξπρστυφχψωςΓΔΘΛΞΠΣΥΦΨΩ",
            "pm times cdot div leq geq neq approx equiv propto infty in sum prod partial nabla odot leftarrow rightarrow "
            f"leftrightarrow Rightarrow {_GREEK} varsigma "
            "Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega".split(),
            strict=True,
        )
    },
}
#: What pdflatex's usual fonts have: ASCII, nearly all of Latin-1 and Latin Extended-A, and the signs of printing.
_LATEX_LETTERS = re.compile("[ -~¡-ĥĨ-ķĹ-ľŁ-ňŊ-ťŨ-žȘ-ț‐-―‘-‚“-„†-•‰‹›€™]")


#: What has this many letters without a space needs places where its line may end.
_LONG_NAME = re.compile(r"(\S{24,})")
_WORD = re.compile(r"\W*\w[^\W\d_A-Z]+\W*")
_SEAM = re.compile(r"(?<=[-_./:,=])|(?<=[a-z])(?=[A-Z])|(?=U\+[0-9A-F]{4})")


def _parts(name: str) -> list[str]:
    """A name cut where a line may end: behind its signs, at capitals, and within what is long without either."""
    return [chunk for part in _SEAM.split(name) for chunk in re.findall(".{1,8}" if len(part) > 14 else ".+", part)]


def _code_parts(text: str) -> list[str]:
    """Code with every long name in it cut."""
    pieces = enumerate(_LONG_NAME.split(text))
    return [part for place, piece in pieces for part in (_parts(piece) if place % 2 else [piece]) if part]


def _seamed(text: str, escape: Callable[[str], str], seam: str) -> str:
    """Escaped text with *seam* wherever a long name may be broken, and soft hyphens in words too long for a dictionary."""

    def broken(piece: str) -> str:
        if _WORD.fullmatch(piece):
            return escape("\N{SOFT HYPHEN}".join(re.findall(".{1,12}", piece)) if len(piece) > 30 else piece)
        return seam.join(map(escape, _parts(piece)))

    return "".join(broken(piece) if place % 2 else escape(piece) for place, piece in enumerate(_LONG_NAME.split(text)))


_LATEX_SEAM = r"\allowbreak{}"


def latex(text: str) -> str:
    """Text escaped for LaTeX. Signs that pdflatex lacks are printed as what they are made of, else by number."""
    return _seamed(unicodedata.normalize("NFC", _CONTROL.sub(" ", text)), _latex_text, _LATEX_SEAM)


def latex_code(text: str) -> str:
    """A name or a command in the typewriter face; its line may end behind any dash, dot and slash."""
    plain = unicodedata.normalize("NFC", _CONTROL.sub(" ", text))
    parts = [short for part in _code_parts(plain) for short in re.split(r"(?<=[-./:])", part) if short]
    return rf"\texttt{{{_LATEX_SEAM.join(map(_latex_text, parts))}}}"


def _latex_text(text: str) -> str:
    return re.sub(r"([-,.'])(?=\1)", r"\1{}", "".join(map(_latex_sign, text)))  # --, '', ,, would become one sign


def _latex_sign(sign: str) -> str:
    if sign in _LATEX:
        return _LATEX[sign]
    if _LATEX_LETTERS.match(sign):
        return sign
    parts = unicodedata.normalize("NFKD", sign)
    if parts != sign:
        return "".join(map(_latex_sign, parts))
    if unicodedata.combining(sign):
        return ""
    return rf"\texttt{{U+{ord(sign):04X}}}\allowbreak{{}}"


#: Accents by their combining sign, and letters that are not made of another.
_ACCENTS = dict(
    zip("\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0327\u0328", "`'^~=u.\"rHvck", strict=True)
)
_LETTERS = dict(zip("łŁøØæÆœŒßđĐðÐþÞı", "l L o O ae AE oe OE ss dj DJ dh DH th TH i".split(), strict=True))  # noqa: SIM905


def bibtex(references: str) -> str:
    """BibTeX entries in ASCII where it has a way: bibtex takes a name's initial by the byte. Addresses stay as they are."""
    kept = re.split(r"(\b(?:url|doi)\s*=\s*(?:\{[^{}]*\}|\"[^\"]*\"))", references)
    for place in range(0, len(kept), 2):
        spelled = "".join(map(_bibtex_letter, unicodedata.normalize("NFC", kept[place])))
        kept[place] = re.sub(r"(?<!\\)([&#%])", r"\\\1", spelled)
    return "".join(kept)


def _bibtex_letter(sign: str) -> str:
    base, *marks = list(unicodedata.normalize("NFD", sign))
    if sign in _LETTERS:
        return rf"{{\{_LETTERS[sign]}}}"
    if base.isascii() and len(marks) == 1 and (accent := _ACCENTS.get(marks[0])):
        return rf"{{\{accent}{base}}}" if not accent.isalpha() else rf"{{\{accent}{{{base}}}}}"
    return sign


#: The embeddings in a formula, as LaTeX and Typst escape them. A formula is what a person wrote into a study file, so they
#: are found in its text; nothing else in it prints in another way than it is typed.
_EMBEDDING = re.compile(r"\bE\\_(tok|pos)\b")


def _folded(text: str, align: Align = "left", *, code: bool = False) -> str:
    """A long name on several lines of a cell, for the columns of LaTeX break no text; nothing where it is not long."""
    if len(max(text.split(), key=len, default="")) <= _LINE:
        return ""
    lines = [""]
    for part in _code_parts(text):
        if lines[-1] and len(lines[-1]) + len(part.rstrip()) > _LINE:
            lines.append("")
        lines[-1] += part
    shown = r"\\".join(latex_code(line.strip()) if code else latex(line.strip()) for line in lines)
    place = "t" if code else "b"
    return rf"\begin{{tabular}}[{place}]{{@{{}}{align[0]}@{{}}}}{shown}\end{{tabular}}"


def _latex_cell(cell: Cell) -> str:
    text = (_folded(cell.text, code=True) or latex_code(cell.text)) if cell.code else latex(cell.text)
    text = _EMBEDDING.sub(r"$E_{\\mathrm{\1}}$", text) if cell.formula else text
    text = rf"\textbf{{{text}}}" if cell.strong else text
    return text + (f" ({latex(cell.note)})" if cell.note else "")


#: Signs that mean something to Typst in text; a backslash makes them plain.
_TYPST = re.compile(r"([\\*_#$@<>`\[\]~/\"'=+\-{}|])")


#: Where a name may break. Without a width it would be no place to break; a sign without one would be copied with the name.
_TYPST_SEAM = "#h(0.01pt)"
#: What Typst's own fonts have, as far as the font of figures does too, and signs of formulas.
_TYPST_SIGNS = frozenset(
    re.findall(
        "[ -~\u00a0-\u02ff\u0300-\u0304\u0306-\u030c\u0327\u0328\u0370-\u0377\u037a-\u037f\u0384-\u038a\u038c\u038e-\u03a1"
        "\u03a3-\u0482\u048a-\u04ff\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45"
        "\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u2009-\u200a\u2010-\u2027\u202f-\u2040\u2044-\u2052\u2060\u2070"
        "\u2071\u2074-\u208e\u2090-\u209c\u20a0-\u20c0\u2100-\u211e\u2126-\u2151\u2153-\u2184\u2190-\u2246\u2248-\u22ab\u22ad-\u23ff"
        "\u2460-\u25cb\u25cd-\u2606\u2609-\u262f\u2638-\u268b\u270c-\u2714\u2717-\u2726\u27b1-\u2b73]",
        "".join(map(chr, range(0x2B74))),
    )
)


def typst(text: str) -> str:
    """Text escaped for Typst."""
    return _seamed(typst_signs(text), _typst_text, f"{_TYPST_SEAM};")


def _typst_text(text: str) -> str:
    escaped = _TYPST.sub(r"\\\1", text)
    escaped = re.sub(r"(?<=\.)(?=\.)", r"\\", escaped)  # three dots would become one sign
    escaped = re.sub(r"(?<=\bnats\\/)(?=token)|(?<=\bbits\\/)(?=byte)", "\u2060", escaped)  # a unit stays on its line
    return re.sub(r"^(\s*\d+)\.", r"\1\\.", escaped)


def typst_signs(text: str) -> str:
    """Text in signs that Typst's own fonts have."""
    return spelled(unicodedata.normalize("NFC", _CONTROL.sub(" ", text)), _TYPST_SIGNS)


def typst_code(text: str) -> str:
    """A name or a command in the typewriter face, with the places where its line may end."""
    parts = [typst_string(part) for part in _code_parts(typst_signs(text))]
    return _TYPST_SEAM.join(f"#raw({part})" for part in parts or ['""'])


def typst_string(text: str) -> str:
    """Text as a string of Typst's code."""
    return '"' + _CONTROL.sub(" ", text).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _typst_cell(cell: Cell) -> str:
    text = typst_code(cell.whole) if cell.code else typst(cell.whole)
    text = _EMBEDDING.sub(r'$E_"\1"$', text) if cell.formula else text
    return f"[#strong[{text}]]" if cell.strong else f"[{text}]"


_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~$&!])")


def markdown(text: str) -> str:
    """Text escaped for Markdown, on one line."""
    return _MARKDOWN.sub(r"\\\1", _CONTROL.sub(" ", text))


def _markdown_cell(cell: Cell) -> str:
    text = _CONTROL.sub(" ", cell.text)
    text = f"`{text}`" if cell.code and "`" not in text and "|" not in text else markdown(text)
    text = f"**{text}**" if cell.strong else text
    return text + (f" ({markdown(cell.note)})" if cell.note else "")


def _html_cell(top: tuple[Column, Cell], *below: tuple[Column, Cell], first: bool) -> str:
    column, cell = top
    text = html_text(cell.text)
    text = f"<b>{text}</b>" if cell.strong else text
    asides = [(cell.note, "")]
    asides += [(f"{under.prefix} {it.whole}".strip(), it.tone) for under, it in below if it.text not in ("", DASH)]
    text += "".join(f"<small{_class(tone)}>{html_text(aside)}</small>" for aside, tone in asides if aside)
    names = [*(["n"] if column.align == "right" else []), *([cell.tone] if cell.tone else [])]
    tag, scope = ("th", ' scope="row"') if first else ("td", "")
    return f"<{tag}{scope}{_class(*names)}>{text}</{tag}>"


def _class(*names: str) -> str:
    return f' class="{html_text(" ".join(names))}"' if any(names) else ""
