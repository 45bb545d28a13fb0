"""Hostile text in every field of a table, and in every free text of a study, for everything that renders a `Table`."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import is_dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from rich.console import Console

from ablationlab.core.format import printable
from ablationlab.records.results import Results
from ablationlab.report.notebook import StudyResults
from ablationlab.report.page.build import page_html
from ablationlab.report.paper.typesetting import compiled
from ablationlab.report.table import Cell, Column, Table
from ablationlab.report.tables.write import tables_of

from .maker import full
from .test_paper import text_of

HTML = "\"><script>alert(1)</script><img src=x onerror=alert(2)>'&amp;"
LATEX = r"\input{/etc/passwd}\write18{id}$x_{1}^{2}$%&#~"
TYPST = '#read("/etc/passwd") $ #sym.alpha $ [*a*] `b` @c <d> \\ #"'
MARKDOWN = "[a](javascript:alert(1)) ![b](x) <b>c</b> `d` | e\n# f\n```\n***"
TERMINAL = "\x1b[31mred\x1b]0;title\x07\x9b31m[bold]x[/bold]"
FORMULAS = ("=HYPERLINK(1)", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1")
EVIL = (HTML, LATEX, TYPST, MARKDOWN, TERMINAL, *FORMULAS)


def hostile(text: str) -> Table:
    """A table with *text* in every field that may hold one."""
    columns = (Column("variant", text), Column(text, text, name=True), Column("below", text, below=True, prefix=text))
    cells = (
        Cell(text, text, code=True, strong=True, note=text),
        Cell.of(text, note=text),
        Cell.of(1.5, text),
    )
    return Table("hostile", text, columns, (cells, (Cell.name(text), Cell.of(None), Cell.of("", text))), note=text)


class Seen(HTMLParser):
    """Every tag with the names of its attributes, and where links lead."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        assert not any(name.startswith("on") for name, _ in attrs), attrs
        for name, value in attrs:
            assert name != "href" or re.match(r"#|data:text/csv;base64,", value or ""), value

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("text", EVIL, ids=range(len(EVIL)))
def test_no_field_of_a_table_says_more_than_its_text(text):
    table, tame = hostile(text), hostile("tame")
    for html in (Table.html, Table.html_standalone):
        seen, calm = Seen(html(table)), Seen(html(tame))
        assert seen.tags == calm.tags
        assert printable(text) in seen.text
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", html(table))
    rows = list(csv.reader(io.StringIO(table.csv(), newline="")))
    assert len(rows) == 3
    assert not [cell for row in rows for cell in row if cell.startswith(tuple("=+-@\t\r\n"))]
    assert rows[1][0].removeprefix("'") == printable(text)  # `cat` of it tells a terminal nothing
    latex = table.latex()
    for command in (r"\input", r"\write18", "$x_", "%&#"):
        assert command not in latex
    assert len(re.findall(r"(?<!\\)&", latex)) == len(re.findall(r"(?<!\\)&", tame.latex()))
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(table.markdown())
    kinds = {kind for token in tokens for kind in (token.type, *(child.type for child in token.children or ()))}
    assert not kinds & {"html_block", "html_inline", "link_open", "image", "heading_open", "fence"}
    assert sum(token.type == "tr_open" for token in tokens) == 3
    out = io.StringIO()
    Console(file=out, force_terminal=False, width=400).print(table.terminal())
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", out.getvalue())


@pytest.mark.parametrize("text", [HTML, LATEX, TYPST, MARKDOWN], ids=["html", "latex", "typst", "markdown"])
def test_typst_prints_hostile_text_as_it_is(text, tmp_path):
    source = (
        "#let tabular(aligns, heads, ..cells) = table(columns: heads.len(), ..heads, ..cells.pos())\n"
        f"#tabular({hostile(text).typst()})\n"
    )
    shown = re.sub(r"\s", "", text_of(compiled(source, tmp_path)))
    assert re.sub(r"\s", "", text) in shown


def evil(value: Any, text: str) -> Any:
    """A record with *text* added to every free text of it: what people and plug-ins write."""
    changes = {name: f"{text}{getattr(value, name)}" for name in FREE if hasattr(value, name)}
    return replace(value, **changes) if is_dataclass(value) else value.model_copy(update=changes)


#: Fields that hold what people and plug-ins write.
FREE = (
    "question",
    "statement",
    "meaning",
    "about",
    "formula",
    "source",
    "platform",
    "processor",
    "device_name",
    "unit",
)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return full(tmp_path_factory.mktemp("calm"))


def spoilt(results: Results, text: str) -> Results:
    plan, analysis = results.plan, results.analysis
    assert plan is not None
    assert analysis is not None
    study = evil(plan.study, text).model_copy(update={"name": text})
    changes = {
        "study": study,
        "lab_corpus": evil(plan.corpus, text).model_copy(update={"name": text}),
        "variants": {name: evil(declaration, text) for name, declaration in plan.variants.items()},
        "metrics": {name: evil(metric, text) for name, metric in plan.metrics.items()},
        "probes": {name: evil(probe, text) for name, probe in plan.probes.items()},
        "environment": evil(plan.environment, text),
        "execution": evil(plan.execution, text),
    }
    suite = results.suite
    assert suite is not None
    suite = suite.model_copy(update={"tasks": tuple(evil(task, text) for task in suite.tasks)})
    renamed = analysis.model_copy(update={"study": text, "question": text})
    return results.changed(plan=plan.model_copy(update=changes), analysis=renamed, suite=suite, stale=(), problems=())


def test_no_free_text_of_a_study_says_more_on_page_tables_and_notebook(calm, tmp_path: Path):
    before = Seen(page_html(calm))
    assert any(tag == "script" for tag, _ in before.tags)
    bad = spoilt(calm, HTML + MARKDOWN + TERMINAL)
    page = page_html(bad)
    tags = [tag for tag, _ in Seen(page).tags]
    assert "img" not in tags
    assert tags.count("script") == [tag for tag, _ in before.tags].count("script")
    for formula in FORMULAS[:4]:
        for table in tables_of(spoilt(calm, formula)):
            cells = [cell for row in csv.reader(io.StringIO(table.csv(), newline="")) for cell in row]
            numbers = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?|-inf")
            assert not [c for c in cells if c.startswith(tuple("=+-@")) and not numbers.fullmatch(c)]
    kinds = {
        kind
        for token in MarkdownIt("commonmark", {"html": True}).enable("table").parse(tables_of(bad)[0].markdown())
        for kind in (token.type, *(child.type for child in token.children or ()))
    }
    assert not kinds & {"html_block", "html_inline", "image", "link_open"}
    notebook = StudyResults(bad)._repr_html_()
    assert "img" not in [tag for tag, _ in Seen(notebook).tags]
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", page + notebook)
