"""Runs of the user's own trainer, through real programs and real signals."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import platformdirs
import pytest

import warm
from ablationlab import pipeline
from ablationlab.analysis import wording
from ablationlab.core.errors import PlanError
from ablationlab.data.sources import cache_folder
from ablationlab.pipeline import seal
from ablationlab.records.plan import Plan
from ablationlab.records.results import Results
from ablationlab.records.run import Result, RunRecord, read_curves
from ablationlab.records.storage import Lock, ResultsFolder
from ablationlab.report.page.build import page_html
from ablationlab.report.terminal.run import run_view
from ablationlab.study.load import load_study
from ablationlab.study.trust import carried_code
from ablationlab.training.executors import local
from ablationlab.training.executors.job import Event, Job, attempt, open_stacks
from ablationlab.training.own_run import _Read, cut_back, reported_lines, step_lines
from conftest import run_cli, to_toml

#: Trains a small model with dropout, so that weights, optimizer state and the random generators all matter.
BODY = """\
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=run.settings["training"]["lr"])
    run.started(model)
    for step in run.steps(model=model, optimizer=optimizer):
        batch = torch.randn(4, 3)
        loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(step, loss=float(loss), fed=batch)
        HOOK
    run.budget(tokens=4 * step, flops=100.0 * step)
"""
LOOP = f"""
import os, signal, sys, time, torch
import ablationlab as lab
from ablationlab.training import own_run

own_run.CHECKPOINT_SECONDS = 0.0
with lab.current_run() as run:
{BODY}    run.finish(val_loss=float(loss))
"""

STUDY = {
    "name": "own",
    "baseline": "base",
    "seeds": [1],
    "command": ["{python}", "train.py"],
    "metrics": {"val_loss": "lower"},
    "training": {"steps": 12, "lr": 0.01},
    "variants": {"base": {}, "fast": {"training": {"lr": 0.02}}},
}
ONE_ARM = {"variants": {"base": {}}}


def write(folder: Path, program: str, file: str = "train.py", **changes: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / file).write_text(program)
    path = folder / "study.toml"
    path.write_text(to_toml({key: value for key, value in {**STUDY, **changes}.items() if value is not ...}))
    return path


@dataclass(frozen=True)
class Ended:
    returncode: int
    stderr: str


def job_of(plan: Plan, results: ResultsFolder) -> Job:
    """Of a study whose command was agreed to as it is now."""
    agreed = frozenset(code.sha256 for code in carried_code(plan.study))
    return Job(plan, results.path, plan.study.data, agreed=agreed)


def trained(folder: Path, program: str, **changes: object) -> Ended:
    """Every open run, in this process; the programs are real."""
    study = load_study(write(folder, program, **changes))
    results = ResultsFolder(folder / "results")
    plan, _ = seal(study, results, "cpu", 1)
    job = job_of(plan, results)
    events = []
    for stack in open_stacks(plan, results):
        while (event := attempt(job, stack, None, "local", lambda _: None, lambda: False)).kind == "busy":
            time.sleep(0.1)  # a program that was killed a moment ago
        events.append(event)
    failures = [str(event.payload) for event in events if event.kind != "done"]
    return Ended(len(failures), "\n".join(failures))


def by_command(folder: Path, program: str, **changes: object) -> subprocess.CompletedProcess[str]:
    """The same through the command line, which signals can stop."""
    study = write(folder, program, **changes)
    return run_cli("run", study, "--out", "results", "--workers", "1", folder=folder)


def results_of(folder: Path) -> dict[str, Result]:
    """By variant and seed, as in base-s1."""
    runs = sorted((folder / "results" / "runs").iterdir())
    return {
        run.name.rpartition("-")[0]: Result.read(run / "result.json") for run in runs if (run / "result.json").exists()
    }


def run_folder(folder: Path, name: str = "base-s1") -> Path:
    return next((folder / "results" / "runs").glob(f"{name}-*"))


def same_outcome(a: Path, b: Path, name: str = "base-s1") -> None:
    """Everything that a run measured, to the last bit."""
    first, second = Result.read(run_folder(a, name) / "result.json"), Result.read(run_folder(b, name) / "result.json")
    for field in ("status", "steps", "metrics", "tokens", "matmul_flops", "data_order_hash", "initial_weights"):
        assert getattr(first, field) == getattr(second, field), field
    assert (run_folder(a, name) / "metrics.jsonl").read_bytes() == (run_folder(b, name) / "metrics.jsonl").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The loop, trained without interruption."""
    folder = tmp_path_factory.mktemp("whole")
    ended = trained(folder, LOOP.replace("HOOK", "pass"))
    assert ended.returncode == 0, ended.stderr
    return folder


