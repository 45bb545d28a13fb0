"""The parts of a block, each with its parameters, its cost and its function side by side. Importing this loads no torch.

A block adds its parts to the residual stream one after the other, each behind a norm: ``x += part(norm(x))``. To add a
kind of MLP, write a subclass of `BlockPart` and register it in `MLPS`; a model chooses it with ``mlp``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

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
    # GPT-2's names of its layers; None where GPT-2's format cannot hold it.
    gpt2_names: ClassVar[Mapping[str, str] | None] = None
    # Whether the bound of the probe `gradient-bound` holds for it: it then has `path`, and an MLP also `jacobian`.
    has_gradient_bound: ClassVar[bool] = False

    @abstractmethod
    def parameters(self, model: ModelConfig, prefix: str) -> list[Parameter]: ...

    @abstractmethod
    def cost(self, model: ModelConfig) -> PartCost: ...

    @abstractmethod
    def __call__(self, forward: ForwardPass, y: Tensor, prefix: str) -> tuple[Tensor, Tensor | None]:
        """Its output from the normed stream y_RBTD, and a bias that the reader of the output still has to add."""

    def dropout_sites(self, prefix: str) -> tuple[str, ...]:
        """Where it drops units."""
        return (prefix,)

    def gpt2_config(self, model: ModelConfig) -> dict[str, object]:
        """Its entries of transformers' GPT2Config."""
        return {}

    def path(self, params: Parameters, prefix: str) -> tuple[Tensor, Tensor]:
        """The two matrices_RIO that a vector passes on its way through."""
        raise NotImplementedError

    def jacobian(self, params: Parameters, prefix: str, y_RKD: Tensor, before_RKDD: Tensor) -> Tensor:
        """``before · d part(y) / dy`` at some vectors: (R, K, D, D), rows are inputs. In single precision."""
        raise NotImplementedError


