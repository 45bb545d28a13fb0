"""Probes of the step itself: gradient, update, Adam's second moment, per group of parameters.

Sums over groups take a handful of passes over the flat buffers. A buffer is first reduced in chunks of 64 elements (every
slot is a whole number of chunks), then chunks to groups: by one product with a membership table where that is small, else
parameter by parameter. Slots that a run does not own (the learned gain in a baseline that shares a stack with normed arms)
and padding never count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ablationlab.model.weights import Parameter
from ablationlab.training.probes.snapshot import Reading, Snapshot

# eps is at least this share of Adam's denominator sqrt(v̂) + eps: sqrt(v̂) <= 9 eps.
NEAR = 0.1


def _readings(measure: str, values_RG: Tensor, table: Groups) -> list[Reading]:
    """One reading per group, since runs differ in which groups they have."""
    return [
        Reading(measure, values_RG[:, column], (group,), has_R=[has[column] for has in table.has_RG])
        for column, group in enumerate(table.names)
    ]


def gradient_norm(snapshot: Snapshot) -> list[Reading]:
    """‖g‖ per group; the squares of the disjoint groups sum to that of the total."""
    table = groups(snapshot)
    return _readings("norm", table.sums(squares(snapshot.gradient_RP)).sqrt(), table)


def update_ratio(snapshot: Snapshot) -> list[Reading]:
    """‖θ_k - θ_{k-1}‖ / ‖θ_{k-1}‖ per group."""
    table = groups(snapshot)
    moved = table.sums(squares(snapshot.weights_RP.detach() - snapshot.before_RP))
    return _readings("ratio", (moved / table.sums(squares(snapshot.before_RP))).sqrt(), table)


def second_moment(snapshot: Snapshot) -> list[Reading]:
    """Mean and maximum of v̂ = v / (1 - β₂ᵏ), and the share of weights with sqrt(v̂) <= eps (1 - NEAR) / NEAR; nothing of an
    optimizer without a second moment."""
    if snapshot.v_RP is None:
        return []
    table, v = groups(snapshot), chunked(snapshot.v_RP)
    correction = snapshot.v_correction
    # Roots are compared, not squares: in single precision the square of a small eps would vanish.
    limit = correction.sqrt() * (snapshot.training.eps * (1 - NEAR) / NEAR)
    near = (v.sqrt() <= limit.float()).sum(dim=-1) - table.padding_C  # padding is always zero, hence always near
    return [
        *_readings("mean", table.sums(v.sum(dim=-1)) / table.count_RG / correction, table),
        *_readings("max", table.maxima(v.amax(dim=-1)) / correction, table),
        *_readings("near_eps", table.sums(near) / table.count_RG, table),
    ]


# The order in which groups are recorded; those of other kinds of parts follow.
ORDER = ("embedding", "position", "front", "attention", "mlp", "norms", "head")
CHUNK = 64
# Entries of the largest membership table: a model of a million parameters has fewer, one of a hundred million more.
LARGEST_TABLE = 2**22


def groups_of(parameters: Sequence[Parameter]) -> dict[str, tuple[int, ...]]:
    """Group -> positions of its parameters: the total, the disjoint groups, then each block."""

    def where(wanted: Callable[[Parameter], bool]) -> tuple[int, ...]:
        return tuple(i for i, parameter in enumerate(parameters) if wanted(parameter))

    groups = {"total": where(lambda _: True)}
    for group in dict.fromkeys((*ORDER, *(parameter.group for parameter in parameters))):
        groups[group] = where(lambda parameter, group=group: parameter.group == group)  # type: ignore[misc]
    for block in dict.fromkeys(p.block for p in parameters if p.block is not None):
        groups[f"block-{block + 1}"] = where(lambda parameter, block=block: parameter.block == block)  # type: ignore[misc]
    return {group: members for group, members in groups.items() if members}


@dataclass(frozen=True)
class Groups:
    """The tables that turn chunks into groups. R runs, C chunks, N parameters, G groups."""

    names: tuple[str, ...]
    has_RG: tuple[tuple[bool, ...], ...]  # whether a run owns anything of a group
    count_RG: Tensor  # elements that a run owns of each group
    owned_RC: Tensor
    padding_C: Tensor  # elements of a chunk that belong to no parameter
    slots: tuple[int, ...]  # chunks of each parameter
    member_NG: Tensor
    member_CG: Tensor | None  # None where it would be too large

    def sums(self, chunks_RC: Tensor) -> Tensor:
        """Sums over each run's own part of each group, in double precision: (R, G)."""
        mine = torch.where(self.owned_RC, chunks_RC.double(), 0.0)
        if self.member_CG is not None:
            return mine @ self.member_CG
        pieces = [piece.sum(dim=1) for piece in torch.split(mine, list(self.slots), dim=1)]
        return torch.stack(pieces, dim=1) @ self.member_NG

    def maxima(self, chunks_RC: Tensor) -> Tensor:
        """Largest chunk of each group, of numbers that are not negative: (R, G)."""
        if self.member_CG is not None:
            largest: Tensor = (chunks_RC[:, :, None] * self.member_CG).amax(dim=1)
            return largest
        pieces = [piece.amax(dim=1) for piece in torch.split(chunks_RC, list(self.slots), dim=1)]
        return (torch.stack(pieces, dim=1)[:, :, None] * self.member_NG).amax(dim=1)


def groups(snapshot: Snapshot) -> Groups:
    """The tables of a snapshot's stack, made once."""
    layout = snapshot.layout
    return _groups(layout.parameters, layout.sizes, snapshot.owned, snapshot.weights_RP.device)


@lru_cache(maxsize=4)
def _groups(
    parameters: tuple[Parameter, ...],
    sizes: tuple[int, ...],
    owned: tuple[frozenset[str], ...],
    device: torch.device,
) -> Groups:
    names = tuple(parameter.name for parameter in parameters)
    groups = groups_of(parameters)
    slots = tuple(size // CHUNK for size in sizes)
    assert all(size % CHUNK == 0 for size in sizes)
    member_NG = torch.zeros(len(names), len(groups), dtype=torch.float64)
    for column, members in enumerate(groups.values()):
        member_NG[list(members), column] = 1.0
    owned_RN = torch.tensor([[name in mine for name in names] for mine in owned])
    repeats = torch.tensor(slots)
    padding = torch.zeros(sum(slots))
    for end, parameter, size in zip(repeats.cumsum(0).tolist(), parameters, sizes, strict=True):
        padding[end - 1] = size - parameter.size  # less than a chunk, by the layout's alignment
    small = sum(slots) * len(groups) <= LARGEST_TABLE
    count_RG = (owned_RN * torch.tensor([float(p.size) for p in parameters], dtype=torch.float64)) @ member_NG
    return Groups(
        names=tuple(groups),
        has_RG=tuple(tuple(row) for row in (count_RG > 0).tolist()),
        count_RG=count_RG.to(device),
        owned_RC=owned_RN.repeat_interleave(repeats, dim=1).to(device),
        padding_C=padding.to(device),
        slots=slots,
        member_NG=member_NG.to(device),
        member_CG=member_NG.repeat_interleave(repeats, dim=0).to(device) if small else None,
    )


def chunked(flat_RP: Tensor) -> Tensor:
    """A flat buffer as (R, C, CHUNK)."""
    return flat_RP.detach().view(flat_RP.shape[0], -1, CHUNK)


def squares(flat_RP: Tensor) -> Tensor:
    """Sums of squares over chunks: (R, C), in double precision."""
    norms: Tensor = torch.linalg.vector_norm(chunked(flat_RP), dim=-1)
    return norms.double().square()
