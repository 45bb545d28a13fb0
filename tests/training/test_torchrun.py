"""torchrun through the real command line: records like any other run's, a killed rank, other numbers of ranks, bad input."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import safetensors.torch
import torch

import warm
from ablationlab.core.errors import PlanError, RecordError
from ablationlab.data.corpus import load_corpus
from ablationlab.records.environment import Drift
from ablationlab.records.plan import Plan
from ablationlab.records.results import read_runs
from ablationlab.records.run import Result, RunRecord
from ablationlab.records.settings import DataConfig, ExecutionConfig
from ablationlab.records.storage import ResultsFolder
from ablationlab.study.code import study_code
from ablationlab.study.ledger import check_ledger
from ablationlab.study.load import parse_study
from ablationlab.training.executors.job import Job
from ablationlab.training.executors.torchrun import check
from ablationlab.training.executors.torchrun import killed as killed_ranks
from ablationlab.training.export import load
from ablationlab.training.loop import StackTrainer
from ablationlab.training.run_state import layout_drift
from conftest import read_metrics, run_cli, started_with, torch_as_it_was, write_study

STEPS = 24
CHANGES = {
    "variants": ["none"],
    "seeds": [1],
    "training.steps": STEPS,
    "training.micro_batch": 1,
    "execution.checkpoint_every": 4,
    "execution.parallel": "fsdp",
    "execution.activation_checkpointing": True,
    "evaluation.curve_every": 10,
}


def words(folder: Path, out: Path, nproc: int = 2) -> list[str]:
    return ["run", str(folder / "tiny.toml"), "--out", str(out), "--executor", "torchrun", "--nproc", str(nproc)]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, int, str]:
    """A study whose second rank was killed in mid-run by SIGKILL: its folder, its results, exit code, what was said."""
    folder = tmp_path_factory.mktemp("torchrun")
    write_study(folder, CHANGES)
    out = folder / "killed"
    process = subprocess.Popen(
        [sys.executable, "-m", "ablationlab", *words(folder, out), "--device", "cpu"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env={**os.environ, "RANKS_OF": str(out)},
    )
    deadline = time.monotonic() + 300
    while not list(out.glob("runs/*/checkpoints/step-*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    ranks = {env["RANK"]: (pid, env) for pid, _, env in started_with("RANKS_OF", str(out)) if "RANK" in env}
    second, environment = ranks["1"]
    assert environment.get("PYTHONSAFEPATH") == "1", "a rank would run modules of the current folder"
    os.kill(second, signal.SIGKILL)
    said, _ = process.communicate(timeout=300)
    return folder, out, process.returncode, said


def weights_of(out: Path) -> dict[str, torch.Tensor]:
    (path,) = out.glob(f"runs/*/checkpoints/step-{STEPS:08d}/weights.safetensors")
    return safetensors.torch.load_file(path)


def test_a_killed_rank_fails_the_run_cleanly(killed):
    _, out, code, said = killed
    assert code == 1
    assert "rank 1 was killed by signal 9" in said
    assert "run the same command again to continue" in said
    assert "Traceback" not in said
    assert not list(out.glob("runs/*/result.json")), "the kill came after the end: nothing was tested"
    assert list(out.glob("runs/*/checkpoints/step-*/shard-*.safetensors"))


# In the form of torchrun's own output: rank 1 was killed, and rank 0 noticed before the agent looked.
AGENT = """
E1115 09:31:12.111000 70001 torch/distributed/elastic/multiprocessing/api.py:988] failed (exitcode: 1) local_rank: 0 (pid: 7)
============================================================
ablationlab.training.executors.torchrun FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-15_09:31:11
  host      : here
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 7)
  error_file: <N/A>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-15_09:31:10
  host      : here
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 8)
  error_file: <N/A>
"""


def test_the_rank_that_was_killed_is_told_from_those_that_noticed():
    assert killed_ranks(AGENT) == [(1, 9)]
    assert killed_ranks(AGENT.replace("-9", "-15")) == []


@pytest.fixture(scope="module")
def calm(killed) -> tuple[Path, str]:
    """The same study undisturbed, under a torchrun of the user's own."""
    folder, out = killed[0], killed[0] / "calm"
    launched = ["--standalone", "--nproc-per-node", "2", "-m", "ablationlab.cli.torchrun", str(folder / "tiny.toml")]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *launched, "--out", str(out), "--device", "cpu"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out, done.stdout


