"""g = GELU(h + b) in GPT-2's tanh form, and its backward with the bias's gradient.

With u = √(2/π) (z + 0.044715 z³), (1 + tanh u) / 2 is the logistic function s of 2u, so GELU(z) = z · s and its slope is
s + z · s (1 - s) · 2u'.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ablationlab.model.kernels.launch import launch

ROWS, BLOCK = 16, 512
ROWS_PER_PROGRAM = 32


@triton.jit
def _logistic(z):
    return 1.0 / (1.0 + tl.exp(-1.5957691216057308 * (z + 0.044715 * z * z * z)))


@triton.jit(do_not_specialize=["rows"])
def _gelu_forward(
    h_ptr, b_ptr, g_ptr, b_stride, rows, width,
    HAS_BIAS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    mask = (row < rows)[:, None] & inside[None, :]
    at = (run * rows + row)[:, None] * width + column[None, :]
    z = tl.load(h_ptr + at, mask=mask, other=0.0).to(tl.float32)
    if HAS_BIAS:
        z += tl.load(b_ptr + run * b_stride + column, mask=inside, other=0.0)[None, :]
    tl.store(g_ptr + at, (z * _logistic(z)).to(g_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows"])
def _gelu_backward(
    dg_ptr, h_ptr, b_ptr, dh_ptr, parts_ptr, b_stride, rows, width,
    HAS_BIAS: tl.constexpr, TILES: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(2).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    db = tl.zeros((BLOCK,), dtype=tl.float32)
    for tile in range(TILES):
        row = (tl.program_id(0) * TILES + tile) * ROWS + tl.arange(0, ROWS)
        mask = (row < rows)[:, None] & inside[None, :]
        at = (run * rows + row)[:, None] * width + column[None, :]
        z = tl.load(h_ptr + at, mask=mask, other=0.0).to(tl.float32)
        if HAS_BIAS:
            z += tl.load(b_ptr + run * b_stride + column, mask=inside, other=0.0)[None, :]
        s = _logistic(z)
        slope = s + z * s * (1.0 - s) * 1.5957691216057308 * (1.0 + 0.134145 * z * z)
        dg = tl.load(dg_ptr + at, mask=mask, other=0.0).to(tl.float32)
        dh = dg * slope
        tl.store(dh_ptr + at, dh.to(dh_ptr.dtype.element_ty), mask=mask)
        db += tl.sum(tl.where(mask, dh, 0.0), axis=0)
    if HAS_BIAS:
        tl.store(parts_ptr + (run * tl.num_programs(0) + tl.program_id(0)) * width + column, db, mask=inside)


class BiasGelu(torch.autograd.Function):
    """GELU(h + b) for h_R…D and b_RD or no b."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, b: Tensor | None) -> Tensor:
        """Saves h, not h + b: the sum is made again in the backward pass."""
        h = h.contiguous()
        runs, width = h.shape[0], h.shape[-1]
        rows = h.numel() // (runs * width)
        g = torch.empty_like(h)
        launch(
            _gelu_forward, (triton.cdiv(rows, ROWS), triton.cdiv(width, BLOCK), runs),
            h, b if b is not None else h, g, b.stride(0) if b is not None else 0, rows, width,
            HAS_BIAS=b is not None, ROWS=ROWS, BLOCK=BLOCK,
        )  # fmt: skip
        ctx.save_for_backward(h, *(() if b is None else (b,)))
        ctx.shape = runs, rows, width
        return g

    @staticmethod
    def backward(ctx: Any, dg: Tensor) -> tuple[Tensor, Tensor | None]:
        """Gradients of h and b."""
        h, *rest = ctx.saved_tensors
        b = rest[0] if rest else None
        runs, rows, width = ctx.shape
        dg, dh = dg.contiguous(), torch.empty_like(h)
        tiles = ROWS_PER_PROGRAM // ROWS
        programs = triton.cdiv(rows, ROWS_PER_PROGRAM)
        parts = torch.empty(runs, programs, width, device=h.device)
        launch(
            _gelu_backward, (programs, triton.cdiv(width, BLOCK), runs),
            dg, h, b if b is not None else h, dh, parts, b.stride(0) if b is not None else 0, rows, width,
            HAS_BIAS=b is not None, TILES=tiles, ROWS=ROWS, BLOCK=BLOCK,
        )  # fmt: skip
        return dh, None if b is None else parts.sum(dim=1)
