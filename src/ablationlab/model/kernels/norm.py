"""x' = x + (o + b) and y = LayerNorm(x') · gain + bias, or RMSNorm, in one pass forward and one pass backward."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ablationlab.model.kernels.launch import launch

NARROW = 512
ELEMENTS = 4096, 2048  # of one tile, up to that width and beyond it
ROWS_PER_PROGRAM = 32  # whose column sums are taken together in the backward pass


@triton.jit(do_not_specialize=["rows"])
def _norm_forward(
    x_ptr, o_ptr, ob_ptr, gain_ptr, bias_ptr, sum_ptr, y_ptr, mean_ptr, rstd_ptr,
    ob_stride, gain_stride, bias_stride, rows, width, eps,
    ADD: tl.constexpr, OUT_BIAS: tl.constexpr, CENTER: tl.constexpr, GAIN: tl.constexpr, BIAS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = column < width
    mask = (row < rows)[:, None] & inside[None, :]
    at = (run * rows + row)[:, None] * width + column[None, :]
    x = tl.load(x_ptr + at, mask=mask, other=0.0)
    if ADD:
        o = tl.load(o_ptr + at, mask=mask, other=0.0).to(tl.float32)
        if OUT_BIAS:
            o += tl.load(ob_ptr + run * ob_stride + column, mask=inside, other=0.0)[None, :]
        x += o
        tl.store(sum_ptr + at, x, mask=mask)
    centred = x
    if CENTER:
        mean = tl.sum(x, axis=1) / width
        centred = tl.where(mask, x - mean[:, None], 0.0)
        tl.store(mean_ptr + run * rows + row, mean, mask=row < rows)
    rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=1) / width + eps)
    y = centred * rstd[:, None]
    if GAIN:
        y *= tl.load(gain_ptr + run * gain_stride + column, mask=inside, other=0.0)[None, :]
    if BIAS:
        y += tl.load(bias_ptr + run * bias_stride + column, mask=inside, other=0.0)[None, :]
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=mask)
    tl.store(rstd_ptr + run * rows + row, rstd, mask=row < rows)


@triton.jit(do_not_specialize=["rows"])
def _norm_backward(
    dy_ptr, dsum_ptr, x_ptr, gain_ptr, mean_ptr, rstd_ptr, dx_ptr, do_ptr, parts_ptr,
    gain_stride, rows, width,
    PASSED: tl.constexpr, ADD: tl.constexpr, CENTER: tl.constexpr, GAIN: tl.constexpr, TILES: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(1).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    if GAIN:
        gain = tl.load(gain_ptr + run * gain_stride + column, mask=inside, other=0.0)
    dgain = tl.zeros((BLOCK,), dtype=tl.float32)
    dbias = tl.zeros((BLOCK,), dtype=tl.float32)
    dout = tl.zeros((BLOCK,), dtype=tl.float32)
    for tile in range(TILES):
        row = (tl.program_id(0) * TILES + tile) * ROWS + tl.arange(0, ROWS)
        mask = (row < rows)[:, None] & inside[None, :]
        at = (run * rows + row)[:, None] * width + column[None, :]
        dy = tl.load(dy_ptr + at, mask=mask, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + at, mask=mask, other=0.0)
        if CENTER:
            x -= tl.load(mean_ptr + run * rows + row, mask=row < rows, other=0.0)[:, None]
        rstd = tl.load(rstd_ptr + run * rows + row, mask=row < rows, other=0.0)
        normed = tl.where(mask, x * rstd[:, None], 0.0)
        dgain += tl.sum(dy * normed, axis=0)
        dbias += tl.sum(dy, axis=0)
        scaled = dy
        if GAIN:
            scaled = dy * gain[None, :]
        along = tl.sum(scaled * normed, axis=1) / width
        dx = scaled - normed * along[:, None]
        if CENTER:
            dx -= (tl.sum(scaled, axis=1) / width)[:, None]
        dx *= rstd[:, None]
        if PASSED:
            dx += tl.load(dsum_ptr + at, mask=mask, other=0.0)
        tl.store(dx_ptr + at, dx, mask=mask)
        if ADD:
            tl.store(do_ptr + at, dx.to(do_ptr.dtype.element_ty), mask=mask)
            dout += tl.sum(tl.where(mask, dx, 0.0), axis=0)
    part = (run * tl.num_programs(0) + tl.program_id(0)) * 3 * width + column
    tl.store(parts_ptr + part, dgain, mask=inside)
    tl.store(parts_ptr + part + width, dbias, mask=inside)
    tl.store(parts_ptr + part + 2 * width, dout, mask=inside)


def _tile(width: int) -> tuple[int, int]:
    block = triton.next_power_of_2(width)
    return max(1, ELEMENTS[width > NARROW] // block), block


def _run_forward(
    x: Tensor, o: Tensor | None, ob: Tensor | None, gain: Tensor | None, bias: Tensor | None, eps: float,
    dtype: torch.dtype, center: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """x', y, mean and 1/std per row; of an RMSNorm the mean is unset."""
    runs, width = x.shape[0], x.shape[-1]
    rows = x.numel() // (runs * width)
    total = torch.empty_like(x) if o is not None else x
    y = torch.empty_like(x, dtype=dtype)
    mean, rstd = (torch.empty(runs, rows, device=x.device) for _ in range(2))
    tile, block = _tile(width)
    launch(
        _norm_forward, (triton.cdiv(rows, tile), runs),
        x, x if o is None else o, x if ob is None else ob, x if gain is None else gain, x if bias is None else bias,
        total, y, mean, rstd,
        *(0 if value is None else value.stride(0) for value in (ob, gain, bias)), rows, width, eps,
        ADD=o is not None, OUT_BIAS=ob is not None, CENTER=center, GAIN=gain is not None, BIAS=bias is not None,
        ROWS=tile, BLOCK=block,
    )  # fmt: skip
    return total, y, mean, rstd


