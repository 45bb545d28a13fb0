"""Killed at any moment and run again: bit-identical to never having been killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import crash_matrix
import pytest

import warm
from ablationlab.records.run import Result
from ablationlab.records.storage import ResultsFolder, RunFolder
from ablationlab.training import checkpoints
from conftest import run_here

# Moments chosen to fall into the plan, the run records, every file of a checkpoint, the renames and the results.
# `make torture` kills at many more.
POINTS = ["fsync:1", "fsync:24", "rename:7", "link:3", "link:9", "torn:4", "torn:12", "step:7", "result:1", "result:5"]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six runs in two stacks of three, twelve steps, a checkpoint every four."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "text.txt").write_text("".join(f"line {i} of the text, {i * i}\n" for i in range(800)))
    path = folder / "study.toml"
    path.write_text(
        """
        name = "resume"
        baseline = "none"
        variants = ["none", "layernorm"]
        seeds = [1]
        model = { layers = 1, width = 16, heads = 2, context = 16, dropout = 0.1 }
        training = { steps = 12, batch = 4, lr = 1e-2, warmup = 2, precision = "fp32" }
        data = { corpus = "./text.txt" }
        execution = { checkpoint_every = 4, threads = 1, stack_width = 3 }
        evaluation = { curve_every = 5, curve_windows = 2, gate_seeds = [2, 3, 4, 5] }
        probes = { update-ratio = 3, cosine = 2 }
        """
    )
    return path


@pytest.fixture(scope="module")
def matrix(study: Path, tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("matrix")
    done = warm.python(crash_matrix.__file__, study, folder, *POINTS, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) | {"folder": folder, "study": study}


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_study_ends_with_the_bits_of_an_undisturbed_one(matrix, point):
    kind, _, number = point.partition(":")
    assert int(number) <= matrix["counts"][kind], "the moment lies behind the end of the study: choose an earlier one"
    assert matrix["statuses"][point] == signal.SIGKILL
    assert matrix["statuses"][f"{point} again"] == 0
    assert matrix["prints"][point] == matrix["prints"]["calm"]


def test_the_undisturbed_study_is_whole_and_leaves_only_final_checkpoints(matrix):
    runs = list((matrix["folder"] / "calm" / "runs").iterdir())
    assert len(runs) == 6
    for run in runs:
        assert [p.name for p in (run / "checkpoints").iterdir()] == ["step-00000012"]
        assert len((run / "metrics.jsonl").read_text().splitlines()) == 1 + 12
        sealed = matrix["prints"]["calm"][f"{run.name}/seal"]
        assert sealed.endswith("broken: []")
        assert all(f"'{name}'" in sealed for name in ("run.json", "result.json", "metrics.jsonl", "probes.parquet"))
        assert "'checkpoints/step-00000012/weights.safetensors'" in sealed
        assert ("'halfway/weights.safetensors'" in sealed) == run.name.startswith("gate")
        assert (run / "halfway" / "weights.safetensors").exists() == run.name.startswith("gate")


@pytest.fixture
def interrupted(matrix, tmp_path: Path) -> Path:
    """A copy of the calm study's folder as it stood before its end: made by running to a stop at step 10."""
    script = f"""
import os, signal, sys
from ablationlab import cli
from ablationlab.training.stack import Stack
real, calls = Stack.advance, [0]
def step(self, **words):
    calls[0] += 1
    if calls[0] == 10:
        os.kill(os.getpid(), signal.SIGINT)
    return real(self, **words)
Stack.advance = step
cli.main(["run", sys.argv[1], "--out", {str(tmp_path / "out")!r}, "--workers", "1", "--device", "cpu"])
"""
    done = warm.python("-c", script, matrix_study(matrix))
    assert done.returncode == 130, done.stderr
    told = " ".join(done.stdout.split())
    assert "Continue with: ablationlab run" in told
    assert "--device cpu --workers 1" in told, "the same machine, the same processes"
    return tmp_path / "out"


def matrix_study(matrix: dict) -> str:
    return str(matrix["study"])


