"""Names of optimizers and learning-rate schedules, and what stands behind them. Importing this loads no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ablationlab.core.registry import Registry
from ablationlab.records.settings import TrainingConfig

if TYPE_CHECKING:
    from torch import Tensor

#: (training, step 1 .. steps, steps) -> the factor of the peak learning rate.
Schedule = Callable[[TrainingConfig, int, int], float]
SCHEDULES: Registry[Schedule] = Registry("schedule")


def warmup_cosine(training: TrainingConfig, step: int, steps: int) -> float:
    """k / warmup up to warmup, then from 1 down to ``final_lr`` along half a cosine, reached at the last step."""
    if step <= training.warmup:
        return step / training.warmup
    progress = (step - training.warmup) / max(1, steps - training.warmup)
    return training.final_lr + (1 - training.final_lr) * 0.5 * (1 + math.cos(math.pi * progress))


def constant(training: TrainingConfig, step: int, steps: int) -> float:
    return 1.0


SCHEDULES.add("warmup-cosine", warmup_cosine)
SCHEDULES.add("constant", constant)


@dataclass(frozen=True, eq=False)
class OptimizerStep:
    """What an update rule gets: flat tensors, one row per run of the stack."""

    weights: Tensor  # (R, P)
    gradient: Tensor  # (R, P), clipped
    state: Mapping[str, Tensor]  # (R, P) each, zero at the start; to be changed in place
    lr: Tensor  # (R, 1)
    step: Tensor  # a scalar that counts from 1
    decay: Tensor  # (P,): weight_decay where it applies, else 0
    training: TrainingConfig
    views: Callable[[Tensor], dict[str, Tensor]]  # of a flat tensor: each parameter by name, with its run axis


@dataclass(frozen=True)
class UpdateRule:
    """``update`` returns the new weights (R, P); ``state`` names the tensors that it keeps between steps."""

    state: tuple[str, ...]
    update: Callable[[OptimizerStep], Tensor]


#: None stands for the fused AdamW of `optimizers.py`.
OPTIMIZERS: Registry[UpdateRule | None] = Registry("optimizer")
OPTIMIZERS.add("adamw", None)
