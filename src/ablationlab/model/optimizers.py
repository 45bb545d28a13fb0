"""Optimizers of a stack: the rules of `rules.py` applied to many runs at once, and the average of their weights.

State is flat: row r of ``x_RP`` holds all parameters of run r. Norm, clipping and learning rate are per row, and a frozen row
keeps every bit. AdamW is one kernel on a GPU and torch's own fused form on a CPU, in the order of operations of
torch.optim.AdamW.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ablationlab.model.ops import fused
from ablationlab.model.rules import OPTIMIZERS, SCHEDULES, SHIPPED, Matrix, OptimizerStep, UpdateRule, adamw
from ablationlab.records.settings import TrainingConfig


def lr_factor(training: TrainingConfig, step: int, steps: int) -> float:
    """The schedule's factor at *step* (1 .. steps), to be multiplied with each run's learning rate."""
    return float(SCHEDULES[training.schedule](training, step, steps))


def learning_rates(training: TrainingConfig, lr_R: Sequence[float], steps: range, total: int) -> NDArray[np.float32]:
    """lr_SR that steps of a run of *total* steps use: each run's own rate times the schedule's factor."""
    factors = np.array([lr_factor(training, step, total) for step in steps])
    rates: NDArray[np.float32] = (factors[:, None] * np.asarray(lr_R)).astype(np.float32)
    return rates


def clock(training: TrainingConfig, step: int) -> tuple[float, float, float, float]:
    """What an update must know of the step k: k itself, 1 - β₁ᵏ, sqrt(1 - β₂ᵏ), and the new weights' share of their average.

    With decay d that share is (1 - d) / (1 - dᵏ): the average is Σ dᵏ⁻ⁱ θᵢ / Σ dᵏ⁻ⁱ over the steps i so far.
    """
    beta1, beta2 = training.betas
    return float(step), 1 - beta1**step, math.sqrt(1 - beta2**step), (1 - training.ema) / (1 - training.ema**step)


@dataclass(frozen=True)
class Columns:
    """Neighbouring columns of a row that are updated alike: their number, factor of the learning rate and weight decay."""

    size: int
    rate: float
    decay: float


def joined(columns: Iterable[Columns]) -> tuple[Columns, ...]:
    """The same with neighbours that are alike put together."""
    return tuple(
        Columns(sum(column.size for column in alike), *key)
        for key, alike in groupby(columns, key=lambda column: (column.rate, column.decay))
    )


@dataclass
class AdamW:
    """First and second moments of a stack, and the rule that moves it."""

    training: TrainingConfig
    columns: tuple[Columns, ...]
    m_RP: Tensor
    v_RP: Tensor
    scales_2P: Tensor | None  # rates and decays, where there are more than "decays" and "does not"

    @classmethod
    def start(cls, training: TrainingConfig, weights_RP: Tensor, columns: tuple[Columns, ...]) -> AdamW:
        """Zero moments."""
        uneven = len(columns) > 2 or any(part.rate != 1.0 for part in columns) or any(p.decay for p in columns[1:])
        scales = _scales(columns, weights_RP.device) if uneven else None
        return cls(training, columns, torch.zeros_like(weights_RP), torch.zeros_like(weights_RP), scales)

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
        clock_4: Tensor,
        alive_R: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Clip, and move the weights of the runs that are alive, in place; frozen rows keep every bit.

        The gradient itself stays as it is. *clock_4* is the step's `clock`. Returns the sum and the maximum of the
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
                sum(part.size for part in self.columns if part.decay),
                norm_R,
                lr_R,
                clock_4,
                alive_R,
                betas=self.training.betas,
                eps=self.training.eps,
                weight_decay=self.training.weight_decay,
                clip=clip,
                scales_2P=self.scales_2P,
            )
        for run, alive in enumerate(alive_R.tolist()):
            if alive:  # nothing at all is done to a frozen run
                gradient = gradient_RP[run]
                if clip is not None:
                    # As torch.nn.utils.clip_grad_norm_ does: a norm above the limit is scaled down to it.
                    gradient = gradient * (clip / (norm_R[run] + 1e-6)).clamp(max=1.0)
                self._move(weights_RP[run], gradient, self.m_RP[run], self.v_RP[run], float(lr_R[run]), clock_4[0])
        return self.v_RP.sum(dim=1), self.v_RP.amax(dim=1)

    def _move(self, w: Tensor, g: Tensor, m: Tensor, v: Tensor, lr: float, step: Tensor) -> None:
        """torch's own fused AdamW on one row, one group of columns after the other."""
        first = 0
        for part in self.columns:
            at = slice(first, first + part.size)
            first += part.size
            rates = {"lr": lr * part.rate, "decay": part.decay}
            move([w[at]], [g[at]], [m[at]], [v[at]], self.training, step=step, **rates)


def _scales(columns: Sequence[Columns], device: torch.device) -> Tensor:
    """Rate and decay of every column: (2, P)."""
    sizes = torch.tensor([part.size for part in columns])
    values = torch.tensor([[part.rate for part in columns], [part.decay for part in columns]])
    return values.repeat_interleave(sizes, dim=1).to(device)


@dataclass(frozen=True)
class RowLayout:
    """What an update rule may want to know of a row: see `OptimizerStep`."""

    columns: tuple[Columns, ...]
    views: Callable[[Tensor], dict[str, Tensor]]
    matrices: tuple[Matrix, ...] = ()
    rest: int = 0


