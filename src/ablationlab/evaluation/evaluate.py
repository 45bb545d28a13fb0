"""Evaluate every trained run of a results folder: what is missing, spread over processes, in stacks on a GPU."""

from __future__ import annotations

import hashlib
import multiprocessing as mp
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import ablationlab
from ablationlab.config import validated
from ablationlab.data.corpus import TokenizedCorpus, load_corpus
from ablationlab.data.tokens import sample
from ablationlab.errors import AblationLabError, PlanError, RecordError, RunFailure
from ablationlab.evaluation import files
from ablationlab.evaluation.answers import choices_of
from ablationlab.evaluation.harness import StackLM, ask, harness_sha256, harness_version
from ablationlab.evaluation.members import Member, load_final, load_half
from ablationlab.evaluation.ngrams import NgramScorer
from ablationlab.evaluation.summary import metrics_of
from ablationlab.evaluation.tasks import Asked, AskedTask, Question, chance_of
from ablationlab.evaluation.throughput import measure
from ablationlab.evaluation.unit import Workshop, evaluate_unit
from ablationlab.evaluation_records import Evaluation, HowPart, Suite, SuiteTask, evaluation_path, suite_path
from ablationlab.plan import stackable
from ablationlab.records import Execution, Plan, PlannedRun, Result, ResultsFolder
from ablationlab.storage import Lock
from ablationlab.study import Study
from ablationlab.training.device import choose_device, prepare

#: Runs that are scored together on a GPU, at most.
WIDEST = 16
# Tokens that n-gram models are counted on, at most; of a longer corpus the beginning of each component.
NGRAM_TOKENS = 2**24
_LIBRARIES = ("torch", "numpy", "lm_eval", "datasets")
Report = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """All that a worker process needs."""

    folder: Path
    question: Question
    device: Literal["cpu", "cuda"]
    stop_with: int | None = None


@dataclass(frozen=True)
class Outcome:
    """What came of it: runs scored now, runs that had everything already, runs that cannot be evaluated and why."""

    evaluated: tuple[str, ...]
    complete: tuple[str, ...]
    not_evaluable: dict[str, str]
    seconds: float


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
) -> Outcome:
    """Score all finished runs; what is not given is as the study says."""
    began = time.monotonic()
    results = ResultsFolder(folder)
    plan = read_plan(results)
    question = question_of(validated(Study, plan.study), tasks, fewshot, templates, items)
    kind, _ = choose_device(device)
    lock = Lock(results.locks / "evaluation")
    if not lock.acquire():
        raise AblationLabError(f"{folder} is being evaluated by another process ({lock.holder()}); wait for it")
    try:
        shop = workshop(Job(folder, question, kind))
        runs, sick = _evaluable(plan, results)
        if not runs:
            raise RecordError(f"{folder}: no run has finished training, so there is nothing to evaluate")
        if question.tasks:
            _write_suite(shop, plan, runs, report)
        before = {run.id: _stamp(results, run) for run in runs}
        _spread(Job(folder, question, kind, os.getpid()), shop, plan, runs, workers, report)
        if throughput:
            _time(shop, plan, runs, report)
        changed = tuple(run.id for run in runs if _stamp(results, run) != before[run.id])
        same = tuple(run.id for run in runs if run.id not in changed)
        return Outcome(changed, same, sick, time.monotonic() - began)
    finally:
        lock.release()


def read_plan(results: ResultsFolder) -> Plan:
    """The sealed plan of a results folder."""
    if not results.plan.exists():
        raise RecordError(f"{results.path} is no results folder of a study: it has no {results.plan.name}")
    return Plan.read(results.plan)


def question_of(
    study: Study,
    tasks: Sequence[str] | None,
    fewshot: Sequence[int] | None,
    templates: Literal["one", "all"] | None,
    items: int | None,
) -> Question:
    """What is asked: the study's own settings where the command says nothing."""
    own = study.evaluation
    return Question(
        tasks=tuple(tasks) if tasks else own.tasks,
        fewshot=tuple(sorted(set(fewshot if fewshot else own.fewshot))),
        templates=templates or own.templates,
        items=items if items is not None else own.items,
    )


