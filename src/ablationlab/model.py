"""The GPT, for many runs at once.

Shapes carry suffixes: R runs of a stack, B samples, T positions, D width, H heads, V vocabulary, I/O inputs/outputs.
Every parameter has a leading run axis (``w_RIO``); a single run is a stack of one. The functions are pure: parameters
come in as a dict by name, so the same code serves a stack (views of one flat buffer), a notebook module, and tests.

    x = front(E_tok, E_pos);  x += attention(LN(x));  x += mlp(LN(x));  logits = LN(x) · headᵀ

Residual stream, norms and the loss are fp32; matrix products and attention run in ``dtype`` (bf16 where registered).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from ablationlab.config import FrontEnd, ModelConfig
from ablationlab.dropout import Dropout

Parameters = Mapping[str, Tensor]
# Up to this vocabulary the gradient of the look-up is a matrix product with one-hot rows: deterministic on every device,
# where scattering with atomics is not. Larger vocabularies use torch's own sorted, deterministic backward.
ONE_HOT_VOCABULARY = 512


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


def loss_R(logits_RBTV: Tensor, targets_RBT: Tensor) -> Tensor:
    """Mean negative log-likelihood in nats, per run."""
    runs, vocabulary = logits_RBTV.shape[0], logits_RBTV.shape[-1]
    nll = F.cross_entropy(logits_RBTV.reshape(-1, vocabulary), targets_RBT.reshape(-1), reduction="none")
    return nll.view(runs, -1).mean(dim=1)


def embed(params: Parameters, tokens_RBT: Tensor, model: ModelConfig, fronts: Sequence[FrontEnd]) -> Tensor:
    """x_RBTD, the vectors entering block 1: each run's own front end on its slice of the stack."""
    tok = look_up(params["tok.weight"], tokens_RBT)
    pos = params["pos.weight"][:, None, : tokens_RBT.shape[-1]]
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
) -> Tensor:
    """logits_RBTV from the vectors entering block 1; the head runs in ``head_dtype`` where that is given."""
    if dropout is not None:
        x = dropout(x, "front")
    for i in range(model.layers):
        block = f"blocks.{i}"
        x = x + attention(params, layer_norm(params, f"{block}.norm1", x, model), block, model, dtype, dropout)
        x = x + mlp(params, layer_norm(params, f"{block}.norm2", x, model), block, dtype, dropout)
    if model.final_norm:
        x = layer_norm(params, "final_norm", x, model)
    head = params["tok.weight"] if model.tied else params["head.weight"]
    return linear(x, head.transpose(1, 2), params.get("head.bias"), head_dtype or dtype).float()


def attention(
    params: Parameters, x: Tensor, block: str, model: ModelConfig, dtype: torch.dtype, dropout: Dropout | None
) -> Tensor:
    """Causal self-attention; runs are folded into the batch, since attention never mixes them."""
    R, B, T, D = x.shape
    qkv = linear(x, params[f"{block}.attn.qkv.weight"], params.get(f"{block}.attn.qkv.bias"), dtype)
    q, k, v = qkv.view(R * B, T, 3, model.heads, D // model.heads).permute(2, 0, 3, 1, 4)
    if dropout is None:
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    else:
        # Fused attention takes no named mask, so the plain path it is.
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        future = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, float("-inf")).float().softmax(dim=-1).to(dtype)
        weights = dropout(weights.view(R, B, model.heads, T, T), f"{block}.attn")
        y = weights.view(R * B, model.heads, T, T) @ v
    y = y.transpose(1, 2).reshape(R, B, T, D)
    y = linear(y, params[f"{block}.attn.out.weight"], params.get(f"{block}.attn.out.bias"), dtype)
    return y if dropout is None else dropout(y, f"{block}.attn.out")


def mlp(params: Parameters, x: Tensor, block: str, dtype: torch.dtype, dropout: Dropout | None) -> Tensor:
    """Two linear layers around GELU in GPT-2's tanh form."""
    h = linear(x, params[f"{block}.mlp.up.weight"], params.get(f"{block}.mlp.up.bias"), dtype)
    h = F.gelu(h, approximate="tanh")
    y = linear(h, params[f"{block}.mlp.down.weight"], params.get(f"{block}.mlp.down.bias"), dtype)
    return y if dropout is None else dropout(y, f"{block}.mlp")


def linear(x_RBTI: Tensor, w_RIO: Tensor, b_RO: Tensor | None, dtype: torch.dtype) -> Tensor:
    """y_RBTO = x · w + b, one batched product for the whole stack."""
    R, B, T, inputs = x_RBTI.shape
    x, w = x_RBTI.reshape(R, B * T, inputs).to(dtype), w_RIO.to(dtype)
    y = torch.bmm(x, w) if b_RO is None else torch.baddbmm(b_RO[:, None].to(dtype), x, w)
    return y.view(R, B, T, w.shape[-1])


def layer_norm(params: Parameters, name: str, x: Tensor, model: ModelConfig) -> Tensor:
    """LayerNorm with each run's own gain and bias."""
    y = F.layer_norm(x, x.shape[-1:], eps=model.norm_eps)
    return affine(y, params[f"{name}.gain"], params.get(f"{name}.bias"))


def affine(x_RBTD: Tensor, gain_RD: Tensor | None, bias_RD: Tensor | None) -> Tensor:
    """x · gain + bias, per run."""
    if gain_RD is None:
        return x_RBTD
    gain = gain_RD[:, None, None]
    return x_RBTD * gain if bias_RD is None else torch.addcmul(bias_RD[:, None, None], x_RBTD, gain)


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
        one_hot = F.one_hot(tokens_RBT.reshape(runs, -1), vocabulary).to(gradient.dtype)
        return torch.bmm(one_hot.transpose(1, 2), gradient.reshape(runs, -1, width)), None