class SelfAttention(BlockPart):
    """Queries, keys and values from one linear layer, attention over them, and another linear layer."""

    name, group = "attn", "attention"
    gpt2_names: ClassVar = {"qkv": "c_attn", "out": "c_proj"}
    has_gradient_bound = True

    def parameters(self, model: ModelConfig, prefix: str) -> list[Parameter]:
        width = model.width
        return [
            *linear(f"{prefix}.qkv", width, 3 * width, model.init_std, bias=model.biases),
            *linear(f"{prefix}.out", width, width, _residual_std(model), bias=model.biases),
        ]

    def dropout_sites(self, prefix: str) -> tuple[str, ...]:
        return prefix, f"{prefix}.out"

    def cost(self, model: ModelConfig) -> PartCost:
        """Both attention products are counted in full: the causal half is not discounted. Queries, keys, values and what
        was attended are kept, and a log-sum per head."""
        width = model.width
        return PartCost(8 * width**2, 4 * model.context * width, moved=7 * width, kept=4 * width, kept_fp32=model.heads)

    def __call__(self, forward: ForwardPass, y: Tensor, prefix: str) -> tuple[Tensor, Tensor | None]:
        heads, attend = forward.model.heads, forward.attention
        qkv, bias = forward.layer(y, f"{prefix}.qkv", keep_bias=not attend.adds_bias(y, heads))
        a = attend(qkv, bias, heads, prefix)
        o, bias = forward.layer(a, f"{prefix}.out", keep_bias=forward.dropout is not None)
        return (o, bias) if forward.dropout is None else (forward.dropout(o, f"{prefix}.out"), None)

    def path(self, params: Parameters, prefix: str) -> tuple[Tensor, Tensor]:
        """That of the values."""
        qkv, out = params[f"{prefix}.qkv.weight"], params[f"{prefix}.out.weight"]
        return qkv[..., 2 * (qkv.shape[-1] // 3) :], out


class GeluMlp(BlockPart):
    """Two linear layers around GELU in GPT-2's tanh form."""

    name = group = "mlp"
    gpt2_names: ClassVar = {"up": "c_fc", "down": "c_proj"}
    has_gradient_bound = True

    def parameters(self, model: ModelConfig, prefix: str) -> list[Parameter]:
        width, hidden = model.width, model.mlp_ratio * model.width
        return [
            *linear(f"{prefix}.up", width, hidden, model.init_std, bias=model.biases, redraw=model.redraw),
            *linear(f"{prefix}.down", hidden, width, _residual_std(model), bias=model.biases, redraw=model.redraw),
        ]

    def cost(self, model: ModelConfig) -> PartCost:
        """The hidden units are kept before and after GELU."""
        width, hidden = model.width, model.mlp_ratio * model.width
        return PartCost(4 * width * hidden, moved=2 * width + 4 * hidden, kept=2 * hidden)

    def gpt2_config(self, model: ModelConfig) -> dict[str, object]:
        return {"n_inner": model.mlp_ratio * model.width, "activation_function": "gelu_new"}

    def __call__(self, forward: ForwardPass, y: Tensor, prefix: str) -> tuple[Tensor, Tensor | None]:
        from ablationlab.model.ops import bias_gelu

        h, bias = forward.layer(y, f"{prefix}.up")
        o, bias = forward.layer(bias_gelu(h, bias), f"{prefix}.down", keep_bias=forward.dropout is not None)
        return (o, bias) if forward.dropout is None else (forward.dropout(o, prefix), None)

    def path(self, params: Parameters, prefix: str) -> tuple[Tensor, Tensor]:
        return params[f"{prefix}.up.weight"], params[f"{prefix}.down.weight"]

    def jacobian(self, params: Parameters, prefix: str, y_RKD: Tensor, before_RKDD: Tensor) -> Tensor:
        import torch
        import torch.nn.functional as F

        up, down = self.path(params, prefix)
        hidden = y_RKD @ up
        if (bias := params.get(f"{prefix}.up.bias")) is not None:
            hidden = hidden + bias[:, None]
        with torch.enable_grad():
            at = hidden.detach().requires_grad_()
            (slope,) = torch.autograd.grad(F.gelu(at, approximate="tanh").sum(), at)
        return (before_RKDD @ up[:, None] * slope[:, :, None]) @ down[:, None]


class ResidualNorm(ABC):
    """A norm before every part of a block and after the last block. *name* is that of the place."""

    def parameters(self, model: ModelConfig, name: str) -> list[Parameter]:
        return affine(name, model.width, bias=model.biases)

    @abstractmethod
    def __call__(self, forward: ForwardPass, x: Tensor, name: str) -> Tensor:
        """Of the residual stream x_RBTD, in fp32."""


class LayerNorm(ResidualNorm):
    """(x - mean) / sqrt(var + eps) · g + b."""

    def __call__(self, forward: ForwardPass, x: Tensor, name: str) -> Tensor:
        import torch

        from ablationlab.model.ops import norm

        gain, bias = forward.params[f"{name}.gain"], forward.params.get(f"{name}.bias")
        return norm(x, gain, bias, forward.model.norm_eps, torch.float32)


class PositionScheme(ABC):
    """Vectors that are added to those of the tokens. Positions count from 0 where they are not given."""

    @abstractmethod
    def parameters(self, model: ModelConfig) -> list[Parameter]: ...

    @abstractmethod
    def __call__(self, forward: ForwardPass, length: int, positions_BT: Tensor | None) -> Tensor:
        """pos_RBTD for every run of the stack; B may be 1."""


class LearnedPositions(PositionScheme):
    """A table of one vector per position."""

    def parameters(self, model: ModelConfig) -> list[Parameter]:
        return [Parameter("pos.weight", (model.context, model.width), model.position_init_std)]

    def __call__(self, forward: ForwardPass, length: int, positions_BT: Tensor | None) -> Tensor:
        table = forward.params["pos.weight"]
        return table[:, None, :length] if positions_BT is None else table[:, positions_BT]


class Head(ABC):
    """From what the last norm gives to logits_RBTV in fp32."""

    @abstractmethod
    def parameters(self, model: ModelConfig) -> list[Parameter]: ...

    @abstractmethod
    def __call__(self, forward: ForwardPass, y: Tensor) -> Tensor: ...

    def flops(self, model: ModelConfig) -> int:
        """Matrix-multiply FLOPs of one token, forward."""
        assert model.vocabulary is not None
        return 2 * model.vocabulary * model.width


class LinearHead(Head):
    """y · Wᵀ + b, with the token embedding for W where they are tied."""

    def parameters(self, model: ModelConfig) -> list[Parameter]:
        assert model.vocabulary is not None
        own = [] if model.tied else [Parameter("head.weight", (model.vocabulary, model.width), model.init_std)]
        return own + ([Parameter("head.bias", (model.vocabulary,))] if model.head_bias else [])

    def __call__(self, forward: ForwardPass, y: Tensor) -> Tensor:
        return forward.linear_head(y)


#: (logits_RBTV, targets_RBT, model) -> term_R, added to the loss that is differentiated; the recorded loss is without it.
LossTerm = Callable[["Tensor", "Tensor", ModelConfig], "Tensor"]

ATTENTIONS: Registry[BlockPart] = Registry("attention")
ATTENTIONS.add("causal", SelfAttention())
MLPS: Registry[BlockPart] = Registry("MLP")
MLPS.add("gelu", GeluMlp())
NORMS: Registry[ResidualNorm] = Registry("norm")
NORMS.add("layernorm", LayerNorm())
POSITIONS: Registry[PositionScheme] = Registry("position scheme")
POSITIONS.add("learned", LearnedPositions())
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
    """The parts of every block in their order, each with the name of the norm before it."""
    return ("norm1", ATTENTIONS[model.attention]), ("norm2", MLPS[model.mlp])


def norm_before(model: ModelConfig, number: int) -> str | None:
    """The norm in front of block *number*; behind the last block it is the final norm, where there is one."""
    if number < model.layers:
        return f"blocks.{number}.{parts_of(model)[0][0]}"
    return "final_norm" if model.final_norm else None


def _residual_std(model: ModelConfig) -> float:
    """GPT-2 starts the layers that write to the residual stream smaller, by sqrt(2 · layers)."""
    return model.init_std / math.sqrt(2 * model.layers) if model.scaled_residual_init else model.init_std
