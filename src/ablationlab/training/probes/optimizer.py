"""Probes of the step itself: gradient, update, Adam's second moment, per group of parameters."""

from __future__ import annotations

from torch import Tensor

from ablationlab.training.probes.groups import Groups, chunked, groups, squares
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
    """Mean and maximum of v̂ = v / (1 - β₂ᵏ), and the share of weights with sqrt(v̂) <= eps (1 - NEAR) / NEAR."""
    table, v = groups(snapshot), chunked(snapshot.v_RP)
    correction = 1 - snapshot.training.betas[1] ** snapshot.step
    # Roots are compared, not squares: in single precision the square of a small eps would vanish.
    limit = snapshot.training.eps * (1 - NEAR) / NEAR * correction**0.5
    near = (v.sqrt() <= limit).sum(dim=-1) - table.padding_C  # padding is always zero, hence always near
    return [
        *_readings("mean", table.sums(v.sum(dim=-1)) / table.count_RG / correction, table),
        *_readings("max", table.maxima(v.amax(dim=-1)) / correction, table),
        *_readings("near_eps", table.sums(near) / table.count_RG, table),
    ]
