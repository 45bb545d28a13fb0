"""Several commands on one study under torchrun: who finds a run in another's hands waits, and ends as the other does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ablationlab.evaluation.evaluate import evaluate
from ablationlab.records import Plan, ResultsFolder
from ablationlab.storage import Lock
from conftest import run_cli, torch_as_it_was, write_study

PATIENCE = 300
CHANGES = {
    "variants": ["none", "layernorm"],
    "seeds": [1],
    "training.steps": 4,
    "execution.parallel": "ddp",
}


def launched_under(pid: int) -> list[int]:
    """Processes that descend from one and are ranks, or the agent that starts ranks."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = []
    for child in parents:
        above = child
        while above in parents and above != pid:
            above = parents[above]
        try:
            line = Path(f"/proc/{child}/cmdline").read_text()
        except OSError:
            continue
        if above == pid and child != pid and "torch" in line:
            found.append(child)
    return found


@contextmanager
def started(*words: str | Path, log: Path) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[str], None]]]:
    """A process, and a function that waits until it has said something."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *map(str, words)], stdout=output, stderr=subprocess.STDOUT, cwd=log.parent
        )

    def hear(text: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while text not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)

    try:
        yield process, hear
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ResultsFolder]:
    """A study, sealed and not trained."""
    folder = tmp_path_factory.mktemp("sharing")
    study = write_study(folder, CHANGES)
    done = run_cli("plan", study, "--out", folder / "out", "--device", "cpu", folder=folder)
    assert done.returncode == 0, done.stderr
    return study, ResultsFolder(folder / "out")


def test_a_torchrun_of_ones_own_waits_for_a_run_in_other_hands_and_comes_back_to_it(planned):
    study, results = planned
    plan = Plan.read(results.plan)
    lock = Lock(results.stack_lock(0))
    assert lock.acquire()
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "ablationlab.torchrun"]
    log = study.parent / "own.log"
    with started(*launch, study, "--out", results.path, "--device", "cpu", log=log) as (process, hear):
        hear(f"All that is left is being trained by another process ({os.getpid()}); waiting for it.")
        assert [results.run(run_id).done for (run_id,) in plan.stacks] == [False, True]
        assert "trained;" not in log.read_text()
        lock.release()
        assert process.wait(timeout=PATIENCE) == 0, log.read_text()
    assert "All 2 runs are trained; 1 variant-baseline pairs match" in log.read_text()
    assert all(results.run(run_id).done for (run_id,) in plan.stacks)


def test_a_second_command_waits_without_starting_ranks_and_ends_well(planned):
    """Runs after the test above; a lost result puts one run back into training."""
    study, results = planned
    plan = Plan.read(results.plan)
    (first,), _ = plan.stacks
    if (whole := results.run(first).result).exists():
        whole.unlink()
    lock = Lock(results.stack_lock(0))
    assert lock.acquire()
    log = study.parent / "second.log"
    words = ["-m", "ablationlab", "run", study, "--out", results.path, "--executor", "torchrun", "--nproc", "2"]
    with started(*words, log=log) as (process, hear):
        hear(f"All that is left is being trained by another process ({os.getpid()}); waiting for it.")
        looked = []
        for _ in range(25):
            looked += launched_under(process.pid)
            time.sleep(0.1)
        assert looked == []
        lock.release()
        assert process.wait(timeout=PATIENCE) == 0, log.read_text()
    assert results.run(first).done
    assert "layout: ddp over 2 processes" in log.read_text()


def test_a_command_that_finds_another_scoring_waits_for_the_scores(trained, tmp_path):
    """What every second command meets when the first has trained the last run and scores the tasks."""
    shutil.copytree(trained.results, tmp_path / "copy")
    lock = Lock(ResultsFolder(tmp_path / "copy").locks / "evaluation")
    assert lock.acquire()
    said: list[str] = []

    def hear(text: str) -> None:
        said.append(text)
        lock.release()

    with torch_as_it_was():
        outcome = evaluate(tmp_path / "copy", device="cpu", throughput=False, report=hear)
    assert said[0] == f"another process ({os.getpid()}) is scoring these runs; waiting for it"
    assert len(outcome.evaluated) == 6
