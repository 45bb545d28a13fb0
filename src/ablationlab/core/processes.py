"""The worker pool: spawned processes that build some state once and then answer calls.

    make(*arguments) -> function      once in every worker
    function(*call)  -> answer        for every call

A worker is a fresh Python that shares nothing with its parent but two pipes, and does not import the parent's script. It
never sees Ctrl-C or SIGTERM: the parent does, and asks it to stop (`Pool.stop`) or kills it. A worker whose parent dies ends
at once. Each has pipes of its own, so one that is killed breaks no other: its call raises `WorkerDied`, and the next call
starts a new process. An `AblationLabError` raised in a worker is raised again by the future; anything else becomes a
`WorkerError` that carries the worker's traceback.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Generic, NoReturn, Self, TypeVar

from ablationlab.core.code import activate, active
from ablationlab.core.errors import AblationLabError, WorkerDied
from ablationlab.core.format import byte_size, setting

T = TypeVar("T")
K = TypeVar("K")
R = TypeVar("R")
# Calls in progress per process when answers are wanted in order; bounds memory.
_AHEAD = 2
_POLL_SECONDS = 0.2
_SCRIPT = (
    "import sys; calls, control, *sys.path = sys.argv[1:]; sys.argv = ['']; "
    "from ablationlab.core.processes import _work; _work(int(calls), int(control))"
)


def wait_or_kill(program: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait for a program that was asked to end, and kill its whole group if it does not in time."""
    try:
        program.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(program.pid, signal.SIGKILL)
        program.wait()


def usable_cores() -> int:
    """Cores that this process may use: an affinity mask, as containers and taskset set it, counts."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_threads(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """*work* on every item, in the order given, by a few threads: for hashing and writing, which wait for no interpreter."""
    todo = list(items)
    numbers = iter(range(len(todo)))
    answers: dict[int, R] = {}
    failures: dict[int, Exception] = {}

    def serve() -> None:
        for number in numbers:
            try:
                answers[number] = work(todo[number])
            except Exception as error:
                failures[number] = error
            if failures:
                return

    helpers = [threading.Thread(target=serve, daemon=True) for _ in range(min(8, usable_cores(), len(todo)) - 1)]
    with suppress(RuntimeError):  # no room for another thread
        for helper in helpers:
            helper.start()
    serve()  # Ctrl-C interrupts this one, and nobody waits for the others then
    for helper in helpers:
        if helper.ident is not None:
            helper.join()
    if failures:
        raise failures[min(failures)]
    return [answers[number] for number in range(len(todo))]


def usable_memory() -> int:
    """Bytes of memory that this process may have at most: the machine's, a container's limit, or that of `ulimit -v`."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # "max" is no limit
            limits.append(int(Path(path).read_text()))
    return min(*limits, address_space())


