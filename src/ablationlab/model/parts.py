"""The parts of a block, each with its parameters, its FLOPs and its function side by side. Importing this loads no torch.

A block adds its parts to the residual stream one after the other, each behind a norm: ``x += part(norm(x))``. To add a
kind of attention or MLP, write a class like those below and let `parts_of` choose it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from ablationlab.model.weights import Parameter, linear
from ablationlab.records.settings import ModelConfig

if TYPE_CHECKING:
    from torch import Tensor

    from ablationlab.model.gpt import ForwardPass, Parameters


class BlockPart(Protocol):
    """One branch of a block. *prefix* is ``blocks.<number>.<name>``: names of parameters and dropout sites begin with it."""

    @property
    def name(self) -> str: ...

    @property
    def group(self) -> str:
        """The group of its parameters in the records of probes."""
        ...

    def parameters(self, model: ModelConfig, prefix: str) -> list[Parameter]:
        """What it owns."""
        ...

    def dropout_sites(self, prefix: str) -> tuple[str, ...]:
        """Where it drops units."""
        ...

    def flops(self, model: ModelConfig) -> int:
        """Matrix-multiply FLOPs of one token, forward."""
        ...

    def __call__(self, forward: ForwardPass, y: Tensor, prefix: str) -> tuple[Tensor, Tensor | None]:
        """Its output from the normed stream y_RBTD, and a bias that the reader of the output still has to add."""
        ...

    def path(self, params: Parameters, prefix: str) -> tuple[Tensor, Tensor]:
        """The two matrices_RIO that a vector passes on its way through."""
        ...


class SelfAttention:
    """Queries, keys and values from one linear layer, attention over them, and another linear layer."""

    name, group = "attn", "attention"

    def parameters(self, model: ModelConfig, prefix: str) -> list[Parameter]:
        width = model.width
        return [
            *linear(f"{prefix}.qkv", width, 3 * width, model.init_std, bias=model.biases),
            *linear(f"{prefix}.out", width, width, _residual_std(model), bias=model.biases),
        ]

    def dropout_sites(self, prefix: str) -> tuple[str, ...]:
        return prefix, f"{prefix}.out"

    def flops(self, model: ModelConfig) -> int:
        """Both attention products are counted in full: the causal half is not discounted."""
        return 8 * model.width**2 + 4 * model.context * model.width

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


class Mlp:
    """Two linear layers around GELU in GPT-2's tanh form."""

    name = group = "mlp"

    def parameters(self, model: ModelConfig, prefix: str) -> list[Parameter]:
        width, hidden = model.width, model.mlp_ratio * model.width
        return [
            *linear(f"{prefix}.up", width, hidden, model.init_std, bias=model.biases, redraw=model.redraw),
            *linear(f"{prefix}.down", hidden, width, _residual_std(model), bias=model.biases, redraw=model.redraw),
        ]

    def dropout_sites(self, prefix: str) -> tuple[str, ...]:
        return (prefix,)

    def flops(self, model: ModelConfig) -> int:
        return 4 * model.mlp_ratio * model.width**2

    def __call__(self, forward: ForwardPass, y: Tensor, prefix: str) -> tuple[Tensor, Tensor | None]:
        from ablationlab.model.ops import bias_gelu

        h, bias = forward.layer(y, f"{prefix}.up")
        o, bias = forward.layer(bias_gelu(h, bias), f"{prefix}.down", keep_bias=forward.dropout is not None)
        return (o, bias) if forward.dropout is None else (forward.dropout(o, prefix), None)

    def path(self, params: Parameters, prefix: str) -> tuple[Tensor, Tensor]:
        return params[f"{prefix}.up.weight"], params[f"{prefix}.down.weight"]

    def jacobian(self, params: Parameters, prefix: str, y_RKD: Tensor, before_RKDD: Tensor) -> Tensor:
        """``before · d mlp(y) / dy`` at some vectors: (R, K, D, D), rows are inputs. In single precision."""
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


ATTENTION, MLP = SelfAttention(), Mlp()


def parts_of(model: ModelConfig) -> tuple[tuple[str, BlockPart], ...]:
    """The parts of every block in their order, each with the name of the norm before it."""
    return ("norm1", ATTENTION), ("norm2", MLP)


def norm_before(model: ModelConfig, number: int) -> str | None:
    """The norm in front of block *number*; behind the last block it is the final norm, where there is one."""
    if number < model.layers:
        return f"blocks.{number}.{parts_of(model)[0][0]}"
    return "final_norm" if model.final_norm else None


def _residual_std(model: ModelConfig) -> float:
    """GPT-2 starts the layers that write to the residual stream smaller, by sqrt(2 · layers)."""
    return model.init_std / math.sqrt(2 * model.layers) if model.scaled_residual_init else model.init_std
