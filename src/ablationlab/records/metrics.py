"""Every metric, declared once: what it means, its unit, which way is better, how it is tested.

A plan seals these definitions, and whoever reads its results takes them from there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ablationlab.core.registry import Registry

#: The better one.
Direction = Literal["lower", "higher"]


@dataclass(frozen=True)
class Metric:
    """One measurable thing.

    ``direction`` is None where neither way is better. ``transform`` is applied before testing (perplexity is tested as
    its logarithm). ``family`` groups metrics for the multiplicity correction. ``level``: one number per run, per item,
    per step, or per seed over all rates of a sweep. ``derived_from`` names the metric that this one is a function of, where
    there is one: a test of either is a test of both.
    """

    name: str
    meaning: str
    unit: str
    direction: Direction | None
    family: str
    level: Literal["run", "item", "step", "sweep"] = "run"
    transform: Literal["identity", "log"] = "identity"
    derived_from: str | None = None


METRICS: Registry[Metric] = Registry("metric")
#: What measures the metrics that a study's own code declares, on a finished run.
MEASURED_METRICS: Registry[Callable[..., float]] = Registry("function of a metric")


def across_tokenizers(metric: Metric) -> bool:
    """Whether a metric compares runs that cut their text into other tokens: per byte, or of the shape of a curve alone."""
    if metric.name in ("bits_per_byte", "steps_to_loss"):
        return metric.name == "bits_per_byte"
    return metric.family in ("stability", "throughput")


def checked_metrics(metrics: dict[str, float | None]) -> dict[str, float | None]:
    """The same, before it is written: every name must be a run-level metric of the registry."""
    for name in metrics:
        if METRICS[name].level != "run":
            raise ValueError(f"{name!r} is not a run-level metric")
    return metrics


def _declare(*metrics: Metric) -> None:
    for metric in metrics:
        METRICS.add(metric.name, metric)


_declare(
    Metric(
        "validation_loss",
        "mean negative log-likelihood of every token of the validation split but the first, each predicted once",
        "nats/token",
        "lower",
        "language-modelling",
    ),
    Metric(
        "perplexity",
        "exp(validation loss)",
        "1",
        "lower",
        "language-modelling",
        transform="log",
        derived_from="validation_loss",
    ),
    Metric(
        "bits_per_byte",
        "validation loss in bits, summed over the predicted tokens, per UTF-8 byte they stand for",
        "bits/byte",
        "lower",
        "language-modelling",
        derived_from="validation_loss",
    ),
    Metric(
        "next_token_accuracy",
        "share of the validation split's tokens, but the first, that the most probable prediction hits",
        "1",
        "higher",
        "language-modelling",
    ),
    Metric(
        "final_gradient_norm",
        "L2 norm of the gradient over all parameters before clipping, on the batch of the last step; lower is smoother",
        "1",
        "lower",
        "smoothness",
        transform="log",
    ),
    Metric(
        "mean_gradient_norm",
        "L2 norm of the gradient over all parameters before clipping, mean over all steps; lower is smoother",
        "1",
        "lower",
        "smoothness",
        transform="log",
    ),
    Metric(
        "mean_embedding_norm",
        "mean L2 norm of the vectors entering block 1 over the validation split",
        "1",
        None,
        "diagnostics",
        transform="log",
    ),
    Metric(
        "spike_score",
        "largest lasting upward jump of the training loss, in robust standard deviations of its noise",
        "1",
        "lower",
        "stability",
    ),
    Metric(
        "gradient_spike_score",
        "the spike score of the logarithm of the gradient norm before clipping",
        "1",
        "lower",
        "stability",
    ),
    Metric(
        "gradient_spikes",
        "separate episodes in which the gradient norm stood above its recent past by more than the registered spike score",
        "spikes",
        "lower",
        "stability",
    ),
    Metric(
        "largest_loss_rise",
        "largest rise of the training loss, as a running median of 5 steps, above the lowest it had been",
        "nats/token",
        "lower",
        "stability",
    ),
    Metric(
        "steps_to_loss",
        "first step at which the training loss, as a running median of 5 steps, is at or below stability.loss_threshold; a "
        "run that never gets there counts its whole budget",
        "steps",
        "lower",
        "convergence",
    ),
    Metric(
        "mean_training_loss",
        "area under the training-loss curve per step: the mean loss over all steps",
        "nats/token",
        "lower",
        "convergence",
    ),
    Metric(
        "lr_sensitivity",
        "learning-rate sensitivity: mean excess of the final validation loss over the best one, over the logarithm of the "
        "rate, losses clipped at that of the start",
        "nats/token",
        "lower",
        "sensitivity",
        "sweep",
    ),
    Metric(
        "unstable_share",
        "share of the sweep's rates at which the run was unstable (diverged, ended worse than it began, or spiked)",
        "1",
        "lower",
        "stability",
        "sweep",
    ),
    Metric("loss", "training loss of the step's batch", "nats/token", "lower", "training", "step"),
    Metric("lr", "learning rate of the step", "1", None, "training", "step"),
    Metric(
        "gradient_norm",
        "L2 norm of the gradient over all parameters before clipping",
        "1",
        None,
        "training",
        "step",
    ),
    Metric("tokens", "training tokens seen up to and including the step", "tokens", None, "training", "step"),
    Metric(
        "curve_loss",
        "mean negative log-likelihood on the first windows of the validation split, for the curve",
        "nats/token",
        "lower",
        "training",
        "step",
    ),
)

_declare(
    Metric(
        "macro_accuracy",
        "zero-shot accuracy, mean over the tasks shown to be sensitive",
        "1",
        "higher",
        "accuracy",
    ),
    Metric(
        "macro_accuracy_fewshot",
        "few-shot accuracy at the most examples asked, mean over the tasks shown to be sensitive",
        "1",
        "higher",
        "accuracy",
    ),
    Metric(
        "task_accuracy",
        "share of a task's items whose most probable choice is right, mean over templates",
        "1",
        "higher",
        "task-accuracy",
    ),
    Metric(
        "task_accuracy_norm",
        "the same with log-probability per character of the choice",
        "1",
        "higher",
        "task-accuracy",
    ),
    Metric(
        "choice_log_probability",
        "mean log-probability of the right choice given the prompt",
        "nats",
        "higher",
        "task-scores",
    ),
    Metric(
        "choice_margin",
        "mean log-probability of the right choice minus that of the best wrong one",
        "nats",
        "higher",
        "task-scores",
    ),
    Metric(
        "choice_probability", "mean probability of the right choice among the choices", "1", "higher", "task-scores"
    ),
    Metric(
        "mean_task_accuracy",
        "zero-shot accuracy, mean over all tasks evaluated, sensitive or not",
        "1",
        "higher",
        "task-scores",
    ),
    Metric(
        "mean_task_accuracy_fewshot",
        "few-shot accuracy at the most examples asked, mean over all tasks evaluated, sensitive or not",
        "1",
        "higher",
        "task-scores",
    ),
    Metric(
        "token_ece",
        "expected calibration error of the most probable next token, equal-mass bins, debiased",
        "1",
        "lower",
        "calibration",
    ),
    Metric(
        "token_brier",
        "Brier score of next-token probabilities over the whole vocabulary",
        "1",
        "lower",
        "calibration",
    ),
    Metric(
        "task_ece",
        "expected calibration error of the most probable choice, zero-shot, equal-mass bins, debiased, mean over tasks",
        "1",
        "lower",
        "calibration",
    ),
    Metric("task_brier", "Brier score over the choices, zero-shot, mean over tasks", "1", "lower", "calibration"),
    Metric(
        "best_temperature",
        "softmax temperature that minimizes the loss on half of the validation split; none where it is not between 0.5 and 2",
        "1",
        None,
        "temperature",
        transform="log",
    ),
    Metric(
        "temperature_sensitivity",
        "second derivative of the validation loss by the logarithm of the temperature, at temperature 1",
        "nats/token",
        None,
        "temperature",
    ),
    Metric(
        "logit_scale",
        "standard deviation of the output logits over the vocabulary, mean over tokens",
        "1",
        None,
        "temperature",
        transform="log",
    ),
    Metric(
        "loss_near_end",
        "loss of the tokens past the context of documents of twice the context, read at the last eighth of the positions",
        "nats/token",
        "lower",
        "length",
    ),
    Metric(
        "loss_past_end",
        "loss of the same tokens by a window that slides half a context at a time, its positions starting again",
        "nats/token",
        "lower",
        "length",
    ),
    Metric(
        "sliding_cost",
        "loss of the tokens past the context by the sliding window, less that near the end of a full context",
        "nats/token",
        "lower",
        "length",
    ),
    Metric(
        "inference_speed",
        "tokens per second of a forward pass, timed in turn with every other run of the study",
        "tokens/s",
        "higher",
        "throughput",
        transform="log",
    ),
    Metric(
        "training_speed",
        "tokens per second of a training step (its update only where runs differ in it), timed in turn with every other run",
        "tokens/s",
        "higher",
        "throughput",
        transform="log",
    ),
    Metric(
        "inference_memory", "most bytes of tensors alive in a forward pass", "bytes", "lower", "memory", transform="log"
    ),
    Metric(
        "training_memory", "most bytes of tensors alive in a training step", "bytes", "lower", "memory", transform="log"
    ),
)

#: Means over the tasks that count: those that passed the gate.
GATED = ("macro_accuracy", "macro_accuracy_fewshot")
#: Metrics that follow from the curves of a run, whoever trained it.
FROM_CURVES = (
    "spike_score",
    "gradient_spike_score",
    "gradient_spikes",
    "largest_loss_rise",
    "steps_to_loss",
    "mean_training_loss",
)
#: Words of metric names that are not in small letters.
_NAMES = {"ece": "ECE", "brier": "Brier"}
#: Where a reader needs more than the name.
_WHOLE = {
    "lr": "learning rate",
    "lr_sensitivity": "learning-rate sensitivity",
    "curve_loss": "validation loss along training",
    "macro_accuracy_fewshot": "few-shot macro accuracy",
    "mean_task_accuracy_fewshot": "few-shot mean task accuracy",
    "ece": "calibration error (ECE)",
    "next_token_accuracy": "next-token accuracy",
}


def is_accuracy(metric: Metric) -> bool:
    """Whether it counts right answers: by its family, or by the name that a user gave it."""
    own = metric.family == metric.name and metric.direction == "higher"
    named = own and {"accuracy", "acc"} & set(re.split(r"[^a-z]+", metric.name.lower()))
    return metric.family in ("accuracy", "task-accuracy") or bool(named)


def metric_name(name: str) -> str:
    """A metric in words."""
    return _WHOLE.get(name) or " ".join(_NAMES.get(word, word) for word in name.split("_"))