def test_what_tests_consent_to_stays_out_of_the_cache_of_the_user(whole):
    ((_, sha256),) = carried_code(load_study(whole / "study.toml"))
    assert (cache_folder() / "trusted" / sha256).exists()
    assert not Path(platformdirs.user_cache_dir("ablationlab"), "trusted", sha256).exists()


def test_what_a_loop_reports_is_in_its_result(whole):
    result, fast = results_of(whole)["base-s1"], results_of(whole)["fast-s1"]
    assert (result.status, result.steps, result.tokens, result.matmul_flops) == ("finished", 12, 48, 1200)
    assert result.metrics == {"val_loss": pytest.approx(read_curves(run_folder(whole) / "metrics.jsonl")["loss"][-1])}
    assert set(result.initial_weights) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert result.initial_weights == fast.initial_weights
    assert result.data_order_hash == fast.data_order_hash is not None
    record = RunRecord.read(run_folder(whole) / "run.json")
    assert (record.recipe, record.settings, record.seed) == (None, {"training": {"steps": 12, "lr": 0.01}}, 1)


def once(folder: Path, step: int, action: str) -> str:
    """A line of the loop that acts in the first start only, and then waits for what comes of it."""
    return f"if step == {step} and not os.path.exists('{folder}/hit'): open('{folder}/hit', 'w'); {action}"


def test_a_program_that_is_asked_to_stop_saves_and_continues_with_the_same_bits(tmp_path, whole):
    program = LOOP.replace("HOOK", once(tmp_path, 5, "os.kill(os.getppid(), signal.SIGINT); time.sleep(1)"))
    assert by_command(tmp_path, program, **ONE_ARM).returncode != 0
    state = json.loads((run_folder(tmp_path) / "state.json").read_bytes())
    assert 5 <= state["step"] < 12
    second = trained(tmp_path, program, **ONE_ARM)
    assert second.returncode == 0, second.stderr
    same_outcome(tmp_path, whole)
    starts = json.loads((run_folder(tmp_path) / "starts.json").read_bytes())
    assert [start["step"] for start in starts] == [0, state["step"]]


def test_a_killed_command_and_its_program_continue_with_the_same_bits(tmp_path, whole):
    program = LOOP.replace("HOOK", once(tmp_path, 7, "os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)"))
    assert by_command(tmp_path, program, **ONE_ARM).returncode == -signal.SIGKILL
    assert reported_lines(run_folder(tmp_path))[-1]["step"] == 7  # reported, but the state is that of step 6
    with (run_folder(tmp_path) / "reported.jsonl").open("a") as file:
        file.write('{"step": 8, "lo')  # torn in the middle of a line
    second = trained(tmp_path, program, **ONE_ARM)
    assert second.returncode == 0, second.stderr
    same_outcome(tmp_path, whole)


TRAINER = f"""
import os, signal, torch
import ablationlab as lab
from ablationlab.training import own_run
own_run.CHECKPOINT_SECONDS = 0.0

@lab.trainer("mine", metrics={{"val_loss": "lower"}})
def train(run):
    print("hello from", run.variant)
{BODY}    return {{"val_loss": float(loss)}}
"""
BY_NAME = {"command": ..., "metrics": ..., "use": ["./mine.py"], "trainer": "mine"}


def by_name(folder: Path, hook: str = "pass", **changes: object) -> subprocess.CompletedProcess[str]:
    study = write(folder, TRAINER.replace("HOOK", hook), "mine.py", **{**BY_NAME, **changes})
    return run_cli("run", study, "--out", "results", "--workers", "1", folder=folder)


