"""The run-level metrics that follow from what was measured on a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import fmean

from ablationlab.records.evaluation import Evaluation, TaskResult

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


def metrics_of(found: Evaluation) -> dict[str, float | None]:
    """Every metric that the parts give; a part that is missing gives none."""
    metrics: dict[str, float | None] = {}
    final = [task for task in found.tasks if task.weights == "final" and task.chance is not None]
    zero = [task for task in final if task.fewshot == 0]
    most = max((task.fewshot for task in final), default=0)
    few = [task for task in final if task.fewshot == most] if most else []
    for name, value in TASK_MEANS.items():
        tasks = few if name.endswith("_fewshot") else zero
        if tasks:
            metrics[name] = over_tasks([t for t in tasks if t.calibration or name not in OF_CALIBRATED], value)
    if found.tokens is not None:
        metrics["token_ece"] = found.tokens.calibration.ece_equal_mass_debiased
        metrics["token_brier"] = found.tokens.calibration.brier
        metrics["best_temperature"] = found.tokens.temperature.best
        metrics["temperature_sensitivity"] = found.tokens.temperature.sensitivity
        metrics["logit_scale"] = found.tokens.logit_scale
    if found.length is not None:
        metrics["loss_near_end"] = found.length.near_end
        metrics["loss_past_end"] = found.length.past_end
        if found.length.near:  # else an older record, where the two are of different tokens
            metrics["sliding_cost"] = found.length.past_end - found.length.near_end
    if found.throughput is not None:
        metrics["inference_speed"] = found.throughput.inference_tokens_per_second
        metrics["training_speed"] = found.throughput.training_tokens_per_second
        metrics["inference_memory"] = float(found.throughput.inference_bytes)
        metrics["training_memory"] = float(found.throughput.training_bytes)
    return metrics


def over_tasks(results: Iterable[TaskResult], value: Callable[[TaskResult], float | None]) -> float | None:
    """Mean over tasks of the mean over templates; None where any is missing."""
    by_task: dict[str, list[float | None]] = {}
    for one in results:
        by_task.setdefault(one.task, []).append(value(one))
    means = []
    for values in by_task.values():
        numbers = [number for number in values if number is not None]
        if len(numbers) < len(values):
            return None
        means.append(fmean(numbers))
    return fmean(means) if means else None
