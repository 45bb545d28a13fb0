"""Whether a task can tell models apart at this scale: the protocol's gate, and what else is known of a task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean, stdev

from ablationlab.analysis.evaluated import AskedTask, Evaluated, any_result
from ablationlab.records.analysis import TaskSensitivity
from ablationlab.records.evaluation import TaskResult, Weights
from ablationlab.records.plan import PlannedRun
from ablationlab.stats import sensitivity
from ablationlab.stats.results import Sensitivity


def macro_mean(values: Sequence[float | str]) -> float | str:
    """The mean, or the first reason why a value is not there."""
    wrong = next((value for value in values if isinstance(value, str)), None)
    return wrong if wrong is not None else fmean(value for value in values if not isinstance(value, str))


def gated(
    evaluated: Evaluated,
    baselines: Sequence[PlannedRun],
    tasks: Sequence[AskedTask],
    value: Callable[[TaskResult], float | None],
    *,
    guessable: bool,
) -> Sensitivity:
    """The protocol's gate on the mean over *tasks*.

    Baselines on other seeds must beat chance, whichever seed is compared: all but the best one are asked, which is the least
    favourable choice of "other seeds".
    """
    scores, halves = [], []
    for run in baselines:
        final = macro_mean([evaluated.score(run.id, task, value) for task in tasks])
        half = macro_mean([evaluated.score(run.id, task, value, "half") for task in tasks])
        if not isinstance(final, str):
            scores.append(final)
            if not isinstance(half, str):
                halves.append((half, final))
    if len(scores) < 2:
        why = f"baselines on two seeds or more are needed, and {len(scores)} have a value"
        return Sensitivity(
            sensitive=False, beats_chance=None, chance_p=None, control_told_apart=False, control_p=None, reasons=(why,)
        )
    results = [any_result(evaluated, task) for task in tasks]
    control = ([half for half, _ in halves], [final for _, final in halves]) if len(halves) >= 2 else None
    return sensitivity(
        sorted(scores)[:-1],
        items=sum(result.items for result in results),
        chance=fmean(result.chance or 0.0 for result in results) if guessable else None,
        control=control,
    )


def macro_gate(
    evaluated: Evaluated, baselines: Sequence[PlannedRun], good: Sequence[AskedTask], mine: Sequence[AskedTask]
) -> Sensitivity:
    """The gate on a macro average: over the *good* ones of *mine*, over all of *mine* where none is."""
    found = gated(evaluated, baselines, good or mine, lambda result: result.accuracy, guessable=True)
    counted = ", ".join(task.label for task in good)
    if good:
        why = f"the mean is over the {len(good)} of {len(mine)} tasks that are sensitive: {counted}"
        return replace(found, reasons=(why, *found.reasons))
    why = f"none of the {len(mine)} tasks is sensitive; the mean shown is over all of them"
    return replace(found, sensitive=False, reasons=(why, *found.reasons))


def described(
    evaluated: Evaluated, baselines: Sequence[PlannedRun], task: AskedTask, regime: str, gate: Sensitivity
) -> TaskSensitivity:
    """A task with its size, its level of chance, what n-grams reach, and the baseline's and the control's accuracies."""

    def mean(weights: Weights, hashes: dict[str, str]) -> float | None:
        one = replace(task, hashes=hashes)
        scores = [evaluated.score(run.id, one, lambda result: result.accuracy, weights) for run in baselines]
        numbers = [score for score in scores if not isinstance(score, str)]
        return fmean(numbers) if numbers else None

    by_template = [mean("final", {template: digest}) for template, digest in task.hashes.items()]
    known = [value for value in by_template if value is not None]
    result = any_result(evaluated, task)
    return TaskSensitivity(
        task=task.label,
        name=task.name,
        fewshot=task.fewshot,
        regime=regime,
        templates=tuple(task.hashes),
        items=result.items,
        chance=result.chance,
        ngrams=evaluated.suite.get(result.task_hash, {}),
        baseline_accuracy=mean("final", task.hashes),
        control_accuracy=mean("half", task.hashes),
        template_spread=stdev(known) if len(known) > 1 else None,
        sensitivity=gate,
    )
