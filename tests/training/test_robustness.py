"""Things that happen to a study while it runs: other code, other data, a folder that goes, workers that die."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import warm
from ablationlab.core.errors import PlanError
from ablationlab.data.corpus import load_corpus
from ablationlab.records.environment import Drift
from ablationlab.records.plan import Plan
from ablationlab.records.run import Result, RunRecord
from ablationlab.records.settings import DataConfig
from ablationlab.records.storage import ResultsFolder
from ablationlab.training.executors.job import Job
from ablationlab.training.loop import StackTrainer
from conftest import run_cli, torch_as_it_was

# Runs the command line with a patch before it: argv[1] is Python, the rest are the command's words.
PATCHED = """
import sys
patch = sys.argv.pop(1)
import os, signal
from ablationlab import cli
from ablationlab.records import environment
from ablationlab.training.stack import Stack
def at_step(number, act):
    real, calls = Stack.advance, [0]
    def step(self, **words):
        calls[0] += 1
        if calls[0] == number:
            act()
        return real(self, **words)
    Stack.advance = step
exec(patch)
cli.main([*sys.argv[1:], "--device", "cpu"])
"""
STOP_AT_6 = "at_step(6, lambda: os.kill(os.getpid(), signal.SIGINT))"
OTHER_CODE = "environment.code_hash = lambda: 'f' * 64"


def job_in(results: ResultsFolder) -> Job:
    plan = Plan.read(results.plan)
    return Job(plan, results.path, plan.study.data)


def said(*words: object, patch: str = "") -> tuple[int, str]:
    """Exit code and output of the command in a process of its own, patched first."""
    done = warm.python("-c", PATCHED, patch, *map(str, words))
    return done.returncode, done.stdout + done.stderr


def test_continuing_with_other_code_is_refused_unless_accepted_and_then_recorded(
    study_file: Callable[..., Path], tmp_path
):
    run = ["run", study_file({"seeds": [1]}), "--out", tmp_path / "out", "--workers", "1"]
    assert said(*run, patch=STOP_AT_6)[0] == 130
    code, text = said(*run, patch=OTHER_CODE)
    assert code == 2
    assert "ablationlab's source" in text
    code, text = said(*run, "--accept-drift", patch=OTHER_CODE)
    assert code == 0, text
    assert '"code": "drift"' in (tmp_path / "out" / "analysis.json").read_text()
    results = {path.parent.name: Result.read(path) for path in tmp_path.glob("out/runs/*/result.json")}
    first = next(result for name, result in results.items() if name.startswith("none"))
    assert [(start.step, bool(start.drift)) for start in first.history] == [(0, False), (6, True)]
    assert first.history[1].code_hash == "f" * 64
    others = [result for name, result in results.items() if not name.startswith("none")]
    assert [[bool(start.drift) for start in result.history] for result in others] == [[True], [True]]


@pytest.mark.parametrize("part", ["", "metrics.jsonl"])
def test_nothing_is_written_through_a_link_in_a_results_folder(study_file, tmp_path, part):
    """Whoever made the folder would choose the file outside that training overwrites."""
    out, outside = tmp_path / "out", tmp_path / "outside"
    assert said("plan", study_file({"seeds": [1]}), "--out", out)[0] == 0
    run = ResultsFolder(out).run(Plan.read(ResultsFolder(out).plan).runs[0].id)
    run.path.parent.mkdir(exist_ok=True)
    if part:
        run.path.mkdir()
        outside.write_text("precious")
    else:
        outside.mkdir()
    (run.path / part).symlink_to(outside)
    code, text = said("run", out, "--workers", "1")
    assert code != 0
    assert "is a link, which may lead out of its folder" in " ".join(text.split())
    assert outside.read_text() == "precious" if part else not list(outside.iterdir())


def test_another_text_than_the_sealed_one_never_reaches_training(study_file, tmp_path):
    study = study_file()
    assert said("plan", study, "--out", tmp_path / "out")[0] == 0
    results = ResultsFolder(tmp_path / "out")
    text = (tmp_path / "corpus.txt").read_text()
    (tmp_path / "corpus.txt").write_text(text.swapcase()[::-1])
    swapped = load_corpus(DataConfig(corpus=str(tmp_path / "corpus.txt")))
    with pytest.raises(PlanError, match="is not the one that the plan was sealed with"):
        StackTrainer(job_in(results), 0, swapped, executor="test")
    code, text = said("run", study, "--out", tmp_path / "out")
    assert code == 2
    assert "has changed since the plan was sealed" in text


def test_another_device_than_the_sealed_one_is_refused_unless_accepted_and_then_recorded(study_file, tmp_path):
    study = study_file()
    assert said("plan", study, "--out", tmp_path / "out")[0] == 0
    results = ResultsFolder(tmp_path / "out")
    plan = Plan.read(results.plan)
    elsewhere = plan.model_copy(update={"execution": plan.execution.model_copy(update={"device_name": "another cpu"})})
    corpus = load_corpus(DataConfig(corpus=str(tmp_path / "corpus.txt")))
    job = replace(job_in(results), plan=elsewhere)
    with pytest.raises(PlanError, match="sealed for: device_name another cpu -> "), torch_as_it_was():
        StackTrainer(job, 0, corpus, executor="test")
    with torch_as_it_was():
        StackTrainer(replace(job, accept_drift=True), 0, corpus, executor="test").train()
    record = RunRecord.read(results.run(plan.stacks[0][0]).record)
    assert record.drift == (Drift(what="device_name", sealed="another cpu", now=plan.execution.device_name),)


def test_a_resumed_study_keeps_the_threads_and_width_it_was_sealed_with(study_file, tmp_path):
    """Stopped in the middle, then continued by more workers, which are fresh processes, under another OMP_NUM_THREADS."""
    study = study_file({"execution.threads": 2, "execution.stack_width": 2, "seeds": [1]})
    assert said("run", study, "--out", tmp_path / "out", "--workers", "1", patch=STOP_AT_6)[0] == 130
    words = ["run", study, "--out", tmp_path / "out", "--workers", "2", "--device", "cpu"]
    done = run_cli(*words, folder=tmp_path, env={"OMP_NUM_THREADS": "3"})
    assert done.returncode == 0, done.stdout + done.stderr
    results = [Result.read(path) for path in tmp_path.glob("out/runs/*/result.json")]
    assert sorted(len(result.history) for result in results) == [1, 2, 2]  # the first stack of two was resumed
    assert {start.threads for result in results for start in result.history} == {2}
    records = [json.loads(path.read_text())["execution"] for path in tmp_path.glob("out/runs/*/run.json")]
    assert {(found["threads"], found["stack_width"], found["precision"]) for found in records} == {(2, 2, "fp32")}


def test_a_model_that_the_last_update_breaks_has_diverged(study_file, tmp_path):
    study = study_file({"training": {"steps": 1, "batch": 4, "lr": 1e30, "schedule": "constant", "precision": "fp32"}})
    code, text = said("run", study, "--out", tmp_path / "out", "--workers", "1")
    assert code == 0, text
    for path in tmp_path.glob("out/runs/*/result.json"):
        result = Result.read(path)
        assert result.status == "diverged"
        assert result.divergence.step == 1
        assert result.divergence.metric == "validation_loss"
        assert set(result.metrics.values()) == {None}


def test_a_run_folder_that_goes_in_mid_training_fails_that_run_and_the_next_command_trains_it_again(
    study_file, tmp_path
):
    run = ["run", study_file({"seeds": [1]}), "--out", tmp_path / "out", "--workers", "1"]
    gone = "import shutil, glob; at_step(6, lambda: shutil.rmtree(glob.glob(os.environ['OUT'] + '/runs/none*')[0]))"
    os.environ["OUT"] = str(tmp_path / "out")
    try:
        code, text = said(*run, patch=gone)
    finally:
        del os.environ["OUT"]
    assert code == 1
    assert "Traceback" not in text
    assert len(list(tmp_path.glob("out/runs/*/result.json"))) == 2
    code, text = said(*run)
    assert code == 0, text
    assert len(list(tmp_path.glob("out/runs/*/result.json"))) == 3


def wait_for(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not found() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert found()


LONG = {"training.steps": 20000, "training.warmup": 2, "execution.checkpoint_every": 20, "seeds": [1]}


def test_ctrl_c_with_several_workers_leaves_a_checkpoint_of_every_run_in_training(study_file, tmp_path):
    """The whole process group gets the signal, as from a terminal; the workers must not die of it."""
    out = tmp_path / "out"
    words = [
        sys.executable,
        "-m",
        "ablationlab",
        "run",
        study_file(LONG),
        "--out",
        out,
        "--workers",
        "2",
        "--device",
        "cpu",
    ]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    wait_for(lambda: len({path.parent for path in out.glob("runs/*/checkpoints/step-*")}) >= 2)  # of both workers' runs
    os.killpg(process.pid, signal.SIGINT)
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 130, text
    assert "Traceback" not in text
    assert "Continue with: ablationlab run" in " ".join(text.split())
    started = [path for path in out.glob("runs/*") if (path / "run.json").exists()]
    assert started
    for run in started:
        last = max(int(path.name.removeprefix("step-")) for path in run.glob("checkpoints/step-*"))
        lines = (run / "metrics.jsonl").read_text().splitlines()
        assert json.loads(lines[-1])["step"] == last  # a checkpoint of the very step it stopped at


def test_one_worker_killed_fails_its_run_alone_and_the_next_command_continues(study_file, tmp_path):
    out = tmp_path / "out"
    study = study_file({**LONG, "training.steps": 400, "variants": ["none", "layernorm"]})
    words = ["-m", "ablationlab", "run", study, "--out", out, "--device", "cpu", "--workers"]
    first = [sys.executable, *words, "2"]
    process = subprocess.Popen(first, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    # The first run that has a checkpoint has most of its way before it: its worker is the victim.
    wait_for(lambda: any(out.glob("runs/*/checkpoints/step-*")))
    run = next(out.glob("runs/*/checkpoints/step-*")).parents[1].name
    lock = ResultsFolder(out).stack_lock(Plan.read(out / "plan.lock").run(run).stack)
    os.kill(int(lock.read_text()), signal.SIGKILL)
    text, _ = process.communicate(timeout=500)
    assert process.returncode == 1, text
    assert "killed by signal 9" in text
    assert not (out / "runs" / run / "result.json").exists()
    assert len(list(out.glob("runs/*/result.json"))) == 1
    again = warm.python(*words, "1")
    assert again.returncode == 0, again.stdout + again.stderr
    assert len(list(out.glob("runs/*/result.json"))) == 2
    assert "continuing from step" in again.stdout


def test_adding_a_variant_and_a_seed_to_a_study_changes_no_bit_of_its_other_runs_at_equal_width(
    study_file, cli, tmp_path
):
    small, large = {"seeds": [1, 2]}, {"seeds": [1, 2, 7], "variants": ["none", "layernorm", "sqrt-d", "rmsnorm"]}
    found = []
    for name, changes in (("small", small), ("large", large)):
        study = study_file({**changes, "execution.stack_width": 4, "model.dropout": 0.1}, f"{name}.toml")
        words = ["run", study, "--out", tmp_path / name, "--workers", "1"]
        code, text = said(*words) if name == "small" else cli(*words, "--device", "cpu")[:2]
        assert code == 0, text
        results = [Result.read(path) for path in (tmp_path / name).glob("runs/*/result.json")]
        found.append({result.id: (result.weights_sha256, result.data_order_hash) for result in results})
    assert len(found[0]) == 6
    assert len(found[1]) == 12
    assert {run: found[1][run] for run in found[0]} == found[0]


def test_a_study_can_move_with_its_text_and_results(study_file, tmp_path):
    study = study_file({"seeds": [1]}, "here.toml")
    assert said("run", study, "--out", tmp_path / "out", "--workers", "1", patch=STOP_AT_6)[0] == 130
    there = tmp_path / "elsewhere"
    there.mkdir()
    for name in ("here.toml", "corpus.txt", "out"):
        shutil.move(tmp_path / name, there / name)
    code, text = said("run", there / "here.toml", "--out", there / "out", "--workers", "1")
    assert code == 0, text
    assert "continuing from step 6" in text


def test_initial_weights_in_the_record_are_those_of_the_stack(study_file, tmp_path, monkeypatch):
    """A stack that starts from something else than it should is found out by its own record."""
    import torch

    from ablationlab.model.weights import Parameter

    study = study_file({"seeds": [1]})
    assert said("plan", study, "--out", tmp_path / "out")[0] == 0
    results, plan = ResultsFolder(tmp_path / "out"), Plan.read(tmp_path / "out" / "plan.lock")
    corpus = load_corpus(DataConfig(corpus=str(tmp_path / "corpus.txt")))
    StackTrainer(job_in(results), 0, corpus, executor="test").train()
    honest = RunRecord.read(results.run(plan.stacks[0][0]).record).initial_weights
    real = Parameter.draw
    monkeypatch.setattr(Parameter, "draw", lambda self, seed: real(replace(self), seed + 1))
    other = ResultsFolder(tmp_path / "other")
    StackTrainer(replace(job_in(results), folder=other.path), 0, corpus, executor="test").train()
    skewed = RunRecord.read(other.run(plan.stacks[0][0]).record).initial_weights
    assert honest["tok.weight"] != skewed["tok.weight"]
    torch._C._set_deterministic_algorithms(False)
