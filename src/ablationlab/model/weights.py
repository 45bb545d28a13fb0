"""One weight tensor of a model: its name, shape and initial value. No torch.

Every parameter is drawn from its own stream, named by (seed, "init", parameter name), so that all variants of one seed
share every parameter they have in common, bit for bit. A redrawn one comes from (seed, "init", name, "redraw", k): another
draw from the same distribution.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ablationlab.core.seeding import stream

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Parameter:
    """One parameter tensor of one run: ``std · N(0, 1)`` if std is given, else the constant ``fill``."""

    name: str
    shape: tuple[int, ...]
    std: float | None = None
    fill: float = 0.0
    redraw: int = 0  # which of the iid draws; 0 is the ordinary one
    # A matrix made of columns (first, end, factor) of the one that is drawn, which has ``drawn`` of them; none: of all.
    pieces: tuple[tuple[int, int, float], ...] = ()
    drawn: int = 0
    # Widths of the matrices that stand side by side in it, where they are more than one: Muon takes each by itself.
    sections: tuple[int, ...] = ()
    group: str = ""  # what it is a part of: embedding, position, front, norms, head, or the group of a block's part
    block: int | None = None  # the block that it belongs to
    rate: float = 1.0  # factor of its learning rate, by µP

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
        return self.is_matrix and self.block is not None

    def draw(self, seed: int) -> NDArray[np.float32]:
        """The initial value for one seed."""
        import numpy as np

        if self.std is None:
            return np.full(self.shape, self.fill, dtype=np.float32)
        again = ("redraw", self.redraw) if self.redraw else ()
        shape = (self.shape[0], self.drawn) if self.pieces else self.shape
        normal = stream(seed, "init", self.name, *again).standard_normal(shape, dtype=np.float32)
        if self.pieces:
            parts = [normal[:, first:end] * np.float32(factor) for first, end, factor in self.pieces]
            normal = np.concatenate(parts, axis=1)
        return normal * np.float32(self.std)


def affine(name: str, width: int, *, gain: bool = True, bias: bool) -> list[Parameter]:
    """Gain and bias of a norm."""
    gains = [Parameter(f"{name}.gain", (width,), fill=1.0)] if gain else []
    return gains + ([Parameter(f"{name}.bias", (width,))] if bias else [])


def linear(
    name: str,
    inputs: int,
    outputs: int,
    std: float,
    *,
    bias: bool,
    redraw: int = 0,
    pieces: tuple[tuple[int, int, float], ...] = (),
    sections: tuple[int, ...] = (),
) -> list[Parameter]:
    """The parameters of ``y = x W + b``: ``name.weight`` (inputs, outputs), normal with *std*, and ``name.bias``, zeros.

    A part returns them from `parameters` and multiplies with ``forward.layer(y, name)``. *redraw*: another draw of the same
    distribution. *pieces*: (first, end, factor) of the columns that are kept; *sections*: widths of layers side by side.
    """
    drawn = outputs if pieces else 0
    outputs = sum(end - first for first, end, _ in pieces) if pieces else outputs
    weight = Parameter(
        f"{name}.weight", (inputs, outputs), std, redraw=redraw, pieces=pieces, drawn=drawn, sections=sections
    )
    return [weight] + ([Parameter(f"{name}.bias", (outputs,))] if bias else [])


def weight_digest(array: NDArray[np.float32]) -> str:
    """SHA-256 over shape and little-endian bytes of one parameter."""
    import numpy as np

    total = hashlib.sha256(repr(array.shape).encode())
    total.update(np.ascontiguousarray(array, dtype="<f4").data)
    return total.hexdigest()


def joint_digest(digests: dict[str, str], names: Iterable[str]) -> str:
    """One hash for the named parameters, from their own hashes."""
    total = hashlib.sha256()
    for name in sorted(names):
        total.update(f"{name}={digests[name]}\n".encode())
    return total.hexdigest()