def test_a_registered_trainer_gives_the_same_bits_as_the_same_loop_in_a_program(tmp_path, whole):
    ended = by_name(tmp_path, **ONE_ARM)
    assert ended.returncode == 0, ended.stderr
    same_outcome(tmp_path, whole)
    printed = (run_folder(tmp_path) / "output.log").read_text()
    assert printed.startswith("hello from base\n")
    assert "step 1 of 12" not in printed


@pytest.mark.parametrize("how", ["SIGINT", "SIGKILL"])
def test_a_registered_trainer_continues_with_the_same_bits(tmp_path, whole, how):
    hook = once(tmp_path, 5, f"os.kill(os.getpid(), signal.{how})")
    assert by_name(tmp_path, hook, **ONE_ARM).returncode != 0
    ended = by_name(tmp_path, hook, **ONE_ARM)
    assert ended.returncode == 0, ended.stderr
    same_outcome(tmp_path, whole)


@pytest.mark.parametrize(
    ("hook", "text"),
    [
        ('raise KeyError("wte")', "mine.py, line 20, in train: KeyError: 'wte'"),
        ("raise SystemExit(3)", "mine.py, line 20, in train: SystemExit: 3"),
        ("return 3", "the trainer 'mine' returned int, not a mapping of metrics"),
        (
            'return {"valloss": 1.0}',
            "did not report val_loss, which the study names in metrics; it reported valloss. Did you mean valloss?",
        ),
        ('return {"val_loss": 1.0, "steps": "many"}', "could not convert string to float"),
    ],
)
def test_a_registered_trainer_that_fails_is_named_with_file_and_line(tmp_path, hook, text):
    ended = by_name(tmp_path, hook, **ONE_ARM)
    assert ended.returncode != 0
    assert text in " ".join(ended.stderr.split())


REPORT = """
import json, os, sys
def report(**line):
    with open(os.environ["ABLATIONLAB_RUN"] + "/reported.jsonl", "a") as file:
        print(json.dumps(line), file=file)
"""


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("print('no memory'); raise SystemExit(7)", "ended with exit code 7; its last line: no memory"),
        ("os.kill(os.getpid(), 9)", "ended with signal 9; its last line: it printed nothing"),
        (
            "report(result={'val_los': 1.0})",
            "did not report val_loss, which the study names in metrics; it reported val_los. Did you mean val_los?",
        ),
        ("report(results={'val_loss': 1.0})", "it reported results"),
        ("pass", "it reported no result"),
        ("report(result={'val_loss': 'low'})", 'result is {"val_loss": "low"}, not an object of numbers'),
        ("report(result=3)", "result is 3, not an object of numbers"),
        ("report(step=0.5, loss=1.0)", "step is 0.5, not a whole number"),
        ("report(tokens='many', result={'val_loss': 1.0})", 'tokens is "many", not a number'),
        (
            "open(os.environ['ABLATIONLAB_RUN'] + '/reported.jsonl', 'w').write('loss 3\\n')",
            "reported.jsonl, line 1: not JSON: 'loss 3'",
        ),
        (
            "open(os.environ['ABLATIONLAB_RUN'] + '/reported.jsonl', 'w').write('[1]\\n')",
            "reported.jsonl, line 1: '[1]' is not a JSON object",
        ),
    ],
)
def test_a_program_that_fails_says_how(tmp_path, program, text):
    ended = trained(tmp_path, REPORT + program, **ONE_ARM)
    assert ended.returncode != 0
    assert text in " ".join(ended.stderr.split())
    assert not results_of(tmp_path)


