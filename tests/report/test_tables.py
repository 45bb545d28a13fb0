"""Tables: CSV holds the numbers of analysis.json unrounded, LaTeX and Markdown take any text, nothing is from elsewhere."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablationlab.core.errors import RecordError, StorageError
from ablationlab.pipeline import conclude
from ablationlab.report import numbers
from ablationlab.report.loading import load_material
from ablationlab.report.tables import Cell, Column, Table, write_tables
from ablationlab.report.tables.render import latex, markdown, to_csv, to_latex, to_markdown
from analysis.builder import build, study

EVIL = r"a_b & 50% #1 ~x^2 {y} \z $m$ <t> |p| `q`"


def made(folder: Path, **options: object) -> Path:
    build(folder, **options)
    conclude(folder)
    write_tables(load_material(folder), folder)
    return folder


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_csv_holds_the_analysis_unrounded(tmp_path):
    folder = made(tmp_path)
    analysis = json.loads((folder / "analysis.json").read_text())
    rows = {row["id"]: row for row in rows_of(folder / "tables" / "comparisons.csv")}
    assert rows.keys() == {one["id"] for one in analysis["comparisons"]}
    for one in analysis["comparisons"]:
        row = rows[one["id"]]
        for name in ("delta", "delta_sd", "p", "p_adjusted", "variant_mean", "reference_sd"):
            assert (float(row[name]) if row[name] else None) == one[name]
        interval = one["intervals"][one["interval"]]
        assert [float(row[name]) if row[name] else None for name in ("low", "high")] == [
            interval["low"],
            interval["high"],
        ]
        assert row["label"] == one["label"]
    pairs = rows_of(folder / "tables" / "pairs.csv")
    assert len(pairs) == sum(len(one["pairs"]) for one in analysis["comparisons"])
    for row in rows_of(folder / "tables" / "runs.csv"):
        record = json.loads((folder / "runs" / row["run"] / "result.json").read_text())
        assert float(row["validation_loss"]) == record["metrics"]["validation_loss"]


def test_every_table_is_there_in_both_forms(tmp_path):
    folder = made(tmp_path)
    names = {path.stem for path in (folder / "tables").iterdir()}
    assert {"verdicts", "arms", "comparisons", "registered", "stability", "criteria", "power", "runs"} <= names
    for name in names:
        text = (folder / "tables" / f"{name}.tex").read_text()
        assert text.count(r"\toprule") == text.count(r"\midrule") == text.count(r"\bottomrule") == 1
        columns = len(re.search(r"\\begin\{tabular\}\{(\w+)\}", text)[1])
        body = [line for line in text.splitlines() if line.endswith(r"\\")]
        assert body
        for line in body:
            assert len(re.split(r"(?<!\\)&", line)) == columns


def test_statistics_md_tells_the_whole_analysis(tmp_path):
    folder = made(tmp_path)
    text = (folder / "statistics.md").read_text()
    analysis = json.loads((folder / "analysis.json").read_text())
    for heading in ("Verdict", "Hypotheses", "Criteria", "Registered comparisons", "Stability", "Power", "Every pair"):
        assert f"\n## {heading}" in text
    assert "- Not asked here: H0 and H1a (no tasks in this study); H1b (" in text.replace("\\", "")
    for one in analysis["comparisons"]:
        assert one["id"] in text.replace("\\", "")
        for caveat in one["caveats"]:
            assert caveat["text"] in text.replace("\\", "")
    assert str(tmp_path) not in text


def test_the_same_records_give_the_same_tables(tmp_path):
    folder = made(tmp_path)
    before = {path: path.read_bytes() for path in [*(folder / "tables").iterdir(), folder / "statistics.md"]}
    write_tables(load_material(folder), folder)
    assert before == {path: path.read_bytes() for path in before}


def test_markup_in_names_stays_text(tmp_path):
    folder = made(tmp_path, made=study(name=f"x {EVIL}", question=EVIL))
    assert markdown(EVIL) in (folder / "statistics.md").read_text()
    table = Table("t", EVIL, (Column("k", EVIL),), ((Cell.of(EVIL),), (Cell.name(EVIL),)))
    text = to_latex(table)
    assert not re.findall(r"(?<!\\)[#%_&](?!\\)", re.sub(r"% Needs.*\n|\\[#%_&]", "", text))
    assert to_markdown(table).count("\n") == 4
    assert [len(re.split(r"(?<!\\)\|", line)) for line in to_markdown(table).splitlines()] == [3, 3, 3, 3]


@given(st.text())
def test_latex_text_is_balanced_and_free_of_commands(text):
    shown = latex(text)
    plain = re.sub(r"\\(text\w+\{[^{}]*\}|[{}#$%&_,])", "", shown)
    plain = plain.replace("$-$", "").replace(r"$\pm$", "")
    plain = re.sub(r"\$\\(times|leq|Delta|cdot|pm)\$", "", plain)
    assert not set(plain) & set("\\{}#$%&_^")


@given(
    st.lists(
        st.one_of(st.text(), st.floats(allow_nan=False), st.integers(), st.none(), st.booleans()),
        min_size=1,
        max_size=4,
    )
)
def test_csv_can_be_read_back(values):
    columns = tuple(Column(f"c{i}", "") for i in range(len(values)))
    table = Table("t", "", columns, (tuple(Cell.of(value) for value in values),))
    _, row = list(csv.reader(io.StringIO(to_csv(table), newline="")))
    for value, found in zip(values, row, strict=True):
        if isinstance(value, bool) or value is None:
            assert found == {True: "true", False: "false", None: ""}[value]
        elif isinstance(value, str):
            assert found in (value, f"'{value}")
        else:
            assert type(value)(found) == value


def test_a_text_that_a_spreadsheet_would_compute_is_disarmed():
    table = Table("t", "", (Column("c", ""),), ((Cell.of("=1+1"),), (Cell.of("@x"),), (Cell.of(-1.5),)))
    assert to_csv(table).splitlines() == ["c", "'=1+1", "'@x", "-1.5"]


@pytest.mark.parametrize(
    ("mean", "sd", "expected"),
    [
        (2.48754, 0.003131, "2.4875 ± 0.0031"),
        (1.053, 0.1088, "1.05 ± 0.11"),
        (13.575, None, "13.6"),
        (0.0, 0.0, "0.000 ± 0.000"),
        (1234.5, 56.7, "1,234 ± 57"),
        (None, None, "–"),
    ],
)
def test_a_mean_has_the_digits_of_its_spread(mean, sd, expected):
    assert numbers.mean_sd(mean, sd) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.0003, "0.0003"), (1e-5, "10⁻⁵"), (3e-8, "3×10⁻⁸"), (6.8e12, "6.8×10¹²"), (-2e-7, "−2×10⁻⁷"), (7.0, "7")],
)
def test_settings_are_written_as_powers_of_ten(value, expected):
    assert numbers.setting(value) == expected


@pytest.mark.parametrize(
    ("p", "expected"),
    [(1e-7, "<0.0001"), (0.00031, "0.0003"), (0.0312, "0.031"), (0.58, "0.58"), (1.0, "1.00"), (None, "–")],
)
def test_p_values(p, expected):
    assert numbers.p_value(p) == expected


@given(st.floats(allow_nan=False, allow_infinity=False, width=32), st.integers(0, 6))
def test_rounding_never_signs_a_zero(value, places):
    text = numbers.fixed(value, places, sign=True)
    if not any(sign in text for sign in "123456789"):
        assert text[0] not in "+−-"
    assert "-" not in text
    assert math.isfinite(value)


def test_what_is_missing_or_stale_is_refused(tmp_path):
    build(tmp_path)
    with pytest.raises(RecordError, match=r"analysis\.json and verdict\.json missing"):
        write_tables(load_material(tmp_path), tmp_path)
    conclude(tmp_path)
    path = tmp_path / "runs" / "default-none-s1" / "result.json"
    record = json.loads(path.read_text())
    record["metrics"]["validation_loss"] = 9.0
    path.write_text(json.dumps(record))
    with pytest.raises(RecordError, match=r"validation_loss of default-none-s1 is 9"):
        write_tables(load_material(tmp_path), tmp_path)


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    folder = made(tmp_path / "results")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        write_tables(load_material(folder), tmp_path / "file")
