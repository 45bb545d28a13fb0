"""The forward pass with its inside kept, on a few sequences; what is large (attention) is reduced on the spot, so that one
pass serves every probe. With ``gradient`` the residual stream is differentiated too; no gradient of a parameter is ever made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ablationlab.model.attention import ObservedAttention
from ablationlab.model.gpt import ForwardPass
from ablationlab.model.ops import loss_R
from ablationlab.model.parts import parts_of
from ablationlab.records.settings import FrontEnd, ModelConfig


@dataclass(frozen=True)
class Attention:
    """What is kept of one block's attention."""

    logit_max_R: Tensor
    entropy_RBHT: Tensor  # of every query, in nats
    column_max_R: Tensor  # largest sum of a column of an attention matrix: what one key receives from all queries

    @classmethod
    @torch.no_grad()
    def of(cls, scores_RBHTT: Tensor, weights_RBHTT: Tensor) -> Attention:
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
    attention: tuple[Attention, ...]
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
    attention: dict[str, Attention] = {}

    def observe(name: str, scores: Tensor, weights: Tensor) -> None:
        attention[name] = Attention.of(scores, weights)

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
