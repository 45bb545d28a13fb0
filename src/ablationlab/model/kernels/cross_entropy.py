"""Per row: -log softmax(logits)[target], and in the same pass a gradient, written over the logits.

It is that of (1-ε) nll + ε mean_v(-log softmax_v) + z log²Z, with label smoothing ε and z-loss z (both 0: of the nll)

    d / d logit_v = softmax_v (1 + 2z log Z) - (1-ε) [v = target] - ε / V
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ablationlab.model.kernels.launch import launch

BLOCK = 8192  # of the vocabulary at once
# Of a row that is read twice: the fewer rows a GPU works on at once, the more of them are still in its L2 the second time.
WARPS = 32


@triton.jit(do_not_specialize=["rows"])
def _cross_entropy_tile(
    logits_ptr, targets_ptr, nll_ptr, rows, vocabulary, stride, scale, z_loss, smoothing,
    PLAIN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The whole vocabulary in one tile."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    mask = (row < rows)[:, None] & (column < vocabulary)[None, :]
    at = row.to(tl.int64)[:, None] * stride + column[None, :]
    z = tl.load(logits_ptr + at, mask=mask, other=float("-inf")).to(tl.float32)
    z = tl.where((row < rows)[:, None], z, 0.0)
    target = tl.load(targets_ptr + row, mask=row < rows, other=0)
    top = tl.max(z, axis=1)
    e = tl.exp(z - top[:, None])
    total = tl.sum(e, axis=1)
    hit = column[None, :] == target[:, None]
    chosen = tl.sum(tl.where(hit, z, 0.0), axis=1)
    tl.store(nll_ptr + row, top + tl.log(total) - chosen, mask=row < rows)
    if PLAIN:
        gradient = (e / total[:, None] - tl.where(hit, 1.0, 0.0)) * scale
    else:
        pulled = e / total[:, None] * (1.0 + 2.0 * z_loss * (top + tl.log(total)))[:, None]
        gradient = (pulled - tl.where(hit, 1.0 - smoothing, 0.0) - smoothing / vocabulary) * scale
    padded = (row < rows)[:, None] & (column < stride)[None, :]
    tl.store(logits_ptr + at, tl.where(mask, gradient, 0.0).to(logits_ptr.dtype.element_ty), mask=padded)


@triton.jit
def _cross_entropy_row(
    logits_ptr, targets_ptr, nll_ptr, vocabulary, stride, scale, z_loss, smoothing,
    PLAIN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A vocabulary too large for one tile: one row, twice over."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets_ptr + row)
    start = logits_ptr + row * stride
    # Every lane keeps a maximum and a sum of its own, so that lanes wait for each other once a row, not once a block. The
    # maximum starts at a finite number: masked columns are -inf, and -inf - -inf is NaN.
    tops = tl.full((BLOCK,), -1e38, dtype=tl.float32)
    totals = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, stride, BLOCK):
        column = first + tl.arange(0, BLOCK)
        # Up to the stride, which is a multiple of 16 where it can be: by a mask that ends anywhere, lanes load one by one.
        z = tl.load(start + column, mask=column < stride, other=float("-inf"), eviction_policy="evict_last")
        z = tl.where(column < vocabulary, z.to(tl.float32), float("-inf"))
        above = z - tops
        e = tl.exp(-tl.abs(above))
        totals = tl.where(above > 0, totals * e + 1.0, totals + e)
        tops = tl.where(above > 0, z, tops)
    top = tl.max(tops, axis=0)
    chosen = tl.load(start + target).to(tl.float32)
    lse = top + tl.log(tl.sum(totals * tl.exp(tops - top), axis=0))
    tl.store(nll_ptr + row, lse - chosen)
    for first in range(0, stride, BLOCK):
        column = first + tl.arange(0, BLOCK)
        z = tl.load(start + column, mask=column < stride, other=float("-inf"), eviction_policy="evict_first")
        z = tl.where(column < vocabulary, z.to(tl.float32), float("-inf"))
        if PLAIN:
            gradient = (tl.exp(z - lse) - tl.where(column == target, 1.0, 0.0)) * scale
        else:
            pulled = tl.exp(z - lse) * (1.0 + 2.0 * z_loss * lse)
            gradient = (pulled - tl.where(column == target, 1.0 - smoothing, 0.0) - smoothing / vocabulary) * scale
        gradient = tl.where(column < vocabulary, gradient, 0.0)
        tl.store(start + column, gradient.to(logits_ptr.dtype.element_ty), mask=column < stride)


def nll_and_gradient_(
    logits_NV: Tensor, targets_N: Tensor, vocabulary: int, scale: float, z_loss: float = 0.0, smoothing: float = 0.0
) -> Tensor:
    """nll_N; the logits become scale · the gradient. Columns from *vocabulary* on are padding and become 0."""
    assert logits_NV.stride(1) == 1
    rows, padded = logits_NV.shape
    how = {"PLAIN": z_loss == 0.0 and smoothing == 0.0}
    nll = torch.empty(rows, device=logits_NV.device)
    if padded <= BLOCK:
        block = triton.next_power_of_2(padded)
        tile = max(1, 2048 // block)
        launch(
            _cross_entropy_tile, (triton.cdiv(rows, tile),),
            logits_NV, targets_N, nll, rows, vocabulary, padded, scale, z_loss, smoothing,
            ROWS=tile, BLOCK=block, **how,
        )  # fmt: skip
    else:
        launch(
            _cross_entropy_row, (rows,),
            logits_NV, targets_N, nll, vocabulary, padded, scale, z_loss, smoothing, BLOCK=BLOCK,
            num_warps=WARPS, **how,
        )  # fmt: skip
    return nll
