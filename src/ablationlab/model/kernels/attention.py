"""Causal self-attention for short contexts, and attention over packed rows (forward alone).

Both read queries, keys and values where the linear layer left them (…, T, 3 · heads · size) and add that layer's bias on the
way: no transposes, no copies. For short contexts one program per sequence and head keeps the whole score matrix on chip, and
writes the gradient back in the same layout.

A packed row is a prefix and several tails that see it, and themselves, but not each other. One program takes some queries of
one row and head and goes through the keys up to them, keeping the largest score and the sum so far: no mask is written out.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ablationlab.model.kernels.launch import launch

LONGEST = 128  # context whose scores fit on chip
SIZES = (16, 32, 64)  # of a head
QUERIES, WARPS = 128, 4  # whose scores are held at once, and by how many warps
EXACT_QUERIES = 32  # in fp32 without matrix units, where products take more registers


@triton.jit
def _load(ptr, b_ptr, offset, at, mask, b_at, HAS_BIAS: tl.constexpr):
    """A piece of q, k or v with the layer's bias, in the precision of the products."""
    value = tl.load(ptr + at + offset, mask=mask, other=0.0)
    if HAS_BIAS:
        shifted = value.to(tl.float32) + tl.load(b_ptr + offset + b_at)[None, :]
        value = tl.where(mask, shifted, 0.0).to(ptr.dtype.element_ty)
    return value