@pytest.fixture(scope="module")
def resumed(killed) -> tuple[Path, str]:
    """The killed study, continued by the same command, on a copy of its results."""
    folder, out, *_ = killed
    again = folder / "again"
    shutil.copytree(out, again)
    done = run_cli(*words(folder, again), folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return again, done.stdout


def test_the_same_command_continues_and_ends_with_the_bits_of_an_undisturbed_run(resumed, calm):
    out, said = resumed
    assert "continuing from step" in said
    ours, theirs = weights_of(out), weights_of(calm[0])
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    (metrics,), (others,) = out.glob("runs/*/metrics.jsonl"), calm[0].glob("runs/*/metrics.jsonl")
    assert metrics.read_bytes() == others.read_bytes()


def test_a_run_of_torchrun_leaves_the_folder_of_any_run(calm, killed):
    out, said = calm
    assert "Evaluate and conclude with: ablationlab run" in said
    results = ResultsFolder(out)
    plan = Plan.read(results.plan)
    folder = results.run(plan.runs[0].id)
    record, result = RunRecord.read(folder.record), Result.read(folder.result)
    assert record.executor == "torchrun"
    assert record.execution.layout() == ("fsdp", 2, True)
    assert record.execution.over(("none", 1, False)) == plan.execution
    assert record.training.micro_batch == 1
    assert (result.status, result.steps, result.data_order_hash) == ("finished", STEPS, record.data_order_hash)
    assert [(start.parallel, start.ranks) for start in result.history] == [("fsdp", 2)]
    assert sorted(path.name for path in folder.path.iterdir()) == [
        "checkpoints",
        "metrics.jsonl",
        "result.json",
        "run.json",
        "seal.json",
    ]
    files = sorted(path.name for path in (folder.checkpoints / f"step-{STEPS:08d}").iterdir())
    assert files == ["checkpoint.json", "weights.safetensors"]
    check_ledger(plan, read_runs(plan, results))
    # The same plan in one process: the same start, the same data, the same course to rounding.
    alone = ResultsFolder(killed[0] / "alone")
    with torch_as_it_was():
        corpus = load_corpus(DataConfig(corpus=str(killed[0] / "corpus.txt")))
        StackTrainer(Job(plan, alone.path, plan.study.data), 0, corpus, executor="local").train()
    other = alone.run(record.id)
    assert RunRecord.read(other.record).initial_weights == record.initial_weights
    assert Result.read(other.result).data_order_hash == result.data_order_hash
    for ours, theirs in zip(read_metrics(folder.metrics), read_metrics(other.metrics), strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-4)
        assert (ours.curve_loss is None) == (theirs.curve_loss is None)
    losses = [Result.read(one.result).metrics["validation_loss"] for one in (folder, other)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert load(folder.path)(torch.zeros(1, 4, dtype=torch.int64)).shape[:2] == (1, 4)


def test_continuing_with_another_number_of_ranks_is_refused_unless_accepted_and_then_recorded(killed, calm):
    folder, out, *_ = killed
    fewer = folder / "fewer"
    shutil.copytree(out, fewer)
    results = ResultsFolder(fewer)
    plan = Plan.read(results.plan)
    with pytest.raises(
        PlanError, match=r"began on 2 ranks \(fsdp with activation checkpointing\), and this is one process"
    ):
        layout_drift(plan, results, [results.run(plan.runs[0].id)], plan.execution, accept=False)
    done = run_cli(*words(folder, fewer, nproc=1), "--accept-drift", folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = fewer.glob("runs/*/result.json")
    history = Result.read(path).history
    assert [(start.parallel, start.ranks) for start in history] == [("fsdp", 2), ("fsdp", 1)]
    assert history[1].step > 0
    assert Drift(what="ranks", sealed="2", now="1") in history[1].drift
    for name, value in weights_of(calm[0]).items():
        torch.testing.assert_close(weights_of(fewer)[name], value, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "nproc", "text"),
    [
        ({}, 3, r"3 processes do not divide training.batch = 4.*Numbers of processes that do: 1, 2, 4"),
        ({"training.micro_batch": 2}, 4, r"4 processes x training.micro_batch = 2 .*that do: 1, 2"),
        ({}, 0, "at least one process"),
        ({"execution": {}}, 2, "set execution.parallel = 'ddp'"),
        (
            {"probes": {"output": 3, "gradient-norm": 1}, "execution.parallel": "fsdp"},
            2,
            "'fsdp' leaves them in none; here: gradient-norm, output. Take",
        ),
        ({"regimes": {"odd": {"training": {"batch": 5}}}}, 2, "do not divide regimes.odd.training.batch = 5"),
    ],
)
def test_what_torchrun_cannot_train_is_refused_before_anything_is_sealed(study_table, changes, nproc, text):
    table = study_table({"execution.parallel": "ddp", **changes})
    with pytest.raises(PlanError, match=text):
        check(parse_study(table), nproc)


def test_an_own_update_rule_needs_whole_parameters_which_fsdp_has_nowhere(study_table, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import ablationlab as lab\n@lab.optimizer('mine')\ndef mine(step): return step.weights\n"
    )
    tables = {"none": {}, "mine": {"training": {"optimizer": "mine"}}}
    for parallel in ("ddp", "fsdp"):
        table = study_table({"execution.parallel": parallel, "variants": tables, "use": [str(tmp_path / "mine.py")]})
        study = parse_study(table)
        expected = r"variant 'mine': .* sees whole parameters, .*'fsdp' leaves them in no process"
        with study_code(study), nullcontext() if parallel == "ddp" else pytest.raises(PlanError, match=expected):
            check(study, 2)


@pytest.mark.parametrize("arguments", [("plan",), ("run",), ("plan", "--hardware", "8xh100")])
def test_probes_under_fsdp_are_refused_when_the_study_is_planned(cli, study_file, tmp_path, arguments):
    study = study_file({"probes": {"output": 3, "gradient-norm": 1}, "execution.parallel": "fsdp"})
    verb, *more = arguments
    more += [] if more else ["--out", tmp_path / "out"]
    code, _, errors = cli(verb, study, *more)
    assert code == 2
    assert "'fsdp' leaves them in none; here: gradient-norm, output. Take the table out" in " ".join(errors.split())
    assert not (tmp_path / "out").exists()


def test_a_study_with_probes_under_fsdp_that_an_older_version_sealed_can_still_be_read(study_table):
    study = parse_study(study_table({"probes": {"output": 3}, "execution.parallel": "fsdp"}))
    assert study.execution.parallel == "fsdp"


def test_the_command_line_says_so_with_the_exit_code_of_a_mistake(cli, study_file, tmp_path):
    study = study_file({"execution.parallel": "ddp"})
    code, _, errors = cli("run", study, "--out", tmp_path / "out", "--executor", "torchrun", "--nproc", "3")
    assert code == 2
    assert "3 processes do not divide training.batch = 4" in errors
    assert not (tmp_path / "out").exists()
    code, _, errors = cli("run", study, "--out", tmp_path / "out", "--nproc", "2")
    assert code == 2
    assert "--nproc 2 belongs to --executor torchrun" in errors


def test_settings_of_torchrun_that_contradict_each_other_are_refused():
    with pytest.raises(ValueError, match="needs stack_width = 1, not 4"):
        ExecutionConfig(parallel="ddp", stack_width=4)
    with pytest.raises(ValueError, match="activation_checkpointing needs parallel"):
        ExecutionConfig(activation_checkpointing=True)


def test_a_rank_without_torchrun_says_how_to_start_it(study_file: Callable[..., Path], tmp_path):
    study = study_file({"execution.parallel": "ddp"})
    done = warm.python("-m", "ablationlab.cli.torchrun", study, "--device", "cpu", folder=tmp_path)
    assert done.returncode == 1
    assert "start it with torchrun" in done.stderr


# Leaves the process little more memory than it has, then runs the command line.
SHORT_OF_MEMORY = """
import resource, sys
import numpy, scipy.linalg, scipy.stats, torch
# The linear algebra of numpy and scipy takes its memory now, so that it is not what is short of it later.
scipy.linalg.solve(numpy.eye(64) @ numpy.eye(64), numpy.ones(64))
from ablationlab.training import loop
from ablationlab.cli.app import main
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 2**29, size + 2**29))
main(sys.argv[1:])
"""


def test_a_step_that_does_not_fit_names_the_micro_batch_to_set(study_file, tmp_path):
    changes = {"variants": ["none"], "seeds": [1], "training.batch": 1024, "model.width": 128, "model.context": 64}
    words = ["run", str(study_file(changes)), "--out", str(tmp_path / "out"), "--workers", "1", "--device", "cpu"]
    alone = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", SHORT_OF_MEMORY, *words], capture_output=True, text=True, env=alone)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "out of memory: 1024 sequences of a forward pass do not fit on one device" in done.stderr
    assert "Set training.micro_batch = 512 in the study (now all at once)" in done.stderr
    assert "use --out" in done.stderr


def test_a_checkpoint_in_shards_is_verified_before_it_is_read(killed, tmp_path):
    from ablationlab.training import checkpoints

    results = ResultsFolder(tmp_path / "copy")
    shutil.copytree(killed[1], results.path)
    run = results.run(Plan.read(results.plan).runs[0].id)
    step = checkpoints.steps_on_disk(run)[0]
    shard = next(checkpoints.path_of(run, step).glob("shard-*"))
    shard.write_bytes(shard.read_bytes()[:-9])
    with pytest.raises(RecordError, match=f"{shard.name} is damaged"):
        checkpoints.load(run, step, tensors=False)
    assert json.loads((checkpoints.path_of(run, step) / "checkpoint.json").read_text())["step"] == step