@pytest.mark.parametrize(
    ("program", "step", "cause"),
    [
        (
            "report(step=1, loss=2.0); report(step=2, loss=float('nan')); report(result={'val_loss': 1.0})",
            2,
            "loss is NaN",
        ),
        ("report(step=1, loss=2.0); report(step=2, loss=float('inf')); report(step=2, lr=0.1)", 2, "loss is ∞"),
        ("report(step=4, loss=2.0); report(result={'val_loss': float('nan')})", 4, "val loss is NaN"),
        (
            "report(step=4, loss=9.0); report(diverged={'step': 3, 'cause': 'loss above 8'}); raise SystemExit(1)",
            3,
            "loss above 8",
        ),
    ],
)
def test_divergence_is_a_result(tmp_path, program, step, cause):
    ended = trained(tmp_path, REPORT + program, **ONE_ARM)
    result = results_of(tmp_path)["base-s1"]
    assert (result.status, result.divergence.step, wording.cause(result.divergence)) == ("diverged", step, cause), (
        ended.stderr
    )
    assert result.metrics == {"val_loss": None}


def test_a_loss_that_recovers_is_no_divergence(tmp_path):
    trained(
        tmp_path,
        REPORT + "report(step=1, loss=float('nan')); report(step=2, loss=1.0); report(result={'val_loss': 1.0})",
        **ONE_ARM,
    )
    assert results_of(tmp_path)["base-s1"].status == "finished"


def test_a_divergence_of_an_earlier_start_does_not_outlive_it(tmp_path):
    program = (
        REPORT
        + """
first = not os.path.exists("begun")
open("begun", "w")
report(step=1, loss=1.0)
report(diverged={"step": 1}) if first else report(result={"val_loss": 1.0})
if first:
    report(tokens="many")
"""
    )
    assert "tokens" in trained(tmp_path, program, **ONE_ARM).stderr
    (run_folder(tmp_path) / "reported.jsonl").write_text('{"diverged": {"step": 1}}\n')
    assert trained(tmp_path, program, **ONE_ARM).returncode == 0
    assert results_of(tmp_path)["base-s1"].metrics == {"val_loss": 1.0}


def test_a_program_past_its_timeout_is_ended(tmp_path):
    ended = trained(tmp_path, "import time; time.sleep(100)", timeout=0.3, **ONE_ARM)
    assert "it ran past timeout = 0.3 seconds and was ended" in ended.stderr


def test_a_registered_trainer_past_its_timeout_is_ended_at_a_step(tmp_path):
    ended = by_name(tmp_path, '__import__("time").sleep(0.2)', timeout=0.3, **ONE_ARM)
    assert "it ran past timeout = 0.3 seconds and was ended" in ended.stderr


def test_a_program_that_ignores_a_request_to_stop_is_killed(tmp_path):
    program = """
import os, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
open("pid", "w").write(str(os.getpid()))
os.kill(os.getppid(), signal.SIGINT)
time.sleep(100)
"""
    start = "from ablationlab.training import own_trainer; own_trainer.GRACE_SECONDS = 0.3; "
    start += "from ablationlab.cli.app import main; main()"
    study = write(tmp_path, program, **ONE_ARM)
    ended = warm.python("-c", start, "run", study, "--out", "results", "--workers", "1", folder=tmp_path)
    assert ended.returncode != 0
    assert not alive(int((tmp_path / "pid").read_text()))
    assert not results_of(tmp_path)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except FileNotFoundError:
        return False


def test_a_program_that_outlives_its_command_keeps_the_folder_to_itself(tmp_path):
    """A grandchild survives when the whole command is killed; as long as it lives, no second run writes there."""
    program = """
import os, signal, subprocess, sys, time
if len(sys.argv) > 1:
    time.sleep(3)
    open("orphan-ended", "w").write(str(os.path.exists("second-began")))
elif not os.path.exists("first"):
    open("first", "w")
    subprocess.Popen([sys.executable, __file__, "orphan"], close_fds=False, start_new_session=True)
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
else:
    open("second-began", "w")
    line = '{"result": {"val_loss": 1.0}}'
    print(line, file=open(os.environ["ABLATIONLAB_RUN"] + "/reported.jsonl", "a"))
"""
    assert by_command(tmp_path, program, **ONE_ARM).returncode == -signal.SIGKILL
    ended = by_command(tmp_path, program, **ONE_ARM)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "orphan-ended").read_text() == "False"


