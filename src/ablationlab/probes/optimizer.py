"""Probes of the step itself: gradient, update, Adam's second moment, per group of parameters."""

from __future__ import annotations

import torch
from torch import Tensor

from ablationlab.probes.groups import CHUNK, chunk_squares, grouped, has_group, per_group, per_parameter
from ablationlab.probes.snapshot import Reading, Snapshot

# eps is at least this share of Adam's denominator sqrt(v̂) + eps: sqrt(v̂) <= 9 eps.
NEAR = 0.1


def _readings(measure: str, values_RG: Tensor, snapshot: Snapshot) -> list[Reading]:
    """One reading per group, since runs differ in which groups they have."""
    has = has_group(snapshot)
    return [
        Reading(measure, values_RG[:, column], (group,), has_R=[row[column] for row in has])
        for column, group in enumerate(grouped(snapshot))
    ]


def _square_sums(flat_RP: Tensor, snapshot: Snapshot) -> Tensor:
    return per_group(per_parameter(chunk_squares(flat_RP)[None], snapshot)[0], snapshot)


def gradient_norm(snapshot: Snapshot) -> list[Reading]:
    """‖g‖ per group; the squares of the disjoint groups sum to that of the total."""
    return _readings("norm", _square_sums(snapshot.gradient_RP, snapshot).sqrt(), snapshot)


def update_ratio(snapshot: Snapshot) -> list[Reading]:
    """‖θ_k - θ_{k-1}‖ / ‖θ_{k-1}‖ per group; not a number where the weights are all zero (fresh biases)."""
    moved = _square_sums(snapshot.weights_RP.detach() - snapshot.before_RP, snapshot)
    return _readings("ratio", (moved / _square_sums(snapshot.before_RP, snapshot)).sqrt(), snapshot)


def second_moment(snapshot: Snapshot) -> list[Reading]:
    """Mean and maximum of v̂ = v / (1 - β₂ᵏ), and the share of weights with sqrt(v̂) <= eps (1 - NEAR) / NEAR."""
    beta2, eps = snapshot.training.betas[1], snapshot.training.eps
    correction = 1 - beta2**snapshot.step
    v = snapshot.v_RP.detach().view(snapshot.v_RP.shape[0], -1, CHUNK)
    limit = (eps * (1 - NEAR) / NEAR) ** 2 * correction
    # In single precision the square of a small eps may vanish; roots do not.
    near = v.sqrt() <= limit**0.5
    sums = per_parameter(torch.stack([v.sum(dim=-1).double(), near.sum(dim=-1).double()]), snapshot)
    largest = per_parameter(v.amax(dim=-1)[None], snapshot, largest=True)[0]
    device = v.device
    sizes = torch.tensor([parameter.size for parameter in snapshot.layout.parameters], dtype=torch.float64)
    padding = torch.tensor(snapshot.layout.sizes, dtype=torch.float64) - sizes  # always zero, hence always near
    counts = per_group(sizes.to(device).expand(len(v), -1), snapshot)
    shares = per_group(sums[1] - padding.to(device), snapshot) / counts
    means = per_group(sums[0], snapshot) / counts / correction
    tops = torch.stack([largest[:, list(members)].amax(dim=1) for members in grouped(snapshot).values()], dim=1)
    return [
        *_readings("mean", means, snapshot),
        *_readings("max", tops / correction, snapshot),
        *_readings("near_eps", shares, snapshot),
    ]
