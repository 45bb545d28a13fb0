"""The gradient bound of Takase et al. 2023 (arXiv 2312.16903), predicted from scales, and compared with what is measured.

A Pre-LN block is x' = x + attention(LN(x)), y = x' + mlp(LN(x')), so that the gradient grows through it by at most

    ‖dL/dx‖ <= ‖dx'/dx‖ · ‖dy/dx'‖ · ‖dL/dy‖.

LN's Jacobian has norm 1/σ_x (σ_x: standard deviation of the vector over its features), and a random d₁ × d₂ matrix of
standard deviation σ has norm about σ (√d₁ + √d₂). With these (activation treated as the identity, gain 1):

    ‖dy/dx'‖ <= 1 + σ₁ σ₂ (√d + √d_mlp)² / σ_x'
    ‖dx'/dx‖ <= 1 + σ_O σ_V (2√d)² ‖A‖ / σ_x

In the second, the paper keeps the Jacobian of the heads as a constant; we write out its path through the values (A: the
attention matrix, ‖A‖ <= sqrt(largest column sum) since its rows sum to 1) and leave out the path through the scores. Small
embeddings (σ_x = 0.02·√2) make block 1's terms large: this is why embedding norms or scaled embeddings should tame spikes.

The prediction is for random weights: where training has given the matrices a few strong directions, it can fall below
what is measured, and that is worth seeing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ablationlab.model.parts import BlockPart, parts_of
from ablationlab.training.probes.activations import stream_names
from ablationlab.training.probes.snapshot import Reading, Snapshot

JACOBIAN_TOKENS = 4
SQUARINGS = 8  # as many as 2**8 power iterations, in few launches


def _matrix_norms(snapshot: Snapshot, part: BlockPart) -> Tensor:
    """Product of σ (√d₁ + √d₂) over both matrices of a part, in every block: (R, blocks)."""
    paths = [part.path(snapshot.weights, f"blocks.{i}.{part.name}") for i in range(snapshot.model.layers)]
    into, out_of = (torch.stack(matrices, dim=1) for matrices in zip(*paths, strict=True))
    sizes = math.prod(math.sqrt(rows) + math.sqrt(columns) for *_, rows, columns in (into.shape, out_of.shape))
    return out_of.flatten(2).std(dim=2, correction=0) * into.flatten(2).std(dim=2, correction=0) * sizes


def _scale(places: tuple[Tensor, ...]) -> Tensor:
    """σ_x at every place: mean over tokens of the standard deviation over features."""
    return torch.stack(places, dim=1).std(dim=-1, correction=0).mean(dim=(2, 3))


def gradient_bound(snapshot: Snapshot) -> list[Reading]:
    """Predicted factors of every sub-layer, their products, and the growth of ‖dL/dx‖ that was measured."""
    taps = snapshot.taps
    names = stream_names(snapshot.model.layers)
    spread = torch.stack([kept.column_max_R for kept in taps.attention], dim=1).sqrt()  # ‖A‖ at most
    parts = [part for _, part in parts_of(snapshot.model)]
    attention, mlp = (_matrix_norms(snapshot, part) for part in parts)
    scale = torch.stack([_scale(taps.stream[:-1]), _scale(taps.middle)], dim=2)  # R, blocks, sub-layers
    factor = 1 + torch.stack([attention * spread, mlp], dim=2) / scale
    sublayers = tuple(f"{name}.{part.group}" for name in names[1:] for part in parts)
    blocks = factor.prod(dim=2)
    norms: Tensor = torch.linalg.vector_norm(torch.stack(taps.gradients, dim=1).flatten(2), dim=2)
    growth = norms[:, :-1] / norms[:, 1:]
    return [
        Reading("input_std", scale, sublayers),
        Reading("predicted", factor, sublayers),
        Reading("bound", torch.cat([blocks, blocks.prod(dim=1, keepdim=True)], dim=1), (*names[1:], "all")),
        Reading("growth", torch.cat([growth, norms[:, :1] / norms[:, -1:]], dim=1), (*names[1:], "all")),
        Reading("jacobian", spectral_norm(mlp_jacobian(snapshot)).amax(dim=1), ("block-1.mlp",)),
        Reading("gradient", norms, names),
    ]


def mlp_jacobian(snapshot: Snapshot) -> Tensor:
    """dy/dx' of block 1's MLP sub-layer at a few tokens: (R, K, D, D), rows are inputs. In single precision."""
    weights, eps = snapshot.weights, snapshot.model.norm_eps
    tokens = snapshot.taps.middle[0].flatten(1, 2).float()
    chosen = torch.linspace(0, tokens.shape[1] - 1, min(JACOBIAN_TOKENS, tokens.shape[1]), device=tokens.device)
    x = tokens[:, chosen.long()]  # R, K, D
    width = x.shape[-1]
    deviation = (x.var(dim=-1, correction=0, keepdim=True) + eps).sqrt()
    unit = (x - x.mean(dim=-1, keepdim=True)) / deviation
    identity = torch.eye(width, device=x.device)
    norm = (identity - 1 / width - unit[..., :, None] * unit[..., None, :] / width) / deviation[..., None]
    gain, bias = weights["blocks.0.norm2.gain"], weights.get("blocks.0.norm2.bias")
    inner = unit * gain[:, None] + (0 if bias is None else bias[:, None])
    _, (_, mlp) = parts_of(snapshot.model)
    return identity + mlp.jacobian(weights, f"blocks.0.{mlp.name}", inner, norm * gain[:, None, None])


def spectral_norm(matrices: Tensor) -> Tensor:
    """Largest singular value: ‖Mv‖ / ‖v‖ for v = (MᵀM)^256 v₀, by squaring, from a fixed v₀. Approaches it from below."""
    power = matrices.transpose(-1, -2) @ matrices
    for _ in range(SQUARINGS):
        power = power / torch.linalg.matrix_norm(power, keepdim=True)
        power = power @ power
    size = matrices.shape[-1]
    vector = power @ torch.cos(torch.arange(size, device=matrices.device, dtype=matrices.dtype) ** 2)
    norm: Tensor = torch.linalg.vector_norm((matrices @ vector[..., None])[..., 0], dim=-1)
    length: Tensor = torch.linalg.vector_norm(vector, dim=-1)
    return norm / length
