"""One forward pass with its inside kept: the model's own arithmetic on a few sequences, attention written out.

Dropout is off. Everything the pass keeps is reduced on the spot where it is large (attention), so that one pass serves every
probe. With ``gradient`` the residual stream is differentiated too; no gradient of a parameter is ever made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ablationlab.model.gpt import embed, layer_norm, linear, mlp
from ablationlab.model.ops import add, loss_R
from ablationlab.records.settings import FrontEnd, ModelConfig


@dataclass(frozen=True)
class Attention:
    """What is kept of one block's attention."""

    logit_max_R: Tensor
    entropy_RBHT: Tensor  # of every query, in nats
    column_max_R: Tensor  # largest sum of a column of an attention matrix: what one key receives from all queries


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
    params = {name: value.detach() for name, value in params.items()}
    with torch.no_grad():
        x = embed(params, windows_RBT[..., :-1], model, fronts)
    with torch.enable_grad() if gradient else torch.no_grad():
        x = x.detach().requires_grad_(gradient)
        stream, middle, attentions = [x], [], []
        for i in range(model.layers):
            block = f"blocks.{i}"
            y, kept = _attention(params, layer_norm(params, f"{block}.norm1", x, model, dtype), block, model, dtype)
            x = x + y
            middle.append(x)
            x = add(x, *mlp(params, layer_norm(params, f"{block}.norm2", x, model, dtype), block, model, dtype, None))
            stream.append(x)
            attentions.append(kept)
        last = layer_norm(params, "final_norm", x, model) if model.final_norm else x
        head = params["tok.weight"] if model.tied else params["head.weight"]
        logits = linear(last, head.transpose(1, 2), params.get("head.bias"), dtype).float()
        gradients: tuple[Tensor, ...] = ()
        if gradient:
            gradients = torch.autograd.grad(loss_R(logits, windows_RBT[..., 1:]).sum(), stream)
    return Taps(
        tuple(one.detach() for one in stream),
        tuple(one.detach() for one in middle),
        tuple(attentions),
        logits.detach(),
        gradients,
    )


def _attention(
    params: Mapping[str, Tensor], x: Tensor, block: str, model: ModelConfig, dtype: torch.dtype
) -> tuple[Tensor, Attention]:
    """Causal self-attention with its matrices in hand."""
    R, B, T, D = x.shape
    qkv = linear(x, params[f"{block}.attn.qkv.weight"], params.get(f"{block}.attn.qkv.bias"), dtype)
    q, k, v = qkv.view(R * B, T, 3, model.heads, D // model.heads).permute(2, 0, 3, 1, 4)
    scores = (q @ k.transpose(-1, -2)).float() / math.sqrt(q.shape[-1])
    future = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
    scores = scores.masked_fill(future, float("-inf"))
    weights = scores.softmax(dim=-1)
    with torch.no_grad():
        seen = scores.detach().view(R, B, model.heads, T, T)
        share = weights.detach().view(R, B, model.heads, T, T)
        kept = Attention(
            seen.amax(dim=(1, 2, 3, 4)),
            torch.special.entr(share).sum(dim=-1),
            share.sum(dim=-2).amax(dim=(1, 2, 3)),
        )
    y = (weights.to(dtype) @ v).transpose(1, 2).reshape(R, B, T, D)
    return linear(y, params[f"{block}.attn.out.weight"], params.get(f"{block}.attn.out.bias"), dtype), kept
