"""The worker pool, with real processes: order, errors, deaths, stops."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import warm
from ablationlab.core.errors import DataError, Problem, StudyError, WorkerDied
from ablationlab.core.processes import Pool, WorkerError, in_threads, send, stop_requested


class Worker:
    """Multiplies by what it was made with; some numbers make it misbehave."""

    def __init__(self, factor: int) -> None:
        if factor < 0:
            raise DataError("no such factor")
        self.factor = factor

    def __call__(self, what: object) -> object:
        if what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "exit":
            os._exit(3)
        if what == "study":
            raise StudyError("file.toml", [Problem("seeds", "is missing"), Problem("name", "is missing")])
        if what == "bug":
            raise ConnectionError("a foreign error")
        if what == "lambda":
            return lambda: None
        if what == "pid":
            return os.getpid()
        if what == "wait":
            send("waiting")
            deadline = time.monotonic() + 60
            while not stop_requested() and time.monotonic() < deadline:
                time.sleep(0.01)
            return "stopped"
        assert isinstance(what, int)
        time.sleep(0.002 * (7 * what % 5))
        return self.factor * what


@pytest.fixture(scope="module", autouse=True)
def fresh():
    """Workers as a user has them: not forked by the tests' server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", warm.FRESH)
        yield


@pytest.fixture(scope="module")
def pool(fresh):
    with Pool(Worker, (3,), processes=2, name="testing") as pool:
        yield pool


@pytest.mark.parametrize("inline", [True, False])
def test_answers_come_in_the_order_of_the_calls(inline):
    with Pool(Worker, (3,), processes=2, name="testing", inline=inline) as pool:
        answers = list(pool.in_order((number, (number,)) for number in range(20)))
        assert answers == [(number, 3 * number) for number in range(20)]
        assert (pool.submit("pid").result() == os.getpid()) == inline


def test_calls_are_read_only_a_few_ahead(pool):
    read = []
    calls = ((number, (read.append(number) or number,)) for number in range(100))
    next(pool.in_order(calls))
    assert len(read) <= 2 * pool.processes


def test_answers_as_they_come_leave_none_out(pool):
    found = {key: future.result() for key, future in pool.as_completed((n, (n,)) for n in range(20))}
    assert found == {number: 3 * number for number in range(20)}


def test_our_errors_come_back_as_they_were_and_others_with_their_traceback(pool):
    with pytest.raises(StudyError) as ours:
        pool.submit("study").result()
    assert [problem.key for problem in ours.value.problems] == ["seeds", "name"]
    assert str(ours.value).startswith("file.toml: 2 problems")
    with pytest.raises(WorkerError, match="ConnectionError: a foreign error") as foreign:
        pool.submit("bug").result()
    assert "in __call__" in str(foreign.value.__cause__)
    with pytest.raises(WorkerError, match="pickle"):
        pool.submit("lambda").result()
    assert pool.submit(2).result() == 6


def test_a_worker_that_cannot_begin_says_why_at_every_call():
    with Pool(Worker, (-1,), name="testing") as pool:
        for _ in range(2):
            with pytest.raises(DataError, match="no such factor"):
                pool.submit(1).result()


@pytest.mark.parametrize(
    ("how", "text"), [("die", "was killed by signal 9 (out of memory, or by hand?)"), ("exit", "with exit code 3")]
)
def test_a_death_is_named_and_reaches_no_other_call(pool, how, text):
    outcomes = dict(pool.as_completed((key, (key,)) for key in [1, how, 2, 3, 4]))
    assert isinstance(outcomes[how].exception(), WorkerDied)
    assert text in str(outcomes[how].exception())
    assert "(testing)" in str(outcomes[how].exception())
    assert [outcomes[number].result() for number in (1, 2, 3, 4)] == [3, 6, 9, 12]


def test_a_worker_that_gives_no_answer_is_ended():
    with Pool(Worker, (2,), name="waiting", patience=0.01) as impatient:
        waiting = impatient.submit("wait")
        with pytest.raises(WorkerDied, match=r"\(waiting\) gave no answer for 0.01 s and was ended"):
            waiting.result()


@pytest.mark.parametrize("inline", [True, False])
def test_a_stop_reaches_workers_that_are_busy_and_those_that_begin_later(inline):
    with Pool(Worker, (3,), name="testing", inline=inline) as pool:
        heard = []
        poll = lambda: pool.stop() if heard else None  # noqa: E731
        found = [
            future.result()
            for _, future in pool.as_completed(
                [(n, ("wait",)) for n in range(2)], listen=lambda key, message: heard.append((key, message)), poll=poll
            )
        ]
        assert found == ["stopped", "stopped"]
        assert heard == [(0, "waiting"), (1, "waiting")]


def test_closing_may_kill_those_at_work():
    pool = Pool(Worker, (3,), name="testing")
    busy, queued = pool.submit("wait"), pool.submit(1)
    time.sleep(0.1)
    began = time.monotonic()
    pool.close(kill=True)
    assert time.monotonic() - began < 10
    assert isinstance(busy.exception(timeout=10), WorkerDied)
    assert queued.cancelled()


SCRIPT = """
import sys
sys.path[:0] = {tests!r}
from test_processes import Worker
from ablationlab.core.processes import Pool
pool = Pool(Worker, (3,), name="testing")
print(pool.submit("pid").result(), flush=True)
pool.submit("wait")
input()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_worker_ends_with_its_parent_and_a_script_needs_no_guard(number):
    """As a terminal sends Ctrl-C, to the whole group; or a parent that is killed alone."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(tests=[str(folder) for folder in Path(__file__).parents[:2]])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    worker = int(process.stdout.readline())
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.kill()
    process.communicate(timeout=60)
    deadline = time.monotonic() + 30
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{worker}").exists()


def test_strings_hash_differently_in_a_test_and_in_what_it_starts():
    """Else bits that hang on the order of a set would agree between the two."""
    started = warm.python("-c", "import ablationlab; print(hash('a'))")
    assert int(started.stdout) != hash("a"), started.stderr


def test_work_in_threads_comes_back_in_order_and_its_first_error_is_raised(monkeypatch):
    monkeypatch.setattr("ablationlab.core.processes.usable_cores", lambda: 4)
    together = threading.Barrier(4)

    def meet(number: int) -> int:
        together.wait(timeout=30)  # four at once, or this breaks
        return number * number

    assert in_threads(meet, range(8)) == [number * number for number in range(8)]
    begun = []

    def fail(number: int) -> None:
        begun.append(number)
        raise ValueError(number)

    with pytest.raises(ValueError, match=str(0)):
        in_threads(fail, range(100))
    assert len(begun) <= 4  # nothing more is begun after an error


def test_work_for_threads_is_done_where_none_can_be_started(monkeypatch):
    monkeypatch.setattr("ablationlab.core.processes.usable_cores", lambda: 4)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert in_threads(str, range(3)) == ["0", "1", "2"]


INTERRUPTED = """
import os, signal, threading, time
from ablationlab.core import processes
processes.usable_cores = lambda: 2
signal.signal(signal.SIGINT, signal.default_int_handler)  # where a shell in the background ignores it
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    processes.in_threads(lambda _: time.sleep(600), range(2))
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_does_not_wait_for_threads():
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "interrupted\n")
