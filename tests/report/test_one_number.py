"""The same comparison reads the same in terminal, notebook, Markdown, LaTeX and CSV; and in page and paper."""

from __future__ import annotations

import csv
import html
import io
from pathlib import Path

import pytest
from rich.console import Console

from ablationlab.analysis.wording import difference_of
from ablationlab.core.format import MINUS, mean_sd, p_value, plain
from ablationlab.records.analysis import Comparison
from ablationlab.records.results import Results
from ablationlab.report.effects import Effect
from ablationlab.report.notebook import StudyResults
from ablationlab.report.page.build import page_html
from ablationlab.report.paper.compose import document_of, read_template
from ablationlab.report.paper.printing import Typst
from ablationlab.report.tables import tables_of
from ablationlab.report.terminal.answer import AnswerView
from ablationlab.report.terminal.details import details_view
from report.maker import made


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return made(tmp_path_factory.mktemp("one-number"))


@pytest.fixture(scope="module")
def comparison(results: Results) -> Comparison:
    assert results.analysis is not None
    found = results.analysis.comparison("validation_loss", "default", "layernorm", "none")
    assert found is not None
    return found


@pytest.fixture(scope="module")
def effect(results: Results, comparison: Comparison) -> Effect:
    return next(row for row in StudyResults(results).report.effects if row.id == comparison.id)


def media(results: Results) -> dict[str, str]:
    found = StudyResults(results)
    console = Console(width=250, file=io.StringIO(), record=True)
    console.print(AnswerView(found.report))
    everything = Console(width=250, file=io.StringIO(), record=True)
    for part in details_view(results, found.report, ["all"]):
        everything.print(part)
    effects = tables_of(results)[0]
    return {
        "terminal": console.export_text(),
        "everything": everything.export_text(),
        "markdown": plain(effects.markdown()),
        "latex": effects.latex().replace("$-$", MINUS).replace("{}", ""),
        "notebook": plain(html.unescape(found._repr_html_())),
    }


def test_difference_interval_and_answer_are_printed_alike_everywhere(results: Results, effect: Effect):
    for medium, text in media(results).items():
        for printed in (effect.estimate.text, effect.low.text, effect.high.text, effect.word.text):
            assert printed in text, f"{printed} is not in {medium}"


def test_page_and_paper_print_a_difference(results: Results, comparison: Comparison, effect: Effect):
    shown = difference_of(comparison)
    numbers = [shown.delta, shown.interval, p_value(comparison.p_adjusted)]
    numbers += [mean_sd(comparison.reference_mean, comparison.reference_sd)]
    page = plain(html.unescape(page_html(results)))
    assert all(plain(printed) in page for printed in (effect.estimate.text, effect.interval, effect.word.text))
    paper = plain(Typst().document(document_of([results], {}), read_template("layout.typ")).replace("\\", ""))
    for number in map(plain, numbers):
        assert number in paper


def test_the_numbers_of_the_csv_file_are_those_of_the_analysis(results: Results, comparison: Comparison):
    row = next(row for row in csv.DictReader(io.StringIO(tables_of(results)[0].csv())) if row["id"] == comparison.id)
    interval = comparison.main_interval
    assert interval is not None
    exact = (comparison.estimate, interval.low, interval.high, comparison.p_adjusted)
    assert tuple(float(row[key]) for key in ("estimate", "low", "high", "p_adjusted")) == exact


def test_no_module_of_the_report_but_the_catalog_asks_a_registry():
    import ablationlab.report

    folder = Path(ablationlab.report.__file__).parent
    registries = ("records.metrics import METRICS", "study.probes import", "study.variants import", "import PROBES")
    asking = [
        path.relative_to(folder).as_posix()
        for path in sorted(folder.rglob("*.py"))
        if any(registry in path.read_text() for registry in registries)
    ]
    assert asking == ["terminal/catalog.py"]
