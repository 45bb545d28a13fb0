"""The GPT, for many runs at once.

Shapes carry suffixes: R runs of a stack, B samples, T positions, D width, H heads, V vocabulary, I/O inputs/outputs.
Every parameter has a leading run axis (``w_RIO``); a single run is a stack of one. The functions are pure: parameters
come in as a dict by name, so the same code serves a stack (views of one flat buffer), a notebook module, and tests.

    x = front(E_tok, E_pos);  x += attention(LN(x));  x += mlp(LN(x));  logits = LN(x) · headᵀ

Residual stream, norms and the loss are fp32; matrix products and attention run in ``dtype`` (bf16 where registered).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from ablationlab.model.dropout import Dropout
from ablationlab.model.ops import (
    add,
    add_norm,
    affine,
    bias_gelu,
    causal_attention,
    fused,
    head_loss_R,
    loss_R,
    masked_attention,
    norm,
    short_attention,
)
from ablationlab.records.settings import FrontEnd, ModelConfig

Parameters = Mapping[str, Tensor]
# Up to this vocabulary the gradient of the look-up is a matrix product with one-hot rows: deterministic on every device,
# where scattering with atomics is not. Larger vocabularies use torch's own sorted, deterministic backward.
ONE_HOT_VOCABULARY = 512
# One block: (params, x, y, its number, model, dtype, out, dropout) -> (x, y). `block` itself, or something around it.
Block = Callable[
    [Parameters, Tensor, Tensor, int, ModelConfig, torch.dtype, torch.dtype, Dropout | None], tuple[Tensor, Tensor]
]
# Attention: (params, y, the block's name, model, dtype, dropout) -> its output, and a bias that its reader still has to add.
Attend = Callable[[Parameters, Tensor, str, ModelConfig, torch.dtype, Dropout | None], tuple[Tensor, Tensor | None]]


def forward(
    params: Parameters,
    tokens_RBT: Tensor,
    model: ModelConfig,
    fronts: Sequence[FrontEnd],
    *,
    dtype: torch.dtype = torch.float32,
    dropout: Dropout | None = None,
) -> Tensor:
    """logits_RBTV in fp32. ``fronts`` holds one front end per run; everything behind it is shared."""
    x = embed(params, tokens_RBT, model, fronts)
    return decode(params, x, model, dtype=dtype, dropout=dropout)


def training_loss_R(
    params: Parameters,
    tokens_RBT: Tensor,
    targets_RBT: Tensor,
    model: ModelConfig,
    fronts: Sequence[FrontEnd],
    *,
    dtype: torch.dtype = torch.float32,
    dropout: Dropout | None = None,
    through: Block | None = None,
) -> Tensor:
    """Mean negative log-likelihood in nats, per run. Blocks run by *through* where that is given."""
    x = embed(params, tokens_RBT, model, fronts)
    if model.head_bias:
        return loss_R(decode(params, x, model, dtype=dtype, dropout=dropout, through=through), targets_RBT)
    y = transform(params, x, model, dtype, dtype, dropout, through)
    return head_loss_R(y.flatten(1, 2), _head(params, model).to(dtype), targets_RBT.flatten(1))


def embed(params: Parameters, tokens_RBT: Tensor, model: ModelConfig, fronts: Sequence[FrontEnd]) -> Tensor:
    """x_RBTD, the vectors entering block 1."""
    tok = look_up(params["tok.weight"], tokens_RBT)
    pos = params["pos.weight"][:, None, : tokens_RBT.shape[-1]]
    return front_ends(params, tok, pos, fronts)


def front_ends(params: Parameters, tok: Tensor, pos: Tensor, fronts: Sequence[FrontEnd]) -> Tensor:
    """Each run's own front end on its slice of the stack, from its token and position vectors."""
    gain, bias = params.get("front.gain"), params.get("front.bias")
    pieces, start = [], 0
    for front, members in groupby(fronts):
        end = start + len(list(members))
        piece = slice(start, end)
        pieces.append(
            front_end(
                tok[piece],
                pos[piece],
                front,
                gain[piece] if front.gain and gain is not None else None,
                bias[piece] if front.bias and bias is not None else None,
            )
        )
        start = end
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def front_end(tok: Tensor, pos: Tensor, front: FrontEnd, gain: Tensor | None, bias: Tensor | None) -> Tensor:
    """scale · norm(E_tok + E_pos), or scale · norm(E_tok) + E_pos."""
    if front.gradient != 1.0:
        # The bracket is exactly zero, so values are untouched; only the gradient is scaled.
        tok = tok.detach() + front.gradient * (tok - tok.detach())
    x = tok if front.place == "token" else tok + pos
    if front.norm == "layernorm":
        x = affine(F.layer_norm(x, x.shape[-1:], eps=front.eps), gain, bias)
    elif front.norm == "rmsnorm":
        x = affine(F.rms_norm(x, x.shape[-1:], eps=front.eps), gain, bias)
    elif front.norm == "center":
        x = x - x.mean(dim=-1, keepdim=True)
    scale = math.sqrt(x.shape[-1]) if front.scale == "sqrt-width" else front.scale
    if scale != 1.0:
        x = x * scale
    return x + pos if front.place == "token" else x


