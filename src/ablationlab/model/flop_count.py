"""Matrix-product FLOPs of a model, counted instead of declared: on torch's meta device, which computes nothing."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from ablationlab.model.gpt import ForwardPass
from ablationlab.model.parameters import parameters
from ablationlab.records.settings import ModelConfig


def counted_flops_per_token(model: ModelConfig) -> int:
    """As `matmul_flops_per_token` has it: of one training token, whose backward pass costs twice the forward one.

    Code that makes tensors on another device than its inputs', or decides by their values, raises whatever it raises there.
    """
    params = {each.name: torch.empty((1, *each.shape), device="meta") for each in parameters(model)}
    tokens = torch.zeros(1, 1, model.context, dtype=torch.int64, device="meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        ForwardPass(params, model, [model.front]).logits(tokens)
    return 3 * int(counter.get_total_flops()) // model.context
