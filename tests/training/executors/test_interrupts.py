"""Stopping by signals: once is a request, once more is an order, and two in one moment are one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from ablationlab.training.executors import job
from ablationlab.training.executors.job import Interrupts


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(job.time, "monotonic", lambda: now[0])
    return now


def test_a_second_ctrl_c_gives_up(clock):
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.stopping
        clock[0] += job.SAME_MOMENT_SECONDS + 1
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_two_signals_in_one_moment_are_one_request(clock):
    """As `timeout -s INT` sends them: to the process, and to its group."""
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        clock[0] += 0.01
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.stopping


def test_a_second_request_to_terminate_is_no_order(clock):
    with Interrupts() as interrupts:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
            clock[0] += 60
        assert interrupts.stopping


def test_giving_up_is_said():
    script = (
        "import ablationlab.cli.app as cli\n"
        "@cli.app.command\n"
        "def hang():\n"
        "    raise KeyboardInterrupt\n"
        "from ablationlab.cli import main\n"
        "main(['hang'])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (130, "Interrupted.")
