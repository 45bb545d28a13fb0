"""Ways to attend: what stands between the queries, keys and values of a block and the output of its heads.

The forward pass attends causally. Dropout drops attention weights by name, scoring attends over packed rows, and probes need
the attention matrices themselves; each is an `Attend` that a `ForwardPass` is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from ablationlab.model.dropout import Dropout
from ablationlab.model.ops import causal_attention, fused, masked_attention, norm, packs, short_attention
from ablationlab.model.parts import POSITIONS
from ablationlab.records.settings import ModelConfig

if TYPE_CHECKING:
    from ablationlab.model.gpt import ForwardPass


@dataclass(frozen=True, eq=False)
class ScoreRule:
    """What becomes of the scores s = q·k / √d before the softmax, on top of the mask:

        c · tanh(s / c) - slope · distance,   and minus infinity where distance >= window

    Distances are differences of positions, which count from 0 where they are not given.
    """

    softcap: float | None = None
    slopes: tuple[float, ...] = ()
    window: int | None = None
    positions_BT: Tensor | None = None

    @property
    def plain(self) -> bool:
        """Whether it changes nothing."""
        return self.softcap is None and not self.slopes and self.window is None

    @property
    def masks_alone(self) -> bool:
        """Whether it hides keys and changes no score: torch's fused attention then takes a mask."""
        return self.softcap is None and not self.slopes

    def seen(self, time: int, device: torch.device) -> Tensor:
        """Which keys (last axis) are inside the window of a query: (T, T), or (B, 1, T, T) where positions are given."""
        distance = self._distance(time, device)
        return distance < (self.window or time)

    def __call__(self, scores_RBHTT: Tensor) -> Tensor:
        time, device = scores_RBHTT.shape[-1], scores_RBHTT.device
        if self.softcap is not None:
            scores_RBHTT = self.softcap * torch.tanh(scores_RBHTT / self.softcap)
        if self.slopes:
            scores_RBHTT = scores_RBHTT - _slopes(self.slopes, device) * self._distance(time, device)
        if self.window is not None:
            scores_RBHTT = scores_RBHTT.masked_fill(~self.seen(time, device), float("-inf"))
        return scores_RBHTT

    def _distance(self, time: int, device: torch.device) -> Tensor:
        if self.positions_BT is None:
            at = torch.arange(time, device=device)
            return at[:, None] - at
        return (self.positions_BT[:, :, None] - self.positions_BT[:, None, :])[:, None]


@lru_cache(maxsize=16)
def _slopes(slopes: tuple[float, ...], device: torch.device) -> Tensor:
    # Kept, since a graph that is being recorded cannot take numbers from the host.
    return torch.tensor(slopes, device=device)[:, None, None]


PLAIN = ScoreRule()


def score_rule(model: ModelConfig, positions_BT: Tensor | None = None) -> ScoreRule:
    """The rule of a model's settings."""
    slopes = POSITIONS[model.position].slopes(model.heads)
    if model.attention_softcap is None and not slopes and model.window is None:
        return PLAIN
    return ScoreRule(model.attention_softcap, slopes, model.window, positions_BT)


class Attend(Protocol):
    """y_RBTD of qkv_RBTC, where queries, keys and values, one of each per head, stand side by side in the last axis."""

    def by(self, rule: ScoreRule) -> Attend:
        """The same, with this rule for scores."""
        ...

    def adds_bias(self, y: Tensor, heads: int) -> bool:
        """Whether it adds the bias of the layer before it, whose input is y_RBTD; a kernel may."""
        ...

    def __call__(self, qkv_RBTC: Tensor, bias_RC: Tensor | None, heads: int, name: str) -> Tensor:
        """*name* is that of the block's attention; *bias_RC* is left to be added, or None."""
        ...


@dataclass(frozen=True, eq=False)
class _ByRule:
    rule: ScoreRule = field(default=PLAIN, kw_only=True)

    def by(self, rule: ScoreRule) -> Self:
        return self if rule is self.rule else replace(self, rule=rule)


