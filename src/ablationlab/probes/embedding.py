"""Probes of the token embedding and of the learned norm behind it."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ablationlab.probes.snapshot import Reading, Snapshot

LEVELS = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
# Up to this many tokens each is a point of its own in frequency against norm; more are drawn together.
POINTS = 128


def quantiles_RQ(values_RN: Tensor) -> Tensor:
    """Quantiles at `LEVELS` along the last axis, by linear interpolation. One sort and a few picks: torch's takes more."""
    last = values_RN.shape[-1] - 1
    places = torch.tensor([level * last for level in LEVELS], dtype=values_RN.dtype)
    below = places.floor().long()
    above = (below + 1).clamp(max=last)
    below, above, share = (one.to(values_RN.device) for one in (below, above, places - below))
    ordered = values_RN.sort(dim=-1).values
    return torch.lerp(ordered[..., below], ordered[..., above], share)


def embedding_norm(snapshot: Snapshot) -> list[Reading]:
    """‖E_t‖ over all rows t, and over those of each class."""
    norms_RV = torch.linalg.vector_norm(snapshot.weights["tok.weight"], dim=-1)
    found = []
    for name, ids in {"all": None, **snapshot.vocabulary.members}.items():
        chosen = norms_RV if ids is None else norms_RV[:, torch.from_numpy(ids).to(norms_RV.device)]
        found.append(Reading("mean", chosen.mean(dim=-1), (name,)))
        found.append(Reading("quantile", quantiles_RQ(chosen), (name,), LEVELS))
    return found


def token_frequency(snapshot: Snapshot) -> list[Reading]:
    """Points (frequency, norm) by falling frequency, and their rank correlation over tokens that occur in training."""
    vocabulary = snapshot.vocabulary
    norms_RV = torch.linalg.vector_norm(snapshot.weights["tok.weight"], dim=-1)
    points = vocabulary.points(POINTS)
    texts = [vocabulary.texts[ids[0]] if len(ids) == 1 else None for ids in points]
    ranks = [float(rank) for rank in np.cumsum([1, *[len(ids) for ids in points[:-1]]])]
    share_V = vocabulary.counts_V / max(int(vocabulary.counts_V.sum()), 1)
    sizes = torch.tensor([len(ids) for ids in points], dtype=torch.float64)
    order = torch.from_numpy(vocabulary.by_frequency).to(norms_RV.device)
    pieces = torch.split(norms_RV[:, order].double(), sizes.long().tolist(), dim=1)
    means = torch.stack([piece.mean(dim=1) for piece in pieces], dim=1) if len(pieces) < norms_RV.shape[1] else None
    shares = torch.tensor([float(share_V[ids].mean()) for ids in points], dtype=torch.float64)
    return [
        Reading("frequency", shares.expand(len(norms_RV), -1), texts, ranks),
        Reading("norm", norms_RV[:, order] if means is None else means, texts, ranks),
        Reading("correlation", _spearman(norms_RV, vocabulary.counts_V)),
    ]


def _spearman(values_RV: Tensor, counts_V: NDArray[np.int64]) -> Tensor:
    """Rank correlation per run with the counts, over tokens that occur; ties share their mean rank, as in scipy."""
    occurs = np.flatnonzero(counts_V)
    if len(occurs) < 2:
        return torch.full(values_RV.shape[:1], float("nan"), device=values_RV.device)
    kept = values_RV[:, torch.from_numpy(occurs).to(values_RV.device)].double()
    # Norms are real numbers and hardly ever tie, so their ranks are their order; counts tie often.
    ranks = kept.argsort(dim=1).argsort(dim=1).double()
    _, inverse, sizes = np.unique(counts_V[occurs], return_inverse=True, return_counts=True)
    middle = np.cumsum(sizes) - (sizes + 1) / 2
    other = torch.from_numpy(middle[inverse].astype(np.float64)).to(values_RV.device)
    ranks, other = ranks - ranks.mean(dim=1, keepdim=True), other - other.mean()
    spread: Tensor = torch.linalg.vector_norm(ranks, dim=1) * torch.linalg.vector_norm(other)
    return (ranks @ other) / spread


def effective_rank(snapshot: Snapshot) -> list[Reading]:
    """exp(-Σ p log p) with p = σ / Σσ (Roy & Vetterli 2007), and (Σσ²)² / Σσ⁴, of the token embedding's singular values."""
    table = snapshot.weights["tok.weight"].double()
    fine_R = table.isfinite().all(dim=-1).all(dim=-1)
    # A run that has broken would stop the decomposition for its neighbours too.
    table = torch.where(fine_R[:, None, None], table, torch.zeros((), dtype=table.dtype, device=table.device))
    gram = table @ table.transpose(1, 2) if table.shape[1] <= table.shape[2] else table.transpose(1, 2) @ table
    squares = torch.linalg.eigvalsh(gram).clamp(min=0)  # the squared singular values
    broken = torch.full((), float("nan"), dtype=table.dtype, device=table.device)
    return [
        Reading("entropy", torch.where(fine_R, entropy_rank(squares.sqrt()), broken)),
        Reading("participation", torch.where(fine_R, squares.sum(-1).square() / squares.square().sum(-1), broken)),
    ]


def entropy_rank(singular_RN: Tensor) -> Tensor:
    """exp of the entropy of singular values scaled to sum 1: n for n equal ones, 1 for a single one."""
    share = singular_RN / singular_RN.sum(dim=-1, keepdim=True)
    entropy: Tensor = torch.special.entr(share).sum(dim=-1)
    return entropy.exp()


def embedding_gain(snapshot: Snapshot) -> list[Reading]:
    """The learned gain and bias, for the runs that have them."""
    found = []
    for part in ("gain", "bias"):
        value = snapshot.weights.get(f"front.{part}")
        has = [f"front.{part}" in owned for owned in snapshot.owned]
        if value is None or not any(has):
            continue
        dimensions = [float(dimension) for dimension in range(value.shape[1])]
        found += [
            Reading("mean", value.mean(dim=1), (part,), has_R=has),
            Reading("std", value.std(dim=1, correction=0), (part,), has_R=has),
            Reading("value", value, (part,), dimensions, has_R=has),
        ]
    return found
