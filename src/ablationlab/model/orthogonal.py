"""Newton-Schulz: matrices whose singular values are all about 1, many at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ablationlab.model.rules import ITERATIONS

# The quintic polynomial aσ + bσ³ + cσ⁵ of Jordan et al. 2024: steep at 0, and between 0.7 and 1.2 after five iterations.
A, B, C = 3.4445, -4.7750, 2.0315
EPS = 1e-7


def orthogonalized(matrices: Sequence[Tensor], *, bf16: bool) -> list[Tensor]:
    """U p(Σ) Vᵀ of every matrix UΣVᵀ in the last two axes, p being five iterations of the polynomial. The first axis is the
    same of all.

        X = M / ‖M‖;  five times:  G = XXᵀ,  X = aX + (bG + cG²)X

    Matrices of one shape, lying on their long side, are one batch. Products and results are in bf16 if asked for, else
    in fp32.
    """
    lying = [matrix if matrix.shape[-2] <= matrix.shape[-1] else matrix.mT for matrix in matrices]
    found: dict[int, Tensor] = {}
    for shape in dict.fromkeys(matrix.shape[-2:] for matrix in lying):
        members = [place for place, matrix in enumerate(lying) if matrix.shape[-2:] == shape]
        # One copy gathers them all: a kernel per matrix would cost more than the products of small ones.
        batches = [lying[place][:, None].flatten(1, -3) for place in members]
        x = torch.cat(batches, dim=1).flatten(0, 1)
        x = x.bfloat16() if bf16 else x
        x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=EPS)
        for _ in range(ITERATIONS):
            g = torch.bmm(x, x.mT)
            x = torch.baddbmm(x, torch.baddbmm(g, g, g, beta=B, alpha=C), x, beta=A)
        x = x.view(len(batches[0]), -1, *shape)
        for place, batch in zip(members, torch.split(x, [batch.shape[1] for batch in batches], dim=1), strict=True):
            whole = batch.reshape(lying[place].shape)
            found[place] = whole if matrices[place].shape[-2:] == shape else whole.mT
    return [found[place] for place in range(len(matrices))]
