"""The verbs from Python: what they take, what they return, and that they display themselves in Jupyter."""

from __future__ import annotations

import inspect

import pandas as pd
import pytest
from scipy import stats as scipy_stats

import ablationlab
from ablationlab.core.errors import AblationLabError, StudyError, TableError
from ablationlab.records.results import Results
from analysis.builder import build, study

NONE = [2.10, 2.15, 2.08, 2.12, 2.11]
NORM = [2.05, 2.09, 2.04, 2.06, 2.065]
ROWS = [
    {"arch": arch, "seed": seed, "val_loss": value}
    for arch, values in (("none", NONE), ("norm", NORM))
    for seed, value in enumerate(values)
]
FORMS = {
    "rows": ROWS,
    "columns": {key: [row[key] for row in ROWS] for key in ROWS[0]},
    "frame": pd.DataFrame(ROWS),
}


@pytest.mark.parametrize("form", [*FORMS, "path", "text"])
def test_analyze_takes_rows_columns_a_frame_or_a_path(tmp_path, form):
    path = tmp_path / "runs.csv"
    pd.DataFrame(ROWS).to_csv(path, index=False)
    source = {"path": path, "text": str(path)}.get(form, FORMS.get(form))
    found = ablationlab.analyze(
        source, baseline="none", variant="arch", metric={"val_loss": "lower"}, smallest_effect=0.01
    )
    assert found.analysis.comparisons[0].p == pytest.approx(scipy_stats.ttest_rel(NORM, NONE).pvalue)
    assert dict(zip(found.answers["variant"], found.answers["answer"], strict=True)) == {"norm": "better"}
    assert found.effects["estimate"].tolist() == [found.analysis.comparisons[0].delta]
    assert "◀ better: norm → adopt" in repr(found)
    shown = found._repr_html_()
    assert "◀ better" in shown
    assert "<table" in shown


def test_analyze_writes_only_when_asked_and_the_report_reads_it(tmp_path):
    found = ablationlab.analyze(FORMS["frame"], baseline="none", variant="arch", metric="val_loss")
    assert list(tmp_path.iterdir()) == []
    folder = found.write(tmp_path / "out")
    assert Results.open(folder).verdict == found.verdict


def test_a_notebook_completes_what_the_package_exports_and_each_has_a_meaning():
    assert set(ablationlab.__all__) == set(dir(ablationlab))
    for name in set(ablationlab.__all__) - {"__version__"}:
        assert inspect.getdoc(getattr(ablationlab, name)), name
    for call in (ablationlab.linear, ablationlab.ForwardPass.layer, ablationlab.BlockPart.__call__):
        hints = inspect.get_annotations(call)
        assert {*inspect.signature(call).parameters} - {"self"} <= hints.keys()
        assert "return" in hints


def test_analyze_takes_a_results_folder_by_its_name(tmp_path, monkeypatch):
    build(tmp_path / "results/built", study(name="built"))
    monkeypatch.chdir(tmp_path)
    found = ablationlab.analyze("built")
    assert found.answers["answer"].tolist() == ["better"]
    assert found.guards["guard"].tolist() == ["failures"]
    assert {"effects", "answers", "guards", "runs", "write"} <= set(dir(found))
    assert not (tmp_path / "results/built/analysis.json").exists()
    with pytest.raises(AblationLabError, match="judged by what its plan registered"):
        ablationlab.analyze("built", baseline="none")


def test_mistakes_are_said_as_on_the_command_line():
    with pytest.raises(TableError, match="baseline says which variant"):
        ablationlab.analyze(FORMS["frame"], variant="arch")
    with pytest.raises(TableError, match="did you mean 'none'"):
        ablationlab.analyze(FORMS["frame"], baseline="nnoe", variant="arch")
    with pytest.raises(AblationLabError, match="two or more folders, got 1"):
        ablationlab.compare("only")


def test_plan_resolves_without_writing_and_seals_where_asked(study_file, tmp_path):
    path = study_file()
    before = set(tmp_path.rglob("*"))
    made = ablationlab.plan(path, device="cpu")
    assert len(made.plan.runs) == len(made.plan.study.seeds) * len(made.plan.study.variants)
    assert set(tmp_path.rglob("*")) == before
    assert "Arms, per run" in made._repr_html_()
    ablationlab.plan(path, tmp_path / "sealed", device="cpu")
    assert (tmp_path / "sealed/plan.lock").exists()
    with pytest.raises(StudyError):
        ablationlab.plan({"name": "x"})


def test_power_gives_typed_rows_and_a_table():
    found = ablationlab.power(study(name="built").model_dump(mode="json"), sd=0.01)
    assert found.power.rows[0].sd == 0.01
    assert "can show, with 80" in found._repr_html_()
