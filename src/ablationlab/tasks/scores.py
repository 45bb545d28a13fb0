"""Scores of tasks: which of them are scores of what the sealed plan asks for, and means over tasks."""

from __future__ import annotations

import glob
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from ablationlab.records.evaluation import Source, SuiteTask, TaskResult
from ablationlab.records.folders import ResultsFolder
from ablationlab.records.settings import EvaluationConfig
from ablationlab.tasks.benchmarks import CATALOGUE
from ablationlab.tasks.request import BENCHMARK_GROUP, STOCK, SUITE_GROUP
from ablationlab.tasks.suite import KINDS

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
#: The only template of a task that is the harness's own.
OWN = "stock"


class TaskName(NamedTuple):
    """A task by its name and where it comes from: the same name from elsewhere is another task."""

    source: Source
    name: str


@dataclass(frozen=True)
class PlannedTasks:
    """The plan's ``evaluation``, opened. *beyond*: entries that only the harness can open (files, tags, groups).

    *most*: per task, template and number of examples the largest number of items that is known to exist.
    """

    templates: Mapping[TaskName, tuple[str, ...]]
    beyond: tuple[str, ...]
    fewshot: tuple[int, ...]
    items: int | None
    sources: Mapping[str, Source]
    most: Mapping[tuple[TaskName, str, int], int]

    def named(self, result: TaskResult) -> TaskName:
        """Which task a result is of; suite.json knows the source of every version that was asked last."""
        return TaskName(self.sources.get(result.task_hash) or _likely_source(result), result.task)

    def asks(self, result: TaskResult) -> bool:
        """Whether the plan asks this task in this template with so many examples."""
        name = self.named(result)
        templates = self.templates.get(name, (OWN,) if self.beyond and name.source == "harness" else ())
        return result.template in templates and result.fewshot in self.fewshot

    def counts(self, result: TaskResult) -> bool:
        """Whether it is a score of what was planned: asked, and on as many items as the plan's cap allows."""
        return self.asks(result) and self._has_planned_items(result)

    def _has_planned_items(self, result: TaskResult) -> bool:
        if self.items is not None and result.items >= self.items:
            return result.items == self.items
        if result.whole is not None:
            return result.whole
        # An older record does not say whether there are more items; larger versions of the task tell it.
        return result.items >= self.most.get((self.named(result), result.template, result.fewshot), 0)

    def asked(self) -> list[tuple[TaskName, str, int]]:
        """Everything that the plan asks by name, as (task, template, number of examples)."""
        return [(name, w, k) for k in self.fewshot for name, templates in self.templates.items() for w in templates]


def planned_tasks(
    config: EvaluationConfig, results: ResultsFolder, suite: Iterable[SuiteTask], scored: Iterable[TaskResult]
) -> PlannedTasks:
    """The plan's tasks beside what is known of those that were scored."""
    scored = [result for result in scored if result.weights == "final"]
    templates: dict[TaskName, tuple[str, ...]] = {}
    beyond = []
    for entry in config.tasks:
        if entry == SUITE_GROUP or entry in KINDS:
            for kind in [entry] if entry in KINDS else list(KINDS):
                templates[TaskName("suite", kind)] = tuple(template.name for template in KINDS[kind].templates)
        elif entry == BENCHMARK_GROUP or entry in CATALOGUE:
            for name in [entry] if entry in CATALOGUE else list(CATALOGUE):
                templates[TaskName("benchmark", name)] = tuple(CATALOGUE[name].templates)
        elif any(result.task == entry.removeprefix(STOCK) for result in scored):
            templates[TaskName("harness", entry.removeprefix(STOCK))] = (OWN,)
        else:
            beyond.append(entry)
    if config.templates == "one":
        templates = {name: names[:1] for name, names in templates.items()}
    sources = {task.task_hash: task.source for task in suite}
    plan = PlannedTasks(templates, tuple(beyond), tuple(sorted(set(config.fewshot))), config.items, sources, {})
    most: dict[tuple[TaskName, str, int], int] = {}
    for result in scored:
        key = (plan.named(result), result.template, result.fewshot)
        most[key] = max(most.get(key) or _items_on_disk(results, result), result.items)
    return replace(plan, most=most)


def _likely_source(result: TaskResult) -> Source:
    """Where a task comes from that suite.json lists no longer."""
    if result.task in KINDS and any(template.name == result.template for template in KINDS[result.task].templates):
        return "suite"
    return "benchmark" if result.task in CATALOGUE else "harness"


def _items_on_disk(results: ResultsFolder, result: TaskResult) -> int:
    """The most items that a version of this task has whose files lie in the results folder."""
    if result.task not in KINDS:
        return 0
    folders = glob.escape(f"{result.task}-{result.template}-{result.fewshot}shot-") + "*"
    files = (results.path / "evaluation" / "tasks").glob(f"{folders}/items.jsonl")
    return max((path.read_bytes().count(b"\n") for path in files), default=0)


def unspellable(results: ResultsFolder, tokenizer: str, name: TaskName, templates: Iterable[str]) -> tuple[str, ...]:
    """Of *templates* those that a vocabulary of characters may lack: the items do not have all of their characters."""
    templates = tuple(templates)
    if name.source != "suite" or tokenizer != "char" or not templates:
        return ()
    seen = set().union(*map(_seen, (results.path / "evaluation" / "tasks").glob("*/items.jsonl")))
    known = {template.name: template for template in KINDS[name.name].templates}
    return tuple(template for template in templates if not known[template].characters <= seen)


def _seen(items: Path) -> set[str]:
    """The characters of a task's items; of a damaged file none."""
    try:
        rows = [json.loads(line) for line in items.read_text(encoding="utf-8").splitlines()]
        return {character for row in rows for text in (row["text"], *row["choices"]) for character in text}
    except (ValueError, KeyError, TypeError):
        return set()


def over_tasks(results: Iterable[TaskResult], value: Callable[[TaskResult], float | None]) -> float | None:
    """Mean over tasks of the mean over templates; None where any is missing."""
    by_task: dict[str, list[float | None]] = {}
    for result in results:
        by_task.setdefault(result.task, []).append(value(result))
    means = []
    for values in by_task.values():
        numbers = [number for number in values if number is not None]
        if len(numbers) < len(values):
            return None
        means.append(fmean(numbers))
    return fmean(means) if means else None
