"""Tables: CSV holds the numbers of analysis.json unrounded, LaTeX and Markdown take any text, nothing is from elsewhere."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from ablationlab.analysis import wording
from ablationlab.core.errors import RecordError, StorageError
from ablationlab.core.format import printable
from ablationlab.pipeline import conclude
from ablationlab.records.analysis import TunedMinimum
from ablationlab.records.results import Results
from ablationlab.report.notebook import StudyResults
from ablationlab.report.table import Cell, Column, Table, latex, markdown
from ablationlab.report.tables import write_tables
from ablationlab.report.tables.comparisons import comparison_table
from ablationlab.report.tables.setup import hash_table
from ablationlab.report.tables.sweeps import rate_table
from analysis.builder import build, seal_again, study
from analysis.verdict.maker import comparison as made_comparison
from report.maker import sweep

EVIL = r"a_b & 50% #1 ~x^2 {y} \z $m$ <t> |p| `q`"


def made(folder: Path, **options: object) -> Path:
    build(folder, **options)
    conclude(folder)
    write_tables(Results.open(folder), folder)
    return folder


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_csv_holds_the_analysis_unrounded(tmp_path):
    folder = made(tmp_path)
    analysis = json.loads((folder / "analysis.json").read_text())
    rows = {row["id"]: row for row in rows_of(folder / "tables" / "effects.csv")}
    assert rows.keys() == {one["id"] for one in analysis["comparisons"]}
    for one in analysis["comparisons"]:
        row = rows[one["id"]]
        for key, name in (("estimate", "delta"), ("p_adjusted", "p_adjusted"), ("baseline", "reference_mean")):
            assert (float(row[key]) if row[key] else None) == one[name]
        interval = one["deciding"] or one["intervals"][one["interval"]]
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


def test_what_is_written_is_one_table_of_effects_pairs_and_runs(tmp_path):
    folder = made(tmp_path)
    assert {path.name for path in (folder / "tables").iterdir()} == {
        "effects.csv",
        "effects.md",
        "pairs.csv",
        "runs.csv",
    }
    text = (folder / "tables" / "effects.md").read_text()
    assert text.count("\n| ") == len(rows_of(folder / "tables" / "effects.csv")) + 1
    assert str(tmp_path) not in text


def test_the_answer_and_the_hypotheses_stand_in_eighty_columns_once(tmp_path):
    asked = {"name": "H0", "statement": "No norm changes the loss.", "rule": "no-change", "metric": "validation_loss"}
    regimes = {"hot": {"training": {"lr": 0.01}}}
    folder = made(tmp_path, made=study(variants=["none", "layernorm", "rmsnorm"], regimes=regimes, hypotheses=[asked]))
    results = Results.open(folder)
    lines = repr(StudyResults(results)).splitlines()
    assert max(map(cell_len, lines)) <= 80
    for judged in results.verdict.verdicts:
        if judged.label == "registered":
            rows = [line for line in lines if line.split()[:1] == [judged.variant]]
            assert [judged.answer.said in row for row in rows] == [True]
    assert any(f"H0 {results.verdict.hypotheses['H0'].status}" in line for line in lines)
    rows = [row for row in rows_of(folder / "tables" / "effects.csv") if row["advice"]]
    stored = {(row["variant"], row["regime"]): row["answer"] for row in rows}
    assert stored == {(judged.variant, judged.regime): judged.answer for judged in results.verdict.verdicts}


def test_the_same_records_give_the_same_tables(tmp_path):
    folder = made(tmp_path)
    before = {path: path.read_bytes() for path in (folder / "tables").iterdir()}
    write_tables(Results.open(folder), folder)
    assert before == {path: path.read_bytes() for path in before}


def test_markup_in_names_stays_text(tmp_path):
    folder = made(tmp_path, made=study(name=f"x {EVIL}", question=EVIL))
    assert markdown(EVIL) in (folder / "tables" / "effects.md").read_text()
    table = Table("t", EVIL, (Column("k", EVIL),), ((Cell.of(EVIL),), (Cell.name(EVIL),)))
    text = table.latex()
    assert not re.findall(r"(?<!\\)[#%_&](?!\\)", re.sub(r"% Needs.*\n|\\[#%_&]", "", text))
    assert table.markdown().count("\n") == 4
    assert [len(re.split(r"(?<!\\)\|", line)) for line in table.markdown().splitlines()] == [3, 3, 3, 3]


@given(st.text())
def test_latex_text_is_balanced_and_free_of_commands(text):
    shown = latex(text)
    plain = re.sub(r"\\(text\w+\{[^{}]*\}|[{}#$%&_,])", "", shown)
    plain = re.sub(r"\$-\$|(?<=[-,.'])\{\}|\\(allowbreak|ldots)\{\}|\$\\[a-zA-Z]+\$", "", plain)
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
    _, row = list(csv.reader(io.StringIO(table.csv(), newline="")))
    for value, found in zip(values, row, strict=True):
        if isinstance(value, bool) or value is None:
            assert found == {True: "true", False: "false", None: ""}[value]
        elif isinstance(value, str):
            assert found in (printable(value), f"'{printable(value)}")
        else:
            assert type(value)(found) == value


def test_a_text_that_a_spreadsheet_would_compute_is_disarmed():
    table = Table("t", "", (Column("c", ""),), ((Cell.of("=1+1"),), (Cell.of("@x"),), (Cell.of(-1.5),)))
    assert table.csv().splitlines() == ["c", "'=1+1", "'@x", "-1.5"]


def test_an_empty_text_stays_empty_in_csv():
    columns = (Column("c", ""), Column("d", ""))
    table = Table("t", "", columns, ((Cell.of("x"), Cell.of("")),))
    assert table.csv().splitlines() == ["c,d", "x,"]


def test_what_is_missing_or_stale_is_refused(tmp_path):
    build(tmp_path)
    with pytest.raises(RecordError, match=r"analysis\.json and verdict\.json missing"):
        write_tables(Results.open(tmp_path), tmp_path)
    conclude(tmp_path)
    path = tmp_path / "runs" / "default-none-s1" / "result.json"
    record = json.loads(path.read_text())
    record["metrics"]["validation_loss"] = 9.0
    path.write_text(json.dumps(record))
    seal_again(tmp_path)
    with pytest.raises(RecordError, match=r"runs/default-none-s1/seal\.json is not the one that analysis\.json names"):
        write_tables(Results.open(tmp_path), tmp_path)


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    folder = made(tmp_path / "results")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        write_tables(Results.open(folder), tmp_path / "file")


SAMPLE = Table(
    "sample",
    "Two arms. Means over seeds.",
    (
        Column("variant", "Variant"),
        Column("reference", printed=False),
        Column("mean", "Mean", "right"),
        Column("interval", "Interval", "right", below=True),
        Column("flops", "FLOPs", "right"),
    ),
    (
        (Cell.name("<a>"), Cell.of("none"), Cell.of(1.25, "1.25", note="nats"), Cell.of(None, "[1, 2]"), Cell.of(3)),
        (Cell.name("b"), Cell.of("none"), Cell.of(-0.5, "−0.50", tone="bad"), Cell.of(None), Cell(4, "4", strong=True)),
    ),
    note="A *note*.",
)


def test_six_forms_of_one_table():
    assert SAMPLE.csv().splitlines() == ["variant,reference,mean,interval,flops", "<a>,none,1.25,,3", "b,none,-0.5,,4"]
    assert SAMPLE.markdown().splitlines() == [
        "| Variant | Mean | Interval | FLOPs |",
        "|:--|--:|--:|--:|",
        r"| `<a>` | 1.25 (nats) | \[1, 2\] | 3 |",
        "| `b` | −0.50 | – | **4** |",
        "",
        r"A \*note\*.",
    ]
    assert r"\texttt{b} & $-$0.50 & \textendash{} & \textbf{4} \\" in SAMPLE.latex()
    assert '[#raw("b")], [−0.50], [–], [#strong[4]],' in SAMPLE.typst()
    html = SAMPLE.html()
    assert '<th class="n">mean, interval</th>' in html
    assert '<th scope="row">&lt;a&gt;</th><td class="n">1.25<small>nats</small><small>[1, 2]</small></td>' in html
    assert '<td class="n bad">−0.50</td>' in html
    assert "<td" in SAMPLE.html_standalone()
    console = Console(width=80, file=io.StringIO(), highlight=False)
    console.print(SAMPLE.terminal())
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    assert lines[1:4] == [
        ["variant", "mean", "interval", "FLOPs"],
        ["<a>", "1.25", "(nats)", "[1,", "2]", "3"],
        ["b", "−0.50", "–", "4"],
    ]


def test_columns_that_are_not_printed_stay_in_csv():
    assert SAMPLE.without("mean").csv() == SAMPLE.csv() == SAMPLE.only("mean").csv()
    assert "| Variant | Interval | FLOPs |" in SAMPLE.without("mean").markdown()
    assert SAMPLE.first(1)[0].rows == SAMPLE.rows[:1]
    assert [SAMPLE.first(most)[1] for most in (1, 2, 5)] == [1, 0, 0]


TAGS = {"div", "table", "caption", "span", "thead", "tr", "th", "tbody", "td", "small", "a", "b"}


@given(st.text())
def test_html_holds_no_markup_of_a_cell(text):
    table = Table("t", text, (Column("k", text),), ((Cell.of(text),), (Cell(text, text, True, True),)))
    for made in (table.html(), table.html_standalone()):
        tags = re.findall(r"<[^>]*>", made)
        assert len(re.findall("[<>]", made)) == 2 * len(tags)
        assert {re.match(r"</?(\w+)", tag)[1] for tag in tags} <= TAGS


def test_a_region_goes_by_the_whole_title_and_not_by_what_is_explained_behind_it():
    table = dataclasses.replace(Table.simple("scale-0.5 − none", ["x"], [(1,)]), about="x: of one run. A guess.")
    page = table.html()
    assert 'aria-label="scale-0.5 − none"' in page
    assert "<caption>scale-0.5 − none x: of one run. A guess.</caption>" in page


def test_embeddings_are_set_as_signs_in_formulas_alone():
    table = Table.simple("", ["arm", "formula"], [(Cell.name("E_tok"), Cell("", "LN(E_tok + E_pos)", formula=True))])
    assert r"\texttt{E\_tok} & LN($E_{\mathrm{tok}}$ + $E_{\mathrm{pos}}$) \\" in table.tabular()
    assert """[#raw("E_tok")], [LN($E_"tok"$ \\+ $E_"pos"$)]""" in table.typst()


def test_a_sweep_that_chooses_no_rate_has_no_column_for_one():
    whole = sweep()
    chosen, none = (rate_table(whole.model_copy(update={"best": best})) for best in (whole.best, ()))
    assert "Chosen rate" in chosen.markdown()
    assert "Chosen" not in none.markdown()
    assert none.title == "Learning-rate sensitivity."


def test_one_run_is_not_said_to_equal_itself(tmp_path):
    build(tmp_path)
    results = Results.open(tmp_path)
    assert "equal" in hash_table(results).markdown()
    alone = dataclasses.replace(results, runs=tuple(results.runs)[:1])
    assert "equal" not in hash_table(alone).markdown()


def test_a_p_that_is_not_adjusted_or_not_there_is_not_one_of_many():
    guard = made_comparison("token_ece", role="guard", correction="none")
    untested = made_comparison("perplexity", p_adjusted=None, role=None)
    table = comparison_table("t", "t", [made_comparison(), guard, untested], 1)
    place = [column.key for column in table.columns].index("family_size")
    assert [row[place].text for row in table.rows] == ["of 2", "not adjusted", ""]


def test_a_rate_at_the_edge_is_told_alike_in_the_table_and_below_it():
    swept = sweep()
    fits = {"status": "ok", "lr": 2e-3, "window": swept.rates, "values": (2.0,)}
    edges = [chosen.model_copy(update={"edge": True}) for chosen in swept.best]
    first = TunedMinimum.model_validate({"variant": edges[0].variant, "minimum": fits})
    swept = swept.model_copy(update={"best": tuple(edges), "minima": (first,)})
    table, notes = rate_table(swept), " ".join(wording.sweep_notes(swept))
    told = {row[0].text: next(cell.note for cell in row if cell.note) for row in table.rows}
    assert told == {chosen.variant: "edge" for chosen in edges}
    assert "fitted to the judging seeds, it lies inside" in notes