def decode(
    params: Parameters,
    x: Tensor,
    model: ModelConfig,
    *,
    dtype: torch.dtype = torch.float32,
    head_dtype: torch.dtype | None = None,
    dropout: Dropout | None = None,
    through: Block | None = None,
) -> Tensor:
    """logits_RBTV from the vectors entering block 1; the head runs in ``head_dtype`` where that is given."""
    head_dtype = head_dtype or dtype
    y = transform(params, x, model, dtype, head_dtype, dropout, through)
    return linear(y, _head(params, model).transpose(1, 2), params.get("head.bias"), head_dtype).float()


def transform(
    params: Parameters,
    x: Tensor,
    model: ModelConfig,
    dtype: torch.dtype,
    out: torch.dtype,
    dropout: Dropout | None,
    through: Block | None = None,
) -> Tensor:
    """y_RBTD in *out*: all blocks and the final norm. A sum with the residual stream and the norm after it are one step."""
    if dropout is not None:
        x = dropout(x, "front")
    if not model.layers:
        return layer_norm(params, "final_norm", x, model, out) if model.final_norm else x.to(out)
    y = layer_norm(params, "blocks.0.norm1", x, model, dtype)
    for number in range(model.layers):
        x, y = (through or block)(params, x, y, number, model, dtype, out, dropout)
    return y


def block(
    params: Parameters,
    x: Tensor,
    y: Tensor,
    number: int,
    model: ModelConfig,
    dtype: torch.dtype,
    out: torch.dtype,
    dropout: Dropout | None,
    attend: Attend | None = None,
) -> tuple[Tensor, Tensor]:
    """The residual stream x and its norm y after one block, from those before it; the norm is what follows in the model.

    *attend* takes the place of causal self-attention where it is given.
    """
    name = f"blocks.{number}"
    after = norm_after(model, number)
    for branch, following in ((attend or attention, f"{name}.norm2"), (mlp, after)):
        o, bias = branch(params, y, name, model, dtype, dropout)
        if following is None:
            return x, add(x, o, bias).to(out)
        last = branch is mlp and number + 1 == model.layers
        gain, shift = params[f"{following}.gain"], params.get(f"{following}.bias")
        x, y = add_norm(x, o, bias, gain, shift, model.norm_eps, out if last else dtype)
    return x, y


def norm_after(model: ModelConfig, number: int) -> str | None:
    """The norm behind a block: the next block's first, or the final one where there is one."""
    if number + 1 < model.layers:
        return f"blocks.{number + 1}.norm1"
    return "final_norm" if model.final_norm else None


