"""Scores of tasks: which of them are scores of what the sealed plan asks for, and means over tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from ablationlab.core.grouping import grouped
from ablationlab.records.evaluation import Source, TaskResult
from ablationlab.records.plan import Plan
from ablationlab.records.storage import ResultsFolder, parse_json, read_regular
from ablationlab.tasks.request import STOCK, STOCK_TEMPLATE

#: Means over tasks; of the zero-shot ones, but for the names that end in ``_fewshot``.
TASK_MEANS: dict[str, Callable[[TaskResult], float | None]] = {
    "mean_task_accuracy": lambda task: task.accuracy,
    "choice_log_probability": lambda task: task.log_probability,
    "choice_margin": lambda task: task.margin,
    "choice_probability": lambda task: task.probability,
    "task_ece": lambda task: task.calibration.ece_equal_mass_debiased if task.calibration else None,
    "task_brier": lambda task: task.calibration.brier if task.calibration else None,
    "mean_task_accuracy_fewshot": lambda task: task.accuracy,
}
#: Those of tasks that have a calibration.
OF_CALIBRATED = ("task_ece", "task_brier")


class TaskName(NamedTuple):
    """A task by its name and where it comes from: the same name from elsewhere is another task."""

    source: Source
    name: str


@dataclass(frozen=True)
class PlannedTasks:
    """The tasks of a sealed plan, with its ``evaluation``. *beyond*: entries that only the harness can open."""

    templates: Mapping[TaskName, tuple[str, ...]]
    characters: Mapping[tuple[TaskName, str], str]
    beyond: tuple[str, ...]
    fewshot: tuple[int, ...]
    items: int | None

    @staticmethod
    def named(result: TaskResult) -> TaskName:
        """Which task a result is of."""
        return TaskName(result.source, result.task)

    def asks(self, result: TaskResult) -> bool:
        """Whether the plan asks this task in this template with so many examples."""
        name = self.named(result)
        templates = self.templates.get(name, (STOCK_TEMPLATE,) if self.beyond and name.source == "harness" else ())
        return result.template in templates and result.fewshot in self.fewshot

    def counts(self, result: TaskResult) -> bool:
        """Whether it is a score of what was planned: asked, and on as many items as the plan's cap allows."""
        return self.asks(result) and self._has_planned_items(result)

    def _has_planned_items(self, result: TaskResult) -> bool:
        if self.items is not None and result.items >= self.items:
            return result.items == self.items
        return result.whole

    def asked(self) -> list[tuple[TaskName, str, int]]:
        """Everything that the plan asks by name, as (task, template, number of examples)."""
        return [
            (name, template, fewshot)
            for fewshot in self.fewshot
            for name, templates in self.templates.items()
            for template in templates
        ]

    def unspellable(
        self, results: ResultsFolder, tokenizer: str, name: TaskName, templates: Iterable[str]
    ) -> tuple[str, ...]:
        """Of *templates* those that a vocabulary of characters may lack: the items do not have all of their characters."""
        templates = tuple(templates)
        if name.source != "suite" or tokenizer != "char" or not templates:
            return ()
        seen = set().union(*map(_seen, (results.path / "evaluation" / "tasks").glob("*/items.jsonl")))
        return tuple(template for template in templates if not seen.issuperset(self.characters[name, template]))


def planned_tasks(plan: Plan, scored: Iterable[TaskResult]) -> PlannedTasks:
    """The plan's tasks. What was *scored* tells tasks of the harness from entries that it opens (files, tags, groups)."""
    config = plan.study.evaluation
    names = {result.task for result in scored}
    templates: dict[TaskName, tuple[str, ...]] = {}
    characters: dict[tuple[TaskName, str], str] = {}
    beyond = []
    for task in plan.tasks:
        name = TaskName(task.source, task.name.removeprefix(STOCK))
        if task.source == "harness" and name.name not in names:
            beyond.append(task.name)
        else:
            templates[name] = task.templates
            characters |= {(name, template): written for template, written in task.characters.items()}
    return PlannedTasks(templates, characters, tuple(beyond), tuple(sorted(set(config.fewshot))), config.items)


def _seen(items: Path) -> set[str]:
    """The characters of a task's items; of a damaged file none."""
    try:
        rows = [parse_json(line) for line in read_regular(items).splitlines()]
        return {character for row in rows for text in (row["text"], *row["choices"]) for character in text}
    except (ValueError, KeyError, TypeError):
        return set()


def over_tasks(results: Iterable[TaskResult], value: Callable[[TaskResult], float | None]) -> float | None:
    """Mean over tasks of the mean over templates; None where any is missing."""
    by_task = grouped((result.task, value(result)) for result in results)
    means = []
    for values in by_task.values():
        numbers = [number for number in values if number is not None]
        if len(numbers) < len(values):
            return None
        means.append(fmean(numbers))
    return fmean(means) if means else None
