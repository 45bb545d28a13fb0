"""The page: its whole text in golden files, its tables and pictures counted, what is damaged or unfinished said.

ABLATIONLAB_RENEW=1 writes the golden files again; read them when they change. tests/report/test_page_seen.py opens it in a
browser.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ablationlab.core.errors import RecordError, StorageError
from ablationlab.core.grouping import grouped
from ablationlab.records.results import Results, Run
from ablationlab.report.colours import BASELINE, HUES, KNOWN, SHAPES, emblems
from ablationlab.report.forest import forest_svg
from ablationlab.report.interval import Axis, Drawn, interval_svg
from ablationlab.report.make import make_report, with_analysis
from ablationlab.report.page.build import page_html, write_page
from ablationlab.report.page.embed import json_for_script, policy
from ablationlab.report.tables import write_tables
from analysis.builder import HYPOTHESES, build, outcome, seal_again, study
from report.answers import KINDS, made
from report.maker import made as small
from report.page_text import page_text, section
from report.test_answers import report_of

EVIL = "<script>alert(1)</script><!-- <img src=x onerror=alert(2)> {{ 7*7 }} \"'&"
GOLDEN = Path(__file__).parent / "golden" / "page"


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_says_what_it_said(kind: str):
    path = GOLDEN / f"{kind}.txt"
    text = re.sub(r"plan [0-9a-f]{8}", "plan 01234567", page_text(page_html(made(kind))))  # it hashes this program, too
    if os.environ.get("ABLATIONLAB_RENEW"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_every_answer_stands_with_its_sign_and_every_picture_has_a_table(kind: str):
    page = page_html(made(kind))
    told = re.sub(r"<[^>]+>", " ", section(page, "answer"))
    for word, rows in grouped(
        (row.word.text, row) for row in report_of(kind).answers if row.answer is not None
    ).items():
        assert len(re.findall(rf"\b{word}\b", told)) >= len(rows)
    figures = re.findall(r"<figure.*?</figure>\s*(?:<details class=.behind.>.*?</details>)?", page, flags=re.S)
    assert figures or not report_of(kind).answers
    for key in re.findall(r'<section id="(\w+)"', page):
        inside = section(page, key)
        assert "<figure" not in inside or "<table" in inside


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_reaches_no_network_and_runs_one_script(kind: str):
    page = page_html(made(kind))
    assert page.count("<script>") == 1
    assert not re.search(r'(?:src|href)="(?!data:|#)', page)
    assert len(page) < 1_500_000


# --- colours and intervals ----------------------------------------------------------------------------------------------


def test_a_variant_has_one_emblem_in_every_study():
    for others in (["rotary"], ["z-loss", "rotary", "muon"], [f"own-{number}" for number in range(9)]):
        found = emblems(["none", "layernorm", *others], "none")
        assert (found["layernorm"].hue, found["layernorm"].shape) == KNOWN["layernorm"]
        assert found["none"] == BASELINE


def test_a_hue_that_is_taken_moves_the_later_variant():
    found = emblems(["none", "layernorm", "no-biases"], "none")
    assert KNOWN["layernorm"][0] == KNOWN["no-biases"][0]
    assert found["layernorm"].hue != found["no-biases"].hue
    crowd = emblems([f"v{number}" for number in range(60)], "v0")
    assert len(set(crowd.values())) == 60


def test_known_variants_have_emblems_that_differ():
    assert len(set(KNOWN.values())) == len(KNOWN)
    assert all(0 < hue < len(HUES) and shape in SHAPES for hue, shape in KNOWN.values())


def test_one_absurd_interval_does_not_flatten_all_others_and_ends_in_an_arrow():
    rows = [(0.1, 0.05, 0.15), (-0.1, -0.2, 0.0), (0.05, -0.1, 0.2), (3.0, 0.1, 16_000.0)]
    axis = Axis.around(rows)
    assert axis is not None
    assert axis.high < 10
    assert "M7 0" in interval_svg(axis, [Drawn(*rows[-1])])
    assert "M7 0" not in interval_svg(axis, [Drawn(*rows[0])])
    assert "M-7 0" in interval_svg(axis, [Drawn(0.1, None, 0.2)])


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_picture_stands_alone(kind: str, dark: bool):
    import xml.etree.ElementTree as tree

    text = forest_svg(report_of(kind), dark=dark)
    root = tree.fromstring(text)
    assert {"width", "height", "viewBox"} <= root.attrib.keys()
    assert "var(" not in text
    shown = " ".join(part.text or "" for part in root.iter() if part.tag.endswith("text"))
    assert all(row.variant in shown for row in report_of(kind).answers)


def test_the_forest_is_written_as_svg_and_png_light_and_dark(tmp_path: Path, cli: Callable[..., tuple[int, str, str]]):
    small(tmp_path)
    code, _, error = cli("report", tmp_path, "--only", "forest")
    assert code == 0, error
    for name in ("forest", "forest-dark"):
        assert (tmp_path / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "@font-face" in (tmp_path / "figures" / f"{name}.svg").read_text()
    assert not (tmp_path / "report.html").exists()


# --- what files and people write ----------------------------------------------------------------------------------------


def _renamed(run: Run) -> Run:
    if run.variant == "none":
        return run
    planned = run.planned.model_copy(update={"variant": "layernorm" + EVIL})
    return Run(planned, run.folder, run.reader, run.locked)


def test_markup_in_names_is_text(tmp_path: Path):
    build(tmp_path, study(name=EVIL, question=f"Is {EVIL} shown?", seeds=[1, 2, 3]))
    results = with_analysis(Results.open(tmp_path), say=lambda text: None)
    assert results.plan is not None
    assert results.analysis is not None
    names = ("none", "layernorm" + EVIL)
    hostile_study = results.plan.study.model_copy(update={"variants": names})
    comparisons = tuple(c.model_copy(update={"variant": names[1]}) for c in results.analysis.comparisons)
    hostile = results.changed(
        runs=tuple(_renamed(run) for run in results.runs),
        plan=results.plan.model_copy(update={"study": hostile_study}),
        analysis=results.analysis.model_copy(update={"variants": names, "comparisons": comparisons, "study": EVIL}),
        stale=(),
    )
    page = page_html(hostile)
    assert page.count("<script") == 2  # the page's own, and the pictures that it saves
    assert "<img" not in page
    assert "&lt;img src=x" in page


def test_json_inside_a_script_cannot_end_it():
    text = json_for_script({"a": "</script><!--<script>\u2028&"})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": "</script><!--<script>\u2028&"}


def test_the_policy_allows_this_script_and_no_network():
    found = policy("let a = 1")
    digest = base64.b64encode(hashlib.sha256(b"let a = 1").digest()).decode()
    assert f"script-src 'sha256-{digest}';" in found
    assert found.startswith("default-src 'none'")
    for word in ("connect-src", "unsafe-eval", "http", "*"):
        assert word not in found
    assert "connect-src 'self'" in policy("let a = 1", live=True)


# --- what is there, and what is not -------------------------------------------------------------------------------------


def test_a_changed_record_changes_the_page(tmp_path: Path):
    small(tmp_path)
    before = page_html(Results.open(tmp_path))
    run = next((tmp_path / "runs").glob("default-layernorm-s1*")) / "result.json"
    record = json.loads(run.read_text())
    record["metrics"]["validation_loss"] = 1.2345
    run.write_text(json.dumps(record))
    seal_again(tmp_path)
    said: list[str] = []
    make_report(tmp_path, parts=["page"], say=said.append)
    after = (tmp_path / "report.html").read_text()
    assert "1.2345" in after
    assert "1.2345" not in before
    assert any("regenerated" in text for text in said)


def test_the_page_shows_the_hypotheses_of_the_study_and_no_others(tmp_path: Path):
    assert 'aria-label="Hypotheses"' not in page_html(small(tmp_path / "plain"))
    text = page_html(small(tmp_path / "asked", hypotheses=HYPOTHESES[2:]))
    table = text[text.index('aria-label="Hypotheses"') :].partition("</table>")[0]
    assert re.findall(r'<th scope="row"[^>]*>([^<]*)</th>', table) == ["H1b"]
    assert "Stability is restored." in table


def test_a_half_finished_study_is_marked_interim(tmp_path: Path):
    build(tmp_path, study(), only=lambda run: run.seed <= 3)
    said: list[str] = []
    make_report(tmp_path, parts=["page", "tables"], say=said.append)
    assert any(text.startswith("Interim: 6 of 10 runs") for text in said)
    page = (tmp_path / "report.html").read_text()
    assert "Interim, not inference: 6 of 10 runs have ended." in section(page, "answer")


def test_a_study_without_a_finished_run_has_a_page(tmp_path: Path):
    build(tmp_path, study(), only=lambda run: False)
    text = make_report(tmp_path, parts=["page"], say=lambda text: None)[0].read_text()
    assert "No run has ended yet" in text


def test_a_damaged_record_is_named_and_the_rest_is_shown(tmp_path: Path):
    build(tmp_path, study())
    broken = sorted((tmp_path / "runs").iterdir())[0]
    (broken / "result.json").write_text("{ not json")
    said: list[str] = []
    written = make_report(tmp_path, parts=["page", "tables", "paper"], say=said.append)
    assert any(f"runs/{broken.name}/result.json" in text for text in said)
    text = written[0].read_text()
    assert f"runs/{broken.name}/result.json" in text
    assert "9 of 10" in text
    assert said[-1] == "No tables and no paper: there is no analysis to print."
    assert sum("`ablationlab analyze`" in text or "ablationlab analyze " in text for text in said) <= 2, said
    assert not any("regenerated" in text for text in said)
    with pytest.raises(RecordError, match=r"cannot be made from these records(?!.*make it with)"):
        write_tables(with_analysis(Results.open(tmp_path), said.append), tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_text(path.read_text().replace('"step":30,', '"step":"x",')),
        lambda path: path.write_text('{"kind": "other"}\n'),
    ],
)
def test_damaged_curves_are_named(tmp_path: Path, damage: Callable[[Path], object]):
    build(tmp_path, study())
    folder = sorted((tmp_path / "runs").iterdir())[0]
    damage(folder / "metrics.jsonl")
    seal_again(tmp_path, courses=False)
    results = Results.open(tmp_path)
    for run in results.runs:
        assert run.curves is not None
    assert list(results.reader.damage) == [f"runs/{folder.name}/metrics.jsonl"]


def test_a_torn_last_line_of_a_run_in_progress_is_no_damage(tmp_path: Path):
    build(tmp_path, study())
    folder = sorted((tmp_path / "runs").iterdir())[0]
    (folder / "result.json").unlink()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 61, "lo')
    assert not Results.open(tmp_path).problems


def test_arms_that_do_not_match_are_refused_on_the_page_too(tmp_path: Path):
    small(tmp_path)
    run = next((tmp_path / "runs").glob("default-layernorm-s1*")) / "run.json"
    record = json.loads(run.read_text())
    run.write_text(json.dumps({**record, "data_order_hash": "another"}))
    seal_again(tmp_path)
    (tmp_path / "analysis.json").unlink()
    text = make_report(tmp_path, parts=["page"], say=lambda text: None)[0].read_text()
    assert "cannot be made from these records" in text
    assert 'class="forest' not in text


def test_what_is_no_results_folder_is_refused(tmp_path: Path):
    with pytest.raises(RecordError, match=r"neither plan\.lock nor analysis\.json"):
        make_report(tmp_path, say=lambda text: None)
    with pytest.raises(RecordError, match="no such folder"):
        make_report(tmp_path / "nowhere", say=lambda text: None)
    (tmp_path / "my.csv").write_text("variant,seed,loss")
    with pytest.raises(RecordError, match=r"a file, not a results folder\. .*: ablationlab analyze .*my\.csv"):
        make_report(tmp_path / "my.csv", say=lambda text: None)
    (tmp_path / "plan.lock").write_text("{}")
    with pytest.raises(RecordError, match=r"plan\.lock"):
        make_report(tmp_path, say=lambda text: None)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path):
    small(tmp_path / "results")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="file"):
        make_report(tmp_path / "results", tmp_path / "file", parts=["page"], say=lambda text: None)


def test_a_table_of_runs_has_a_page(tmp_path: Path):
    from ablationlab.analysis import TableOptions, analyze, read_table
    from ablationlab.analysis.verdict import decide

    rows = ["variant,seed,metric,value"]
    rng = np.random.default_rng(0)
    rows += [f"{v},{s},val_loss,{2 + rng.normal(0, 0.1) + (v == 'b')}" for s in range(5) for v in ("a", "b")]
    (tmp_path / "runs.csv").write_text("\n".join(rows) + "\n")
    options = TableOptions.checked(baseline="a", primary="val_loss", lower=("val_loss",))
    analysis = analyze(read_table(tmp_path / "runs.csv", options))
    analysis.replace(tmp_path / "analysis.json")
    decide(analysis).replace(tmp_path / "verdict.json")
    text = make_report(tmp_path, parts=["page"], say=lambda text: None)[0].read_text()
    assert "exploratory" in section(text, "answer")
    assert "not checked" in section(text, "fair")
    assert "SEALED" not in text


def test_many_runs_still_make_a_page(tmp_path: Path):
    """Of a hundredth of the runs of benchmarks/large_folder.py."""
    seeds = list(range(1, 29))
    build(tmp_path, study(variants=["none", "layernorm", "rmsnorm"], seeds=seeds), outcomes=outcome)
    (page,) = make_report(tmp_path, parts=["page"], say=lambda text: None)
    assert len(Results.open(tmp_path).runs) == 84
    assert page.stat().st_size < 1e6


def test_report_says_what_it_wrote_and_what_is_wrong(tmp_path: Path, cli: Callable[..., tuple[int, str, str]]):
    small(tmp_path / "results")
    code, said, _ = cli("report", tmp_path / "results", "--only", "page", "--out", tmp_path / "there")
    assert (code, (tmp_path / "there" / "report.html").is_file()) == (0, True)
    assert "report.html" in said
    code, _, errors = cli("report", tmp_path)
    assert code == 2
    assert "neither plan.lock nor analysis.json" in errors
    assert "Traceback" not in errors


def test_undecided_variants_of_many_are_one_row_that_opens():
    page = section(page_html(made("undecided")), "answer")
    assert page.count('<details class="grp">') == 1
    assert page[: page.index('<details class="grp">')].count("w-undecided") == 1  # the line above


def test_the_same_records_give_the_same_page(tmp_path: Path):
    results = small(tmp_path)
    first = write_page(results, tmp_path).read_bytes()
    assert write_page(Results.open(tmp_path), tmp_path).read_bytes() == first


def test_every_seed_near_the_intervals_has_a_tick():
    axis = Axis.around([(-0.2, None, None)], ticks=[-0.24, -0.16, 40.0])
    assert axis is not None
    assert (axis.low, axis.high) == (-0.24, 0.0)
