"""The same comparison reads the same in terminal, page, paper, LaTeX, Markdown, notebook and CSV."""

from __future__ import annotations

import csv
import html
import io
from pathlib import Path

import pytest
from rich.console import Console

from ablationlab.analysis.wording import difference_of
from ablationlab.core.format import difference, mean_sd, p_value, plain
from ablationlab.records.analysis import Comparison
from ablationlab.records.results import Results
from ablationlab.report.notebook import Frames
from ablationlab.report.page.build import page_html
from ablationlab.report.paper.build import document_of, read_template
from ablationlab.report.paper.printing import Typst
from ablationlab.report.table import latex
from ablationlab.report.tables import statistics_markdown, tables_of
from ablationlab.report.terminal.analysis import analysis_view
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


def media(results: Results) -> dict[str, str]:
    assert results.analysis is not None
    assert results.verdict is not None
    console = Console(width=250, file=io.StringIO(), record=True)
    for part in analysis_view(results.analysis, results.verdict):
        console.print(part)
    tables = {table.key: table for table in tables_of(results)}
    return {
        "terminal": console.export_text(),
        "page": plain(html.unescape(page_html(results, results.folder))),
        "markdown": plain(statistics_markdown(results)),
        "latex": tables["registered"].latex(),
        "notebook": plain(html.unescape(Frames(results)._repr_html_())),
        "paper": plain(Typst().document(document_of([results], {}), read_template("layout.typ")).replace("\\", "")),
    }


def test_difference_interval_and_p_are_printed_alike_everywhere(results: Results, comparison: Comparison):
    shown = difference_of(comparison)
    numbers = {
        "difference": shown.delta,
        "interval": shown.interval,
        "adjusted p": p_value(comparison.p_adjusted),
        "mean of the reference": mean_sd(comparison.reference_mean, comparison.reference_sd),
        "mean of the variant": mean_sd(comparison.variant_mean, comparison.variant_sd),
    }
    for medium, text in media(results).items():
        for what, number in numbers.items():
            wanted = latex(number) if medium == "latex" else plain(number)
            wanted = wanted.replace("[", "\\[").replace("]", "\\]") if medium == "markdown" else wanted
            assert wanted in text, f"{what} = {wanted} is not in {medium}"


def test_the_numbers_of_the_csv_file_print_as_the_table_does(results: Results, comparison: Comparison):
    table = next(table for table in tables_of(results) if table.key == "comparisons")
    row = next(row for row in csv.DictReader(io.StringIO(table.csv())) if row["id"] == comparison.id)
    delta, low, high = (float(row[key]) for key in ("delta", "low", "high"))
    assert difference(delta, low, high, unit=row["unit"]) == difference_of(comparison)
    assert p_value(float(row["p_adjusted"])) == p_value(comparison.p_adjusted)


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
