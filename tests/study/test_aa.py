"""A/A studies: the baseline once more under another name, which checks the instrument."""

from __future__ import annotations

import pytest

import warm
from ablationlab.core.errors import PlanError
from ablationlab.records.analysis import Analysis
from ablationlab.records.plan import Plan
from ablationlab.records.run import Result
from ablationlab.records.storage import ResultsFolder
from ablationlab.records.verdict import Verdict
from ablationlab.study.checks import study_warnings
from ablationlab.study.load import parse_study
from ablationlab.study.trainers import own_trainer_runs

STUDY = """
name = "aa"
baseline = "none"
variants = { none = {}, again = {} }
seeds = [1, 2, 3]
model = { layers = 1, width = 16, heads = 2, context = 16, dropout = 0.1 }
training = { steps = 4, batch = 4, lr = 1e-2, warmup = 2, precision = "fp32" }
data = { corpus = "./text.txt" }
execution = { threads = 1, stack_width = 2 }
criteria = [{ metric = "validation_loss", role = "primary", smallest_effect = 0.01 }]
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> ResultsFolder:
    folder = tmp_path_factory.mktemp("aa")
    (folder / "text.txt").write_text("".join(f"{i} green bottles hanging on the wall, {i * i}\n" for i in range(300)))
    (folder / "study.toml").write_text(STUDY)
    words = ["run", str(folder / "study.toml"), "--out", str(folder / "out"), "--workers", "1", "--device", "cpu"]
    done = warm.python("-m", "ablationlab", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return ResultsFolder(folder / "out")


def test_both_arms_of_an_aa_study_are_the_same_to_the_bit(results):
    plan = Plan.read(results.plan)
    ends = {(run.variant, run.seed): Result.read(results.run(run.id).result) for run in plan.runs}
    assert len(ends) == 6
    for seed in (1, 2, 3):
        again, baseline = ends["again", seed], ends["none", seed]
        assert again.weights_sha256 == baseline.weights_sha256 != ends["none", seed % 3 + 1].weights_sha256
        assert again.metrics["validation_loss"] == baseline.metrics["validation_loss"]


def test_the_arms_of_an_aa_study_are_the_same(results):
    analysis = Analysis.read(results.path / "analysis.json")
    primary = analysis.comparison("validation_loss", "default", "again", "none")
    assert [pair.delta for pair in primary.pairs] == [0.0, 0.0, 0.0]
    assert analysis.budget_unknown == ()
    (verdict,) = Verdict.read(results.path / "verdict.json").verdicts
    assert verdict.answer == "same"


def test_a_plan_marks_what_is_the_baseline_once_more(results, cli):
    shown = cli("plan", results.path.parent / "study.toml", "--out", results.path.parent / "other", "--device", "cpu")
    assert "again (A/A)" in shown[1]
    assert "none (baseline)" in shown[1]


def test_no_warning_is_given_of_what_is_meant(study_table):
    meant = parse_study(study_table({"variants": {"none": {}, "again": {}}}))
    assert not [text for text in study_warnings(meant) if "trains the same model" in text]
    mistaken = parse_study(study_table({"variants": {"none": {}, "again": {"from": "none"}}}))
    assert [text for text in study_warnings(mistaken) if "again trains the same model as none" in text]


def own(table):
    return parse_study(
        {
            "name": "own",
            "command": ["python", "-c", "pass", "{training.lr}"],
            "metrics": {"loss": "lower"},
            "baseline": "none",
            "variants": {"none": {}, "again": table},
            "seeds": [1, 2, 3],
            "training": {"lr": 0.1},
        }
    )


def test_a_trainer_of_ones_own_may_train_the_baseline_once_more():
    runs, declared = own_trainer_runs(own({}))
    assert {run.variant for run in runs} == {"none", "again"}
    assert declared["again"].settings == ()
    with pytest.raises(PlanError, match="variants that change nothing: again"):
        own_trainer_runs(own({"training": {"lr": 0.1}}))
