"""Muon's element-wise halves, one pass each over the matrices of a stack: before Newton-Schulz and behind it.

m = μm + (1-μ)g;  ahead = μm + (1-μ)g          θ = θ(1 - η decay) - η size NS(ahead)
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ablationlab.model.kernels.launch import launch

BLOCK = 4096


@triton.jit
def _muon_momentum(
    g_ptr, m_ptr, ahead_ptr, norm_ptr, alive_ptr, stride, columns, rest, clip,
    CLIP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(1).to(tl.int64)
    alive = tl.load(alive_ptr + run) != 0
    shrink = 1.0
    if CLIP:
        shrink = tl.minimum(clip / (tl.load(norm_ptr + run) + 1e-6), 1.0)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = column < columns
    g = tl.load(g_ptr + run * stride + column, mask=mask, other=0.0) * shrink
    m_old = tl.load(m_ptr + run * stride + column, mask=mask, other=0.0)
    m = m_old + rest * (g - m_old)
    # A frozen run keeps every bit; `where`, since NaN times zero is NaN.
    tl.store(m_ptr + run * stride + column, tl.where(alive, m, m_old), mask=mask)
    ahead = m - rest * (m - g)
    tl.store(ahead_ptr + run * columns + column, ahead.to(ahead_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _muon_move(
    w_ptr, direction_ptr, lr_ptr, alive_ptr, scales_ptr, stride, columns,
    BLOCK: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(1).to(tl.int64)
    alive = tl.load(alive_ptr + run) != 0
    lr = tl.load(lr_ptr + run)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = column < columns
    w = tl.load(w_ptr + run * stride + column, mask=mask, other=0.0)
    direction = tl.load(direction_ptr + run * columns + column, mask=mask, other=0.0).to(tl.float32)
    decay = tl.load(scales_ptr + column, mask=mask, other=0.0)
    size = tl.load(scales_ptr + columns + column, mask=mask, other=0.0)
    moved = w * (1.0 - lr * decay) - lr * size * direction
    tl.store(w_ptr + run * stride + column, tl.where(alive, moved, w), mask=mask)


def momentum_(
    gradient_RP: Tensor, m_RP: Tensor, columns: int, norm_R: Tensor, alive_R: Tensor, *, momentum: float,
    clip: float | None, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """ahead_RC in *dtype* of the first *columns*, whose momentum moves in place."""
    runs, stride = gradient_RP.shape
    ahead = torch.empty(runs, columns, dtype=dtype, device=gradient_RP.device)
    launch(
        _muon_momentum, (triton.cdiv(columns, BLOCK), runs),
        gradient_RP, m_RP, ahead, norm_R, alive_R.view(torch.uint8), stride, columns, 1 - momentum, clip or 0.0,
        CLIP=clip is not None, BLOCK=BLOCK, num_warps=8,
    )  # fmt: skip
    return ahead


def move_(weights_RP: Tensor, direction_RC: Tensor, lr_R: Tensor, alive_R: Tensor, scales_2C: Tensor) -> None:
    """Move the first columns of the living runs in place; *scales_2C*: decay and size, each times the factor of the rate."""
    runs, stride = weights_RP.shape
    columns = direction_RC.shape[1]
    launch(
        _muon_move, (triton.cdiv(columns, BLOCK), runs),
        weights_RP, direction_RC, lr_R, alive_R.view(torch.uint8), scales_2C, stride, columns,
        BLOCK=BLOCK, num_warps=8,
    )  # fmt: skip
