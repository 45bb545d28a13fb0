"""Several commands on one study under torchrun: who finds a run in another's hands waits for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ablationlab.core.errors import RunFailure
from ablationlab.data.corpus import load_corpus
from ablationlab.evaluation import evaluate
from ablationlab.instrument.costing.disk import Spread, study_bytes
from ablationlab.model.parameters import parameters
from ablationlab.model.weights import weight_digest
from ablationlab.records.plan import Plan
from ablationlab.records.probes import read_probes
from ablationlab.records.run import Result
from ablationlab.records.storage import Lock, ResultsFolder
from ablationlab.study.load import load_study
from ablationlab.study.plan import make_plan, seal_plan
from ablationlab.study.probes import PROBES
from ablationlab.training.executors import torchrun
from ablationlab.training.executors.job import Job, refuse_failures
from ablationlab.training.loop import StackTrainer
from ablationlab.training.run_state import begin_record
from conftest import run_cli, started_with, torch_as_it_was, write_study

PATIENCE = 300
CHANGES = {
    "variants": ["none", "layernorm"],
    "seeds": [1],
    "training.steps": 24,
    "execution.checkpoint_every": 2,
    "execution.parallel": "ddp",
    "model.context": 32,
    "model.layers": 2,
    "probes": {"all": 6},
}


@contextmanager
def started(*words: str | Path, log: Path) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[str], None]]]:
    """A process, and a function that waits until it has said something."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *map(str, words)],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
            env={**os.environ, "RANKS_OF": str(log)},
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
            process.terminate()  # which ends the ranks, too
            process.wait(timeout=PATIENCE)


def taken(folder: Path) -> int:
    """Bytes of all files under a folder that another process writes to, but for those of probes, which no plan counts."""
    total = 0
    for place, _, names in os.walk(folder):  # what goes while it is looked at is not counted
        for name in [name for name in names if not name.startswith("probes")]:
            with suppress(FileNotFoundError):
                total += Path(place, name).stat().st_size
    return total


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ResultsFolder]:
    """A study, sealed and not trained."""
    folder = tmp_path_factory.mktemp("sharing")
    study = write_study(folder, CHANGES)
    done = run_cli("plan", study, "--out", folder / "out", "--device", "cpu", folder=folder)
    assert done.returncode == 0, done.stderr
    assert "with torchrun: ddp, --nproc 1, 2, 4" in " ".join(done.stdout.split())
    return study, ResultsFolder(folder / "out")


def test_commands_that_share_a_study_under_torchrun(planned):
    """One after another on the same runs, which take ranks seconds to start: so they are one test, whoever runs it."""
    a_torchrun_of_ones_own_waits_for_a_run_in_other_hands_and_comes_back_to_it(planned)
    probes_of_two_ranks_tell_what_probes_of_one_process_tell(planned)
    a_second_command_waits_without_starting_ranks_and_ends_well(planned)


def a_torchrun_of_ones_own_waits_for_a_run_in_other_hands_and_comes_back_to_it(planned):
    study, results = planned
    plan = Plan.read(results.plan)
    lock = Lock(results.stack_lock(0))
    assert lock.acquire()
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "ablationlab.cli.torchrun"]
    log = study.parent / "own.log"
    with started(*launch, study, "--out", results.path, "--device", "cpu", log=log) as (process, hear):
        hear(f"Another process is training all that is left ({os.getpid()}); waiting for it.")
        ranks = {env.get("RANK") for _, _, env in started_with("RANKS_OF", str(log))}
        assert {"0", "1"} <= ranks, "what looks for ranks finds none"
        assert [results.run(run_id).done for (run_id,) in plan.stacks] == [False, True]
        assert "trained;" not in log.read_text()
        lock.release()
        most = max(iter(lambda: taken(results.runs) if process.poll() is None else 0, 0))
        assert process.wait() == 0, log.read_text()
    assert "All 2 runs are trained; 1 variant-baseline pairs match" in log.read_text()
    assert all(results.run(run_id).done for (run_id,) in plan.stacks)
    # What `plan` would have said that these runs take: at the end, and with the checkpoints of the one in training.
    expected = study_bytes(plan.study, plan.runs, 1, Spread("ddp", 2))
    assert taken(results.runs) == pytest.approx(expected.end, rel=0.05)
    assert most == pytest.approx(expected.most, rel=0.05)
    assert most > 1.5 * expected.end


