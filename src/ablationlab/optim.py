"""AdamW and learning-rate schedules, for many runs at once.

State is flat: row r of ``x_RP`` holds all parameters of run r, so that one element-wise pass updates the whole stack,
and norm, clipping and learning rate are per row.

    m = β₁m + (1-β₁)g;  v = β₂v + (1-β₂)g²;  θ = θ(1 - ηλ) - η · (m / (1-β₁ᵏ)) / (sqrt(v / (1-β₂ᵏ)) + ε)

Loshchilov & Hutter 2019, in the order of operations of torch.optim.AdamW.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ablationlab.config import TrainingConfig
from ablationlab.ops import fused


def lr_factor(training: TrainingConfig, step: int, steps: int) -> float:
    """The schedule's factor at *step* (1 .. steps), to be multiplied with each run's learning rate.

    warmup-cosine: k / warmup up to warmup, then from 1 down to ``final_lr`` along half a cosine, reached at the last step.
    """
    if training.schedule == "constant":
        return 1.0
    if step <= training.warmup:
        return step / training.warmup
    progress = (step - training.warmup) / max(1, steps - training.warmup)
    return training.final_lr + (1 - training.final_lr) * 0.5 * (1 + math.cos(math.pi * progress))


def bias_corrections(training: TrainingConfig, step: int) -> tuple[float, float]:
    """1 - β₁ᵏ and sqrt(1 - β₂ᵏ)."""
    beta1, beta2 = training.betas
    return 1 - beta1**step, math.sqrt(1 - beta2**step)


@dataclass
class AdamW:
    """First and second moments of a stack, and the rule that moves it."""

    training: TrainingConfig
    decay_P: Tensor  # 1 where weight decay applies, else 0
    m_RP: Tensor
    v_RP: Tensor

    @classmethod
    def start(cls, training: TrainingConfig, weights_RP: Tensor, decay_P: Tensor) -> AdamW:
        """Zero moments."""
        return cls(training, decay_P, torch.zeros_like(weights_RP), torch.zeros_like(weights_RP))

    def update(
        self,
        weights_RP: Tensor,
        gradient_RP: Tensor,
        norm_R: Tensor,
        lr_R: Tensor,
        corrections_2: Tensor,
        alive_R: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Clip, and move the weights of the runs that are alive, in place; frozen rows keep every bit.

        The gradient itself stays as it is. *corrections_2* are `bias_corrections`. Returns the sum and the maximum of the
        second moment, per run.
        """
        clip = None if self.training.clip == "off" else self.training.clip
        if fused(weights_RP):
            from ablationlab.kernels.adamw import update_

            return update_(
                weights_RP,
                gradient_RP,
                self.m_RP,
                self.v_RP,
                self.decay_P,
                norm_R,
                lr_R,
                corrections_2,
                alive_R,
                betas=self.training.betas,
                eps=self.training.eps,
                weight_decay=self.training.weight_decay,
                clip=clip,
            )
        beta1, beta2 = self.training.betas
        lr, alive = lr_R[:, None], alive_R[:, None]
        if clip is not None:
            # As torch.nn.utils.clip_grad_norm_ does: rows whose norm exceeds the limit are scaled down to it.
            gradient_RP = gradient_RP * (clip / (norm_R + 1e-6)).clamp(max=1.0)[:, None]
        m = torch.lerp(self.m_RP, gradient_RP, 1 - beta1)
        v = (self.v_RP * beta2).addcmul_(gradient_RP, gradient_RP, value=1 - beta2)
        denominator = (v.sqrt() / corrections_2[1]).add_(self.training.eps)
        moved = weights_RP * (1 - lr * self.training.weight_decay * self.decay_P)
        moved -= (lr / corrections_2[0]) * (m / denominator)
        # `where`, not multiplication: NaN times zero is NaN.
        self.m_RP.copy_(torch.where(alive, m, self.m_RP))
        self.v_RP.copy_(torch.where(alive, v, self.v_RP))
        weights_RP.copy_(torch.where(alive, moved, weights_RP))
        return self.v_RP.sum(dim=1), self.v_RP.amax(dim=1)


def gradient_norm_R(gradient_RP: Tensor) -> Tensor:
    """L2 norm over all parameters, per run, before clipping."""
    norm: Tensor = torch.linalg.vector_norm(gradient_RP, dim=1)
    return norm
