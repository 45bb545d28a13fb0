"""The parts of a block, each with its parameters, its cost and its function side by side. Importing this loads no torch.

A block adds its parts to the residual stream one after the other, each behind a norm: ``x += part(norm(x))``. To add a
kind of MLP, write a subclass of `BlockPart` and register it in `MLPS`; a model chooses it with ``mlp``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ablationlab.core.registry import Registry
from ablationlab.model.weights import Parameter, affine, linear
from ablationlab.records.settings import ModelConfig

if TYPE_CHECKING:
    from torch import Tensor

    from ablationlab.model.gpt import ForwardPass, Parameters


@dataclass(frozen=True)
class PartCost:
    """What one token costs in a part of a block. Numbers are in the precision of the products unless said otherwise."""

    linear_flops: int  # of the linear layers, forward
    attention_flops: int = 0  # of the attention products, forward
    moved: int = 0  # numbers written once and read once, forward and backward
    kept: int = 0  # numbers kept for the backward pass, beside the normed input
    kept_fp32: int = 0  # numbers kept in fp32


class BlockPart(ABC):
    """One branch of a block. *prefix* is ``blocks.<number>.<name>``: names of parameters and dropout sites begin with it."""

    name: ClassVar[str]
    group: ClassVar[str]  # of its parameters, in the records of probes
    # Whether the bound of the probe `gradient-bound` holds for it: it then has `path`, and an MLP also `jacobian`.
    has_gradient_bound: bool = False

    @abstractmethod
    def parameters(self, model: ModelConfig, prefix: str) -> list[Parameter]:
        """What it learns: those of `linear` layers, and others of its own, with names that begin with the prefix."""

    @abstractmethod
    def cost(self, model: ModelConfig) -> PartCost:
        """Its matrix products for one token."""

    @abstractmethod
    def __call__(self, forward: ForwardPass, y: Tensor, prefix: str) -> tuple[Tensor, Tensor | None]:
        """Its output from the normed stream y_RBTD, and a bias that the reader of the output still has to add."""

    def dropout_sites(self, prefix: str) -> tuple[str, ...]:
        """Where it drops units."""
        return (prefix,)

    def path(self, params: Parameters, prefix: str) -> tuple[Tensor, Tensor]:
        """The two matrices_RIO that a vector passes on its way through."""
        raise NotImplementedError

    def jacobian(self, params: Parameters, prefix: str, y_RKD: Tensor, before_RKDD: Tensor) -> Tensor:
        """``before · d part(y) / dy`` at some vectors: (R, K, D, D), rows are inputs. In single precision."""
        raise NotImplementedError


class SelfAttention(BlockPart):
    """Queries, keys and values from one linear layer, attention over them, and another linear layer.

        softmax(rule(q·k / √d_head)) v,   times a gate σ(y G) where there is one

    `attention.prepared` norms, rotates and repeats them, `ScoreRule` is the rule.
    """

    name, group = "attn", "attention"
    has_gradient_bound = True

    def parameters(self, model: ModelConfig, prefix: str) -> list[Parameter]:
        width, kept = model.width, (model.kv_heads or model.heads) * model.head_width
        # Fewer keys and values are the first columns of those that a model with all of them would draw.
        values = _deepnorm(model)
        pieces: tuple[tuple[int, int, float], ...] = ()
        if kept != width or values != 1.0:
            pieces = ((0, width, 1.0), (width, width + kept, 1.0), (2 * width, 2 * width + kept, values))
        sections = (width, kept, kept)
        owned = linear(
            f"{prefix}.qkv", width, 3 * width, model.init_std, bias=model.biases, pieces=pieces, sections=sections
        )
        if model.qk_norm != "none" and model.norm_gain:
            sizes = (model.head_width,) * 2 if model.qk_norm_over == "head" else (width, kept)
            for name, size in zip(("q_norm", "k_norm"), sizes, strict=True):
                owned += affine(f"{prefix}.{name}", size, bias=False)
        if model.attention_gate != "none":
            owned += linear(f"{prefix}.gate", width, self._gates(model), model.init_std, bias=model.biases)
        return owned + linear(f"{prefix}.out", width, width, _residual_std(model), bias=model.biases)

    def _gates(self, model: ModelConfig) -> int:
        return {"none": 0, "head": model.heads, "element": model.width}[model.attention_gate]

    def dropout_sites(self, prefix: str) -> tuple[str, ...]:
        return prefix, f"{prefix}.out"

    def cost(self, model: ModelConfig) -> PartCost:
        """Both attention products are counted in full: neither the causal half nor keys outside a window are discounted.
        Queries, keys, values and what was attended are kept, and a log-sum per head; where the scores follow a rule, they are
        kept, too. What queries and keys pass before the product moves and keeps both again, in fp32."""
        width, kept = model.width, (model.kv_heads or model.heads) * model.head_width
        gates = self._gates(model)
        prepares, normed = self._prepares(model), model.qk_norm != "none"
        ruled = model.attention_softcap is not None or bool(POSITIONS[model.position].slopes(model.heads))
        scores = model.heads * model.context if ruled else 0
        return PartCost(
            2 * width * (width + 2 * kept + gates + width),
            4 * model.context * width,
            moved=7 * width + (8 * width if prepares else 0) + 2 * gates + 4 * scores,
            kept=4 * width + (3 * width if prepares else 0) + 2 * gates + scores,
            kept_fp32=model.heads + (2 * (width + kept) if normed else 0) + (2 * scores),
        )

    def _prepares(self, model: ModelConfig) -> bool:
        return (
            model.qk_norm != "none"
            or POSITIONS[model.position].rotates
            or model.attention_scale != 1.0
            or (model.kv_heads or model.heads) != model.heads
        )

    def __call__(self, forward: ForwardPass, y: Tensor, prefix: str) -> tuple[Tensor, Tensor | None]:
        model, attend = forward.model, forward.attention
        prepares = self._prepares(model)
        keep_bias = prepares or not attend.adds_bias(y, model.heads)
        qkv, bias = forward.layer(y, f"{prefix}.qkv", keep_bias=keep_bias)
        if prepares:
            from ablationlab.model.attention import prepared

            qkv = prepared(forward, qkv, prefix)
        a = attend(qkv, bias, model.heads, prefix)
        if model.attention_gate != "none":
            gate, _ = forward.layer(y, f"{prefix}.gate", keep_bias=True)
            a = (a.view(*gate.shape, -1) * gate.sigmoid()[..., None]).flatten(-2)
        o, bias = forward.layer(a, f"{prefix}.out", keep_bias=forward.dropout is not None)
        return (o, bias) if forward.dropout is None else (forward.dropout(o, f"{prefix}.out"), None)

    def path(self, params: Parameters, prefix: str) -> tuple[Tensor, Tensor]:
        """That of the values."""
        qkv, out = params[f"{prefix}.qkv.weight"], params[f"{prefix}.out.weight"]
        return qkv[..., 2 * (qkv.shape[-1] // 3) :], out


class FeedForward(BlockPart):
    """Linear layers up to the hidden units, whose names are *inner*, and one down from them."""

    name = group = "mlp"
    inner: ClassVar[tuple[str, ...]] = ("up",)

    def __init__(self, activation: str) -> None:
        self.activation = activation

    def parameters(self, model: ModelConfig, prefix: str) -> list[Parameter]:
        width, hidden, start = model.width, model.hidden, _inner_std(model)
        layers = [(name, width, hidden, start) for name in self.inner]
        return [
            parameter
            for name, rows, columns, std in [*layers, ("down", hidden, width, _residual_std(model))]
            for parameter in linear(f"{prefix}.{name}", rows, columns, std, bias=model.biases, redraw=model.redraw)
        ]

    def down(self, forward: ForwardPass, activated: Tensor, prefix: str) -> tuple[Tensor, Tensor | None]:
        """From the hidden units back to the stream."""
        o, bias = forward.layer(activated, f"{prefix}.down", keep_bias=forward.dropout is not None)
        return (o, bias) if forward.dropout is None else (forward.dropout(o, prefix), None)


class Mlp(FeedForward):
    """Two linear layers around an activation: f(y U) D."""

    def __init__(self, activation: str) -> None:
        super().__init__(activation)
        # The bound takes the activation for the identity. The slopes of the others end near 1; that of relu2 grows with y U.
        self.has_gradient_bound = activation != "relu2"

    def cost(self, model: ModelConfig) -> PartCost:
        """The hidden units are kept before and after the activation."""
        width, hidden = model.width, model.hidden
        return PartCost(4 * width * hidden, moved=2 * width + 4 * hidden, kept=2 * hidden)

    def __call__(self, forward: ForwardPass, y: Tensor, prefix: str) -> tuple[Tensor, Tensor | None]:
        from ablationlab.model.ops import activated as activate
        from ablationlab.model.ops import bias_gelu

        if self.activation == "gelu":
            h, bias = forward.layer(y, f"{prefix}.up")
            activated = bias_gelu(h, bias)
        else:
            h, _ = forward.layer(y, f"{prefix}.up", keep_bias=True)
            activated = activate(h, self.activation)
        return self.down(forward, activated, prefix)

    def path(self, params: Parameters, prefix: str) -> tuple[Tensor, Tensor]:
        return params[f"{prefix}.up.weight"], params[f"{prefix}.down.weight"]

    def jacobian(self, params: Parameters, prefix: str, y_RKD: Tensor, before_RKDD: Tensor) -> Tensor:
        import torch

        from ablationlab.model.ops import ACTIVATIONS

        up, down = self.path(params, prefix)
        hidden = y_RKD @ up
        if (bias := params.get(f"{prefix}.up.bias")) is not None:
            hidden = hidden + bias[:, None]
        with torch.enable_grad():
            at = hidden.detach().requires_grad_()
            (slope,) = torch.autograd.grad(ACTIVATIONS[self.activation](at).sum(), at)
        return (before_RKDD @ up[:, None] * slope[:, :, None]) @ down[:, None]


class GatedMlp(FeedForward):
    """(f(y G) * y U) D (Shazeer 2020). Two thirds of the hidden units give the parameters and FLOPs of `Mlp`."""

    inner = ("gate", "up")

    def cost(self, model: ModelConfig) -> PartCost:
        """Both layers' outputs, the activation and the product are kept."""
        width, hidden = model.width, model.hidden
        return PartCost(6 * width * hidden, moved=2 * width + 7 * hidden, kept=4 * hidden)

    def __call__(self, forward: ForwardPass, y: Tensor, prefix: str) -> tuple[Tensor, Tensor | None]:
        from ablationlab.model.ops import activated

        gate, _ = forward.layer(y, f"{prefix}.gate", keep_bias=True)
        up, _ = forward.layer(y, f"{prefix}.up", keep_bias=True)
        return self.down(forward, activated(gate, self.activation, up), prefix)


