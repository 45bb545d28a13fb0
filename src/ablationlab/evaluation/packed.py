"""A forward pass over packed rows: a shared beginning followed by several endings that do not see each other.

    row = prefix ‖ tail_1 ‖ ... ‖ tail_n

A token of a tail attends to the whole prefix and to its own tail up to itself, and has the position it would have had if the
tail followed the prefix directly. So the prefix, which the choices of an item share, is computed once, and every score is
the one that the sequence alone would give, up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ablationlab.config import FrontEnd, ModelConfig
from ablationlab.model import Parameters, front_ends, layer_norm, linear, look_up, mlp
from ablationlab.ops import add


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
    mask_BTT: Tensor,
    model: ModelConfig,
    fronts: Sequence[FrontEnd],
) -> Tensor:
    """x_RBTD before the output head, in fp32, of every run of a stack on the same rows."""
    runs = len(fronts)
    x = _embed(params, tokens_BT.expand(runs, -1, -1), positions_BT, fronts)
    bias = _added(mask_BTT, runs)
    for i in range(model.layers):
        block = f"blocks.{i}"
        x = x + _attention(params, layer_norm(params, f"{block}.norm1", x, model), block, model, bias)
        y = layer_norm(params, f"{block}.norm2", x, model)
        x = add(x, *mlp(params, y, block, model, torch.float32, None))
    return layer_norm(params, "final_norm", x, model) if model.final_norm else x


@torch.no_grad()
def head(params: Parameters, x_RND: Tensor, model: ModelConfig) -> Tensor:
    """logits_RNV of chosen vectors."""
    weight = params["tok.weight"] if model.tied else params["head.weight"]
    return linear(x_RND[:, None], weight.transpose(1, 2), params.get("head.bias"), torch.float32)[:, 0]


def _embed(params: Parameters, tokens_RBT: Tensor, positions_BT: Tensor, fronts: Sequence[FrontEnd]) -> Tensor:
    tok = look_up(params["tok.weight"], tokens_RBT)
    pos = params["pos.weight"][:, positions_BT]
    return front_ends(params, tok, pos, fronts)


def _added(mask_BTT: Tensor, runs: int) -> Tensor:
    """What is added to the scores, 0 or minus infinity, of every row of every run: made once for all layers."""
    added = torch.zeros(mask_BTT.shape, device=mask_BTT.device).masked_fill_(~mask_BTT, float("-inf"))
    return added.expand(runs, -1, -1, -1).flatten(0, 1)[:, None]


def _attention(params: Parameters, x: Tensor, block: str, model: ModelConfig, bias: Tensor) -> Tensor:
    R, B, T, D = x.shape
    qkv = linear(x, params[f"{block}.attn.qkv.weight"], params.get(f"{block}.attn.qkv.bias"), torch.float32)
    q, k, v = qkv.view(R * B, T, 3, model.heads, D // model.heads).permute(2, 0, 3, 1, 4)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    y = y.transpose(1, 2).reshape(R, B, T, D)
    return linear(y, params[f"{block}.attn.out.weight"], params.get(f"{block}.attn.out.bias"), torch.float32)
