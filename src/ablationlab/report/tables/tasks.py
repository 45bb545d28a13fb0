"""The tasks that were asked: chance, n-gram models, and the accuracy of every arm."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev

from ablationlab.core.format import DASH, count, percent
from ablationlab.records.analysis import ComparedTask
from ablationlab.records.evaluation import SuiteTask, TaskResult
from ablationlab.records.results import Results, Run
from ablationlab.records.settings import DEFAULT_REGIME
from ablationlab.report.table import Cell, Cells, Column, Table


def task_of(task: TaskResult | SuiteTask) -> ComparedTask:
    """A task as analysis.json compares it."""
    return ComparedTask(task.task, task.fewshot)


def arm_name(run: Run) -> str:
    """The arm of a run as a column is named: its variant, behind its regime where that has a name, and the gate."""
    place = [*(["gate"] if run.planned.role == "gate" else []), *([run.regime] if run.regime != DEFAULT_REGIME else [])]
    return "/".join([*place, run.variant])


def task_table(results: Results) -> Table:
    """A row per task: accuracy of every arm, averaged over prompt templates and seeds, beside chance and n-gram models."""
    suite = {task_of(task): task for task in results.suite.tasks} if results.suite is not None else {}
    analyzed = None if results.analysis is None else results.analysis.evaluation
    sensitive = {} if analyzed is None else {task.task: task.sensitivity.sensitive for task in analyzed.tasks}
    by_task: dict[ComparedTask, dict[tuple[str, str], list[TaskResult]]] = {}  # task -> (arm, run) -> results
    for run in results.runs:
        arm = arm_name(run)
        for result in run.evaluation.tasks if run.evaluation is not None else ():
            if result.accuracy is not None:
                by_task.setdefault(task_of(result), {}).setdefault((arm, run.id), []).append(result)
    arms = list(dict.fromkeys(arm for runs in by_task.values() for arm, _ in runs))
    results_of = [result for runs in by_task.values() for of_run in runs.values() for result in of_run]
    meanings = any(task.meaning for task in suite.values())
    cuts = any(result.truncated for result in results_of)
    prompted = any(len(_final(of_run)) > 1 for runs in by_task.values() for of_run in runs.values())
    halves = any(result.weights == "half" for result in results_of)
    models = " / ".join(next((task.ngrams for task in suite.values() if task.ngrams), {})) or "n-grams"
    rows: list[Cells] = []
    for task, runs in by_task.items():
        every = [result for of_run in runs.values() for result in of_run]
        final = {cell: _final(of_run) for cell, of_run in runs.items()}
        asked, first = suite.get(task), every[0]
        spreads = [pstdev(_accuracies(of_run)) for of_run in final.values() if len(of_run) > 1]
        spread = fmean(spreads) if spreads else None
        chance = first.chance if asked is None else asked.chance
        half = _mean([result for result in every if result.weights == "half"])
        means = {
            name: _mean([result for (arm, _), of_run in final.items() if arm == name for result in of_run])
            for name in arms
        }
        senses = sensitive.get(task)
        ngrams = {} if asked is None else asked.ngrams
        rows.append(
            {
                Column("task", "Task"): task.label,
                Column("sensitive", below=True): Cell.of(
                    senses, "not sensitive at this scale" if senses is False else "", tone="warn"
                ),
                Column("meaning", below=True, printed=meanings): "" if asked is None else asked.meaning,
                Column("items", "Items", "right"): Cell.of(first.items, count),
                Column("cut", "Cut", "right", printed=cuts): Cell.of(max(result.truncated for result in every), count),
                Column("chance", "Chance", "right"): Cell.of(chance, percent(chance, 1)),
                Column("ngrams", models, "right"): Cell.of(
                    None, " / ".join(percent(value, 1) for value in ngrams.values()) or DASH
                ),
                Column("templates", "Templates", "right", printed=prompted): max(
                    len(of_run) for of_run in final.values()
                ),
                Column("spread", "Spread", "right", printed=prompted): Cell.of(spread, percent(spread, 1)),
                **{
                    Column(f"{arm}_accuracy", arm, "right", name=True): Cell.of(mean, percent(mean, 1))
                    for arm, mean in means.items()
                },
                Column("half", "Half the steps", "right", printed=halves): Cell.of(half, percent(half, 1)),
                Column("hash", "Hash"): Cell.name(first.task_hash[:10]),
            }
        )
    title = f"Accuracy by task, mean over seeds{' and prompt templates' if prompted else ''}."
    about = "Spread: SD between the templates of one run, averaged." if prompted else ""
    return Table.of("tasks", title, rows, about=about)


def _final(results: Sequence[TaskResult]) -> list[TaskResult]:
    """Those of the weights at the end of a run, one per prompt template."""
    return [result for result in results if result.weights == "final"]


def _accuracies(results: Sequence[TaskResult]) -> list[float]:
    return [result.accuracy for result in results if result.accuracy is not None]


def _mean(results: Sequence[TaskResult]) -> float | None:
    values = _accuracies(results)
    return fmean(values) if values else None
