"""The steps of a model that read memory more than they compute: plain torch here, one kernel each on a CUDA GPU.

The plain forms define what is computed; `kernels/` must agree with them to rounding. A linear layer's bias is
added by the step that reads the layer's output where that step is a kernel, and by the layer itself otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from math import ceil
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# Elements of one piece of the logits: 2 GB in bf16. A constant, so that the bits of a loss never depend on free memory.
LOGITS_PER_PIECE = 1 << 30
# Columns of the logits are padded to a multiple of this, up to that vocabulary and beyond it, so that every row starts on a
# boundary that the matrix units like; kernels load whole vectors of rows whose length is a multiple of 16.
SMALL_VOCABULARY = 1024
LOGITS_ALIGNMENT = 8, 64


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


_wanted = True


def use_kernels(wanted: bool) -> None:
    """Whether this process may use kernels at all, as the plan sealed it: on some GPUs Triton falls short."""
    global _wanted
    _wanted = wanted


def has_kernels() -> bool:
    """Whether this process uses kernels on a GPU."""
    return _wanted and _has_triton()


def fused(x: Tensor) -> bool:
    """Whether kernels take the memory-bound steps on this tensor's device."""
    return x.is_cuda and has_kernels()


@cache
def _fast_tanh() -> bool:
    """Whether torch's own GELU is vectorized well: on x86 with AVX it is, on Arm its backward takes twice as long as ours."""
    return torch.backends.cpu.get_cpu_capability().startswith("AVX")


def norm(
    x: Tensor,
    gain_RD: Tensor | None,
    bias_RD: Tensor | None,
    eps: float,
    dtype: torch.dtype,
    *,
    center: bool = True,
) -> Tensor:
    """LayerNorm of x_R…D, or RMSNorm (*center* is False), with each run's own gain and bias, in *dtype*."""
    if fused(x):
        from ablationlab.model.kernels.norm import Norm

        normed: Tensor = Norm.apply(x, gain_RD, bias_RD, eps, dtype, center)  # type: ignore[no-untyped-call]
        return normed
    if len(x) == 1:  # torch's own affine form is one pass; it has no run axis
        gain, bias = (None if value is None else value.squeeze(0) for value in (gain_RD, bias_RD))
        y = F.layer_norm(x, x.shape[-1:], gain, bias, eps) if center else F.rms_norm(x, x.shape[-1:], gain, eps)
    else:
        normed = F.layer_norm(x, x.shape[-1:], eps=eps) if center else F.rms_norm(x, x.shape[-1:], eps=eps)
        y = affine(normed, gain_RD, bias_RD)
    return y.to(dtype)


def add_norm(
    x: Tensor,
    o: Tensor,
    ob_RD: Tensor | None,
    gain_RD: Tensor | None,
    bias_RD: Tensor | None,
    eps: float,
    dtype: torch.dtype,
    *,
    center: bool = True,
) -> tuple[Tensor, Tensor]:
    """x' = x + (o + ob) in fp32, and its norm in *dtype*."""
    if fused(x):
        from ablationlab.model.kernels.norm import AddNorm

        total, y = AddNorm.apply(x, o, ob_RD, gain_RD, bias_RD, eps, dtype, center)  # type: ignore[no-untyped-call]
        return total, y
    total = add(x, o, ob_RD)
    return total, norm(total, gain_RD, bias_RD, eps, dtype, center=center)


def add(x: Tensor, o: Tensor, ob_RD: Tensor | None) -> Tensor:
    """x + (o + ob) in fp32."""
    return x + (o if ob_RD is None else o + ob_RD[:, None, None])


def add_bias(o: Tensor, ob_RD: Tensor | None) -> Tensor:
    """o + ob in fp32."""
    return o.float() if ob_RD is None else o + ob_RD[:, None, None].float()


def bias_gelu(h: Tensor, b_RD: Tensor | None) -> Tensor:
    """GELU(h + b) in GPT-2's tanh form, in h's precision."""
    if fused(h):
        from ablationlab.model.kernels.gelu import BiasGelu

        activated: Tensor = BiasGelu.apply(h, b_RD)  # type: ignore[no-untyped-call]
        return activated
    z = h if b_RD is None else (h + b_RD[:, None, None]).to(h.dtype)
    if z.dtype == torch.float32 and z.requires_grad and not _fast_tanh():
        kept: Tensor = _Gelu.apply(z)  # type: ignore[no-untyped-call]
        return kept
    return F.gelu(z, approximate="tanh")


