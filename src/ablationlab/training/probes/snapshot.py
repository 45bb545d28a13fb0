"""What a probe sees: a stack right after one step, as plain tensors. And what it gives back: readings.

Shape suffixes: R runs, P parameters of a row, B sequences, T tokens, D width, V vocabulary, N points of a distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ablationlab.model.parameters import Parameter, parameters
from ablationlab.records.settings import FrontEnd, ModelConfig, TrainingConfig
from ablationlab.training.probes.feed import Feed
from ablationlab.training.probes.taps import Taps, tapped
from ablationlab.training.probes.vocabulary import Vocabulary

# Tokens of a run's batch that the tapped pass reads: the first sequences of the batch, at least one.
SAMPLED_TOKENS = 256


class Layout(Protocol):
    """Where each parameter lives in a row of a flat buffer (`training.stack.Layout`)."""

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters, in order."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Their slots' sizes."""

    def views(self, flat_RP: Tensor) -> dict[str, Tensor]:
        """Each parameter with its run axis."""


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
class Snapshot:
    """A stack after ``step``. Rows are runs (and the padding behind them); buffers are read, never written.

    ``gradient_RP`` is the gradient of the step before clipping, ``before_RP`` the weights it was taken at, ``v_RP``
    Adam's second moment after it, ``windows_RBT`` the tokens of the step's batch with their targets (context + 1).
    """

    step: int
    model: ModelConfig
    training: TrainingConfig
    fronts: tuple[FrontEnd, ...]
    layout: Layout
    weights_RP: Tensor
    before_RP: Tensor
    gradient_RP: Tensor
    v_RP: Tensor
    alive_R: Tensor
    windows_RBT: Tensor
    dtype: torch.dtype
    seeds: tuple[int, ...]
    vocabulary: Vocabulary
    feed: Feed
    backward: bool = False  # whether the tapped pass is differentiated; so where a probe that needs it is due

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        """The weights by name."""
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
