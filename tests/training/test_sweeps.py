"""Sweeps and regimes with a precision of their own through real training; the early warning beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ablationlab.data.corpus import load_corpus
from ablationlab.records.analysis import Analysis
from ablationlab.records.plan import Plan
from ablationlab.records.run import Result, RunRecord
from ablationlab.records.storage import ResultsFolder
from ablationlab.stats.spikes import EarlyWarning, StackWatch
from ablationlab.study.load import parse_study
from ablationlab.study.plan import make_plan, seal_plan
from ablationlab.training.executors.job import Job
from ablationlab.training.loop import StackTrainer
from ablationlab.training.progress import Progress
from conftest import read_metrics

SWEEP = {"lr": [1e-3, 1e-2, 1e30], "selection_seeds": [8]}


def train(table: dict, folder: Path) -> tuple[Plan, ResultsFolder, list[Progress]]:
    study = parse_study(table)
    corpus = load_corpus(study.data)
    results, heard = ResultsFolder(folder), list[Progress]()
    plan = seal_plan(make_plan(study, corpus, "cpu"), results)
    for stack in range(len(plan.stacks)):
        StackTrainer(Job(plan, folder, study.data), stack, corpus, executor="t", report=heard.append).train()
    return plan, results, heard


@pytest.fixture(autouse=True)
def _restore():
    from conftest import torch_as_it_was

    with torch_as_it_was():
        yield


def metrics(results: ResultsFolder, plan: Plan) -> dict[str, bytes]:
    return {run.id: results.run(run.id).metrics.read_bytes() for run in plan.runs}


def test_a_sweep_trains_analyzes_and_judges_through_the_command(cli, study_file, tmp_path):
    path = study_file({"sweep": SWEEP, "variants": ["none", "layernorm"], "execution.stack_width": 9})
    code, output, errors = cli("run", path, "--out", tmp_path / "out", "--workers", "1", "--device", "cpu")
    assert code == 0, errors
    plan, found = Plan.read(tmp_path / "out" / "plan.lock"), Analysis.read(tmp_path / "out" / "analysis.json")
    assert len(plan.runs) == 2 * 3 * 3
    for run in plan.runs:
        lines = read_metrics(ResultsFolder(tmp_path / "out").run(run.id).metrics)
        assert max(line.lr for line in lines) <= run.lr
        assert lines[0].lr == pytest.approx(run.lr / 2)
    gone = {point.lr for point in found.sweep.points if point.state == "diverged"}
    assert gone == {1e30}
    assert {point.unstable for point in found.sweep.points if point.lr == 1e30} == {True}
    for point in found.sweep.points:
        first = read_metrics(ResultsFolder(tmp_path / "out").run(point.run).metrics)[0].loss
        assert point.initial_loss == first, "the loss before the first update is the same at every rate"
    assert all(one.sensitivity > 0 for one in found.sweep.sensitivities)
    assert {one.lr for one in found.sweep.best} <= {1e-3, 1e-2}
    assert "tuned" in output
    assert "10³⁰" in cli("status", tmp_path / "out")[1], "the table of results has a row per rate"
    code, output, _ = cli("analyze", tmp_path / "out", "--all")
    assert code == 0
    assert "diverged" in output


def test_a_member_of_a_sweep_has_the_bits_of_an_ordinary_run_whatever_its_neighbours_do(study_table, tmp_path):
    own = {"variants": ["none"], "execution.stack_width": 4}
    swept, results, _ = train(study_table({**own, "sweep": {"lr": [1e-2, 1e30], "seeds": [5, 6]}}), tmp_path / "a")
    alone, others, _ = train(study_table({**own, "seeds": [5, 6], "training.lr": 1e-2}), tmp_path / "b")
    beside = {run.seed: run.id for run in swept.runs if run.lr == 1e-2}
    assert beside.keys() == {5, 6}
    for run in alone.runs:
        ours, theirs = results.run(beside[run.seed]), others.run(run.id)
        assert ours.metrics.read_bytes() == theirs.metrics.read_bytes()
        assert Result.read(ours.result).weights_sha256 == Result.read(theirs.result).weights_sha256


def test_a_regime_in_bf16_is_trained_and_recorded_in_bf16(study_table, tmp_path):
    table = study_table({"variants": ["none", "layernorm"], "regimes": {"low": {"training": {"precision": "bf16"}}}})
    plan, results, _ = train(table, tmp_path / "out")
    losses = {}
    for run in plan.runs:
        record = RunRecord.read(results.run(run.id).record)
        assert record.execution == plan.execution_of(run)
        losses[run.regime, run.variant, run.seed] = [line.loss for line in read_metrics(results.run(run.id).metrics)]
    assert {RunRecord.read(results.run(r.id).record).execution.precision for r in plan.runs} == {"fp32", "bf16"}
    for variant in ("none", "layernorm"):
        exact, rounded = losses["default", variant, 1], losses["low", variant, 1]
        assert exact != rounded
        assert rounded == pytest.approx(exact, rel=0.02)


def test_an_early_warning_is_told_and_recorded_nowhere(study_table, tmp_path, monkeypatch):
    table = study_table({"variants": ["none"], "seeds": [1]})
    plan, results, heard = train(table, tmp_path / "quiet")
    assert not any(progress.warnings for progress in heard)
    warning = EarlyWarning("none-s1", 7, "loss", 8.125, 2.5, 31.0)
    monkeypatch.setattr(StackWatch, "feed", lambda self, slot, step, loss, norm: warning if step == 7 else None)
    again, loud, heard = train(table, tmp_path / "loud")
    assert [progress.warnings for progress in heard if progress.warnings] == [(warning,)]
    assert metrics(results, plan) == metrics(loud, again)
    for path in loud.path.rglob("*.json*"):
        assert "8.125" not in path.read_text()
    ours, theirs = (json.loads(one.run(plan.runs[0].id).result.read_text()) for one in (results, loud))
    assert ours["metrics"] == theirs["metrics"]