#: By name; GELU is GPT-2's tanh form.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "silu": F.silu,
}


def activated(h: Tensor, name: str, up: Tensor | None = None) -> Tensor:
    """f(h), or f(h) · up where *h* is the gate of another layer."""
    if fused(h):
        from ablationlab.model.kernels.activation import Activate

        activated: Tensor = Activate.apply(h, up, name)  # type: ignore[no-untyped-call]
        return activated
    value = ACTIVATIONS[name](h)
    return value if up is None else value * up


class _Gelu(torch.autograd.Function):
    """GELU that keeps its logistic factor s: GELU(z) = z · s, and the slope s (1 + z · 2u' (1 - s)) needs no exponential.

    u = √(2/π) (z + 0.044715 z³) and s = 1 / (1 + exp(-2u)), which is (1 + tanh u) / 2.
    """

    TWICE = 2 * math.sqrt(2 / math.pi)

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, z: Tensor) -> Tensor:
        s = z * z
        s.mul_(0.044715 * _Gelu.TWICE).add_(_Gelu.TWICE).mul_(z).sigmoid_()
        ctx.save_for_backward(z, s)
        return z * s

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, dg: Tensor) -> Tensor:
        z, s = ctx.saved_tensors  # type: ignore[attr-defined]
        slope: Tensor = z * z
        slope.mul_(3 * 0.044715 * _Gelu.TWICE).add_(_Gelu.TWICE).mul_(z)
        return slope.addcmul_(slope, s, value=-1).add_(1).mul_(s).mul_(dg)


def short_attention(x: Tensor, time: int, size: int) -> bool:
    """Whether a kernel takes the attention of such a context and head size; it adds the bias of the layer before it."""
    if not fused(x):
        return False
    from ablationlab.model.kernels import attention

    return attention.fits(time, size)


def packs(x: Tensor, size: int) -> bool:
    """Whether a kernel takes attention over packed rows with heads of this size."""
    if not fused(x):
        return False
    from ablationlab.model.kernels import attention

    return attention.packed_fits(size)


