"""Evaluates every trained run of a results folder: one loop over stacks of runs and evaluators.

On a CPU runs are spread over processes; on a GPU they are scored in stacks, by this process. Only what is missing is
measured, and it is written as it comes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from ablationlab.core.errors import PlanError, RecordError, RunFailure, WorkerDied
from ablationlab.core.format import duration, part, plain
from ablationlab.core.grouping import grouped
from ablationlab.core.processes import Pool, usable_cores
from ablationlab.data.corpus import TokenizedCorpus, load_corpus
from ablationlab.evaluation.context import EvaluationContext, Evaluator, ScoredMember, task_folder
from ablationlab.evaluation.length import Length
from ablationlab.evaluation.runs import (
    OpenEvaluation,
    RunWeights,
    changed_provenance,
    load_final,
    load_half,
    provenance,
    write_record,
)
from ablationlab.evaluation.tasks import ProcessTaskBuilder, Tasks, write_suite
from ablationlab.evaluation.throughput import Throughput
from ablationlab.evaluation.tokens import NextTokens
from ablationlab.model.device import prepare
from ablationlab.model.machine import choose_device
from ablationlab.records.evaluation import Evaluation, Weights, evaluation_path, suite_path
from ablationlab.records.plan import Execution, Plan, PlannedRun
from ablationlab.records.results import no_weights, read_runs, without_weights
from ablationlab.records.run import Divergence, Result
from ablationlab.records.seal import close_evaluation
from ablationlab.records.storage import Lock, ResultsFolder, read_regular
from ablationlab.study.plan import stackable
from ablationlab.tasks import TaskRequest

#: Every evaluator, in the order in which they run.
EVALUATORS: tuple[type[Evaluator], ...] = (NextTokens, Length, Tasks, Throughput)
#: Sets of weights that are scored together on a GPU. A constant, so that a study that grows keeps its scores; five seeds of
#: three variants and the baseline's halfway weights fill two such stacks.
WIDTH = 10
#: Parameters of one such stack, at most: 4 GB of weights.
MOST_PARAMETERS = 1_000_000_000
#: Stacks whose weights are held in memory at once.
STACKS = 2
#: Checkpoints that are read and verified at once.
READERS = 8
#: Between two looks at a folder that another process is scoring.
WAIT_SECONDS = 1.0
Report = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """What came of it: runs scored now, runs that had everything already, runs that cannot be evaluated and why."""

    evaluated: tuple[str, ...]
    complete: tuple[str, ...]
    not_evaluable: dict[str, Divergence | None]
    seconds: float

    @property
    def nothing(self) -> bool:
        """Whether every run that ended had diverged: there was nothing to score."""
        return not (self.evaluated or self.complete)


def evaluate(
    folder: Path,
    request: TaskRequest | None = None,
    *,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    workers: int = 1,
    throughput: bool = True,
    report: Report = lambda _: None,
    builder: ProcessTaskBuilder | None = None,
) -> Outcome:
    """Score all finished runs on what is asked, else on what the study asks. A *builder* started earlier has the tasks ready.

    Diverged runs are recorded as not evaluable. Where all are, nothing else is done, and the outcome says so. Without the
    weights of a run nothing is scored.
    """
    began = time.monotonic()
    results = ResultsFolder(folder)
    plan = Plan.of(results)
    if plan.corpora:
        raise PlanError(
            f"{', '.join(plan.corpora)} change [data], and evaluation scores every run on one text with one tokenizer, the "
            "study's own: its scores would favour the arms that trained on it. `ablationlab analyze` compares what these "
            "runs measured on their own held-out text"
        )
    request = request or TaskRequest.of(plan.study)
    if lost := without_weights(read_runs(plan, results)):
        raise no_weights(*(run.folder for run in lost))
    kind, _ = choose_device(device)
    with _locked(results, report):
        finished, diverged = _evaluable(plan, results)
        runs = [run for run in plan.runs if run.id in finished]
        if not runs:
            if builder is not None:
                builder.close()
            if not diverged:
                raise RecordError(f"{folder}: no run has finished training, so there is nothing to evaluate")
            return Outcome((), (), diverged, time.monotonic() - began)
        weights = tuple(str(finished[run.id].weights_sha256) for run in runs if run.role != "gate")  # timed together
        context = open_context(folder, request, kind, weights)
        before = {run.id: _bytes(results, run) for run in runs}
        _say_why_again(context, runs, report)
        in_processes = bool(request.tasks) and (builder is not None or (kind == "cuda" and workers > 1))
        with _task_builders(context, runs, builder, workers if in_processes else 0):
            _evaluate_runs(context, runs, workers, report, throughput=throughput)
        for run in runs:
            close_evaluation(results.run(run.id))
        changed = tuple(run.id for run in runs if _bytes(results, run) != before[run.id])
        same = tuple(run.id for run in runs if run.id not in changed)
        return Outcome(changed, same, diverged, time.monotonic() - began)


def start_building_tasks(
    results: ResultsFolder, plan: Plan, corpus: TokenizedCorpus, workers: int | None
) -> ProcessTaskBuilder | None:
    """Build the tasks of a study that is about to be trained on a GPU, beside which the processor has little to do."""
    study = plan.study
    lengths = _lengths(plan.runs)
    count = (workers or usable_cores()) - 1
    if plan.execution.device != "cuda" or not study.evaluation.tasks or len(lengths) != 1 or count < 2:
        return None
    fresh = not suite_path(results).exists()
    root = task_folder(results)
    return ProcessTaskBuilder(TaskRequest.of(study), study.data, corpus, lengths[0], root, count, describe=fresh)


def metrics_of(record: Evaluation) -> dict[str, float | None]:
    """Every run-level metric that follows from what was measured on a run."""
    return {name: value for evaluator in EVALUATORS for name, value in evaluator.metrics(record).items()}


# What is evaluated, and with what.


@contextmanager
def _locked(results: ResultsFolder, report: Report) -> Iterator[None]:
    lock = Lock(results.locks / "evaluation")
    if not lock.acquire():
        report(f"another process ({lock.holder()}) is scoring these runs; waiting for it")
        while not lock.acquire():
            time.sleep(WAIT_SECONDS)
    try:
        yield
    finally:
        lock.release()


def _evaluable(plan: Plan, results: ResultsFolder) -> tuple[dict[str, Result], dict[str, Divergence | None]]:
    """(results of runs with weights to score, where the others diverged), without those that only the sweep has."""
    finished, diverged = {}, {}
    for run in read_runs(plan, results):
        result = run.result
        if not run.done or result is None or not run.planned.is_scored:
            continue
        if result.status == "finished":
            finished[run.id] = result
            continue
        diverged[run.id] = result.divergence
        nothing = Evaluation(
            id=run.id,
            plan_hash=plan.plan_hash,
            status="not-evaluable",
            why="diverged",
            checkpoint=result.checkpoint,
            weights_sha256=result.weights_sha256,
        )
        write_record(run.folder, nothing)
        close_evaluation(run.folder)
    return finished, diverged


def open_context(
    folder: Path, request: TaskRequest, kind: Literal["cpu", "cuda"], weights: tuple[str, ...]
) -> EvaluationContext:
    """Load the text and fix the arithmetic of this process: fp32, one thread on a CPU."""
    results = ResultsFolder(folder)
    plan = Plan.of(results)
    _, name = choose_device(kind)
    here = Execution(device=kind, device_name=name, precision="fp32", stack_width=1, threads=1)
    device = prepare(here, plan.study.execution.kernels)
    corpus = load_corpus(plan.study.data)
    if corpus.record.tokens_sha256 != plan.corpus.tokens_sha256:
        raise PlanError(f"corpus {plan.corpus.name!r} is not the one that the plan was sealed with; restore it")
    width = _width(plan) if kind == "cuda" else 1
    return EvaluationContext(results, plan, corpus, request, provenance(kind, name, width), device, width, weights)


def _width(plan: Plan) -> int:
    """Sets of weights that are scored together on a GPU: fewer of large models, for all of them are there in fp32."""
    largest = max(run.budget.parameters for run in plan.runs)
    return max(1, min(WIDTH, MOST_PARAMETERS // largest))


def _lengths(runs: Sequence[PlannedRun]) -> list[int]:
    """The contexts of the models."""
    return list(dict.fromkeys(run.model.context for run in runs))


def _bytes(results: ResultsFolder, run: PlannedRun) -> bytes:
    path = evaluation_path(results.run(run.id))
    return read_regular(path) if path.exists() else b""


def _say_why_again(context: EvaluationContext, runs: Sequence[PlannedRun], report: Report) -> None:
    """Scores that were made otherwise count no more: say what differs before the work begins."""
    changes = [changed_provenance(context.results.run(run.id), context.provenance) for run in runs]
    outdated = [change for change in changes if change]
    if outdated:
        differs = {name: pair for change in outdated for name, pair in change.items()}
        what = "; ".join(f"{name} was {_short(then)}, is {_short(now)}" for name, (then, now) in differs.items())
        which = part(len(outdated), len(runs))
        report(f"{which} runs are scored again, because only scores that are made alike can be compared: {what}")


def _short(value: str) -> str:
    """A hash by its beginning."""
    return value[:12] if len(value) >= 16 and set(value) <= set("0123456789abcdef") else value


@contextmanager
def _task_builders(
    context: EvaluationContext, runs: Sequence[PlannedRun], builder: ProcessTaskBuilder | None, processes: int
) -> Iterator[None]:
    """Processes that build the tasks for every context; *builder* is one of them where it has this very request."""
    builders: list[ProcessTaskBuilder] = []
    data = context.plan.study.data
    try:
        for length in _lengths(runs) if processes else ():
            if builder is not None and (builder.request, builder.context) == (context.request, length):
                builders.append(builder)
            else:
                root = task_folder(context.results)
                builders.append(ProcessTaskBuilder(context.request, data, context.corpus, length, root, processes))
            context.builders[length] = builders[-1]
        if builder is not None and builder not in builders:
            builder.close()
        yield
    finally:
        for started in builders:
            started.close()


# The loop.


def _evaluate_runs(
    context: EvaluationContext,
    runs: Sequence[PlannedRun],
    workers: int,
    report: Report,
    *,
    throughput: bool,
) -> None:
    """All evaluators on all runs. suite.json comes before the first score: scores without it are refused."""
    if context.request.tasks:
        write_suite(context, _lengths(runs), report)
    opened: dict[str, OpenEvaluation] = {}
    failures = _spread(context, opened, runs, workers, report)
    try:
        if throughput and not failures:  # the harness still scores what came last
            _evaluate_study(context, opened, [run for run in runs if run.role != "gate"], report)
    finally:
        context.queue.end()
    if failures:
        raise RunFailure(
            "some runs were not evaluated. Where weights are damaged, move the run's folder out of "
            f"{context.results.runs} and use `ablationlab run`: it trains the run again, to the same weights\n  "
            + "\n  ".join(failures)
        )


def _spread(
    context: EvaluationContext,
    opened: dict[str, OpenEvaluation],
    runs: Sequence[PlannedRun],
    workers: int,
    report: Report,
) -> list[str]:
    """On a CPU one run per process; on a GPU all runs that may share a stack, in this process. The problems, in words."""
    groups = _groups(context.plan, runs, context.width)
    processes = min(workers, len(groups)) if context.device.type == "cpu" else 1
    if processes == 1:
        return [problem for group in groups for problem in _evaluate_group(context, opened, group, report)]
    failures: list[str] = []
    arguments = (context.results.path, context.request, context.weights_sha256)
    began, ended = time.monotonic(), list[float]()
    with Pool(_worker, arguments, name="evaluation", processes=processes) as pool:
        work = pool.as_completed((tuple(group), (group,)) for group in groups)
        for group, future in work:
            names = ", ".join(group)
            try:
                problems = future.result()
            except WorkerDied as error:
                failures.append(f"{names}: its process {error.how}")
                continue
            ended.append(time.monotonic() - began)
            left = f", about {plain(duration(seconds_left(ended, len(groups), processes)))} left"
            left = left if len(ended) < len(groups) else ""
            report(f"{names}: {'failed' if problems else 'done'} ({len(ended)} of {len(groups)}{left})")
            failures += problems
    return failures


def seconds_left(ended: Sequence[float], total: int, processes: int) -> float:
    """From when each of the groups so far ended: at the pace since the first, which began with imports and building tasks;
    before every process has ended one, at the pace of the first."""
    done = len(ended)
    pace = ended[0] / processes if done <= processes else (ended[-1] - ended[0]) / (done - 1)
    return pace * (total - done)


def _worker(folder: Path, request: TaskRequest, weights: tuple[str, ...]) -> Callable[[Sequence[str]], list[str]]:
    """In a process of its own: evaluates groups of runs, with tasks that are built once."""
    context = open_context(folder, request, "cpu", weights)
    return lambda ids: _evaluate_group(context, {}, ids, lambda _: None)


def _groups(plan: Plan, runs: Sequence[PlannedRun], width: int) -> list[list[str]]:
    """Runs that are evaluated together, those of one variant side by side: one alone, or enough to fill a few stacks."""
    by_shape = grouped((stackable(run, plan.variants), run) for run in runs)
    order = {name: place for place, name in enumerate(plan.study.variants)}
    most = 1 if width == 1 else STACKS * width
    groups = []
    for same in by_shape.values():
        ids = [run.id for run in sorted(same, key=lambda run: order[run.variant])]
        groups += [ids[start : start + most] for start in range(0, len(ids), most)]
    return groups


def _evaluate_group(
    context: EvaluationContext, opened: dict[str, OpenEvaluation], ids: Sequence[str], report: Report
) -> list[str]:
    """All evaluators on runs of one shape, stack by stack. A damaged checkpoint is reported; the other runs are evaluated."""
    plan, problems = context.plan, []
    with ThreadPoolExecutor(min(len(ids), READERS)) as readers:  # reading and hashing wait for no interpreter
        loads = [readers.submit(load_members, plan, context.results, plan.run(run_id)) for run_id in ids]
    runs = []
    for run_id, load in zip(ids, loads, strict=True):
        try:
            opened[run_id] = context.open(*load.result())
        except RecordError as error:
            problems.append(f"{run_id}: {error}")
        else:
            runs.append(opened[run_id])
    every: tuple[Weights, ...] = ("final", "half")
    for evaluator in _evaluators(context, "stack"):
        missing = {
            run.record.id: evaluator.missing(run.final.run, run.record)
            for run in runs
            if evaluator.gate or run.final.run.role != "gate"
        }
        members = [
            ScoredMember(run, run.members[weights])
            for weights in every
            for run in runs
            if weights in missing.get(run.record.id, ())
        ]
        for start in range(0, len(members), context.width):
            stack = members[start : start + context.width]
            report(f"{evaluator.title}, {', '.join(scored.member.name for scored in stack)}")
            _measure(context, evaluator, stack)
    context.queue.settle()
    return problems


def _evaluate_study(
    context: EvaluationContext, opened: dict[str, OpenEvaluation], runs: Sequence[PlannedRun], report: Report
) -> None:
    """Evaluators of all runs together, where any run lacks their result."""
    results = context.results
    for evaluator in _evaluators(context, "study"):
        records = {
            run.id: opened[run.id].record if run.id in opened else Evaluation.read(evaluation_path(results.run(run.id)))
            for run in runs
        }
        if not any(evaluator.missing(run, records[run.id]) for run in runs):
            continue
        report(f"{evaluator.title}, all runs in turn")
        for run in runs:
            if run.id not in opened:  # it was scored by another process
                opened[run.id] = context.open(*load_members(context.plan, results, run))
        _measure(context, evaluator, [ScoredMember(opened[run.id], opened[run.id].final) for run in runs])


def _evaluators(context: EvaluationContext, scope: Literal["stack", "study"]) -> list[Evaluator]:
    return [evaluator(context) for evaluator in EVALUATORS if evaluator.scope == scope]


def _measure(context: EvaluationContext, evaluator: Evaluator, members: Sequence[ScoredMember]) -> None:
    for measurement in evaluator.run(members):
        context.queue.later(measurement, partial(_save, measurement.run))


def _save(run: OpenEvaluation) -> None:
    run.save(metrics_of(run.record))


def load_members(plan: Plan, results: ResultsFolder, run: PlannedRun) -> tuple[RunWeights, RunWeights | None]:
    """A run's final weights, and for a run of the gate those kept halfway."""
    folder = results.run(run.id)
    final = load_final(run, folder, Result.read(folder.result))
    return final, load_half(run, folder, plan.plan_hash) if run.role == "gate" else None
