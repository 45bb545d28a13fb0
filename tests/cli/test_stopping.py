"""Ctrl-C and SIGTERM outside training, at many moments of a real command: one message, an exit code, no traceback."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import warm
from conftest import run_here, write_study

# Signals its own process group, as a terminal does, when it has opened a file, imported a module or started a process
# for the *at*-th time; without a signal it prints how often that was. Moments are counted, not timed, so that they are the
# same on any machine.
COMMAND = """
import os, signal, sys
name, at, *words = sys.argv[1:]
moments = 0

def count(event, arguments):
    global moments
    ours = os.getpid() == here and signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL  # the command has begun
    if event in ("open", "import", "subprocess.Popen", "os.rename", "os.remove") and ours:
        moments += 1
        if moments == int(at):
            os.killpg(0, signal.Signals[name])
            if twice:
                os.killpg(0, signal.Signals[name])

here, twice = os.getpid(), words[0] == "twice"
sys.addaudithook(count)
from ablationlab.cli import main
try:
    main(words[1:])
finally:
    if name == "none":
        print("moments", moments)
"""


def start(
    python: str, folder: Path, name: str, at: int, times: str, *words: object
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-c", COMMAND, name, str(at), times, *map(str, words)],
        cwd=folder,
        capture_output=True,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in a shell's background
        timeout=120,
        check=False,
    )


STOPS = {"SIGINT": (130, "Interrupted."), "SIGTERM": (143, "Terminated.")}
WORDS = {"evaluate": ["evaluate", "results", "--device", "cpu", "--workers", "2"], "analyze": ["analyze", "results"]}


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, trained and evaluated; not to be changed."""
    folder = tmp_path_factory.mktemp("scored")
    tasks = {"evaluation.tasks": ["spelling"], "evaluation.items": 10, "model.context": 32}
    study = write_study(folder, {"variants": ["none", "layernorm"], "seeds": [1], **tasks})
    code, _, errors = run_here(
        *("run", study, "--out", "results", "--workers", "1", "--device", "cpu", "--no-report"), folder=folder
    )
    assert code == 0, errors
    return folder / "results"


def prepare(verb: str, results: Path, folder: Path) -> None:
    """What the verb has to do: the study, trained and not evaluated, or evaluated and not analyzed."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(results, folder)
    if verb == "evaluate":
        for path in folder.glob("runs/*/evaluation.json"):
            path.unlink()
        shutil.rmtree(folder / "evaluation")
    else:
        (folder / "analysis.json").unlink()


@pytest.fixture(scope="module")
def moments(scored, tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """How many each verb has when nothing stops it."""
    folder, counts = tmp_path_factory.mktemp("counted"), {}
    for verb, words in WORDS.items():
        prepare(verb, scored, folder / "results")
        ended = start(sys.executable, folder, "none", 0, "once", *words)
        assert ended.returncode == 0, ended.stderr
        counts[verb] = int(ended.stdout.split()[-1])
    return counts


@pytest.mark.parametrize(
    ("verb", "name", "times", "part"),
    [
        *(("evaluate", "SIGINT", "once", part) for part in (0.05, 0.5, 0.95)),
        ("evaluate", "SIGTERM", "once", 0.7),
        ("evaluate", "SIGINT", "twice", 0.6),
        ("analyze", "SIGINT", "once", 0.9),
    ],
)
def test_a_signal_at_any_moment_is_one_message_and_no_traceback(scored, moments, tmp_path, verb, name, times, part):
    prepare(verb, scored, tmp_path / "results")
    ended = start(sys.executable, tmp_path, name, int(part * moments[verb]), times, *WORDS[verb])
    code, message = STOPS[name]
    assert (ended.returncode, ended.stderr.splitlines()[-1:]) == (code, [message]), ended.stderr
    assert ended.stderr.count(message) == 1
    assert "Traceback" not in ended.stdout + ended.stderr


@pytest.mark.parametrize("name", STOPS)
def test_a_signal_while_python_imports_is_one_message_too(tmp_path, name):
    ended = start(warm.FRESH, tmp_path, name, 40, "once", "status", tmp_path)
    code, message = STOPS[name]
    assert (ended.returncode, ended.stderr.strip()) == (code, message)


def test_a_job_in_the_background_goes_on_ignoring_ctrl_c(tmp_path):
    """As shells start it: with SIGINT ignored."""
    words = [sys.executable, "-c", COMMAND, "SIGINT", "1", "once", "presets"]
    ended = subprocess.run(
        words,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=60,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert (ended.returncode, ended.stderr) == (0, "")


WAITING = """
import time
import ablationlab.cli.app as cli
from ablationlab.cli import main
cli.app.command(lambda: (print("ready", flush=True), time.sleep(60)), name="wait")
main(["wait"])
"""


def test_sigterm_outside_training_says_so_and_exits_with_143():
    with subprocess.Popen([sys.executable, "-c", WAITING], stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert (process.wait(timeout=60), process.stderr.read()) == (143, "Terminated.\n")


CLOSING = """
import signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: print("heard", flush=True))
import ablationlab.cli.app as cli
from ablationlab.cli import main
def wait():
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        print("closing", flush=True)
        sys.stdin.readline()
        print("closed", flush=True)
cli.app.command(wait)
main(["wait"])
"""


def test_a_second_sigterm_does_not_interrupt_the_first():
    with subprocess.Popen([sys.executable, "-c", CLOSING], stdin=-1, stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.stdout.readline() == "closing\n"
        process.terminate()
        for _ in range(2):  # what was sent before the first has come before the second
            process.send_signal(signal.SIGUSR1)
            assert process.stdout.readline() == "heard\n"
        assert process.communicate("\n", timeout=60) == ("closed\n", "Terminated.\n")
    assert process.returncode == 143


SWALLOWED = """
import os, signal
from ablationlab.cli import main
import ablationlab.cli.app as app

def verb(*_, **__):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # as some libraries do while they are imported
        pass
    raise ModuleNotFoundError("No module named 'version'")

app.app = verb
main(["presets"])
"""


def test_an_error_that_a_swallowed_signal_left_behind_is_not_told(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-c", SWALLOWED],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stderr.strip()) == STOPS["SIGINT"]
