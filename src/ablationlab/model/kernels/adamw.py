"""Clip, AdamW, freeze, and a look at the second moment: one pass over everything that a stack's optimizer holds."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ablationlab.model.kernels.launch import launch

BLOCK, TILES = 1024, 8


@triton.jit
def _adamw(
    w_ptr, g_ptr, m_ptr, v_ptr, norm_ptr, lr_ptr, clock_ptr, alive_ptr, parts_ptr, scales_ptr, first, columns, decaying,
    rest1, beta2, rest2, eps, weight_decay, clip,
    CLIP: tl.constexpr, SCALED: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(1).to(tl.int64)
    alive = tl.load(alive_ptr + run) != 0
    lr = tl.load(lr_ptr + run)
    correct1 = tl.load(clock_ptr + 1)
    correct2 = tl.load(clock_ptr + 2)
    shrink = 1.0
    if CLIP:
        shrink = tl.minimum(clip / (tl.load(norm_ptr + run) + 1e-6), 1.0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    top = tl.zeros((BLOCK,), dtype=tl.float32)
    for tile in range(TILES):
        column = first + (tl.program_id(0) * TILES + tile) * BLOCK + tl.arange(0, BLOCK)
        mask = column < columns
        at = run * columns + column
        w = tl.load(w_ptr + at, mask=mask, other=0.0)
        g = tl.load(g_ptr + at, mask=mask, other=0.0) * shrink
        m_old = tl.load(m_ptr + at, mask=mask, other=0.0)
        v_old = tl.load(v_ptr + at, mask=mask, other=0.0)
        rate = lr
        if SCALED:
            rate = lr * tl.load(scales_ptr + column, mask=mask, other=0.0)
            decay = tl.load(scales_ptr + columns + column, mask=mask, other=0.0)
        else:
            decay = tl.where(column < decaying, weight_decay, 0.0)
        m = m_old + rest1 * (g - m_old)
        v = v_old * beta2 + rest2 * g * g
        moved = w * (1.0 - rate * decay) - (rate / correct1) * (m / (tl.sqrt(v) / correct2 + eps))
        # A frozen run keeps every bit; `where`, since NaN times zero is NaN.
        v = tl.where(alive, v, v_old)
        tl.store(w_ptr + at, tl.where(alive, moved, w), mask=mask)
        tl.store(m_ptr + at, tl.where(alive, m, m_old), mask=mask)
        tl.store(v_ptr + at, v, mask=mask)
        total += v
        top = tl.maximum(top, v)
    part = (run * tl.num_programs(0) + tl.program_id(0)) * 2
    tl.store(parts_ptr + part, tl.sum(total, axis=0))
    tl.store(parts_ptr + part + 1, tl.max(top, axis=0))


def update_(
    weights_RP: Tensor, gradient_RP: Tensor, m_RP: Tensor, v_RP: Tensor, decaying: int, norm_R: Tensor, lr_R: Tensor,
    clock_4: Tensor, alive_R: Tensor, *, betas: tuple[float, float], eps: float, weight_decay: float,
    clip: float | None, scales_2P: Tensor | None = None, first: int = 0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Move the living runs in place; the gradient is left as it is. Returns the sum and the maximum of v, per run.

    *scales_2P* are the factor of the rate and the decay of every column, where the first *decaying* ones do not say it all.
    Columns before *first* are left alone.
    """
    runs, columns = weights_RP.shape
    programs = triton.cdiv(columns - first, BLOCK * TILES)
    parts = torch.empty(runs, programs, 2, device=weights_RP.device)
    launch(
        _adamw, (programs, runs),
        weights_RP, gradient_RP, m_RP, v_RP, norm_R, lr_R, clock_4, alive_R.view(torch.uint8), parts,
        weights_RP if scales_2P is None else scales_2P, first, columns, decaying,
        1 - betas[0], betas[1], 1 - betas[1], eps, weight_decay, clip or 0.0,
        CLIP=clip is not None, SCALED=scales_2P is not None, TILES=TILES, BLOCK=BLOCK,
    )  # fmt: skip
    return parts[..., 0].sum(dim=1), parts[..., 1].amax(dim=1)
