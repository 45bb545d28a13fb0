"""The evaluator of tasks, and the processes that build tasks and score answers for it.

All that the harness does is done by a `TaskBuilder` and needs no weights; all that a device does is done by the evaluator and
needs none of the harness. So builders may run in processes of their own: on a GPU they start with training, and have the
tasks ready when it ends. This module does not load the harness.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ablationlab.core.errors import PlanError, RecordError
from ablationlab.core.processes import Pool
from ablationlab.data.corpus import TokenizedCorpus, load_corpus
from ablationlab.evaluation.context import EvaluationContext, Measurement, ScoredMember
from ablationlab.evaluation.runs import OpenEvaluation, TaskAnswers
from ablationlab.evaluation.scoring import Packed, ScoringTokens, StackScorer
from ablationlab.records.evaluation import Evaluation, Suite, SuiteTask, TaskKey, Weights, suite_path
from ablationlab.records.plan import PlannedRun
from ablationlab.records.settings import DataConfig
from ablationlab.records.storage import sha256_file
from ablationlab.tasks import CATALOGUE, KINDS, TaskRequest, expand
from ablationlab.tasks.scores import OF_CALIBRATED, TASK_MEANS, over_tasks

if TYPE_CHECKING:
    from ablationlab.evaluation.harness import LocalTaskBuilder


@dataclass(frozen=True, eq=False)
class PackedTask:
    """One task as a scorer needs it: its key and its requests as packed tokens, without text.

    ``packed`` is None where the task asks for more than log-probabilities.
    """

    task: str
    template: str
    fewshot: int
    hash: str
    name: str
    packed: Packed | None

    def missing_in(self, record: Evaluation, weights: Weights) -> bool:
        """Whether these weights have no score of this task yet; a score of another version does not count."""
        result = record.find(TaskKey(self.task, self.template, self.fewshot, weights))
        return result is None or result.task_hash != self.hash


class TaskBuilder(Protocol):
    """Builds tasks and scores answers, in this process or in others."""

    def tasks(self) -> list[PackedTask]:
        """Every task that is asked."""
        ...

    def score(self, name: str, run: str, weights: Weights, answers: Any) -> Future[TaskAnswers]:
        """One run's answers to one task, in the order of its requests, scored by the harness."""
        ...

    def answer(self, name: str, lm: Any) -> Any:
        """Answers of the current member to a task that asks for more than log-probabilities."""
        ...

    def describe(self, names: Collection[str]) -> list[SuiteTask]:
        """What is known of tasks before any run is scored."""
        ...


class Tasks:
    """The evaluator of tasks: scored by the device for a whole stack, then by the harness for each run."""

    title = "tasks"
    scope: Literal["stack", "study"] = "stack"
    gate = True

    def __init__(self, context: EvaluationContext) -> None:
        self._context = context

    def missing(self, run: PlannedRun, record: Evaluation) -> Sequence[Weights]:
        if not self._context.request.tasks:
            return ()
        kept: tuple[Weights, ...] = ("final",) if record.half_weights_sha256 is None else ("final", "half")
        tasks = self._context.builder(run.model.context).tasks()
        return [weights for weights in kept if any(task.missing_in(record, weights) for task in tasks)]

    def run(self, members: Sequence[ScoredMember]) -> Iterator[Measurement]:
        builder = self._context.builder(members[0].member.model.context)
        scorer = StackScorer(self._context.stack(members))
        tasks = builder.tasks()
        for fewshot in sorted({task.fewshot for task in tasks}):
            scores: dict[str, _RunScores] = {}
            for task in tasks:
                if task.fewshot == fewshot:
                    self._put(builder, scorer, members, task, scores)
            for run_scores in scores.values():
                yield Measurement(run_scores.run, "tasks", run_scores.collect, run_scores.ready)

    def _put(
        self,
        builder: TaskBuilder,
        scorer: StackScorer,
        members: Sequence[ScoredMember],
        task: PackedTask,
        scores: dict[str, _RunScores],
    ) -> None:
        """Put a task to those members of a stack that lack it."""
        lacking = [
            (number, *scored)
            for number, scored in enumerate(members)
            if task.missing_in(scored.run.record, scored.member.weights)
        ]
        if not lacking:
            return
        scoring = scorer.begin(task.packed) if task.packed is not None else None
        waiting = [scores.setdefault(run.record.id, _RunScores(run)).expect() for _, run, _ in lacking]

        def hand_over() -> None:
            scores = scoring.finish() if scoring is not None else None
            for (number, _, member), put in zip(lacking, waiting, strict=True):
                answers = self._generated(builder, scorer, task, number) if scores is None else scores.answers(number)
                put(builder.score(task.name, member.run.id, member.weights, answers))

        self._context.queue.scoring(scoring.mark if scoring is not None else None, hand_over)

    def _generated(self, builder: TaskBuilder, scorer: StackScorer, task: PackedTask, member: int) -> Any:
        """Answers to a task that asks for more than log-probabilities: through the harness's own interface."""
        from ablationlab.evaluation.harness import StackLM

        lm = StackLM(scorer, ScoringTokens(self._context.corpus.tokenizer), scorer.stack.model.context)
        lm.current = member
        return builder.answer(task.name, lm)

    @staticmethod
    def metrics(record: Evaluation) -> dict[str, float | None]:
        metrics: dict[str, float | None] = {}
        final = [task for task in record.tasks if task.weights == "final" and task.chance is not None]
        zero = [task for task in final if task.fewshot == 0]
        most = max((task.fewshot for task in final), default=0)
        few = [task for task in final if task.fewshot == most] if most else []
        for name, value in TASK_MEANS.items():
            tasks = few if name.endswith("_fewshot") else zero
            if tasks:
                metrics[name] = over_tasks([t for t in tasks if t.calibration or name not in OF_CALIBRATED], value)
        return metrics