def test_every_placeholder_reaches_the_program(tmp_path):
    program = REPORT + "\nreport(result={'val_loss': 1.0}); print(json.dumps(sys.argv[1:]))"
    words = ["{seed}", "{variant}/{regime}", "{folder}", "{settings}", "lr={training.lr}", "{arguments}"]
    ended = trained(tmp_path, program, command=["{python}", "train.py", *words], model={"wide": True, "sizes": [1, 2]})
    assert ended.returncode == 0, ended.stderr
    folder = run_folder(tmp_path, "fast-s1")
    printed = json.loads((folder / "output.log").read_text().splitlines()[-1])
    assert printed == [
        "1",
        "fast/default",
        str(folder),
        str(folder / "settings.json"),
        "lr=0.02",
        "--wide=True",
        "--sizes=[1, 2]",
        "--steps=12",
        "--lr=0.02",
    ]
    told = json.loads((folder / "settings.json").read_bytes())
    assert told["settings"] == {"model": {"wide": True, "sizes": [1, 2]}, "training": {"steps": 12, "lr": 0.02}}


def test_a_command_runs_in_the_folder_of_its_study_file_or_in_the_one_it_names(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "ctypes.py").write_text("raise SystemExit('the program alone imports what lies beside it')")
    program = REPORT + "\nreport(result={'val_loss': 1.0}); print(os.getcwd())"
    for place, changes in ((tmp_path, {}), (tmp_path / "elsewhere", {"directory": "elsewhere"})):
        command = ["{python}", os.path.relpath(tmp_path / "train.py", place)]
        shutil.rmtree(tmp_path / "results", ignore_errors=True)
        ended = trained(tmp_path, program, command=command, **changes, **ONE_ARM)
        assert ended.returncode == 0, ended.stderr
        assert (run_folder(tmp_path) / "output.log").read_text().splitlines()[-1] == str(place)


PRINTING = """
import sys
for step in range(3):
    print(f"iter {step}: loss {2.0 - step / 2}, time 1ms")
    print(f"step {step}: val {1.5 - step / 4}")
"""
PATTERNS = {
    "loss": r"iter (?P<step>\d+): loss (?P<value>[^,]+)",
    "val_loss": r"step (?P<step>\d+): val (?P<value>\S+)",
}


def test_patterns_read_what_a_program_prints(tmp_path):
    ended = trained(tmp_path, PRINTING, patterns=PATTERNS, **ONE_ARM)
    assert ended.returncode == 0, ended.stderr
    curves = read_curves(run_folder(tmp_path) / "metrics.jsonl")
    assert curves["step"].tolist() == [0, 1, 2]
    assert curves["loss"].tolist() == [2.0, 1.5, 1.0]
    assert curves["val_loss"].tolist() == [1.5, 1.25, 1.0]
    assert results_of(tmp_path)["base-s1"].metrics == {"val_loss": 1.0}


def test_a_result_that_is_printed_without_a_step_is_read(tmp_path):
    program = PRINTING + "print('final accuracy 0.25'); print('final accuracy 0.75')"
    patterns = {"loss": PATTERNS["loss"], "accuracy": r"final accuracy (?P<value>\S+)"}
    ended = trained(tmp_path, program, patterns=patterns, metrics={"accuracy": "higher"}, **ONE_ARM)
    assert ended.returncode == 0, ended.stderr
    assert results_of(tmp_path)["base-s1"].metrics == {"accuracy": 0.75}
    assert "accuracy" not in read_curves(run_folder(tmp_path) / "metrics.jsonl")


def test_patterns_and_reported_lines_are_laid_together(tmp_path):
    program = REPORT + "\n[report(step=step, lr=0.1) for step in range(3)]" + PRINTING
    assert trained(tmp_path, program, patterns=PATTERNS, **ONE_ARM).returncode == 0
    curves = read_curves(run_folder(tmp_path) / "metrics.jsonl")
    assert curves["lr"].tolist() == [0.1, 0.1, 0.1]
    assert curves["loss"].tolist() == [2.0, 1.5, 1.0]


