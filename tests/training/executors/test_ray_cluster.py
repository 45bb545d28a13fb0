"""A real Ray cluster of two nodes on this machine: what dies in mid-run continues elsewhere and ends with the same bits."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

import warm
from ablationlab import pipeline
from ablationlab.core.errors import AblationLabError, PlanError, RunFailure
from ablationlab.core.processes import usable_cores
from ablationlab.pipeline import seal
from ablationlab.records.environment import current
from ablationlab.records.results import Results
from ablationlab.records.run import RunRecord
from ablationlab.records.storage import Lock, ResultsFolder
from ablationlab.study.load import load_study
from ablationlab.study.trust import carried_code
from ablationlab.training.executors import local, ray_cluster
from ablationlab.training.executors.job import Event, Job, JobFile
from conftest import to_toml, torch_as_it_was, write_study

ray = pytest.importorskip("ray", reason="no ray (make test-more)")
pytestmark = [pytest.mark.needs("ray"), pytest.mark.filterwarnings("ignore")]  # Ray's own, of which there are many


@dataclass
class Ear:
    """Hears everything, and does one thing at the first event that *when* is true of."""

    when: object
    act: object
    heard: list[Event] = field(default_factory=list)
    acted: bool = False

    def __call__(self, event: Event) -> None:
        self.heard.append(event)
        if not self.acted and self.when(event):
            self.acted = True
            self.act(event)

    def kinds(self) -> list[str]:
        return [event.kind for event in self.heard if event.kind != "progress"]

    def starts(self) -> set[int]:
        return {event.payload.start for event in self.heard if event.kind == "progress"}


def nothing(_: Event) -> bool:
    return False


def in_the_middle(event: Event) -> bool:
    return event.kind == "progress" and 20 <= event.payload.step < event.payload.steps


@pytest.fixture(scope="module")
def nodes():
    """Two nodes with one core each; the second can be taken away."""
    for name, value in ray_cluster.QUIET.items():
        os.environ.setdefault(name, value)
    from ray.cluster_utils import Cluster

    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", warm.FRESH)  # Ray knows its processes by their parents
        patch.setenv("RAY_idle_worker_killing_time_threshold_ms", "600000")  # the next test uses them again
        warnings.simplefilter("ignore")
        size = {"num_cpus": 1, "object_store_memory": ray_cluster.OBJECT_STORE_BYTES}
        made = Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
        second = made.add_node(**size)
        ray.init(address=made.address, log_to_driver=False, logging_level="error")
    yield made, second
    ray.shutdown()
    made.shutdown()


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Two runs of some seconds."""
    changes = {"variants": ["none", "layernorm"], "seeds": [1], "training.steps": 240, "execution.checkpoint_every": 10}
    return load_study(write_study(tmp_path_factory.mktemp("study"), changes))


def job_in(study, folder: Path) -> Job:
    plan, _ = seal(study, ResultsFolder(folder), "cpu", 1)
    return Job(plan, folder, study.data)


@pytest.fixture
def job(study, tmp_path, monkeypatch) -> Job:
    monkeypatch.setattr(ray_cluster, "REPORT_SECONDS", 0.02)  # travels with the task
    return job_in(study, tmp_path / "ray")


def bytes_of(job: Job) -> dict[str, tuple[bytes, bytes]]:
    """Weights and metrics of every run."""
    found = {}
    for run in job.plan.runs:
        folder = ResultsFolder(job.folder).run(run.id)
        (weights,) = folder.path.glob("checkpoints/*/weights.safetensors")
        found[run.id] = weights.read_bytes(), folder.metrics.read_bytes()
    return found


@pytest.fixture(scope="module")
def undisturbed(study, tmp_path_factory):
    """What the local executor makes of the same study."""
    job = job_in(study, tmp_path_factory.mktemp("local"))
    with torch_as_it_was():
        assert local.execute(job, 1, lambda event: None)
    return bytes_of(job)