def workshop(job: Job) -> Workshop:
    """Load the text and fix the arithmetic of this process: fp32, one thread on a CPU."""
    results = ResultsFolder(job.folder)
    plan = read_plan(results)
    _, name = choose_device(job.device)
    execution = Execution(device=job.device, device_name=name, precision="fp32", stack_width=1, threads=1)
    device = prepare(execution)
    corpus = _corpus(plan)
    width = WIDEST if job.device == "cuda" else 1
    return Workshop(results, plan.plan_hash, corpus, job.question, _how(job.device, name, width), device, width)


def _corpus(plan: Plan) -> TokenizedCorpus:
    corpus = load_corpus(validated(Study, plan.study).data)
    if corpus.record.tokens_sha256 != plan.corpus.tokens_sha256:
        raise PlanError(f"corpus {plan.corpus.name!r} is not the one that the plan was sealed with; restore it")
    return corpus


def _how(device: str, name: str, width: int) -> HowPart:
    versions = {library: version(library) for library in _LIBRARIES}
    return HowPart(
        device=device,
        device_name=name,
        precision="fp32",
        stack_width=width,
        harness=harness_version(),
        harness_sha256=harness_sha256(),
        versions=versions | {"evaluation code": _code_hash()},
    )


def _code_hash() -> str:
    """Hash of the sources that make scores."""
    package = Path(ablationlab.__file__).parent
    total = hashlib.sha256()
    for path in sorted([*(package / "evaluation").glob("*.py"), package / "model.py", package / "ops.py"]):
        total.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()[:16]


def _evaluable(plan: Plan, results: ResultsFolder) -> tuple[list[PlannedRun], dict[str, str]]:
    """Runs with weights to score, but for those that only the sweep has; a diverged run is recorded as not evaluable."""
    runs, sick = [], {}
    study = validated(Study, plan.study)
    for run in plan.runs:
        folder = results.run(run.id)
        if not folder.done or not study.owns(run):
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


def load_members(plan: Plan, results: ResultsFolder, run: PlannedRun) -> tuple[Member, Member | None]:
    """A run's final weights, and for a baseline those kept halfway, where there are any."""
    folder = results.run(run.id)
    final = load_final(run, folder, Result.read(folder.result))
    baseline = run.variant == plan.study["baseline"]
    return final, load_half(run, folder, plan.plan_hash) if baseline else None


def _units(plan: Plan, runs: Sequence[PlannedRun], width: int) -> list[list[PlannedRun]]:
    """Runs that may be scored in one stack, those of one variant together."""
    groups: dict[str, list[PlannedRun]] = {}
    for run in runs:
        groups.setdefault(stackable(run), []).append(run)
    order = {name: place for place, name in enumerate(plan.study["variants"])}
    units = []
    for group in groups.values():
        ordered = sorted(group, key=lambda run: order[run.variant])
        units += [ordered[start : start + width] for start in range(0, len(ordered), width)]
    return units


def _spread(job: Job, shop: Workshop, plan: Plan, runs: Sequence[PlannedRun], workers: int, report: Report) -> None:
    units = [[run.id for run in unit] for unit in _units(plan, runs, shop.width)]
    failures: list[str] = []
    crew = min(workers, len(units)) if job.device == "cpu" else 1
    if crew == 1:
        for unit in units:
            problem = _attempt(shop, plan, unit, report)
            failures += [problem] if problem else []
    else:
        failures = _in_processes(job, units, crew, report)
    if failures:
        raise RunFailure(
            "some runs were not evaluated; mend this and run the same command again\n  " + "\n  ".join(failures)
        )


def _attempt(shop: Workshop, plan: Plan, ids: Sequence[str], report: Report) -> str | None:
    """Evaluate one unit; a damaged checkpoint is told, and does not reach the others."""
    try:
        pairs = [load_members(plan, shop.results, plan.run(run_id)) for run_id in ids]
    except RecordError as error:
        return f"{', '.join(ids)}: {error}"
    finals, halves = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    evaluate_unit(shop, finals, halves, lambda what: report(f"{', '.join(ids)}: {what}"))
    return None


def _in_processes(job: Job, units: Sequence[Sequence[str]], crew: int, report: Report) -> list[str]:
    context = mp.get_context("spawn")
    failures: list[str] = []
    with ProcessPoolExecutor(crew, mp_context=context, initializer=_begin, initargs=(job,)) as pool:
        waiting = {pool.submit(_work, list(unit)): unit for unit in units}
        try:
            for future in as_completed(waiting):
                ids = ", ".join(waiting[future])
                try:
                    problem = future.result()
                except BrokenProcessPool:
                    failures.append(f"{ids}: its process was killed (out of memory, or by hand?)")
                    continue
                report(f"{ids}: {'failed' if problem else 'done'}")
                failures += [problem] if problem else []
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
    global _shop, _plan
    assert job.stop_with is not None
    threading.Thread(target=_leave_with, args=(job.stop_with,), daemon=True).start()
    _shop, _plan = workshop(job), read_plan(ResultsFolder(job.folder))