def test_a_pattern_that_finds_no_number_is_refused(tmp_path):
    ended = trained(tmp_path, "print('iter 1: loss low,')\nprint('step 1: val 3')", patterns=PATTERNS, **ONE_ARM)
    assert "patterns.loss found 'iter 1: loss low'" in ended.stderr
    assert "step or value is not a number" in ended.stderr


def test_two_workers_train_what_one_trains(tmp_path):
    program = (
        REPORT
        + """
told = json.load(open(os.environ["ABLATIONLAB_RUN"] + "/settings.json"))
for step in range(1, 4):
    report(step=step, loss=told["settings"]["training"]["lr"] / step)
report(result={"val_loss": told["settings"]["training"]["lr"] + told["seed"]}, tokens=3)
"""
    )
    one, two = tmp_path / "one", tmp_path / "two"
    assert trained(one, program).returncode == 0
    study = write(two, program)
    ended = run_cli("run", study, "--out", "results", "--workers", "2", folder=two)
    assert ended.returncode == 0, ended.stderr
    for name in ("base-s1", "fast-s1"):
        same_outcome(one, two, name)


def test_a_program_that_changed_since_the_plan_is_drift(tmp_path):
    good = REPORT + "report(step=1, loss=1.0); report(result={'val_loss': 1.0})"
    assert trained(tmp_path, "raise SystemExit(1)").returncode != 0
    ended = by_command(tmp_path, good)
    assert ended.returncode != 0
    assert "train.py" in ended.stderr
    words = ("run", "study.toml", "--out", "results", "--workers", "1", "--accept-drift")
    accepted = run_cli(*words, folder=tmp_path)
    assert accepted.returncode == 0, accepted.stderr
    record, result = RunRecord.read(run_folder(tmp_path) / "run.json"), results_of(tmp_path)["base-s1"]
    assert "train.py" in {Path(drift.what).name for start in (record, *result.history) for drift in start.drift}


def test_a_program_that_changes_during_a_study_trains_no_other_arm(tmp_path):
    """The first run changes it. Nobody agreed to what it is now, and pairs would compare programs."""
    other = REPORT + "report(step=1, loss=9.0); report(result={'val_loss': 9.0})"
    program = (
        REPORT + f"report(step=1, loss=1.0); report(result={{'val_loss': 1.0}}); open('train.py', 'w').write({other!r})"
    )
    ended = by_command(tmp_path, program)
    assert ended.returncode != 0
    assert "a file that this command names has changed since" in ended.stderr
    assert {name: result.metrics["val_loss"] for name, result in results_of(tmp_path).items()} == {"base-s1": 1.0}
    again = ("run", "study.toml", "--out", "results", "--workers", "1")
    assert "train.py" in run_cli(*again, folder=tmp_path).stderr
    accepted = run_cli(*again, "--accept-drift", folder=tmp_path)
    assert accepted.returncode == 0, accepted.stderr
    drift = {
        name: len(RunRecord.read(run_folder(tmp_path, name) / "run.json").drift) for name in ("base-s1", "fast-s1")
    }
    assert drift == {"base-s1": 0, "fast-s1": 1}


def test_a_data_order_of_a_program_that_resumes_by_itself_continues(tmp_path):
    """The program keeps its own checkpoint: the chain of hashes continues from the last step that it reported."""
    program = """
import os, sys, ablationlab as lab
run = lab.current_run()
first = int(open("at").read()) + 1 if os.path.exists("at") else 1
for step in range(first, 7):
    run.log(step, loss=1.0 / step, fed=[str(step)])
    if step == 3:
        open("at", "w").write(str(step))
    if step == 4 and first == 1 and "--break" in sys.argv:
        sys.exit(1)
run.finish(val_loss=1.0)
"""
    broken, straight = tmp_path / "broken", tmp_path / "straight"
    command = {"command": ["{python}", "train.py", "--break"], **ONE_ARM}
    assert trained(broken, program, **command).returncode != 0
    assert trained(broken, program, **command).returncode == 0
    assert trained(straight, program, **ONE_ARM).returncode == 0
    orders = [results_of(folder)["base-s1"].data_order_hash for folder in (broken, straight)]
    assert orders[0] == orders[1] is not None