def probes_of_two_ranks_tell_what_probes_of_one_process_tell(planned):
    """Of the runs above: the leader of ddp looks at the whole model, on the same tokens as one process would."""
    study, results = planned
    plan = Plan.read(results.plan)
    alone = ResultsFolder(study.parent / "alone")
    with torch_as_it_was():
        corpus = load_corpus(plan.study.data)
        for stack in range(len(plan.stacks)):
            StackTrainer(Job(plan, alone.path, plan.study.data), stack, corpus, executor="local").train()
    for run in plan.runs:
        ours, theirs = (read_probes(folder.run(run.id)) for folder in (results, alone))
        assert [(line.step, line.probe, line.error) for line in ours] == [
            (line.step, line.probe, None) for line in theirs
        ]
        assert {line.probe for line in ours} == set(PROBES) - ({"embedding-gain"} if run.variant == "none" else set())
        assert {line.step for line in ours} == {1, 6, 12, 18, 24}
        for one, other in zip(ours, theirs, strict=True):
            labels = [(row.measure, row.group, row.at) for row in one.rows]
            assert labels == [(row.measure, row.group, row.at) for row in other.rows]
            values, expected = ([row.value for row in line.rows] for line in (one, other))
            if one.probe in ("data-mixture", "duplicate-ngrams"):
                assert values == expected
            np.testing.assert_allclose(values, expected, rtol=2e-3, atol=1e-7, err_msg=f"{one.probe}, step {one.step}")


def a_second_command_waits_without_starting_ranks_and_ends_well(planned):
    """A result that is not there yet is one that another process is about to write."""
    study, results = planned
    plan = Plan.read(results.plan)
    (first,), _ = plan.stacks
    written, result = results.path / "written.json", results.run(first).result
    result.rename(written)
    lock = Lock(results.stack_lock(0))
    assert lock.acquire()
    log = study.parent / "second.log"
    words = ["-m", "ablationlab", "run", study, "--out", results.path, "--executor", "torchrun", "--nproc", "2"]
    with started(*words, log=log) as (process, hear):
        hear(f"Another process is training all that is left ({os.getpid()}); waiting for it.")
        looked = []
        for _ in range(25):
            looked += [words for _, words, _ in started_with("RANKS_OF", str(log)) if "torch.distributed.run" in words]
            time.sleep(0.1)
        assert looked == []
        written.rename(result)
        lock.release()
        assert process.wait(timeout=PATIENCE) == 0, log.read_text()
    assert results.run(first).done
    starts = Result.read(results.run(first).result).history
    assert {(start.parallel, start.ranks) for start in starts} == {("ddp", 2)}


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


@pytest.fixture
def begun_by_torchrun(study_file, tmp_path) -> tuple[Path, Path]:
    """A study of four runs, the first of which two ranks have begun, and its results."""
    path = study_file({"variants": ["none", "layernorm"], "execution.parallel": "ddp"})
    study = load_study(path, ())
    plan = make_plan(study, load_corpus(study.data), "cpu", 1)
    results = ResultsFolder(tmp_path / "out")
    seal_plan(plan, results)
    run = plan.runs[0]
    digests = {p.name: weight_digest(p.draw(run.seed)) for p in parameters(run.model)}
    execution = plan.execution.over(("ddp", 2, False))
    folder = results.run(run.id)
    begin_record(plan, run, folder, digests, execution, executor="torchrun", environment=plan.environment)
    return path, results.path


@pytest.mark.parametrize("words", [("--workers", "1"), ("--executor", "torchrun", "--nproc", "1")])
def test_another_layout_is_refused_once_for_all_runs_and_before_any_process_starts(begun_by_torchrun, cli, words):
    study, out = begun_by_torchrun
    code, said, errors = cli("run", study, "--out", out, *words)
    assert code == 2
    assert (said + errors).count("began on 2 ranks (ddp), and this is") == 1
    assert not list(out.glob("locks/stack-*")), "a run was taken up"
    noticed = "execution.parallel = 'ddp' is for --executor torchrun; --executor local trains every run whole"
    assert said.count(noticed) == (words[0] == "--workers")


def test_what_happened_to_several_runs_in_the_same_words_is_said_once(begun_by_torchrun):
    plan = Plan.read(ResultsFolder(begun_by_torchrun[1]).plan)
    with pytest.raises(RunFailure) as told:
        refuse_failures(plan, {0: "the disk is full", 1: "its worker was killed", 2: "the disk is full"})
    lines = str(told.value).splitlines()[1:]
    assert lines == [
        f"  {plan.stacks[0][0]}, {plan.stacks[2][0]}: the disk is full",
        f"  {plan.stacks[1][0]}: its worker was killed",
    ]


def test_an_empty_entry_of_the_path_does_not_give_ranks_the_current_folder(monkeypatch):
    """As an interactive Python has one; in PYTHONPATH it means the folder that one stands in."""
    given = {}

    def start(*_: object, env: dict[str, str], **__: object) -> None:
        given.update(env)
        raise OSError

    monkeypatch.setattr(torchrun.subprocess, "Popen", start)
    monkeypatch.setattr(torchrun.JobFile, "of", lambda *_: SimpleNamespace(model_dump_json=lambda: "{}"))
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    job = SimpleNamespace(plan=SimpleNamespace(execution=SimpleNamespace(threads=1)))
    with pytest.raises(OSError):
        torchrun._launch(job, [0], 2, lambda _: None, lambda: False)
    assert "" not in given["PYTHONPATH"].split(os.pathsep)