class RuleOptimizer:
    """An update rule in plain tensor operations, with its state."""

    def __init__(self, training: TrainingConfig, rule: UpdateRule, weights_RP: Tensor, row: RowLayout) -> None:
        self.training, self.rule, self.row = training, rule, row
        self.state = {name: torch.zeros_like(weights_RP) for name in rule.state}
        rate_P, self._decay_P = _scales(row.columns, weights_RP.device)
        self._rate_P = None if all(part.rate == 1.0 for part in row.columns) else rate_P

    @property
    def v_RP(self) -> Tensor | None:
        """The second moment of all parameters, where the rule keeps one."""
        return self.state.get("v") if self.rule.second_moment else None

    def update(
        self,
        weights_RP: Tensor,
        gradient_RP: Tensor,
        norm_R: Tensor,
        lr_R: Tensor,
        clock_4: Tensor,
        alive_R: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """As `AdamW.update`; the rule sees every row, and what it did to frozen ones is undone. NaN stands for no second
        moment."""
        if self.training.clip != "off":
            gradient_RP = gradient_RP * (self.training.clip / (norm_R + 1e-6)).clamp(max=1.0)[:, None]
        kept = {name: value.clone() for name, value in self.state.items()}
        step = OptimizerStep(
            # A rule of a study's own code might change them in place.
            weights_RP.detach() if self.training.optimizer in SHIPPED else weights_RP.detach().clone(),
            gradient_RP,
            self.state,
            lr_R[:, None] if self._rate_P is None else lr_R[:, None] * self._rate_P,
            clock_4[0],
            self._decay_P,
            self.training,
            self.row.views,
            self.row.matrices,
            self.row.rest,
        )
        moved = self.rule.moved(step)
        alive = alive_R[:, None]
        ours = weights_RP.detach()
        torch.where(alive, moved, ours, out=ours)
        for name, value in self.state.items():
            torch.where(alive, value, kept[name], out=value)
        v = self.v_RP
        if v is None:
            return torch.full_like(lr_R, math.nan), torch.full_like(lr_R, math.nan)
        return v.sum(dim=1), v.amax(dim=1)


class FusedMuon(RuleOptimizer):
    """The rule "muon" of a GPU: the same formula with its element-wise passes fused, so that only what a matrix product reads
    or writes is moved in between."""

    def __init__(self, training: TrainingConfig, rule: UpdateRule, weights_RP: Tensor, row: RowLayout) -> None:
        super().__init__(training, rule, weights_RP, row)
        self._scales_2P = _scales(row.columns, weights_RP.device)
        sizes_P = torch.zeros(1, weights_RP.shape[1])
        for matrix in row.matrices:
            matrix.of(sizes_P).fill_(matrix.update_size)
        rate_C, decay_C = self._scales_2P[:, : row.rest]
        sizes_C = sizes_P[0, : row.rest].to(weights_RP.device)
        self._matrix_scales_2C = torch.stack([rate_C * decay_C, rate_C * sizes_C])

    def update(
        self,
        weights_RP: Tensor,
        gradient_RP: Tensor,
        norm_R: Tensor,
        lr_R: Tensor,
        clock_4: Tensor,
        alive_R: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """As `RuleOptimizer.update`."""
        from ablationlab.model.kernels.adamw import update_
        from ablationlab.model.kernels.muon import momentum_, move_
        from ablationlab.model.orthogonal import orthogonalized

        training, (m_RP, v_RP), weights = self.training, (self.state["m"], self.state["v"]), weights_RP.detach()
        clip = None if training.clip == "off" else training.clip
        bf16 = training.precision == "bf16"
        if self.row.rest:
            ahead_RC = momentum_(
                gradient_RP,
                m_RP,
                self.row.rest,
                norm_R,
                alive_R,
                momentum=training.momentum,
                clip=clip,
                dtype=torch.bfloat16 if bf16 else torch.float32,
            )
            views = [matrix.of(ahead_RC) for matrix in self.row.matrices]
            for view, direction in zip(views, orthogonalized(views, bf16=bf16), strict=True):
                view.copy_(direction)
            move_(weights, ahead_RC, lr_R, alive_R, self._matrix_scales_2C)
        if self.row.rest < weights.shape[1]:
            update_(
                weights,
                gradient_RP,
                m_RP,
                v_RP,
                0,
                norm_R,
                lr_R,
                clock_4,
                alive_R,
                betas=training.betas,
                eps=training.eps,
                weight_decay=training.weight_decay,
                clip=clip,
                scales_2P=self._scales_2P,
                first=self.row.rest,
            )
        return torch.full_like(lr_R, math.nan), torch.full_like(lr_R, math.nan)


def start_optimizer(training: TrainingConfig, weights_RP: Tensor, row: RowLayout) -> AdamW | RuleOptimizer:
    """The optimizer that the settings name, before the first step."""
    rule = OPTIMIZERS[training.optimizer]
    if rule is not None:
        kind = FusedMuon if training.optimizer == "muon" and fused(weights_RP) else RuleOptimizer
        return kind(training, rule, weights_RP, row)
    if weights_RP.is_cuda and not fused(weights_RP):  # without a kernel, and a graph cannot wait for the host
        return RuleOptimizer(training, UpdateRule(("m", "v"), adamw), weights_RP, row)
    return AdamW.start(training, weights_RP, row.columns)


@torch.no_grad()
def average_(average_RP: Tensor, weights_RP: Tensor, share: Tensor, alive_R: Tensor) -> None:
    """Take the new weights into their average, in place; *share* is the last number of `clock`. Frozen rows stay."""
    taken = average_RP.lerp(weights_RP.detach(), share)
    torch.where(alive_R[:, None], taken, average_RP, out=average_RP)


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
    # A CPU adds up in order: over a million numbers its sum in fp32 is off by 1e-4. A GPU's tree is not.
    wide = torch.float64 if gradient_RP.device.type == "cpu" else None
    norm: Tensor = torch.linalg.vector_norm(gradient_RP, dim=1, dtype=wide).to(gradient_RP.dtype)
    return norm