@dataclass(frozen=True, eq=False)
class CausalAttention(_ByRule):
    """Every token attends to itself and to all before it."""

    def adds_bias(self, y: Tensor, heads: int) -> bool:
        return self.rule.plain and short_attention(y, y.shape[2], y.shape[3] // heads)

    def __call__(self, qkv_RBTC: Tensor, bias_RC: Tensor | None, heads: int, name: str) -> Tensor:
        if self.rule.plain:
            return causal_attention(qkv_RBTC, bias_RC, heads)
        if self.rule.masks_alone:
            return plain_attention(qkv_RBTC, self._mask(qkv_RBTC), heads)
        weights, values = masked_attention(qkv_RBTC, heads, self.rule)
        return _joined(weights @ values)

    def _mask(self, qkv_RBTC: Tensor) -> Tensor:
        time = qkv_RBTC.shape[2]
        return self.rule.seen(time, qkv_RBTC.device).tril()


@dataclass(frozen=True, eq=False)
class DroppedAttention(_ByRule):
    """The same with some of its weights dropped. Fused attention takes no named mask, so this is the plain form."""

    dropout: Dropout

    def adds_bias(self, y: Tensor, heads: int) -> bool:
        return False

    def __call__(self, qkv_RBTC: Tensor, bias_RC: Tensor | None, heads: int, name: str) -> Tensor:
        weights, values = masked_attention(qkv_RBTC, heads, None if self.rule.plain else self.rule)
        return _joined(self.dropout(weights, name) @ values)


@dataclass(frozen=True, eq=False)
class ObservedAttention(_ByRule):
    """Causal attention written out; *observe* sees scores_RBHTT (future keys at -inf) and weights_RBHTT of every block."""

    observe: Callable[[str, Tensor, Tensor], None]

    def adds_bias(self, y: Tensor, heads: int) -> bool:
        return False

    def __call__(self, qkv_RBTC: Tensor, bias_RC: Tensor | None, heads: int, name: str) -> Tensor:
        R, B, T, columns = qkv_RBTC.shape
        q, k, v = qkv_RBTC.view(R * B, T, 3, heads, columns // 3 // heads).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)).float() / math.sqrt(q.shape[-1])
        if not self.rule.plain:
            scores = self.rule(scores.view(R, B, heads, T, T)).flatten(0, 1)
        future = torch.ones(T, T, dtype=torch.bool, device=qkv_RBTC.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
        weights: Tensor = scores.softmax(dim=-1)
        self.observe(name, scores.detach().view(R, B, heads, T, T), weights.detach().view(R, B, heads, T, T))
        y: Tensor = weights.to(qkv_RBTC.dtype) @ v
        return y.transpose(1, 2).reshape(R, B, T, columns // 3)


@dataclass(frozen=True, eq=False)
class PackedAttention(_ByRule):
    """Attention over packed rows: a shared beginning followed by several endings that do not see each other.

        row = prefix ‖ tail_1 ‖ ... ‖ tail_n

    A token of a tail attends to the whole prefix and to its own tail up to itself. In ``segments_BT`` 0 is the prefix,
    1.. are the tails and -1 is padding. What all blocks share is made once.
    """

    segments_BT: Tensor
    runs: int

    def adds_bias(self, y: Tensor, heads: int) -> bool:
        return self.rule.plain and packs(y, y.shape[3] // heads)

    def __call__(self, qkv_RBTC: Tensor, bias_RC: Tensor | None, heads: int, name: str) -> Tensor:
        if self.rule.plain and packs(qkv_RBTC, qkv_RBTC.shape[3] // 3 // heads):
            from ablationlab.model.kernels.attention import packed_attention

            return packed_attention(qkv_RBTC, bias_RC, self.segments_BT, heads)
        if self.rule.masks_alone:
            return plain_attention(qkv_RBTC, self.added, heads)
        R, B, T, columns = qkv_RBTC.shape
        q, k, v = qkv_RBTC.view(R, B, T, 3, heads, columns // 3 // heads).permute(3, 0, 1, 4, 2, 5)
        scores = self.rule((q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).float())
        weights = (scores + self.added.view(R, B, 1, T, T)).softmax(dim=-1).to(qkv_RBTC.dtype)
        return _joined(weights @ v)

    @cached_property
    def added(self) -> Tensor:
        """What is added to the scores, 0 or minus infinity, of every row of every run."""
        mask_BTT = packed_mask(self.segments_BT)
        if self.rule.window is not None:
            # Padding has no position worth the name; it attends to itself.
            itself = torch.eye(mask_BTT.shape[-1], dtype=torch.bool, device=mask_BTT.device)
            mask_BTT = mask_BTT & (self.rule.seen(mask_BTT.shape[-1], mask_BTT.device).squeeze(1) | itself)
        added = torch.zeros(mask_BTT.shape, device=mask_BTT.device).masked_fill_(~mask_BTT, float("-inf"))
        return added.expand(self.runs, -1, -1, -1).flatten(0, 1)[:, None]


def _joined(y_RBHTC: Tensor) -> Tensor:
    """The heads side by side."""
    return y_RBHTC.transpose(2, 3).flatten(3)


def prepared(forward: ForwardPass, qkv_RBTC: Tensor, prefix: str) -> Tensor:
    """Queries, keys and values as every way to attend takes them: normed, rotated and scaled, in fp32; keys and values are
    repeated for the queries that share them."""
    model, position = forward.model, POSITIONS[forward.model.position]
    kv, size = model.kv_heads or model.heads, model.head_width
    if fused(qkv_RBTC) and turns_alone(forward, prefix):
        from ablationlab.model.kernels.rotation import Turn

        cos, sin = rotation(model.context, size, model.rotary_base, qkv_RBTC.device)
        eps = None if model.qk_norm == "none" else model.norm_eps
        turned: Tensor = Turn.apply(qkv_RBTC, cos, sin, model.heads, eps)  # type: ignore[no-untyped-call]
        return turned
    columns = [model.heads * size, kv * size, kv * size]
    q, k, v = torch.split(qkv_RBTC, columns, dim=-1)
    q, k = (x.float() if model.qk_norm != "none" or position.rotates else x for x in (q, k))
    if model.qk_norm_over == "width":
        q, k = _qk_norm(forward, q, f"{prefix}.q_norm"), _qk_norm(forward, k, f"{prefix}.k_norm")
    q, k, v = (x.reshape(*x.shape[:3], -1, size) for x in (q, k, v))
    if model.qk_norm_over == "head":
        q, k = _qk_norm(forward, q, f"{prefix}.q_norm"), _qk_norm(forward, k, f"{prefix}.k_norm")
    q, k = position.rotated(forward, q), position.rotated(forward, k)
    if model.attention_scale != 1.0:
        q = q * model.attention_scale
    if kv != model.heads:
        k, v = (x[..., None, :].expand(-1, -1, -1, -1, model.heads // kv, -1).flatten(3, 4) for x in (k, v))
    return torch.cat([x.flatten(3).to(qkv_RBTC.dtype) for x in (q, k, v)], dim=-1)


def turns_alone(forward: ForwardPass, prefix: str) -> bool:
    """Whether queries and keys are only turned, whole, at most after an RMSNorm without gain: what a kernel can."""
    model = forward.model
    return (
        model.position == "rotary"
        and model.rotated == model.head_width
        and forward.positions_BT is None
        and (model.kv_heads or model.heads) == model.heads
        and model.attention_scale == 1.0
        and (
            model.qk_norm == "none"
            or (
                (model.qk_norm, model.qk_norm_over) == ("rmsnorm", "head")
                and f"{prefix}.q_norm.gain" not in forward.params
            )
        )
    )


def _qk_norm(forward: ForwardPass, x: Tensor, name: str) -> Tensor:
    model = forward.model
    if model.qk_norm == "none":
        return x
    gain = forward.params.get(f"{name}.gain")
    return norm(x, gain, None, model.norm_eps, torch.float32, center=model.qk_norm == "layernorm")


@lru_cache(maxsize=16)
def angles(length: int, count: int, base: float, device: torch.device) -> Tensor:
    """t · base^(-2i / count) for positions t (rows) and i = 0 .. count/2 - 1."""
    rates = base ** (-torch.arange(0, count, 2, dtype=torch.float64) / count)
    return (torch.arange(length, dtype=torch.float64)[:, None] * rates).to(device=device, dtype=torch.float32)


@lru_cache(maxsize=16)
def rotation(length: int, count: int, base: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of these angles."""
    at = angles(length, count, base, device)
    return at.cos(), at.sin()


def plain_attention(qkv_RBTC: Tensor, added: Tensor, heads: int) -> Tensor:
    """y_RBTD of torch's own attention, with something added to the scores; what the kernel must agree with."""
    R, B, T, columns = qkv_RBTC.shape
    q, k, v = qkv_RBTC.view(R * B, T, 3, heads, columns // 3 // heads).permute(2, 0, 3, 1, 4)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=added)
    return y.transpose(1, 2).reshape(R, B, T, columns // 3)


def packed_mask(segments_BT: Tensor) -> Tensor:
    """mask_BTT[b, i, j]: whether token i of packed row b may attend to token j."""
    length = segments_BT.shape[-1]
    causal = torch.ones(length, length, dtype=torch.bool, device=segments_BT.device).tril()
    query, key = segments_BT[:, :, None], segments_BT[:, None, :]
    allowed = ((key == 0) | (key == query)) & causal
    # Padding attends to itself, so that its rows are finite; nothing attends to padding.
    return allowed | torch.eye(length, dtype=torch.bool, device=segments_BT.device)
