"""A Python that starts at once: forked from a process that has imported everything and done nothing.

A fresh `ablationlab run` spends some five seconds on importing torch, scipy and pandas and one on a tiny study; a rank of
torchrun spends eight. `tests/conftest.py` makes `warm.executable()` the `sys.executable` of the tests, so that commands,
workers, ranks, the programs of trainers and the test processes of pytest-xdist start warm. It is a small script
(`warm_start.py`) that hands its words, environment, folder, open files, limits and signal mask to a server, passes on every
signal, and ends as the fork ends, by exit code or by signal. If it is killed, the server kills the fork. What a test asks of
a process of its own (its signals, its exit code, its threads, nothing left of another test) a fork has as well.

A fork differs in five things. Modules are loaded before its first line: a test of what is imported takes `FRESH`. All forks
of a server share one hash seed: where the bits of two runs are compared, one of them is made elsewhere, so that nothing hangs
on the order of a set. Test processes have a server of their own, so that theirs is another. To the kernel its parent is the
server, so a signal on the parent's death (prctl) does not reach it. When the script is killed, the fork ends a moment later.
What libraries do at the end of a process about what they did when they were imported, it leaves out.
"""

from __future__ import annotations

import array
import atexit
import fcntl
import gc
import importlib
import io
import logging
import marshal
import multiprocessing.util
import os
import resource
import runpy
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FRESH = os.environ.get("WARM_PYTHON_FRESH", sys.executable)
FOLDER = "WARM_PYTHON_FOLDER"  # the servers' sockets and the script; the test processes of one session share it
SOCKETS = ("tests", "socket")  # of the server that test processes fork from, and of that of all others

# What the verbs, their workers and ranks import on their way, and what a first optimizer of torch does.
MODULES = (
    "torch",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.run",
    "torch.distributed.tensor",
    "scipy.stats",
    "pandas",
    "pyarrow.parquet",
    "ablationlab.analysis.verdict",
    "ablationlab.cli.analyze",
    "ablationlab.cli.app",
    "ablationlab.evaluation",
    "ablationlab.pipeline",
    "ablationlab.records.probes",
    "ablationlab.report.figures",
    "ablationlab.report.notebook",
    "ablationlab.report.paper",
    "ablationlab.report.progress",
    "ablationlab.report.terminal.details",
    "ablationlab.report.terminal.planned",
    "ablationlab.study.calibration",
    "ablationlab.training.distributed.stack",
    "ablationlab.training.executors.local",
    "ablationlab.training.executors.ray_cluster",
    "ablationlab.training.executors.torchrun",
    "ablationlab.training.loop",
    "ablationlab.training.own_trainer",
)


def spare() -> None:
    """Spare tests what they do not look at.

    fsync guards against a power cut, which no test makes: what a killed process has written stays written without it. One
    engine draws the few charts of a small study; a second takes longer to start.
    """
    from ablationlab.report import convert  # not yet where a server starts

    os.fsync = lambda handle: None
    convert.PROCESSES = 1


# ---- in a test process ---------------------------------------------------------------------------------------------------


def executable() -> str:
    """The script's path; the first call of a session writes it and starts the servers, which import when they are asked."""
    if FOLDER not in os.environ:
        folder = Path(tempfile.mkdtemp(prefix="warm-"))
        os.environ |= {FOLDER: str(folder), "WARM_PYTHON_FRESH": FRESH}
        script = folder / "python"
        script.write_text(f"#!{FRESH} -IS\n" + Path(__file__).with_name("warm_start.py").read_text())
        script.chmod(0o755)
        servers = [_start(folder / name) for name in SOCKETS]
        atexit.register(_end, os.getpid(), servers)
    return str(Path(os.environ[FOLDER], "python"))


def _start(path: Path) -> subprocess.Popen[bytes]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(64)
        words = [FRESH, "-P", __file__, str(listener.fileno())]
        return subprocess.Popen(words, pass_fds=[listener.fileno()], stdin=subprocess.PIPE, start_new_session=True)


