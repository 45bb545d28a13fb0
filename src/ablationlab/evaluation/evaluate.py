"""Evaluate every trained run of a results folder: what is missing; over processes on a CPU, in stacks on a GPU."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ablationlab.core.errors import RecordError, RunFailure
from ablationlab.data.corpus import TokenizedCorpus
from ablationlab.evaluation.course import Course
from ablationlab.evaluation.crew import Job, attempt, in_processes, load_members, read_plan, units, workshop
from ablationlab.evaluation.throughput import measure
from ablationlab.evaluation.workshop import OpenRun, Workshop, save_record, task_root
from ablationlab.model.device import choose_device
from ablationlab.records.evaluation import Evaluation, Suite, SuiteTask, ThroughputPart, evaluation_path, suite_path
from ablationlab.records.folders import ResultsFolder
from ablationlab.records.plan import Plan, PlannedRun
from ablationlab.records.run import Result
from ablationlab.records.settings import Study
from ablationlab.records.storage import Lock
from ablationlab.study.plan import usable_cores
from ablationlab.tasks import TaskRequest

if TYPE_CHECKING:
    from ablationlab.evaluation.clerks import Clerks

Report = Callable[[str], None]
#: Between two looks at a folder that another process is scoring.
WAIT_SECONDS = 1.0


@dataclass(frozen=True)
class Outcome:
    """What came of it: runs scored now, runs that had everything already, runs that cannot be evaluated and why."""

    evaluated: tuple[str, ...]
    complete: tuple[str, ...]
    not_evaluable: dict[str, str]
    seconds: float

    @property
    def nothing(self) -> str | None:
        """In words, if every run that ended had diverged: there was nothing to score."""
        if self.evaluated or self.complete:
            return None
        count, (name, why) = len(self.not_evaluable), next(iter(self.not_evaluable.items()))
        every = "the one run that ended has" if count == 1 else f"all {count} runs that ended have"
        return f"{every} diverged, so there are no weights to score ({name}: {why})"


def evaluate(
    folder: Path,
    *,
    tasks: Sequence[str] | None = None,
    fewshot: Sequence[int] | None = None,
    templates: Literal["one", "all"] | None = None,
    items: int | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    workers: int = 1,
    throughput: bool = True,
    report: Report = lambda _: None,
    clerks: Clerks | None = None,
) -> Outcome:
    """Score all finished runs; what is not given is as the study says. *clerks* hired earlier have the tasks ready.

    Diverged runs are recorded as not evaluable. Where all are, nothing else is done, and the outcome says so.
    """
    began = time.monotonic()
    results = ResultsFolder(folder)
    plan = read_plan(results)
    question = question_of(plan.study, tasks, fewshot, templates, items)
    kind, _ = choose_device(device)
    lock = Lock(results.locks / "evaluation")
    if not lock.acquire():
        report(f"another process ({lock.holder()}) is scoring these runs; waiting for it")
        while not lock.acquire():
            time.sleep(WAIT_SECONDS)
    hired: list[Clerks] = []
    try:
        runs, sick = _evaluable(plan, results)
        if not runs:
            if clerks is not None:
                clerks.close()
            if not sick:
                raise RecordError(f"{folder}: no run has finished training, so there is nothing to evaluate")
            return Outcome((), (), sick, time.monotonic() - began)
        shop = workshop(Job(folder, question, kind))
        before = {run.id: _stamp(results, run) for run in runs}
        if question.tasks and (clerks is not None or (kind == "cuda" and workers > 1)):
            hired = _seat(shop, plan.study, runs, clerks, workers)
        if question.tasks and not hired:
            _write_suite(shop, plan, runs, report)
        course = Course(shop)
        failures = _spread(Job(folder, question, kind, os.getpid()), course, plan, runs, workers, report)
        try:
            if throughput and not failures:  # the clerks still mark what came last
                _time(course, plan, runs, report)
        finally:
            course.end()
        if failures:
            raise RunFailure(
                "some runs were not evaluated; mend this and run the same command again\n  " + "\n  ".join(failures)
            )
        if question.tasks and hired:
            _write_suite(shop, plan, runs, report)
        changed = tuple(run.id for run in runs if _stamp(results, run) != before[run.id])
        same = tuple(run.id for run in runs if run.id not in changed)
        return Outcome(changed, same, sick, time.monotonic() - began)
    finally:
        for one in hired:
            one.close()
        lock.release()


def hire(results: ResultsFolder, plan: Plan, corpus: TokenizedCorpus, workers: int | None) -> Clerks | None:
    """Clerks for the tasks of a study that is about to be trained on a GPU, beside which the processor has little to do."""
    from ablationlab.evaluation.clerks import Clerks

    study = plan.study
    contexts = {run.model.context for run in plan.runs}
    count = (workers or usable_cores()) - 1
    if plan.execution.device != "cuda" or not study.evaluation.tasks or len(contexts) != 1 or count < 2:
        return None
    question = question_of(study, None, None, None, None)
    fresh = not suite_path(results).exists()
    return Clerks(question, study.data, corpus, contexts.pop(), task_root(results), count, describe=fresh)


def _seat(
    shop: Workshop, study: Study, runs: Sequence[PlannedRun], clerks: Clerks | None, workers: int
) -> list[Clerks]:
    """Clerks for every context: those that were hired before, where they have this very question, or new ones."""
    from ablationlab.evaluation.clerks import Clerks

    found = []
    for context in dict.fromkeys(run.model.context for run in runs):
        if clerks is not None and (clerks.question, clerks.context) == (shop.question, context):
            found.append(clerks)
        else:
            found.append(Clerks(shop.question, study.data, shop.corpus, context, shop.root, workers))
        shop.desks[context] = found[-1]
    if clerks is not None and clerks not in found:
        clerks.close()
    return found


def question_of(
    study: Study,
    tasks: Sequence[str] | None,
    fewshot: Sequence[int] | None,
    templates: Literal["one", "all"] | None,
    items: int | None,
) -> TaskRequest:
    """What is asked: the study's own settings where the command says nothing."""
    own = study.evaluation
    return TaskRequest(
        tasks=tuple(tasks) if tasks else own.tasks,
        fewshot=tuple(sorted(set(fewshot if fewshot else own.fewshot))),
        templates=templates or own.templates,
        items=items if items is not None else own.items,
    )


