"""y = x / keep where a unit is kept, else 0: the named masks of `ablationlab.model.dropout`, made and used in one pass.

The mask is a hash of (run's key, sample, element), so the backward pass makes it again instead of keeping it. As plain torch
the hash alone is some twenty passes over an integer tensor of the size of x.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ablationlab.model.kernels.launch import launch

BLOCK = 4096


@triton.jit
def _mix(x):
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
    x = (x ^ ((x >> 15) & 0x1FFFF)) * -2073254261
    return x ^ ((x >> 16) & 0xFFFF)


@triton.jit(do_not_specialize=["first_sample", "limit"])
def _drop(
    x_ptr, keys_ptr, y_ptr, samples, elements, first_sample, limit, scale,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)  # run x sample
    run, sample = row // samples, row % samples
    key = _mix(_mix((sample + first_sample) ^ tl.load(keys_ptr + run * 2)) ^ tl.load(keys_ptr + run * 2 + 1))
    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = element < elements
    keep = (_mix(_mix(element ^ key) + key) & 0x7FFFFFFF) < limit
    at = row.to(tl.int64) * elements + element
    x = tl.load(x_ptr + at, mask=inside & keep, other=0.0).to(tl.float32)
    tl.store(y_ptr + at, (x * scale).to(y_ptr.dtype.element_ty), mask=inside)


class Drop(torch.autograd.Function):
    """x_RB… with units dropped by the masks of keys_R2; samples count from *first_sample*."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, keys_R2: Tensor, first_sample: int, rate: float) -> Tensor:
        """Saves the keys alone."""
        ctx.save_for_backward(keys_R2)
        ctx.how = first_sample, rate
        return dropped(x, keys_R2, first_sample, rate)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        """The same mask on the gradient."""
        (keys_R2,) = ctx.saved_tensors
        return dropped(dy, keys_R2, *ctx.how), None, None, None


def dropped(x: Tensor, keys_R2: Tensor, first_sample: int, rate: float) -> Tensor:
    """One launch, over run x sample and over blocks of elements."""
    x, keys = x.contiguous(), keys_R2.contiguous()
    runs, samples = x.shape[:2]
    elements = x.numel() // (runs * samples)
    y = torch.empty_like(x)
    launch(
        _drop, (runs * samples, triton.cdiv(elements, BLOCK)),
        x, keys, y, samples, elements, first_sample, int((1 - rate) * 2**31), 1 / (1 - rate),
        BLOCK=BLOCK,
    )  # fmt: skip
    return y
