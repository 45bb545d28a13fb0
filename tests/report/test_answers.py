"""What is told of a study: its whole text in golden files, and the record field behind everything that is printed.

ABLATIONLAB_RENEW=1 writes the golden files again; read them when they change.
"""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from ablationlab.core.format import DASH, MINUS, plain
from ablationlab.report.effects import TOO_CLOSE, Effect
from ablationlab.report.forest import forest_html
from ablationlab.report.notebook import StudyResults
from ablationlab.report.slots import Slot, Statement, statements
from ablationlab.report.study_report import StudyReport, study_report
from ablationlab.report.tables.effects import effects_table, guard_table
from ablationlab.report.terminal.answer import AnswerView
from report.answers import KINDS, made

GOLDEN = Path(__file__).parent / "golden"


def report_of(kind: str) -> StudyReport:
    results = made(kind)
    assert results.analysis is not None
    assert results.verdict is not None
    return replace(study_report(results, results.analysis, results.verdict), folder=Path("results/made"))


def printed(kind: str, width: int) -> str:
    return "\n".join(line.plain.rstrip() for line in AnswerView(report_of(kind)).lines(width)) + "\n"


@pytest.mark.parametrize("kind", KINDS)
def test_the_terminal_prints_what_it_printed(kind):
    path = GOLDEN / f"{kind}.txt"
    text = printed(kind, 80)
    if os.environ.get("ABLATIONLAB_RENEW"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("width", [60, 80, 100, 160])
@pytest.mark.parametrize("kind", KINDS)
def test_no_line_is_wider_than_the_terminal(kind, width):
    lines = printed(kind, width).splitlines()
    assert max(map(cell_len, lines)) <= width
    assert len(lines) <= 25 or kind == "regimes" or width < 80


def field(results: Any, at: str) -> Any:
    """What stands at a pointer, in the file itself."""
    name, _, path = at.partition("#/")
    value = json.loads((results.folder / name).read_text())
    for part in path.split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        # A key may itself hold a slash, as ids do; keys of the schema do not.
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value


def number_in(text: str) -> float:
    """A printed number, without its signs."""
    plainly = plain(text).replace(MINUS, "").replace("-", "")
    found = re.fullmatch(r"[×+<]?([\d,.]+)(?:×10(\S+))?(?: %| ([kMGTPE]?)(?:FLOP)?)?", plainly)
    assert found is not None, text
    raised = (found[2] or "0").translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))
    return float(found[1].replace(",", "")) * 10.0 ** (int(raised) + 3 * " kMGTPE".index(found[3] or " "))


def says(slot: Slot, value: Any) -> bool:
    """Whether the text is that value, rounded."""
    if value is None:
        return slot.text in (DASH, TOO_CLOSE)
    if isinstance(value, bool):
        return slot.text == "same"
    if isinstance(value, str):
        return slot.text == value.replace("-", " ") or slot.text == value
    shown = number_in(slot.text)
    exact = {
        "as it is": lambda: abs(value),
        "percent": lambda: 100 * abs(value),
        "change": lambda: abs(100 * math.expm1(value)),
        "factor": lambda: math.exp(value),
    }[slot.scale]()
    if slot.text.startswith("<"):
        return exact < shown
    number = re.sub(r"\D+$", "", slot.text)
    digits = re.sub(r"\D.*", "", number[::-1]) if "." in number else ""
    step = 10.0 ** -len(digits)
    return abs(shown - exact) <= 0.51 * step + 1e-3 * shown


@pytest.mark.parametrize("kind", KINDS)
def test_every_printed_value_is_that_of_the_field_it_names(kind):
    results = made(kind)
    slots = list(report_of(kind).slots())
    assert len(slots) > (5 if kind == "not-measured" else 10)
    wrong = [(slot, value) for slot in slots if not says(slot, value := field(results, slot.at))]
    assert not wrong


@pytest.mark.parametrize("kind", KINDS)
def test_every_form_has_a_row_per_comparison_and_the_numbers_as_recorded(kind):
    results = made(kind)
    report = report_of(kind)
    table = effects_table(report.effects)
    rows = json.loads(table.json())
    assert results.analysis is not None
    by_id = {row["id"]: row for row in rows}
    assert {comparison.id for comparison in results.analysis.comparisons} <= by_id.keys()
    for comparison in results.analysis.comparisons:
        if not comparison.told_by_medians and comparison.estimate is not None:
            assert by_id[comparison.id]["estimate"] == comparison.estimate
        interval = comparison.main_interval
        if interval is not None and not comparison.told_by_medians:
            assert (by_id[comparison.id]["low"], by_id[comparison.id]["high"]) == (interval.low, interval.high)
    assert len(table.csv().splitlines()) == len(rows) + 1
    assert len(guard_table(report.answers).rows) == sum(len(row.guards) for row in report.answers)


@pytest.mark.parametrize("kind", KINDS)
def test_better_is_left_in_the_forest_whichever_way_the_metric_points(kind):
    for row in report_of(kind).answers:
        if row.answer is not None and row.drawn is not None and row.word.text in ("better", "worse"):
            assert (row.drawn[0] < 0) == (row.word.text == "better")
    assert "<script" not in forest_html(report_of(kind))


def test_what_is_not_finished_is_no_inference_in_terminal_and_notebook():
    for shown in (printed("interim", 80), StudyResults(made("interim"))._repr_html_()):
        assert "Interim, not inference: 9 of 15 runs have ended." in shown
    assert "Interim" not in printed("clean", 80) + StudyResults(made("clean"))._repr_html_()


def test_each_clause_is_fixed_and_names_its_slots():
    for code, clause in statements().items():
        names = set(re.findall(r"\{(\w+)\}", clause))
        text = Statement(code, {name: Slot(f"<{name}>") for name in names}).text
        assert all(f"<{name}>" in text for name in names), code
        assert re.fullmatch(r"[^{}]*(\{\w+\}[^{}]*)*", clause), code  # no format, no condition


def test_a_variant_s_name_is_escaped_in_the_forest():
    report = report_of("clean")
    first = report.answers[0]
    hostile = Effect(**{**first.__dict__, "variant": "<img src=x onerror=alert(1)>"})
    text = forest_html(StudyReport(**{**report.__dict__, "answers": (hostile,), "contrasts": ()}))
    assert "<img" not in text
    assert "&lt;img" in text