class ResidualNorm(ABC):
    """A norm of the residual stream, or of what a part adds to it. *name* is that of the place."""

    # Whether the steps of `ops` compute it, with or without taking the mean away; None where it is a function of its own.
    centers: ClassVar[bool | None] = None

    def parameters(self, model: ModelConfig, name: str) -> list[Parameter]:
        """``name.gain`` and ``name.bias``, where the model has them."""
        return affine(name, model.width, gain=model.norm_gain, bias=model.norm_gain and model.biases)

    @abstractmethod
    def __call__(self, forward: ForwardPass, x: Tensor, name: str) -> Tensor:
        """Of x_RBTD, in fp32."""


class LayerNorm(ResidualNorm):
    """(x - mean) / sqrt(var + eps) · g + b."""

    centers = True

    def __call__(self, forward: ForwardPass, x: Tensor, name: str) -> Tensor:
        import torch

        from ablationlab.model.ops import norm

        gain, bias = forward.params.get(f"{name}.gain"), forward.params.get(f"{name}.bias")
        return norm(x, gain, bias, forward.model.norm_eps, torch.float32, center=self.centers)


class RmsNorm(LayerNorm):
    """x / sqrt(mean(x²) + eps) · g; it has no bias."""

    centers = False

    def parameters(self, model: ModelConfig, name: str) -> list[Parameter]:
        return affine(name, model.width, gain=model.norm_gain, bias=False)