class _RunScores:
    """Scores of one run that the device or the harness still works on."""

    def __init__(self, run: OpenEvaluation) -> None:
        self.run = run
        self._futures: list[Future[TaskAnswers] | None] = []

    def expect(self) -> Callable[[Future[TaskAnswers]], None]:
        """Keep a place for the scores of one more task; what is returned fills it."""
        self._futures.append(None)
        return partial(self._futures.__setitem__, len(self._futures) - 1)

    def ready(self) -> bool:
        return all(future is not None and future.done() for future in self._futures)

    def collect(self) -> list[TaskAnswers]:
        """Wait for the harness."""
        return [future.result() for future in self._futures if future is not None]


def write_suite(context: EvaluationContext, lengths: Sequence[int], report: Callable[[str], None]) -> None:
    """suite.json: the tasks, with chance and n-gram accuracies; what is known of tasks from before is kept.

    *lengths*: the contexts of the models.
    """
    path = suite_path(context.results)
    before = _known_suite(path, context.plan.plan_hash)
    known = {task.task_hash: task for task in before.tasks}
    listed: dict[str, SuiteTask] = {}
    for length in lengths:
        builder = context.builder(length)
        tasks = builder.tasks()
        new = [task.name for task in tasks if task.hash not in known]
        if new:
            report(f"chance and n-gram models, {len(new)} tasks")
            known |= {task.task_hash: task for task in builder.describe(new)}
        listed |= {task.hash: known[task.hash] for task in tasks}
    superseded = {(task.task, task.template, task.fewshot) for task in listed.values()}
    others = [t for t in known.values() if (t.task, t.template, t.fewshot) not in superseded]
    every = sorted([*listed.values(), *others], key=lambda t: (t.fewshot, t.task, t.template, t.task_hash))
    written = sorted([*path.parent.glob("tasks/*/*.jsonl"), *path.parent.glob("tasks/*/task.yaml")])
    # The definitions of what is asked now may have been rewritten by a later version.
    anew = tuple(f"-{task_hash[:12]}/task.yaml" for task_hash in listed)
    kept = {name: sha256 for name, sha256 in before.files.items() if not name.endswith(anew)}
    files = {file.relative_to(path.parent).as_posix(): sha256_file(file) for file in written} | kept
    Suite(plan_hash=context.plan.plan_hash, tasks=tuple(every), files=files).replace(path)


def _known_suite(path: Path, plan_hash: str) -> Suite:
    """What is known of tasks from before; nothing where the file is damaged, or of another plan."""
    with suppress(RecordError):
        suite = Suite.read(path)
        if suite.plan_hash == plan_hash:
            return suite
    return Suite(plan_hash=plan_hash, tasks=())


# Builders in processes of their own.


