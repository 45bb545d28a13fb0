"""A stack of runs: the unit of training.

All parameters of run r are row r of one flat buffer ``weights_RP``; the model sees views of it. A stack holds runs that
differ only in seed, learning rate and front end. Its width is sealed in the plan: short stacks are padded with copies of
their last member, whose results are thrown away, and members that diverge are frozen in place, so the shapes of the
arithmetic, and with them the bits, never depend on the neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ablationlab.config import FrontEnd, ModelConfig, TrainingConfig
from ablationlab.data.batches import batch_offsets
from ablationlab.dropout import Dropout, dropout_keys, dropout_sites
from ablationlab.model import forward, loss_R
from ablationlab.optim import AdamW, clip_, gradient_norm_R, lr_factor
from ablationlab.parameters import Parameter, parameters

# Every parameter starts on a 256-byte boundary of the flat buffer, in every row, whatever stands before it.
ALIGNMENT = 64


@dataclass(frozen=True)
class Member:
    """One run of a stack."""

    id: str
    seed: int
    lr: float
    model: ModelConfig


@dataclass(frozen=True)
class Watched:
    """What probes need of a step and training itself does not keep."""

    before_RP: Tensor  # the weights that the gradient was taken at
    gradient_RP: Tensor  # before clipping
    windows_RBT: Tensor  # inputs and targets: context + 1 tokens


@dataclass(frozen=True)
class Layout:
    """Where each parameter lives in a row: the union of what the members own, in the order of the forward pass."""

    parameters: tuple[Parameter, ...]

    @classmethod
    def of(cls, members: Sequence[Member]) -> Layout:
        """The layout of a stack. A slot that a member does not own stays at its start value there: its gradient is 0."""
        gain = any(member.model.front.gain for member in members)
        bias = any(member.model.front.bias for member in members)
        full = FrontEnd(norm="layernorm" if gain or bias else "none", gain=gain, bias=bias)
        return cls(parameters(members[0].model.changed(front=full)))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Slot sizes, padded to the alignment."""
        return tuple(-(-parameter.size // ALIGNMENT) * ALIGNMENT for parameter in self.parameters)

    def views(self, flat_RP: Tensor) -> dict[str, Tensor]:
        """Each parameter with its run axis, as views; differentiating through them gives one flat gradient."""
        slots = torch.split(flat_RP, list(self.sizes), dim=1)
        return {
            parameter.name: slot[:, : parameter.size].view(-1, *parameter.shape)
            for parameter, slot in zip(self.parameters, slots, strict=True)
        }

    def decay_P(self, rule: str) -> Tensor:
        """1 where weight decay applies: matrices and embeddings, or everything."""
        pieces = [
            torch.full((size,), float(rule == "all" or parameter.is_matrix))
            for parameter, size in zip(self.parameters, self.sizes, strict=True)
        ]
        return torch.cat(pieces)


class Stack:
    """R runs in lockstep."""

    def __init__(
        self,
        members: Sequence[Member],
        width: int,
        training: TrainingConfig,
        steps: int,
        train_tokens: NDArray[np.int64],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        assert 0 < len(members) <= width
        self.members = tuple(members)
        padded = [*members, *[members[-1]] * (width - len(members))]
        self.seeds = tuple(member.seed for member in padded)
        self.fronts = tuple(member.model.front for member in padded)
        self.model = members[0].model
        self.training, self.steps, self.device, self.dtype = training, steps, device, dtype
        self.layout = Layout.of(members)
        self.weights_RP = torch.zeros(width, sum(self.layout.sizes))
        for row, member in enumerate(padded):
            self._fill(row, {parameter.name: parameter.draw(member.seed) for parameter in parameters(member.model)})
        self.weights_RP = self.weights_RP.to(device).requires_grad_()
        self.optimizer = AdamW.start(training, self.weights_RP.detach(), self.layout.decay_P(training.decay).to(device))
        self.lr_R = torch.tensor([member.lr for member in padded], dtype=torch.float32, device=device)
        self.alive_R = torch.ones(width, dtype=torch.bool, device=device)
        self.train_tokens = torch.from_numpy(train_tokens).to(device)
        self.watched: Watched | None = None
        self._window = torch.arange(self.model.context + 1, device=device)
        self._sites = dropout_sites(self.model)

    def _fill(self, row: int, arrays: dict[str, NDArray[np.float32]]) -> None:
        start = self.layout.views(self.weights_RP)
        for parameter in self.layout.parameters:
            drawn = arrays.get(parameter.name)
            value = torch.full(parameter.shape, parameter.fill) if drawn is None else torch.from_numpy(drawn)
            start[parameter.name][row].copy_(value)

    def offsets(self, step: int) -> NDArray[np.int64]:
        """offsets_RB of a step."""
        shape = {
            "batch": self.training.batch,
            "context": self.model.context,
            "train_tokens": len(self.train_tokens),
        }
        return np.stack([batch_offsets(seed, step, **shape) for seed in self.seeds])

    def train_step(self, step: int, offsets_RB: NDArray[np.int64], watch: bool = False) -> tuple[Tensor, Tensor]:
        """One update of every living run; returns loss_R and gradient_norm_R without waiting for the device.

        A run whose loss or gradient is not finite is frozen from this step on, before its update. With ``watch``, copies of
        what the update consumes are left in ``watched`` for the probes; the arithmetic is the same.
        """
        offsets = torch.from_numpy(offsets_RB).to(self.device, non_blocking=True)
        windows = self.train_tokens[offsets[:, :, None] + self._window]
        losses = loss_R(
            forward(
                self.layout.views(self.weights_RP),
                windows[..., :-1],
                self.model,
                self.fronts,
                dtype=self.dtype,
                dropout=self._dropout(step),
            ),
            windows[..., 1:],
        )
        (gradient,) = torch.autograd.grad(losses.sum(), self.weights_RP)
        with torch.no_grad():
            self.watched = Watched(self.weights_RP.detach().clone(), gradient.clone(), windows) if watch else None
            norms = gradient_norm_R(gradient)
            self.alive_R = self.alive_R & losses.isfinite() & norms.isfinite()
            if self.training.clip != "off":
                clip_(gradient, norms, self.training.clip)
            lr = self.lr_R * lr_factor(self.training, step, self.steps)
            self.optimizer.update(self.weights_RP, gradient, lr, step, self.alive_R)
        return losses.detach(), norms

    def _dropout(self, step: int) -> Dropout | None:
        if not self.model.dropout:
            return None
        keys = dropout_keys(self.seeds, step, self._sites).to(self.device)
        return Dropout(self.model.dropout, self._sites, keys)

    def state(self, slot: int) -> dict[str, dict[str, Tensor]]:
        """The weights and both moments of one run, by parameter name, on the host."""
        owned = [parameter.name for parameter in parameters(self.members[slot].model)]
        flats = {"weights": self.weights_RP.detach(), "m": self.optimizer.m_RP, "v": self.optimizer.v_RP}
        return {
            part: {
                name: view[slot].cpu().contiguous() for name, view in self.layout.views(flat).items() if name in owned
            }
            for part, flat in flats.items()
        }

    def restore(self, slot: int, state: dict[str, dict[str, Tensor]], *, alive: bool) -> None:
        """Put a saved run back into its slot (and into the padding, if it is the last)."""
        rows = [slot] if slot + 1 < len(self.members) else list(range(slot, len(self.seeds)))
        flats = {"weights": self.weights_RP.detach(), "m": self.optimizer.m_RP, "v": self.optimizer.v_RP}
        for part, saved in state.items():
            views = self.layout.views(flats[part])
            for name, value in saved.items():
                for row in rows:
                    views[name][row].copy_(value)
        for row in rows:
            self.alive_R[row] = alive
