"""The GPT, for many runs at once: one forward pass for training, validation, scoring, probes and sharded models.

Shapes carry suffixes: R runs of a stack, B samples, T positions, D width, H heads, V vocabulary, I/O inputs/outputs.
Every parameter has a leading run axis (``w_RIO``); a single run is a stack of one. Parameters come in as a dict by name, so
the same code serves a stack (views of one flat buffer), a notebook module, and tests.

    x = front(E_tok, E_pos);  x += attention(LN(x));  x += mlp(LN(x));  logits = LN(x) · headᵀ

is the default; docs/model.md has the formulas of all settings. Residual stream, norms and the loss are fp32; matrix products
and attention run in ``dtype`` (bf16 where registered). The parts of a block are in `parts.py`, the ways to attend in
`attention.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from ablationlab.model.attention import Attend, CausalAttention, DroppedAttention, score_rule
from ablationlab.model.dropout import Dropout
from ablationlab.model.ops import (
    PLAIN,
    Objective,
    add,
    add_bias,
    add_norm,
    affine,
    fused,
    head_losses_R,
    losses_R,
    norm,
)
from ablationlab.model.parts import (
    HEADS,
    LOSS_TERMS,
    POSITIONS,
    norm_before,
    norm_kind,
    norms_of,
    parts_of,
    residual_scales,
    skip_before,
)
from ablationlab.records.settings import FrontEnd, ModelConfig

Parameters = Mapping[str, Tensor]
# Up to this vocabulary the gradient of the look-up is a matrix product with one-hot rows: deterministic on every device,
# where scattering with atomics is not. Larger vocabularies use torch's own sorted, deterministic backward.
ONE_HOT_VOCABULARY = 512


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """The model with its weights, and how it is run this time. ``fronts`` holds one front end per run; the rest is shared.

    Three hooks, all off by default: ``attend`` takes the place of causal attention; ``run_block(forward, number, x, y)``
    takes the place of `block` (a sharded model gathers its parameters there); ``keep(place, x)`` sees the residual stream, at
    "front" and after every part of a block, at that part's name.
    """

    params: Parameters
    model: ModelConfig
    fronts: Sequence[FrontEnd]
    dtype: torch.dtype = torch.float32  # of matrix products and attention
    head_dtype: torch.dtype | None = None  # of the output head, where that is another
    dropout: Dropout | None = None
    attend: Attend | None = None
    run_block: Callable[[ForwardPass, int, Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
    keep: Callable[[str, Tensor], None] | None = None
    positions_BT: Tensor | None = None  # of the tokens; they count from 0 where they are not given
    x0: Tensor | None = None  # what entered block 1, where it is added to the stream again

    def logits(self, tokens_RBT: Tensor) -> Tensor:
        """logits_RBTV in fp32."""
        return self.decode(self.embed(tokens_RBT))

    def losses_R(self, tokens_RBT: Tensor, targets_RBT: Tensor, objective: Objective = PLAIN) -> tuple[Tensor, Tensor]:
        """Mean negative log-likelihood in nats, and what is differentiated: *objective* and the loss terms; both per run."""
        x = self.embed(tokens_RBT)
        model = self.model
        if not (model.head_bias or model.head_softcap is not None or model.head != "linear" or model.loss_terms):
            head = self._head_weight.to(self._out)
            return head_losses_R(self.hidden(x).flatten(1, 2), head, targets_RBT.flatten(1), objective)
        logits = self.decode(x)
        loss, total = losses_R(logits, targets_RBT, objective)
        for name in self.model.loss_terms:
            total = total + LOSS_TERMS[name](logits, targets_RBT, self.model)
        return loss, total

    def embed(self, tokens_RBT: Tensor) -> Tensor:
        """x_RBTD, the vectors entering block 1."""
        return front_ends(self.params, *self.look_up(tokens_RBT), self.fronts)

    def look_up(self, tokens_RBT: Tensor) -> tuple[Tensor, Tensor]:
        """The token and position vectors, before the front end."""
        pos = POSITIONS[self.model.position](self, tokens_RBT.shape[-1])
        return look_up(self.params["tok.weight"], tokens_RBT), pos

    def decode(self, x: Tensor) -> Tensor:
        """logits_RBTV in fp32, from the vectors entering block 1."""
        return self.head(self.hidden(x))

    def hidden(self, x: Tensor) -> Tensor:
        """y_RBTD, what the head reads: all blocks and the final norm, from the vectors entering block 1."""
        if self.dropout is not None:
            x = self.dropout(x, "front")
        if self.keep is not None:
            self.keep("front", x)
        forward = self if self.model.embedding_skip is None else replace(self, x0=x)
        x = forward._skip(x, 0)
        y = forward._read(x, norm_before(self.model, 0), last=self.model.layers == 0)
        for number in range(self.model.layers):
            x, y = forward.block(number, x, y) if self.run_block is None else self.run_block(forward, number, x, y)
        return y

    def block(self, number: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The residual stream x and what is read of it, y, after one block, from those before it; y is for the reader behind.

        Of parallel parts, each reads a norm of its own of what entered the block.
        """
        model, name, parts = self.model, f"blocks.{number}", parts_of(self.model)
        norms = [{place: f"{name}.{own}" for place, own in norms_of(model, norm).items()} for norm, _ in parts]
        waiting: Tensor | None = None  # outputs of parallel parts that are not added yet
        for position, (_, part) in enumerate(parts):
            place, own, last = f"{name}.{part.name}", norms[position], position + 1 == len(parts)
            if model.parallel and position:
                y = self._read(x, own.get("before"), last=False)
            o, bias = part(self, y, place)
            if "behind" in own:
                o, bias = self._norm(add_bias(o, bias), own["behind"], torch.float32), None
            if model.parallel:
                waiting, bias = add_bias(o, bias) if waiting is None else waiting + add_bias(o, bias), None
                if not last:
                    if self.keep is not None:
                        self.keep(place, x)
                    continue
                o = waiting
            following = norm_before(model, number + 1) if last else norms[position + 1].get("before")
            x, y = self._add(x, o, bias, place, own.get("sum"), following, number + 1 if last else None)
        return x, y

    def head(self, y: Tensor) -> Tensor:
        """logits_RBTV in fp32."""
        return HEADS[self.model.head](self, y)

    def linear_head(self, y: Tensor) -> Tensor:
        """y · Wᵀ + b, soft-capped where the model has it."""
        logits = linear(y, self._head_weight.transpose(1, 2), self.params.get("head.bias"), self._out).float()
        cap = self.model.head_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def layer(self, x: Tensor, name: str, *, keep_bias: bool = False) -> tuple[Tensor, Tensor | None]:
        """x · w (+ b), and the bias if it was left for the next kernel to add."""
        w, b = self.params[f"{name}.weight"], self.params.get(f"{name}.bias")
        if fused(x) and not keep_bias:
            return linear(x, w, None, self.dtype), b
        return linear(x, w, b, self.dtype), None

    @property
    def attention(self) -> Attend:
        """How this pass attends, by the model's rule for scores."""
        attend = self.attend or (CausalAttention() if self.dropout is None else DroppedAttention(self.dropout))
        return attend.by(score_rule(self.model, self.positions_BT))

    @property
    def _out(self) -> torch.dtype:
        return self.head_dtype or self.dtype

    @property
    def _head_weight(self) -> Tensor:
        return self.params["tok.weight"] if self.model.tied else self.params["head.weight"]

    def _norm(self, x: Tensor, name: str, dtype: torch.dtype) -> Tensor:
        """The norm at a place, with each run's own gain and bias."""
        kind = norm_kind(self.model, name)
        if kind.centers is None:
            return kind(self, x, name).to(dtype)
        gain, bias = self.params.get(f"{name}.gain"), self.params.get(f"{name}.bias")
        return norm(x, gain, bias, self.model.norm_eps, dtype, center=kind.centers)

    def _read(self, x: Tensor, name: str | None, *, last: bool) -> Tensor:
        """What the next part reads of the stream, or behind the *last* one the head: its norm, in the reader's precision."""
        dtype = self._out if last else self.dtype
        return x.to(dtype) if name is None else self._norm(x, name, dtype)

    def _skip(self, x: Tensor, number: int) -> Tensor:
        """x + λ · x0 in front of block *number*, with its learned λ."""
        if self.x0 is None or number == self.model.layers:
            return x
        return x + self.params[f"{skip_before(number)}.weight"][:, :, None, None] * self.x0

    def _add(
        self,
        x: Tensor,
        o: Tensor,
        bias: Tensor | None,
        place: str,
        on_sum: str | None,
        following: str | None,
        entered: int | None,
    ) -> tuple[Tensor, Tensor]:
        """The stream with a part's output added, and what is read of it next, through the norm *following*: one kernel on a
        GPU where there is one, unless something happens to the sum between them. *entered* is the block that begins here."""
        last = entered == self.model.layers
        along, across = residual_scales(self.model)
        direct = (
            self.keep is None and on_sum is None and along == across == 1.0 and (self.x0 is None or entered is None)
        )
        center = norm_kind(self.model, following).centers if direct and following is not None else None
        if center is not None:
            gain, shift = self.params.get(f"{following}.gain"), self.params.get(f"{following}.bias")
            dtype = self._out if last else self.dtype
            return add_norm(x, o, bias, gain, shift, self.model.norm_eps, dtype, center=center)
        if not along == across == 1.0:
            x, o, bias = along * x, across * add_bias(o, bias), None
        total = add(x, o, bias)
        if on_sum is not None:
            total = self._norm(total, on_sum, torch.float32)
        if self.keep is not None:
            self.keep(place, total)
        if entered is not None:
            total = self._skip(total, entered)
        return total, self._read(total, following, last=last)


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


def look_up(w_RVD: Tensor, tokens_RBT: Tensor) -> Tensor:
    """x_RBTD = rows of each run's own embedding table."""
    runs, vocabulary, width = w_RVD.shape
    if vocabulary <= ONE_HOT_VOCABULARY:
        rows: Tensor = _OneHotLookUp.apply(w_RVD, tokens_RBT)  # type: ignore[no-untyped-call]
        return rows
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
