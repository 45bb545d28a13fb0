"""A finished run as the metrics of a study's own code see it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ablationlab.core.code import place_of
from ablationlab.data.tokenizers import Tokenizer
from ablationlab.model.gpt import ForwardPass
from ablationlab.records.metrics import MEASURED_METRICS
from ablationlab.records.run import MetricFailure
from ablationlab.records.settings import ModelConfig, TrainingConfig


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A trained run as a metric of your own gets it: settings, weights, training losses and held-out tokens."""

    id: str
    variant: str
    seed: int
    model: ModelConfig
    training: TrainingConfig
    weights: dict[str, Tensor]
    losses: tuple[float, ...]  # of the training batches, one per step
    validation: NDArray[np.int64]
    tokenizer: Tokenizer

    @torch.no_grad()
    def logits(self, tokens_BT: Tensor) -> Tensor:
        """logits_BTV in fp32, without dropout, on the CPU."""
        params = {name: value[None] for name, value in self.weights.items()}
        return ForwardPass(params, self.model, [self.model.front]).logits(tokens_BT[None])[0]


def own_metrics(run: FinishedRun) -> tuple[dict[str, float | None], dict[str, MetricFailure]]:
    """Every metric that the study's own code declares, None where the value is not finite; and why others have none.

    What raises costs its own value alone: the run is trained.
    """
    values: dict[str, float | None] = {}
    failures: dict[str, MetricFailure] = {}
    for name, measure in MEASURED_METRICS.items():
        try:
            value = measure(run)
            number = float(value) if hasattr(value, "__float__") else None
        except Exception as error:
            values[name] = None
            failures[name] = MetricFailure(place=place_of(error), error=f"{type(error).__name__}: {error}")
            continue
        values[name] = number if number is not None and math.isfinite(number) else None
        if number is None:
            failures[name] = MetricFailure(place=None, error=f"it returned {value!r}, not a number")
    return values, failures