@triton.jit(do_not_specialize=["samples", "time"])
def _attention_forward(
    qkv_ptr, b_ptr, y_ptr, lse_ptr, b_stride, samples, time, heads, scale,
    HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr, QUERIES: tl.constexpr, BLOCK: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dtype: tl.constexpr = qkv_ptr.dtype.element_ty
    width = heads * SIZE
    c = tl.arange(0, SIZE)
    key = tl.arange(0, BLOCK)
    b_ptr += (sample // samples) * b_stride
    b_at = head * SIZE + c
    at = (sample * time + key)[:, None] * (3 * width) + b_at[None, :]
    inside = (key < time)[:, None] & (c >= 0)[None, :]
    k = _load(qkv_ptr, b_ptr, width, at, inside, b_at, HAS_BIAS)
    v = _load(qkv_ptr, b_ptr, 2 * width, at, inside, b_at, HAS_BIAS)
    for first in range(0, BLOCK, QUERIES):
        t = first + tl.arange(0, QUERIES)
        mask = (t < time)[:, None] & (c >= 0)[None, :]
        q_at = (sample * time + t)[:, None] * (3 * width) + b_at[None, :]
        q = _load(qkv_ptr, b_ptr, 0, q_at, mask, b_at, HAS_BIAS)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        scores = tl.where(key[None, :] <= t[:, None], scores, float("-inf"))
        top = tl.max(scores, axis=1)
        p = tl.exp(scores - top[:, None])
        total = tl.sum(p, axis=1)
        y = tl.dot((p / total[:, None]).to(dtype), v, input_precision=PRECISION)
        tl.store(y_ptr + (sample * time + t)[:, None] * width + b_at[None, :], y.to(dtype), mask=mask)
        tl.store(lse_ptr + (sample * heads + head) * time + t, top + tl.log(total), mask=t < time)


@triton.jit(do_not_specialize=["samples", "time"])
def _attention_backward(
    qkv_ptr, b_ptr, dy_ptr, lse_ptr, dqkv_ptr, parts_ptr, b_stride, samples, time, heads, scale,
    HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr, QUERIES: tl.constexpr, BLOCK: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dtype: tl.constexpr = qkv_ptr.dtype.element_ty
    width = heads * SIZE
    c = tl.arange(0, SIZE)
    key = tl.arange(0, BLOCK)
    b_ptr += (sample // samples) * b_stride
    b_at = head * SIZE + c
    at = (sample * time + key)[:, None] * (3 * width) + b_at[None, :]
    inside = (key < time)[:, None] & (c >= 0)[None, :]
    k = _load(qkv_ptr, b_ptr, width, at, inside, b_at, HAS_BIAS)
    v = _load(qkv_ptr, b_ptr, 2 * width, at, inside, b_at, HAS_BIAS)
    dk = tl.zeros((BLOCK, SIZE), dtype=tl.float32)
    dv = tl.zeros((BLOCK, SIZE), dtype=tl.float32)
    dq_sum = tl.zeros((SIZE,), dtype=tl.float32)
    for first in range(0, BLOCK, QUERIES):
        t = first + tl.arange(0, QUERIES)
        mask = (t < time)[:, None] & (c >= 0)[None, :]
        q_at = (sample * time + t)[:, None] * (3 * width) + b_at[None, :]
        q = _load(qkv_ptr, b_ptr, 0, q_at, mask, b_at, HAS_BIAS)
        dy = tl.load(dy_ptr + (sample * time + t)[:, None] * width + b_at[None, :], mask=mask, other=0.0)
        lse = tl.load(lse_ptr + (sample * heads + head) * time + t, mask=t < time, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        past = (key[None, :] <= t[:, None]) & (t < time)[:, None]
        p = tl.where(past, tl.exp(scores - lse[:, None]), 0.0)
        dv += tl.dot(tl.trans(p.to(dtype)), dy, input_precision=PRECISION)
        dp = tl.dot(dy, tl.trans(v), input_precision=PRECISION)
        ds = (p * (dp - tl.sum(p * dp, axis=1)[:, None]) * scale).to(dtype)
        dk += tl.dot(tl.trans(ds), q, input_precision=PRECISION)
        dq = tl.dot(ds, k, input_precision=PRECISION)
        tl.store(dqkv_ptr + q_at, dq.to(dtype), mask=mask)
        dq_sum += tl.sum(dq, axis=0)
    tl.store(dqkv_ptr + at + width, dk.to(dtype), mask=inside)
    tl.store(dqkv_ptr + at + 2 * width, dv.to(dtype), mask=inside)
    if HAS_BIAS:
        part = parts_ptr + sample * 3 * width + b_at
        tl.store(part, dq_sum)
        tl.store(part + width, tl.sum(dk, axis=0))
        tl.store(part + 2 * width, tl.sum(dv, axis=0))


def fits(time: int, size: int) -> bool:
    """Whether a context and a head of this size can be kept on chip."""
    return time <= LONGEST and size in SIZES


def _precision(dtype: torch.dtype) -> str:
    return "tf32" if dtype != torch.float32 or torch.backends.cuda.matmul.allow_tf32 else "ieee"


class ShortAttention(torch.autograd.Function):
    """y_RBTD from qkv_RBTC (C = 3 · heads · size) and the bias b_RC of the layer that made it."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, b: Tensor | None, heads: int) -> Tensor:
        """Keeps qkv and the log-sum of each row."""
        qkv = qkv.contiguous()
        runs, batch, time, columns = qkv.shape
        size = columns // 3 // heads
        y = torch.empty(runs, batch, time, columns // 3, dtype=qkv.dtype, device=qkv.device)
        lse = torch.empty(runs * batch, heads, time, device=qkv.device)
        how: dict[str, Any] = {"HAS_BIAS": b is not None, "PRECISION": _precision(qkv.dtype), "SIZE": size}
        how["BLOCK"] = max(16, triton.next_power_of_2(time))
        queries = EXACT_QUERIES if how["PRECISION"] == "ieee" else QUERIES
        how |= {"QUERIES": min(queries, how["BLOCK"]), "num_warps": WARPS}
        launch(
            _attention_forward, (runs * batch, heads),
            qkv, b if b is not None else lse, y, lse, b.stride(0) if b is not None else 0, batch, time, heads,
            1 / math.sqrt(size), **how,
        )  # fmt: skip
        ctx.save_for_backward(qkv, lse, *(() if b is None else (b,)))
        ctx.shape, ctx.how = (runs, batch, time, heads, size), how
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor | None, None]:
        """Gradients of qkv and b; the scores are made again."""
        qkv, lse, *rest = ctx.saved_tensors
        b = rest[0] if rest else None
        runs, batch, time, heads, size = ctx.shape
        dqkv = torch.empty_like(qkv)
        parts = torch.empty(runs, batch, 3 * heads * size, device=qkv.device)
        launch(
            _attention_backward, (runs * batch, heads),
            qkv, b if b is not None else lse, dy.contiguous(), lse, dqkv, parts, b.stride(0) if b is not None else 0,
            batch, time, heads, 1 / math.sqrt(size), **ctx.how,
        )  # fmt: skip
        return dqkv, None if b is None else parts.sum(dim=1), None


#: By the size of a head: queries and keys at once, warps, stages. Torch's own kernel takes the others.
TILES = {16: (32, 32, 2, 1), 32: (64, 32, 4, 1), 64: (64, 32, 4, 3)}


@triton.jit(do_not_specialize=["rows", "time"])
def _packed_forward(
    qkv_ptr, b_ptr, segment_ptr, y_ptr, b_stride, rows, time, heads, scale,
    HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)  # of all runs, one run's after another's
    head = tl.program_id(1)
    first = tl.program_id(2) * QUERIES
    dtype: tl.constexpr = qkv_ptr.dtype.element_ty
    width = heads * SIZE
    c = tl.arange(0, SIZE)
    b_ptr += (row // rows) * b_stride
    b_at = head * SIZE + c
    segment_ptr += (row % rows) * time
    t = first + tl.arange(0, QUERIES)
    mask = (t < time)[:, None] & (c >= 0)[None, :]
    q = _load(qkv_ptr, b_ptr, 0, (row * time + t)[:, None] * (3 * width) + b_at[None, :], mask, b_at, HAS_BIAS)
    mine = tl.load(segment_ptr + t, mask=t < time, other=-1)
    top = tl.full((QUERIES,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((QUERIES,), dtype=tl.float32)
    y = tl.zeros((QUERIES, SIZE), dtype=tl.float32)
    for start in range(0, first + QUERIES, KEYS):
        key = start + tl.arange(0, KEYS)
        theirs = tl.load(segment_ptr + key, mask=key < time, other=-2)
        seen = ((theirs == 0)[None, :] | (theirs[None, :] == mine[:, None])) & (key[None, :] <= t[:, None])
        seen = seen & (key < time)[None, :]
        inside = (key < time)[:, None] & (c >= 0)[None, :]
        at = (row * time + key)[:, None] * (3 * width) + b_at[None, :]
        k = _load(qkv_ptr, b_ptr, width, at, inside, b_at, HAS_BIAS)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        scores = tl.where(seen, scores, float("-inf"))
        now = tl.maximum(top, tl.max(scores, axis=1))
        safe = tl.where(now == float("-inf"), 0.0, now)  # nothing seen so far
        p = tl.exp(scores - safe[:, None])
        kept = tl.exp(top - safe)
        v = _load(qkv_ptr, b_ptr, 2 * width, at, inside, b_at, HAS_BIAS)
        y = y * kept[:, None] + tl.dot(p.to(dtype), v, input_precision=PRECISION)
        total = total * kept + tl.sum(p, axis=1)
        top = now
    y = y / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(y_ptr + (row * time + t)[:, None] * width + b_at[None, :], y.to(dtype), mask=mask)


def packed_fits(size: int) -> bool:
    """Whether heads of this size are taken."""
    return size in TILES


def _products(qkv: Tensor) -> str:
    """For exact products of fp32 where there are matrix units: each number in two parts, which rounds as fp32 itself does."""
    wanted = _precision(qkv.dtype)
    units = qkv.is_cuda and torch.cuda.get_device_capability(qkv.device) >= (8, 0)
    return "tf32x3" if wanted == "ieee" and units and qkv.dtype == torch.float32 else wanted


def packed_attention(qkv: Tensor, b: Tensor | None, segments_BT: Tensor, heads: int) -> Tensor:
    """y_RBTD from qkv_RBTC (C = 3 · heads · size), the bias b_RC of the layer that made it, and the rows' segments."""
    qkv, segments = qkv.contiguous(), segments_BT.to(torch.int32).contiguous()
    runs, rows, time, columns = qkv.shape
    size = columns // 3 // heads
    y = torch.empty(runs, rows, time, columns // 3, dtype=qkv.dtype, device=qkv.device)
    queries, keys, warps, stages = TILES.get(size, TILES[16])
    how: dict[str, Any] = {"HAS_BIAS": b is not None, "PRECISION": _products(qkv), "SIZE": size}
    how |= {"QUERIES": queries, "KEYS": keys, "num_warps": warps, "num_stages": stages}
    launch(
        _packed_forward, (runs * rows, heads, -(-time // queries)),
        qkv, b if b is not None else y, segments, y, b.stride(0) if b is not None else 0, rows, time, heads,
        1 / math.sqrt(size), **how,
    )  # fmt: skip
    return y