def address_space() -> int:
    """Bytes that this process may map at most (`ulimit -v`), which is more than it uses."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def require_memory(least: int, what: str, measure: Callable[[], int] = usable_memory) -> None:
    """Refuse *what* where libraries would find so little memory that they crash, or wait for ever, instead of failing."""
    if (there := measure()) < least:
        raise AblationLabError(
            f"{what} needs at least {byte_size(least)} of memory, and this process may have {byte_size(there)}. "
            "Raise the limit (ulimit -v, or the container's) and run the same command again; nothing was changed."
        )


class WorkerError(Exception):
    """An error in a worker that is not one of ours: a bug. The traceback of the worker is its cause."""


class _WorkerTraceback(Exception):
    pass


@dataclass(frozen=True)
class _Call:
    arguments: tuple[Any, ...]
    listen: Callable[[Any], None]
    future: Future[Any]


class Pool(Generic[T]):
    """*processes* workers, started at once; *name* says in errors what they do.

    A worker that says nothing for *patience* seconds is killed, and its call raises `WorkerDied`. With *inline* no process is
    started: calls are answered here, one after another, which is the same to the caller.
    """

    def __init__(
        self,
        make: Callable[..., Callable[..., T]],
        arguments: tuple[Any, ...] = (),
        *,
        name: str,
        processes: int = 1,
        inline: bool = False,
        patience: float | None = None,
    ) -> None:
        self.processes = 1 if inline else processes
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._stopping = False
        self._poll: Callable[[], None] = lambda: None
        self._inline = make(*arguments) if inline else None
        self._workers = [] if inline else [_Worker(make, arguments, name, patience) for _ in range(processes)]
        self._threads = [threading.Thread(target=self._serve, args=(w,), daemon=True) for w in self._workers]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close(kill=kind is not None)

    def submit(self, *arguments: Any, listen: Callable[[Any], None] = lambda _: None) -> Future[T]:
        """Queue a call for the next free worker. *listen* gets what it sends meanwhile, in a thread of the pool."""
        call = _Call(arguments, listen, Future())
        if self._inline is None:
            self._calls.put(call)
        else:
            self._answer_here(call, self._inline)
        return call.future

    def in_order(self, calls: Iterable[tuple[K, tuple[Any, ...]]]) -> Iterator[tuple[K, T]]:
        """Each key with the answer to its call, in the order of the calls; only a few are in progress at a time."""
        waiting: deque[tuple[K, Future[T]]] = deque()
        for key, arguments in calls:
            waiting.append((key, self.submit(*arguments)))
            if len(waiting) >= (1 if self._inline else _AHEAD * self.processes):
                first, future = waiting.popleft()
                yield first, future.result()
        for key, future in waiting:
            yield key, future.result()

    def as_completed(
        self,
        calls: Iterable[tuple[K, tuple[Any, ...]]],
        *,
        listen: Callable[[K, Any], None] = lambda _, __: None,
        poll: Callable[[], None] = lambda: None,
    ) -> Iterator[tuple[K, Future[T]]]:
        """Each key with its finished future, as they come. A call is taken from *calls* only when a worker is free for it.

        *listen* gets a key and what its worker sent; *poll* is called a few times per second. Both run in this thread.
        """
        events: SimpleQueue[tuple[K, Future[T] | None, Any]] = SimpleQueue()
        left = iter(calls)
        running = 0
        self._poll = poll

        def begin(key: K, arguments: tuple[Any, ...]) -> None:
            def hear(message: Any) -> None:
                if self._inline is not None:
                    listen(key, message)
                else:
                    events.put((key, None, message))

            self.submit(*arguments, listen=hear).add_done_callback(lambda future: events.put((key, future, None)))

        while True:
            while running < self.processes and (call := next(left, None)) is not None:
                running += 1
                begin(*call)
            if not running:
                return
            poll()
            try:
                key, future, message = events.get(timeout=_POLL_SECONDS)
            except Empty:
                continue
            if future is None:
                listen(key, message)
            else:
                running -= 1
                yield key, future

    def stop(self) -> None:
        """Make `stop_requested` true in every worker."""
        self._stopping = True
        for worker in self._workers:
            worker.stop()

    def close(self, *, kill: bool = False, wait: bool = True) -> None:
        """End the workers: when they have answered every call, or with *kill* at once."""
        if kill:
            with suppress(Empty):
                while (call := self._calls.get_nowait()) is not None:
                    call.future.cancel()
            for worker in self._workers:
                worker.kill()
        for _ in self._workers:
            self._calls.put(None)
        for thread in self._threads if wait else ():
            thread.join()

    def _serve(self, worker: _Worker) -> None:
        while (call := self._calls.get()) is not None:
            if not call.future.set_running_or_notify_cancel():
                continue
            try:
                answer = worker.ask(call.arguments, call.listen)
            except Exception as error:
                call.future.set_exception(error)
            else:
                call.future.set_result(answer)
        worker.end()

    def _answer_here(self, call: _Call, function: Callable[..., T]) -> None:
        def requested() -> bool:
            self._poll()
            return self._stopping

        with _linked(_Link(call.listen, requested)):
            try:
                call.future.set_result(function(*call.arguments))
            except Exception as error:
                call.future.set_exception(error)


class _Worker:
    """The parent's side of one worker: its process, a channel for calls and answers, and a pipe to ask it to stop."""

    def __init__(self, make: Callable[..., Any], arguments: tuple[Any, ...], name: str, patience: float | None) -> None:
        self._opening, self._name, self._patience = (make, arguments, active()), name, patience
        self._changing = threading.Lock()
        self._closed = self._stopping = False
        self._process: subprocess.Popen[bytes] | None = None
        self._start()

    def _start(self) -> None:
        with self._changing:
            if self._closed:
                raise WorkerDied(self._name, "was ended")
            from multiprocessing import Pipe

            self._channel, theirs = Pipe()
            reading, self._control = os.pipe()
            try:
                # A blocked signal stays blocked in what is started here, so a terminal's Ctrl-C never reaches a worker.
                with _blocked(signal.SIGINT, signal.SIGTERM):
                    self._process = subprocess.Popen(
                        [sys.executable, "-P", "-c", _SCRIPT, str(theirs.fileno()), str(reading), *sys.path],
                        stdin=subprocess.DEVNULL,
                        pass_fds=(theirs.fileno(), reading),
                    )
            finally:
                theirs.close()
                os.close(reading)
            if self._stopping:
                os.write(self._control, b"s")
        self._opened = False

    def ask(self, arguments: tuple[Any, ...], listen: Callable[[Any], None]) -> Any:
        if self._process is None:
            self._start()
        try:
            if not self._opened:
                self._channel.send(self._opening)
                self._opened = True
            self._channel.send(arguments)
            while True:
                if not self._channel.poll(self._patience):
                    assert self._process is not None
                    self._process.kill()
                    self._release()
                    raise WorkerDied(self._name, f"gave no answer for {setting(self._patience)} s and was ended")
                kind, content = self._channel.recv()
                if kind == "message":
                    listen(content)
                elif kind == "answer":
                    return content
                else:
                    _raise(*content)
        except (EOFError, OSError) as error:
            code = self._release()
            if code < 0:
                raise WorkerDied(self._name, f"was killed by signal {-code} (out of memory, or by hand?)") from error
            raise WorkerDied(self._name, f"ended early, with exit code {code}") from error

    def stop(self) -> None:
        with self._changing, suppress(OSError):
            self._stopping = True
            if self._process is not None:
                os.write(self._control, b"s")

    def kill(self) -> None:
        with self._changing:
            self._closed = True
            if self._process is not None:
                self._process.kill()

    def end(self) -> None:
        if self._process is not None:
            self._release()

    def _release(self) -> int:
        """Let go of a process that has ended, or that ends when its channel is closed; its exit code."""
        assert self._process is not None
        self._channel.close()
        code = self._process.wait()
        with self._changing:
            os.close(self._control)
            self._process = None
        return code