def test_a_killed_worker_is_replaced_and_the_bits_are_those_of_an_undisturbed_run(nodes, job, undisturbed):
    def kill(event: Event) -> None:
        os.kill(int(Lock(ResultsFolder(job.folder).stack_lock(event.stack)).holder()), signal.SIGKILL)

    ear = Ear(in_the_middle, kill)
    assert ray_cluster.execute(job, None, None, ear)
    assert ear.acted
    assert sorted(ear.kinds()) == ["done", "done", "retry"]
    assert max(ear.starts()) >= 10  # it continued, it did not begin again
    assert bytes_of(job) == undisturbed
    assert RunRecord.read(ResultsFolder(job.folder).run(job.plan.runs[0].id).record).executor == "ray"


def test_a_studys_own_code_is_run_by_the_workers(nodes, tmp_path):
    code = "import ablationlab as lab\n@lab.schedule('flat')\ndef flat(training, step, steps):\n    return 0.5\n"
    (tmp_path / "mine.py").write_text(code)
    arms = {"none": {}, "flat": {"training": {"schedule": "flat"}}}
    path = write_study(tmp_path, {"use": ["./mine.py"], "variants": arms, "seeds": [1]})
    pipeline.run(path, tmp_path / "out", executor="ray", device="cpu", listen=lambda event: None)
    runs = {run.variant: run for run in Results.open(tmp_path / "out").runs}
    assert {run.record.executor for run in runs.values()} == {"ray"}
    assert len(set(runs["flat"].curves["lr"])) == 1 < len(set(runs["none"].curves["lr"]))


def test_ctrl_c_stops_at_a_step_boundary_and_the_same_command_continues(nodes, job, undisturbed):
    ear = Ear(in_the_middle, lambda _: os.kill(os.getpid(), signal.SIGINT))
    assert not ray_cluster.execute(job, None, None, ear)
    assert "stopping" in ear.kinds()
    assert "stopped" in ear.kinds()
    assert list(job.folder.glob("runs/*/checkpoints/*/optimizer.safetensors"))
    again = Ear(nothing, None)
    assert ray_cluster.execute(job, None, None, again)
    assert max(again.starts()) > 0
    assert bytes_of(job) == undisturbed


def test_a_worker_of_another_version_is_refused_before_training(nodes, job):
    other = current().model_copy(update={"code_hash": "0" * 64})
    plan = job.plan.model_copy(update={"environment": other}).sealed()
    ResultsFolder(job.folder).plan.unlink()
    plan.create(ResultsFolder(job.folder).plan)
    with pytest.raises(PlanError, match=r"ablationlab's source 000000000000 -> "):
        ray_cluster.execute(Job(plan, job.folder, job.data), None, None, lambda event: None)
    assert not list(job.folder.glob("runs/*"))
    # A worker that joins later is not asked before the first task: the task itself refuses.
    ended = ray_cluster._attempt_here(JobFile.of(Job(plan, job.folder, job.data)), 0, lambda event: None, lambda: False)
    assert ended.kind == "failed"
    assert "not what the plan was sealed for" in ended.payload


def test_a_worker_that_sees_another_program_refuses_it_or_records_it(tmp_path, monkeypatch):
    program, path = tmp_path / "train.py", tmp_path / "study.toml"
    program.write_text("print('hello')\n")
    own = {"name": "own", "baseline": "base", "seeds": [1], "metrics": {"val_loss": "lower"}, "training": {"lr": 0.1}}
    arms = {"base": {}, "fast": {"training": {"lr": 0.2}}}
    path.write_text(to_toml({**own, "command": ["{python}", "train.py", "{arguments}"], "variants": arms}))
    plan, _ = seal(load_study(path), ResultsFolder(tmp_path / "out"), "cpu", 1)
    program.write_text("print('other')\n")
    monkeypatch.setattr(ray_cluster, "attempt", lambda job, *_: job)
    job = Job(plan, tmp_path / "out", plan.study.data)
    words = (0, lambda event: None, lambda: False)
    assert "train.py" in ray_cluster._attempt_here(JobFile.of(job), *words).payload
    accepted = ray_cluster._attempt_here(JobFile.of(replace(job, accept_drift=True)), *words)
    assert [Path(drift.what).name for drift in accepted.drift] == ["train.py"]


