"""Probes in real training: they change no bit of it, survive a resume, fail alone, and stop where a run diverges."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ablationlab.records.probes import failures, read_probes, to_parquet
from ablationlab.records.run import Result
from ablationlab.records.storage import ResultsFolder, RunFolder
from ablationlab.study.probes import PROBES
from ablationlab.training.probes.stack_probes import MEASUREMENTS
from ablationlab.training.stack import Stack
from conftest import read_metrics, run_here, write_study

STUDY = {"probes": {"all": 5, "cosine": 3}, "execution.stack_width": 4, "training.clip": 0.5}


def folders(results: Path) -> list[RunFolder]:
    found = [RunFolder(path) for path in sorted((results / "runs").iterdir())]
    assert len(found) == 6
    return found


def bits(run: RunFolder) -> tuple[str, bytes]:
    return Result.read(run.result).weights_sha256, run.metrics.read_bytes()


def train(cli, study: Path, out: str) -> str:
    code, said, wrong = cli("run", study, "--out", out, "--workers", "1", "--device", "cpu")
    assert code == 0, said + wrong
    return said


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny study with every probe, trained by the real command, in stacks that mix all three arms; not to be changed."""
    folder = tmp_path_factory.mktemp("watched")
    study = write_study(folder, STUDY)
    code, said, wrong = run_here("run", study, "--out", "watched", "--workers", "1", "--device", "cpu", folder=folder)
    assert code == 0, said + wrong
    return folder / "watched"


def test_probes_change_no_bit_of_training_and_leave_whole_records(watched, cli, tmp_path):
    train(cli, write_study(tmp_path, {k: v for k, v in STUDY.items() if k != "probes"}, "plain.toml"), "plain")
    for run, plain in zip(folders(watched), folders(tmp_path / "plain"), strict=True):
        assert run.path.name == plain.path.name
        assert bits(run) == bits(plain)
        assert not plain.probes.exists()
        assert not plain.probe_table.exists()
        lines = read_probes(run)
        normed = not run.path.name.startswith("none")
        assert {line.probe for line in lines} == set(PROBES) - (set() if normed else {"embedding-gain"})
        assert [line.step for line in lines if line.probe == "residual"] == [1, 5, 10, 12]
        assert [line.step for line in lines if line.probe == "cosine"] == [1, 3, 6, 9, 12]
        assert not failures(lines)
        assert run.probe_table.read_bytes() == to_parquet(run.path.name, lines)
        assert pq.read_table(run.probe_table).num_rows == sum(len(line.rows) for line in lines)
        steps = {line.step: line for line in read_metrics(run.metrics)}
        for line in lines:
            if line.probe == "gradient-norm":
                total = next(row.value for row in line.rows if row.group == "total")
                assert total == pytest.approx(steps[line.step].gradient_norm, rel=1e-5)
    shared = [json.loads(run.record.read_text())["stack_members"] for run in folders(watched)]
    assert any(any("none" in m for m in members) and any("norm-" in m for m in members) for members in shared)


def test_variants_of_a_seed_are_fed_the_same_and_start_from_the_same_rows(watched):
    by_seed: dict[str, list[list]] = {}
    for run in folders(watched):
        seed = run.path.name.split("-")[1]
        kept = [line for line in read_probes(run) if line.probe in ("data-mixture", "duplicate-ngrams")]
        by_seed.setdefault(seed, []).append([line.model_dump() for line in kept])
    assert set(by_seed) == {"s1", "s2"}
    for lines in by_seed.values():
        assert lines[0] == lines[1] == lines[2]
    assert by_seed["s1"] != by_seed["s2"]


class Stop(Exception):
    """Stands for a crash."""


def test_a_probe_that_fails_is_reported_recorded_and_off_and_stays_off_after_a_resume(
    watched, cli, tmp_path, monkeypatch
):
    real, calls = MEASUREMENTS["attention"], []

    def failing(snapshot):
        calls.append(snapshot.step)
        if snapshot.step >= 5:
            raise ZeroDivisionError("no luck")
        return real(snapshot)

    monkeypatch.setitem(MEASUREMENTS, "attention", failing)
    step, study = Stack.advance, write_study(tmp_path, STUDY)

    def crashing(self, **words):
        crashing.calls += 1
        if crashing.calls == 11 and crashing.armed:
            raise Stop
        return step(self, **words)

    crashing.armed, crashing.calls = True, 0
    monkeypatch.setattr(Stack, "advance", crashing)
    code, said, wrong = cli("run", study, "--out", "failed", "--workers", "1", "--device", "cpu")
    assert code == 1
    assert "Stop" in wrong
    assert "probe attention failed at step 5 and is off from here on: ZeroDivisionError: no luck" in said
    assert set(calls) == {1, 5}
    crashing.armed = False
    calls.clear()
    train(cli, study, "failed")  # continues from step 8; attention would be due at 10 and 12
    assert calls == []
    for run, whole in zip(folders(tmp_path / "failed"), folders(watched), strict=True):
        assert bits(run) == bits(whole)
        lines = read_probes(run)
        assert failures(lines) == {"attention": (5, "ZeroDivisionError: no luck")}
        assert json.loads(pq.read_schema(run.probe_table).metadata[b"failures"])["attention"]["step"] == 5
        others = [line for line in lines if line.probe != "attention"]
        assert others == [line for line in read_probes(whole) if line.probe != "attention"]


def test_a_run_that_diverged_is_not_looked_at_any_more_and_its_neighbours_are(cli, tmp_path):
    wild = {**STUDY, "training.clip": "off", "training.lr": 1e-2, "regimes.wild.training.lr": 1e30, "seeds": [1]}
    train(cli, write_study(tmp_path, {**wild, "probes": {"all": 1}}), "wild")
    results = ResultsFolder(tmp_path / "wild")
    states = set()
    for path in sorted(results.runs.iterdir()):
        run = RunFolder(path)
        result, lines = Result.read(run.result), read_probes(run)
        states.add(result.status)
        last = result.steps - 1 if result.status == "diverged" else result.steps
        assert not failures(lines)
        for probe in ("residual", "effective-rank", "gradient-bound", "second-moment"):
            assert [line.step for line in lines if line.probe == probe] == list(range(1, last + 1)), (path.name, probe)
    assert states == {"finished", "diverged"}


def test_the_verb_lists_every_probe_and_shows_those_of_a_run(watched, cli):
    code, said, _ = cli("probes")
    assert code == 0
    assert all(name in said for name in PROBES)
    code, said, _ = cli("probes", folders(watched)[0].path)
    assert code == 0
    assert "from step 1 to 12" in said
    assert "participation" in said
    code, _, wrong = cli("probes", watched)
    assert code == 2
    assert "not a run's folder" in wrong
