"""One study through the real command line: what is on disk at the end, and runs that go wrong as a result."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import warm
from ablationlab.data.batches import planned_data_order
from ablationlab.records.plan import Plan
from ablationlab.records.results import read_runs
from ablationlab.records.run import Result, RunRecord
from ablationlab.records.storage import ResultsFolder
from ablationlab.study.ledger import check_ledger
from ablationlab.training.perplexity import RunMetrics
from conftest import read_metrics

STUDY = """
name = "loop"
baseline = "none"
variants = ["none", "layernorm"]
seeds = [1, 2]
model = { layers = 1, width = 16, heads = 2, context = 16 }
training = { steps = 10, batch = 4, lr = 1e-2, warmup = 2, clip = "off", precision = "fp32" }
data = { corpus = "./text.txt" }
execution = { checkpoint_every = 4, threads = 1, stack_width = 3 }
evaluation = { curve_every = 4, curve_windows = 2 }
regimes.wild.training.lr = 1e30
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> ResultsFolder:
    folder = tmp_path_factory.mktemp("loop")
    (folder / "text.txt").write_text("".join(f"{i} green bottles hanging on the wall, {i * i}\n" for i in range(300)))
    (folder / "study.toml").write_text(STUDY)
    words = ["run", str(folder / "study.toml"), "--out", str(folder / "out"), "--workers", "1"]
    done = warm.python("-m", "ablationlab", *words, "--device", "cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "said").write_text(done.stdout)
    return ResultsFolder(folder / "out")


@pytest.fixture(scope="module")
def plan(results: ResultsFolder) -> Plan:
    return Plan.read(results.plan)


def test_every_planned_run_has_its_record_metrics_and_result(results, plan):
    assert len(plan.runs) == 8
    for run in plan.runs:
        folder = results.run(run.id)
        record, result = RunRecord.read(folder.record), Result.read(folder.result)
        assert record.id == result.id == run.id
        assert record.plan_hash == plan.plan_hash
        assert record.execution == plan.execution
        assert record.budget == run.budget
        assert record.executor == "local"
        lines = read_metrics(folder.metrics)
        assert [line.step for line in lines] == list(range(1, result.steps + 1))
        assert [line.tokens for line in lines] == [64 * step for step in range(1, result.steps + 1)]


def test_finished_runs_spent_exactly_their_budget_on_exactly_the_planned_data(results, plan):
    for run in plan.runs:
        if run.regime == "default":
            result = Result.read(results.run(run.id).result)
            assert (result.status, result.steps, result.tokens) == ("finished", 10, 640)
            assert result.matmul_flops == run.budget.matmul_flops
            assert result.data_order_hash == planned_data_order(run.seed, plan.corpus, steps=10, batch=4, context=16)
            lines = read_metrics(results.run(run.id).metrics)
            assert result.metrics["final_gradient_norm"] == lines[-1].gradient_norm
            assert [line.step for line in lines if line.curve_loss is not None] == [4, 8, 10]
            assert result.metrics["perplexity"] == pytest.approx(math.exp(result.metrics["validation_loss"]))


def test_a_run_whose_loss_is_not_finite_ends_as_diverged_with_its_step_and_the_others_continue(results, plan):
    wild = [run for run in plan.runs if run.regime == "wild"]
    assert len(wild) == 4
    shared = [
        stack
        for stack in plan.stacks
        if any("wild" in one for one in stack) and any("wild" not in one for one in stack)
    ]
    assert shared, "no stack holds both kinds of run, so nothing about neighbours is tested"
    for run in wild:
        result = Result.read(results.run(run.id).result)
        assert result.status == "diverged"
        assert 1 < result.steps < 10
        assert result.divergence.step == result.steps
        assert result.divergence.metric in ("loss", "gradient_norm")
        assert set(result.metrics) == {*RunMetrics._fields, "final_gradient_norm"}
        assert set(result.metrics.values()) == {None}
        last = read_metrics(results.run(run.id).metrics)[-1]
        assert not (math.isfinite(last.loss) and math.isfinite(last.gradient_norm))
    text = (results.path.parent / "said").read_text()
    assert "Traceback" not in text


def test_variants_of_a_seed_share_data_order_and_initial_weights_and_the_ledger_agrees(results, plan):
    records = [RunRecord.read(results.run(run.id).record) for run in plan.runs]
    for seed in (1, 2):
        assert len({r.data_order_hash for r in records if r.seed == seed}) == 1
        assert len({r.shared_init_hash for r in records if r.seed == seed}) == 1
    assert len({r.data_order_hash for r in records}) == 2
    assert len({r.shared_init_hash for r in records}) == 2
    assert check_ledger(plan, read_runs(plan, results)) == 4


def test_running_again_trains_nothing_and_changes_nothing(results):
    before = {path: path.stat().st_mtime_ns for path in results.runs.rglob("*") if path.is_file()}
    words = ["run", str(results.path.parent / "study.toml"), "--out", str(results.path)]
    done = warm.python("-m", "ablationlab", *words, "--device", "cpu")
    assert done.returncode == 0
    assert "8 of 8 runs done" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in results.runs.rglob("*") if path.is_file()} == before


def test_status_tells_finished_from_diverged(results, plan):
    states = {status.id: status.state for status in read_runs(plan, results)}
    assert {states[run.id] for run in plan.runs if run.regime == "wild"} == {"diverged"}
    assert {states[run.id] for run in plan.runs if run.regime == "default"} == {"finished"}


def test_a_tampered_record_is_refused_by_the_ledger(results, plan, tmp_path):
    import shutil

    from ablationlab.core.errors import MismatchError
    from analysis.builder import seal_again

    copy = tmp_path / "copy"
    shutil.copytree(results.path, copy)
    run = next(run for run in plan.runs if run.variant == "layernorm" and run.regime == "default")
    path: Path = copy / "runs" / run.id / "run.json"
    data = json.loads(path.read_text())
    data["initial_weights"]["tok.weight"] = "0" * 64
    path.write_text(json.dumps(data))
    seal_again(copy)
    with pytest.raises(MismatchError, match=r"initial value of tok\.weight differs"):
        check_ledger(plan, read_runs(plan, ResultsFolder(copy)))


def test_an_output_folder_of_another_study_is_refused_and_keeps_every_file(results):
    words = [
        "run",
        str(results.path.parent / "study.toml"),
        "--out",
        str(results.path),
        "--set",
        "seeds=[1,2,3]",
    ]
    done = warm.python("-m", "ablationlab", *words, "--device", "cpu")
    assert done.returncode == 2
    assert "holds another study" in done.stderr
    assert "Traceback" not in done.stderr
