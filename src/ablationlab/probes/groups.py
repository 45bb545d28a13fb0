"""Groups of parameters, and sums over them: one pass over the flat buffers, then one small sum a parameter."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from ablationlab.probes.snapshot import Snapshot

#: Disjoint groups that together are all parameters.
PARTS = ("embedding", "position", "front", "attention", "mlp", "norms", "head")
_BLOCK = re.compile(r"blocks\.(\d+)\.(norm1|norm2|attn|mlp)\.")
_PART = {"norm1": "norms", "norm2": "norms", "attn": "attention", "mlp": "mlp"}
_FIRST = {"tok": "embedding", "pos": "position", "front": "front", "final_norm": "norms", "head": "head"}
# Buffers are summed in runs of this many elements first; every parameter's slot is a multiple of it.
CHUNK = 64


def part_of(name: str) -> str:
    """The disjoint group of a parameter."""
    block = _BLOCK.match(name)
    return _PART[block.group(2)] if block else _FIRST[name.partition(".")[0]]


def block_of(name: str) -> str | None:
    """block-n for a parameter of block n, counted from 1."""
    block = _BLOCK.match(name)
    return f"block-{int(block.group(1)) + 1}" if block else None


def grouped(snapshot: Snapshot) -> dict[str, tuple[int, ...]]:
    """Group -> positions of its parameters in the layout: the total, the disjoint groups, then each block."""
    names = [parameter.name for parameter in snapshot.layout.parameters]
    found = {"total": tuple(range(len(names)))}
    for part in PARTS:
        found[part] = tuple(i for i, name in enumerate(names) if part_of(name) == part)
    for layer in range(snapshot.model.layers):
        label = f"block-{layer + 1}"
        found[label] = tuple(i for i, name in enumerate(names) if block_of(name) == label)
    return {group: members for group, members in found.items() if members}


def owned_RN(snapshot: Snapshot) -> Tensor:
    """1 where a run has that parameter, by position in the layout; in double precision, on the host."""
    names = [parameter.name for parameter in snapshot.layout.parameters]
    return torch.tensor([[name in owned for name in names] for owned in snapshot.owned], dtype=torch.float64)


def membership_NG(snapshot: Snapshot) -> Tensor:
    """1 where a parameter belongs to a group."""
    groups = grouped(snapshot)
    table = torch.zeros(len(snapshot.layout.parameters), len(groups), dtype=torch.float64)
    for column, members in enumerate(groups.values()):
        table[list(members), column] = 1.0
    return table


def chunk_squares(flat_RP: Tensor) -> Tensor:
    """Sums of squares over chunks."""
    norms: Tensor = torch.linalg.vector_norm(flat_RP.detach().view(flat_RP.shape[0], -1, CHUNK), dim=-1)
    return norms.double().square()


def per_parameter(chunks_QRC: Tensor, snapshot: Snapshot, *, largest: bool = False) -> Tensor:
    """Sums (or maxima) of chunks over each parameter's slot: (Q, R, parameters), in double precision."""
    slots = torch.split(chunks_QRC.double(), [size // CHUNK for size in snapshot.layout.sizes], dim=-1)
    return torch.stack([slot.amax(dim=-1) if largest else slot.sum(dim=-1) for slot in slots], dim=-1)


def per_group(values_RN: Tensor, snapshot: Snapshot) -> Tensor:
    """Sums over the groups, of the parameters that each run has: (R, groups)."""
    device = values_RN.device
    kept = torch.where(
        owned_RN(snapshot).to(device) > 0, values_RN, torch.zeros((), device=device, dtype=torch.float64)
    )
    return kept @ membership_NG(snapshot).to(device)


def has_group(snapshot: Snapshot) -> list[list[bool]]:
    """Whether each run has anything of each group (R lists of groups)."""
    found: list[list[bool]] = (owned_RN(snapshot) @ membership_NG(snapshot) > 0).tolist()
    return found