def _run_backward(
    dy: Tensor, dsum: Tensor | None, total: Tensor, gain: Tensor | None, mean: Tensor, rstd: Tensor,
    out: torch.dtype | None, center: bool,
) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...]]:  # fmt: skip
    """Gradients of x, of o (in its own precision), and of gain, bias and o's bias."""
    runs, width = total.shape[0], total.shape[-1]
    rows = total.numel() // (runs * width)
    dx = torch.empty_like(total)
    do = None if out is None else torch.empty_like(total, dtype=out)
    tile, block = _tile(width)
    tiles = max(1, ROWS_PER_PROGRAM // tile)
    programs = triton.cdiv(rows, tile * tiles)
    parts = torch.empty(runs, programs, 3, width, device=total.device)
    launch(
        _norm_backward, (programs, runs),
        dy.contiguous(), dx if dsum is None else dsum.contiguous(), total, total if gain is None else gain, mean, rstd,
        dx, dx if do is None else do, parts, 0 if gain is None else gain.stride(0), rows, width,
        PASSED=dsum is not None, ADD=do is not None, CENTER=center, GAIN=gain is not None, TILES=tiles, ROWS=tile,
        BLOCK=block,
    )  # fmt: skip
    return dx, do, parts.sum(dim=1).unbind(1)


class Norm(torch.autograd.Function):
    """y = LayerNorm(x) · gain + bias, or RMSNorm, for x_R…D in fp32 and each run's own gain_RD and bias_RD."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gain: Tensor | None, bias: Tensor | None, eps: float, dtype: torch.dtype, center: bool
    ) -> Tensor:
        """y in *dtype*."""
        x = x.contiguous()
        _, y, mean, rstd = _run_forward(x, None, None, gain, bias, eps, dtype, center)
        ctx.save_for_backward(x, gain, mean, rstd)
        ctx.has_bias, ctx.center = bias is not None, center
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of x, gain and bias."""
        total, gain, mean, rstd = ctx.saved_tensors
        dx, _, (dgain, dbias, _) = _run_backward(dy, None, total, gain, mean, rstd, None, ctx.center)
        return dx, None if gain is None else dgain, dbias if ctx.has_bias else None, None, None, None


class AddNorm(torch.autograd.Function):
    """x' = x + (o + ob) and y = LayerNorm(x') · gain + bias, or RMSNorm; x in fp32, o in any precision."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, o: Tensor, ob: Tensor | None, gain: Tensor | None, bias: Tensor | None, eps: float,
        dtype: torch.dtype, center: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """(x', y), y in *dtype*."""
        total, y, mean, rstd = _run_forward(x.contiguous(), o.contiguous(), ob, gain, bias, eps, dtype, center)
        ctx.save_for_backward(total, gain, mean, rstd)
        ctx.out, ctx.has, ctx.center = o.dtype, (ob is not None, bias is not None), center
        ctx.set_materialize_grads(False)
        return total, y

    @staticmethod
    def backward(ctx: Any, dsum: Tensor | None, dy: Tensor | None) -> tuple[Tensor | None, ...]:
        """Gradients of x, o, ob, gain and bias."""
        total, gain, mean, rstd = ctx.saved_tensors
        dy = torch.zeros_like(total) if dy is None else dy
        dx, do, (dgain, dbias, dob) = _run_backward(dy, dsum, total, gain, mean, rstd, ctx.out, ctx.center)
        has_ob, has_bias = ctx.has
        gradients = dob if has_ob else None, None if gain is None else dgain, dbias if has_bias else None
        return dx, do, *gradients, None, None, None