def _raise(error: AblationLabError | None, text: str, trace: str) -> NoReturn:
    if error is not None:
        raise error from _WorkerTraceback(f"\n{trace}")
    raise WorkerError(text) from _WorkerTraceback(f"\n{trace}")


@contextmanager
def _blocked(*signals: signal.Signals) -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ---- in a worker --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Link:
    send: Callable[[Any], None]
    stop_requested: Callable[[], bool]


_link: _Link | None = None


def send(message: Any) -> None:
    """Inside a call: give *message* to the caller's ``listen``."""
    assert _link is not None
    _link.send(message)


def stop_requested() -> bool:
    """Inside a call: whether the caller wants it to come to an early end."""
    assert _link is not None
    return _link.stop_requested()


@contextmanager
def _linked(link: _Link) -> Iterator[None]:
    global _link
    before, _link = _link, link
    try:
        yield
    finally:
        _link = before


def _work(calls: int, control: int) -> None:
    """The life of a worker."""
    from multiprocessing.connection import Connection

    for descriptor in (calls, control):
        os.set_inheritable(descriptor, False)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    stop = threading.Event()
    threading.Thread(target=_watch, args=(control, stop), daemon=True).start()
    channel = Connection(calls)
    with _linked(_Link(lambda message: channel.send(("message", message)), stop.is_set)), suppress(EOFError):
        opening = channel.recv()
        function, failure = None, None
        try:
            activate(opening[2])
            function = opening[0](*opening[1])
        except Exception as error:
            failure = _told(error)
        while True:
            reply = failure or _reply(function, channel.recv())
            try:
                channel.send(reply)
            except ConnectionError:
                return
            except Exception as error:  # an answer that cannot travel
                channel.send(_told(error))


def _reply(function: Any, arguments: tuple[Any, ...]) -> tuple[str, Any]:
    try:
        return "answer", function(*arguments)
    except Exception as error:
        return _told(error)


def _told(error: Exception) -> tuple[str, Any]:
    ours = error if isinstance(error, AblationLabError) else None
    trace = "".join(traceback.format_exception(error))
    return "error", (ours, f"{type(error).__name__}: {error}", trace)


def _watch(control: int, stop: threading.Event) -> None:
    """A byte asks to stop; the end of the pipe means that the parent is gone."""
    while os.read(control, 1):
        stop.set()
    os._exit(1)
