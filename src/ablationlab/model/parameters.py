"""The parameters of a model: names, shapes, initial values, and what they cost. No torch.

Every parameter is drawn from its own stream, named by (seed, "init", parameter name), so that all variants of one seed
share every parameter they have in common, bit for bit. A redrawn one comes from (seed, "init", name, "redraw", k): another
draw from the same distribution.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ablationlab.core.seeding import stream
from ablationlab.records.settings import ModelConfig


@dataclass(frozen=True)
class Parameter:
    """One parameter tensor of one run: ``std · N(0, 1)`` if std is given, else the constant ``fill``."""

    name: str
    shape: tuple[int, ...]
    std: float | None = None
    fill: float = 0.0
    redraw: int = 0  # which of the iid draws; 0 is the ordinary one

    @property
    def size(self) -> int:
        """Number of scalars."""
        return math.prod(self.shape)

    @property
    def is_matrix(self) -> bool:
        """Matrices and embeddings, as against gains and biases."""
        return len(self.shape) >= 2

    @property
    def in_products(self) -> bool:
        """A matrix of a block: it is read by matrix products alone, in their precision."""
        return self.is_matrix and self.name.startswith("blocks.")

    def draw(self, seed: int) -> NDArray[np.float32]:
        """The initial value for one seed."""
        if self.std is None:
            return np.full(self.shape, self.fill, dtype=np.float32)
        again = ("redraw", self.redraw) if self.redraw else ()
        normal = stream(seed, "init", self.name, *again).standard_normal(self.shape, dtype=np.float32)
        return normal * np.float32(self.std)


def parameters(model: ModelConfig) -> tuple[Parameter, ...]:
    """All parameters of a model, in the order of the forward pass. ``vocabulary`` must be resolved."""
    assert model.vocabulary is not None
    width, std = model.width, model.init_std
    residual_std = std / math.sqrt(2 * model.layers) if model.scaled_residual_init and model.layers else std
    found = [
        Parameter("tok.weight", (model.vocabulary, width), model.token_init_std),
        Parameter("pos.weight", (model.context, width), model.position_init_std),
    ]
    found += _affine("front", width, gain=model.front.gain, bias=model.front.bias)
    for i in range(model.layers):
        block = f"blocks.{i}"
        found += _affine(f"{block}.norm1", width, gain=True, bias=model.biases)
        found += _linear(f"{block}.attn.qkv", width, 3 * width, std, model.biases)
        found += _linear(f"{block}.attn.out", width, width, residual_std, model.biases)
        found += _affine(f"{block}.norm2", width, gain=True, bias=model.biases)
        found += _linear(f"{block}.mlp.up", width, model.mlp_ratio * width, std, model.biases, model.redraw)
        found += _linear(f"{block}.mlp.down", model.mlp_ratio * width, width, residual_std, model.biases, model.redraw)
    if model.final_norm:
        found += _affine("final_norm", width, gain=True, bias=model.biases)
    if not model.tied:
        found.append(Parameter("head.weight", (model.vocabulary, width), std))
    if model.head_bias:
        found.append(Parameter("head.bias", (model.vocabulary,)))
    return tuple(found)


def _affine(name: str, width: int, *, gain: bool, bias: bool) -> list[Parameter]:
    found = [Parameter(f"{name}.gain", (width,), fill=1.0)] if gain else []
    return found + ([Parameter(f"{name}.bias", (width,))] if bias else [])


def _linear(name: str, inputs: int, outputs: int, std: float, bias: bool, redraw: int = 0) -> list[Parameter]:
    weight = [Parameter(f"{name}.weight", (inputs, outputs), std, redraw=redraw)]
    return weight + ([Parameter(f"{name}.bias", (outputs,))] if bias else [])


def parameter_count(model: ModelConfig) -> int:
    """Number of scalars that training moves."""
    return sum(parameter.size for parameter in parameters(model))


def matmul_flops_per_token(model: ModelConfig) -> int:
    """Matrix-multiply FLOPs of one training token, forward and backward.

    Forward, per token: 2 · (weights of all linear layers and of the output head) + 4 · layers · context · width for
    the two attention products (computed in full: the causal half is not discounted). Backward costs twice the forward.
    Embedding look-ups, norms and activations are no matrix products and are not counted.
    """
    assert model.vocabulary is not None
    linear = model.layers * (4 + 2 * model.mlp_ratio) * model.width**2 + model.vocabulary * model.width
    attention = 2 * model.layers * model.context * model.width
    return 3 * (2 * linear + 2 * attention)


def weight_digest(array: NDArray[np.float32]) -> str:
    """SHA-256 over shape and little-endian bytes of one parameter."""
    total = hashlib.sha256(repr(array.shape).encode())
    total.update(np.ascontiguousarray(array, dtype="<f4").data)
    return total.hexdigest()


def joint_digest(digests: dict[str, str], names: Iterable[str]) -> str:
    """One hash for the named parameters, from their own hashes."""
    total = hashlib.sha256()
    for name in sorted(names):
        total.update(f"{name}={digests[name]}\n".encode())
    return total.hexdigest()
