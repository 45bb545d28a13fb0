"""The tasks that were asked: chance, n-gram models, and the accuracy of every arm."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev

from ablationlab.core.format import DASH, count, percent
from ablationlab.records.evaluation import SuiteTask, TaskResult
from ablationlab.records.results import Results, Run
from ablationlab.records.settings import DEFAULT_REGIME
from ablationlab.report.table import Cell, Column, Table


def task_label(task: TaskResult | SuiteTask) -> str:
    """A task as analysis.json names it: with its shots where there are any."""
    return f"{task.task}, {task.fewshot}-shot" if task.fewshot else task.task


def arm_name(run: Run) -> str:
    """The arm of a run as a column is named: its variant, behind its regime where that has a name, and the gate."""
    place = [*(["gate"] if run.planned.role == "gate" else []), *([run.regime] if run.regime != DEFAULT_REGIME else [])]
    return "/".join([*place, run.variant])


def task_table(results: Results) -> Table:
    """A row per task: accuracy of every arm, averaged over prompt templates and seeds, beside chance and n-gram models."""
    suite = {task_label(task): task for task in results.suite.tasks} if results.suite is not None else {}
    analyzed = None if results.analysis is None else results.analysis.evaluation
    sensitive = {} if analyzed is None else {task.task: task.sensitivity.sensitive for task in analyzed.tasks}
    by_task: dict[str, dict[tuple[str, str], list[TaskResult]]] = {}  # task -> (arm, run) -> results
    for run in results.runs:
        arm = arm_name(run)
        for result in run.evaluation.tasks if run.evaluation is not None else ():
            if result.accuracy is not None:
                by_task.setdefault(task_label(result), {}).setdefault((arm, run.id), []).append(result)
    arms = list(dict.fromkeys(arm for runs in by_task.values() for arm, _ in runs))
    rows = []
    for label, runs in by_task.items():
        every = [result for of_run in runs.values() for result in of_run]
        final = {cell: [result for result in of_run if result.weights == "final"] for cell, of_run in runs.items()}
        asked, first = suite.get(label), every[0]
        spreads = [pstdev(_accuracies(of_run)) for of_run in final.values() if len(of_run) > 1]
        cut = max(result.truncated for result in every)
        chance = first.chance if asked is None else asked.chance
        half = [result for result in every if result.weights == "half"]
        means = [
            _mean([result for (arm, _), of_run in final.items() if arm == name for result in of_run]) for name in arms
        ]
        senses = sensitive.get(label)
        ngrams = {} if asked is None else asked.ngrams
        rows.append(
            (
                Cell.of(label),
                Cell.of(senses, "not sensitive at this scale" if senses is False else "", tone="warn"),
                Cell.of("" if asked is None else asked.meaning),
                *(Cell.of(first.items, count(first.items)), Cell.of(cut, count(cut))),
                Cell.of(chance, percent(chance, 1)),
                Cell.of(None, " / ".join(percent(value, 1) for value in ngrams.values()) or DASH),
                Cell.of(max(len(of_run) for of_run in final.values())),
                Cell.of(fmean(spreads) if spreads else None, percent(fmean(spreads) if spreads else None, 1)),
                *(Cell.of(mean, percent(mean, 1)) for mean in means),
                Cell.of(_mean(half), percent(_mean(half), 1)),
                Cell.name(first.task_hash[:10]),
            )
        )
    results_of = [result for runs in by_task.values() for of_run in runs.values() for result in of_run]
    columns = (
        Column("task", "Task"),
        Column("sensitive", below=True),
        Column("meaning", below=True, printed=any(task.meaning for task in suite.values())),
        Column("items", "Items", "right"),
        Column("cut", "Cut", "right", printed=any(result.truncated for result in results_of)),
        Column("chance", "Chance", "right"),
        Column(
            "ngrams",
            " / ".join(next((task.ngrams for task in suite.values() if task.ngrams), {})) or "n-grams",
            "right",
        ),
        Column("templates", "Templates", "right"),
        Column("spread", "Spread", "right"),
        *(Column(f"{arm}_accuracy", arm, "right", name=True) for arm in arms),
        Column("half", "Half the steps", "right", printed=any(result.weights == "half" for result in results_of)),
        Column("hash", "Hash"),
    )
    title = (
        "Accuracy by task, mean over seeds and prompt templates. Spread: SD between the templates of one run, averaged."
    )
    return Table("tasks", title, columns, tuple(rows))


def _accuracies(results: Sequence[TaskResult]) -> list[float]:
    return [result.accuracy for result in results if result.accuracy is not None]


def _mean(results: Sequence[TaskResult]) -> float | None:
    values = _accuracies(results)
    return fmean(values) if values else None