def causal_attention(qkv_RBTC: Tensor, b_RC: Tensor | None, heads: int) -> Tensor:
    """y_RBTD; queries, keys and values stand side by side in the last axis. Runs are folded into the batch."""
    R, B, T, columns = qkv_RBTC.shape
    size = columns // 3 // heads
    if short_attention(qkv_RBTC, T, size):
        from ablationlab.model.kernels.attention import ShortAttention

        attended: Tensor = ShortAttention.apply(qkv_RBTC, b_RC, heads)  # type: ignore[no-untyped-call]
        return attended
    qkv = qkv_RBTC if b_RC is None else (qkv_RBTC + b_RC[:, None, None]).to(qkv_RBTC.dtype)
    if qkv.is_cuda and qkv.dtype == torch.bfloat16 and size % 8 == 0 and size <= 256:
        if not torch.are_deterministic_algorithms_enabled() and size <= 128 and torch.version.cuda is not None:
            free: Tensor = _CudnnAttention.apply(qkv.view(R * B, T, 3, heads, size))  # type: ignore[no-untyped-call]
            return free.reshape(R, B, T, columns // 3)
        packed: Tensor = _Flash.apply(qkv.view(R * B, T, 3, heads, size))  # type: ignore[no-untyped-call]
        return packed.reshape(R, B, T, columns // 3)
    q, k, v = qkv.view(R * B, T, 3, heads, size).permute(2, 0, 3, 1, 4)
    if not qkv.is_cuda and qkv.dtype == torch.bfloat16:  # the backward of fused attention is slow there
        weighed: Tensor = _Products.apply(q, k, v)  # type: ignore[no-untyped-call]
        return weighed.transpose(1, 2).reshape(R, B, T, columns // 3)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return y.transpose(1, 2).reshape(R, B, T, columns // 3)


class _Products(torch.autograd.Function):
    """Causal attention as batched matrix products, for processors that have units for them."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        batch, heads, time, size = q.shape
        q, k, v = (x.reshape(-1, time, size) for x in (q, k, v))
        future = torch.full((time, time), float("-inf"), dtype=q.dtype, device=q.device).triu(1)
        p = torch.baddbmm(future, q, k.transpose(1, 2), alpha=size**-0.5).softmax(dim=-1)
        ctx.save_for_backward(q, k, v, p)
        return torch.bmm(p, v).view(batch, heads, time, size)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, p = ctx.saved_tensors  # type: ignore[attr-defined]
        dy_flat = dy.reshape(v.shape)
        dp = torch.bmm(dy_flat, v.transpose(1, 2))
        ds = torch._softmax_backward_data(dp, p, -1, p.dtype).mul_(q.shape[-1] ** -0.5)
        gradients = torch.bmm(ds, k), torch.bmm(ds.transpose(1, 2), q), torch.bmm(p.transpose(1, 2), dy_flat)
        dq, dk, dv = (gradient.view(dy.shape) for gradient in gradients)
        return dq, dk, dv


class _Flash(torch.autograd.Function):
    """torch's flash attention on queries, keys and values where the linear layer left them; their gradient goes back there.

    Through scaled_dot_product_attention the same kernels run, but the three gradients are then moved twice.
    """

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, qkv: Tensor) -> Tensor:
        q, k, v = qkv.unbind(2)
        time = qkv.shape[1]
        out, *rest = torch.ops.aten._flash_attention_forward(q, k, v, None, None, time, time, 0.0, True, False)
        ctx.save_for_backward(qkv, out, *rest[:3])
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, dout: Tensor) -> Tensor:
        qkv, out, lse, state, unused = ctx.saved_tensors  # type: ignore[attr-defined]
        time = qkv.shape[1]
        parts = torch.ops.aten._flash_attention_backward(
            dout.contiguous(), *qkv.unbind(2), out, lse, None, None, time, time, 0.0, True, state, unused
        )
        return _side_by_side(*parts)


class _CudnnAttention(torch.autograd.Function):
    """The same by cuDNN, whose backward is the fastest there is and sums in no fixed order."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, qkv: Tensor) -> Tensor:
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
        out, *rest = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, True, False)
        lse, over_queries, over_keys, *most, seed, offset, _ = rest
        ctx.save_for_backward(qkv, out, lse, seed, offset)
        ctx.sequences = over_queries, over_keys, *most  # type: ignore[attr-defined]
        return out.transpose(1, 2)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, dout: Tensor) -> Tensor:
        qkv, out, lse, seed, offset = ctx.saved_tensors  # type: ignore[attr-defined]
        parts = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
            dout.transpose(1, 2),
            *(part.transpose(1, 2) for part in qkv.unbind(2)),
            out,
            lse,
            seed,
            offset,
            None,
            *ctx.sequences,  # type: ignore[attr-defined]
            0.0,
            True,
        )
        return _side_by_side(*(part.transpose(1, 2) for part in parts))


def _side_by_side(*parts_BTHC: Tensor) -> Tensor:
    """(B, T, 3, H, C) as the linear layer has them. One concatenation of long rows moves 16 bytes at a time; three
    copies into slices did not, and ran at a third of an H200's bandwidth."""
    B, T, heads, size = parts_BTHC[0].shape
    rows = torch.cat([part.reshape(B * T, heads * size) for part in parts_BTHC], dim=1)
    return rows.view(B, T, len(parts_BTHC), heads, size)


def masked_attention(
    qkv_RBTC: Tensor, heads: int, rule: Callable[[Tensor], Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Causal attention weights_RBHTT in qkv's precision, and values: for a caller that drops some of the weights. *rule*
    changes the scores_RBHTT, in fp32."""
    R, B, T, columns = qkv_RBTC.shape
    q, k, v = qkv_RBTC.view(R, B, T, 3, heads, columns // 3 // heads).permute(3, 0, 1, 4, 2, 5)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if rule is not None:
        scores = rule(scores.float())
    future = torch.ones(T, T, dtype=torch.bool, device=qkv_RBTC.device).triu(1)
    return scores.masked_fill(future, float("-inf")).float().softmax(dim=-1).to(qkv_RBTC.dtype), v


def loss_R(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean negative log-likelihood in nats per run, of logits_R…V and targets_R…."""
    nll = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), reduction="none")
    return nll.view(len(logits), -1).mean(dim=1)


