"""Who scores which runs: units of runs, in this process or over several."""

from __future__ import annotations

import multiprocessing as mp
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ablationlab.core.errors import PlanError, RecordError
from ablationlab.data.corpus import TokenizedCorpus, load_corpus
from ablationlab.evaluation.course import Course
from ablationlab.evaluation.how import how_part
from ablationlab.evaluation.members import Member, load_final, load_half
from ablationlab.evaluation.unit import evaluate_unit
from ablationlab.evaluation.workshop import Workshop
from ablationlab.model.device import choose_device, prepare
from ablationlab.records.folders import ResultsFolder
from ablationlab.records.plan import Execution, Plan, PlannedRun
from ablationlab.records.run import Result
from ablationlab.study.plan import stackable
from ablationlab.tasks import TaskRequest

#: Sets of weights that are scored together on a GPU. A constant, so that a study that grows keeps its scores; five seeds of
#: three variants and the baseline's halfway weights fill two such stacks.
WIDTH = 10
#: Parameters of one such stack, at most: 4 GB of weights.
MOST_PARAMETERS = 1_000_000_000
Report = Callable[[str], None]
#: Stacks whose weights are held in memory at once.
STACKS = 2
#: Checkpoints that are read and verified at once.
READERS = 8


@dataclass(frozen=True)
class Job:
    """All that a worker process needs."""

    folder: Path
    question: TaskRequest
    device: Literal["cpu", "cuda"]
    stop_with: int | None = None


def read_plan(results: ResultsFolder) -> Plan:
    """The sealed plan of a results folder."""
    if not results.plan.exists():
        raise RecordError(f"{results.path} is no results folder of a study: it has no {results.plan.name}")
    return Plan.read(results.plan)


def workshop(job: Job) -> Workshop:
    """Load the text and fix the arithmetic of this process: fp32, one thread on a CPU."""
    results = ResultsFolder(job.folder)
    plan = read_plan(results)
    _, name = choose_device(job.device)
    execution = Execution(device=job.device, device_name=name, precision="fp32", stack_width=1, threads=1)
    device = prepare(execution)
    corpus = _corpus(plan)
    width = _width(plan) if job.device == "cuda" else 1
    return Workshop(results, plan.plan_hash, corpus, job.question, how_part(job.device, name, width), device, width)


def _width(plan: Plan) -> int:
    """Sets of weights that are scored together on a GPU: fewer of large models, for all of them are there in fp32."""
    largest = max(run.budget.parameters for run in plan.runs)
    return max(1, min(WIDTH, MOST_PARAMETERS // largest))


def _corpus(plan: Plan) -> TokenizedCorpus:
    corpus = load_corpus(plan.study.data)
    if corpus.record.tokens_sha256 != plan.corpus.tokens_sha256:
        raise PlanError(f"corpus {plan.corpus.name!r} is not the one that the plan was sealed with; restore it")
    return corpus


def load_members(plan: Plan, results: ResultsFolder, run: PlannedRun) -> tuple[Member, Member | None]:
    """A run's final weights, and for a baseline those kept halfway, where there are any."""
    folder = results.run(run.id)
    final = load_final(run, folder, Result.read(folder.result))
    baseline = run.variant == plan.study.baseline
    return final, load_half(run, folder, plan.plan_hash) if baseline else None


def units(plan: Plan, runs: Sequence[PlannedRun], width: int) -> list[list[str]]:
    """Runs that are evaluated together, those of one variant side by side: one alone, or enough to fill a few stacks."""
    groups: dict[str, list[PlannedRun]] = {}
    for run in runs:
        groups.setdefault(stackable(run), []).append(run)
    order = {name: place for place, name in enumerate(plan.study.variants)}
    most = 1 if width == 1 else STACKS * width
    found = []
    for group in groups.values():
        ordered = [run.id for run in sorted(group, key=lambda run: order[run.variant])]
        found += [ordered[start : start + most] for start in range(0, len(ordered), most)]
    return found


def attempt(course: Course, plan: Plan, ids: Sequence[str], report: Report) -> list[str]:
    """Evaluate one unit; a damaged checkpoint is told, and does not reach the others."""
    results = course.shop.results
    pairs, problems = [], []
    with ThreadPoolExecutor(min(len(ids), READERS)) as readers:  # reading and hashing wait for no interpreter
        loads = [readers.submit(load_members, plan, results, plan.run(run_id)) for run_id in ids]
    for run_id, load in zip(ids, loads, strict=True):
        try:
            pairs.append(load.result())
        except RecordError as error:
            problems.append(f"{run_id}: {error}")
    if pairs:
        evaluate_unit(course, [final for final, _ in pairs], [half for _, half in pairs], report)
    return problems


def in_processes(job: Job, groups: Sequence[Sequence[str]], crew: int, report: Report) -> list[str]:
    """Units over spawned processes; what went wrong, in words."""
    context = mp.get_context("spawn")
    failures: list[str] = []
    with ProcessPoolExecutor(crew, mp_context=context, initializer=_begin, initargs=(job,)) as pool:
        waiting = {pool.submit(_work, list(unit)): unit for unit in groups}
        try:
            for future in as_completed(waiting):
                ids = ", ".join(waiting[future])
                try:
                    problems = future.result()
                except BrokenProcessPool:
                    failures.append(f"{ids}: its process was killed (out of memory, or by hand?)")
                    continue
                report(f"{ids}: {'failed' if problems else 'done'}")
                failures += problems
        except BaseException:
            for future in waiting:
                future.cancel()
            for process in (pool._processes or {}).values():
                process.kill()
            raise
    return failures


_shop: Workshop | None = None
_plan: Plan | None = None


def _begin(job: Job) -> None:
    from ablationlab.evaluation.clerks import leave_with

    global _shop, _plan
    assert job.stop_with is not None
    threading.Thread(target=leave_with, args=(job.stop_with,), daemon=True).start()
    _shop, _plan = workshop(job), read_plan(ResultsFolder(job.folder))


def _work(ids: list[str]) -> list[str]:
    assert _shop is not None
    assert _plan is not None
    return attempt(Course(_shop), _plan, ids, lambda _: None)