class PositionScheme:
    """How a model knows the order of tokens: vectors added to theirs, queries and keys rotated, or scores lowered."""

    rotates: ClassVar[bool] = False

    def parameters(self, model: ModelConfig) -> list[Parameter]:
        """What it learns."""
        return []

    def __call__(self, forward: ForwardPass, length: int) -> Tensor:
        """pos_RBTD, added to the vectors of the tokens, for every run of the stack; B, T and D may be 1."""
        return forward.params["tok.weight"].new_zeros(len(forward.fronts), 1, 1, 1)

    def rotated(self, forward: ForwardPass, x_RBTHC: Tensor) -> Tensor:
        """Queries, or keys."""
        return x_RBTHC

    def slopes(self, heads: int) -> tuple[float, ...]:
        """By which the scores of every head fall per token of distance."""
        return ()


class LearnedPositions(PositionScheme):
    """A table of one vector per position."""

    def parameters(self, model: ModelConfig) -> list[Parameter]:
        return [Parameter("pos.weight", (model.context, model.width), model.position_init_std)]

    def __call__(self, forward: ForwardPass, length: int) -> Tensor:
        table = forward.params["pos.weight"]
        return table[:, None, :length] if forward.positions_BT is None else table[:, forward.positions_BT]


class SinusoidalPositions(PositionScheme):
    """√2 · std · sin and cos of t · 10000^(-2i/d), side by side (Vaswani et al. 2017): a fixed table, with the RMS that a
    learned one starts from. Theirs is ``position_init_std`` = √½."""

    def __call__(self, forward: ForwardPass, length: int) -> Tensor:
        from ablationlab.model.attention import angles

        model, device = forward.model, forward.params["tok.weight"].device
        at = angles(model.context, 2 * (-(-model.width // 2)), 10_000.0, device)
        table = math.sqrt(2) * model.position_init_std * _side_by_side(at.sin(), at.cos())[:, : model.width]
        rows = table[None, :length] if forward.positions_BT is None else table[forward.positions_BT]
        return rows.expand(len(forward.fronts), *rows.shape)


def _side_by_side(even: Tensor, odd: Tensor) -> Tensor:
    import torch

    return torch.stack([even, odd], dim=-1).flatten(-2)


class RotaryPositions(PositionScheme):
    """Queries and keys are turned, pair by pair: (x₁, x₂) → (x₁ cos a - x₂ sin a, x₂ cos a + x₁ sin a), by the angle
    a = t · base^(-2i/n) at position t, over the first n = fraction · d_head numbers of a head (Su et al. 2021). Number i is
    paired with number i + n/2, as in GPT-NeoX and Llama."""

    rotates = True

    def rotated(self, forward: ForwardPass, x_RBTHC: Tensor) -> Tensor:
        import torch

        from ablationlab.model.attention import rotation

        model = forward.model
        count = model.rotated
        cos, sin = rotation(model.context, count, model.rotary_base, x_RBTHC.device)
        at = slice(x_RBTHC.shape[2]) if forward.positions_BT is None else forward.positions_BT
        cos, sin = cos[at][..., None, :], sin[at][..., None, :]  # (T, 1, n/2), or (B, T, 1, n/2)
        first, second = x_RBTHC[..., :count].chunk(2, dim=-1)
        turned = [first * cos - second * sin, second * cos + first * sin]
        return torch.cat(turned if count == x_RBTHC.shape[-1] else [*turned, x_RBTHC[..., count:]], dim=-1)


class AlibiPositions(PositionScheme):
    """score - slope · distance, with the slopes 2^(-8/H), 2^(-16/H), ... of H heads (Press et al. 2022). For an H that is no
    power of two: those of the power below, then every second one of twice that power."""

    def slopes(self, heads: int) -> tuple[float, ...]:
        below = 2 ** int(math.log2(heads))

        def series(count: int) -> list[float]:
            return [2 ** (-8 * (head + 1) / count) for head in range(count)]

        return tuple(series(below) + series(2 * below)[::2][: heads - below])


class NoPositions(PositionScheme):
    """Nothing but the causal mask (Haviv et al. 2022)."""


class Head(ABC):
    """Computes logits_RBTV in fp32 from the output of the last norm."""

    @abstractmethod
    def parameters(self, model: ModelConfig) -> list[Parameter]:
        """What it learns besides the token embedding."""

    @abstractmethod
    def __call__(self, forward: ForwardPass, y: Tensor) -> Tensor:
        """logits_RBTV in fp32, of y_RBTD."""

    def flops(self, model: ModelConfig) -> int:
        """Matrix-multiply FLOPs of one token, forward."""
        assert model.vocabulary is not None
        return 2 * model.vocabulary * model.width


class LinearHead(Head):
    """y · Wᵀ + b, with the token embedding for W where they are tied; c · tanh(· / c) of it where a soft-cap c is set."""

    def parameters(self, model: ModelConfig) -> list[Parameter]:
        assert model.vocabulary is not None
        std = model.init_std if model.head_init_std is None else model.head_init_std
        own = [] if model.tied else [Parameter("head.weight", (model.vocabulary, model.width), std)]
        return own + ([Parameter("head.bias", (model.vocabulary,))] if model.head_bias else [])

    def __call__(self, forward: ForwardPass, y: Tensor) -> Tensor:
        return forward.linear_head(y)


#: (logits_RBTV, targets_RBT, model) -> term_R, added to the loss that is differentiated; the recorded loss is without it.
LossTerm = Callable[["Tensor", "Tensor", ModelConfig], "Tensor"]

ATTENTIONS: Registry[BlockPart] = Registry("attention")
ATTENTIONS.add("causal", SelfAttention())
MLPS: Registry[BlockPart] = Registry("MLP")
for _name in ("gelu", "relu", "relu2", "silu"):
    MLPS.add(_name, Mlp(_name))
MLPS.add("swiglu", GatedMlp("silu"))
MLPS.add("geglu", GatedMlp("gelu"))
NORMS: Registry[ResidualNorm] = Registry("norm")
NORMS.add("layernorm", LayerNorm())
NORMS.add("rmsnorm", RmsNorm())
POSITIONS: Registry[PositionScheme] = Registry("position scheme")
POSITIONS.add("learned", LearnedPositions())
POSITIONS.add("sinusoidal", SinusoidalPositions())
POSITIONS.add("rotary", RotaryPositions())
POSITIONS.add("alibi", AlibiPositions())
POSITIONS.add("none", NoPositions())
HEADS: Registry[Head] = Registry("head")
HEADS.add("linear", LinearHead())
LOSS_TERMS: Registry[LossTerm] = Registry("loss term")
#: Settings that parts declare, with their defaults; a model overrides them in ``options``.
OPTIONS: Registry[bool | int | float | str] = Registry("option")
#: The registry of every kind of part, by the setting that names one.
PARTS: Mapping[str, Registry[Any]] = {
    "attention": ATTENTIONS,
    "mlp": MLPS,
    "norm": NORMS,
    "position": POSITIONS,
    "head": HEADS,
    "loss": LOSS_TERMS,
}


def option(model: ModelConfig, name: str) -> Any:
    """An option of a part: as the model has it, else its declared default."""
    return model.options.get(name, OPTIONS[name])


def parts_of(model: ModelConfig) -> tuple[tuple[str, BlockPart], ...]:
    """The parts of every block in their order, each with the name of its norm."""
    return ("norm1", ATTENTIONS[model.attention]), ("norm2", MLPS[model.mlp])


#: Where the norms of a part stand, by ``norm_place``: before it, behind it on its way into the stream, or on their sum.
NORM_PLACES: Mapping[str, tuple[Literal["before", "behind", "sum"], ...]] = {
    "pre": ("before",),
    "post": ("sum",),
    "sandwich": ("before", "behind"),
    "output": ("behind",),
    "none": (),
}


def norms_of(model: ModelConfig, norm: str) -> dict[str, str]:
    """The norms of a part by their place, in the order of the forward pass; *norm* names the one before it or on the sum."""
    return {place: f"{norm}_out" if place == "behind" else norm for place in NORM_PLACES[model.norm_place]}


def norm_before(model: ModelConfig, number: int) -> str | None:
    """The norm in front of block *number*; behind the last block it is the final norm, where there is one."""
    if number == model.layers:
        return "final_norm" if model.final_norm else None
    before = norms_of(model, parts_of(model)[0][0]).get("before")
    return None if before is None else f"blocks.{number}.{before}"


def skip_before(number: int) -> str:
    """The name of the embedding skip in front of block *number*."""
    return f"blocks.{number}.skip"


def norm_kind(model: ModelConfig, name: str) -> ResidualNorm:
    """Of the norm at a place."""
    other = model.final_norm if name == "final_norm" else None
    return NORMS[other if isinstance(other, str) else model.norm]


def other_kernels(model: ModelConfig) -> frozenset[str]:
    """Steps that run on a GPU in other kernels than those of a plain GPT-2: ours for the choice made, or torch's. The
    formulas and the precision are the same. It asks no registry, so it can be read of any plan."""
    grouped = model.kv_heads not in (None, model.heads)
    chosen = {
        "norms": model.norm != "layernorm" or model.final_norm not in (True, False, "layernorm") or not model.norm_gain,
        "residual sums": model.norm_place not in ("pre", "sandwich")
        or (model.residual_scale, model.branch_scale) != (1.0, 1.0)
        or model.embedding_skip is not None
        or model.parallel,
        "queries and keys": model.position == "rotary"
        or model.qk_norm != "none"
        or model.attention_scale != 1.0
        or grouped,
        "attention": model.position not in ("learned", "sinusoidal", "rotary", "none")
        or model.attention_softcap is not None
        or model.window is not None
        or model.attention_gate != "none"
        or model.attention != "causal"
        or model.dropout > 0,
        "activation": model.mlp != "gelu",
        "loss": model.head != "linear" or model.head_bias or model.head_softcap is not None or bool(model.loss_terms),
    }
    return frozenset(step for step, differs in chosen.items() if differs)


def residual_scales(model: ModelConfig) -> tuple[float, float]:
    """What the stream, and what a part adds to it, are multiplied by before they are summed."""
    if model.residual_scale == "deepnorm":
        return (2 * model.layers) ** 0.25, model.branch_scale
    return model.residual_scale, model.branch_scale


def _deepnorm(model: ModelConfig) -> float:
    """DeepNorm starts values, output and MLP matrices smaller, by (8 · layers)^¼ (Wang et al. 2022, decoder only)."""
    return (8 * model.layers) ** -0.25 if model.residual_scale == "deepnorm" else 1.0


def _inner_std(model: ModelConfig) -> float:
    return model.init_std * _deepnorm(model)


def _residual_std(model: ModelConfig) -> float:
    """Of the layers that write to the residual stream: zero, or as GPT-2 starts them, smaller by sqrt(2 · layers)."""
    if model.zero_init:
        return 0.0
    scaled = model.init_std / math.sqrt(2 * model.layers) if model.scaled_residual_init else model.init_std
    return scaled * _deepnorm(model)
