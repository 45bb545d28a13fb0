"""All parameters of a model, and what they cost. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from ablationlab.model.parts import HEADS, POSITIONS, norm_before, norm_kind, norms_of, parts_of, skip_before
from ablationlab.model.weights import Parameter, affine
from ablationlab.records.settings import FrontEnd, ModelConfig


def parameters(model: ModelConfig) -> tuple[Parameter, ...]:
    """All parameters of a model, in the order of the forward pass. ``vocabulary`` must be resolved."""
    assert model.vocabulary is not None
    width = model.width
    owned = [Parameter("tok.weight", (model.vocabulary, width), model.token_init_std, group="embedding")]
    owned += _of("position", POSITIONS[model.position].parameters(model))
    owned += _of("front", affine("front", width, gain=model.front.gain, bias=model.front.bias))
    for number in range(model.layers):
        name = f"blocks.{number}"
        if model.embedding_skip is not None:
            skip = Parameter(f"{skip_before(number)}.weight", (1,), fill=model.embedding_skip)
            owned += _of("skip", [skip], number)
        for norm, part in parts_of(model):
            norms = {
                place: _of("norms", norm_kind(model, norm).parameters(model, f"{name}.{own}"), number)
                for place, own in norms_of(model, norm).items()
            }
            owned += norms.pop("before", [])
            owned += _of(part.group, part.parameters(model, f"{name}.{part.name}"), number)
            owned += [parameter for behind in norms.values() for parameter in behind]
    if model.final_norm:
        owned += _of("norms", norm_kind(model, "final_norm").parameters(model, "final_norm"))
    owned += _of("head", HEADS[model.head].parameters(model))
    return tuple(owned) if model.mup_base is None else tuple(_scaled(parameter, model) for parameter in owned)


def _scaled(parameter: Parameter, model: ModelConfig) -> Parameter:
    """A parameter by the rules of µP for Adam (Yang et al. 2022, table 8), with m = width / base width.

        matrices of the blocks    standard deviation / sqrt(m), rate / m
        head of its own           standard deviation / m, rate / m
        tied head                 instead, the final norm's gain and bias: start / m, rate / m

    so that activations, logits and their changes keep their size. The rest is as in the base model. Attention divides by
    sqrt(width / heads), so let the number of heads grow with the width.
    """
    assert model.mup_base is not None
    ratio = model.width / model.mup_base
    if parameter.in_products:
        return replace(parameter, std=parameter.std and parameter.std / math.sqrt(ratio), rate=1 / ratio)
    if parameter.name.startswith("final_norm.") if model.tied else parameter.group == "head" and parameter.is_matrix:
        return replace(
            parameter, std=parameter.std and parameter.std / ratio, fill=parameter.fill / ratio, rate=1 / ratio
        )
    return parameter


def _of(group: str, owned: Iterable[Parameter], block: int | None = None) -> list[Parameter]:
    return [replace(parameter, group=group, block=block) for parameter in owned]


def stack_parameters(models: Iterable[ModelConfig]) -> tuple[Parameter, ...]:
    """The union of the parameters of models that differ in nothing but their front end."""
    members = list(models)
    gain = any(model.front.gain for model in members)
    bias = any(model.front.bias for model in members)
    full = FrontEnd(norm="layernorm" if gain or bias else "none", gain=gain, bias=bias)
    return parameters(members[0].changed(front=full))


def read_by_block(model: ModelConfig, number: int) -> tuple[Parameter, ...]:
    """What block *number* of the forward pass reads: its parts, the norms between them, and norm and skip behind it.

    The norm and the skip in front of a block are read by whoever stands before it.
    """
    before, behind = ((norm_before(model, place), skip_before(place)) for place in (number, number + 1))

    def reads(parameter: Parameter) -> bool:
        owner = parameter.name.rpartition(".")[0]
        return owner in behind or (parameter.block == number and owner not in before)

    return tuple(parameter for parameter in parameters(model) if reads(parameter))


def parameter_count(model: ModelConfig) -> int:
    """Number of scalars that training moves."""
    return sum(parameter.size for parameter in parameters(model))


def matmul_flops_per_token(model: ModelConfig) -> int:
    """Matrix-multiply FLOPs of one training token, forward and backward.

    Forward, per token: the parts of all blocks, and the output head (2 · vocabulary · width for the linear one). Backward
    costs twice the forward. Embedding look-ups, norms and activations are no matrix products and are not counted.
    """
    assert model.vocabulary is not None
    costs = [part.cost(model) for _, part in parts_of(model)]
    blocks = model.layers * sum(cost.linear_flops + cost.attention_flops for cost in costs)
    return 3 * (blocks + HEADS[model.head].flops(model))
