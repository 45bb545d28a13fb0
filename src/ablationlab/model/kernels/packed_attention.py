"""Attention over packed rows: a prefix and several tails that see it, and themselves, but not each other. Forward alone.

One program takes some queries of one row and head and goes through the keys up to them, keeping the largest score and the sum
so far: no mask is ever written out. Queries, keys and values are read where the linear layer left them, its bias added.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ablationlab.model.kernels.attention import _load, _precision
from ablationlab.model.kernels.launch import launch

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


def fits(size: int) -> bool:
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
