"""The notebook runs as it stands; `run` and `load_results` give what the command line gives."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import ablationlab
import warm
from ablationlab.core.errors import AblationLabError, RecordError, StudyError, UnknownNameError
from ablationlab.records.analysis import Analysis
from ablationlab.records.verdict import Verdict
from ablationlab.study.load import load_study, parse_study
from conftest import corpus_text, torch_as_it_was

needs_notebooks = pytest.mark.needs("nbformat", "nbclient", "ipykernel")
ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "embedding_norm.ipynb"
FINAL = ROOT / "examples" / "final_study_t4.ipynb"


def read(path: Path) -> Any:
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def execute(notebook: Any, folder: Path) -> None:
    from nbclient import NotebookClient

    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()


@needs_notebooks
def test_the_notebook_runs_from_its_first_cell_to_its_last(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text(corpus_text())
    monkeypatch.setenv("ABLATIONLAB_STEPS", "12")
    monkeypatch.setenv("ABLATIONLAB_TEXT", str(tmp_path / "text.txt"))
    monkeypatch.setenv("ABLATIONLAB_OUT", str(tmp_path / "out"))
    notebook = read(NOTEBOOK)
    execute(notebook, tmp_path)
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    shown = [output.data for output in outputs if output.output_type == "execute_result"]
    assert any("<svg" in data.get("text/html", "") for data in shown)
    assert sum("application/vnd.vegalite.v6+json" in data for data in shown) == 2
    assert (tmp_path / "out" / "verdict.json").exists()


@needs_notebooks
@pytest.mark.parametrize("path", [NOTEBOOK, FINAL], ids=lambda path: path.stem)
def test_a_notebook_is_committed_as_it_was_executed_and_knows_no_machine(path):
    notebook = read(path)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert outputs
    assert not [output for output in outputs if output.output_type == "error"]
    assert not [place for place in ("/home/", "/work", "/root", "/tmp") if place in path.read_text()]


@needs_notebooks
def test_the_notebook_of_the_final_study_has_the_settings_of_the_study_file(monkeypatch):
    monkeypatch.delenv("ABLATIONLAB_STEPS", raising=False)
    monkeypatch.delenv("ABLATIONLAB_TEXT", raising=False)
    notebook = read(FINAL)
    cell = next(cell for cell in notebook.cells if cell.source.startswith("import torch\n"))
    names: dict[str, object] = {}
    exec("import os\n" + cell.source, names)
    ours, theirs = parse_study(names["study"]), load_study(ROOT / "studies" / "replication-final.toml")
    for part in ("baseline", "variants", "seeds", "model", "training", "data"):
        assert getattr(ours, part) == getattr(theirs, part)


@needs_notebooks
def test_the_notebook_of_the_final_study_runs(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text(corpus_text())
    for name, value in {
        "STEPS": "6",
        "TINY": "1",
        "TEXT": str(tmp_path / "text.txt"),
        "OUT": str(tmp_path / "out"),
    }.items():
        monkeypatch.setenv(f"ABLATIONLAB_{name}", value)
    notebook = read(FINAL)
    execute(notebook, tmp_path)
    tables = [output.data["text/plain"] for cell in notebook.cells[8:] for output in cell.get("outputs", ())]
    assert len(tables) == 4
    assert "2.4108" in tables[0]  # seed 10 without a norm, as published


def test_run_gives_the_very_results_of_the_command_line(trained, tmp_path):
    with torch_as_it_was():
        results = ablationlab.run(trained.study, out=tmp_path / "python", device="cpu", workers=1)
    # Two plans are sealed at two times, so their hashes differ, and the clock of training is another; nothing else is.
    (ours, our_verdict), (theirs, their_verdict) = (
        (Analysis.read(folder / "analysis.json"), Verdict.read(folder / "verdict.json"))
        for folder in (tmp_path / "python", trained.results)
    )
    other = {name: getattr(theirs, name) for name in ("source_hash", "readings", "fair", "inputs", "seal")}
    assert ours.model_copy(update=other) == theirs
    by_clock = [[reading for reading in found.readings.readings if reading.kind != "time"] for found in (ours, theirs)]
    assert by_clock[0] == by_clock[1]
    hashes = {name: getattr(their_verdict, name) for name in ("source_hash", "analysis_hash", "seal")}
    assert our_verdict.model_copy(update=hashes) == their_verdict
    for run in (trained.results / "runs").iterdir():
        other = tmp_path / "python" / "runs" / run.name
        assert (other / "metrics.jsonl").read_bytes() == (run / "metrics.jsonl").read_bytes()
    assert results.results.ended == len(results.results.runs) == 6
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "python" / "runs").rglob("*.json")}
    with torch_as_it_was():
        ablationlab.run(trained.study, out=tmp_path / "python", device="cpu", workers=1)  # nothing is left to do
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "python" / "runs").rglob("*.json")}


def test_frames_hold_the_records(trained):
    results = ablationlab.load_results(trained.results)
    runs = results.runs.set_index("run")
    for folder in (trained.results / "runs").iterdir():
        record = json.loads((folder / "result.json").read_text())
        assert runs.loc[folder.name, "validation_loss"] == record["metrics"]["validation_loss"]
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()[1:]]
        curve = results.curves[results.curves["run"] == folder.name]
        assert list(curve["loss"]) == [line["loss"] for line in lines]
        assert list(curve["step"]) == [line["step"] for line in lines]
    analysis = json.loads((trained.results / "analysis.json").read_text())
    deltas = {one["id"]: one["delta"] for one in analysis["comparisons"]}
    assert dict(zip(results.effects["id"], results.effects["estimate"], strict=True)) == deltas
    assert len(results.pairs) == sum(len(one["pairs"]) for one in analysis["comparisons"])
    answers = dict(zip(results.answers["variant"], results.answers["answer"], strict=True))
    assert answers.keys() == {"layernorm", "rmsnorm"}
    assert set(results.guards["variant"]) == {"layernorm", "rmsnorm"}
    assert results.items.empty
    assert results.probes.empty
    for verdict in results.results.verdict.verdicts:
        assert answers[verdict.variant] == verdict.answer
        assert re.search(rf"^  {verdict.variant} .*{re.escape(verdict.answer.said)}", repr(results), re.MULTILINE)


def test_the_display_escapes_what_files_hold(trained, tmp_path):
    import shutil

    folder = shutil.copytree(trained.results, tmp_path / "copy")
    analysis = json.loads((folder / "analysis.json").read_text())
    verdict = json.loads((folder / "verdict.json").read_text())
    analysis["comparisons"][0]["variant"] = verdict["verdicts"][0]["variant"] = "<script>alert(1)</script>"
    Analysis.model_validate_json(json.dumps(analysis)).replace(folder / "analysis.json")
    Verdict.model_validate_json(json.dumps(verdict)).replace(folder / "verdict.json")
    results = ablationlab.load_results(folder)
    html = results._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    for shown in (html, repr(results)):
        assert "another analysis" in shown  # and that the verdict is not of this analysis is said


def test_results_without_an_analysis_say_how_to_make_one(trained, tmp_path):
    import shutil

    folder = shutil.copytree(trained.results, tmp_path / "copy")
    (folder / "analysis.json").unlink()
    results = ablationlab.load_results(folder)
    assert len(results.runs) == 6
    assert "ablationlab analyze" in results._repr_html_()
    with pytest.raises(RecordError, match="ablationlab analyze"):
        results.effects  # noqa: B018
    with pytest.raises(RecordError, match="not a results folder"):
        ablationlab.load_results(tmp_path / "nowhere")


def test_mistakes_are_told(trained, tmp_path):
    with pytest.raises(UnknownNameError, match="did you mean"):
        ablationlab.load_results(trained.results).figure("curve-lost")
    with pytest.raises(StudyError):
        ablationlab.run({"name": "x"}, out=tmp_path)
    with pytest.raises(AblationLabError, match="at least one process"):
        ablationlab.run(trained.study, out=tmp_path, workers=0)
    with pytest.raises(AblationLabError, match="overrides"):
        ablationlab.run({"name": "x"}, out=tmp_path, overrides=["seeds=[1]"])


def test_importing_ablationlab_imports_neither_torch_nor_pandas():
    script = (
        "import sys, ablationlab; from ablationlab import Study, run, load_results; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'pandas', 'altair', 'typst', 'jinja2')))"
    )
    assert subprocess.run([warm.FRESH, "-c", script], check=False).returncode == 0
