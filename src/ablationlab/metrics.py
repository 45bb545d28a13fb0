"""Every metric, declared once: what it means, its unit, which way is better, how it is tested.

Records carry metric names; nothing downstream knows more about a name than what stands here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ablationlab.registry import Registry


@dataclass(frozen=True)
class Metric:
    """One measurable thing.

    ``direction`` is None where neither way is better. ``transform`` is applied before testing (perplexity is tested as
    its logarithm). ``family`` groups metrics for the multiplicity correction. ``level``: one number per run, per item,
    or per step.
    """

    name: str
    meaning: str
    unit: str
    direction: Literal["lower", "higher"] | None
    family: str
    level: Literal["run", "item", "step"] = "run"
    transform: Literal["identity", "log"] = "identity"


METRICS: Registry[Metric] = Registry("metric")


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
        "exp(validation_loss)",
        "1",
        "lower",
        "language-modelling",
        transform="log",
    ),
    Metric(
        "bits_per_byte",
        "validation loss in bits, summed over the predicted tokens, per UTF-8 byte they stand for",
        "bits/byte",
        "lower",
        "language-modelling",
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
        "L2 norm of the gradient over all parameters before clipping, on the batch of the last step",
        "1",
        None,
        "diagnostics",
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
        "largest lasting upward jump of the training loss, in robust standard deviations of its noise; by the analysis",
        "1",
        "lower",
        "stability",
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
