"""A finished run as the metrics of a study's own code see it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ablationlab.core.errors import CodeError
from ablationlab.data.tokenizers import Tokenizer
from ablationlab.model.gpt import ForwardPass
from ablationlab.records.metrics import MEASURED_METRICS
from ablationlab.records.settings import ModelConfig, TrainingConfig


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """Its settings, weights, training losses and held-out tokens."""

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


def own_metrics(run: FinishedRun) -> dict[str, float | None]:
    """Every metric that the study's own code declares; None where the value is not finite."""
    found: dict[str, float | None] = {}
    for name, measure in MEASURED_METRICS.items():
        value = measure(run)
        if not isinstance(value, int | float):
            raise CodeError(f"metric {name!r} of the study's own code returned {value!r}, not a number")
        found[name] = float(value) if math.isfinite(value) else None
    return found
