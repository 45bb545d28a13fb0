"""Ways to attend: what stands between the queries, keys and values of a block and the output of its heads.

The forward pass attends causally. Dropout drops attention weights by name, scoring attends over packed rows, and probes need
the attention matrices themselves; each is an `Attend` that a `ForwardPass` is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ablationlab.model.dropout import Dropout
from ablationlab.model.ops import causal_attention, masked_attention, packs, short_attention


class Attend(Protocol):
    """y_RBTD of qkv_RBTC, where queries, keys and values stand side by side in the last axis."""

    def adds_bias(self, y: Tensor, heads: int) -> bool:
        """Whether it adds the bias of the layer before it, whose input is y_RBTD; a kernel may."""
        ...

    def __call__(self, qkv_RBTC: Tensor, bias_RC: Tensor | None, heads: int, name: str) -> Tensor:
        """*name* is that of the block's attention; *bias_RC* is left to be added, or None."""
        ...


class CausalAttention:
    """Every token attends to itself and to all before it."""

    def adds_bias(self, y: Tensor, heads: int) -> bool:
        return short_attention(y, y.shape[2], y.shape[3] // heads)

    def __call__(self, qkv_RBTC: Tensor, bias_RC: Tensor | None, heads: int, name: str) -> Tensor:
        return causal_attention(qkv_RBTC, bias_RC, heads)


@dataclass(frozen=True)
class DroppedAttention:
    """The same with some of its weights dropped. Fused attention takes no named mask, so this is the plain form."""

    dropout: Dropout

    def adds_bias(self, y: Tensor, heads: int) -> bool:
        return False

    def __call__(self, qkv_RBTC: Tensor, bias_RC: Tensor | None, heads: int, name: str) -> Tensor:
        weights, values = masked_attention(qkv_RBTC, heads)
        R, B, T, columns = qkv_RBTC.shape
        return (self.dropout(weights, name) @ values).transpose(2, 3).reshape(R, B, T, columns // 3)


@dataclass(frozen=True)
class ObservedAttention:
    """Causal attention written out; *observe* sees scores_RBHTT (future keys at -inf) and weights_RBHTT of every block."""

    observe: Callable[[str, Tensor, Tensor], None]

    def adds_bias(self, y: Tensor, heads: int) -> bool:
        return False

    def __call__(self, qkv_RBTC: Tensor, bias_RC: Tensor | None, heads: int, name: str) -> Tensor:
        R, B, T, columns = qkv_RBTC.shape
        q, k, v = qkv_RBTC.view(R * B, T, 3, heads, columns // 3 // heads).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)).float() / math.sqrt(q.shape[-1])
        future = torch.ones(T, T, dtype=torch.bool, device=qkv_RBTC.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
        weights: Tensor = scores.softmax(dim=-1)
        self.observe(name, scores.detach().view(R, B, heads, T, T), weights.detach().view(R, B, heads, T, T))
        y: Tensor = weights.to(qkv_RBTC.dtype) @ v
        return y.transpose(1, 2).reshape(R, B, T, columns // 3)


@dataclass(frozen=True, eq=False)
class PackedAttention:
    """Attention over packed rows: a shared beginning followed by several endings that do not see each other.

        row = prefix ‖ tail_1 ‖ ... ‖ tail_n

    A token of a tail attends to the whole prefix and to its own tail up to itself. In ``segments_BT`` 0 is the prefix,
    1.. are the tails and -1 is padding. What all blocks share is made once.
    """

    segments_BT: Tensor
    runs: int

    def adds_bias(self, y: Tensor, heads: int) -> bool:
        return packs(y, y.shape[3] // heads)

    def __call__(self, qkv_RBTC: Tensor, bias_RC: Tensor | None, heads: int, name: str) -> Tensor:
        if packs(qkv_RBTC, qkv_RBTC.shape[3] // 3 // heads):
            from ablationlab.model.kernels.attention import packed_attention

            return packed_attention(qkv_RBTC, bias_RC, self.segments_BT, heads)
        return plain_attention(qkv_RBTC, self.added, heads)

    @cached_property
    def added(self) -> Tensor:
        """What is added to the scores, 0 or minus infinity, of every row of every run."""
        mask_BTT = packed_mask(self.segments_BT)
        added = torch.zeros(mask_BTT.shape, device=mask_BTT.device).masked_fill_(~mask_BTT, float("-inf"))
        return added.expand(self.runs, -1, -1, -1).flatten(0, 1)[:, None]


def plain_attention(qkv_RBTC: Tensor, added: Tensor, heads: int) -> Tensor:
    """y_RBTD of torch's own attention, with something added to the scores; what the kernel must agree with."""
    R, B, T, columns = qkv_RBTC.shape
    q, k, v = qkv_RBTC.view(R * B, T, 3, heads, columns // 3 // heads).permute(2, 0, 3, 1, 4)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=added)
    return y.transpose(1, 2).reshape(R, B, T, columns // 3)


def packed_mask(segments_BT: Tensor) -> Tensor:
    """mask_BTT[b, i, j]: whether token i of packed row b may attend to token j."""
    length = segments_BT.shape[-1]
    causal = torch.ones(length, length, dtype=torch.bool, device=segments_BT.device).tril()
    query, key = segments_BT[:, :, None], segments_BT[:, None, :]
    allowed = ((key == 0) | (key == query)) & causal
    # Padding attends to itself, so that its rows are finite; nothing attends to padding.
    return allowed | torch.eye(length, dtype=torch.bool, device=segments_BT.device)
