"""What a terminal shows of an evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from rich.console import RenderableType
from rich.table import Table

from ablationlab.records.evaluation import Evaluation, Suite, SuiteTask, evaluation_path, suite_path
from ablationlab.records.folders import ResultsFolder
from ablationlab.records.plan import Plan


def evaluation_view(results: ResultsFolder) -> list[RenderableType]:
    """Accuracy of every variant on every task, beside chance and the n-gram models; then the run-level metrics."""
    plan = Plan.read(results.plan)
    found: dict[str, list[Evaluation]] = {}
    for run in plan.runs:
        path = evaluation_path(results.run(run.id))
        if path.exists():
            name = run.variant if run.regime == "default" else f"{run.regime}/{run.variant}"
            found.setdefault(name, []).append(Evaluation.read(path))
    parts: list[RenderableType] = []
    if suite_path(results).exists():
        parts.append(_tasks(Suite.read(suite_path(results)).tasks, found))
    parts.append(_metrics(found))
    return parts


def _tasks(tasks: Sequence[SuiteTask], found: dict[str, list[Evaluation]]) -> Table:
    halves = any(task.weights == "half" for group in found.values() for one in group for task in one.tasks)
    cut = {result.task_hash: result.truncated for group in found.values() for one in group for result in one.tasks}
    some_cut = any(cut.get(task.task_hash) for task in tasks)  # items longer than the context
    table = Table(title="accuracy, mean over seeds", box=None, pad_edge=False)
    table.add_column("task")
    first = ("items", *(["cut"] if some_cut else []), "chance", "unigram", "trigram")
    for name in (*first, *found, *(["half the steps"] if halves else [])):
        table.add_column(name, justify="right")
    for task in tasks:
        label = task.task + (f", {task.fewshot}-shot" if task.fewshot else "")
        label += f" ({task.template})" if task.template not in ("plain", "stock") else ""
        cells = [label, str(task.items), *([str(cut.get(task.task_hash, 0))] if some_cut else [])]
        cells += [_number(task.chance), _number(task.ngrams.get("unigram")), _number(task.ngrams.get("trigram"))]
        cells += [_number(_mean(_accuracies(group, task, "final"))) for group in found.values()]
        if halves:
            everyone = [one for group in found.values() for one in group]
            cells.append(_number(_mean(_accuracies(everyone, task, "half"))))
        table.add_row(*cells)
    return table


def _accuracies(group: Iterable[Evaluation], task: SuiteTask, weights: str) -> list[float | None]:
    return [
        result.accuracy
        for one in group
        for result in one.tasks
        if (result.task_hash, result.weights) == (task.task_hash, weights)
    ]


_SHOWN = (
    "mean_task_accuracy",
    "mean_task_accuracy_fewshot",
    "choice_margin",
    "token_ece",
    "token_brier",
    "best_temperature",
    "loss_near_end",
    "loss_past_end",
    "sliding_cost",
    "inference_speed",
    "training_speed",
)


def _metrics(found: dict[str, list[Evaluation]]) -> Table:
    table = Table(title="mean over seeds", box=None, pad_edge=False)
    table.add_column("metric")
    for name in found:
        table.add_column(name, justify="right")
    for metric in _SHOWN:
        values = [_mean([one.metrics.get(metric) for one in group]) for group in found.values()]
        if any(value is not None for value in values):
            table.add_row(metric, *(_number(value) for value in values))
    return table


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return fmean(numbers) if numbers else None


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}" if abs(value) >= 10 else f"{value:.3f}"
