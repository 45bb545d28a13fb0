"""A forward pass over packed rows: a shared beginning followed by several endings that do not see each other.

    row = prefix ‖ tail_1 ‖ ... ‖ tail_n

A token of a tail attends to the whole prefix and to its own tail up to itself, and has the position it would have had if the
tail followed the prefix directly. So the prefix, which the choices of an item share, is computed once, and every score is
the one that the sequence alone would give, up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ablationlab.model.dropout import Dropout
from ablationlab.model.gpt import Parameters, block, front_ends, layer, linear, look_up, transform
from ablationlab.model.ops import packs
from ablationlab.records.settings import FrontEnd, ModelConfig


def packed_mask(segments_BT: Tensor) -> Tensor:
    """mask_BTT[b, i, j]: whether i may attend to j. Segment 0 is the prefix, 1.. the tails, -1 padding."""
    length = segments_BT.shape[-1]
    causal = torch.ones(length, length, dtype=torch.bool, device=segments_BT.device).tril()
    query, key = segments_BT[:, :, None], segments_BT[:, None, :]
    allowed = ((key == 0) | (key == query)) & causal
    # Padding attends to itself, so that its rows are finite; nothing attends to padding.
    return allowed | torch.eye(length, dtype=torch.bool, device=segments_BT.device)


@torch.no_grad()
def packed_hidden(
    params: Parameters,
    tokens_BT: Tensor,
    positions_BT: Tensor,
    segments_BT: Tensor,
    model: ModelConfig,
    fronts: Sequence[FrontEnd],
) -> Tensor:
    """x_RBTD before the output head, in fp32, of every run of a stack on the same rows."""
    runs = len(fronts)
    x = _embed(params, tokens_BT.expand(runs, -1, -1), positions_BT, fronts)
    through = partial(block, attend=_Attend(segments_BT, runs))
    return transform(params, x, model, torch.float32, torch.float32, None, through)


class _Attend:
    """Attention over packed rows, in the place of causal attention; what all layers share of it is made once."""

    def __init__(self, segments_BT: Tensor, runs: int) -> None:
        self.segments_BT, self.runs = segments_BT, runs

    @cached_property
    def added(self) -> Tensor:
        """What is added to the scores, 0 or minus infinity, of every row of every run."""
        mask_BTT = packed_mask(self.segments_BT)
        added = torch.zeros(mask_BTT.shape, device=mask_BTT.device).masked_fill_(~mask_BTT, float("-inf"))
        return added.expand(self.runs, -1, -1, -1).flatten(0, 1)[:, None]

    def __call__(
        self, params: Parameters, y: Tensor, name: str, model: ModelConfig, dtype: torch.dtype, dropout: Dropout | None
    ) -> tuple[Tensor, Tensor | None]:
        """As `model.attention`: its output, and a bias that the reader of it still has to add."""
        size = y.shape[3] // model.heads
        kernel = packs(y, size)
        qkv, bias = layer(params, y, f"{name}.attn.qkv", dtype, keep_bias=not kernel)
        if kernel:
            from ablationlab.model.kernels.packed_attention import packed_attention

            a = packed_attention(qkv, bias, self.segments_BT, model.heads)
        else:
            a = plain_attention(qkv, self.added, model.heads)
        return layer(params, a, f"{name}.attn.out", dtype)


def plain_attention(qkv_RBTC: Tensor, added: Tensor, heads: int) -> Tensor:
    """y_RBTD of torch's own attention; what the kernel must agree with."""
    R, B, T, columns = qkv_RBTC.shape
    q, k, v = qkv_RBTC.view(R * B, T, 3, heads, columns // 3 // heads).permute(2, 0, 3, 1, 4)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=added)
    return y.transpose(1, 2).reshape(R, B, T, columns // 3)


@torch.no_grad()
def head(params: Parameters, x_RND: Tensor, model: ModelConfig) -> Tensor:
    """logits_RNV of chosen vectors."""
    weight = params["tok.weight"] if model.tied else params["head.weight"]
    return linear(x_RND[:, None], weight.transpose(1, 2), params.get("head.bias"), torch.float32)[:, 0]


def _embed(params: Parameters, tokens_RBT: Tensor, positions_BT: Tensor, fronts: Sequence[FrontEnd]) -> Tensor:
    tok = look_up(params["tok.weight"], tokens_RBT)
    pos = params["pos.weight"][:, positions_BT]
    return front_ends(params, tok, pos, fronts)
