"""Desks in processes of their own, so that a GPU is not kept waiting by the harness: one clerk for every few tasks.

Clerks need no weights: they may be hired before training, and have their sheets ready when it ends.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablationlab.core.errors import PlanError, RunFailure
from ablationlab.data.corpus import TokenizedCorpus, load_corpus
from ablationlab.evaluation.posed import Answers, Posed
from ablationlab.records.evaluation import SuiteTask, Weights
from ablationlab.records.settings import DataConfig
from ablationlab.tasks import TaskRequest, benchmarks, expand, suite

if TYPE_CHECKING:
    from ablationlab.evaluation.desk import Desk


@dataclass(frozen=True, eq=False)
class Share:
    """What one clerk is given: its part of the question, and which text."""

    questions: tuple[TaskRequest, ...]
    data: DataConfig
    tokens_sha256: str
    context: int
    root: Path


class Clerks:
    """The desks of one question, for models of one context, spread over processes.

    Tasks that the harness takes from its own sources stay at a desk in this process: they may ask a model to generate, which
    only the holder of the weights can.
    """

    def __init__(
        self,
        question: TaskRequest,
        data: DataConfig,
        corpus: TokenizedCorpus,
        context: int,
        root: Path,
        count: int,
        *,
        describe: bool = False,
    ) -> None:
        """*corpus* is what *data* stands for; every clerk loads it again. *describe*: have chance and n-grams ready too."""
        self.question, self.context, self._corpus, self._root = question, context, corpus, root
        parts, rest = divided(question)
        self._rest = rest
        self._local: Desk | None = None
        self._pools: list[ProcessPoolExecutor] = []
        self._given: list[Future[Any]] = []
        self._opening: list[Future[list[Posed]]] = []
        self._ahead: list[Future[list[SuiteTask]]] = []
        self._whose: dict[str, ProcessPoolExecutor] = {}
        self._posed: list[Posed] | None = None
        hired = min(count, len(parts))
        for number in range(hired):
            mine = tuple(parts[number::hired])
            share = Share(mine, data, corpus.record.tokens_sha256, context, root)
            pool = ProcessPoolExecutor(1, mp.get_context("spawn"), initializer=_stay, initargs=(os.getpid(),))
            with _deaf():
                self._opening.append(self._give(pool, _open, share))
            if describe:
                self._ahead.append(self._give(pool, _describe, None))
            self._pools.append(pool)

    def posed(self) -> list[Posed]:
        """Every task; waits until all clerks are ready."""
        if self._posed is None:
            found: list[Posed] = []
            for pool, opening in zip(self._pools, self._opening, strict=True):
                mine = _result(opening)
                self._whose |= {one.name: pool for one in mine}
                found += mine
            self._posed = found + (self._desk().posed() if self._rest else [])
        return self._posed

    def _desk(self) -> Desk:
        """The one in this process."""
        from ablationlab.evaluation.desk import Desk

        if self._local is None:
            assert self._rest is not None
            self._local = Desk(self._rest, self._corpus, self.context, self._root)
        return self._local

    def mark(self, name: str, run: str, weights: Weights, answers: Any) -> Future[Answers]:
        """Sent to the clerk whose task it is."""
        if name not in self._whose:
            return self._desk().mark(name, run, weights, answers)
        return self._give(self._whose[name], _mark, name, run, weights, answers)

    def respond(self, name: str, lm: Any) -> Any:
        """Only of tasks at the desk in this process."""
        return self._desk().respond(name, lm)

    def describe(self, names: Collection[str]) -> list[SuiteTask]:
        """All clerks at once."""
        self.posed()
        if self._ahead:
            hashes = {one.hash for one in self.posed() if one.name in names}
            ready = [one for future in self._ahead for one in _result(future) if one.task_hash in hashes]
            here = [name for name in names if name not in self._whose]
            return ready + (self._desk().describe(here) if here else [])
        by_pool = [(pool, [name for name in names if self._whose.get(name) is pool]) for pool in self._pools]
        working = [self._give(pool, _describe, mine) for pool, mine in by_pool if mine]
        here = [name for name in names if name not in self._whose]
        own = self._desk().describe(here) if here else []
        return [one for future in working for one in _result(future)] + own

    def close(self) -> None:
        """Send everyone home, whatever they are doing."""
        busy = any(not future.done() for future in self._given)
        for pool in self._pools if busy else ():
            for process in list((pool._processes or {}).values()):
                process.kill()
        leaving = threading.Thread(target=_send_home, args=(self._pools, busy))
        leaving.start()
        if busy:  # the idle leave by themselves, while we go on
            leaving.join()
        self._pools = []
        self._whose.clear()

    def _give(self, pool: ProcessPoolExecutor, work: Any, *args: Any) -> Future[Any]:
        future = pool.submit(work, *args)
        self._given.append(future)
        return future


def divided(question: TaskRequest) -> tuple[list[TaskRequest], TaskRequest | None]:
    """(parts that any clerk can take, what stays here); a part is one name and one number of examples."""
    parts, rest = [], []
    for name in expand(question.tasks):
        if name in suite.KINDS or name in benchmarks.CATALOGUE:
            parts += [replace(question, tasks=(name,), fewshot=(k,)) for k in question.fewshot]
        else:
            rest.append(name)
    return parts, replace(question, tasks=tuple(rest)) if rest else None


def _send_home(pools: Sequence[ProcessPoolExecutor], wait: bool) -> None:
    for pool in pools:
        pool.shutdown(wait=wait, cancel_futures=True)


def _result(future: Future[Any]) -> Any:
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise RunFailure(
            "a process that prepares tasks was killed (out of memory, or by hand?); run it again"
        ) from error


@contextmanager
def _deaf() -> Iterator[None]:
    """A Ctrl-C is for this process: those started inside do not hear it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# In a clerk's process.
_desks: list[Desk] = []


def _stay(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=leave_with, args=(parent,), daemon=True).start()


def leave_with(parent: int) -> None:
    """A worker whose parent was killed goes too."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _open(share: Share) -> list[Posed]:
    import torch

    from ablationlab.evaluation.desk import Desk

    torch.set_num_threads(1)
    with suppress(OSError):
        os.nice(5)  # training and scoring go first
    corpus = load_corpus(share.data)
    if corpus.record.tokens_sha256 != share.tokens_sha256:
        raise PlanError(f"corpus {share.data.corpus!r} has changed since the plan was sealed; restore it")
    for question in share.questions:
        _desks.append(Desk(question, corpus, share.context, share.root))
    return [one for desk in _desks for one in desk.posed()]


def _of(name: str) -> Desk:
    return next(desk for desk in _desks if name in desk.sheets)


def _mark(name: str, run: str, weights: Weights, answers: Any) -> Answers:
    return _of(name).marked(name, run, weights, answers)


def _describe(names: Sequence[str] | None) -> list[SuiteTask]:
    return [one for desk in _desks for one in desk.describe(desk.sheets if names is None else names)]