class Objective(NamedTuple):
    """What training minimizes beside the negative log-likelihood, per token: (1-ε) nll + ε mean_v(-log p_v) + z log²Z, with
    label smoothing ε (Szegedy et al. 2016) and z-loss z (Chowdhery et al. 2022); Z is the denominator of the softmax."""

    z_loss: float = 0.0
    label_smoothing: float = 0.0


PLAIN = Objective()


def losses_R(logits: Tensor, targets: Tensor, objective: Objective) -> tuple[Tensor, Tensor]:
    """Mean negative log-likelihood per run, and the mean of the objective."""
    loss = loss_R(logits, targets)
    if objective == PLAIN:
        return loss, loss
    runs, (z_loss, smoothing) = len(logits), objective
    normalizer = logits.logsumexp(dim=-1)
    smooth, square = (term.reshape(runs, -1).mean(1) for term in (normalizer - logits.mean(-1), normalizer.square()))
    return loss, (1 - smoothing) * loss + smoothing * smooth + z_loss * square


def head_losses_R(
    y_RND: Tensor, head_RVD: Tensor, targets_RN: Tensor, objective: Objective = PLAIN
) -> tuple[Tensor, Tensor]:
    """The same of logits = y · headᵀ, without ever holding all logits on a GPU. The second result has the gradient of the
    objective; its value there is the likelihood's."""
    if fused(y_RND):
        losses: Tensor = _HeadLoss.apply(y_RND, head_RVD, targets_RN, objective)  # type: ignore[no-untyped-call]
        return losses, losses
    return losses_R(torch.bmm(y_RND, head_RVD.transpose(1, 2)).float(), targets_RN, objective)


class _HeadLoss(torch.autograd.Function):
    """Logits piece by piece: each piece becomes its own gradient in place, and both products with it are made at once."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, y: Tensor, head: Tensor, targets: Tensor, objective: Objective
    ) -> Tensor:
        from ablationlab.model.kernels.cross_entropy import nll_and_gradient_

        runs, rows, _ = y.shape
        vocabulary = head.shape[1]
        padded = F.pad(head, (0, 0, 0, -vocabulary % LOGITS_ALIGNMENT[vocabulary > SMALL_VOCABULARY]))
        most = max(1, LOGITS_PER_PIECE // (runs * padded.shape[1]))
        piece = ceil(
            rows / ceil(rows / most)
        )  # equal pieces: a short last one would cost a whole product with the head
        dy, dhead = torch.empty_like(y), None
        nll = torch.empty(runs, rows, device=y.device)
        for start in range(0, rows, piece):
            part = slice(start, min(start + piece, rows))
            logits = torch.bmm(y[:, part], padded.transpose(1, 2))
            flat = logits.view(-1, logits.shape[-1])
            losses = nll_and_gradient_(flat, targets[:, part].reshape(-1), vocabulary, 1 / rows, *objective)
            nll[:, part] = losses.view(runs, -1)
            torch.bmm(logits, padded, out=dy[:, part])
            share = torch.bmm(logits.transpose(1, 2), y[:, part])[:, :vocabulary].float()
            dhead = share if dhead is None else dhead.add_(share)
            del logits, flat, share  # or two pieces would live at once
        ctx.save_for_backward(dy, dhead)  # type: ignore[arg-type]
        ctx.dtype = head.dtype  # type: ignore[attr-defined]
        return nll.mean(dim=1)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient_R: Tensor) -> tuple[Tensor, Tensor, None, None]:
        dy, dhead = ctx.saved_tensors  # type: ignore[attr-defined]
        scale = gradient_R[:, None, None]
        return (dy * scale).to(dy.dtype), (dhead * scale).to(ctx.dtype), None, None  # type: ignore[attr-defined]


def affine(x_RBTD: Tensor, gain_RD: Tensor | None, bias_RD: Tensor | None) -> Tensor:
    """x · gain + bias, per run."""
    if gain_RD is None:
        return x_RBTD
    shape = (len(gain_RD), *[1] * (x_RBTD.dim() - 2), -1)
    gain = gain_RD.view(shape)
    return x_RBTD * gain if bias_RD is None else torch.addcmul(bias_RD.view(shape), x_RBTD, gain)
