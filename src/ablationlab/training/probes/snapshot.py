"""What a probe sees: a stack right after one step, as plain tensors. And what it gives back: readings.

Shape suffixes: R runs, P parameters of a row, B sequences, T tokens, D width, V vocabulary, N points of a distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ablationlab.model.attention import ObservedAttention
from ablationlab.model.gpt import ForwardPass
from ablationlab.model.ops import loss_R
from ablationlab.model.parameters import parameters
from ablationlab.model.parts import parts_of
from ablationlab.records.settings import FrontEnd, ModelConfig, TrainingConfig
from ablationlab.training.stack import ParameterLayout, Watched

if TYPE_CHECKING:
    from ablationlab.training.probes.data_order import SeenData, Vocabulary


# Tokens of a run's batch that the tapped pass reads: the first sequences of the batch, at least one.
SAMPLED_TOKENS = 256


@dataclass(frozen=True)
class Reading:
    """Numbers of one measure: values_RN with N groups and positions, or values_R for one of each.

    ``has_R`` leaves out runs that the measure does not exist for (no learned gain, say). ``then`` is what is left to be done
    with the values on the host, when they have arrived: from (R, anything) to (R, N).
    """

    measure: str
    values: Tensor
    groups: Sequence[str | None] = (None,)
    at: Sequence[float | None] = (None,)
    has_R: Sequence[bool] | None = None
    then: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None

    def on_host(self, values: Tensor) -> NDArray[np.float64]:
        """The numbers (R, N), from the values as they arrived on the host: (R, anything)."""
        table: NDArray[np.float64] = values.double().reshape(len(values), -1).numpy()
        return table if self.then is None else self.then(table)

    @property
    def columns(self) -> tuple[tuple[str | None, ...], tuple[float | None, ...]]:
        """Group and at of the N columns; a single one goes with all of the other."""
        count = max(len(self.groups), len(self.at))
        groups = tuple(self.groups) if len(self.groups) == count else tuple(self.groups) * count
        return groups, tuple(self.at) if len(self.at) == count else tuple(self.at) * count

    @property
    def labels(self) -> list[tuple[str | None, float | None]]:
        """(group, at) of each of the N columns."""
        return list(zip(*self.columns, strict=True))


@dataclass(frozen=True)
class Snapshot(Watched):
    """A stack after ``step``. Rows are runs (and the padding behind them); buffers are read, never written.

    ``v_correction`` is 1 - β₂ᵏ as a tensor: on a GPU a look is recorded once and replayed, and a number that a probe takes
    from Python is then that of the recorded step.
    """

    step: int
    model: ModelConfig
    training: TrainingConfig
    fronts: tuple[FrontEnd, ...]
    layout: ParameterLayout
    v_correction: Tensor
    dtype: torch.dtype
    seeds: tuple[int, ...]
    vocabulary: Vocabulary
    seen: SeenData
    backward: bool = False  # whether the tapped pass is differentiated; so where a probe that needs it is due

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        return self.layout.views(self.weights_RP.detach())

    @cached_property
    def sample_RBT(self) -> Tensor:
        """The windows that the tapped pass reads."""
        count = max(1, SAMPLED_TOKENS // self.model.context)
        return self.windows_RBT[:, :count]

    @cached_property
    def taps(self) -> Taps:
        """The tapped pass, made once and shared."""
        return tapped(self.weights, self.sample_RBT, self.model, self.fronts, self.dtype, gradient=self.backward)

    @cached_property
    def owned(self) -> tuple[frozenset[str], ...]:
        """Names of the parameters that each run really has; others are idle slots of a shared row."""
        return tuple(_names(self.model, front) for front in self.fronts)


def _names(model: ModelConfig, front: FrontEnd) -> frozenset[str]:
    return frozenset(parameter.name for parameter in parameters(model.changed(front=front)))


@dataclass(frozen=True)
class AttentionSummary:
    """What is kept of one block's attention."""

    logit_max_R: Tensor
    entropy_RBHT: Tensor  # of every query, in nats
    column_max_R: Tensor  # largest sum of a column of an attention matrix: what one key receives from all queries

    @classmethod
    @torch.no_grad()
    def of(cls, scores_RBHTT: Tensor, weights_RBHTT: Tensor) -> AttentionSummary:
        return cls(
            scores_RBHTT.amax(dim=(1, 2, 3, 4)),
            torch.special.entr(weights_RBHTT).sum(dim=-1),
            weights_RBHTT.sum(dim=-2).amax(dim=(1, 2, 3)),
        )


@dataclass(frozen=True)
class Taps:
    """The inside of one pass. ``stream[0]`` enters block 1, ``stream[n]`` leaves block n; ``middle[n]`` enters the MLP
    of block n + 1. ``gradients`` are dL/d stream, of the mean loss of the sampled tokens, where they were asked for."""

    stream: tuple[Tensor, ...]
    middle: tuple[Tensor, ...]
    attention: tuple[AttentionSummary, ...]
    logits_RBTV: Tensor
    gradients: tuple[Tensor, ...] = ()


def tapped(
    params: Mapping[str, Tensor],
    windows_RBT: Tensor,
    model: ModelConfig,
    fronts: Sequence[FrontEnd],
    dtype: torch.dtype,
    *,
    gradient: bool = False,
) -> Taps:
    """Run the pass on the windows (inputs and their targets)."""
    kept: dict[str, Tensor] = {}
    attention: dict[str, AttentionSummary] = {}

    def observe(name: str, scores: Tensor, weights: Tensor) -> None:
        attention[name] = AttentionSummary.of(scores, weights)

    forward = ForwardPass(
        {name: value.detach() for name, value in params.items()},
        model,
        fronts,
        dtype,
        attend=ObservedAttention(observe),
        keep=kept.__setitem__,
    )
    with torch.no_grad():
        x = forward.embed(windows_RBT[..., :-1])
    with torch.enable_grad() if gradient else torch.no_grad():
        logits = forward.decode(x.detach().requires_grad_(gradient))
        *_, (_, before_last), (_, last) = parts_of(model)
        stream = [kept["front"], *(kept[f"blocks.{number}.{last.name}"] for number in range(model.layers))]
        middle = [kept[f"blocks.{number}.{before_last.name}"] for number in range(model.layers)]
        gradients: tuple[Tensor, ...] = ()
        if gradient:
            gradients = torch.autograd.grad(loss_R(logits, windows_RBT[..., 1:]).sum(), stream)
    return Taps(
        tuple(x.detach() for x in stream),
        tuple(x.detach() for x in middle),
        tuple(attention.values()),
        logits.detach(),
        gradients,
    )


def on_device(table: NDArray[Any], device: torch.device) -> Tensor:
    """The table as a tensor there; the same one every time, so it is not to be written to."""
    return _kept(table.tobytes(), table.dtype.str, table.shape, device)


@cache  # a recorded look reads them where they are
def _kept(data: bytes, dtype: str, shape: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.from_numpy(np.frombuffer(data, dtype=dtype).reshape(shape).copy()).to(device)