def attention(
    params: Parameters, y: Tensor, block: str, model: ModelConfig, dtype: torch.dtype, dropout: Dropout | None
) -> tuple[Tensor, Tensor | None]:
    """Causal self-attention: its output, and a bias that the reader of it still has to add."""
    short = dropout is None and short_attention(y, y.shape[2], y.shape[3] // model.heads)
    qkv, bias = layer(params, y, f"{block}.attn.qkv", dtype, keep_bias=not short)
    if dropout is None:
        a = causal_attention(qkv, bias, model.heads)
    else:
        # Fused attention takes no named mask, so the plain path it is.
        weights, values = masked_attention(qkv, model.heads)
        a = (dropout(weights, f"{block}.attn") @ values).transpose(2, 3).reshape(y.shape)
    o, bias = layer(params, a, f"{block}.attn.out", dtype, keep_bias=dropout is not None)
    return (o, bias) if dropout is None else (dropout(o, f"{block}.attn.out"), None)


def mlp(
    params: Parameters, y: Tensor, block: str, model: ModelConfig, dtype: torch.dtype, dropout: Dropout | None
) -> tuple[Tensor, Tensor | None]:
    """Two linear layers around GELU in GPT-2's tanh form: their output, and a bias that its reader still has to add."""
    h, bias = layer(params, y, f"{block}.mlp.up", dtype)
    o, bias = layer(params, bias_gelu(h, bias), f"{block}.mlp.down", dtype, keep_bias=dropout is not None)
    return (o, bias) if dropout is None else (dropout(o, f"{block}.mlp"), None)


def layer(
    params: Parameters, x: Tensor, name: str, dtype: torch.dtype, *, keep_bias: bool = False
) -> tuple[Tensor, Tensor | None]:
    """x · w (+ b), and the bias if it was left for the next kernel to add."""
    w, b = params[f"{name}.weight"], params.get(f"{name}.bias")
    if fused(x) and not keep_bias:
        return linear(x, w, None, dtype), b
    return linear(x, w, b, dtype), None


def linear(x_RBTI: Tensor, w_RIO: Tensor, b_RO: Tensor | None, dtype: torch.dtype) -> Tensor:
    """y_RBTO = x · w + b, one batched product for the whole stack."""
    R, B, T, inputs = x_RBTI.shape
    w, b = w_RIO.to(dtype), None if b_RO is None else b_RO.to(dtype)
    if R == 1:
        x, w = x_RBTI.reshape(B * T, inputs).to(dtype), w.squeeze(0)
        y = x @ w if b is None else torch.addmm(b.squeeze(0), x, w)
    else:
        x = x_RBTI.reshape(R, B * T, inputs).to(dtype)
        y = torch.bmm(x, w) if b is None else torch.baddbmm(b[:, None], x, w)
    return y.view(R, B, T, w.shape[-1])


def layer_norm(
    params: Parameters, name: str, x: Tensor, model: ModelConfig, dtype: torch.dtype = torch.float32
) -> Tensor:
    """LayerNorm with each run's own gain and bias, in *dtype*."""
    return norm(x, params[f"{name}.gain"], params.get(f"{name}.bias"), model.norm_eps, dtype)


def _head(params: Parameters, model: ModelConfig) -> Tensor:
    return params["tok.weight"] if model.tied else params["head.weight"]


def look_up(w_RVD: Tensor, tokens_RBT: Tensor) -> Tensor:
    """x_RBTD = rows of each run's own embedding table."""
    runs, vocabulary, width = w_RVD.shape
    if vocabulary <= ONE_HOT_VOCABULARY:
        found: Tensor = _OneHotLookUp.apply(w_RVD, tokens_RBT)  # type: ignore[no-untyped-call]
        return found
    shift = torch.arange(runs, device=tokens_RBT.device).view(-1, 1, 1) * vocabulary
    return F.embedding(tokens_RBT + shift, w_RVD.reshape(runs * vocabulary, width))


class _OneHotLookUp(torch.autograd.Function):
    """Exact rows forward; backward is one-hotᵀ · gradient, a deterministic matrix product."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, w_RVD: Tensor, tokens_RBT: Tensor) -> Tensor:
        runs, vocabulary, width = w_RVD.shape
        ctx.save_for_backward(tokens_RBT)
        ctx.vocabulary = vocabulary  # type: ignore[attr-defined]
        flat = tokens_RBT.reshape(runs, -1, 1).expand(-1, -1, width)
        return w_RVD.gather(1, flat).view(*tokens_RBT.shape, width)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        (tokens_RBT,) = ctx.saved_tensors  # type: ignore[attr-defined]
        runs, width = gradient.shape[0], gradient.shape[-1]
        vocabulary = ctx.vocabulary  # type: ignore[attr-defined]
        ids = torch.arange(vocabulary, device=gradient.device)
        one_hot = (tokens_RBT.reshape(runs, -1, 1) == ids).to(gradient.dtype)
        return torch.bmm(one_hot.transpose(1, 2), gradient.reshape(runs, -1, width)), None