def stranger() -> str:
    """A function by whose name no worker finds anything: this module is not on their path, as another version's is not."""
    return ""


def test_a_node_that_cannot_run_this_version_says_why(nodes, job):
    answer = ray.remote(stranger).options(num_cpus=0, max_retries=0).remote()
    (line,) = ray_cluster._found_wrong(ray, answer, job)
    assert line.startswith("cannot run this version of ablationlab; is it installed there?")
    assert "No module named 'training'" in line


@pytest.mark.parametrize(
    ("change", "needs"), [({"device": "cuda"}, "1 CPU and 1 GPU"), ({"threads": 64}, "64 CPU")], ids=["gpu", "cores"]
)
def test_a_task_that_no_node_is_large_enough_for_is_an_error_and_does_not_hang(nodes, job, change, needs):
    plan = job.plan.model_copy(update={"execution": job.plan.execution.model_copy(update=change)})
    with pytest.raises(PlanError, match=f"needs {needs} on one node, and no node of the cluster has that"):
        ray_cluster.execute(Job(plan, job.folder, job.data), None, None, lambda event: None)


def test_a_lost_node_costs_what_came_after_the_last_checkpoint(nodes, job, undisturbed):
    made, second = nodes
    running: set[int] = set()

    def both(event: Event) -> bool:
        if in_the_middle(event):
            running.add(event.stack)
        return len(running) == 2

    ear = Ear(both, lambda _: made.remove_node(second, allow_graceful=False))
    assert ray_cluster.execute(job, None, None, ear)
    assert ear.acted
    assert "retry" in ear.kinds()
    assert not made.worker_nodes
    assert bytes_of(job) == undisturbed


def test_a_lost_cluster_says_that_the_same_command_continues(nodes, job, monkeypatch):
    """The head node died: not even the mailbox answers."""

    def lost(*_: object) -> bool:
        raise ray.exceptions.ActorDiedError

    monkeypatch.setattr(ray_cluster._Schedule, "run", lost)
    with pytest.raises(RunFailure, match=r"the Ray cluster is lost.*run the same command again to continue"):
        ray_cluster.execute(job, None, None, lambda event: None)


ANSWER = {"device": "cpu (X)", "plan_hash": "p", "sees_lock": True}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({}, None),
        ({"plan_hash": None}, "does not see the results folder"),
        ({"plan_hash": "q"}, "another plan"),
        ({"sees_lock": False}, "does not see locks"),
        ({"device": "NVIDIA L4"}, "device cpu (X) -> NVIDIA L4"),
    ],
)
def test_a_node_is_compared_with_the_plan(job, change, word):
    plan = job.plan
    plan = plan.model_copy(
        update={"plan_hash": "p", "execution": plan.execution.model_copy(update={"device_name": "cpu (X)"})}
    )
    node = ray_cluster.NodeReport(**{**ANSWER, "environment": plan.environment, **change})
    problems = ray_cluster.mismatches(node, plan, accept_drift=False)
    assert (not problems) if word is None else (len(problems) == 1 and word in problems[0])


def test_other_libraries_on_a_node_are_named_unless_accepted(job):
    plan = job.plan
    environment = plan.environment.model_copy(update={"versions": {**plan.environment.versions, "torch": "1.0"}})
    node = ray_cluster.NodeReport(
        environment=environment, device=plan.execution.device_name, plan_hash=plan.plan_hash, sees_lock=True
    )
    (line,) = ray_cluster.mismatches(node, plan, accept_drift=False)
    assert line.startswith("torch ")
    assert line.endswith("-> 1.0")
    assert not ray_cluster.mismatches(node, plan, accept_drift=True)