def _leave_with(parent: int) -> None:
    """A worker whose parent was killed goes too."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _work(ids: list[str]) -> str | None:
    assert _shop is not None
    assert _plan is not None
    return _attempt(_shop, _plan, ids, lambda _: None)


def _write_suite(shop: Workshop, plan: Plan, runs: Sequence[PlannedRun], report: Report) -> None:
    """suite.json: what was asked, with chance and n-gram accuracies; scores of tasks that are there already are kept."""
    path = suite_path(shop.results)
    known = {task.task_hash: task for task in Suite.read(path).tasks} if path.exists() else {}
    contexts = dict.fromkeys(int(run.model["context"]) for run in runs)
    listed: dict[str, SuiteTask] = {}
    scorer = None
    for context in contexts:
        asked = shop.asked(context)
        new = [task for task in asked.tasks if task.hash not in known]
        if new and scorer is None:
            report("n-gram models")
            scorer = NgramScorer(sample(shop.corpus.train, NGRAM_TOKENS), shop.corpus.record.vocabulary)
        if new and scorer is not None:
            known |= {task.task_hash: task for task in _described(shop, asked, new, scorer, context)}
        listed |= {task.hash: known[task.hash] for task in asked.tasks}
    superseded = {(task.task, task.template, task.fewshot) for task in listed.values()}
    others = [t for t in known.values() if (t.task, t.template, t.fewshot) not in superseded]
    every = sorted([*listed.values(), *others], key=lambda t: (t.fewshot, t.task, t.template, t.task_hash))
    Suite(plan_hash=plan.plan_hash, tasks=tuple(every)).replace(path)


def _described(
    shop: Workshop, asked: Asked, new: Sequence[AskedTask], scorer: NgramScorer, context: int
) -> list[SuiteTask]:
    """Tasks with what can be said of them before any run is scored; n-grams answer those that offer choices."""
    lm = StackLM(scorer, shop.text, context)
    choosing = [task for task in new if task.chooses]
    accuracies: dict[str, dict[str, float]] = {task.name: {} for task in new}
    docs: dict[str, list[tuple[tuple[str, ...], int]]] = {}
    for number, name in enumerate(scorer.names if choosing else ()):
        lm.current = number
        outcome = ask(lm, [task.loaded for task in choosing], asked.manager, limit=shop.question.items)
        for task in choosing:
            samples = outcome["samples"][task.name]
            accuracies[task.name][name] = sum(float(sample["acc"]) for sample in samples) / len(samples)
            docs[task.name] = [(tuple(c), t) for c, t in (choices_of(task.loaded, sample["doc"]) for sample in samples)]
    found = []
    for task in new:
        offers = docs.get(task.name)
        choices, chance = chance_of(offers) if offers else (None, None)
        items = len(offers) if offers else min(len(task.loaded.eval_docs), shop.question.items or 10**9)
        found.append(
            SuiteTask(
                task=task.task,
                template=task.template,
                fewshot=task.fewshot,
                version=task.version,
                task_hash=task.hash,
                source=task.source,
                meaning=task.meaning,
                items=items,
                choices=choices,
                chance=chance,
                ngrams=accuracies[task.name],
            )
        )
    return found


def _time(shop: Workshop, plan: Plan, runs: Sequence[PlannedRun], report: Report) -> None:
    """Speed and memory, interleaved over all runs; measured again only when the set of runs has changed."""
    evaluations = {run.id: Evaluation.read(evaluation_path(shop.results.run(run.id))) for run in runs}
    together = {e.throughput.together if e.throughput else None for e in evaluations.values()}
    if None not in together and len(together) == 1:
        return
    report("throughput, all runs in turn")
    members = [load_members(plan, shop.results, run)[0] for run in runs]
    for run, part in zip(runs, measure(members, shop.device), strict=True):
        folder = shop.results.run(run.id)
        record = evaluations[run.id].model_copy(update={"throughput": part})
        record = record.model_copy(update={"metrics": metrics_of(record)})
        files.write(folder, record, files.read_rows(folder))