def stack_0(out: Path) -> list[RunFolder]:
    plan = json.loads((out / "plan.lock").read_text())
    return [ResultsFolder(out).run(run_id) for run_id in plan["stacks"][0]]


def continued(matrix: dict, out: Path) -> str:
    words = ["run", matrix_study(matrix), "--out", str(out), "--workers", "1", "--device", "cpu"]
    done = warm.python("-m", "ablationlab", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert crash_matrix.fingerprint(out) == matrix["prints"]["calm"]
    return done.stdout


def test_ctrl_c_stops_at_a_step_boundary_and_damaged_checkpoints_are_passed_over(interrupted, matrix, tmp_path):
    folders = stack_0(interrupted)
    assert [checkpoints.steps_on_disk(folder) for folder in folders] == [[8, 10]] * 3  # the last two are kept
    lines = folders[0].metrics.read_text().splitlines()
    assert json.loads(lines[-1])["step"] == 10

    flipped = tmp_path / "flipped"
    shutil.copytree(interrupted, flipped)
    weights = checkpoints.path_of(stack_0(flipped)[1], 10) / checkpoints.OPTIMIZER
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 0x10
    weights.write_bytes(data)
    said = continued(matrix, flipped)
    assert "skipped" in said
    assert "optimizer.safetensors is damaged" in said
    assert "continuing from step 8" in said

    truncated = tmp_path / "truncated"
    shutil.copytree(interrupted, truncated)
    for folder, name in zip(
        stack_0(truncated), (checkpoints.WEIGHTS, checkpoints.RECORD, checkpoints.OPTIMIZER), strict=True
    ):
        for step in (8, 10):
            file = checkpoints.path_of(folder, step) / name
            file.write_bytes(file.read_bytes()[:-7])
    shutil.rmtree(checkpoints.path_of(stack_0(truncated)[0], 8))
    assert "continuing" not in continued(matrix, truncated)  # nothing sound is left: from the start, to the same bits

    shortened = tmp_path / "shortened"
    shutil.copytree(interrupted, shortened)
    metrics = stack_0(shortened)[2].metrics
    metrics.write_bytes(
        metrics.read_bytes()[:300]
    )  # the metrics of step 8 are gone, so the checkpoints do not fit them
    assert "does not match the checkpoint" in continued(matrix, shortened)


def test_two_processes_on_one_study_share_the_work_and_never_train_a_run_twice(study, matrix, tmp_path):
    """Both start at the same moment."""
    out = tmp_path / "shared"
    words = ["-m", "ablationlab", "run", study, "--out", out, "--workers", "1", "--device", "cpu"]
    with ThreadPoolExecutor(2) as pool:
        pair = [call.result() for call in [pool.submit(warm.python, *words) for _ in range(2)]]
    assert [ended.returncode for ended in pair] == [0, 0], pair
    assert sum(ended.stdout.count(": done") for ended in pair) == 2, pair  # two stacks, each trained by one of them
    assert crash_matrix.fingerprint(out) == matrix["prints"]["calm"]
    assert {Result.read(path).timing.starts for path in out.glob("runs/*/result.json")} == {1}


def test_killing_the_parent_and_its_workers_loses_nothing(study, tmp_path):
    out, calm = tmp_path / "killed", tmp_path / "calm"
    words = ["-m", "ablationlab", "run", str(study), "--device", "cpu"]
    words += ["--set", "training.steps=60", "--set", "execution.checkpoint_every=10"]
    process = subprocess.Popen([sys.executable, *words, "--workers", "2", "--out", str(out)], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while len(list(out.glob("runs/*/checkpoints/step-*"))) < 6 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)  # the parent alone: its workers must notice and leave
    process.wait()
    done = warm.python(*words, "--workers", "1", "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr
    assert run_here(*words[2:], "--workers", "1", "--out", calm, folder=tmp_path)[0] == 0
    assert crash_matrix.fingerprint(out) == crash_matrix.fingerprint(calm)
    starts = [Result.read(path).timing.starts for path in out.glob("runs/*/result.json")]
    assert max(starts) >= 2, "the kill came after the end: nothing was tested"