def _end(owner: int, servers: list[subprocess.Popen[bytes]]) -> None:
    if os.getpid() == owner:
        for server in servers:
            assert server.stdin is not None
            server.stdin.close()
            server.wait()


def python(
    *words: str | Path, folder: Path | None = None, env: Mapping[str, str] | None = None, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """`python WORDS` as a warm process, with its output captured."""
    return subprocess.run(
        [executable(), *map(str, words)],
        cwd=folder,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


# ---- in the server -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Fork:
    pid: int
    leader: bool
    link: socket.socket

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            (os.killpg if self.leader else os.kill)(self.pid, number)


class _Server:
    """Forks for whoever connects; the first one waits for the imports. It ends with the test process that started it."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._forks: dict[int, _Fork] = {}
        self._ready = False
        self._path = list(sys.path)
        self._given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]

    def serve(self) -> None:
        ended, writing = os.pipe()
        for end in (ended, writing):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for source in (self._listener, ended, sys.stdin.fileno()):
            self._selector.register(source, selectors.EVENT_READ)
        owned = True
        while owned:
            for key, _ in self._selector.select():
                if key.data is not None:
                    self._hear(key.data)
                elif key.fileobj is self._listener:
                    self._accept()
                elif key.fd == ended:
                    os.read(ended, 4096)
                else:
                    owned = False
            self._reap()
        for fork in self._forks.values():
            fork.signal(signal.SIGKILL)

    def _accept(self) -> None:
        link, _ = self._listener.accept()
        if not self._ready:
            gc.disable()
            for name in MODULES:
                importlib.import_module(name)
            gc.enable()
            self._forget_endings()
            gc.collect()
            gc.freeze()
            self._ready = True
        head, ancillary, _, _ = link.recvmsg(4, socket.CMSG_SPACE(250 * 4))
        if len(head) < 4:
            link.close()
            return
        sent = array.array("i")
        for _, _, data in ancillary:
            sent.frombytes(data[: len(data) - len(data) % sent.itemsize])
        (left,) = struct.unpack("=I", head)
        data = b""
        while left and (part := link.recv(left)):
            data, left = data + part, left - len(part)
        if left:
            link.close()
        else:
            order = marshal.loads(data)
            pid = os.fork()
            if not pid:
                self._become(order, list(sent))
            fork = _Fork(pid, order["leader"], link)
            if fork.leader:
                self._await_leader(pid)
            self._forks[pid] = fork
            self._selector.register(link, selectors.EVENT_READ, fork)
        for number in sent:
            os.close(number)

    def _forget_endings(self) -> None:
        """What libraries do at the end about what they did before the fork: a seventh of a second for every fork."""
        atexit._clear()
        weakref.finalize._registry.clear()
        weakref.finalize._registered_with_atexit = False  # one that a fork makes registers itself again
        atexit.register(logging.shutdown)
        atexit.register(multiprocessing.util._exit_function)

    def _await_leader(self, pid: int) -> None:
        """Until the fork leads its own group, or has ended, a signal to that group would find nobody."""
        with suppress(ProcessLookupError):
            while os.getpgid(pid) != pid:
                time.sleep(0.0005)

    def _hear(self, fork: _Fork) -> None:
        try:
            numbers = fork.link.recv(64)
        except ConnectionError:
            numbers = b""
        if not numbers:  # the script was killed
            self._selector.unregister(fork.link)
            fork.link.close()
            fork.signal(signal.SIGKILL)
        for number in numbers:
            fork.signal(number)

    def _reap(self) -> None:
        for pid, fork in list(self._forks.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            del self._forks[pid]
            if fork.link.fileno() >= 0:
                self._selector.unregister(fork.link)
                with suppress(OSError):
                    fork.link.send(struct.pack("=i", os.waitstatus_to_exitcode(status)))
                fork.link.close()

    def _become(self, order: dict[str, Any], sent: list[int]) -> None:
        code = 1
        try:
            if order["leader"]:
                os.setsid()
            else:
                os.setpgid(0, 0)  # out of the server's group
            os.getppid = lambda: order["parent"]
            self._take_files(order["files"], sent)
            self._take_settings(order)
            code = _run(order["words"])
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(BaseException):
                threading._shutdown()
            with suppress(BaseException):
                atexit._run_exitfuncs()
            with suppress(OSError, ValueError):
                sys.stdout.flush()
            with suppress(OSError, ValueError):
                sys.stderr.flush()
            os._exit(code)

    def _take_files(self, numbers: list[int], sent: list[int]) -> None:
        signal.set_wakeup_fd(-1)
        self._selector.close()
        high = 1024
        kept = [fcntl.fcntl(number, fcntl.F_DUPFD, high) for number in sent]
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
            if int(name) < high:
                with suppress(OSError):
                    os.close(int(name))
        for number, file in zip(numbers, kept, strict=True):
            os.dup2(file, number, inheritable=True)
            os.close(file)

    def _take_settings(self, order: dict[str, Any]) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in order["ignored"]:
            signal.signal(number, signal.SIG_IGN)
        os.umask(order["umask"])
        os.chdir(order["folder"])
        os.sched_setaffinity(0, order["cores"])
        threads = os.environ.get("OMP_NUM_THREADS")
        os.environ.clear()
        os.environ.update(order["env"])
        if (wanted := os.environ.get("OMP_NUM_THREADS")) != threads:
            import torch

            torch.set_num_threads(int(wanted) if wanted else len(order["cores"]))
        unbuffered = "-u" in order["flags"] or bool(os.environ.get("PYTHONUNBUFFERED"))
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stdout = sys.__stdout__ = _stream(1, "strict", unbuffered)
        sys.stderr = sys.__stderr__ = _stream(2, "backslashreplace", unbuffered)
        sys.orig_argv = order["argv"]
        sys.executable = order["argv"][0]
        sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
        given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
        sys.path[:] = [*given, *(entry for entry in self._path if entry not in self._given)]
        if "-P" not in order["flags"]:
            kind = order["words"][0]
            first = {"-c": "", "-m": order["folder"]}.get(kind, str(Path(kind).resolve().parent))
            sys.path.insert(0, first)
        importlib.invalidate_caches()
        spare()
        for name, limit in order["limits"].items():
            if resource.getrlimit(getattr(resource, name)) != tuple(limit):
                resource.setrlimit(getattr(resource, name), tuple(limit))
        signal.pthread_sigmask(signal.SIG_SETMASK, order["blocked"])


def _stream(number: int, errors: str, unbuffered: bool) -> Any:
    raw = open(number, "wb", 0 if unbuffered else -1, closefd=False)  # noqa: SIM115
    lines = number == 2 or os.isatty(number)
    return io.TextIOWrapper(raw, encoding="utf-8", errors=errors, line_buffering=lines, write_through=unbuffered)


def _run(words: list[str]) -> int:
    """As the interpreter runs `-c CODE`, `-m MODULE` or a file; its exit code."""
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    kind = words[0]
    try:
        if kind == "-m":
            sys.argv = ["-m", *words[2:]]
            runpy._run_module_as_main(words[1])
        elif kind == "-c":
            sys.argv = ["-c", *words[2:]]
            exec(compile(words[1], "<string>", "exec"), main.__dict__)
        else:
            sys.argv = list(words)
            main.__file__ = kind
            exec(compile(Path(kind).read_bytes(), kind, "exec"), main.__dict__)
    except SystemExit as end:
        if isinstance(end.code, int | None):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt as stop:  # ends a fresh interpreter by the signal itself
        _print(stop)
        sys.stderr.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException as error:
        _print(error)
        return 1
    return 0


def _print(error: BaseException) -> None:
    assert error.__traceback__ is not None
    error = error.with_traceback(error.__traceback__.tb_next)  # without the line of _run
    sys.excepthook(type(error), error, error.__traceback__)


if __name__ == "__main__":
    _Server(socket.socket(fileno=int(sys.argv[1]))).serve()
    shutil.rmtree(os.environ[FOLDER], ignore_errors=True)  # here, so that tests that were killed leave nothing, either
    os._exit(0)