@pytest.mark.parametrize(
    ("address", "word"),
    [
        ("127.0.0.1:1", "nothing answers there"),
        ("nowhere", "expected auto or host:port"),
        ("ray://127.0.0.1:10001", "expected auto or host:port"),
        ("127.0.0.1:99999", "expected auto or host:port"),
    ],
)
def test_an_address_that_is_none_is_an_error_within_a_bounded_time(address, word):
    with pytest.raises(AblationLabError, match=word):
        ray_cluster._reachable(address)


def test_something_else_at_the_address_is_given_up_on(monkeypatch):
    import socket

    monkeypatch.setattr(ray_cluster, "JOIN_SECONDS", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(AblationLabError, match="something answers there, but no Ray cluster within 2 s"):
            ray_cluster._reachable(address)


def test_a_cluster_that_does_not_start_is_a_clear_error(monkeypatch, tmp_path):
    def slow(**_: object) -> None:
        assert Path.cwd() == Path(sys.prefix), "workers would import modules of the current folder"
        raise Exception("The current node timed out during startup.\nMore of it.")

    monkeypatch.chdir(tmp_path)

    ray = ray_cluster._import()
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", slow)
    monkeypatch.setattr(ray_cluster, "_reachable", str)
    with (
        pytest.raises(
            AblationLabError, match=r"the cluster at --address h:1 cannot be used: The current node timed out"
        ),
        ray_cluster.cluster(None, "h:1", None),
    ):
        pass


def test_without_ray_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(ray_cluster, "find_spec", lambda name: None)
    with pytest.raises(AblationLabError, match=r"pip install 'ablationlab\[ray\]'"):
        ray_cluster._import()


def test_an_address_without_ray_is_refused(cli, study_file, tmp_path: Path):
    code, _, err = cli("run", study_file(), "--out", tmp_path / "r", "--address", "auto")
    assert code == 2
    assert "belongs to --executor ray" in err


def test_a_studys_own_trainer_is_run_by_the_workers(nodes, tmp_path):
    """A program, and a function that a file of the study registers."""
    (tmp_path / "train.py").write_text(
        "import json, os\nwith open(os.environ['ABLATIONLAB_RUN'] + '/reported.jsonl', 'a') as file:\n"
        "    for line in ({'step': 1, 'loss': 1.0}, {'result': {'val_loss': 0.5}}):\n"
        "        file.write(json.dumps(line) + '\\n')\n"
    )
    (tmp_path / "mine.py").write_text(
        "import ablationlab as lab\n@lab.trainer('mine', metrics={'val_loss': 'lower'})\ndef mine(run):\n"
        "    for step in run.steps():\n        run.log(step, loss=1.0 / step)\n"
        "    return {'val_loss': run.settings['training']['lr']}\n"
    )
    tables = {"training": {"lr": 0.5, "steps": 2}, "variants": {"a": {}, "b": {"training": {"lr": 0.25}}}}
    common = {"baseline": "a", "seeds": [1], **tables}
    command = {"name": "by-command", "command": ["{python}", "train.py"], "metrics": {"val_loss": "lower"}, **common}
    function = {"name": "by-function", "use": ["./mine.py"], "trainer": "mine", **common}
    for table in (command, function):
        path = tmp_path / f"{table['name']}.toml"
        path.write_text(to_toml(table))
        study = load_study(path)
        plan, _ = seal(study, ResultsFolder(tmp_path / table["name"]), "cpu", usable_cores())  # a thread each
        agreed = frozenset(code.sha256 for code in carried_code(study))
        job = Job(plan, tmp_path / table["name"], study.data, agreed=agreed)
        assert ray_cluster.execute(job, None, None, lambda event: None)
        runs = Results.open(job.folder).runs
        assert {run.record.executor for run in runs} == {"ray"}
        expected = {"a": 0.5, "b": 0.5} if table is command else {"a": 0.5, "b": 0.25}
        assert {run.variant: run.result.metrics["val_loss"] for run in runs} == expected
