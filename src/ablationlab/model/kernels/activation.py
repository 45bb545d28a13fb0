"""g = f(h), or f(h) · u where a second layer is gated, for f = ReLU, ReLU², SiLU and GELU in GPT-2's tanh form."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ablationlab.model.kernels.launch import launch

BLOCK = 2048
KINDS = {"relu": 0, "relu2": 1, "silu": 2, "gelu": 3}


@triton.jit
def _value_and_slope(z, KIND: tl.constexpr):
    if KIND == 0:
        return tl.maximum(z, 0.0), tl.where(z > 0.0, 1.0, 0.0)
    elif KIND == 1:
        positive = tl.maximum(z, 0.0)
        return positive * positive, 2.0 * positive
    elif KIND == 2:
        s = 1.0 / (1.0 + tl.exp(-z))
        return z * s, s + z * s * (1.0 - s)
    else:
        s = 1.0 / (1.0 + tl.exp(-1.5957691216057308 * (z + 0.044715 * z * z * z)))
        return z * s, s + z * s * (1.0 - s) * 1.5957691216057308 * (1.0 + 0.134145 * z * z)


@triton.jit(do_not_specialize=["count"])
def _forward(h_ptr, u_ptr, g_ptr, count, KIND: tl.constexpr, GATED: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    value, _ = _value_and_slope(tl.load(h_ptr + at, mask=mask, other=0.0).to(tl.float32), KIND)
    if GATED:
        value *= tl.load(u_ptr + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(g_ptr + at, value.to(g_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["count"])
def _backward(
    dg_ptr, h_ptr, u_ptr, dh_ptr, du_ptr, count, KIND: tl.constexpr, GATED: tl.constexpr, BLOCK: tl.constexpr
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    dg = tl.load(dg_ptr + at, mask=mask, other=0.0).to(tl.float32)
    value, slope = _value_and_slope(tl.load(h_ptr + at, mask=mask, other=0.0).to(tl.float32), KIND)
    dh = dg * slope
    if GATED:
        dh *= tl.load(u_ptr + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(du_ptr + at, (dg * value).to(du_ptr.dtype.element_ty), mask=mask)
    tl.store(dh_ptr + at, dh.to(dh_ptr.dtype.element_ty), mask=mask)


class Activate(torch.autograd.Function):
    """f(h), or f(h) · u, in h's precision."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, u: Tensor | None, name: str) -> Tensor:
        h, u = h.contiguous(), None if u is None else u.contiguous()
        g, count = torch.empty_like(h), h.numel()
        launch(
            _forward, (triton.cdiv(count, BLOCK),), h, h if u is None else u, g, count,
            KIND=KINDS[name], GATED=u is not None, BLOCK=BLOCK,
        )  # fmt: skip
        ctx.save_for_backward(h, u)
        ctx.name = name
        return g

    @staticmethod
    def backward(ctx: Any, dg: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of h and u."""
        h, u = ctx.saved_tensors
        dh, du, count = torch.empty_like(h), None if u is None else torch.empty_like(u), h.numel()
        launch(
            _backward, (triton.cdiv(count, BLOCK),),
            dg.contiguous(), h, h if u is None else u, dh, dh if du is None else du, count,
            KIND=KINDS[ctx.name], GATED=u is not None, BLOCK=BLOCK,
        )  # fmt: skip
        return dh, du, None