def test_steps_that_come_again_void_what_followed():
    lines = [
        {"step": 1, "loss": 3},
        {"step": 2, "loss": 2},
        {"tokens": 5},
        {"step": 2, "lr": 1},
        {"step": 1, "loss": 4},
    ]
    assert step_lines(lines[:4]) == [{"step": 1, "loss": 3}, {"step": 2, "loss": 2, "lr": 1}]
    assert step_lines(lines) == [{"step": 1, "loss": 4}]


def test_cutting_back_keeps_what_led_to_the_step(tmp_path):
    path = tmp_path / "reported.jsonl"
    lines = [
        '{"initial_weights": {"w": "a"}}',
        '{"step": 1}',
        '{"result": {"x": 1}}',
        '{"step": 2}',
        '{"step": 3}',
        '{"st',
    ]
    path.write_text("\n".join(lines))
    cut_back(tmp_path, 2)
    assert path.read_text().splitlines() == [lines[0], lines[1], lines[3]]


def test_a_run_that_another_process_holds_is_left_alone_until_it_lets_go(tmp_path):
    study = load_study(write(tmp_path, REPORT + "report(result={'val_loss': 1.0})", **ONE_ARM))
    results = ResultsFolder(tmp_path / "results")
    plan, _ = seal(study, results, "cpu", 1)
    lock = Lock(results.stack_lock(0))
    assert lock.acquire()
    heard = []

    def listen(event: Event) -> None:
        heard.append(event.kind)
        if event.kind == "waiting":
            assert not results.runs.exists()
            lock.release()

    assert local.execute(job_of(plan, results), 1, listen)
    assert heard[0] == "waiting"
    assert results_of(tmp_path)["base-s1"].metrics == {"val_loss": 1.0}


#: A difference of 0.1 in noise of 0.01, which two looks show.
NOISY = """
import random
told = json.load(open(os.environ["ABLATIONLAB_RUN"] + "/settings.json"))
lr = told["settings"]["training"]["lr"]
noise = random.Random(f"{told['seed']} {lr}").gauss(0, 0.01)
for step in (1, 2, 3):
    report(step=step, loss=3.0 - step)
report(result={"val_loss": 2 - 10 * lr + noise})
"""


def test_looks_stop_a_study_and_extend_adds_seeds_that_its_page_and_show_have(tmp_path):
    criteria = [{"metric": "val_loss", "role": "primary", "smallest_effect": 0.01}]
    looks = {"seeds": [1, 2, 3, 4, 5, 6, 7, 8], "design": {"looks": [3, 5, 8]}, "criteria": criteria}
    path = write(tmp_path, REPORT + NOISY, **looks)
    pipeline.run(path, tmp_path / "results", workers=1, listen=lambda _: None)
    (decided,) = (look for look in Plan.read(tmp_path / "results" / "plan.lock").looks if look.result.stop)
    assert (decided.result.number, decided.result.seeds) == (2, 5)
    assert set(results_of(tmp_path)) == {f"{arm}-s{seed}" for arm in ("base", "fast") for seed in range(1, 6)}
    before = {name: (run_folder(tmp_path, name) / "result.json").read_bytes() for name in results_of(tmp_path)}
    pipeline.extend(
        tmp_path / "results", pipeline.Options(workers=1), seeds=[21, 22], reason="more", listen=lambda _: None
    )
    assert len(results_of(tmp_path)) == 14
    assert all((run_folder(tmp_path, name) / "result.json").read_bytes() == text for name, text in before.items())
    results = Results.open(tmp_path / "results")
    comparison = next(each for each in results.analysis.comparisons if each.metric == "val_loss")
    assert (comparison.n, comparison.label) == (7, "exploratory")
    with pytest.raises(PlanError, match="tables of its file, and it has none of rmsnorm"):
        pipeline.extend(tmp_path / "results", pipeline.Options(), variants=["rmsnorm"])
    shown = " ".join(str(part) for part in run_view(results, results.run(run_folder(tmp_path, "fast-s1").name), 80))
    assert "finished, step 3 of 12" in shown
    assert "trained by {python}" in shown
    html = page_html(results)
    assert "reported by the trainer" in html
    assert "not checked" in html


