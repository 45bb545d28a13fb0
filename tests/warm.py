"""Processes that are spared the start: forked from one that has imported everything and done nothing.

A fresh `ablationlab run` spends some five seconds on importing torch, scipy and pandas and one on a tiny study. What a test
asks of a process of its own (its signals, its exit code, its threads, nothing left of another test) a fork has as well.
What happens before the first line of a command, and settings that a library reads when it is loaded (OMP_NUM_THREADS), need
a fresh one. All forks share one hash seed: where the bits of two runs are compared, one of them is made elsewhere, so that
nothing hangs on the order of a set.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

# What `run`, `plan`, `evaluate` and `export` import on their way, and what a first optimizer of torch does.
MODULES = (
    "torch",
    "torch._dynamo",
    "scipy.stats",
    "pandas",
    "pyarrow.parquet",
    "ablationlab.cli.app",
    "ablationlab.analysis.verdict",
    "ablationlab.cli.analysis",
    "ablationlab.pipeline",
    "ablationlab.records.probes",
    "ablationlab.report.notebook",
    "ablationlab.report.progress",
    "ablationlab.report.terminal.analysis",
    "ablationlab.report.terminal.study",
    "ablationlab.study.calibration",
    "ablationlab.training.executors.local",
    "ablationlab.training.executors.ray_cluster",
    "ablationlab.training.executors.torchrun",
    "ablationlab.training.loop",
    "ablationlab.training.own_trainer",
)


def no_waiting_for_the_disk() -> None:
    """fsync guards against a power cut, which no test makes: what a killed process has written stays written without it."""
    os.fsync = lambda handle: None


@cache
def _server() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(MODULES))
    return context


def _child(words: list[str], folder: str, env: dict[str, str], out: str, err: str) -> None:
    """Become `python WORDS`, as far as a program can tell."""
    for path, stream in ((out, 1), (err, 2)):
        opened = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(opened, stream)
        os.close(opened)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    no_waiting_for_the_disk()
    code = 0
    try:
        kind, program, *arguments = words
        sys.argv = [kind, *arguments]
        if kind == "-m":
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        elif kind == "-c":
            exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
        else:
            raise ValueError(f"{kind!r}: expected -m or -c")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    except KeyboardInterrupt:  # ends a fresh interpreter by the signal itself
        traceback.print_exc()
        sys.stderr.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        code = 1
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def python(
    *words: str | Path, folder: Path | None = None, env: Mapping[str, str] | None = None, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """As subprocess.run([sys.executable, *words]) with the output captured; *words* begin with -m or -c."""
    sent: Sequence[str] = [str(word) for word in words]
    with tempfile.TemporaryDirectory(prefix="warm-") as kept:
        out, err = Path(kept, "out"), Path(kept, "err")
        out.touch()
        err.touch()
        given = (sent, str(folder or Path.cwd()), {**os.environ, **(env or {})}, str(out), str(err))
        process = _server().Process(target=_child, args=given)
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired([sys.executable, *sent], timeout, out.read_text(), err.read_text())
        return subprocess.CompletedProcess([sys.executable, *sent], process.exitcode, out.read_text(), err.read_text())