class ProcessTaskBuilder:
    """The tasks of one request, for models of one context, built and scored by worker processes with a few tasks each.

    Tasks that the harness takes from its own sources stay in this process: they may ask a model to generate, which only the
    process with the weights can.
    """

    def __init__(
        self,
        request: TaskRequest,
        data: DataConfig,
        corpus: TokenizedCorpus,
        context: int,
        root: Path,
        processes: int,
        *,
        describe: bool = False,
    ) -> None:
        """*corpus* is what *data* names; every worker loads it again. *describe*: have chance and n-grams ready too."""
        self.request, self.context, self._corpus, self._root = request, context, corpus, root
        parts, self._rest = _split(request)
        self._local: LocalTaskBuilder | None = None
        self._tasks: list[PackedTask] | None = None
        self._pools: list[Pool[Any]] = []
        self._pool_of: dict[str, Pool[Any]] = {}
        self._calls: list[Future[Any]] = []
        count = min(processes, len(parts))
        for number in range(count):
            share = (tuple(parts[number::count]), data, corpus.record.tokens_sha256, context, root)
            self._pools.append(Pool(_build, share, name="building tasks"))
        self._built = [self._call(pool, "tasks") for pool in self._pools]
        self._described = [self._call(pool, "describe", None) for pool in self._pools] if describe else []

    def tasks(self) -> list[PackedTask]:
        """Every task; waits until all workers are ready."""
        if self._tasks is None:
            tasks: list[PackedTask] = []
            for pool, built in zip(self._pools, self._built, strict=True):
                self._pool_of |= {task.name: pool for task in built.result()}
                tasks += built.result()
            self._tasks = tasks + (self._here().tasks() if self._rest else [])
        return self._tasks

    def score(self, name: str, run: str, weights: Weights, answers: Any) -> Future[TaskAnswers]:
        if name not in self._pool_of:
            return self._here().score(name, run, weights, answers)
        return self._call(self._pool_of[name], "scored", name, run, weights, answers)

    def answer(self, name: str, lm: Any) -> Any:
        return self._here().answer(name, lm)

    def describe(self, names: Collection[str]) -> list[SuiteTask]:
        hashes = {task.hash for task in self.tasks() if task.name in names}
        described = self._described or [
            self._call(pool, "describe", [name for name in names if self._pool_of.get(name) is pool])
            for pool in self._pools
        ]
        here = [name for name in names if name not in self._pool_of]
        own = self._here().describe(here) if here else []
        return [task for future in described for task in future.result() if task.task_hash in hashes] + own

    def close(self) -> None:
        """End the workers; at once, if they are still at work."""
        busy = any(not call.done() for call in self._calls)
        for pool in self._pools:
            pool.close(kill=busy, wait=busy)
        self._pools = []
        self._pool_of.clear()

    def _here(self) -> LocalTaskBuilder:
        from ablationlab.evaluation.harness import LocalTaskBuilder

        if self._local is None:
            assert self._rest is not None
            self._local = LocalTaskBuilder(self._rest, self._corpus, self.context, self._root)
        return self._local

    def _call(self, pool: Pool[Any], *arguments: Any) -> Future[Any]:
        future = pool.submit(*arguments)
        self._calls.append(future)
        return future


def _split(request: TaskRequest) -> tuple[list[TaskRequest], TaskRequest | None]:
    """(parts that any worker can take, what stays here); a part is one name and one number of examples."""
    parts, rest = [], []
    for name in expand(request.tasks):
        if name in KINDS or name in CATALOGUE:
            parts += [replace(request, tasks=(name,), fewshot=(k,)) for k in request.fewshot]
        else:
            rest.append(name)
    return parts, replace(request, tasks=tuple(rest)) if rest else None


def _build(
    requests: Sequence[TaskRequest], data: DataConfig, tokens_sha256: str, context: int, root: Path
) -> Callable[..., Any]:
    """In a worker: build the tasks of some requests; what is returned answers calls about them."""
    with suppress(OSError):
        os.nice(5)  # training and scoring go first, before these imports too
    import torch

    from ablationlab.evaluation.harness import LocalTaskBuilder

    torch.set_num_threads(1)
    corpus = load_corpus(data)
    if corpus.record.tokens_sha256 != tokens_sha256:
        raise PlanError(f"corpus {data.corpus!r} has changed since the plan was sealed; restore it")
    builders = [LocalTaskBuilder(request, corpus, context, root) for request in requests]

    def answer(method: Literal["tasks", "describe", "scored"], *arguments: Any) -> Any:
        if method == "tasks":
            return [task for builder in builders for task in builder.tasks()]
        if method == "describe":
            (names,) = arguments
            return [
                task for builder in builders for task in builder.describe(builder.batches if names is None else names)
            ]
        owner = next(builder for builder in builders if arguments[0] in builder.batches)
        return owner.scored(*arguments)

    return answer
