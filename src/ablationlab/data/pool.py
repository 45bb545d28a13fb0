"""Processes that all do the same thing, whose answers come in the order of the questions, a few at a time."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from ablationlab.core.errors import DataError

T = TypeVar("T")
K = TypeVar("K")
# Questions under way per process: what bounds memory.
_AHEAD = 2


class Pool(Generic[T]):
    """``make(*arguments)`` gives what answers; it is called once in every process, or here where there is only one.

    ``broken`` is said when a process was killed.
    """

    def __init__(
        self, make: Callable[..., Callable[..., T]], arguments: tuple[Any, ...], processes: int, broken: str
    ) -> None:
        self._make, self._arguments, self.processes, self._broken = make, arguments, processes, broken
        self._pool: ProcessPoolExecutor | None = None
        self._here: Callable[..., T] | None = None

    def __enter__(self) -> Pool[T]:
        if self.processes > 1:
            self._pool = ProcessPoolExecutor(
                self.processes,
                mp_context=mp.get_context("spawn"),
                initializer=_begin,
                initargs=(os.getpid(), self._make, self._arguments),
            )
        else:
            self._here = self._make(*self._arguments)
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def in_order(self, questions: Iterable[tuple[K, tuple[Any, ...]]]) -> Iterator[tuple[K, T]]:
        """For each key and question the key and its answer; at most `_AHEAD` questions a process are under way."""
        waiting: deque[tuple[K, Future[T]]] = deque()
        for key, question in questions:
            if self._pool is None:
                assert self._here is not None
                yield key, self._here(*question)
                continue
            with _deaf():
                future = self._pool.submit(_answer, question)
            waiting.append((key, future))
            if len(waiting) >= _AHEAD * self.processes:
                yield self._next(waiting)
        while waiting:
            yield self._next(waiting)

    def _next(self, waiting: deque[tuple[K, Future[T]]]) -> tuple[K, T]:
        key, future = waiting.popleft()
        try:
            return key, future.result()
        except BrokenProcessPool as error:
            raise DataError(self._broken) from error


@contextmanager
def _deaf() -> Iterator[None]:
    """Processes that are started here never hear Ctrl-C, which a terminal sends to all: this one does, and ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_worker: Callable[..., Any] | None = None


def _begin(parent: int, make: Callable[..., Callable[..., Any]], arguments: tuple[Any, ...]) -> None:
    global _worker
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    _worker = make(*arguments)


def _leave_with(parent: int) -> None:
    """A process whose parent was killed goes too."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _answer(question: tuple[Any, ...]) -> Any:
    assert _worker is not None
    return _worker(*question)
