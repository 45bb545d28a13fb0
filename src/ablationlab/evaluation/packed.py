"""A forward pass over packed rows: a shared beginning followed by several endings that do not see each other.

A token of an ending has the position it would have had if its ending followed the beginning directly. So the beginning,
which the choices of an item share, is computed once, and every score is the one that the sequence alone would give, up to
rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ablationlab.model.attention import PackedAttention
from ablationlab.model.gpt import ForwardPass, Parameters
from ablationlab.records.settings import FrontEnd, ModelConfig


@torch.no_grad()
def packed_hidden(
    params: Parameters,
    tokens_BT: Tensor,
    positions_BT: Tensor,
    segments_BT: Tensor,
    model: ModelConfig,
    fronts: Sequence[FrontEnd],
) -> Tensor:
    """y_RBTD before the output head, in fp32, of every run of a stack on the same rows."""
    runs = len(fronts)
    forward = ForwardPass(params, model, fronts, attend=PackedAttention(segments_BT, runs))
    return forward.hidden(forward.embed(tokens_BT.expand(runs, -1, -1), positions_BT))


@torch.no_grad()
def head(params: Parameters, x_RND: Tensor, model: ModelConfig) -> Tensor:
    """logits_RNV of chosen vectors."""
    return ForwardPass(params, model, ()).head(x_RND[:, None])[:, 0]
