"""Tables and figures as Typst markup."""

from __future__ import annotations

from collections.abc import Sequence

from ablationlab.report.paper.typst import Typst, code, escape, literal
from ablationlab.report.table import Table


def table_figure(table: Table, label: str, *, wide: bool = False, note: str = "", caption: str = "") -> Typst:
    """A table with its caption above, over both columns of the page if *wide*."""
    note_text = f" {note}" if note else ""
    text = f"{caption or table.title}{note_text}"
    return Typst(
        f"#figure(\n  kind: table,\n  scope: {literal('parent' if wide else 'column')},\n"
        f"  caption: [{escape(text)}],\n  {table.typst()},\n) <{label}>"
    )


def image_figure(path: str, caption: str, label: str, *, wide: bool = False, alt: str = "") -> Typst:
    """A picture with its caption below."""
    described = f", alt: {literal(alt)}" if alt else ""
    return Typst(
        f"#figure(\n  scope: {literal('parent' if wide else 'column')},\n"
        f"  caption: [{escape(caption)}],\n  image({literal(path)}, width: 100%{described}),\n) <{label}>"
    )


def hash_grid(found: Sequence[tuple[str, str]]) -> Typst:
    """Hashes in full, small, over two lines each where they must."""
    rows = ", ".join(f"[{escape(name)}], [{code(value)}]" for name, value in found)
    return Typst(
        "#block(breakable: false)[#set text(size: 7pt)\n#set par(justify: false)\n"
        f"SHA-256:\n#grid(columns: (auto, 1fr), column-gutter: 0.7em, row-gutter: 0.45em, {rows})]"
    )