def _evaluable(plan: Plan, results: ResultsFolder) -> tuple[list[PlannedRun], dict[str, str]]:
    """Runs with weights to score, but for those that only the sweep has; a diverged run is recorded as not evaluable."""
    runs, sick = [], {}
    for run in plan.runs:
        folder = results.run(run.id)
        if not folder.done or not plan.study.owns(run):
            continue
        result = Result.read(folder.result)
        if result.status == "finished":
            runs.append(run)
            continue
        at = result.divergence
        sick[run.id] = "diverged" if at is None else f"diverged at step {at.step} ({at.cause})"
        Evaluation(
            id=run.id,
            plan_hash=plan.plan_hash,
            status="not-evaluable",
            why=sick[run.id],
            checkpoint=result.checkpoint,
            weights_sha256=result.weights_sha256,
        ).replace(evaluation_path(folder))
    return runs, sick


def _stamp(results: ResultsFolder, run: PlannedRun) -> bytes:
    path = evaluation_path(results.run(run.id))
    return path.read_bytes() if path.exists() else b""


def _spread(
    job: Job, course: Course, plan: Plan, runs: Sequence[PlannedRun], workers: int, report: Report
) -> list[str]:
    """On a CPU one run a process; on a GPU all runs that may share a stack, in this process. What went wrong, in words."""
    groups = units(plan, runs, course.shop.width)
    crew = min(workers, len(groups)) if job.device == "cpu" else 1
    if crew == 1:
        return [problem for unit in groups for problem in attempt(course, plan, unit, report)]
    return in_processes(job, groups, crew, report)


def _write_suite(shop: Workshop, plan: Plan, runs: Sequence[PlannedRun], report: Report) -> None:
    """suite.json: what was asked, with chance and n-gram accuracies; scores of tasks that are there already are kept."""
    path = suite_path(shop.results)
    known = {task.task_hash: task for task in Suite.read(path).tasks} if path.exists() else {}
    listed: dict[str, SuiteTask] = {}
    for context in dict.fromkeys(run.model.context for run in runs):
        desk = shop.desk(context)
        posed = desk.posed()
        new = [task.name for task in posed if task.hash not in known]
        if new:
            report(f"chance and n-gram models, {len(new)} tasks")
            known |= {task.task_hash: task for task in desk.describe(new)}
        listed |= {task.hash: known[task.hash] for task in posed}
    superseded = {(task.task, task.template, task.fewshot) for task in listed.values()}
    others = [t for t in known.values() if (t.task, t.template, t.fewshot) not in superseded]
    every = sorted([*listed.values(), *others], key=lambda t: (t.fewshot, t.task, t.template, t.task_hash))
    Suite(plan_hash=plan.plan_hash, tasks=tuple(every)).replace(path)


def _time(course: Course, plan: Plan, runs: Sequence[PlannedRun], report: Report) -> None:
    """Speed and memory, interleaved over all runs; measured again only when the set of runs has changed."""
    shop = course.shop
    elsewhere = [run for run in runs if run.id not in course.runs]  # scored by other processes
    records = [one.record for one in course.runs.values()]
    records += [Evaluation.read(evaluation_path(shop.results.run(run.id))) for run in elsewhere]
    together = {record.throughput.together if record.throughput else None for record in records}
    if None not in together and len(together) == 1:
        return
    report("throughput, all runs in turn")
    for run in elsewhere:
        course.admit(*load_members(plan, shop.results, run))
    timed = [course.runs[run.id] for run in runs]
    for one, part in zip(timed, measure([one.final for one in timed], shop.device), strict=True):
        course.later(one, partial(_note_speed, shop, one, part))


def _note_speed(shop: Workshop, one: OpenRun, part: ThroughputPart) -> None:
    one.record = one.record.model_copy(update={"throughput": part})
    save_record(shop, one)
