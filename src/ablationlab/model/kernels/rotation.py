"""Queries and keys turned by their positions, after an RMSNorm without gain where there is one, values as they are."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ablationlab.model.kernels.launch import launch

ELEMENTS = 2048  # of one tile: tokens times half of a head


@triton.jit(do_not_specialize=["rows", "time"])
def _turn(
    x_ptr, dy_ptr, cos_ptr, sin_ptr, out_ptr, rows, time, heads, size, eps,
    BACK: tl.constexpr, NORM: tl.constexpr, ROWS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    turned = head < 2 * heads  # the rest are values
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    half = size // 2
    column = tl.arange(0, HALF)
    mask = (row < rows)[:, None] & (column < half)[None, :]
    first = row[:, None] * (3 * heads * size) + head * size + column[None, :]
    angle = (row % time)[:, None] * half + column[None, :]
    cos = tl.where(turned, tl.load(cos_ptr + angle, mask=mask, other=0.0), 1.0)
    sin = tl.where(turned, tl.load(sin_ptr + angle, mask=mask, other=0.0), 0.0)
    if NORM:
        a = tl.load(x_ptr + first, mask=mask, other=0.0).to(tl.float32)
        b = tl.load(x_ptr + first + half, mask=mask, other=0.0).to(tl.float32)
        scale = tl.where(turned, 1.0 / tl.sqrt(tl.sum(a * a + b * b, axis=1) / size + eps), 1.0)[:, None]
        a *= scale
        b *= scale
    elif not BACK:
        a = tl.load(x_ptr + first, mask=mask, other=0.0).to(tl.float32)
        b = tl.load(x_ptr + first + half, mask=mask, other=0.0).to(tl.float32)
    if BACK:
        da = tl.load(dy_ptr + first, mask=mask, other=0.0).to(tl.float32)
        db = tl.load(dy_ptr + first + half, mask=mask, other=0.0).to(tl.float32)
        left = da * cos + db * sin
        right = db * cos - da * sin
        if NORM:
            along = tl.where(turned, tl.sum(left * a + right * b, axis=1) / size, 0.0)[:, None]
            left = (left - a * along) * scale
            right = (right - b * along) * scale
    else:
        left = a * cos - b * sin
        right = b * cos + a * sin
    tl.store(out_ptr + first, left.to(out_ptr.dtype.element_ty), mask=mask)
    tl.store(out_ptr + first + half, right.to(out_ptr.dtype.element_ty), mask=mask)


def _run(x: Tensor, dy: Tensor | None, cos: Tensor, sin: Tensor, heads: int, eps: float | None) -> Tensor:
    time, columns = x.shape[-2:]
    size, rows = columns // 3 // heads, x.numel() // columns
    half = triton.next_power_of_2(size // 2)
    tile = max(1, ELEMENTS // half)
    out = torch.empty_like(x)
    launch(
        _turn, (triton.cdiv(rows, tile), 3 * heads), x, x if dy is None else dy, cos, sin, out,
        rows, time, heads, size, eps or 0.0,
        BACK=dy is not None, NORM=eps is not None, ROWS=tile, HALF=half,
    )  # fmt: skip
    return out


class Turn(torch.autograd.Function):
    """qkv_RBTC with its queries and keys normed (*eps* is not None) and turned by the angles of cos and sin_(T, size/2)."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor, heads: int, eps: float | None) -> Tensor:
        qkv = qkv.contiguous()
        ctx.save_for_backward(qkv, cos, sin)
        ctx.heads, ctx.eps = heads, eps
        return _run(qkv, None, cos, sin, heads, eps)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient of qkv."""
        qkv, cos, sin = ctx.saved_tensors
        return _run(qkv, dy.contiguous(), cos, sin, ctx.heads, ctx.eps), None, None, None, None