def test_every_run_gets_a_gpu_that_no_other_run_has(tmp_path, monkeypatch):
    """Of two GPUs the first is taken: the program sees the second alone, by the name that it has outside."""
    import torch

    program = (
        REPORT + "report(step=1, loss=1.0); report(result={'val_loss': float(os.environ['CUDA_VISIBLE_DEVICES'])})"
    )
    study = load_study(write(tmp_path, program, seeds=[1]))
    results = ResultsFolder(tmp_path / "results")
    plan, _ = seal(study, results, "cpu", 1)
    plan = plan.model_copy(update={"execution": plan.execution.model_copy(update={"device": "cuda"})})
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    taken = Lock(results.locks / f"device-{platform.node()}-0")
    assert taken.acquire()
    try:
        event = attempt(job_of(plan, results), 0, None, "local", lambda _: None, lambda: False)
    finally:
        taken.release()
    assert event.kind == "done", event.payload
    assert results_of(tmp_path)["base-s1"].metrics == {"val_loss": 5.0}
    assert json.loads((run_folder(tmp_path) / "settings.json").read_text())["device"] == "cuda:0"


def test_status_and_show_say_why_a_program_failed(tmp_path, capsys):
    from ablationlab.cli.app import main

    trained(tmp_path, "import sys\nprint('no such dataset')\nsys.exit(3)\n", **ONE_ARM)
    failed = Results.open(tmp_path / "results").runs[0]
    assert failed.state == "failed"
    for verb in (["status", str(tmp_path / "results")], ["show", str(failed.folder.path)]):
        with pytest.raises(SystemExit):
            main(verb)
        answer = " ".join(capsys.readouterr().out.split())
        assert "failed" in answer
        assert "ended with exit code 3; its last line: no such dataset" in answer
    trained(tmp_path, REPORT + "report(step=12, loss=1.0); report(result={'val_loss': 1.0})\n", **ONE_ARM)
    ended = Results.open(tmp_path / "results").runs[0]
    assert (ended.state, ended.failure) == ("finished", None)


def test_a_setting_that_the_trainer_never_reads_is_told_with_what_it_asked_for_instead(tmp_path):
    code = (
        "import ablationlab as lab\n@lab.trainer('mine', metrics={'val_loss': 'lower'})\ndef mine(run):\n"
        "    training = run.settings['training']\n"
        "    return {'val_loss': training['lr'] * training.get('momentum', 0.0)}\n"
    )
    training = {"steps": 12, "lr": 0.01, "momentun": 0.9}
    path = write(
        tmp_path, code, "mine.py", use=["./mine.py"], trainer="mine", command=..., metrics=..., training=training
    )
    events = []
    pipeline.run(path, tmp_path / "results", workers=1, listen=events.append)
    notes = [event.payload.note for event in events if isinstance(event, Event) and event.kind == "progress"]
    assert "its trainer never read training.momentun (did you mean training.momentum?)" in notes


def test_settings_that_placeholders_pass_count_as_read(tmp_path):
    program = "import ablationlab as lab\nlab.current_run().finish(val_loss=1.0)\n"
    for number, command in enumerate((["{arguments}"], ["{training.lr}"])):
        folder = tmp_path / str(number)
        path = write(folder, program, command=["{python}", "train.py", *command], **ONE_ARM)
        events = []
        pipeline.run(path, folder / "results", workers=1, listen=events.append)
        assert not any(
            "never read" in event.payload.note for event in events if getattr(event, "kind", "") == "progress"
        )


def test_settings_that_are_taken_as_a_whole_count_as_read():
    settings = _Read({"training": {"lr": 0.1, "steps": 3}, "model": {"width": 8}})
    assert settings.unread() == (["training.lr", "training.steps", "model.width"], [])
    assert dict(**settings["training"]) == {"lr": 0.1, "steps": 3}
    assert settings.unread() == (["model.width"], [])
    assert json.loads(json.dumps(settings)) == {"training": {"lr": 0.1, "steps": 3}, "model": {"width": 8}}
    assert settings.unread() == ([], [])
