"""AdamW and learning-rate schedules, for many runs at once.

State is flat: row r of ``x_RP`` holds all parameters of run r, so that one element-wise pass updates the whole stack,
and norm, clipping and learning rate are per row.

    m = β₁m + (1-β₁)g;  v = β₂v + (1-β₂)g²;  θ = θ(1 - ηλ) - η · (m / (1-β₁ᵏ)) / (sqrt(v / (1-β₂ᵏ)) + ε)

Loshchilov & Hutter 2019, in the order of operations of torch.optim.AdamW.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ablationlab.model.ops import fused
from ablationlab.model.rules import OPTIMIZERS, SCHEDULES, OptimizerStep, UpdateRule
from ablationlab.records.settings import TrainingConfig


def lr_factor(training: TrainingConfig, step: int, steps: int) -> float:
    """The schedule's factor at *step* (1 .. steps), to be multiplied with each run's learning rate."""
    return float(SCHEDULES[training.schedule](training, step, steps))


def learning_rates(training: TrainingConfig, lr_R: Sequence[float], steps: range, total: int) -> NDArray[np.float32]:
    """lr_SR that steps of a run of *total* steps use: each run's own rate times the schedule's factor."""
    factors = np.array([lr_factor(training, step, total) for step in steps])
    rates: NDArray[np.float32] = (factors[:, None] * np.asarray(lr_R)).astype(np.float32)
    return rates


def clock(training: TrainingConfig, step: int) -> tuple[float, float, float]:
    """What AdamW must know of the step k: k itself, 1 - β₁ᵏ and sqrt(1 - β₂ᵏ)."""
    beta1, beta2 = training.betas
    return float(step), 1 - beta1**step, math.sqrt(1 - beta2**step)


@dataclass
class AdamW:
    """First and second moments of a stack, and the rule that moves it."""

    training: TrainingConfig
    decaying: int  # weight decay applies to that many first columns
    m_RP: Tensor
    v_RP: Tensor

    @classmethod
    def start(cls, training: TrainingConfig, weights_RP: Tensor, decaying: int) -> AdamW:
        """Zero moments."""
        return cls(training, decaying, torch.zeros_like(weights_RP), torch.zeros_like(weights_RP))

    @property
    def state(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of it."""
        return {"m": self.m_RP, "v": self.v_RP}

    def update(
        self,
        weights_RP: Tensor,
        gradient_RP: Tensor,
        norm_R: Tensor,
        lr_R: Tensor,
        clock_3: Tensor,
        alive_R: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Clip, and move the weights of the runs that are alive, in place; frozen rows keep every bit.

        The gradient itself stays as it is. *clock_3* is the step's `clock`. Returns the sum and the maximum of the
        second moment, per run.
        """
        clip = None if self.training.clip == "off" else self.training.clip
        if fused(weights_RP):
            from ablationlab.model.kernels.adamw import update_

            return update_(
                weights_RP,
                gradient_RP,
                self.m_RP,
                self.v_RP,
                self.decaying,
                norm_R,
                lr_R,
                clock_3,
                alive_R,
                betas=self.training.betas,
                eps=self.training.eps,
                weight_decay=self.training.weight_decay,
                clip=clip,
            )
        for run, alive in enumerate(alive_R.tolist()):
            if alive:  # nothing at all is done to a frozen run
                gradient = gradient_RP[run]
                if clip is not None:
                    # As torch.nn.utils.clip_grad_norm_ does: a norm above the limit is scaled down to it.
                    gradient = gradient * (clip / (norm_R[run] + 1e-6)).clamp(max=1.0)
                self._move(weights_RP[run], gradient, self.m_RP[run], self.v_RP[run], float(lr_R[run]), clock_3[0])
        return self.v_RP.sum(dim=1), self.v_RP.amax(dim=1)

    def _move(self, w: Tensor, g: Tensor, m: Tensor, v: Tensor, lr: float, step: Tensor) -> None:
        """torch's own fused AdamW on one row: first the part that decays, then the rest."""
        parts = ((slice(None, self.decaying), self.training.weight_decay), (slice(self.decaying, None), 0.0))
        for part, decay in parts:
            move([w[part]], [g[part]], [m[part]], [v[part]], self.training, lr=lr, step=step, decay=decay)


Views = Callable[[Tensor], dict[str, Tensor]]


class CustomOptimizer:
    """An update rule that a study's own code registers, with its state."""

    def __init__(
        self, training: TrainingConfig, rule: UpdateRule, weights_RP: Tensor, decaying: int, views: Views
    ) -> None:
        self.training, self.rule, self.views = training, rule, views
        self.state = {name: torch.zeros_like(weights_RP) for name in rule.state}
        self._decay_P = torch.zeros(weights_RP.shape[1], device=weights_RP.device)
        self._decay_P[:decaying] = training.weight_decay

    @property
    def v_RP(self) -> Tensor:
        """Its second moment, where it calls something ``v``; else zeros, as probes see it."""
        first = next(iter(self.state.values()), self._decay_P)
        return self.state.get("v", torch.zeros_like(first))

    def update(
        self,
        weights_RP: Tensor,
        gradient_RP: Tensor,
        norm_R: Tensor,
        lr_R: Tensor,
        clock_3: Tensor,
        alive_R: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """As `AdamW.update`; the rule sees every row, and what it did to frozen ones is undone."""
        if self.training.clip != "off":
            gradient_RP = gradient_RP * (self.training.clip / (norm_R + 1e-6)).clamp(max=1.0)[:, None]
        kept = {name: value.clone() for name, value in self.state.items()}
        step = OptimizerStep(
            weights_RP.detach().clone(),
            gradient_RP,
            self.state,
            lr_R[:, None],
            clock_3[0],
            self._decay_P,
            self.training,
            self.views,
        )
        moved = self.rule.update(step)
        alive = alive_R[:, None]
        weights_RP.copy_(torch.where(alive, moved, weights_RP))
        for name, value in self.state.items():
            value.copy_(torch.where(alive, value, kept[name]))
        v = self.state.get("v")
        if v is None:
            return torch.zeros_like(lr_R), torch.zeros_like(lr_R)
        return v.sum(dim=1), v.amax(dim=1)


def start_optimizer(
    training: TrainingConfig, weights_RP: Tensor, decaying: int, views: Views
) -> AdamW | CustomOptimizer:
    """The optimizer that the settings name, before the first step."""
    rule = OPTIMIZERS[training.optimizer]
    if rule is None:
        return AdamW.start(training, weights_RP, decaying)
    return CustomOptimizer(training, rule, weights_RP, decaying, views)


def move(
    weights: list[Tensor],
    gradients: list[Tensor],
    m: list[Tensor],
    v: list[Tensor],
    training: TrainingConfig,
    *,
    lr: float,
    step: Tensor,
    decay: float,
) -> None:
    """torch's own fused AdamW, in place, on tensors that share a rate and a decay; *step* counts from 1."""
    beta1, beta2 = training.betas
    torch._fused_adamw_(
        weights,
        gradients,
        m,
        v,
        [],
        [step] * len(weights),
        lr=lr,
        beta1=beta1,
        beta2=beta2,
        weight_decay=decay,
        eps=training.eps,
        amsgrad=False,
        maximize=False,
    )


def gradient_norm_R(gradient_RP: Tensor) -> Tensor:
    """L2 norm over all parameters, per run, before clipping."""
    norm: Tensor = torch.linalg.vector_norm(gradient_RP, dim=1)
    return norm
