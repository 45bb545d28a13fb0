"""A table as values with their texts, and its three plain forms: CSV, LaTeX, Markdown."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ablationlab.report.numbers import MINUS, NONE, THIN, count

Value = str | float | int | bool | None


@dataclass(frozen=True)
class Cell:
    """A value as it is recorded, and as it is printed."""

    value: Value
    text: str
    code: bool = False  # a name, set in the typewriter face

    @classmethod
    def of(cls, value: Value, text: str | None = None) -> Cell:
        """A cell; without a text, the value's own."""
        return cls(value, text if text is not None else NONE if value is None else str(value))

    @classmethod
    def name(cls, value: str) -> Cell:
        """A name of a variant, a run, a regime."""
        return cls(value, value, code=True)


@dataclass(frozen=True)
class Column:
    """A column: *key* heads it in CSV, *title* on paper; *more* keys are columns of CSV alone, filled by a cell's tuple."""

    key: str
    title: str
    align: Literal["left", "right", "center"] = "left"


@dataclass(frozen=True)
class Table:
    """Columns, rows, and what stands above and below. ``full`` holds the unrounded rows for CSV where they differ."""

    name: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    csv_columns: tuple[str, ...] = ()
    csv_rows: tuple[tuple[Value, ...], ...] = ()

    def without(self, *keys: str) -> Table:
        """The same without some of its printed columns."""
        kept = [i for i, column in enumerate(self.columns) if column.key not in keys]
        return Table(
            self.name,
            self.caption,
            tuple(self.columns[i] for i in kept),
            tuple(tuple(row[i] for i in kept) for row in self.rows),
            self.note,
            self.csv_columns,
            self.csv_rows,
        )


def row_limit(table: Table, most: int) -> tuple[Table, str]:
    """The first rows of a long table, and a sentence on the rest (empty if nothing was left out)."""
    left = len(table.rows) - most
    if left <= 0:
        return table, ""
    short = Table(
        table.name, table.caption, table.columns, table.rows[:most], table.note, table.csv_columns, table.csv_rows
    )
    return short, f"The other {count(left)} rows are in tables/{table.name}.csv."


def to_csv(table: Table) -> str:
    """RFC 4180 with full numbers; a formula-like text (=, +, -, @) is quoted with an apostrophe, as spreadsheets ask."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(table.csv_columns or [column.key for column in table.columns])
    rows: Sequence[Sequence[Value]] = table.csv_rows or [[cell.value for cell in row] for row in table.rows]
    for row in rows:
        writer.writerow([_plain(value) for value in row])
    return out.getvalue()


def _plain(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else repr(value)
    text = str(value)
    return f"'{text}" if text[:1] in "=+-@\t\r" and not isinstance(value, int) else text


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
    NONE: "--",
    THIN: r"\,",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≤": r"$\leq$",
    "Δ": r"$\Delta$",
    "·": r"$\cdot$",
    **{sign: rf"\textsuperscript{{{plain}}}" for sign, plain in zip("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789", strict=True)},
    "⁻": r"\textsuperscript{$-$}",
    "\N{NO-BREAK SPACE}": "~",
}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def latex(text: str) -> str:
    """Text escaped for LaTeX."""
    return "".join(_LATEX.get(sign, sign) for sign in _CONTROL.sub(" ", text))


def to_latex(table: Table) -> str:
    """A table environment for booktabs; needs nothing else but textcomp's signs (any LaTeX since 2020)."""
    align = "".join(column.align[0] for column in table.columns)
    head = " & ".join(latex(column.title) for column in table.columns)
    body = "\n".join("    " + " & ".join(_latex_cell(cell) for cell in row) + r" \\" for row in table.rows)
    note = f"\n  \\par\\smallskip\\footnotesize {latex(table.note)}" if table.note else ""
    return (
        "% Needs \\usepackage{booktabs}.\n"
        "\\begin{table}\n  \\centering\n"
        f"  \\caption{{{latex(table.caption)}}}\n  \\label{{tab:{table.name}}}\n"
        f"  \\begin{{tabular}}{{{align}}}\n    \\toprule\n    {head} \\\\\n    \\midrule\n{body}\n    \\bottomrule\n"
        f"  \\end{{tabular}}{note}\n\\end{{table}}\n"
    )


def _latex_cell(cell: Cell) -> str:
    return rf"\texttt{{{latex(cell.text)}}}" if cell.code else latex(cell.text)


_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~$&!])")


def markdown(text: str) -> str:
    """Text escaped for Markdown, one line."""
    return _MARKDOWN.sub(r"\\\1", _CONTROL.sub(" ", text))


def to_markdown(table: Table) -> str:
    """A pipe table."""
    marks = {"left": ":--", "right": "--:", "center": ":-:"}
    lines = [
        "| " + " | ".join(markdown(column.title) for column in table.columns) + " |",
        "|" + "|".join(marks[column.align] for column in table.columns) + "|",
    ]
    lines += ["| " + " | ".join(_markdown_cell(cell) for cell in row) + " |" for row in table.rows]
    return "\n".join(lines) + "\n" + (f"\n{markdown(table.note)}\n" if table.note else "")


def _markdown_cell(cell: Cell) -> str:
    text = _CONTROL.sub(" ", cell.text)
    if cell.code and "`" not in text and "|" not in text:
        return f"`{text}`"
    return markdown(text)
